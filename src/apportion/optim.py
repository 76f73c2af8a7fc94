"""Optimizers (SGD, Adam, Muon) and learning-rate schedules.

A schedule is a function from progress, 0 to 1 over a stage, to a fraction of the peak learning rate. The
training loop calls `set_learning_rate` with it before every step, for optimizers of any kind. Which
optimizer and schedule a stage gets is decided in `defaults`, or by the recipe of a run.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adam, Optimizer

from apportion._device import has_bfloat16
from apportion.errors import SettingsError

Schedule = Callable[[float], float]  # progress (0 to 1) -> fraction of the peak learning rate

# --- schedules


def constant(progress: float) -> float:
    """The peak learning rate throughout."""
    return 1.0


def flat_then_linear(progress: float) -> float:
    """Constant for 70 %, then linear to zero. A student that keeps moving keeps improving its labels."""
    return min(1.0, (1.0 - progress) / 0.3)


def cosine(progress: float) -> float:
    """From the peak to zero along half a cosine [1]_.

    References
    ----------
    .. [1] Loshchilov & Hutter, "SGDR: Stochastic gradient descent with warm restarts", ICLR 2017.
    """
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def one_cycle(progress: float) -> float:
    """From 1/25 up to the peak in the first 30 %, then down to zero, both along cosines [1]_.

    References
    ----------
    .. [1] Smith & Topin, "Super-convergence: Very fast training of neural networks using large learning
       rates", 2019.
    """
    if progress < 0.3:
        return 1.0 - 0.96 * cosine(progress / 0.3)
    return cosine((progress - 0.3) / 0.7)


def ramp_cosine(progress: float) -> float:
    """Linear to the peak in the first 5 %, then to zero along half a cosine."""
    return progress / 0.05 if progress < 0.05 else cosine((progress - 0.05) / 0.95)


def halving(progress: float, epochs: int) -> float:
    """Halved after every 100 epochs: the paper's schedule. It alone depends on the number of epochs."""
    return 0.5 ** math.floor(progress * epochs / 100 + 1e-9)


SCHEDULES: dict[str, Callable[..., float]] = {
    "constant": constant,
    "flat_then_linear": flat_then_linear,
    "cosine": cosine,
    "one_cycle": one_cycle,
    "ramp_cosine": ramp_cosine,
    "halving": halving,
}

# --- optimizers

OPTIMIZERS = ("adam", "sgd", "muon")


@dataclass(frozen=True)
class Optimization:
    """How the networks of a stage are optimized."""

    optimizer: str
    learning_rate: float  # peak
    schedule: Schedule
    weight_decay: float = 0.0
    momentum: float = 0.9  # β₁ of Adam
    clip: float | None = None  # largest norm of a gradient


def make_optimizers(
    networks: Sequence[nn.Module], settings: Optimization, adam_learning_rate: float = 3e-4
) -> list[Optimizer]:
    """One optimizer per network: `settings` for the first, the classifier, and Adam (β₁ = 0.5) for others."""
    classifier, *generators = networks
    optimizer = make_optimizer(
        classifier,
        settings.optimizer,
        settings.learning_rate,
        weight_decay=settings.weight_decay,
        momentum=settings.momentum,
        clip=settings.clip,
    )
    others = [make_optimizer(each, "adam", adam_learning_rate, momentum=0.5) for each in generators]
    return [optimizer, *others]


def make_optimizer(
    network: nn.Module,
    name: str,
    learning_rate: float,
    *,
    weight_decay: float = 0.0,
    momentum: float = 0.9,
    clip: float | None = None,
) -> Optimizer:
    """An optimizer for the weights of a network that need gradients.

    Parameters
    ----------
    network : nn.Module
        Already on its device.
    name : {"adam", "sgd", "muon"}
        Adam, SGD with Nesterov momentum, or Muon.
    learning_rate : float
        The peak learning rate, of which `set_learning_rate` sets a fraction.
    weight_decay : float, default=0
        Applies to matrices and filters, not to biases and norms.
    momentum : float, default=0.9
        For Adam, this is β₁.
    clip : float, optional
        Gradients of larger norm are scaled down to this norm.

    Returns
    -------
    Optimizer
    """
    if name not in OPTIMIZERS:
        raise SettingsError(f"optimizer is {name!r}; pass one of {', '.join(OPTIMIZERS)}")
    weights = [p for p in network.parameters() if p.requires_grad]
    if not weights:
        what = f"no weight of the {type(network).__name__} needs a gradient"
        raise SettingsError(f"{what}; call requires_grad_() on its last layer at least")
    if name == "muon":
        optimizer: Optimizer = Muon(network, learning_rate, momentum, weight_decay)
    else:
        groups = _weight_groups(weights, learning_rate, weight_decay)
        fused = next(network.parameters()).is_cuda
        if name == "sgd":
            kind = SGD if fused else PlainSGD
            nesterov = momentum > 0
            optimizer = kind(groups, lr=learning_rate, momentum=momentum, nesterov=nesterov, fused=fused)
        else:
            kind = Adam if fused else PlainAdam
            optimizer = kind(groups, lr=learning_rate, betas=(momentum, 0.999), fused=fused)
    if clip is not None:

        def clip_gradients(*_: object) -> None:
            clip_grad_norm_(weights, clip)

        optimizer.register_step_pre_hook(clip_gradients)
    return optimizer


def _weight_groups(
    weights: Sequence[Tensor], learning_rate: float, weight_decay: float
) -> list[dict[str, Any]]:
    """Parameter groups: matrices and filters, which decay, and all other weights.

    Without decay there is one group: two would make small networks a tenth slower.
    """
    if not weight_decay:
        return [{"params": list(weights), "weight_decay": 0.0, "peak_lr": learning_rate}]
    matrices = [p for p in weights if p.ndim > 1]
    others = [p for p in weights if p.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": weight_decay, "peak_lr": learning_rate},
        {"params": others, "weight_decay": 0.0, "peak_lr": learning_rate},
    ]
    return [group for group in groups if group["params"]]


def set_learning_rate(optimizers: Sequence[Optimizer], fraction: float) -> None:
    """Set the learning rates to a fraction of their peaks, for any torch optimizer.

    The peak is the rate that the optimizer was made with. If other code, such as a torch scheduler, changed
    the rate since the last call, the peak is scaled by the same factor.
    """
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            last = group.get("last_lr", group["lr"])
            peak = group.setdefault("peak_lr", group["lr"])
            if group["lr"] != last:
                peak = peak * group["lr"] / last if last else group["lr"]
                group["peak_lr"] = peak
            group["lr"] = group["last_lr"] = peak * fraction


def describe_optimizer(optimizer: Optimizer) -> str:
    """A description such as "Adam, peak rate 0.002"; for Muon, the rate is that of the filters."""
    name = type(optimizer).__name__.removeprefix("Plain")
    return f"{name}, peak rate {optimizer.defaults['lr']:g}"


# torch wraps these methods so that its compiler skips them, and imports the compiler to do so. That takes
# more than a second, and nothing is compiled on the CPU.


class PlainSGD(SGD):
    """SGD that does not import torch's compiler."""

    add_param_group, zero_grad = unwrap(SGD.add_param_group), unwrap(SGD.zero_grad)
    step = torch.no_grad()(unwrap(SGD.step))


class PlainAdam(Adam):
    """Adam that does not import torch's compiler."""

    add_param_group, zero_grad = unwrap(Adam.add_param_group), unwrap(Adam.zero_grad)
    step = torch.no_grad()(unwrap(Adam.step))


# --- Muon

OTHER_RATE = 2.0  # learning rate of all weights that are not orthogonalized, relative to that of filters
QUINTIC = 3.4445, -4.7750, 2.0315  # a x + b x³ + c x⁵ moves singular values in (0.01, 1) to about (0.7, 1.2)


class Muon(Optimizer):
    """Nesterov momentum whose steps for the filters of convolutions are orthogonalized [1]_.

    For networks in which a norm follows every convolution, such as conv13, resnet9 and resnet18. Such a norm
    makes the length of filters irrelevant, so they are rescaled to the length √out before each step. The
    learning rate then says by how much a step turns them, and nothing needs to decay. All other weights learn
    with SGD: dense layers, biases, norms, and convolutions with fewer inputs than filters, usually the first.

    Parameters
    ----------
    network : nn.Module
        Its weights that need gradients are optimized.
    learning_rate : float
        Of filters; all others have twice as much.
    momentum, weight_decay : float
        Decay applies to dense layers and to other matrices that are not orthogonalized.

    References
    ----------
    .. [1] Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024.
    """

    # as in PlainSGD
    add_param_group, zero_grad = unwrap(Optimizer.add_param_group), unwrap(Optimizer.zero_grad)

    def __init__(
        self, network: nn.Module, learning_rate: float, momentum: float = 0.9, weight_decay: float = 0.0
    ) -> None:
        weights = [p for p in network.parameters() if p.requires_grad]
        convolutions = {id(each.weight) for each in network.modules() if isinstance(each, nn.Conv2d)}
        filters = [p for p in weights if id(p) in convolutions and p[0].numel() >= len(p)]
        orthogonalized = {id(p) for p in filters}
        others = [p for p in weights if id(p) not in orthogonalized]
        other_rate = OTHER_RATE * learning_rate

        def group(params: list[Any], rate: float, decay: float, orthogonalize: bool) -> dict[str, Any]:
            return {
                "params": params,
                "lr": rate,
                "peak_lr": rate,
                "weight_decay": decay,
                "orthogonalize": orthogonalize,
            }

        groups = [
            group(filters, learning_rate, 0.0, True),
            group([p for p in others if p.ndim > 1], other_rate, weight_decay, False),
            group([p for p in others if p.ndim <= 1], other_rate, 0.0, False),
        ]
        groups = [each for each in groups if each["params"]]
        super().__init__(groups, {"lr": learning_rate, "momentum": momentum})
        self.graphed_steps = GraphedSteps(orthogonal_steps)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # a copy: torch copies its own attributes only, and a recorded graph belongs to the original's tensors
        super().__setstate__(state)
        self.graphed_steps = GraphedSteps(orthogonal_steps)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            weights = [p for p in group["params"] if p.grad is not None]
            if not weights:
                continue
            gradients = [p.grad for p in weights]
            for weight in weights:
                if "momentum_buffer" not in self.state[weight]:
                    self.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
            buffers = [self.state[weight]["momentum_buffer"] for weight in weights]
            if group["weight_decay"]:
                gradients = list(torch._foreach_add(gradients, weights, alpha=group["weight_decay"]))
            if not group["orthogonalize"]:
                steps = nesterov_steps(gradients, buffers, group["momentum"])
            elif weights[0].is_cuda:
                steps = self.graphed_steps(weights, gradients, buffers, group["momentum"])
            else:
                steps = orthogonal_steps(weights, gradients, buffers, group["momentum"])
            torch._foreach_add_(weights, steps, alpha=-group["lr"])


def nesterov_steps(gradients: list[Tensor], buffers: list[Tensor], momentum: float) -> list[Tensor]:
    """Steps of Nesterov momentum; the buffers are updated in place."""
    torch._foreach_mul_(buffers, momentum)
    torch._foreach_add_(buffers, gradients)
    return list(torch._foreach_add(gradients, buffers, alpha=momentum))


def orthogonal_steps(
    filters: list[Tensor], gradients: list[Tensor], buffers: list[Tensor], momentum: float
) -> list[Tensor]:
    """Orthogonalized steps of Nesterov momentum; filters are rescaled to the length √out in place."""
    lengths = [length.clamp_min(1e-7) for length in torch._foreach_norm(filters)]
    scales = [len(each) ** 0.5 / length for each, length in zip(filters, lengths, strict=True)]
    torch._foreach_mul_(filters, scales)
    return orthogonalize_filters(nesterov_steps(gradients, buffers, momentum))


def orthogonalize_filters(steps: Sequence[Tensor]) -> list[Tensor]:
    """`orthogonalize` for filters (out, in, h, w), as matrices (out, h·w·in): their channels-last layout.

    Filters of one shape are multiplied together, in one batch.
    """
    by_shape: dict[torch.Size, list[int]] = defaultdict(list)
    for i, step in enumerate(steps):
        by_shape[step.shape].append(i)
    result = list(steps)
    for shape, which in by_shape.items():
        matrices = orthogonalize(torch.stack([steps[i].permute(0, 2, 3, 1).flatten(1) for i in which]))
        n, channels, height, width = shape
        for i, matrix in zip(which, matrices.to(steps[which[0]].dtype), strict=True):
            result[i] = matrix.view(n, height, width, channels).permute(0, 3, 1, 2)
    return result


def orthogonalize(matrices: Tensor, iterations: int = 5) -> Tensor:
    """(b, r, c) matrices with the same singular vectors and all singular values near one; r <= c.

    A Newton-Schulz iteration: a few matrix products, in bfloat16 where the device has tensor cores.
    """
    a, b, c = QUINTIC
    x = matrices.bfloat16() if has_bfloat16(matrices.device) else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


class GraphedSteps:
    """`orthogonal_steps` as one CUDA graph: launching its hundred kernels takes longer than running them.

    Gradients are new tensors in every step and are copied into the graph. The graph is recorded again if the
    filters or buffers are replaced.
    """

    def __init__(self, function: Callable[..., list[Tensor]], warmup: int = 3) -> None:
        self.function = function
        self.warmup = warmup  # plain calls, in which kernels are chosen, before a graph is recorded
        self.calls = 0
        self.recorded_for: list[float] = []  # the momentum and the addresses of the tensors

    def __call__(
        self, filters: list[Tensor], gradients: list[Tensor], buffers: list[Tensor], momentum: float
    ) -> list[Tensor]:
        arguments = [momentum, *(each.data_ptr() for each in (*filters, *buffers))]
        if arguments != self.recorded_for:
            self.recorded_for = arguments
            self.calls = 0
        self.calls += 1
        if self.calls <= self.warmup:
            return self.function(filters, gradients, buffers, momentum)
        if self.calls == self.warmup + 1:
            self.gradients = [each.clone() for each in gradients]
            self.graph = torch.cuda.CUDAGraph()
            # on a stream of this device: torch's own belongs to the device of the first recording
            stream = torch.cuda.Stream(filters[0].device)
            with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
                self.steps = self.function(filters, self.gradients, buffers, momentum)
        torch._foreach_copy_(self.gradients, gradients)
        self.graph.replay()
        return self.steps

"""Rate schedules: pure functions from progress in [0, 1] to a share of the peak rate.

Muon (Jordan et al., 2024): steps of convolutions in which every direction counts alike.

One optimizer a player: SGD, Adam or Muon, whose rate is set as a share of its peak.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adam, Optimizer

from apportion._device import has_bfloat16


def flat(progress: float) -> float:
    """Constant for 70 %, then linear to zero: a student that keeps moving keeps improving its labels."""
    return min(1.0, (1.0 - progress) / 0.3)


def cosine(progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def one_cycle(progress: float) -> float:
    """From 1/25 up to the peak during the first 30 %, then down to zero, both along a cosine."""
    if progress < 0.3:
        return 1.0 - 0.96 * cosine(progress / 0.3)
    return cosine((progress - 0.3) / 0.7)


def ramp_cosine(progress: float) -> float:
    """Up to the peak during the first 5 %, then along a cosine to zero."""
    return progress / 0.05 if progress < 0.05 else cosine((progress - 0.05) / 0.95)


def constant(progress: float) -> float:
    return 1.0


def halving(progress: float, epochs: int) -> float:
    """Halved after every 100 epochs: the paper's schedule, which alone must know how many there are."""
    return 0.5 ** math.floor(progress * epochs / 100 + 1e-9)


SCHEDULES: dict[str, Callable[..., float]] = {
    "flat": flat,
    "cosine": cosine,
    "one-cycle": one_cycle,
    "ramp-cosine": ramp_cosine,
    "constant": constant,
    "halving": halving,
}


OTHERS = 2.0  # what all else learns at, as a multiple of the filters' rate
QUINTIC = 3.4445, -4.7750, 2.0315  # a x + b x³ + c x⁵ drives singular values from 0.01 to 1 into 0.7 to 1.2


class Muon(Optimizer):
    """Nesterov momentum; the step of a convolution's filters is the orthogonal matrix nearest to it.

    For networks in which a norm follows every convolution, as in conv13, resnet9 and resnet18: filters are
    brought back to the length √out before each step, which such a norm takes out anyway, so that the rate
    says by how much a step turns them, and nothing has to decay. All else learns by SGD: dense layers,
    biases, norms, and convolutions that have fewer inputs than filters, as a first one of many filters has.
    """

    # as in optimizers.py: torch's own would import its compiler
    add_param_group, zero_grad = unwrap(Optimizer.add_param_group), unwrap(Optimizer.zero_grad)

    def __init__(self, network: nn.Module, rate: float, momentum: float = 0.9, decay: float = 0.0) -> None:
        weights = [p for p in network.parameters() if p.requires_grad]
        filters = {id(each.weight) for each in network.modules() if isinstance(each, nn.Conv2d)}
        wide = [p for p in weights if id(p) in filters and p[0].numel() >= len(p)]
        known = {id(p) for p in wide}
        rest = [p for p in weights if id(p) not in known]
        parts = (
            (wide, rate, 0.0, True),
            ([p for p in rest if p.ndim > 1], OTHERS * rate, decay, False),
            ([p for p in rest if p.ndim <= 1], OTHERS * rate, 0.0, False),
        )
        groups = [
            {"params": part, "lr": own, "peak": own, "weight_decay": weight, "turned": turns}
            for part, own, weight, turns in parts
            if part
        ]
        super().__init__(groups, {"lr": rate, "momentum": momentum})
        self.turn = Replayed(turned)

    def __setstate__(self, state: dict[str, Any]) -> None:  # torch copies its own attributes alone
        super().__setstate__(state)
        self.turn = Replayed(turned)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            weights = [p for p in group["params"] if p.grad is not None]
            gradients = [p.grad for p in weights]
            if not weights:
                continue
            for weight in weights:
                if "momentum_buffer" not in self.state[weight]:
                    self.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
            sums = [self.state[weight]["momentum_buffer"] for weight in weights]
            if group["weight_decay"]:
                gradients = list(torch._foreach_add(gradients, weights, alpha=group["weight_decay"]))
            given = gradients, sums, group["momentum"]
            turn = self.turn if weights[0].is_cuda else turned
            steps = turn(weights, *given) if group["turned"] else nesterov(*given)
            torch._foreach_add_(weights, steps, alpha=-group["lr"])


def nesterov(gradients: list[Tensor], sums: list[Tensor], momentum: float) -> list[Tensor]:
    """Steps by running sums of gradients, which are moved on in place."""
    torch._foreach_mul_(sums, momentum)
    torch._foreach_add_(sums, gradients)
    return list(torch._foreach_add(gradients, sums, alpha=momentum))


def turned(
    filters: list[Tensor], gradients: list[Tensor], sums: list[Tensor], momentum: float
) -> list[Tensor]:
    """The same, orthogonal, and filters brought back to the length √out, in place."""
    lengths = [length.clamp_min(1e-7) for length in torch._foreach_norm(filters)]
    scales = [len(each) ** 0.5 / length for each, length in zip(filters, lengths, strict=True)]
    torch._foreach_mul_(filters, scales)
    return orthogonal_all(nesterov(gradients, sums, momentum))


class Replayed:
    """A function of lists of tensors, the second of which are new in every call, as one CUDA graph.

    Its hundred kernels take the device less time than the host needs to launch them. A graph of our own, not
    the compiler's: those would overwrite what the graphs of the passes have answered.
    """

    def __init__(self, function: Callable[..., list[Tensor]], eager: int = 3) -> None:
        self.function, self.eager = function, eager  # so many calls choose kernels before they are recorded
        self.at: list[float] = []
        self.calls = 0

    def __call__(
        self, filters: list[Tensor], gradients: list[Tensor], sums: list[Tensor], momentum: float
    ) -> list[Tensor]:
        at = [momentum, *(each.data_ptr() for each in (*filters, *sums))]
        if at != self.at:  # others than were recorded
            self.at, self.calls = at, 0
        self.calls += 1
        if self.calls <= self.eager:
            return self.function(filters, gradients, sums, momentum)
        if self.calls == self.eager + 1:
            self.gradients, self.graph = [each.clone() for each in gradients], torch.cuda.CUDAGraph()
            # torch's own stream is of the device that anything was first recorded on
            stream = torch.cuda.Stream(filters[0].device)
            with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
                self.steps = self.function(filters, self.gradients, sums, momentum)
        torch._foreach_copy_(self.gradients, gradients)
        self.graph.replay()
        return self.steps


def orthogonal_all(steps: Sequence[Tensor]) -> list[Tensor]:
    """`orthogonal` of filters (out, in, h, w) as matrices (out, h·w·in), which is how channels last lie.

    Those of one shape go together, in one product for all of them.
    """
    alike: dict[torch.Size, list[int]] = defaultdict(list)
    for i, step in enumerate(steps):
        alike[step.shape].append(i)
    found = list(steps)
    for shape, which in alike.items():
        made = orthogonal(torch.stack([steps[i].permute(0, 2, 3, 1).flatten(1) for i in which]))
        n, channels, height, width = shape
        for i, one in zip(which, made.to(steps[which[0]].dtype), strict=True):
            found[i] = one.view(n, height, width, channels).permute(0, 3, 1, 2)
    return found


def orthogonal(matrices: Tensor, rounds: int = 5) -> Tensor:
    """(b, r, c) the same singular vectors, with all singular values near one; r is no more than c.

    Newton's and Schulz's iteration, a few products of matrices, in bfloat16 where there are tensor cores.
    """
    a, b, c = QUINTIC
    x = matrices.bfloat16() if has_bfloat16(matrices.device) else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(rounds):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


OPTIMIZERS = ("adam", "sgd", "muon")


# torch wraps these methods so that its compiler leaves them alone, and imports the compiler to do so: a
# second and more, for what is never compiled on the CPU
class PlainSGD(SGD):
    add_param_group, zero_grad = unwrap(SGD.add_param_group), unwrap(SGD.zero_grad)
    step = torch.no_grad()(unwrap(SGD.step))


class PlainAdam(Adam):
    add_param_group, zero_grad = unwrap(Adam.add_param_group), unwrap(Adam.zero_grad)
    step = torch.no_grad()(unwrap(Adam.step))


def set_learning_rate(optimizers: Sequence[Optimizer], share: float) -> None:
    """A share of the peak: of the rate with which any torch optimizer comes, times what others made of it."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if group["lr"] != (before := group.get("set", group["lr"])):  # by a scheduler, or by hand
                group["peak"] = group["peak"] * group["lr"] / before if before else group["lr"]
            group["lr"] = group["set"] = group.setdefault("peak", group["lr"]) * share


def words_of(optimizer: Optimizer) -> str:
    """Which it is and the peak of its rate, for people; of Muon that of the filters."""
    name = type(optimizer).__name__.removeprefix("Plain")
    return f"{name}, peak rate {optimizer.defaults['lr']:g}"


def make_optimizer(
    network: nn.Module,
    name: str,
    rate: float,
    *,
    decay: float = 0.0,
    momentum: float = 0.9,
    clip: float | None = None,
) -> Optimizer:
    """SGD with Nesterov momentum, Adam with β₁ = `momentum`, or Muon. Only matrices decay, not biases, norms.

    A gradient longer than `clip` is shortened to it. Weights that need no gradient are left out.
    """
    weights = [p for p in network.parameters() if p.requires_grad]
    if not weights:
        remedy = "set requires_grad of its last layer, at least"
        raise ValueError(f"no weight of the {type(network).__name__} is to be learned; {remedy}")
    matrices, vectors = [p for p in weights if p.ndim > 1], [p for p in weights if p.ndim <= 1]
    # one group where nothing decays: a second one costs small networks a tenth of their step
    parts = ((matrices, decay), (vectors, 0.0)) if decay else ((weights, 0.0),)
    groups = [{"params": part, "weight_decay": weight, "peak": rate} for part, weight in parts if part]
    fused = next(network.parameters()).is_cuda
    sgd, adam = (SGD, Adam) if fused else (PlainSGD, PlainAdam)
    if name not in OPTIMIZERS:
        raise ValueError(f"no optimizer '{name}'; there are {', '.join(OPTIMIZERS)}")
    if name == "muon":
        optimizer: Optimizer = Muon(network, rate, momentum, decay)
    elif name == "sgd":
        optimizer = sgd(groups, lr=rate, momentum=momentum, nesterov=momentum > 0, fused=fused)
    else:
        optimizer = adam(groups, lr=rate, betas=(momentum, 0.999), fused=fused)
    if clip is not None:

        def shorten(*_: object) -> None:
            clip_grad_norm_(weights, clip)

        optimizer.register_step_pre_hook(shorten)
    return optimizer

"""Muon (Jordan et al., 2024): steps of convolutions in which every direction counts alike."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from apportion.devices import has_bfloat16

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

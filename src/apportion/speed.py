"""What makes a network fast: channels last; on a GPU bfloat16, and passes compiled for the usual batch."""

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from apportion.devices import compiles, has_bfloat16

Quick = Callable[..., Callable[..., Any]]  # `quick` for a device and its lengths, or `as_it_is`


class Fast(nn.Module):
    """The same network, faster; its weights are the network's own, its answers float32.

    Compiled for these lengths of a batch: the few of another (an epoch's last) take the plain path, since one
    more compilation costs more than they do.
    """

    def __init__(self, network: nn.Module, lengths: Collection[int], halved: bool = True) -> None:
        super().__init__()
        self.network = network
        self.lengths, self.halved = set(lengths), halved
        # in a tuple: weights are not listed twice
        self.compiled = (torch.compile(network, dynamic=False) if lengths else network,)

    def forward(self, x: Tensor) -> Tensor:
        run = self.compiled[0] if len(x) in self.lengths else self.network
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.halved):
            return run(x).float()


def lengths_of(sizes: Tensor, instances_per_batch: int) -> set[int]:
    """The lengths that batches often have: of predictions; of training, where nearly all bags have one size.

    Bags of 100 fill 1,000 of 1,024 rows; bags of many sizes fill a batch now so, now otherwise.
    """
    usual = sizes.mode().values
    alike = float((sizes == usual).float().mean()) > 0.9 and int(usual) <= instances_per_batch
    return {instances_per_batch} | ({instances_per_batch // int(usual) * int(usual)} if alike else set())


def placed(network: nn.Module, device: torch.device, lengths: Collection[int]) -> nn.Module:
    """The network on its device; on CUDA its features are made fast and the last layer stays in float32.

    What an old GPU cannot do is left out: it gets the plain passes, or float32.
    """
    network = network.to(device) if device.type == "mps" else channels_last(network.to(device))
    if device.type != "cuda":
        return network
    # a graph for each network, mode and player; beyond the default of 8, later runs would not be compiled
    torch._dynamo.config.recompile_limit = 64
    able = lengths if compiles(device) else (), has_bfloat16(device)
    if isinstance(network, nn.Sequential) and len(network) == 2:
        return nn.Sequential(Fast(network[0], *able), network[1])
    return Fast(network, *able)


def channels_last(network: nn.Module) -> nn.Module:
    """The same network, whose convolutions take channels last: half again as fast on a CPU, and what tensor
    cores want. Sums are rounded otherwise, so a model that is read again must be laid out alike.

    A network with a module of the user's own is left alone: it may call `view`, which wants channels first.
    """
    makers = {type(module).__module__.partition(".")[0] for module in network.modules()}
    if makers <= {"torch", "apportion"} and not any(is_lazy(p) for p in network.parameters()):
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def quick(
    part: Callable[..., Any], device: torch.device, lengths: Collection[int], graphs: bool = False
) -> Callable[..., Any]:
    """A part of a step: a view, a pass or a loss, the first of whose tensors is of a batch. On CUDA it is
    compiled for these lengths: of a hundred kernels that the host must launch, ten are left. The compiler's
    random numbers are others, of the same law. With `graphs` both directions are CUDA graphs of one launch:
    small networks wait for the host otherwise. What a graph answers is overwritten in the next step.
    """
    if not lengths or not compiles(device):
        return part
    compiled = torch.compile(part, dynamic=False, mode="reduce-overhead" if graphs else None)
    return lambda x, *more: (compiled if len(x) in lengths else part)(x, *more)


def sped_up(
    device: torch.device, lengths: Collection[int], parts: bool
) -> tuple[Callable[[nn.Module], nn.Module], Quick]:
    """(what places networks, what makes parts of a step fast); one compiles, lest it be done twice."""
    own, whole = ((), lengths) if parts else (lengths, ())
    return partial(placed, device=device, lengths=own), partial(quick, device=device, lengths=whole)


def as_it_is(part: Callable[..., Any], graphs: bool = False) -> Callable[..., Any]:
    return part


def unplaced(network: nn.Module) -> nn.Module:
    """The plain network that `placed` was given; its weights are those that were trained."""
    if isinstance(network, nn.Sequential) and len(network) == 2 and isinstance(network[0], Fast):
        return nn.Sequential(network[0].network, network[1])
    return network.network if isinstance(network, Fast) else network


@contextmanager
def arithmetic(exact: bool) -> Iterator[None]:
    """Deterministic algorithms, or else the fastest kernels that a search finds; then all is as it was."""
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    if exact:  # cuBLAS reads it when it is first used, and refuses deterministic work without it
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(exact)
    torch.backends.cudnn.benchmark = not exact  # batches have one size, so the search pays at once
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]

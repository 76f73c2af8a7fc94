"""Devices: which one is taken, what it can do, and copies that nobody waits for.

What makes a network fast: channels last; on a GPU bfloat16, and passes compiled for the usual batch.
"""

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from importlib.util import find_spec
from shutil import which
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from apportion.errors import SettingsError


def find_device(name: str) -> torch.device:
    """cpu, cuda (or cuda:1), mps, or auto: the first accelerator that is there."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, found in there.items() if found))
    if not there.get(name.split(":")[0], False):
        found = ", ".join(kind for kind, found in there.items() if found)
        raise SettingsError(f"no device '{name}' on this machine; there is {found}, and auto takes what is")
    return torch.device(name)


def resolve_device(name: str, x: Tensor) -> torch.device:
    """The same for these instances; auto is CUDA for images, where it is there, and the CPU for all else: a
    network for rows of values has learned before a GPU has compiled it."""
    if name != "auto":
        return find_device(name)
    return torch.device("cuda" if x.ndim > 2 and cuda_works() else "cpu")


def cuda_works() -> bool:
    """Whether there is a GPU that runs: one is tried. It may be older or newer than this build of torch has
    kernels for, taken by others, or lost to a process that was forked."""
    try:
        return torch.cuda.is_available() and answers()
    except RuntimeError:
        return False


def answers() -> bool:
    return float(torch.ones(2, device="cuda").sum()) == 2.0


@contextmanager
def catch_out_of_memory(x: Tensor, device: torch.device) -> Iterator[None]:
    """A GPU whose memory is too small for these instances says what to change."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        what = f"the memory of {device} does not do for instances of shape {tuple(x.shape[1:])}"
        remedy = "fewer instances per batch, smaller instances, or cpu for the device may do"
        raise SettingsError(f"{what}; {remedy}") from error


def copied_to(network: nn.Module, device: torch.device) -> nn.Module:
    """A copy there of a network of the CPU, which stays where it is; there that is the network itself."""
    return network if device.type == "cpu" else deepcopy(network).to(device)


def compiles(device: torch.device) -> bool:
    """Whether torch.compile works there: it takes Volta or later, Triton, which Windows does not have, and a
    compiler of C, which small containers do not."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (7, 0):
        return False
    compiler = os.environ.get("CC") or which("gcc") or which("clang")
    return find_spec("triton") is not None and bool(compiler)


def has_bfloat16(device: torch.device) -> bool:
    """Whether such numbers are its own: GPUs before Ampere, as a T4, are slower with them than without."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def start_copy_to_host(*values: Tensor) -> Callable[[], list[Tensor]]:
    """Begin to copy values to the host; the answer waits for these copies alone, not for what is asked of the
    device in between."""
    if not values[0].is_cuda:
        return lambda: [value.detach() for value in values]
    copies = [value.detach().to("cpu", non_blocking=True) for value in values]  # into pinned memory
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(values[0].device))

    def wait() -> list[Tensor]:
        done.synchronize()
        return copies

    return wait


def send_to_device(value: Tensor, device: torch.device) -> Tensor:
    """A value of the host's on a device; nobody waits for the copy."""
    return value.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else value.to(device)


Quick = Callable[..., Callable[..., Any]]  # `quick` for a device and its lengths, or `identity`


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


def lengths_of(sizes: Tensor, batch_size: int) -> set[int]:
    """The lengths that batches often have: of predictions; of training, where nearly all bags have one size.

    Bags of 100 fill 1,000 of 1,024 rows; bags of many sizes fill a batch now so, now otherwise.
    """
    usual = sizes.mode().values
    alike = float((sizes == usual).float().mean()) > 0.9 and int(usual) <= batch_size
    return {batch_size} | ({batch_size // int(usual) * int(usual)} if alike else set())


def to_device(network: nn.Module, device: torch.device, lengths: Collection[int]) -> nn.Module:
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


def compile_for(
    device: torch.device, lengths: Collection[int], parts: bool
) -> tuple[Callable[[nn.Module], nn.Module], Quick]:
    """(what places networks, what makes parts of a step fast); one compiles, lest it be done twice."""
    own, whole = ((), lengths) if parts else (lengths, ())
    return partial(to_device, device=device, lengths=own), partial(quick, device=device, lengths=whole)


def identity(part: Callable[..., Any], graphs: bool = False) -> Callable[..., Any]:
    return part


def plain_network(network: nn.Module) -> nn.Module:
    """The plain network that `to_device` was given; its weights are those that were trained."""
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

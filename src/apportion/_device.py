"""Devices: which one is used, what it supports, deterministic kernels, and what makes it fast.

On CUDA, networks run in channels-last layout and bfloat16, and batches of the usual length as CUDA graphs.
On the CPU they run in channels-last layout. Features that a device does not support are skipped.
"""

import gc
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from importlib.util import find_spec
from shutil import which
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from apportion._graphs import Graphed
from apportion.errors import SettingsError

# --- which device


def find_device(name: str) -> torch.device:
    """The device "cpu", "cuda" (or "cuda:1") or "mps"; "auto" is the first accelerator of this machine."""
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(kind for kind in available if available[kind]))
    if not available.get(name.split(":")[0], False):
        there = ", ".join(kind for kind in available if available[kind])
        raise SettingsError(f"device {name!r} is not available on this machine; pass one of {there}, auto")
    return torch.device(name)


def resolve_device(name: str, x: Tensor) -> torch.device:
    """`find_device` for these instances: "auto" is CUDA for images, if it works, and otherwise the CPU.

    Networks for tables are so small that the CPU has trained them before a GPU has started.
    """
    if name != "auto":
        return find_device(name)
    return torch.device("cuda" if x.ndim > 2 and cuda_works() else "cpu")


def cuda_works() -> bool:
    """Whether a GPU can be used, by trying it.

    This build of torch may lack kernels for it, other processes may occupy it, or this process may have been
    forked.
    """
    try:
        return torch.cuda.is_available() and _try_cuda()
    except RuntimeError:
        return False


def _try_cuda() -> bool:
    return float(torch.ones(2, device="cuda").sum()) == 2.0


# --- what a device supports


def supports_triton(device: torch.device) -> bool:
    """Whether Triton works: it needs a GPU since Volta, its package (not on Windows) and a C compiler."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (7, 0):
        return False
    compiler = os.environ.get("CC") or which("gcc") or which("clang")
    return find_spec("triton") is not None and bool(compiler)


def has_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 is fast: GPUs before Ampere, such as a T4, emulate it."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


@contextmanager
def deterministic_algorithms(exact: bool) -> Iterator[None]:
    """Use deterministic kernels if `exact`, else the fastest that a search finds; restored afterwards."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    benchmark = torch.backends.cudnn.benchmark
    if exact:  # cuBLAS reads it at its first use, and otherwise refuses to be deterministic
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(exact)
    torch.backends.cudnn.benchmark = not exact  # batches have one length, so the search pays off at once
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
        torch.backends.cudnn.benchmark = benchmark


# --- memory


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device ran out of memory. MPS raises a plain RuntimeError then."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "out of memory" in str(error).lower()


@contextmanager
def catch_out_of_memory(x: Tensor, device: torch.device) -> Iterator[None]:
    """Turn an out-of-memory error into a `SettingsError` that says what to change."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        what = f"{device} has too little memory for instances of shape {tuple(x.shape[1:])}"
        hint = "pass a smaller batch_size, smaller instances, or device='cpu'"
        raise SettingsError(f"{what}; {hint}") from error


def free_memory() -> None:
    """Give back what finished trainings held on a GPU: learners and their graphs refer to each other."""
    if torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


# --- copies between host and device


def send_to_device(value: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor on a device, without waiting for the copy."""
    return value.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else value.to(device)


def start_copy_to_host(*values: Tensor) -> Callable[[], list[Tensor]]:
    """Start to copy tensors to the CPU. Returns a function that waits for the copies and returns them.

    It does not wait for other work that was queued on the device in the meantime.
    """
    if not values[0].is_cuda:
        return lambda: [value.detach() for value in values]
    copies = [value.detach().to("cpu", non_blocking=True) for value in values]  # into pinned memory
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(values[0].device))

    def wait() -> list[Tensor]:
        done.synchronize()
        return copies

    return wait


# --- fast networks and steps


def make_fast(function: Callable[..., Any], networks: Sequence[nn.Module]) -> Callable[..., Any]:
    """A function of tensors with fewer launches of kernels, for inputs on CUDA.

    With networks of torch's and our own layers, CUDA graphs. The user's own modules may wait for the device,
    which a graph cannot, so a function with these is compiled, where the device supports it.
    """
    if all(has_known_layers(network) for network in networks):
        return Graphed(function, networks)
    if not supports_triton(torch.device("cuda")):
        return function
    # one program per network, mode and step; with the default of 8, later ones would not be compiled
    torch._dynamo.config.recompile_limit = 64
    return torch.compile(function, dynamic=False)


class FastNetwork(nn.Module):
    """A network made fast for some batch lengths. It shares the weights and returns float32.

    Batches of other lengths, such as the last of an epoch, run as they are.
    """

    def __init__(self, network: nn.Module, lengths: Collection[int], use_bfloat16: bool = True) -> None:
        super().__init__()
        self.network = network
        self.lengths = set(lengths)
        self.use_bfloat16 = use_bfloat16
        self.fast = make_fast(self.run, [network]) if lengths else self.run

    def run(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.use_bfloat16):
            return self.network(x).float()

    def forward(self, x: Tensor) -> Tensor:
        if len(x) not in self.lengths:
            return self.run(x)
        return self.fast(x).clone()  # the next call overwrites the output of a graph

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)(deepcopy(self.network, memo), self.lengths, self.use_bfloat16)


def usual_batch_lengths(sizes: Tensor, batch_size: int) -> set[int]:
    """The lengths of most batches, in rows.

    In prediction that is `batch_size`. In training, if nearly all bags have one size, it is the rows of the
    whole bags that fit into a batch: with bags of 100, 1,000 of 1,024 rows.
    """
    usual = int(sizes.mode().values)
    nearly_all = float((sizes == usual).float().mean()) > 0.9
    if not nearly_all or usual > batch_size:
        return {batch_size}
    return {batch_size, batch_size // usual * usual}


def to_device(network: nn.Module, device: torch.device, lengths: Collection[int]) -> nn.Module:
    """The network on its device. On CUDA its features are made fast, and its last layer stays in float32."""
    network = network.to(device)
    if device.type != "mps":
        network = channels_last(network)
    if device.type != "cuda":
        return network
    bfloat16 = has_bfloat16(device)
    if isinstance(network, nn.Sequential) and len(network) == 2:
        return nn.Sequential(FastNetwork(network[0], lengths, bfloat16), network[1])
    return FastNetwork(network, lengths, bfloat16)


def plain_network(network: nn.Module) -> nn.Module:
    """The network that `to_device` was given, with the trained weights."""
    if isinstance(network, FastNetwork):
        return network.network
    two_parts = isinstance(network, nn.Sequential) and len(network) == 2
    if two_parts and isinstance(network[0], FastNetwork):
        return nn.Sequential(network[0].network, network[1])
    return network


def channels_last(network: nn.Module) -> nn.Module:
    """The same network with convolutions in channels-last layout: half again as fast on a CPU, and what
    tensor cores need. Sums are rounded differently, so a saved model must be loaded in the same layout.

    A network with the user's own modules is left as it is: they may call `view`, which fails on this layout.
    """
    if has_known_layers(network) and not any(is_lazy(p) for p in network.parameters()):
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def has_known_layers(network: nn.Module) -> bool:
    """Whether a network consists of torch's and our own modules only."""
    packages = {type(module).__module__.partition(".")[0] for module in network.modules()}
    return packages <= {"torch", "apportion"}


# makes a part of a training step fast: `graph_part` for a device and its lengths, or `identity`
GraphPart = Callable[..., Callable[..., Any]]


def graph_part(
    part: Callable[..., Any],
    networks: Sequence[nn.Module] = (),
    *,
    device: torch.device,
    lengths: Collection[int],
) -> Callable[..., Any]:
    """A part of a step (a view, a pass, a loss) as CUDA graphs, for these lengths of its first argument.

    `networks` are those that it uses. Its arguments are tensors, and its output is overwritten in the next
    step. Of all parts, only one call is under way at a time.
    """
    if not lengths or device.type != "cuda":
        return part
    fast = make_fast(part, networks)

    def run(x: Tensor, *more: Tensor) -> Any:
        return fast(x, *more) if len(x) in lengths else part(x, *more)

    return run


def identity(part: Callable[..., Any], networks: Sequence[nn.Module] = ()) -> Callable[..., Any]:
    """A `GraphPart` that leaves the part as it is."""
    return part


def graphs_for(
    device: torch.device, lengths: Collection[int], parts: bool
) -> tuple[Callable[[nn.Module], nn.Module], GraphPart]:
    """Two functions: one places a network on the device, one makes a part of a step fast.

    Only one of them records graphs, the second if `parts`: a graph cannot be part of another.
    """
    network_lengths = () if parts else lengths
    part_lengths = lengths if parts else ()
    return (
        partial(to_device, device=device, lengths=network_lengths),
        partial(graph_part, device=device, lengths=part_lengths),
    )

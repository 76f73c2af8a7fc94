"""Devices: which one is taken, what it can do, and copies that nobody waits for."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from importlib.util import find_spec
from shutil import which

import torch
from torch import Tensor, nn


class DeviceError(ValueError):
    """A device that is not there, or whose memory is too small."""


def pick_device(name: str) -> torch.device:
    """cpu, cuda (or cuda:1), mps, or auto: the first accelerator that is there."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, found in there.items() if found))
    if not there.get(name.split(":")[0], False):
        found = ", ".join(kind for kind, found in there.items() if found)
        raise DeviceError(f"no device '{name}' on this machine; there is {found}, and auto takes what is")
    return torch.device(name)


def device_for(name: str, x: Tensor) -> torch.device:
    """The same for these instances; auto is CUDA for images, where it is there, and the CPU for all else: a
    network for rows of values has learnt before a GPU has compiled it."""
    if name != "auto":
        return pick_device(name)
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
def room_for(x: Tensor, device: torch.device) -> Iterator[None]:
    """A GPU whose memory is too small for these instances says what to change."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        what = f"the memory of {device} does not do for instances of shape {tuple(x.shape[1:])}"
        remedy = "fewer instances per batch, smaller instances, or cpu for the device may do"
        raise DeviceError(f"{what}; {remedy}") from error


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


def fetched(*values: Tensor) -> Callable[[], list[Tensor]]:
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


def sent(value: Tensor, device: torch.device) -> Tensor:
    """A value of the host's on a device; nobody waits for the copy."""
    return value.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else value.to(device)

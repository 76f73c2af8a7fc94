"""The only file that knows torch.distributed: what the processes of one training tell each other."""

import atexit
import os
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from apportion.errors import RunError

MAX, SUM = dist.ReduceOp.MAX, dist.ReduceOp.SUM


class Group:
    """The processes that torchrun started, as one of them; `seconds` is what it spent on the others."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.seconds = 0.0

    def reduced(self, value: Tensor, how: Any = SUM) -> Tensor:
        """The sum, or the largest, of a tensor over the processes; in place."""
        started = time.perf_counter()
        dist.all_reduce(value, how)
        self.seconds += time.perf_counter() - started
        return value

    def gathered(self, part: Tensor, longest: int) -> list[Tensor]:
        """The parts of all processes, filled up to `longest` rows, for the first of them; others get none."""
        started = time.perf_counter()
        filled = part.new_zeros(longest, *part.shape[1:])
        filled[: len(part)] = part
        parts = [] if self.rank else [torch.empty_like(filled) for _ in range(self.size)]
        dist.gather(filled, parts or None)
        self.seconds += time.perf_counter() - started
        return parts

    def told(self, value: Any) -> Any:
        """What the first process says."""
        box = [value]
        dist.broadcast_object_list(box, 0)
        return box[0]

    def heard(self, value: Any) -> list[Any]:
        """What every process says."""
        box: list[Any] = [None] * self.size
        dist.all_gather_object(box, value)
        return box

    def rounded_up(self, counts: Sequence[int], device: torch.device) -> Tensor:
        """The counts of every process, (processes, steps), zeros where one has fewer steps than others."""
        steps = int(self.reduced(torch.tensor(len(counts), device=device), MAX))
        table = torch.zeros(self.size, steps, dtype=torch.int64, device=device)
        table[self.rank, : len(counts)] = torch.tensor(counts, device=device)
        return self.reduced(table).cpu()

    def wait(self) -> None:
        dist.barrier()


def joined(device: torch.device) -> Group | None:
    """The group of this process, None where it is alone; a GPU each, or the CPU's cores shared."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return None
    if not dist.is_initialized():
        if device.type == "mps":
            raise RunError("several processes train on the CPU or on CUDA; add --device cpu")
        store, rank, size = next(dist.rendezvous("env://"))
        # after a restart torchrun's store still has the addresses of processes that are dead
        store = dist.PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size)
        atexit.register(dist.destroy_process_group)
    return Group()


def own_device(device: torch.device) -> torch.device:
    """Under torchrun each process has a GPU of its own."""
    local = os.environ.get("LOCAL_RANK")
    if device.type != "cuda" or local is None:
        return device
    if int(local) >= torch.cuda.device_count():
        there = f"{torch.cuda.device_count()} GPUs"
        raise RunError(f"process {local} finds {there}; start no more processes than there are GPUs")
    torch.cuda.set_device(int(local))
    return torch.device("cuda", int(local))

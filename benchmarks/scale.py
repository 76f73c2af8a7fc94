"""How time and memory grow: an epoch of each stage at 450,000 rows × 10,000 bags and at ten times that.

    python benchmarks/scale.py                                       growth of time and memory
    python benchmarks/scale.py --rows 450000 --processes 1 2         two processes beside one
    python benchmarks/scale.py --rows 4500000 --processes 1 2 --mapped    instances in a mapped file
    python benchmarks/scale.py --rows 450000 4500000 45000000 --device cuda

A row has 39 float32 values, as many as Criteo's table has columns; bags have 45 rows on average and any size.
The network is a perceptron with two layers of 64. Every size is measured in processes of their own. Memory is
what a process has for itself, above a bare one: pages of a mapped file belong to the system, which takes them
back when it needs them. They are told apart where there are any.
"""

import argparse
import json
import math
import os
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from apportion import distributed, pipeline
from apportion.bags.bags import Bags
from apportion.bags.build import build_bags
from apportion.losses import cross_entropy
from apportion.methods import DLLP
from apportion.networks import mlp
from apportion.optim import make_optimizer
from apportion.pseudo_labels import hard_labels

PARTS = ("DLLP", "PLOT", "labels")  # the last a part of the one before
VALUES, ROWS_A_BAG, CLASSES, BATCH = 39, 45, 2, 4096


def made(rows: int, folder: Path, mapped: bool) -> Bags:
    """Bags of random rows; one row in four is of the second class, more in some bags than in others."""
    generator = torch.Generator().manual_seed(0)
    n_bags = rows // ROWS_A_BAG
    sizes = torch.bincount(torch.randint(n_bags, (rows - n_bags,), generator=generator), minlength=n_bags) + 1
    share = torch.rand(n_bags, generator=generator) / 2
    shares = torch.stack([1 - share, share], 1)
    if mapped:
        file = np.load(folder / "x.npy", mmap_mode="r")
        return build_bags(
            file, bags=np.repeat(np.arange(n_bags), sizes.numpy()), proportions=shares.numpy()
        ).bags
    x = torch.randn(rows, VALUES, generator=generator)
    return Bags(x, sizes, shares, torch.arange(rows), range(n_bags))


def write(rows: int, path: Path) -> None:
    """Random rows in a file, a part at a time."""
    file = np.lib.format.open_memmap(path, "w+", np.float32, (rows, VALUES))
    random = np.random.default_rng(0)
    for part in np.array_split(file, max(1, rows // 100_000)):
        part[:] = random.standard_normal(part.shape, np.float32)


class PeakMemory:
    """The most memory that this process has had for itself, and of mapped files, in MB; looked at often."""

    def __init__(self) -> None:
        self.bare, self.most = self.now(), {"own": 0.0, "file": 0.0}
        threading.Thread(target=self._look, daemon=True).start()

    def now(self) -> dict[str, float]:
        with open("/proc/self/status") as file:
            kilobytes = {line.split()[0]: int(line.split()[1]) for line in file if line.startswith("Rss")}
        return {"own": kilobytes["RssAnon:"] / 1024, "file": kilobytes["RssFile:"] / 1024}

    def _look(self) -> None:
        while True:
            self.most = {name: max(self.most[name], mb - self.bare[name]) for name, mb in self.now().items()}
            time.sleep(0.005)


def measured(rows: int, processes: int, folder: Path, mapped: bool, device: str) -> dict[str, float]:
    """Seconds of the second epoch of each stage, which has no first time's costs, and memory.

    CPU seconds, which other programs do not lengthen; and by the clock, where processes wait for each other.
    """
    memory, bags = PeakMemory(), made(rows, folder, mapped).to(device)
    group = distributed.ProcessGroup() if processes > 1 else None
    stages: Any = pipeline if group is None else distributed.DistributedPipeline(group)
    student, found, spent = mlp((VALUES,), CLASSES, (64, 64)).to(device), {}, []
    given: dict[str, Any] = {"epochs": 2, "schedule": lambda progress: 1.0, "seed": 0, "resume": None}
    given |= {"batch_size": BATCH}

    def label(*values: Tensor) -> Tensor:
        started = time.process_time(), time.perf_counter()
        labels = hard_labels(*values)
        spent.append((time.process_time() - started[0], time.perf_counter() - started[1]))
        return labels

    def epochs(name: str, epoch_states: Any) -> None:
        before, told = (time.process_time(), time.perf_counter()), 0.0
        for _ in epoch_states:
            now = time.process_time(), time.perf_counter()
            found[name], found[f"{name} clock"] = now[0] - before[0], now[1] - before[1]
            before = now
            if group is not None:
                found[f"{name} told"], told = group.seconds - told, group.seconds

    def optimizers() -> list[Any]:
        return [make_optimizer(student, "adam", 1e-3)]

    epochs("DLLP", stages.first_stage(DLLP(student), bags, optimizers(), **given))
    guess = torch.randn(rows, CLASSES).log_softmax(1).to(device)
    given |= {"label": label, "loss": cross_entropy, "weights": None, "memory": 5}
    epochs("PLOT", stages.second_stage(guess, student, bags, optimizers(), **given))
    found["labels"], found["labels clock"] = spent[-1]
    if group is not None:
        found["sum"] = summing(group, sum(weight.numel() for weight in student.parameters()))
    if device == "cuda":
        found["gpu"] = torch.cuda.max_memory_allocated() / 2**20
    return found | memory.most


def summing(group: distributed.ProcessGroup, values: int) -> float:
    """Milliseconds that the sum of the gradients takes where nobody waits: the median of many in a row."""
    seconds = []
    for _ in range(200):
        started = time.perf_counter()
        group.all_reduce(torch.zeros(values))
        seconds.append(time.perf_counter() - started)
    return 1000 * sorted(seconds)[100]


def apart(rows: int, processes: int, mapped: bool, device: str) -> list[dict[str, float]]:
    """The same in fresh processes, whose memory is their own; the figures of each of them."""
    with tempfile.TemporaryDirectory() as folder:
        if mapped:
            write(rows, Path(folder) / "x.npy")
        pids = []
        for rank in range(processes):
            pid = os.fork()
            if not pid:
                words = [str(rows), str(rank), str(processes), folder, str(int(mapped)), device]
                os.execv(sys.executable, [sys.executable, __file__, "--one", *words])  # noqa: S606
            pids.append(pid)
        if any(os.waitpid(pid, 0)[1] for pid in pids):
            raise SystemExit("a process has failed")
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(processes)]


def one(rows: int, rank: int, processes: int, folder: Path, mapped: bool, device: str) -> None:
    if device == "cpu":
        torch.set_num_threads(1)
    if processes > 1:
        dist.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=processes)
    found = measured(rows, processes, folder, mapped, device)
    (folder / f"{rank}.json").write_text(json.dumps(found))


def told(rows: int, found: list[dict[str, float]]) -> None:
    first = found[0]
    print(f"{rows:,} rows in {rows // ROWS_A_BAG:,} bags, {len(found)} process{'es' * (len(found) > 1)}:")
    print("  CPU seconds of an epoch: " + ", ".join(f"{name} {first[name]:.2f}" for name in PARTS))
    print("  by the clock: " + ", ".join(f"{name} {first[f'{name} clock']:.2f}" for name in PARTS))
    print("  memory of each: " + ", ".join(f"{each['own']:.0f} MB" for each in found))
    print(
        "  and of mapped files, torch's own among them: "
        + ", ".join(f"{each['file']:.0f} MB" for each in found)
    )
    if "gpu" in first:
        print(f"  memory of the GPU: {first['gpu']:.0f} MB")
    if "sum" in first:
        shares = ", ".join(
            f"{name} {first[f'{name} told'] / first[f'{name} clock']:.0%}" for name in ("DLLP", "PLOT")
        )
        print(
            f"  by the clock in communication, waiting included: {shares}; a sum alone {first['sum']:.2f} ms"
        )
    sys.stdout.flush()


def compared(name: str, one: dict[str, float], several: dict[str, float], processes: int) -> str:
    a, b = one[f"{name} clock"], several[f"{name} clock"]
    return f"{name} {b:.2f} s by {processes} processes, {a:.2f} s by one: {b / a:.2f} of it"


def grown(small: dict[str, float], large: dict[str, float], before: int, after: int, device: str) -> None:
    kind, what = (" clock", "gpu") if device == "cuda" else ("", "own")
    powers = {name: math.log(large[name + kind] / small[name + kind]) for name in PARTS}
    told = ", ".join(f"{name} {power / math.log(after / before):.2f}" for name, power in powers.items())
    more = (large[what] - small[what]) * 2**20 / (after - before)
    print(f"growth exponents: {told}; memory of each further row: {more:.0f} bytes", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        rows, rank, processes = map(int, sys.argv[2:5])
        return one(rows, rank, processes, Path(sys.argv[5]), sys.argv[6] == "1", sys.argv[7])
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[450_000, 4_500_000])
    parser.add_argument("--processes", type=int, nargs="+", default=[1])
    parser.add_argument("--mapped", action="store_true")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    found: dict[tuple[int, int], dict[str, float]] = {}
    for processes in options.processes:
        for rows in options.rows:
            each = apart(rows, processes, options.mapped, options.device)
            told(rows, each)
            found[processes, rows] = each[0]
            if processes > 1 and (1, rows) in found:
                print("  " + "; ".join(compared(n, found[1, rows], each[0], processes) for n in PARTS[:2]))
        for before, after in pairwise(options.rows):
            grown(found[processes, before], found[processes, after], before, after, options.device)
    return None


if __name__ == "__main__":
    main()

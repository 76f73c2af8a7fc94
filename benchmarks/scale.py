"""How time and memory grow: an epoch of each stage at 450,000 rows × 10,000 bags and at ten times that.

    python benchmarks/scale.py --rows 450000 4500000
    python benchmarks/scale.py --rows 450000 --processes 2

A row has 39 float32 values, as many as Criteo's table has columns; bags have 45 rows on average and any size.
The network is a perceptron with two layers of 64. Every size is measured in a process of its own.
"""

import argparse
import json
import math
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from apportion import crew, pipeline
from apportion.backbones import mlp
from apportion.bags import Bags
from apportion.first_stage import DLLP
from apportion.labelling import hard_labels
from apportion.losses import cross_entropy
from apportion.optimizers import make_optimizer

PARTS = ("DLLP", "PLOT", "labels")  # the last a part of the one before
VALUES, ROWS_A_BAG, CLASSES, BATCH = 39, 45, 2, 4096


def made(rows: int) -> Bags:
    """Bags of random rows; one row in four is of the second class, more in some bags than in others."""
    generator = torch.Generator().manual_seed(0)
    n_bags = rows // ROWS_A_BAG
    sizes = torch.bincount(torch.randint(n_bags, (rows - n_bags,), generator=generator), minlength=n_bags) + 1
    x = torch.randn(rows, VALUES, generator=generator)
    share = torch.rand(n_bags, generator=generator) / 2
    return Bags(x, sizes, torch.stack([1 - share, share], 1), torch.arange(rows), range(n_bags))


def megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured(rows: int, processes: int) -> dict[str, float]:
    """Seconds of the second epoch of each stage, which has no first time's costs, and memory.

    CPU seconds, which other programs do not lengthen; and by the clock, where processes wait for each other.
    """
    bare, bags = megabytes(), made(rows)
    group = crew.Group() if processes > 1 else None
    stages: Any = pipeline if group is None else crew.Crew(group)
    student, found, spent = mlp((VALUES,), CLASSES, (64, 64)), {"bare": bare}, []
    given: dict[str, Any] = {"epochs": 2, "rate": lambda progress: 1.0, "seed": 0, "resume": None}
    given |= {"instances_per_batch": BATCH}

    def label(*values: Tensor) -> Tensor:
        started = time.process_time()
        labels = hard_labels(*values)
        spent.append(time.process_time() - started)
        return labels

    def optimizers() -> list[Any]:
        return [make_optimizer(student, "adam", 1e-3)]

    last, told = time.process_time(), 0.0
    for moment in stages.first_stage(DLLP(student), bags, optimizers(), **given):
        found |= {"DLLP": time.process_time() - last, "clock": moment.epoch.seconds}
        last = time.process_time()
        if group is not None:
            found["told"], told = group.seconds - told, group.seconds
    guess = torch.randn(rows, CLASSES).log_softmax(1)
    for _ in stages.second_stage(
        guess, student, bags, optimizers(), label=label, loss=cross_entropy, weights=None, rounds=5, **given
    ):
        found["PLOT"], last = time.process_time() - last, time.process_time()
    return found | {"labels": spent[-1], "memory": megabytes()}


def apart(rows: int, processes: int) -> dict[str, float]:
    """The same in fresh processes, whose memory is their own; the figures of the first of them."""
    with tempfile.TemporaryDirectory() as folder:
        pids = []
        for rank in range(processes):
            pid = os.fork()
            if not pid:
                words = [str(rows), str(rank), str(processes), folder]
                os.execv(sys.executable, [sys.executable, __file__, "--one", *words])  # noqa: S606
            pids.append(pid)
        if any(os.waitpid(pid, 0)[1] for pid in pids):
            raise SystemExit("a process has failed")
        return json.loads((Path(folder) / "0.json").read_text())


def one(rows: int, rank: int, processes: int, folder: Path) -> None:
    torch.set_num_threads(1)
    if processes > 1:
        dist.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=processes)
    (folder / f"{rank}.json").write_text(json.dumps(measured(rows, processes)))


def told(rows: int, processes: int, found: dict[str, float]) -> None:
    own = found["memory"] - found["bare"]
    print(f"{rows:,} rows in {rows // ROWS_A_BAG:,} bags, {processes} processes of one thread:")
    print("  CPU seconds of an epoch: " + ", ".join(f"{name} {found[name]:.2f}" for name in PARTS))
    print(f"  memory of a process above a bare one: {own:.0f} MB", flush=True)
    if "told" in found:
        share = f"{found['told'] / found['clock']:.0%} of it in communication, waiting included"
        print(f"  by the clock an epoch of DLLP takes {found['clock']:.2f} s, {share}", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        return one(*map(int, sys.argv[2:5]), Path(sys.argv[5]))
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[450_000, 4_500_000])
    parser.add_argument("--processes", type=int, nargs="+", default=[1])
    options = parser.parse_args()
    for processes in options.processes:
        found = []
        for rows in options.rows:
            found.append(apart(rows, processes))
            told(rows, processes, found[-1])
        for small, large, before, after in zip(
            found, found[1:], options.rows, options.rows[1:], strict=False
        ):
            times = math.log(after / before)
            powers = {name: math.log(large[name] / small[name]) / times for name in PARTS}
            print("growth exponents: " + ", ".join(f"{name} {power:.2f}" for name, power in powers.items()))
            more = (large["memory"] - large["bare"]) - (small["memory"] - small["bare"])
            print(f"memory of each further row: {more * 2**20 / (after - before):.0f} bytes")
    return None


if __name__ == "__main__":
    main()

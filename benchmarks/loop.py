"""What the loop costs: DLLP through apportion against the same training written in bare PyTorch, in one run.

python benchmarks/loop.py            two moons and digits on the CPU, one thread
python benchmarks/loop.py --json F   the same, and the numbers into a file

Both train the same network on the same bags with the same optimizer. They take turns, one epoch each,
hundreds of times in ten trainings each, and the median counts: what disturbs the machine for a while
disturbs both. The
interval is the middle 90 % of the ratio in samples drawn again (bootstrap). The bare version is what a
careful person would write for equal bags: batches gathered by index, the loss in four lines, one wait for
the device an epoch.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from apportion._random import stream
from apportion.bags.bags import Bags
from apportion.bags.simulate import make_bags
from apportion.datasets import load_dataset
from apportion.methods import DLLP
from apportion.networks import mlp
from apportion.optim import make_optimizer
from apportion.pipeline import first_stage

STARTS = 10  # trainings of each: where a network lies in memory can cost more than the loop does


def ours(bags: Bags, network: nn.Module, epochs: int, batch: int) -> Iterator[object]:
    optimizers = [make_optimizer(network, "adam", 1e-3)]
    return first_stage(
        DLLP(network), bags, optimizers, epochs=epochs, schedule=lambda progress: 1.0, seed=0,
        batch_size=batch,
    )  # fmt: skip


def bare(bags: Bags, network: nn.Module, epochs: int, batch: int) -> Iterator[object]:
    """Equal bags only, as most published code."""
    size, optimizer = int(bags.sizes[0]), torch.optim.Adam(network.parameters(), lr=1e-3)
    x = bags.x.view(len(bags.sizes), size, *bags.x.shape[1:])
    network.train()
    for _ in range(epochs):
        total: Tensor | float = 0.0
        for which in torch.randperm(len(x)).split(batch // size):
            instances, known = x[which].flatten(0, 1), bags.proportions[which]
            predicted = network(instances).softmax(1).view(len(which), size, -1).mean(1)
            loss = -(known * predicted.clamp_min(1e-7).log()).sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total = total + loss.detach()
        yield float(total)


def compare(name: str, size: int, widths: tuple[int, ...], batch: int, epochs: int) -> dict[str, float]:
    data = load_dataset(name, None, 0)
    n = len(data.x) // size * size  # equal bags, for the bare version's sake
    bags, _ = make_bags(data.x[:n], data.y[:n], size, data.n_classes, stream(0, "bags", size))
    times: dict[str, list[float]] = {"ours": [], "bare": []}
    work = {"ours": ours, "bare": bare}
    for start in range(STARTS):
        order = sorted(work, reverse=bool(start % 2))  # who is made first alternates, and who comes first
        turns = {}
        for label in order:
            torch.manual_seed(0)
            network = mlp(data.x.shape[1:], data.n_classes, widths)
            turns[label] = work[label](bags, network, epochs // STARTS, batch)
        for number in range(epochs // STARTS):
            for label in order if number % 2 else order[::-1]:
                started = time.process_time()  # of the processor, one thread
                next(turns[label])
                if number:  # the first epoch warms up
                    times[label].append(time.process_time() - started)
    mine, theirs = np.array(times["ours"]), np.array(times["bare"])
    ratio = np.median(mine) / np.median(theirs)
    low, high = interval(mine, theirs)
    return {
        "ours": float(np.median(mine)), "bare": float(np.median(theirs)), "ratio": float(ratio),
        "low": low, "high": high,
    }  # fmt: skip


def interval(mine: np.ndarray, theirs: np.ndarray, draws: int = 2000) -> tuple[float, float]:
    """The middle 90 % of the ratio of medians over pairs of turns drawn again."""
    drawn = np.random.default_rng(0).integers(0, len(mine), (draws, len(mine)))
    low, high = np.quantile(np.median(mine[drawn], 1) / np.median(theirs[drawn], 1), (0.05, 0.95))
    return float(low), float(high)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--turns", type=int, default=300)
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    found = {
        "moons, 3 × 64, 100 a step": compare("moons", 50, (64, 64, 64), 100, chosen.turns),
        "digits, 3 × 128, 128 a step": compare("digits", 16, (128, 128, 128), 128, chosen.turns),
        "digits, 3 × 1024, 128 a step": compare("digits", 16, (1024, 1024, 1024), 128, chosen.turns // 3),
    }
    print(f"{'training':32}{'ours, ms':>10}{'bare, ms':>10}{'ours / bare':>13}   middle 90 %")
    for name, row in found.items():
        times = f"{1e3 * row['ours']:>10.2f}{1e3 * row['bare']:>10.2f}{row['ratio']:>13.3f}"
        print(f"{name:32}{times}   {row['low']:.3f} to {row['high']:.3f}")
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

"""How many bags a batch should hold: DLLP + PLOT on rows, one or two bags a batch beside the default.

    python benchmarks/batches.py [--data FOLDER] [--seeds 2 3 4]

Classes are argmax of a linear map of six normal features plus Gumbel noise; `skewed` bags have means of their
own. With --data also Adult, 26,000 of its training rows; the other 6,561 judge. A minute or two a seed.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from apportion import ProportionClassifier
from apportion.bags.build import build_bags
from apportion.datasets.adult import adult
from apportion.defaults import default_batch_size


class RunData(NamedTuple):
    x: np.ndarray
    y: np.ndarray
    bag: np.ndarray
    new: np.ndarray
    truth: np.ndarray


def linear(seed: int, k: int, sizes: np.ndarray, skew: float = 0.0) -> RunData:
    rng = np.random.default_rng(seed)
    weights, bag = 1.5 * rng.normal(size=(6, k)), np.repeat(np.arange(len(sizes)), sizes)
    x, new = rng.normal(size=(len(bag), 6)), rng.normal(size=(20_000, 6))
    x += skew * rng.normal(size=(len(sizes), 6))[bag]
    y, truth = ((rows @ weights + rng.gumbel(size=(len(rows), k))).argmax(1) for rows in (x, new))
    return RunData(x.astype(np.float32), y, bag, new.astype(np.float32), truth)


def census(seed: int, size: int, folder: Path) -> RunData:
    data = adult(folder)
    order = np.random.default_rng(seed).permutation(len(data.x))
    x, y = data.x.numpy()[order], data.y.numpy()[order]
    return RunData(x[:26_000], y[:26_000], np.arange(26_000) // size, x[26_000:], y[26_000:])


def tasks(folder: Path | None) -> dict[str, Callable[[int], RunData]]:
    ragged = np.random.default_rng(9).integers(50, 301, 200)
    made: dict[str, Callable[[int], RunData]] = {
        "3 classes, 1,000 bags of 16": lambda seed: linear(seed, 3, np.full(1000, 16)),
        "2 classes, 150 bags of 256": lambda seed: linear(seed, 2, np.full(150, 256)),
        "3 classes, 200 bags of 256": lambda seed: linear(seed, 3, np.full(200, 256)),
        "5 classes, 300 bags of 128": lambda seed: linear(seed, 5, np.full(300, 128)),
        "10 classes, 200 bags of 50 to 300": lambda seed: linear(seed, 10, ragged),
        "40 classes, 200 bags of 50 to 300": lambda seed: linear(seed, 40, ragged),
        "3 classes, 100 bags of 1,000": lambda seed: linear(seed, 3, np.full(100, 1000)),
        "4 classes, 120 skewed bags of 110": lambda seed: linear(seed, 4, np.full(120, 110), 0.5),
        "3 classes, 30 skewed bags of 300": lambda seed: linear(seed, 3, np.full(30, 300), 0.5),
    }
    for size in (64, 256, 512) if folder else ():
        made[f"Adult, random bags of {size}"] = lambda seed, size=size: census(seed, size, folder or Path())
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[2, 3, 4])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print("| rows | largest class | a bag or two a batch | the rule | instances in its batch |")
    print("| --- | --- | --- | --- | --- |")
    for name, make in tasks(asked.data).items():
        right: dict[str, list[float]] = {"least": [], "rule": []}
        for seed in asked.seeds:
            task = make(seed)
            bags = build_bags(task.x, task.y, bags=task.bag).bags
            sizes = {
                "least": min(4096, max(256, int(bags.sizes.max()))),
                "rule": default_batch_size("table", bags, "bag"),
            }
            for rule, size in sizes.items():
                model = ProportionClassifier(batch_size=size, random_state=seed)
                predicted = model.fit(task.x, task.y, bags=task.bag).predict(task.new)
                right[rule].append(100 * float((predicted == task.truth).mean()))
        cells = [
            f"{np.mean(each):.1f} ({', '.join(f'{one:.1f}' for one in each)})" for each in right.values()
        ]
        largest = 100 * np.bincount(task.truth).max() / len(task.truth)
        print(f"| {name} | {largest:.1f} | {' | '.join(cells)} | {sizes['rule']} |", flush=True)


if __name__ == "__main__":
    main()

"""How long both stages learn where there are many classes: the default beside the lengths for ten.

    python benchmarks/classes.py [--seeds 3 4]

A class is one normal cloud of 64 features, or three of them; the bags are random. About a minute a seed.
"""

import argparse

import numpy as np
import torch

from apportion import ProportionClassifier
from apportion.bags.build import build_bags
from apportion.defaults import default_batch_size, default_epochs, default_student_epochs, epochs_for_steps

TASKS = [  # rows, classes, clouds a class, how far apart they are, bag size
    (6_000, 20, 1, 0.35, 16),
    (20_000, 30, 3, 0.6, 16),
    (20_000, 50, 1, 0.4, 16),
    (20_000, 100, 1, 0.45, 16),
    (20_000, 100, 1, 0.45, 64),
    (60_000, 100, 3, 0.6, 16),
]


def clouds(seed: int, rows: int, k: int, each: int, apart: float) -> tuple[np.ndarray, ...]:
    """Rows and their classes, then 5,000 new ones and theirs."""
    rng = np.random.default_rng(seed)
    centers = apart * rng.normal(size=(k, each, 64))

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.integers(k, size=n)
        return (centers[y, rng.integers(each, size=n)] + rng.normal(size=(n, 64))).astype(np.float32), y

    return *draw(rows), *draw(5_000)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[3, 4])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print("| rows, classes, clouds a class, bags of | lengths for ten classes, epochs | the rule, epochs |")
    print("| --- | --- | --- |")
    for rows, k, each, apart, size in TASKS:
        cells: dict[str, list[float]] = {"ten": [], "rule": []}
        for seed in asked.seeds:
            x, y, new, truth = clouds(seed, rows, k, each, apart)
            bag = np.arange(rows) // size
            bags = build_bags(x, y, bags=bag).bags
            batch = default_batch_size("table", bags, "bag")
            lengths = {
                "ten": [epochs_for_steps(steps, bags, batch) for steps in (1000, 500)],
                "rule": [
                    default_epochs("table", bags, None, "bag"),
                    default_student_epochs("table", bags, batch, "bag"),
                ],
            }
            for name, (first, second) in lengths.items():
                model = ProportionClassifier(epochs=first, student_epochs=second, random_state=seed)
                right = (model.fit(x, y, bags=bag).predict(new) == truth).mean()
                cells[name].append(100 * float(right))
        told = " | ".join(
            f"{np.mean(found):.1f} ({', '.join(f'{one:.1f}' for one in found)}), {first} + {second}"
            for found, (first, second) in zip(cells.values(), lengths.values(), strict=True)
        )
        print(f"| {rows:,}, {k}, {each}, {size} | {told} |", flush=True)


if __name__ == "__main__":
    main()

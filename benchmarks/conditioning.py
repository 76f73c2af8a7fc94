"""What the shares of new bags are worth: predictions for their rows before and after they meet them.

python benchmarks/conditioning.py [--data FOLDER] [--sizes 4 16 64 512] [--seeds 1 2 3]

The default estimator learns from one half of the bags; rows of the other half are predicted, once as they are
and once given the shares of their bags. Log-loss (less is better; of probabilities of 1e-7 at least) and
accuracy. Adult needs its files in FOLDER; without it, moons that overlap take its place.
"""

import argparse
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from sklearn.metrics import log_loss

from apportion import ProportionClassifier, condition_on_proportions, make_bags
from apportion._random import stream
from apportion.bags.bags import Bags
from apportion.datasets import Instances
from apportion.datasets.adult import adult
from apportion.datasets.synthetic import moons

KINDS = {"random bags": "random", "skewed bags": "dirichlet"}


def halves(data: Instances, size: int, kind: str, seed: int) -> tuple[Bags, Bags]:
    generator = stream(seed, "bags", kind, size)
    bags, _ = make_bags(data.x, data.y, size, data.n_classes, generator, KINDS[kind])
    order = torch.randperm(len(bags.sizes), generator=generator)
    return bags.select(order[: len(order) // 2]), bags.select(order[len(order) // 2 :])


def bag_of(bags: Bags) -> np.ndarray:
    return np.repeat(np.arange(len(bags.sizes)), bags.sizes)


def judged(data: Instances, size: int, kind: str, seed: int) -> list[tuple[float, float]]:
    """(log-loss, accuracy) of predictions as they are, and of `condition_on_proportions`."""
    learned, new = halves(data, size, kind, seed)
    model = ProportionClassifier("mlp", random_state=seed)
    model.fit(learned.x.numpy(), bags=bag_of(learned), proportions=learned.proportions.numpy())
    before, truth = model.predict_proba(new.x.numpy()), data.y[new.source].numpy()
    found = before, condition_on_proportions(before, bag_of(new), new.proportions.numpy())
    return [
        (
            log_loss(truth, shares.clip(1e-7) / shares.clip(1e-7).sum(1, keepdims=True), labels=range(2)),
            100 * float((shares.argmax(1) == truth).mean()),
        )
        for shares in found
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 16, 64, 512])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    name, data = ("Adult", adult(asked.data)) if asked.data else ("moons", moons(1, 16000, noise=0.4))
    print(f"| {name} | as predicted | `condition_on_proportions` |")
    print("|---|---|---|")
    for kind in KINDS:
        for size in asked.sizes:
            runs = np.array([judged(data, size, kind, seed) for seed in asked.seeds])  # (seeds, 2, 2)
            cells = [f"{fmean(runs[:, i, 0]):.3f}, {fmean(runs[:, i, 1]):.1f} %" for i in range(2)]
            print(f"| {kind} of {size} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()

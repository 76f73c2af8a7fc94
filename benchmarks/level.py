"""How often `diagnose` lets shares pass that predictions do not foretell, and those that they do.

    python benchmarks/level.py [--sets 1000] [--bags 150]

A tenth of the rows are of the rare class. Predictions follow one normal feature; the class follows it by a
slope of 0 (nothing may pass, but for two in a thousand), or of 0.5 or 1. Bags are random, or differ in their
shares for a reason that no row shows. Printed beside it: plain shuffles, for which all bags weigh alike.
A minute a line on one core.
"""

import argparse

import numpy as np
import torch
from torch import Tensor

from apportion.bags.bags import bag_means
from apportion.selection.diagnosis import SIGNIFICANCE, permutation_test

SIZES = {
    "all of 40": lambda random, m: np.full(m, 40),
    "a long tail": lambda random, m: np.exp(random.normal(3, 1.6, m)).round().clip(1),
    "a tenth of 1,000, else 3": lambda random, m: np.where(np.arange(m) < m / 10, 1000, 3),
}


def shares(sizes: Tensor, slope: float, reason: float, random: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Predicted and known shares of the bags."""
    n, start = int(sizes.sum()), np.log(1 / 9)
    feature = random.normal(size=n)
    shift = np.repeat(random.normal(0, reason, len(sizes)), sizes.numpy())
    rare = random.random(n) < 1 / (1 + np.exp(-start - shift - slope * feature))
    told = 1 / (1 + np.exp(-start - (slope or 0.7) * feature))
    both = (torch.from_numpy(np.stack([1 - each, each], 1)).double() for each in (told, rare))
    predicted, known = (bag_means(each, sizes) for each in both)
    return predicted, known


def passes(predicted: Tensor, known: Tensor, sizes: Tensor, seed: int) -> bool:
    found, null = permutation_test(predicted, known, sizes, 1999, seed)
    return (1 + int((null >= found - 1e-9).sum())) / 2000 <= SIGNIFICANCE


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", type=int, default=1000)
    parser.add_argument("--bags", type=int, default=150)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print("| sizes | differ for a reason | slope | pass, of a thousand | by plain shuffles |")
    print("| --- | --- | --- | --- | --- |", flush=True)
    for name, draw in SIZES.items():
        for reason in (0.0, 1.0):
            for slope in (0.0, 0.5, 1.0):
                random, found = np.random.default_rng(1), np.zeros(2)
                for seed in range(asked.sets):
                    sizes = torch.from_numpy(draw(random, asked.bags).astype(np.int64))
                    predicted, known = shares(sizes, slope, reason, random)
                    alike = torch.ones_like(sizes)
                    found += [passes(predicted, known, each, seed) for each in (sizes, alike)]
                ours, plain = 1000 * found / asked.sets
                words = "yes" if reason else "no"
                print(f"| {name} | {words} | {slope:g} | {ours:.0f} | {plain:.0f} |", flush=True)


if __name__ == "__main__":
    main()

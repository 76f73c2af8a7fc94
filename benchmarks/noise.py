"""Adult with proportions as they really are: noisy, rounded, missing; and with a few labels that are given.

python benchmarks/noise.py --data FOLDER [--seeds 1 2 3 4 5] [--bags 64] [--cases clean ...]
    [--first-stage counts] [--first-epochs 12 | --first-epochs 6 8 10 12 16]

Accuracy and AUC on the test part, with the option for such proportions and without. Five to twenty seconds
a fit on one core. Of several numbers of epochs that one is taken which makes the known bags likeliest, each
predicted by a first stage that did not see it: no label is looked at.
"""

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from apportion import ProportionClassifier, Proportions, build_bags
from apportion._random import stream
from apportion.bags.bags import Bags
from apportion.bags.simulate import random_bag_ids
from apportion.datasets.adult import adult
from apportion.methods.count_likelihood import count_log_likelihood
from apportion.selection.crossfit import cross_fit

SCALE, STEP = 2.0, 0.05  # of the Laplace noise on counts, of the rounding


def scaled(values: np.ndarray) -> np.ndarray:
    return values / values.sum(1, keepdims=True)


def cases(y: np.ndarray, counts: np.ndarray, seed: int) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """By name: settings of the estimator, and what its fit is given."""
    random, n = np.random.default_rng(seed), counts.sum(1, keepdims=True)
    noisy = counts + random.laplace(0, SCALE, counts.shape)
    rounded = np.round(counts / n / STEP) * STEP
    half = (counts / n).copy()
    half[random.permutation(len(half))[: len(half) // 2]] = np.nan
    some = random.permutation(len(y))[: len(y) // 100].tolist()
    clipped = scaled(np.clip(np.round(noisy), 0, n) + 1e-9)
    return {
        "clean": {"proportions": Proportions(counts, "counts")},
        "noise, nothing done": {"proportions": clipped},
        "noise, its deviation given": {"proportions": Proportions(noisy, "counts", std=SCALE * math.sqrt(2))},
        "noise, estimated": {"proportions": Proportions(noisy, "counts", std="estimate")},
        "rounded to 5 %": {"proportions": Proportions(rounded, normalize=True)},
        "rounded to 5 %, as noise": {"proportions": Proportions(rounded, std=STEP / math.sqrt(12))},
        "half without proportions": {"proportions": Proportions(half, missing_bags="allow")},
        "1 % of labels given": {
            "proportions": Proportions(counts, "counts"),
            "known_labels": {i: int(y[i]) for i in some},
        },
    }


def likeliest(epochs: list[int], bags: Bags, method: str, seed: int) -> int:
    """Of several numbers of epochs the one by which bags are likeliest, each by a network that lacked it."""
    if len(epochs) == 1:
        return epochs[0]
    scores = {}
    for number in epochs:
        model = ProportionClassifier("mlp", method, None, epochs=number, random_state=seed)
        out = np.empty((len(bags.x), bags.n_classes))
        table = dict(zip(bags.ids, bags.proportions.numpy(), strict=True))
        for _ in cross_fit(model, bags.x.numpy(), bags, table, out, seed=seed):
            pass
        log_probs = torch.from_numpy(out).log()
        scores[number] = float(count_log_likelihood(log_probs, bags.sizes, bags.proportions).mean())
    print(f"{seed} likelihood by epochs: {scores}", flush=True)
    return max(scores, key=scores.__getitem__)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="the folder that `apportion data` fills")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--bags", type=int, default=64)
    parser.add_argument("--cases", nargs="+")
    parser.add_argument("--method", default="dllp")
    parser.add_argument("--epochs", type=int, nargs="+", help="if not given, the estimator's own")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    data = adult(asked.data)
    x, y, test_x, test_y = (part.numpy() for part in (data.x, data.y, data.test_x, data.test_y))
    found: dict[str, list[tuple[float, float]]] = {}
    for seed in asked.seeds:
        bag = random_bag_ids(data.x, data.y, asked.bags, stream(seed, "bags", "random", asked.bags))
        counts = np.stack([np.bincount(bag, y == c) for c in (0, 1)], 1)
        for name, given in cases(y, counts, seed).items():
            if asked.cases is None or name in asked.cases:
                first: dict[str, Any] = {"method": asked.method}
                if asked.epochs:
                    bags = build_bags(x, bags=bag, **given).bags.known()
                    first["epochs"] = likeliest(asked.epochs, bags, asked.method, seed)
                model = ProportionClassifier(**first, random_state=seed)
                fitted = model.fit(x, bags=bag, **given)
                share = fitted.predict_proba(test_x)[:, 1]
                scores = 100 * ((share > 0.5) == test_y).mean(), 100 * roc_auc_score(test_y, share)
                found.setdefault(name, []).append(scores)
                print(f"{seed} {name}: {scores[0]:.2f} {scores[1]:.2f}", flush=True)
    print("| proportions | accuracy | AUC |\n| --- | --- | --- |")
    for name, scores in found.items():
        cells = (f"{np.mean(s):.2f} ({', '.join(f'{v:.2f}' for v in s)})" for s in zip(*scores, strict=True))
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()

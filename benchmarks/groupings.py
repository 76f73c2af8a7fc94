"""Adult in several groupings at once: what each teaches alone, what they teach together, and what they tell.

python benchmarks/groupings.py --data FOLDER [--seeds 1 2 3]

Bags are people alike in two columns, those of fewer than 20 people put together. The default estimator learns
from the shares of one, two or three groupings of the training part and is judged on the test part: accuracy,
AUC and log-loss. Then the test people's own shares by these groupings are met: none, one, all at once. Half a
minute a fit on one core.
"""

import argparse
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import log_loss, roc_auc_score

from apportion import ProportionClassifier, condition_on_proportions
from apportion.datasets.adult import Rows, adult, read_adult

LEAST = 20
GROUPINGS = {  # two columns of the file; an age counts by its decade
    "education × work": (3, 1),
    "age × sex": (0, 9),
    "occupation × marriage": (6, 5),
}


def grouped(people: Rows) -> dict[str, np.ndarray]:
    """The bag of every row in each grouping."""
    found = {}
    for name, columns in GROUPINGS.items():
        ids = np.array([" ".join(p[c] if c else p[c].zfill(3)[:2] for c in columns) for p in people])
        known, at, sizes = np.unique(ids, return_inverse=True, return_counts=True)
        found[name] = np.where(sizes < LEAST, "others", known)[at]
    return found


def shares_of(bags: np.ndarray, y: np.ndarray) -> dict[str, list[float]]:
    means = {name: float(y[bags == name].mean()) for name in np.unique(bags)}
    return {name: [1 - mean, mean] for name, mean in means.items()}


def judged(share: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    accuracy, auc = ((share > 0.5) == y).mean(), roc_auc_score(y, share)
    return 100 * float(accuracy), 100 * float(auc), float(log_loss(y, share.clip(1e-7, 1 - 1e-7)))


def line(name: str, n_bags: int, scores: list[tuple[float, float, float]]) -> None:
    cells = []
    for i, digits in enumerate((2, 2, 3)):
        each = [f"{score[i]:.{digits}f}" for score in scores]
        cells.append(f"{np.mean([score[i] for score in scores]):.{digits}f} ({', '.join(each)})")
    print(f"| {name} | {n_bags} |", " | ".join(cells), "|", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="the folder that `apportion data` fills")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    data = adult(asked.data)
    x, y, test_x, test_y = (part.numpy() for part in (data.x, data.y, data.test_x, data.test_y))
    bags, test_bags = (grouped(part) for part in read_adult(asked.data))
    print("| learned from | bags | accuracy | AUC | log-loss |\n| --- | --- | --- | --- | --- |")
    predicted: dict[tuple[str, ...], list[np.ndarray]] = {}
    for names in (names for n in (1, 2, 3) for names in combinations(GROUPINGS, n)):
        chosen = {name: bags[name] for name in names}
        models = (
            ProportionClassifier("mlp", random_state=seed).fit(x, y, bags=chosen) for seed in asked.seeds
        )
        predicted[names] = [model.predict_proba(test_x) for model in models]
        scores = [judged(each[:, 1], test_y) for each in predicted[names]]
        line(" + ".join(names), sum(len(np.unique(each)) for each in chosen.values()), scores)
    print("\n| met by the test people | bags | accuracy | AUC | log-loss |\n| --- | --- | --- | --- | --- |")
    shares = {name: shares_of(test_bags[name], test_y) for name in GROUPINGS}
    first = (next(iter(GROUPINGS)),)
    line("none", 0, [judged(each[:, 1], test_y) for each in predicted[first]])
    for names in (names for n in (1, 2, 3) for names in combinations(GROUPINGS, n)):
        chosen = {name: test_bags[name] for name in names}
        met = [
            condition_on_proportions(each, chosen, {name: shares[name] for name in names})
            for each in predicted[first]
        ]
        n_bags = sum(len(shares[name]) for name in names)
        line(" + ".join(names), n_bags, [judged(each[:, 1], test_y) for each in met])


if __name__ == "__main__":
    main()

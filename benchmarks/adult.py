"""Adult in bags: accuracy and AUC on the test part, beside training on true labels and beside other losses.

python benchmarks/adult.py --data FOLDER [--bags 64 512 column] [--seeds 1 2 3] [--labels] [--only counts]

Bags are random ones of a size, or `column`: one for each education × working class, those with fewer than
COLUMN_LEAST rows put together. A minute or two a seed on one core. --labels compares kinds of labels instead.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import log_loss, roc_auc_score
from torch import Tensor, nn

from apportion import ProportionClassifier, expand_proportions
from apportion._random import reseed, stream
from apportion.bags.bags import BagBatch, Bags, bag_means
from apportion.bags.build import build_bags
from apportion.bags.simulate import random_bag_ids
from apportion.datasets.adult import adult, read_adult
from apportion.defaults import default_batch_size, epochs_for_steps
from apportion.evaluate import predict_log_proba
from apportion.networks import mlp
from apportion.optim import make_optimizer, one_cycle
from apportion.training import train

COLUMN_LEAST = 20
LONG = {"epochs": 60, "batch_size": 1024}  # for bags of 512; chosen on held-out training rows
KINDS = {
    "dllp+plot, hard": {"labels": "hard"},
    "dllp+plot, soft, λ = 3": {"labels": "soft", "reg": 1 / 3},
    "dllp+plot, soft, λ = 10": {"labels": "soft", "reg": 0.1},
}


class LogMean:
    """llp-learn's loss in our loop: the mean of log-probabilities, not the log of their mean."""

    def __init__(self, classifier: nn.Module) -> None:
        self.classifier = classifier

    def networks(self) -> list[nn.Module]:
        return [self.classifier]

    def losses(self, batch: BagBatch, progress: float):
        logs = self.classifier(batch.x).log_softmax(1)
        means = bag_means(logs, batch.sizes)
        yield {"bags": -(batch.proportions * means).sum(1).mean()}


def in_our_loop(learner: Any, bags: Bags, seed: int) -> nn.Module:
    """A network trained for as long, as often and as fast as the estimator's first stage is."""
    size = default_batch_size("table", bags, "bag")
    epochs = epochs_for_steps(1000, bags, size)
    reseed(seed, "first", "weights")
    network = mlp(tuple(bags.x.shape[1:]), bags.n_classes)
    made = learner(network)
    settings = {"schedule": one_cycle, "seed": seed, "stage": "first"}
    for _ in train(
        made,
        bags,
        [make_optimizer(network, "adam", 2e-3)],
        epochs=epochs,
        batch_size=size,
        **settings,
    ):
        pass
    return network


def log_mean(x: np.ndarray, y: np.ndarray, bags: np.ndarray, test_x: np.ndarray, seed: int) -> np.ndarray:
    grouped = build_bags(x, y, bags=bags).bags
    return probability(in_our_loop(LogMean, grouped, seed), test_x)


def naive(x: np.ndarray, y: np.ndarray, bags: np.ndarray, test_x: np.ndarray, seed: int) -> np.ndarray:
    """Every row learns its bag's shares as if they were its own soft label: bags of one with those shares."""
    counted = {
        name: np.bincount(y[bags == name], minlength=2) / (bags == name).sum() for name in np.unique(bags)
    }
    shares = torch.from_numpy(expand_proportions(counted, bags)).float()
    ones = torch.ones(len(x), dtype=torch.int64)
    each = Bags(torch.from_numpy(x), ones, shares, torch.arange(len(x)), range(len(x)))
    from apportion.methods import DLLP

    return probability(in_our_loop(DLLP, each, seed), test_x)


def probability(network: nn.Module, x: np.ndarray) -> np.ndarray:
    return predict_log_proba(network, torch.from_numpy(x)).exp()[:, 1].numpy()


def ours(settings: dict[str, Any]):
    def fit(
        x: np.ndarray, y: np.ndarray, bags: np.ndarray | None, test_x: np.ndarray, seed: int
    ) -> np.ndarray:
        return (
            ProportionClassifier(**{"model": "mlp"} | settings, random_state=seed)
            .fit(x, y, bags=bags)
            .predict_proba(test_x)[:, 1]
        )

    return fit


def boosted(x: np.ndarray, y: np.ndarray, bags: np.ndarray, test_x: np.ndarray, seed: int) -> np.ndarray:
    return HistGradientBoostingClassifier(random_state=seed).fit(x, y).predict_proba(test_x)[:, 1]


SUPERVISED = {
    "supervised network": lambda x, y, bags, t, s: ours({"pseudo_labels": None})(x, y, None, t, s),
    "boosted trees": boosted,
}
CONTESTANTS = {
    "dllp": ours({"pseudo_labels": None}),
    "dllp+plot": ours({}),
    "counts": ours({"method": "count_likelihood", "pseudo_labels": None}),
    "counts+plot": ours({"method": "count_likelihood"}),
    "shares as soft labels": naive,
    "mean of log-probabilities": log_mean,
}
LONGER = {
    f"{method}+plot, longer": ours({"method": method} | LONG) for method in ("dllp", "count_likelihood")
}


def bags_of(kind: str, folder: Path, x: Tensor, y: Tensor, seed: int) -> np.ndarray:
    """The bag of each training row."""
    if kind != "column":
        return random_bag_ids(x, y, int(kind), stream(seed, "bags", "random", int(kind)))
    people, _ = read_adult(folder)
    names = np.array([f"{person[3]} × {person[1]}" for person in people])
    known, at, sizes = np.unique(names, return_inverse=True, return_counts=True)
    return np.where(sizes < COLUMN_LEAST, "others", known)[at]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="the folder that `apportion data` fills")
    parser.add_argument("--bags", nargs="+", default=["64", "512", "column"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--labels", action="store_true", help="compare kinds of labels")
    parser.add_argument("--only", nargs="+", help="names of lines, such as counts counts+plot")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    data = adult(asked.data)
    x, y, test_x, test_y = (part.numpy() for part in (data.x, data.y, data.test_x, data.test_y))
    kinds = {name: ours(settings) for name, settings in KINDS.items()}
    lines = []
    for kind in ["1", *asked.bags]:
        fits = SUPERVISED if kind == "1" else CONTESTANTS | kinds if asked.labels else CONTESTANTS
        if kind == "512":
            fits = fits | LONGER
        if asked.only:
            fits = {name: fit for name, fit in fits.items() if name in asked.only}
        for name, fit in fits.items():
            for seed in asked.seeds:
                started = time.process_time()
                share = fit(x, y, bags_of(kind, asked.data, data.x, data.y, seed), test_x, seed)
                line = {"bags": kind, "name": name, "seed": seed, "seconds": time.process_time() - started}
                line |= {"accuracy": ((share > 0.5) == test_y).mean(), "auc": roc_auc_score(test_y, share)}
                lines.append(line | {"log_loss": log_loss(test_y, share)})
            show(lines[-len(asked.seeds) :])
    print(json.dumps(lines))


def show(lines: list[dict[str, Any]]) -> None:
    """A row of the table: mean and each seed."""
    cells = [lines[0]["bags"], lines[0]["name"]]
    for what, scale, digits in (("accuracy", 100, 2), ("auc", 100, 2), ("log_loss", 1, 3), ("seconds", 1, 1)):
        values = [scale * line[what] for line in lines]
        each = f" ({', '.join(f'{v:.{digits}f}' for v in values)})" if what in ("accuracy", "auc") else ""
        cells.append(f"{np.mean(values):.{digits}f}{each}")
    print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()

"""Bags of very unequal sizes: what counting every bag alike costs, and what counting it by its rows gives.

python benchmarks/unequal.py [--rows 30000] [--bags 400] [--seeds 1 2 3] [--first-epochs 10]

An advertiser's table, made up: campaign-days of one to some thousand clicks, of which one in fourteen
converts; campaigns reach people who differ. Learned from the counts of conversions, judged on new clicks by
log-loss and AUC, beside the overall share, a mean over bags (the paper's loss, and that of its peers), and
what could be known at best. Ten seconds a fit on one core.
"""

import argparse
from unittest.mock import patch

import numpy as np
import torch
from sklearn.metrics import log_loss, roc_auc_score
from torch import Tensor

from apportion import ProportionClassifier
from apportion.bags.bags import bag_means


def clicks(n: int, m: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features (n, 7), the bag of each row, and the probability that it converts."""
    weight = np.exp(random.normal(0, 1.6, m))
    bag = np.sort(np.concatenate([np.arange(m), random.choice(m, n - m, p=weight / weight.sum())]))
    theme = random.integers(0, 40, m)[bag]  # of the campaign
    age = random.normal(40, 12, n) + 6 * np.sin(1.7 * theme)
    bid = random.normal(0, 0.5, n) + 0.3 * np.cos(theme)
    desktop = random.random(n) < 0.3 + 0.2 * (1 + np.sin(2.3 * theme))
    back = random.random(n) < np.clip(0.15 + 0.3 * np.sin(0.9 * theme + 1), 0.02, 0.8)
    hour, noise = random.integers(0, 24, n), random.normal(size=(n, 2))
    logit = -3.4 + 0.03 * (age - 40) + desktop + 1.9 * back + 0.5 * bid - 0.07 * abs(hour - 19)
    x = np.column_stack([(age - 40) / 12, 2 * bid, desktop, back, (hour - 12) / 7, noise])
    return x.astype(np.float32), bag, 1 / (1 + np.exp(-logit))


def mean_over_bags(logits: Tensor, sizes: Tensor, proportions: Tensor, left: float = 0.0) -> Tensor:
    """DLLP's loss as it is published: every bag counts alike."""
    predicted = bag_means(logits.float().softmax(1), sizes).clamp_min(1.2e-38)
    return -(proportions * predicted.log()).sum(1).mean()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--bags", type=int, default=400)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--first-epochs", type=int, help="if not given, the estimator's own")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[tuple[float, float]]] = {}
    for seed in asked.seeds:
        random = np.random.default_rng(seed)
        x, bag, p = clicks(asked.rows, asked.bags, random)
        y = (random.random(len(x)) < p).astype(int)
        new, _, new_p = clicks(20_000, asked.bags, random)
        truth = (random.random(len(new)) < new_p).astype(int)
        sizes = np.bincount(bag)
        half = np.median(sizes)
        print(f"seed {seed}: bags of {sizes.min()} to {sizes.max()} rows, half of them at most {half:.0f}")
        fitted = ProportionClassifier(epochs=asked.epochs, random_state=seed)
        answers = {"the overall share": np.full(len(new), y.mean())}
        with patch("apportion.methods.dllp.proportion_loss", mean_over_bags):
            answers["mean over bags"] = fitted.fit(x, y, bags=bag).predict_proba(new)[:, 1]
        answers["mean over rows"] = fitted.fit(x, y, bags=bag).predict_proba(new)[:, 1]
        answers["the best possible"] = new_p
        for name, share in answers.items():
            score = log_loss(truth, share.clip(1e-6, 1 - 1e-6)), 100 * roc_auc_score(truth, share)
            found.setdefault(name, []).append(score)
    print("| predicted by | log-loss | AUC |\n| --- | --- | --- |")
    for name, scores in found.items():
        losses, areas = zip(*scores, strict=True)
        one = f"{np.mean(losses):.4f} ({', '.join(f'{v:.4f}' for v in losses)})"
        print(f"| {name} | {one} | {np.mean(areas):.2f} ({', '.join(f'{v:.2f}' for v in areas)}) |")


if __name__ == "__main__":
    main()

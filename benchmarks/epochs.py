"""How long the first stage should learn on Adult, by training rows that are held out; no test row is read.

python benchmarks/epochs.py --data FOLDER [--bags 64] [--half] [--methods dllp counts] [--epochs 8 12 16]
    [--rows-per-batch 1024] [--decay 1e-4] [--teachers 6] [--seeds 11 12 13 14 15 16 17 18] [--held 6561]

The first stage alone. Accuracy, AUC and log-loss of the held-out rows, and the log-likelihood of the counts
of random bags of them, which needs no labels of rows. --half learns from half of the bags, --teachers takes
the mean of several networks' probabilities. One to ten seconds a fit on one core.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import log_loss, roc_auc_score
from torch import Tensor, nn

from apportion._random import reseed, stream
from apportion.bags.bags import Bags
from apportion.bags.build import build_bags
from apportion.bags.simulate import random_bag_ids
from apportion.datasets.adult import adult
from apportion.defaults import default_batch_size
from apportion.evaluate import predict_log_proba
from apportion.methods import make_learner
from apportion.methods.count_likelihood import count_log_likelihood
from apportion.networks import mlp
from apportion.optim import make_optimizer, one_cycle
from apportion.training import train


def parted(x: Tensor, y: Tensor, seed: int, asked: argparse.Namespace) -> tuple[Bags, Tensor, Tensor]:
    """Bags to learn from, and the rows that are held out with their classes."""
    random = np.random.default_rng(1000 + seed)
    held, kept = np.split(random.permutation(len(x)), [asked.held])
    groups = random_bag_ids(x[kept], y[kept], asked.bags, stream(seed, "bags", "random", asked.bags))
    bags = build_bags(x[kept].numpy(), y[kept].numpy(), bags=groups).bags
    if asked.half:
        order = random.permutation(len(bags.sizes))
        bags = bags.select(torch.from_numpy(np.sort(order[len(order) // 2 :])))
    return bags, x[held], y[held]


def taught(bags: Bags, method: str, epochs: int, seed: int, asked: argparse.Namespace) -> nn.Module:
    reseed(seed, "first", "weights")
    network = mlp(tuple(bags.x.shape[1:]), bags.n_classes)
    optimizer = make_optimizer(network, "adam", 2e-3, weight_decay=asked.decay)
    size = asked.rows_per_batch or default_batch_size("table", bags, "bag")
    settings: dict[str, Any] = {"schedule": one_cycle, "seed": seed, "stage": "first"}
    learner = make_learner(method, network, bags)
    for _ in train(learner, bags, [optimizer], epochs=epochs, batch_size=size, **settings):
        pass
    return network


def scores(log_probs: Tensor, y: Tensor, size: int) -> tuple[float, float, float, float]:
    share, m = log_probs.double().exp()[:, 1].numpy(), len(y) // size
    ones = y[: m * size].view(m, size).double().mean(1)
    likelihood = count_log_likelihood(
        log_probs[: m * size], torch.full((m,), size), torch.stack([1 - ones, ones], 1)
    )
    right = 100 * ((share > 0.5) == y.numpy()).mean()
    return right, 100 * roc_auc_score(y, share), log_loss(y, share), float(likelihood.mean())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="the folder that `apportion data` fills")
    parser.add_argument("--bags", type=int, default=64)
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--methods", nargs="+", default=["dllp", "count_likelihood"])
    parser.add_argument("--epochs", type=int, nargs="+", default=[8, 12, 16])
    parser.add_argument("--rows-per-batch", type=int)
    parser.add_argument("--decay", type=float, default=0.0)
    parser.add_argument("--teachers", type=int, default=1)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(11, 19)))
    parser.add_argument("--held", type=int, default=6561, help="rows that are held out")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    data = adult(asked.data)
    print("| first stage | epochs | accuracy | AUC | log-loss | likelihood |\n|" + " --- |" * 6)
    for method in asked.methods:
        for epochs in asked.epochs:
            found = []
            for seed in asked.seeds:
                bags, x, y = parted(data.x, data.y, seed, asked)
                seeds = [seed] if asked.teachers == 1 else [100 * seed + i for i in range(asked.teachers)]
                each = [predict_log_proba(taught(bags, method, epochs, one, asked), x).exp() for one in seeds]
                found.append(scores(torch.stack(each).mean(0).log(), y, asked.bags))
            cells = [
                f"{np.mean(part):.{digits}f} ({', '.join(f'{v:.{digits}f}' for v in part)})"
                for part, digits in zip(zip(*found, strict=True), (2, 2, 3, 3), strict=True)
            ]
            print(f"| {method} | {epochs} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

"""Adult in random bags: accuracy, AUC and log-loss of each stage and kind of labels on the test part.

python benchmarks/adult.py --data FOLDER [--size 64] [--seeds 1 2]     a few minutes on one core
"""

import argparse
import json
import time
from pathlib import Path

import torch
from sklearn.metrics import log_loss, roc_auc_score

from apportion import ProportionClassifier
from apportion.bagging import random_groups
from apportion.data.tables import adult
from apportion.randomness import stream

VARIANTS = {
    "dllp": {"second_stage": None},
    "dllp+plot, hard": {"labels": "hard"},
    "dllp+plot, soft, λ = 1": {"labels": "soft", "reg": 1.0},
    "dllp+plot, soft, λ = 3": {"labels": "soft", "reg": 1 / 3},
    "dllp+plot, soft, λ = 10": {"labels": "soft", "reg": 0.1},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="the folder that `apportion data` fills")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    data = adult(asked.data)
    x, y, test_x, test_y = (part.numpy() for part in (data.x, data.y, data.test_x, data.test_y))
    print(f"{'':26}seed  accuracy    AUC  log-loss  labels right  seconds")
    lines = []
    for seed in asked.seeds:
        bags = random_groups(data.x, data.y, asked.size, stream(seed, "bags", "random", asked.size))
        supervised = {"supervised": {"second_stage": None}}
        for name, settings in (VARIANTS | supervised).items():
            started = time.perf_counter()
            classifier = ProportionClassifier(**settings, random_state=seed)
            classifier.fit(x, y, bags=None if name == "supervised" else bags)
            seconds = time.perf_counter() - started
            share = classifier.predict_proba(test_x)[:, 1]
            right = (classifier.transduction_ == y).mean()
            found = classifier.score(test_x, test_y), roc_auc_score(test_y, share)
            loss = log_loss(test_y, share)
            print(f"{name:26}{seed:4}{100 * found[0]:10.2f}{100 * found[1]:7.2f}{loss:10.4f}", end="")
            print(f"{100 * right:14.2f}{seconds:9.1f}", flush=True)
            lines.append({"name": name, "seed": seed, "size": asked.size, "accuracy": found[0]})
            lines[-1] |= {"auc": found[1], "log_loss": loss, "labels_right": right, "seconds": seconds}
    print(json.dumps(lines))


if __name__ == "__main__":
    main()

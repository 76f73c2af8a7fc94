"""What transport itself adds to a second stage: students of one teacher whose labels differ, all else equal.

    python benchmarks/labels.py [--seeds 1 2 3]

Labels are the predictions of the teacher and then of the student, moved to the counts of every bag (exact,
entropic_plan) or not (the largest class, the probabilities themselves). A class is one normal cloud of 64
features, or three of them; the bags are random. Accuracy on 5,000 new rows, and how many labels of the
training rows are right after the first stage, by the largest class and by exact transport. A minute a line
and seed on one core.
"""

import argparse

import numpy as np
import torch
from classes import clouds

from apportion import ProportionClassifier

TASKS = [  # rows, classes, clouds a class, how far apart they are, bag size
    (20_000, 2, 3, 0.35, 16),
    (20_000, 10, 3, 0.5, 16),
    (20_000, 10, 3, 0.5, 64),
    (20_000, 100, 1, 0.45, 16),
    (20_000, 100, 1, 0.45, 64),
]
STUDENTS = ("hard", "soft", "argmax", "predicted")


def judged(seed: int, rows: int, k: int, each: int, apart: float, size: int) -> dict[str, float]:
    x, y, new, truth = clouds(seed, rows, k, each, apart)
    bags, found = np.arange(rows) // size, {}
    teacher = ProportionClassifier(pseudo_labels=None, random_state=seed).fit(x, y, bags=bags)
    found["teacher's labels, argmax"] = (teacher.predict(x) == y).mean()
    found["teacher's labels, exact"] = (teacher.transduction_ == y).mean()
    found["teacher"] = (teacher.predict(new) == truth).mean()
    for labels in STUDENTS:
        student = ProportionClassifier(pseudo_labels=labels, random_state=seed).fit(x, y, bags=bags)
        found[labels] = (student.predict(new) == truth).mean()
    return {name: 100 * float(right) for name, right in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for i, task in enumerate(TASKS):
        runs = [judged(seed, *task) for seed in asked.seeds]
        if not i:
            print("| classes, bags of |", " | ".join(runs[0]), "|")
            print("| --- |", " | ".join("---" for _ in runs[0]), "|")
        cells = []
        for name in runs[0]:
            values = [run[name] for run in runs]
            cells.append(f"{np.mean(values):.1f} ({', '.join(f'{value:.1f}' for value in values)})")
        print(f"| {task[1]}, {task[4]} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()

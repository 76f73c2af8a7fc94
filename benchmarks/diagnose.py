"""Does a diagnosis say no where there is no answer, and only there? Fine data, and the same shuffled.

python benchmarks/diagnose.py [--data FOLDER] [--seeds 1] [--shuffled 1]

Networks trained alike judge each other on bags left out (four folds, the estimator's settings). Half a
minute a data set on one core, more for Adult, which needs FOLDER.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from apportion.bags.bags import Bags
from apportion.bags.proportions import Proportions
from apportion.bags.simulate import make_bags
from apportion.datasets import Instances
from apportion.datasets.adult import adult
from apportion.datasets.synthetic import blobs, digits, moons
from apportion.estimator import ProportionClassifier
from apportion.selection.diagnosis import diagnose_bags
from apportion.tables.diagnose import Evaluation, diagnose_probabilities, fit_folds

FINE: list[tuple[str, Callable[[int], Instances], int, Any]] = [
    *((f"moons, {size}", moons, size, "random") for size in (10, 20, 50)),
    ("moons with noise 0.2, 20", partial(moons, noise=0.2), 20, "random"),
    ("moons, 50, skewed", moons, 50, "dirichlet"),
    ("moons, 100, skewed", moons, 100, "dirichlet"),
    *((f"blobs, {size}", blobs, size, "random") for size in (8, 16, 32, 64)),
    ("blobs, 64, skewed", blobs, 64, "dirichlet"),
    ("blobs, 64, by cluster", blobs, 64, "cluster"),
    ("blobs of 2 classes, 32", partial(blobs, classes=2), 32, "random"),
    *((f"digits, {size}", digits, size, "random") for size in (8, 16, 32, 64)),
    ("digits, 64, skewed", digits, 64, "dirichlet"),
]
EDGE = [("moons, 200", moons, 200, "random")]  # ten random bags: too few, perhaps
ADULT = [64, 256]


def cases(folder: Path | None, seed: int) -> Iterator[tuple[str, Bags, torch.Tensor]]:
    for name, source, size, kind in [*FINE, *EDGE]:
        data = source(seed)
        generator = torch.Generator().manual_seed(seed)
        yield name, *make_bags(data.x, data.y, size, data.n_classes, generator, kind)
    if folder is not None:
        data = adult(folder)
        for size in ADULT:
            generator = torch.Generator().manual_seed(seed)
            yield f"Adult, {size}", *make_bags(data.x, data.y, size, data.n_classes, generator)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="the folder that `apportion data` fills")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--shuffled", type=int, default=1, help="shuffle every n-th data set too; 0 for none")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print("| data, bags of | bags | spread | correlation | shuffled reach | accuracy, estimated | true |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for seed in asked.seeds:
        for i, (name, bags, hidden) in enumerate(cases(asked.data, seed)):
            order = torch.randperm(len(bags.sizes), generator=torch.Generator().manual_seed(seed))
            shuffled = replace(bags, proportions=bags.proportions[order])
            alike = replace(
                bags, proportions=bags.proportions.mean(0).expand_as(bags.proportions).contiguous()
            )
            show(name, bags, hidden)
            if asked.shuffled and i % asked.shuffled == 0:
                show(f"{name}, shuffled", shuffled, "random")
            log_probs = torch.full((len(bags.x), bags.n_classes), 1 / bags.n_classes).log()
            if diagnose_bags(log_probs, alike).supported:
                print(f"{name}, all alike: called fine")


def show(name: str, bags: Bags, hidden: torch.Tensor | None) -> None:
    table = Proportions(dict(zip(bags.ids, bags.proportions.numpy(), strict=True)))
    evaluation = Evaluation(bags.x.numpy(), bags, table, "", folds=4)
    probabilities = np.empty((len(bags.x), bags.n_classes))
    for _ in fit_folds(ProportionClassifier(random_state=0), evaluation, probabilities):
        pass
    log_probs = torch.from_numpy(probabilities).log()
    found = diagnose_probabilities(probabilities, evaluation)
    truth = "" if hidden is None else f"{100 * float((log_probs.argmax(1) == hidden).double().mean()):.1f}"
    cells = [name if found.supported else f"{name}: **no answer**", len(bags.sizes), f"{found.spread:.2f}"]
    cells += [f"{found.correlation:.3f}", f"{found.critical_correlation:.3f}"]
    interval = f"({100 * found.accuracy_low:.1f} to {100 * found.accuracy_high:.1f})"
    cells += [f"{100 * found.accuracy:.1f} {interval}", truth]
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()

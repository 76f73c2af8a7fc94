"""Does a diagnosis hold what it says? Data whose labels are known, in bags made by chance and by columns.

python benchmarks/diagnose.py [--data FOLDER] [--seeds 1] [--systems random classes columns shuffled]

random: twenty systems; intervals should hold in at least eighteen. classes: bags differ in how common the
classes are. columns: eight systems of bags that a column or a cluster makes, some with labels permuted or
reversed inside the bags, which no total can show: no interval should miss. shuffled: random bags with the
proportions of others: no answer. Networks trained alike predict bags left out, in four folds; two to ten
seconds a system on one core. Adult needs FOLDER, and is skipped without it.
"""

import argparse
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from apportion.bags.bags import Bags
from apportion.bags.simulate import make_bags
from apportion.datasets.adult import adult, encode_rows, read_adult
from apportion.datasets.synthetic import blobs, digits, moons
from apportion.estimator import ProportionClassifier
from apportion.selection.bag_differences import features_for_tests
from apportion.selection.crossfit import assign_folds, cross_fit
from apportion.selection.diagnosis import Diagnosis, diagnose_bags

RANDOM: list[tuple[str, Any, int]] = [
    *((f"moons, {size}", moons, size) for size in (10, 20, 50, 167)),
    ("moons with noise 0.2, 20", partial(moons, noise=0.2), 20),
    ("moons with noise 0.4, 20", partial(moons, noise=0.4), 20),
    ("moons with noise 0.25, 12 bags of 50", partial(moons, n=600, noise=0.25), 50),
    *((f"blobs, {size}", blobs, size) for size in (8, 16, 32, 64)),
    ("blobs of 2 classes, 32", partial(blobs, classes=2), 32),
    ("blobs of 2 classes, 100", partial(blobs, classes=2), 100),
    ("blobs of 6 classes, 16", partial(blobs, classes=6), 16),
    *((f"digits, {size}", digits, size) for size in (8, 16, 32, 64)),
]
CLASSES: list[tuple[str, Any, int]] = [
    ("moons, 50", moons, 50),
    ("moons, 100", moons, 100),
    ("blobs, 64", blobs, 64),
    ("digits, 64", digits, 64),
]
ADULT_ROWS = 6000
OCCUPATION, EDUCATION = 6, 3


class System(NamedTuple):
    name: str
    bags: Bags
    hidden: torch.Tensor  # the labels, in the order of the bags


def random_systems(folder: Path | None, seed: int, kind: str = "random") -> Iterator[System]:
    for name, source, size in RANDOM if kind == "random" else CLASSES:
        data = source(seed)
        yield System(name, *make_bags(data.x, data.y, size, data.n_classes, seeded(seed), kind))
    if folder is None or kind != "random":
        return
    data = adult(folder)
    rows = torch.randperm(len(data.x), generator=seeded(seed))[:ADULT_ROWS]
    for size in (16, 64):
        yield System(f"Adult, {size}", *make_bags(data.x[rows], data.y[rows], size, 2, seeded(seed)))


def column_systems(folder: Path | None, seed: int) -> Iterator[System]:
    x, y, precinct, p = election(seed)
    yield System("votes by precinct", *bags_by(x, y, precinct))
    yield System("votes, permuted", *bags_by(x, reorder(y, precinct, seeded_scores(len(y), seed)), precinct))
    yield System("votes, reversed", *bags_by(x, reorder(y, precinct, -p), precinct))
    data = blobs(seed)
    bags, hidden = make_bags(data.x, data.y, 32, 4, seeded(seed), "cluster")
    yield System("blobs by cluster", bags, hidden)
    bag = torch.repeat_interleave(torch.arange(len(bags.sizes)), bags.sizes)
    permuted = reorder(hidden, bag, seeded_scores(len(bag), seed))
    yield System("blobs by cluster, permuted", bags, permuted)
    data = digits(seed)
    yield System("digits by cluster", *make_bags(data.x, data.y, 16, 10, seeded(seed), "cluster"))
    data = moons(seed)
    place = data.x[:, 0].argsort().argsort() * 20 // len(data.x)
    yield System("moons by place, reversed", *bags_by(data.x, reorder(data.y, place, data.x[:, 1]), place))
    if folder is not None:
        yield System("Adult by occupation and education", *adult_by_columns(folder, seed))


def election(seed: int, precincts: int = 100, each: int = 40) -> tuple[torch.Tensor, ...]:
    """Voters whose age and income differ by precinct: features, votes, precincts, and P(left)."""
    random = np.random.default_rng(seed)
    precinct = np.repeat(np.arange(precincts), each)
    age = random.normal(random.uniform(30, 65, precincts)[precinct], 13).clip(18, 90)
    income = random.lognormal(random.normal(1.0, 0.25, precincts)[precinct], 0.4)
    p = 1 / (1 + np.exp(-(1.2 - ((age - 45) / 18) ** 2 - 0.8 * (income - 3))))
    vote = (random.random(len(p)) < p).astype(int)
    x = np.column_stack([(age - 50) / 15, (income - 3) / 1.5]).astype(np.float32)
    return tuple(map(torch.from_numpy, (x, vote, precinct, p)))


def adult_by_columns(folder: Path, seed: int) -> tuple[Bags, torch.Tensor]:
    train, test = read_adult(folder)
    data = encode_rows(train, test)
    rows = torch.randperm(len(train), generator=seeded(seed))[:ADULT_ROWS].numpy()
    keys = np.array([f"{train[i][OCCUPATION]}, {train[i][EDUCATION]}" for i in rows])
    _, place, counts = np.unique(keys, return_inverse=True, return_counts=True)
    rows = rows[counts[place] >= 15]
    bag = np.unique(keys[counts[place] >= 15], return_inverse=True)[1]
    return bags_by(data.x[rows], data.y[rows], torch.from_numpy(bag))


def bags_by(x: torch.Tensor, y: torch.Tensor, bag: torch.Tensor) -> tuple[Bags, torch.Tensor]:
    order = bag.argsort(stable=True)
    sizes = torch.bincount(bag)
    one_hot = torch.nn.functional.one_hot(y[order]).double()
    shares = torch.segment_reduce(one_hot, "mean", lengths=sizes)
    return Bags(x[order], sizes, shares.float(), order, range(len(sizes))), y[order]


def reorder(y: torch.Tensor, bag: torch.Tensor, score: torch.Tensor) -> torch.Tensor:
    """The labels of every bag in the order of a score."""
    y = y.clone()
    for each in bag.unique():
        rows = (bag == each).nonzero().flatten()
        y[rows[score[rows].argsort()]] = y[rows].sort().values
    return y


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def seeded_scores(n: int, seed: int) -> torch.Tensor:
    return torch.rand(n, generator=seeded(seed))


def shuffle(system: System, seed: int) -> System:
    order = torch.randperm(len(system.bags.sizes), generator=seeded(seed))
    return system._replace(bags=replace(system.bags, proportions=system.bags.proportions[order]))


def judge(system: System, epochs: int) -> tuple[Diagnosis, float]:
    """The diagnosis, and the true accuracy."""
    bags = system.bags
    out = np.empty((len(bags.x), bags.n_classes))
    table = dict(zip(bags.ids, bags.proportions.numpy(), strict=True))
    model = ProportionClassifier("mlp", "dllp", None, epochs=epochs, random_state=0)
    for _ in cross_fit(model, bags.x.numpy(), bags, table, out):
        pass
    probabilities = torch.from_numpy(out)
    found = diagnose_bags(
        probabilities.clamp_min(1e-38).log(),
        bags,
        features=features_for_tests(bags.x),
        origin="cross_validated",
        fold_of_bag=assign_folds(bags, None, 0),
    )
    return found, float((probabilities.argmax(1) == system.hidden).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="the folder that `apportion data` fills")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--systems", nargs="+", default=["random", "classes", "columns", "shuffled"])
    parser.add_argument("--epochs", type=int, default=60)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print("| data, bags of | bags | differ by | answer | accuracy, estimated | between | bounds | true |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for kind in asked.systems:
        held = []
        answers = []
        for seed in asked.seeds:
            systems = {
                "random": partial(random_systems, asked.data, seed),
                "shuffled": partial(random_systems, asked.data, seed),
                "classes": partial(random_systems, asked.data, seed, "dirichlet"),
                "columns": partial(column_systems, asked.data, seed),
            }[kind]
            for system in systems():
                found, truth = judge(shuffle(system, seed) if kind == "shuffled" else system, asked.epochs)
                held.append(found.accuracy_low - 1e-6 <= truth <= found.accuracy_high + 1e-6)
                answers.append(found.supported)
                show(system.name, found, truth)
        print(f"{kind}: {sum(held)} of {len(held)} intervals hold, {sum(answers)} answers", flush=True)


def show(name: str, found: Diagnosis, truth: float) -> None:
    estimate = "" if math.isnan(found.accuracy) else f"{100 * found.accuracy:.1f}"
    ends = [found.accuracy_low, found.accuracy_high, found.accuracy_min, found.accuracy_max]
    low, high, least, most = (f"{100 * end:.1f}" for end in ends)
    cells = [name, len(found.bag_errors), found.differences, "yes" if found.supported else "no", estimate]
    cells += [f"{low} to {high}", f"{least} to {most}", f"{100 * truth:.1f}"]
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()

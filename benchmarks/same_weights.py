"""Do small fits still give the same weights, to the last bit, as they did at an earlier commit?

    python benchmarks/same_weights.py [BASE] [--only NAME] [--list]

Every case is fitted twice on this machine, each time in a process of its own: with the sources of the commit
BASE, checked out to a temporary folder, and with those of the repository that this script is in. Compared
are the weights, the predicted probabilities and, where there are any, the labels of the training rows and
the files that commands write. --only runs the cases whose names contain NAME and may be repeated. The exit
code is 1 if any case is different or fails. The first cases take ten seconds longer in a tree that has not
been run before, since the compiled code of transport is not yet kept beside it.

Cases are written with the current names of parameters, methods and options. `NAMES`, `METHODS` and `Api`
translate them for a tree that does not have these names yet: edit them when something else is renamed. What
a parameter is called is looked up in the tree, not in its version, so both trees may be of any age.
"""

import argparse
import functools
import importlib
import inspect
import io
import json
import multiprocessing
import os
import re
import runpy
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "250"}

# Imported once, before the cases are forked off; nothing of the package itself.
import numba  # noqa: E402, F401
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
import scipy.optimize  # noqa: E402, F401
import sklearn.datasets  # noqa: E402, F401
import torch  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402
from torch import nn  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[1]
BASE = "ccf5a05"
TIME_LIMIT = 120  # seconds per case

# ---------------------------------------------------------------------------------------------------------
# Translation: the current name, then the earlier ones. The first that the tree knows is used.

NAMES = {
    "model": ["backbone"],
    "method": ["first_stage"],
    "epochs": ["first_epochs"],
    "student_epochs": ["second_epochs"],
    "learning_rate": ["rate"],
    "student_learning_rate": ["second_rate"],
    "batch_size": ["instances_per_batch"],
    "horizontal_flip": ["mirror"],
    "validation_fraction": ["held_out"],
    "select_by": ["choose"],
    "known_labels": ["given"],
    # options of the command line alone
    "random_state": ["seed"],
    "normalize": ["normalise"],
    "std": ["noise"],
    "missing_bags": ["unlabeled", "unlabelled"],
    "missing_cells": ["fill"],
}
FLAGS = ["unlabeled", "unlabelled", "fill"]  # "allow" and "impute" were True
METHODS = {
    "count_likelihood": "counts",
    "llp_vat": "vat",
    "llp_gan": "gan",
    "two_views": "two-views",
}
MODULES_OF_METHODS = ["apportion.methods", "apportion.first_stage"]
# settings of a recipe: the first path that `apportion show` prints is used
RECIPE_SETTINGS = {
    "epochs": ["first.epochs", "teacher.epochs", "epochs"],
    "student_epochs": ["second.epochs", "student.epochs", "student_epochs"],
}


@dataclass
class Table:
    """Proportions of bags and what is known about them: apportion.Proportions, whether or not it exists."""

    table: Any
    kind: str = "shares"
    classes: Any = None
    std: Any = None
    normalize: bool = False
    missing_bags: str = "error"
    missing_cells: str = "error"

    def options(self) -> dict[str, Any]:
        """Those that are not at their defaults."""
        plain = Table(None)
        names = ("kind", "classes", "std", "normalize", "missing_bags", "missing_cells")
        return {name: getattr(self, name) for name in names if getattr(self, name) != getattr(plain, name)}


class Api:
    """How the tree that has been imported spells what the cases ask for."""

    def __init__(self) -> None:
        self.package = importlib.import_module("apportion")

    def spelled(self, name: str, known: Sequence[str]) -> str:
        return next((each for each in (name, *NAMES.get(name, [])) if each in known), name)

    @functools.cached_property
    def methods(self) -> Sequence[str]:
        for module in MODULES_OF_METHODS:
            try:
                return list(importlib.import_module(module).METHODS)
            except (ImportError, AttributeError):
                continue
        return list(METHODS)

    def settings(self, settings: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
        """Parameters of the estimator, or options of a command, by the names that are `known`."""
        made = {self.spelled(name, known): value for name, value in settings.items()}
        made |= {name: made[name] in ("allow", "impute") for name in FLAGS if name in made}
        method = self.spelled("method", known)
        if made.get(method) in METHODS and made[method] not in self.methods:
            made[method] = METHODS[made[method]]
        if "counts" in made and "counts" not in known:
            made |= {"proportions": made.pop("counts"), "kind": "counts"}
        if "pseudo_labels" in made and "pseudo_labels" not in known:
            labels = made.pop("pseudo_labels")
            made |= {"second_stage": "plot", "labels": labels} if labels else {"second_stage": None}
        return made

    def estimator(self, settings: Mapping[str, Any]) -> Any:
        return self.package.ProportionClassifier(**settings)

    @functools.cached_property
    def parameters(self) -> list[str]:
        return list(inspect.signature(self.package.ProportionClassifier.__init__).parameters)

    def fitted(self, case: "Fit") -> Any:
        """The estimator of a case, fitted."""
        settings = self.settings(case.settings, self.parameters)
        arguments: dict[str, Any] = {"bags": case.bags}
        fit = inspect.signature(self.package.ProportionClassifier.fit).parameters
        if case.known_labels is not None:
            arguments[self.spelled("known_labels", list(fit))] = case.known_labels
        if case.proportions is not None:
            if self.spelled("std", self.parameters) in self.parameters:
                made, more = self.former_tables(case.proportions)
                arguments |= made
                settings |= self.settings(more, self.parameters)
            else:
                arguments["proportions"] = self.proportions(case.proportions)
        return self.estimator(settings).fit(case.x, case.y, **arguments)

    def proportions(self, table: Any) -> Any:
        if isinstance(table, dict):
            return {name: self.proportions(each) for name, each in table.items()}
        return self.package.Proportions(table.table, **table.options()) if table.options() else table.table

    def former_tables(self, tables: "Table | dict[str, Table]") -> tuple[dict[str, Any], dict[str, Any]]:
        """Arguments of fit and parameters of the estimator, from before there was `Proportions`."""
        several = isinstance(tables, dict)
        named: dict[Any, Table] = tables if isinstance(tables, dict) else {None: tables}
        arguments: dict[str, Any] = {}
        for name, each in named.items():
            kind = "counts" if each.kind == "counts" else "proportions"
            if several:
                arguments.setdefault(kind, {})[name] = each.table
            else:
                arguments[kind] = each.table
            if each.classes is not None:
                arguments["classes"] = each.classes
        levels = {name: each.std for name, each in named.items() if each.std is not None}
        first = next(iter(named.values()))
        return arguments, {
            "std": (levels or None) if several else first.std,
            "normalize": first.normalize,
            "missing_bags": first.missing_bags,
            "missing_cells": first.missing_cells,
        }

    def condition(self, probabilities: np.ndarray, bags: Any, table: Any, classes: Any) -> np.ndarray:
        """condition_on_proportions, once called meet."""
        name = next(n for n in ("condition_on_proportions", "meet") if hasattr(self.package, n))
        function = getattr(self.package, name)
        if "classes" in inspect.signature(function).parameters:
            return function(probabilities, bags, table, classes=classes)
        return function(probabilities, bags, self.package.Proportions(table, classes=classes))

    @functools.cache  # noqa: B019
    def options(self, command: str) -> list[str]:
        """The options of a command, as parameters: learning_rate for --learning-rate."""
        found = re.findall(r"--([a-z][a-z-]+)", run_command(command, "--help"))
        return [name.replace("-", "_") for name in found]

    def command(self, command: str, *arguments: str, **options: Any) -> str:
        """Run a command; an option of several values is repeated, and one of True is a flag."""
        words = [command, *arguments]
        for name, value in self.settings(options, self.options(command)).items():
            option = "--" + name.replace("_", "-")
            if value is False:
                words.append(option.replace("--", "--no-", 1))
            elif value is True:
                words.append(option)
            else:
                for each in value if isinstance(value, list) else [value]:
                    words += [option, "none" if each is None else str(each)]
        return run_command(*words)

    def recipe(self, name: str) -> str:
        """The name of a recipe of digits/METHOD/16 or the like."""
        listed = run_command("list").split()
        group, method, size = name.split("/")
        first, _, rest = method.partition("+")
        former = METHODS.get(first, first) + ("+" + rest if rest else "")
        return next((n for n in (name, f"{group}/{former}/{size}") if n in listed), name)

    def recipe_settings(self, recipe: str, **settings: int) -> list[str]:
        """What --set is given so that a recipe has these settings."""
        shown = json.loads(run_command("show", recipe))
        return [
            f"{next(path for path in RECIPE_SETTINGS[name] if has(shown, path))}={value}"
            for name, value in settings.items()
        ]


def has(values: Any, path: str) -> bool:
    """Whether nested dicts have a value at a path such as second.epochs."""
    for name in path.split("."):
        if not isinstance(values, dict) or name not in values:
            return False
        values = values[name]
    return True


def run_command(*words: str) -> str:
    """What a command of apportion prints; it runs in this process."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["apportion", *words]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            runpy.run_module("apportion", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code:
            said = " ".join((err.getvalue() or out.getvalue()).split())
            raise RuntimeError(f"apportion {' '.join(words)}: {said}") from None
    finally:
        sys.argv = before
    return out.getvalue()


# ---------------------------------------------------------------------------------------------------------
# Data

SHORT = {"epochs": 12, "student_epochs": 8, "random_state": 0, "device": "cpu"}
SHORT_IMAGES = SHORT | {"epochs": 4, "student_epochs": 4}
Result = dict[str, list[np.ndarray]]  # what was found, by kind: weights, probabilities, …


@dataclass
class Fit:
    """A fit of the estimator on arrays."""

    x: Any
    y: Any = None
    bags: Any = None
    proportions: Any = None  # a Table, or one per grouping
    known_labels: Any = None
    settings: dict[str, Any] = field(default_factory=dict)
    conditioned: bool = False  # compare probabilities given the proportions too

    def run(self, api: Api, folder: Path) -> Result:
        short = SHORT_IMAGES if np.ndim(self.x) == 4 else SHORT
        model = api.fitted(replace(self, settings=short | self.settings))
        found = {
            "weights": weights_of(model),
            "probabilities": [model.predict_proba(self.x)],
            "labels of the training rows": [np.asarray(model.transduction_)],
        }
        if self.conditioned:
            given = api.condition(
                found["probabilities"][0], self.bags, self.proportions.table, model.classes_
            )
            found["probabilities given the proportions"] = [given]
        return found


def weights_of(model: Any) -> list[np.ndarray]:
    """Weights of the network that a fitted estimator has, whatever the attribute is called."""
    network = next(value for value in vars(model).values() if isinstance(value, nn.Module))
    return [value.detach().cpu().numpy() for value in network.state_dict().values()]


@dataclass
class Problem:
    """Rows or images with hidden classes, in bags."""

    x: np.ndarray
    y: np.ndarray
    bags: np.ndarray

    @property
    def classes(self) -> list[Any]:
        return np.unique(self.y).tolist()

    def counts(self) -> dict[Any, list[int]]:
        return {
            bag: [int(((self.bags == bag) & (self.y == name)).sum()) for name in self.classes]
            for bag in np.unique(self.bags).tolist()
        }

    def shares(self) -> dict[Any, list[float]]:
        return {bag: (np.array(row) / sum(row)).tolist() for bag, row in self.counts().items()}

    def by_class(self) -> dict[Any, dict[Any, float]]:
        return {bag: dict(zip(self.classes, row, strict=True)) for bag, row in self.shares().items()}


def rows(classes: Sequence[Any] = ("no", "yes"), sizes: Sequence[int] = (10,) * 24) -> Problem:
    """Normal clouds, one per class; bags differ in how often they have each class."""
    random = np.random.default_rng(len(sizes))
    bags = np.repeat([f"b{i:02d}" for i in range(len(sizes))], sizes)
    shares = random.dirichlet(np.ones(len(classes)), len(sizes)).repeat(sizes, 0)
    code = (shares.cumsum(1) < random.random((len(bags), 1))).sum(1)
    x = random.normal(size=(len(bags), 5)) + 1.5 * random.normal(size=(len(classes), 5))[code]
    return Problem(x.astype(np.float32), np.array(classes)[code], bags)


def images(shape: tuple[int, int, int], n: int = 64, size: int = 8) -> Problem:
    """Noise, brighter in the upper or in the lower half."""
    random = np.random.default_rng(n)
    y = (random.random(n) < np.linspace(0.1, 0.9, n // size).repeat(size)).astype(int)
    x = random.integers(0, 160, (n, *shape))
    half = shape[1] // 2
    x[y == 0, :, :half] += 80
    x[y == 1, :, half:] += 80
    return Problem(x.astype(np.uint8), y, np.arange(n) // size)


def in_bags(problem: Problem, *, conditioned: bool = False, **settings: Any) -> Fit:
    """A fit from the shares of the bags."""
    table = Table(problem.by_class())
    return Fit(problem.x, bags=problem.bags, proportions=table, settings=settings, conditioned=conditioned)


# ---------------------------------------------------------------------------------------------------------
# Cases: the estimator

Case = Callable[[Api, Path], Result]
CASES: dict[str, Case] = {}


def estimator_cases() -> Iterator[tuple[str, Fit]]:
    two, three = rows(), rows(("a", "b", "c"))
    yield "labels in bags", Fit(two.x, two.y, two.bags)
    yield "labels without bags", Fit(two.x, two.y)
    yield "shares, all defaults", in_bags(two, epochs=None, student_epochs=None, conditioned=True)
    yield "shares in the order of the bags", Fit(two.x, bags=two.bags, proportions=Table(two.shares()))
    per_row = np.array([two.shares()[bag] for bag in two.bags])
    yield "shares on every row", Fit(two.x, per_row, two.bags)
    yield "counts", Fit(two.x, bags=two.bags, proportions=Table(two.counts(), "counts", ["no", "yes"]))
    yield "three classes", in_bags(three, conditioned=True)
    yield "three classes, one stage", in_bags(three, pseudo_labels=None)
    for labels in ("soft", "hard", "predicted", "argmax"):
        yield f"{labels} labels", in_bags(three, pseudo_labels=labels, reg=0.5)
    yield (
        "learning rates and batches",
        in_bags(two, learning_rate=5e-3, student_learning_rate=2e-3, batch_size=40),
    )

    towns = Table(two.by_class())
    ages = Problem(two.x, two.y, np.arange(len(two.x)) * 7 % 6)
    groupings = {"town": two.bags, "age": ages.bags}
    yield (
        "two groupings",
        Fit(two.x, bags=groupings, proportions={"town": towns, "age": Table(ages.by_class())}),
    )
    yield (
        "two groupings, one noisy",
        Fit(two.x, bags=groupings, proportions={"town": towns, "age": Table(ages.by_class(), std=0.05)}),
    )

    random = np.random.default_rng(5)
    off = {bag: (np.array(row) + random.normal(0, 0.03, 2)).tolist() for bag, row in two.shares().items()}
    noisy = {
        bag: (np.array(row) + random.normal(0, 1, 3).round()).tolist() for bag, row in three.counts().items()
    }
    percent = {
        bag: (100 * np.array(row) + random.uniform(0, 2, 3)).round().tolist()
        for bag, row in three.shares().items()
    }
    half = dict(list(three.by_class().items())[:12])
    gaps = {
        bag: {name: share for j, (name, share) in enumerate(row.items()) if (i + j) % 3 and (i % 2 or j)}
        for i, (bag, row) in enumerate(three.by_class().items())
    }
    yield "noise of a known deviation", Fit(two.x, bags=two.bags, proportions=Table(off, std=0.03))
    yield (
        "noise estimated from counts",
        Fit(three.x, bags=three.bags, proportions=Table(noisy, "counts", ["a", "b", "c"], std="estimate")),
    )
    yield "rescaled to sum to one", Fit(three.x, bags=three.bags, proportions=Table(percent, normalize=True))
    yield "missing bags", Fit(three.x, bags=three.bags, proportions=Table(half, missing_bags="allow"))
    yield "missing cells", Fit(three.x, bags=three.bags, proportions=Table(gaps, missing_cells="impute"))
    yield "known labels", Fit(
        three.x, bags=three.bags, proportions=Table(three.by_class()),
        known_labels={i: three.y[i] for i in range(0, len(three.y), 12)},
    )  # fmt: skip
    chosen = {"validation_fraction": 0.25, "select_by": "likelihood", "calibrate": True}
    yield "validation bags, epoch selection, calibration", in_bags(three, **chosen)
    ragged = rows(("a", "b", "c"), sizes=(1, 1, 2, 3, 5, 8, 13, 90, 700))
    yield "ragged bags", in_bags(ragged)
    yield "ragged bags, larger than a batch", in_bags(ragged, batch_size=64)
    frame = pd.DataFrame(two.x.astype(np.float64), columns=list("vwxyz"))
    yield "a data frame of numbers", replace(in_bags(two), x=frame)
    yield "a network of one's own", in_bags(two, model=own_network)

    grey, color, digits = images((1, 8, 8)), images((3, 8, 8)), images((1, 28, 28), n=32)
    yield "images, all but epochs by default", in_bags(color)
    yield "images, all but epochs by default, 28 x 28", in_bags(digits, epochs=2, horizontal_flip=False)
    yield "images, hard labels", in_bags(grey, pseudo_labels="hard")
    yield (
        "images, rows of all bags in a batch",
        in_bags(images((1, 8, 8), size=32), batch_size=16, pseudo_labels="hard"),
    )
    large = images((3, 12, 12), n=32)
    yield "images, conv13", in_bags(large, model="conv13", epochs=2, method="dllp", pseudo_labels=None)
    yield (
        "images, validation bags and known labels",
        replace(in_bags(grey, method="dllp", **chosen), known_labels={i: grey.y[i] for i in range(0, 64, 9)}),
    )
    for method in ("dllp", "count_likelihood", "llp_vat", "llp_gan", "rot"):
        yield f"{method} on rows", in_bags(three, method=method)
        yield f"{method} on images", in_bags(grey, method=method, pseudo_labels=None)


def own_network(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(1), nn.Linear(shape[0], 16), nn.Tanh(), nn.Linear(16, n_classes))


# ---------------------------------------------------------------------------------------------------------
# Cases: commands


@dataclass
class Commands:
    """`apportion fit` in a folder of small files, and `apportion predict` with its model."""

    options: dict[str, Any]
    given: bool = False  # predict with the proportions of the bags too
    table: str = "people.csv"

    def run(self, api: Api, folder: Path) -> Result:
        (write_images if self.table == "images.csv" else write_people)(folder)
        short = {"epochs": 6, "student_epochs": 6, "device": "cpu", "out": "model"}
        api.command("fit", self.table, **(short | self.options))
        api.command("predict", "model", self.table, out="scored.parquet", device="cpu")
        if self.given:
            about = (
                "bag",
                "proportions",
                "counts",
                "key",
                "std",
                "normalize",
                "missing_bags",
                "missing_cells",
            )
            known = {name: value for name, value in self.options.items() if name in about}
            api.command("predict", "model", self.table, out="given.parquet", device="cpu", **known)
        return saved(folder)


def write_people(folder: Path) -> None:
    """Rows with numbers, text, dates and booleans, some missing; files of shares and counts of their bags."""
    import polars as pl

    two = rows(sizes=(15,) * 16)
    n, random = len(two.x), np.random.default_rng(1)
    text = np.where(two.x[:, 1] > 0, "clerk", np.where(two.x[:, 2] > 0, "nurse", "cook, or baker")).tolist()
    numbers = two.x[:, 0].round(3).astype(float).tolist()
    ages = (np.arange(n) * 7 % 5).tolist()
    lost = random.random((n, 2)) < 0.1
    day = np.datetime64("2024-01-01") + (40 * two.x[:, 3]).astype(int)
    people = pl.DataFrame(
        {
            "town": two.bags.tolist(),
            "age": [f"{age}0s" for age in ages],
            "income": [None if gone else value for gone, value in zip(lost[:, 0], numbers, strict=True)],
            "job": [None if gone else value for gone, value in zip(lost[:, 1], text, strict=True)],
            "since": pl.Series(day.astype("datetime64[D]")).cast(pl.Date),
            "owner": (two.x[:, 4] > 0).tolist(),
            "rooms": random.integers(1, 6, n).tolist(),
            "vote": [name if i % 11 == 0 else None for i, name in enumerate(two.y.tolist())],
        }
    )
    people.write_csv(folder / "people.csv")
    people.write_parquet(folder / "people.parquet")
    by_age = Problem(two.x, two.y, np.array([f"{age}0s" for age in ages]))
    for key, problem in {"town": two, "age": by_age}.items():
        write_table(folder / f"{key}_shares.csv", key, problem.shares())
        write_table(folder / f"{key}_counts.csv", key, problem.counts())
    off = {bag: [no + (i % 3 - 1), yes - (i % 2)] for i, (bag, (no, yes)) in enumerate(two.counts().items())}
    write_table(folder / "noisy_counts.csv", "town", off)
    percent = {bag: [round(100 * share) for share in row] for bag, row in two.shares().items()}
    write_table(folder / "percent.csv", "town", percent)
    some = {
        bag: [None, row[1]] if i % 4 else row for i, (bag, row) in enumerate(two.shares().items()) if i % 5
    }
    write_table(folder / "some_shares.csv", "town", some)


def write_table(
    path: Path, key: str, table: Mapping[Any, Sequence[Any]], names: Sequence[str] = ("no", "yes")
) -> None:
    import polars as pl

    columns = {name: [row[j] for row in table.values()] for j, name in enumerate(names)}
    pl.DataFrame({key: list(table)} | columns, strict=False).write_csv(path)


def write_images(folder: Path) -> None:
    """Small PNG files, a table that lists them, and the shares of their bags."""
    import polars as pl
    from PIL import Image

    made = images((3, 12, 12), n=48, size=6)
    (folder / "png").mkdir()
    for i, image in enumerate(made.x):
        Image.fromarray(image.transpose(1, 2, 0)).save(folder / "png" / f"{i}.png")
    files = [f"png/{i}.png" for i in range(len(made.x))]
    slides = [f"s{bag}" for bag in made.bags]
    pl.DataFrame({"slide": slides, "file": files}).write_csv(folder / "images.csv")
    shares = {f"s{bag}": row for bag, row in made.shares().items()}
    write_table(folder / "slide_shares.csv", "slide", shares, ("upper", "lower"))


def saved(folder: Path) -> Result:
    """Weights of all safetensors files and columns of all predictions below a folder."""
    import polars as pl

    files = sorted(folder.rglob("*.safetensors"))
    found: Result = {"weights": [each for path in files for each in load_file(path).values()]}
    for path in sorted(folder.glob("*.parquet")):
        if path.stem in ("scored", "given"):
            frame = pl.read_parquet(path)
            found[path.name] = [as_array(frame[name]) for name in frame.columns]
    arrays = [np.load(path) for path in sorted(folder.rglob("log_probs.npy"))]
    return found | ({"probabilities": arrays} if arrays else {})


def as_array(column: Any) -> np.ndarray:
    """A column of numbers as it is, any other as text."""
    values = column.to_numpy()
    return values if values.dtype.kind in "fiub" else np.array([str(value) for value in column.to_list()])


def command_cases() -> Iterator[tuple[str, Commands]]:
    town = {"bag": "town", "drop": "vote,age", "proportions": "town_shares.csv"}
    counts = {"bag": "town", "drop": "vote,age", "counts": "town_counts.csv"}
    parquet = "people.parquet"
    yield "CSV, shares", Commands(town, given=True)
    yield (
        "Parquet, shares, more epochs",
        Commands(town | {"epochs": 40, "student_epochs": 20}, given=True, table=parquet),
    )
    yield (
        "Parquet, counts, another method",
        Commands(
            counts | {"method": "count_likelihood", "pseudo_labels": "hard", "learning_rate": 0.005},
            table=parquet,
        ),
    )
    yield "CSV, noise of a known deviation", Commands(town | {"std": 0.05}, given=True)
    yield (
        "CSV, noise estimated from counts",
        Commands(counts | {"counts": "noisy_counts.csv", "std": "estimate"}),
    )
    yield (
        "Parquet, rescaled percentages",
        Commands(town | {"proportions": "percent.csv", "normalize": True}, given=True, table=parquet),
    )
    yield (
        "CSV, missing bags and cells",
        Commands(
            town | {"proportions": "some_shares.csv", "missing_bags": "allow", "missing_cells": "impute"}
        ),
    )
    yield "CSV, known labels", Commands(town | {"drop": "age", "known_labels": "vote"})
    yield "Parquet, two groupings", Commands(
        {"bag": ["town", "age"], "proportions": ["town_shares.csv", "age_shares.csv"], "drop": "vote"},
        given=True, table=parquet,
    )  # fmt: skip
    yield (
        "CSV, validation bags, epoch selection, calibration",
        Commands(town | {"validation_fraction": 0.25, "select_by": "likelihood", "calibrate": True}),
    )
    slides = {"bag": "slide", "proportions": "slide_shares.csv", "image": "file", "pixels": 8}
    yield "PNG images", Commands(slides, given=True, table="images.csv")
    yield (
        "PNG images, two stages",
        Commands(
            slides | {"method": "dllp", "pseudo_labels": "hard", "horizontal_flip": False}, table="images.csv"
        ),
    )


@dataclass
class Run:
    """A recipe of the experiments, shortened."""

    recipe: str
    epochs: dict[str, int]

    def run(self, api: Api, folder: Path) -> Result:
        name = api.recipe(self.recipe)
        words = [word for setting in api.recipe_settings(name, **self.epochs) for word in ("--set", setting)]
        run_command("run", name, "--out", "runs", "--device", "cpu", *words)
        return saved(folder)


def run_cases() -> Iterator[tuple[str, Run]]:
    both = {"epochs": 2, "student_epochs": 2}
    for method in ("dllp", "count_likelihood", "llp_vat", "llp_gan", "rot"):
        yield f"digits/{method}/16", Run(f"digits/{method}/16", {"epochs": 2})
    yield "digits/dllp+plot/16", Run("digits/dllp+plot/16", both)
    for name in ("two_views", "dllp+plot-soft", "dllp+plot-sce-mixup"):
        yield f"smoke/{name}/50", Run(f"smoke/{name}/50", {"epochs": 2})


CASES |= {f"estimator: {name}": case.run for name, case in estimator_cases()}
CASES |= {f"apportion fit: {name}": case.run for name, case in command_cases()}
CASES |= {f"apportion run: {name}": case.run for name, case in run_cases()}


# ---------------------------------------------------------------------------------------------------------
# Running and comparing


@dataclass
class Outcome:
    found: Result | None
    seconds: float
    problem: str = ""


def child(name: str, tree: Path, pipe: Connection) -> None:
    """Run one case with the sources of one tree, and send what it found."""
    source = tree / "src"
    sys.path.insert(0, str(source))
    os.environ["PYTHONPATH"] = str(source)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    started = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory() as folder, redirect_stderr(io.StringIO()):
            os.chdir(folder)
            api = Api()
            place = Path(str(api.package.__file__))
            if source not in place.parents:
                raise RuntimeError(f"apportion was imported from {place}, not from {source}")
            found = CASES[name](api, Path(folder))
        outcome = Outcome(found, time.perf_counter() - started)
    except BaseException as problem:  # noqa: BLE001
        said = " ".join(str(problem).split())
        outcome = Outcome(None, time.perf_counter() - started, f"{type(problem).__name__}: {said}")
    pipe.send(outcome)
    pipe.close()


def run_case(name: str, tree: Path) -> Outcome:
    """The case in a process of its own, which has the libraries in memory already."""
    context, started = multiprocessing.get_context("fork"), time.perf_counter()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(name, tree, sender))
    process.start()
    sender.close()
    try:
        if not receiver.poll(TIME_LIMIT):
            process.kill()
            return Outcome(None, TIME_LIMIT, f"not done after {TIME_LIMIT} seconds")
        return receiver.recv()
    except EOFError:
        process.join()
        return Outcome(None, time.perf_counter() - started, f"the process ended with {process.exitcode}")
    finally:
        process.join()


def largest_difference(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> str:
    kinds = [[(each.shape, each.dtype.kind) for each in arrays] for arrays in (one, other)]
    if kinds[0] != kinds[1]:
        return "different shapes or types"
    largest, changed = 0.0, 0
    for a, b in zip(one, other, strict=True):
        if a.dtype.kind == "f" and a.size:
            largest = max(largest, float(np.nanmax(np.abs(a.astype(np.float64) - b))))
        else:
            changed += int((a != b).sum())
    return f"max abs difference {largest:.3g}" + (f", {changed} labels" if changed else "")


def same_bits(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> bool:
    return [bits(each) for each in one] == [bits(each) for each in other]


def bits(array: np.ndarray) -> tuple[Any, ...]:
    return array.shape, array.dtype.str, np.ascontiguousarray(array).tobytes()


def verdict(base: Outcome, now: Outcome) -> str:
    """One of: identical, DIFFERENT (where and by how much), failed (why)."""
    problems = [f"{what}: {each.problem}" for what, each in (("base", base), ("now", now)) if each.problem]
    if base.found is None or now.found is None:
        return f"failed ({'; '.join(problems)})"
    if not base.found["weights"]:
        return "failed (no weights were found)"
    parts = [
        f"{what}: {largest_difference(base.found.get(what, []), now.found.get(what, []))}"
        for what in base.found | now.found
        if not same_bits(base.found.get(what, []), now.found.get(what, []))
    ]
    return f"DIFFERENT ({'; '.join(parts)})" if parts else "identical"


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A worktree of a commit in a temporary folder."""

    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(REPOSITORY), "worktree", *words], check=True)  # noqa: S607

    with tempfile.TemporaryDirectory(prefix="apportion-") as folder:
        tree = Path(folder) / "base"
        git("add", "--quiet", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            git("remove", "--force", str(tree))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", nargs="?", default=BASE, metavar="BASE")
    parser.add_argument("--only", action="append", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="list the cases")
    arguments = parser.parse_args()
    names = [name for name in CASES if any(part in name for part in arguments.only or [""])]
    if arguments.list or not names:
        sys.exit("\n".join(names or CASES) if names else f"no such case; there are\n{chr(10).join(CASES)}")
    counts = {"identical": 0, "DIFFERENT": 0, "failed": 0}
    started = time.perf_counter()
    with checked_out(arguments.base) as base:
        for name in names:
            outcomes = [run_case(name, tree) for tree in (base, REPOSITORY)]
            said = verdict(*outcomes)
            counts[said.split()[0]] += 1
            seconds = "  ".join(f"{outcome.seconds:5.1f} s" for outcome in outcomes)
            print(f"{seconds}  {name}: {said}", flush=True)
    total = ", ".join(f"{count} {what.lower()}" for what, count in counts.items())
    print(f"{total}; {time.perf_counter() - started:.0f} s")
    sys.exit(int(counts["identical"] < len(names)))


if __name__ == "__main__":
    main()

"""The leaderboard: every method on the same bags, with the same network and the same budget.

python benchmarks/leaderboard.py [--data FOLDER] [--only METHOD …] [--cells DATA/BAGGING/SIZE …] [--page]

Trains what results/leaderboard.jsonl does not have yet, one line per training, and writes docs/leaderboard.md
from it. Stopped at any moment, the same command continues. Everything takes about ten minutes of one core.
Data sets that are not in the folder are left out; `apportion data fetch mnist adult` downloads them. With
`--import my_module` the methods that a module registers take part; `--page` only writes the page.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from apportion._random import reseed, stream
from apportion.augment import views
from apportion.bags.bags import Bags
from apportion.bags.simulate import make_bags
from apportion.datasets import Instances, load_dataset
from apportion.defaults import default_warmup_epochs
from apportion.errors import DataError, TrainingError
from apportion.evaluate import accuracy, predict_log_proba
from apportion.methods import METHODS, is_linear, make_learner, takes_pairs, title_of
from apportion.networks import mlp
from apportion.optim import make_optimizer, one_cycle
from apportion.pipeline import EpochState, first_stage, second_stage
from apportion.pseudo_labels import soft_labels
from apportion.selection.scores import SCORES

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "results" / "leaderboard.jsonl"
PAGE = ROOT / "docs" / "leaderboard.md"
CPU = torch.device("cpu")

RATES = (2e-3, 8e-3)
TUNING_SEED = 0
SEEDS = (11, 12, 13)
SUPERVISED = "supervised"  # DLLP with bags of one row
WITH_STUDENT = "dllp+plot"  # half of the epochs for DLLP, half for a student on soft labels
LONGER = "dllp+plot, twice the budget"  # as many epochs for each of the two stages
NOT_COMPARED = (SUPERVISED, LONGER)
OPTIONS: dict[str, dict[str, Any]] = {"llp_gan": {"weight": 10.0}}  # with 1 its other terms drown ten classes


@dataclass(frozen=True)
class Setting:
    """What all methods share on a data set."""

    rows: int | None  # of the training part, drawn once; None: all
    epochs: int
    batch_size: int  # rows, at least eight bags
    widths: tuple[int, ...]  # of the mlp


SETTINGS = {
    "digits": Setting(None, 60, 256, (128, 128, 128)),
    "mnist": Setting(6000, 20, 512, (256, 256)),
    "adult": Setting(10_000, 20, 512, (128, 128)),
}


@dataclass(frozen=True)
class Cell:
    """One column of the table: bags of one data set."""

    data: str
    bagging: str
    size: int

    def __str__(self) -> str:
        return f"{self.data}/{self.bagging}/{self.size}"


CELLS = (
    Cell("digits", "random", 16),
    Cell("digits", "random", 64),
    Cell("digits", "cluster", 64),
    Cell("adult", "random", 64),
    Cell("adult", "cluster", 64),
    Cell("mnist", "random", 64),
    Cell("mnist", "cluster", 64),
)


# --- one training


@cache
def load(name: str, folder: Path | None) -> Instances:
    """A data set with the rows that all methods learn from, and all of its test part."""
    data = load_dataset(name, folder, 0)
    rows = SETTINGS[name].rows
    if rows is None:
        return data
    chosen = torch.randperm(len(data.x), generator=stream(0, "leaderboard", name))[:rows]
    return replace(data, x=data.x[chosen], y=data.y[chosen])


def train(
    method: str, data: Instances, bags: Bags, setting: Setting, size: int, rate: float, seed: int
) -> tuple[nn.Module, Any]:
    """The trained classifier, and what prepares instances for it."""
    base = "dllp" if method in (SUPERVISED, WITH_STUDENT, LONGER) else method
    augment, prepare = views(data.mean, data.std, CPU, view_name(base, data))
    if data.x.ndim == 4 and not takes_pairs(base):  # generators of rows are small, those of images are not
        bags = replace(bags, x=prepare(bags.x).flatten(1))
        augment = unchanged
    shape = bags.x.shape[1:]
    epochs = setting.epochs // 2 if method == WITH_STUDENT else setting.epochs
    batch_size = max(setting.batch_size, 8 * size)
    reseed(seed, "first", "weights")
    classifier = mlp(shape, data.n_classes, () if is_linear(base) else setting.widths)
    learner = make_learner(base, classifier, bags, options=OPTIONS.get(base))
    first, *others = learner.networks()
    optimizers = [make_optimizer(first, "adam", rate)]
    optimizers += [make_optimizer(each, "adam", 3e-4, momentum=0.5) for each in others]
    options: dict[str, Any] = {"schedule": one_cycle, "seed": seed, "batch_size": batch_size}
    finish(first_stage(learner, bags, optimizers, epochs=epochs, augment=augment, **options))
    if method not in (WITH_STUDENT, LONGER):
        return learner.classifier, prepare
    log_probs = predict_log_proba(learner.classifier, bags.x)
    reseed(seed, "second", "weights")
    student = mlp(shape, data.n_classes, setting.widths)
    optimizers = [make_optimizer(student, "adam", rate)]
    # after one epoch of three steps, the student's predictions would make poor labels
    options |= {"warmup_epochs": default_warmup_epochs("table", epochs), "label": soft_labels}
    finish(second_stage(log_probs, student, bags, optimizers, epochs=epochs, **options))
    return student, prepare


def view_name(method: str, data: Instances) -> str:
    if not takes_pairs(method):
        return "none"
    return "weak+strong-unmirrored" if data.mean else "weak+strong"


def unchanged(x: Tensor) -> Tensor:
    return x


def finish(states: Iterator[EpochState]) -> None:
    for _ in states:
        pass


def run(cell: Cell, method: str, rate: float, seed: int, folder: Path | None) -> dict[str, Any]:
    """One line of the results. For the tuning seed it has the score of held-out bags and no accuracy."""
    data = load(cell.data, folder)
    size = 1 if method == SUPERVISED else cell.size
    generator = stream(seed, "bags", cell.bagging, size)
    bagging = "random" if method == SUPERVISED else cell.bagging
    bags, _ = make_bags(data.x, data.y, size, data.n_classes, generator, bagging)
    line: dict[str, Any] = {"cell": str(cell), "method": method, "rate": rate, "seed": seed}
    held_out = None
    if seed == TUNING_SEED:
        order = torch.randperm(len(bags.sizes), generator=generator)
        held_out = bags.select(order[: len(order) // 5])
        bags = bags.select(order[len(order) // 5 :])
    started = time.process_time()
    try:
        classifier, prepare = train(method, data, bags, SETTINGS[cell.data], size, rate, seed)
    except TrainingError:
        return line | {"diverged": True}
    line["seconds"] = round(time.process_time() - started, 1)
    if held_out is not None:
        log_probs = predict_log_proba(classifier, held_out.x, prepare)
        return line | {"score": round(SCORES["likelihood"](log_probs, held_out), 5)}
    log_probs = predict_log_proba(classifier, data.test_x, prepare)
    return line | {"accuracy": round(100 * accuracy(log_probs, data.test_y), 2)}


# --- all of them


def all_methods() -> list[str]:
    return [SUPERVISED, *METHODS, WITH_STUDENT, LONGER]


def wanted(cells: list[Cell], methods: list[str], lines: list[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    """What is still to be trained; the rate of a method is known once its tuning is done."""
    done = {(line["cell"], line["method"], line["rate"], line["seed"]) for line in lines}
    for cell in cells:
        for method in methods:
            for rate in RATES:
                if (str(cell), method, rate, TUNING_SEED) not in done:
                    yield cell, method, rate, TUNING_SEED
            rate = best_rate(lines, str(cell), method)
            for seed in SEEDS:
                if rate is not None and (str(cell), method, rate, seed) not in done:
                    yield cell, method, rate, seed


def best_rate(lines: list[dict[str, Any]], cell: str, method: str) -> float | None:
    """The learning rate with the best score of held-out bags, once both have one."""
    tuning = [
        line for line in lines
        if (line["cell"], line["method"], line["seed"]) == (cell, method, TUNING_SEED)
    ]  # fmt: skip
    if len(tuning) < len(RATES):
        return None
    return max(tuning, key=lambda line: line.get("score", -torch.inf))["rate"]


def read_lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RUNS.read_text().splitlines()] if RUNS.exists() else []


# --- the page

# Percent on the test part, as printed. Other networks, budgets and bags than ours, so they show the order of
# methods at most.
PUBLISHED_CIFAR = {  # CIFAR-10, random bags of 64
    "dllp": "71.11 ¹, 79.76 ², 75.23 ³",
    "llp_vat": "70.53 ¹, 78.75 ²",
    "llp_gan": "77.21 ¹, 77.71 ³",
    "rot": "93.97 ²",
    "count_likelihood": "68.35 ² (another count loss)",
    "llp_mm": "84.13 ³",
    "easy_llp": "about 10.9, diverged ⁴",
    WITH_STUDENT: "79.69 ¹",
}


TITLES = {WITH_STUDENT: "DLLP + PLOT", LONGER: "DLLP + PLOT, twice the budget"}


def table(lines: list[dict[str, Any]]) -> Iterator[str]:
    """Mean accuracy of the seeds by method and cell, with the standard deviation of the seeds."""
    cells = [cell for cell in CELLS if any(line["cell"] == str(cell) for line in lines)]
    heads = [f"{cell.data}, {cell.bagging} {cell.size}" for cell in cells]
    yield f"| method | {' | '.join(heads)} | mean rank | published, CIFAR-10, random 64 |"
    yield f"|---|{'---|' * (len(cells) + 2)}"
    results = {m: [accuracies(lines, str(cell), m) for cell in cells] for m in all_methods()}
    compared = [m for m, values in results.items() if m not in NOT_COMPARED and any(values)]
    ranks = mean_ranks({m: results[m] for m in compared})
    best = [max((statistics.fmean(results[m][i]) for m in compared if results[m][i]), default=0.0)
            for i in range(len(cells))]  # fmt: skip
    for method in [SUPERVISED, *sorted(compared, key=lambda m: ranks[m]), LONGER]:
        texts = []
        for i, values in enumerate(results[method]):
            top = bool(values) and method in compared and statistics.fmean(values) == best[i]
            texts.append(show_values(values, top))
        rank = f"{ranks[method]:.1f}" if method in compared else ""
        name = TITLES.get(method) or title_of(method)
        yield f"| {name} | {' | '.join(texts)} | {rank} | {PUBLISHED_CIFAR.get(method, '')} |"


def accuracies(lines: list[dict[str, Any]], cell: str, method: str) -> list[float]:
    rate = best_rate(lines, cell, method)
    return [
        line.get("accuracy", 0.0) for line in lines
        if (line["cell"], line["method"], line["rate"]) == (cell, method, rate) and line["seed"] in SEEDS
    ]  # fmt: skip


def mean_ranks(results: dict[str, list[list[float]]]) -> dict[str, float]:
    """The mean rank of each method over the cells (1: the best)."""
    ranks: dict[str, list[int]] = {method: [] for method in results}
    for values in zip(*results.values(), strict=True):
        means = [statistics.fmean(each) if each else -1.0 for each in values]
        for method, mean in zip(results, means, strict=True):
            if mean >= 0:
                ranks[method].append(1 + sum(other > mean for other in means))
    return {method: statistics.fmean(each) if each else float("inf") for method, each in ranks.items()}


def show_values(values: list[float], top: bool) -> str:
    if not values:
        return "–"
    mean = f"{statistics.fmean(values):.1f}"
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"**{mean}**{spread}" if top else mean + spread


def write_page(lines: list[dict[str, Any]]) -> None:
    """Replace the table between the two marks of the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition("<!-- table -->\n")
    _, _, after = rest.partition("<!-- end of table -->")
    seconds = sum(line.get("seconds", 0.0) for line in lines)
    n_seeds = sum(line["seed"] in SEEDS for line in lines)
    summary = (
        f"{n_seeds} trainings and {len(lines) - n_seeds} for tuning, {seconds / 60:.0f} minutes of one core."
    )
    body = "\n".join([*table(lines), "", summary])
    PAGE.write_text(f"{before}<!-- table -->\n{body}\n<!-- end of table -->{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of data sets")
    parser.add_argument("--only", nargs="+", help="methods; default: all")
    parser.add_argument("--cells", nargs="+", help="such as digits/random/16; default: all")
    parser.add_argument("--import", dest="imports", action="append", default=[], help="a module; repeatable")
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args()
    for module in options.imports:
        import_module(module)
    torch.set_num_threads(1)
    cells = [cell for cell in CELLS if options.cells is None or str(cell) in options.cells]
    cells = [cell for cell in cells if not options.page and is_here(cell, options.data)]
    lines = read_lines()
    while work := next(wanted(cells, options.only or all_methods(), lines), None):
        lines.append(run(*work, options.data))
        with RUNS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(lines[-1]) + "\n")
        print(lines[-1], flush=True)
    write_page(lines)


def is_here(cell: Cell, folder: Path | None) -> bool:
    try:
        load(cell.data, folder)
    except DataError as error:
        print(error)
        return False
    return True


if __name__ == "__main__":
    main()

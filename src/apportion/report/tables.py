"""Finished runs by recipe, and tables of them in Markdown."""

import json
import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apportion._untrusted import LARGEST, NUMBER, check_json
from apportion.datasets import dataset_names
from apportion.errors import RunError
from apportion.experiments.provenance import has_other_sources, imported_modules, usual_sources
from apportion.experiments.recipe import to_json
from apportion.experiments.recipes import RECIPES
from apportion.experiments.run_folder import (
    all_runs,
    differences,
    is_finished,
    read_log,
    read_recipe,
    read_result,
    read_where,
    was_taught_by_a_repeated_run,
)
from apportion.experiments.sample import Sample, read_sample
from apportion.methods import METHODS, title_of

OTHER_TITLES = {"plot": "PLOT", "supervised": "supervised"}  # of what is not a first stage


@dataclass(frozen=True)
class Cell:
    """All seeds of one recipe, such as table1/dllp+plot/64."""

    name: str
    folders: tuple[Path, ...]
    results: tuple[dict[str, Any], ...]

    def numbers(self, *path: str) -> list[float]:
        """One number of every seed's result, such as ("test_accuracy", "last")."""
        numbers = []
        for folder, result in zip(self.folders, self.results, strict=True):
            value: Any = result
            for key in path:
                value = value.get(key, "missing") if isinstance(value, dict) else "missing"
            check_json(value, NUMBER, f"{folder / 'result.json'}: {' '.join(path)}", error=RunError)
            numbers.append(float(value))
        return numbers

    def mean(self, *path: str) -> float:
        return statistics.fmean(self.numbers(*path))

    def deviation(self) -> float | None:
        """Standard deviation of the accuracies over seeds; None of one seed."""
        values = self.accuracies()
        return statistics.stdev(values) if len(values) > 1 else None

    def accuracies(self) -> list[float]:
        """Test accuracy of the last epoch of every seed, in percent."""
        return self.numbers("test_accuracy", "last")

    def seconds(self) -> float:
        return statistics.fmean(sum(result["seconds"].values()) for result in self.results)

    def method(self) -> str:
        """The method of the runs by their recipe, such as dllp+plot; by their name if no recipe says it."""
        recipe = read_recipe(self.folders[0])
        method = setting(recipe, "first", "method")
        if not isinstance(method, str):
            return self.name.split("/")[-2] if "/" in self.name else self.name
        return method if recipe.get("second") is None else f"{method}+plot"

    def title(self) -> str:
        """What reports call the method. A name that is not that of a method is added in brackets."""
        own = self.name.split("/")[-2] if "/" in self.name else self.name
        method = self.method()
        if own == "supervised" and method == "dllp" and self.size() == "1":
            return OTHER_TITLES[own]
        is_variant = any(part not in METHODS and part != "plot" for part in own.split("+"))
        return f"{method_title(method)} ({own})" if is_variant and own != method else method_title(method)

    def size(self) -> str:
        """The bag size of the runs by their recipe, or by their name if no recipe says it."""
        size = setting(read_recipe(self.folders[0]), "data", "bag_size")
        return str(size) if isinstance(size, int) else self.name.split("/")[-1]


Cells = Mapping[str, Cell]


def setting(recipe: Mapping[str, Any], part: str, name: str) -> Any:
    """A setting such as first.method of a recipe from a folder, which may be any JSON; else None."""
    values = recipe.get(part)
    return values.get(name) if isinstance(values, dict) else None


def collect(root: Path) -> dict[str, Cell]:
    """Every recipe below the root that has finished runs, sorted by name and bag size."""
    found: dict[str, list[Path]] = defaultdict(list)
    for folder in all_runs(root):
        if is_finished(folder) and re.fullmatch(r"seed=\d+", folder.name):
            found[folder.parent.relative_to(root).as_posix()].append(folder)
    cells = {}
    for name, folders in sorted(found.items(), key=lambda item: sort_key(item[0])):
        folders.sort(key=lambda folder: int(folder.name.removeprefix("seed=")))
        cells[name] = Cell(name, tuple(folders), tuple(read_result(folder) for folder in folders))
    return cells


def sort_key(name: str) -> list[tuple[int, str]]:
    """Bags of 16 come before bags of 128."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in name.split("/")]


def same_seeds(cells: Cells, names: Iterable[str]) -> dict[str, Cell]:
    """As many of the named cells as share a seed, each cut to the seeds that all of these have.

    Runs that start from one teacher are compared on the seeds of that teacher.
    """
    by_seed: dict[str, dict[str, tuple[Path, dict[str, Any]]]] = defaultdict(dict)
    for name in names:
        if name in cells:
            for folder, result in zip(cells[name].folders, cells[name].results, strict=True):
                by_seed[folder.name][name] = folder, result
    most = max(by_seed.values(), key=len, default={})
    shared = [found for found in by_seed.values() if found.keys() >= most.keys()]
    return {
        name: Cell(name, tuple(found[name][0] for found in shared), tuple(found[name][1] for found in shared))
        for name in most
    }


# --- Markdown


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)


def safe_text(text: object) -> str:
    """Text from a folder without what Markdown, HTML or a terminal could take for code."""
    return re.sub(r"[^\w .:,+()/=-]", "?", str(text))[:200]


def mean_and_deviation(values: Sequence[float]) -> str:
    """mean (standard deviation, number of seeds); a dash for the deviation of one."""
    deviation = f"{statistics.stdev(values):.2f}" if len(values) > 1 else "–"
    return f"{statistics.fmean(values):.2f} ({deviation}, {len(values)})"


def method_title(method: str) -> str:
    """dllp+plot -> DLLP + PLOT."""
    return " + ".join(OTHER_TITLES.get(part) or title_of(part) for part in method.split("+"))


def size_columns(sizes: Iterable[object]) -> list[str]:
    return ["", *(f"bags of {size}" for size in sizes)]


def accuracy_table(cells: Cells, group: str) -> str:
    """Test accuracy of a group: one row per method, one column per bag size."""
    rows: dict[str, dict[str, Cell]] = {}  # by title and bag size
    for name, cell in cells.items():
        if name.startswith(f"{group}/") and name.count("/") == 2:
            title, size = cell.title(), cell.size()
            if size in rows.get(title, {}):
                title = f"{method_title(cell.method())} ({name.partition('/')[2]})"
            rows.setdefault(title, {})[size] = cell
    sizes = sorted({size for found in rows.values() for size in found}, key=sort_key)
    lines = []
    for title, found in rows.items():
        values = [mean_and_deviation(found[size].accuracies()) if size in found else "–" for size in sizes]
        lines.append([safe_text(title), *values])
    return markdown_table([safe_text(column) for column in size_columns(sizes)], lines)


def run_table(cells: Cells, group: str) -> str:
    """Every cell of a group: last epoch, best epoch, number of epochs and seconds by part."""
    marks = provenance_marks(cells, group)
    head = [
        "run",
        "last epoch",
        "best epoch (oracle)",
        "epochs",
        "seconds of this stage",
        "of them labels",
        "evaluation",
    ]
    rows = []
    for name, cell in sorted(cells.items(), key=lambda item: sort_key(item[0])):
        if name.startswith(f"{group}/"):
            rows.append(
                [
                    f"`{safe_text(name)}`{marks[name]}",
                    mean_and_deviation(cell.accuracies()),
                    f"{cell.mean('test_accuracy', 'oracle'):.2f}",
                    f"{cell.mean('epochs'):.0f}",
                    f"{cell.seconds():.0f}",
                    f"{cell.mean('seconds', 'label'):.0f}",
                    f"{cell.mean('seconds', 'evaluate'):.0f}",
                ]
            )
    legend = [text for mark, text in MARKS.items() if any(mark in each for each in marks.values())]
    return "\n\n".join([markdown_table(head, rows), *legend])


# what the report says about runs that should not stand next to the others of their group
MARKS = {
    "†": "† A run has other settings than the recipe of this name, or than the other seeds.",
    "‡": "‡ A run was made by other sources, of the package or of imported modules, than most of its group.",
    "§": "§ The first stage of a run was trained again for it, and is not the run in the tables.",
}


def provenance_marks(cells: Cells, group: str) -> dict[str, str]:
    """The marks of each cell of a group, such as {"table1/dllp/64": "†"}; most have none."""
    own = {name: cell for name, cell in cells.items() if name.startswith(f"{group}/")}
    usual = usual_sources(read_where(folder) for cell in own.values() for folder in cell.folders)
    marks = {}
    for name, cell in own.items():
        others = any(has_other_sources(read_where(folder), usual) for folder in cell.folders)
        recipes = [read_recipe(folder) for folder in cell.folders]
        changed = any(
            has_other_settings(name, recipe) or without_seed(recipe) != without_seed(recipes[0])
            for recipe in recipes
        )
        repeated = any(was_taught_by_a_repeated_run(folder) for folder in cell.folders)
        marks[name] = ("†" if changed else "") + ("‡" if others else "") + ("§" if repeated else "")
    return marks


def has_other_settings(name: str, recipe: dict[str, Any]) -> bool:
    """Whether the recipe of a run is not the one of its name, the seed aside. Own names may mean anything."""
    if name not in RECIPES:
        return False
    return bool(differences(without_seed(json.loads(to_json(RECIPES[name]))), without_seed(recipe)))


def without_seed(recipe: dict[str, Any]) -> dict[str, Any]:
    return recipe | {"seed": None}


def modules_not_imported(cells: Cells) -> list[str]:
    """The modules of runs whose method or data set is not known here: it has no title or pictures."""
    modules: dict[str, None] = {}
    for cell in cells.values():
        for folder in cell.folders:
            recipe = read_recipe(folder)
            known = setting(recipe, "first", "method") in list(METHODS)
            if not known or setting(recipe, "data", "name") not in dataset_names():
                modules |= dict.fromkeys(imported_modules(read_where(folder)))
    return list(modules)


def groups_of(cells: Cells) -> list[str]:
    return sorted({name.split("/")[0] for name in cells})


def describe_places(cells: Cells) -> str:
    """Devices, torch versions and commits of all runs, the most frequent first."""
    places: Counter[str] = Counter()
    for cell in cells.values():
        for folder in cell.folders:
            where = read_where(folder)
            device, torch, commit = (
                safe_text(where.get(name, "?")) for name in ("device", "torch", "commit")
            )
            suffix = "" if commit == "None" else f", commit {commit[:10]}"  # None: installed, not cloned
            places[f"{device[:60]}, torch {torch[:60]}{suffix}"] += 1
    return "; ".join(f"{place} ({n} runs)" for place, n in places.most_common())


def runs_page(root: Path) -> str:
    """What `apportion report --md` writes: tables of all finished runs below the root."""
    cells = collect(root)
    parts = [
        "# Runs\n",
        "Test accuracy in percent of the last epoch: mean (standard deviation, number of seeds). The best "
        "epoch is marked as oracle: choosing it takes labels that nobody has.\n",
    ]
    for group in groups_of(cells):
        parts.append(f"## {safe_text(group)}\n")
        if any(name.startswith(f"{group}/") and name.count("/") == 2 for name in cells):
            parts.append(f"{accuracy_table(cells, group)}\n")
        parts.append(f"{run_table(cells, group)}\n")
        profile = profile_table(cells, group)
        if profile:
            parts.append(f"Seconds of the median epoch by part, of the first seed:\n\n{profile}\n")
    parts.append(f"Made on: {describe_places(cells)}.\n")
    return "\n".join(parts)


# --- numbers of a log


def flat_numbers(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a line of a log; nested ones have dotted names, such as terms.proportion."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat_numbers(value, f"{path}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool) and not abs(value) > LARGEST:
            yield f"{path}{name}", float(value)


def log_curves(log: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """Every quantity of a log by epoch, to five digits; None where a line does not have it."""
    lines = [
        {name: float(f"{value:.5g}") for name, value in flat_numbers(line) if math.isfinite(value)}
        for line in log
    ]
    names = {name: None for line in lines for name in line if name != "epoch"}
    return {name: [line.get(name) for line in lines] for name in names}


# --- where the time goes

PARTS = ("network", "augmentation", "prediction", "transport", "evaluation")


def time_by_part(
    seconds: Mapping[str, float], log: Sequence[Mapping[str, Any]], sample: Sample | None
) -> dict[str, float]:
    """Seconds of a run by part.

    Augmentation and prediction were timed on a few batches (`sample`). They are subtracted from training and
    relabeling, which they are part of.
    """
    train, label, evaluate = (float(seconds.get(part, 0.0)) for part in ("train", "label", "evaluate"))
    timed = {} if sample is None else sample.info.get("timed", {})
    if not timed.get("share", 0.0) > 0:
        parts = {"network and augmentation": train, "prediction and transport": label}
    else:
        n_relabeled = sum("label_accuracy" in line for line in log)
        augment = min(train, len(log) * timed["augment"] / timed["share"])
        predict = min(label, n_relabeled * timed["predict"] / timed["share"])
        parts = {
            "network": train - augment,
            "augmentation": augment,
            "prediction": predict,
            "transport": label - predict,
        }
    parts["evaluation"] = evaluate
    return {part: round(value, 3) for part, value in parts.items() if value}


def profile_table(cells: Cells, group: str) -> str:
    """Seconds per epoch by part, of the first seed of every cell that has a sample; empty if none has.

    Each part is that of its median epoch, so that compiling the network in the first epoch does not count.
    Relabeling is the median of the epochs that did it.
    """
    rows = []
    for name, cell in sorted(cells.items(), key=lambda item: sort_key(item[0])):
        folder = cell.folders[0]
        if not name.startswith(f"{group}/") or not (folder / "sample.npz").exists():
            continue
        log = [line for line in read_log(folder) if line.get("seconds")]
        if not log:
            continue
        relabeled = [line for line in log if "label_accuracy" in line]
        seconds = {
            "train": _median_total(log, "train"),
            "label": _median_total(relabeled, "label"),
            "evaluate": _median_total(log, "evaluate"),
        }
        parts = time_by_part(seconds, log, read_sample(folder))
        per_epoch = [parts.get(part, 0.0) / len(log) for part in PARTS]
        total = sum(per_epoch)
        shares = [f"{value:.3f} ({100 * value / (total or 1):.0f} %)" for value in per_epoch]
        rows.append([f"`{safe_text(name)}`", f"{total:.3f}", *shares])
    return markdown_table(["run", "an epoch", *PARTS], rows) if rows else ""


def _median_total(lines: Sequence[Mapping[str, Any]], part: str) -> float:
    """The seconds of all lines, if each took as long as the median one."""
    if not lines:
        return 0.0
    return len(lines) * statistics.median(line["seconds"].get(part, 0.0) for line in lines)

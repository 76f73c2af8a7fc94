"""Finished runs below a folder, by cell: the only input of every table and figure."""

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apportion import runs
from apportion.runs.files import NUMBER, check_shape


@dataclass(frozen=True)
class Cell:
    """All seeds of one recipe, such as table1/dllp+plot/64."""

    name: str
    folders: tuple[Path, ...]
    results: tuple[dict[str, Any], ...]

    def numbers(self, *path: str) -> list[float]:
        """One number of every seed's result, such as ("test_accuracy", "last")."""
        found = []
        for folder, result in zip(self.folders, self.results, strict=True):
            value: Any = result
            for key in path:
                value = value.get(key, "missing") if isinstance(value, dict) else "missing"
            check_shape(value, NUMBER, f"{folder / 'result.json'}: {' '.join(path)}")
            found.append(float(value))
        return found

    def mean(self, *path: str) -> float:
        return statistics.fmean(self.numbers(*path))

    def seconds(self) -> float:
        return statistics.fmean(sum(result["seconds"].values()) for result in self.results)


def collect(root: Path) -> dict[str, Cell]:
    """Every cell below the root with its finished runs, in the order of seeds; others are left out."""
    found: dict[str, list[Path]] = defaultdict(list)
    for folder in runs.all_runs(root):
        if runs.finished(folder) and re.fullmatch(r"seed=\d+", folder.name):
            found[folder.parent.relative_to(root).as_posix()].append(folder)
    cells = {}
    for name, folders in sorted(found.items(), key=lambda item: natural(item[0])):
        folders.sort(key=lambda folder: int(folder.name.removeprefix("seed=")))
        cells[name] = Cell(name, tuple(folders), tuple(runs.read_result(folder) for folder in folders))
    return cells


def same_seeds(cells: Mapping[str, Cell], names: Iterable[str]) -> dict[str, Cell]:
    """Of the named cells as many as have a seed in common, each with only the seeds that all of these have:
    what starts from one teacher is compared by that teacher's runs."""
    by_seed: dict[str, dict[str, tuple[Path, dict[str, Any]]]] = defaultdict(dict)
    for name in (name for name in names if name in cells):
        for folder, result in zip(cells[name].folders, cells[name].results, strict=True):
            by_seed[folder.name][name] = folder, result
    most = max(by_seed.values(), key=len, default={})
    shared = [found for found in by_seed.values() if found.keys() >= most.keys()]
    return {name: Cell(name, *zip(*(found[name] for found in shared), strict=True)) for name in most}


def natural(name: str) -> list[tuple[int, str]]:
    """Bags of 16 come before bags of 128."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in name.split("/")]


def spread(values: list[float]) -> str:
    """mean (standard deviation, number of seeds); a dash for the deviation of one."""
    deviation = f"{statistics.stdev(values):.2f}" if len(values) > 1 else "–"
    return f"{statistics.fmean(values):.2f} ({deviation}, {len(values)})"

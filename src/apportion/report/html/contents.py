"""What the page shows, as plain values: results beside the paper's, curves, samples, recipes."""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from apportion import runs
from apportion.experiment import sample
from apportion.experiment.sample.pieces import sparse
from apportion.report.collect import Cell
from apportion.report.html.commands import command_of
from apportion.report.html.pictures import Pictures
from apportion.report.numbers import curves
from apportion.report.paper import paper_number, title_of
from apportion.report.profile import time_by_part

SAMPLES = 4_000_000  # bytes of samples in a page; runs beyond them show their curves only


def page_contents(cells: Mapping[str, Cell], data: Path | None, thumbnails: bool) -> dict[str, Any]:
    pictures = Pictures(data, thumbnails)
    shown, room = [], SAMPLES
    for cell in cells.values():
        for folder, result in zip(cell.folders, cell.results, strict=True):
            kept = sample.read(folder, whole=True) if (folder / "sample.json").exists() else None
            room -= (folder / "sample.json").stat().st_size if kept else 0
            shown.append(_run(cell.name, folder, result, kept, kept if room >= 0 else None, pictures))
    return {
        "cells": [_cell(cell) for cell in cells.values()],
        "runs": shown,
        "sprites": pictures.sprites,
        "points": pictures.points,
    }


def _cell(cell: Cell) -> dict[str, Any]:
    """A row of the headline table."""
    values = cell.numbers("test_accuracy", "last")
    mean, paper = statistics.fmean(values), paper_number(cell.name)
    group, *rest = cell.name.split("/")
    return {
        "name": cell.name,
        "group": group,
        "method": title_of(rest[0]) if rest else group,
        "size": rest[1] if len(rest) > 1 else "",
        "seeds": ", ".join(folder.name.removeprefix("seed=") for folder in cell.folders),
        "mean": mean,
        "deviation": statistics.stdev(values) if len(values) > 1 else None,
        "paper": paper,
        "difference": None if paper is None else mean - paper,
        "oracle": cell.mean("test_accuracy", "oracle"),
        "seconds": cell.seconds(),
    }


def _run(
    cell: str, folder: Path, result: dict[str, Any], kept: Any, shown: Any, pictures: Pictures
) -> dict[str, Any]:
    log, recipe, where = runs.read_log(folder), runs.read_recipe(folder), runs.read_where(folder)
    out = {
        "name": f"{cell}/{folder.name}",
        "cell": cell,
        "group": cell.split("/")[0],
        "last": result["test_accuracy"]["last"],
        "epochs": [line["epoch"] for line in log],
        "curves": curves(log),
        "time": time_by_part(result["seconds"], log, kept),
        "recipe": _plain(recipe),
        "where": _plain(where),
        "command": command_of(cell, recipe),
        "confusion": _confusion(result, kept),
    }
    if shown is not None:
        out |= {"sample": shown, "picture": pictures.of(recipe, shown)}
    return out


def _plain(value: Any) -> Any:
    """The value, with texts for numbers that JSON has not, or that no browser would show as they are."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if number and not abs(value) < 1 << 53 else value


def _confusion(result: dict[str, Any], kept: Any) -> dict[str, Any] | None:
    if kept:
        return kept["evaluation"]["confusion"]
    if result.get("confusion"):
        import torch

        return sparse(torch.tensor(result["confusion"]))
    return None

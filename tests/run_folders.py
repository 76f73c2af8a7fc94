"""Run folders as a stranger may hand them over: one file is theirs, the others are good."""

import json
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from unittest.mock import patch

import numpy as np

from apportion.cli.watch import shown
from apportion.datasets import SYNTHETIC, Instances
from apportion.experiment import sample
from apportion.experiment.sample.packing import bits_for, pack
from apportion.recipes import Data, First, Network, Recipe, Second, to_json
from apportion.report.claims import claims
from apportion.report.collect import Cell, collect
from apportion.report.html import embedded
from apportion.report.html.contents import _cell, _confusion, _run
from apportion.report.html.pictures import Pictures
from apportion.report.live import statuses
from apportion.report.page import _places
from apportion.report.profile import profile_table, time_by_part
from apportion.report.tables import ablation_table, accuracy_table, claims_table, held_out_table, run_table

SOURCED = SYNTHETIC["moons"]
CELL = "table1/dllp+plot/16"
RECIPE = Recipe(Data("moons"), network=Network("mlp"), first=First(epochs=2), second=Second(epochs=2), seed=3)
N = 2000  # instances of two moons
LINE = {
    "stage": "second",
    "epoch": 1,
    "terms": {"labels": 0.5},
    "test_accuracy": 90.0,
    "label_accuracy": {"predicted": 90.0, "labels": 91.0, "mean": 92.0},
    "max_proportion_gap": 0.0,
    "proportion_error": 1.5,
    "seconds": {"train": 1.0, "label": 0.25, "evaluate": 0.5},
}
RESULT = {
    "test_accuracy": {"last": 90.0, "oracle": 91.0, "oracle_epoch": 1, "held_out": 90.0, "held_out_epoch": 1},
    "epochs": 2,
    "train": {
        "errors": 3,
        "proportion_error": 1.0,
        "entropy": 0.5,
        "label_accuracy": {"argmax": 90.0, "exact": 91.0, "entropic_plan": 91.5, "relaxed": 90.5},
    },
    "seconds": {"train": 2.0, "label": 0.5, "evaluate": 1.0},
    "confusion": [[8, 2], [1, 9]],
}
WHERE = {"apportion": "1", "commit": "abc", "torch": "2", "device": "cpu: x", "exact": False, "data": "12ab"}


def sample_of(shown: int = 4) -> dict[str, object]:
    """A sample of one bag of two moons, through two epochs."""
    each, grid = np.zeros(shown, np.int64), {"low": [-1.0, -1.0], "high": [2.0, 1.0], "across": 3, "up": 2}
    line = {"shares": pack(np.array([50, 50]), bits_for(101)), "predicted": pack(each, 1), "grid": "012345"}
    return {
        "classes": ["0", "1"],
        "instances": N,
        "bags": [{"name": "7", "size": 50, "classes": [0, 1], "known": [50.0, 50.0]}],
        "shown": [shown],
        "source": pack(np.arange(shown), bits_for(N)),
        "epochs": [{"epoch": n, **line, "labels": pack(each, 1)} for n in (1, 2)],
        "grid": grid,
        "evaluation": {
            "truth": pack(each, 1),
            "confusion": {"full": [[8, 2], [1, 9]]},
            "calibration": [[20, 0.9, 0.85]],
        },
        "seconds": {"train": 2.0, "label": 0.5, "evaluate": 1.0},
        "timed": {"share": 0.5, "predict": 0.01, "augment": 0.001},
    }


FILES = {
    "recipe.json": to_json(RECIPE),
    "where.json": json.dumps(WHERE),
    "log.jsonl": "".join(json.dumps(LINE | {"epoch": epoch}) + "\n" for epoch in (1, 2)),
    "result.json": json.dumps(RESULT),
    "sample.json": json.dumps(sample_of()),
}


def write_run(root: Path) -> Path:
    folder = root / CELL / "seed=3"
    folder.mkdir(parents=True)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


@lru_cache(8)
def _moons(seed: int) -> Instances:
    """As they are, but made once: they would take most of the time."""
    return SOURCED(seed)


def reads(root: Path, name: str, good: dict[str, Cell]) -> None:
    """All that `watch`, `report --html` and `report --md` make of one file of a run, but for the drawing."""
    (folder,) = good[CELL].folders
    pictures = Pictures(None, thumbnails=False)
    if name in ("recipe.json", "log.jsonl"):
        shown(statuses(root))
    if name == "result.json":
        cells = collect(root)
        page = [_cell(cells[CELL]), _confusion(cells[CELL].results[0], None)]
        accuracy_table(cells, "table1"), claims_table(cells, "table1"), run_table(cells, "table1")
        claims(cells), ablation_table(cells), held_out_table(cells)
    elif name == "sample.json":
        kept = sample.read(folder, whole=True)
        page = [kept, pictures.of(json.loads(FILES["recipe.json"]), kept), pictures.points]
        page += [_confusion(RESULT, kept), time_by_part({"train": 1.0}, [], kept)]
    else:
        page = [_run(CELL, folder, RESULT, None, None, pictures)]
        if name == "log.jsonl":
            profile_table(good, "table1")
        if name == "where.json":
            _places(good)
    embedded({"page": page}).encode("utf-8", "replace")


def draw_all(root: Path) -> None:
    """All that `figure` makes of them, but for the file."""
    from apportion.report.curves import confusion_figure, curves_figure
    from apportion.report.figures import figure_3

    cells = collect(root)
    cell: Cell = cells[CELL]
    curves_figure(cells), figure_3(cells, CELL), confusion_figure(cell)


def folder_readers() -> dict[str, tuple[bytes, Callable[[bytes], object]]]:
    """Each file of a run in turn is the stranger's."""
    keep = tempfile.TemporaryDirectory()
    folder = write_run(Path(keep.name))
    good = collect(Path(keep.name))

    def reader(name: str) -> Callable[[bytes], object]:
        def written(data: bytes, keep: tempfile.TemporaryDirectory = keep) -> None:
            (folder / name).write_bytes(data)
            try:
                with patch.dict(SYNTHETIC, {"moons": _moons}):
                    reads(Path(keep.name), name, good)
            finally:
                (folder / name).write_text(FILES[name])

        return written

    return {f"run {Path(name).stem}": (FILES[name].encode(), reader(name)) for name in FILES}

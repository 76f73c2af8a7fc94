"""Run folders for the tests of the report, as a run writes them, without training."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from apportion.experiment.sample.packing import bits_for, pack
from apportion.recipes import Data, First, Network, Recipe, Second

NASTY = "<script>alert(1)</script>"


def write_run(root: Path, name: str, seed: int, epochs: int = 100, k: int = 10, plot: bool = False) -> Path:
    """A finished run of made-up numbers; its first class is a script."""
    folder = root / name / f"seed={seed}"
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    second = Second(epochs=epochs) if plot else None
    recipe = Recipe(Data("digits", 16), Network(), First(epochs=epochs), second, seed=seed)
    (folder / "recipe.json").write_text(json.dumps(asdict(recipe)))
    where = {"device": "cpu: x", "torch": "2", "commit": "abcdef", "note": NASTY}
    (folder / "where.json").write_text(json.dumps(where))
    lines = [line_of(epoch, 90 * epoch / epochs + random.random()) for epoch in range(1, epochs + 1)]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    last, matrix = lines[-1]["test_accuracy"], random.integers(0, 50, (k, k)).tolist()
    result = {
        "test_accuracy": {"last": last, "oracle": last + 1, "oracle_epoch": 1},
        "epochs": epochs,
        "train": {"proportion_error": 5.0, "entropy": 0.5, "label_accuracy": {"exact": 2.0}},
        "seconds": {"train": 10.0, "label": 2.0, "evaluate": 1.0},
        "confusion": matrix,
    }
    (folder / "sample.json").write_text(json.dumps(sample_of(random, k, matrix, epochs, plot)))
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def line_of(epoch: int, accuracy: float) -> dict:
    right = {"predicted": accuracy, "labels": accuracy + 1, "mean": accuracy + 2}
    seconds = {"train": 0.1, "label": 0.02, "evaluate": 0.01}
    line = {"stage": "second", "epoch": epoch, "terms": {"labels": 1 / epoch}, "test_accuracy": accuracy}
    return line | {
        "label_accuracy": right,
        "max_proportion_gap": 0.0,
        "proportion_error": 3.0,
        "seconds": seconds,
    }


def sample_of(random: np.random.Generator, k: int, matrix: list, epochs: int, plot: bool) -> dict:
    bits = bits_for(k)
    known = [100 / k] * k
    bags = [{"name": f"{NASTY} {i}", "size": 16, "classes": [*range(k)], "known": known} for i in range(12)]
    kept = []
    for epoch in np.unique(np.linspace(1, epochs, 20).round().astype(int)).tolist():
        line = {"epoch": epoch, "shares": pack(random.integers(0, 20, 12 * k), 7)}
        line |= {"predicted": pack(random.integers(0, k, 192), bits)}
        kept.append(line | ({"labels": pack(random.integers(0, k, 192), bits)} if plot else {}))
    calibration = [[10, (i + 0.5) / 10, (i + 0.4) / 10] for i in range(10)]
    truth = pack(random.integers(0, k, 192), bits)
    return {
        "classes": [NASTY, *(f"class {i}" for i in range(1, k))],
        "instances": 1347,
        "bags": bags,
        "shown": [16] * 12,
        "source": pack(random.integers(0, 1347, 192), 11),
        "epochs": kept,
        "evaluation": {"truth": truth, "confusion": {"full": matrix}, "calibration": calibration},
        "seconds": {"train": 10.0, "label": 2.0, "evaluate": 1.0},
        "timed": {"share": 0.5, "predict": 0.005, "augment": 0.001},
    }

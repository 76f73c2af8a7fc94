"""Run folders for tests of readers and reports, as a run writes them but without training."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from apportion.experiments.recipe import Data, FirstStage, Network, Recipe, SecondStage, to_json
from apportion.experiments.run_folder import format_json
from apportion.experiments.sample import GRID, Sample

SCRIPT = "<script>alert(1)</script>"  # the name of a class, and a remark


def recipe_for(name: str, epochs: int, seed: int, data: str = "digits") -> Recipe:
    """A recipe whose method and bag size are those of its name, if it says them."""
    *_, method, size = ["g", "dllp", *name.split("/")]
    second = SecondStage(epochs=epochs) if "+plot" in name else None
    first = FirstStage(method.split("+")[0], epochs=epochs)
    return Recipe(Data(data, int(size) if size.isdecimal() else 16), Network(), first, second, seed=seed)


def log_line(epoch: int, accuracy: float, plot: bool = True) -> dict[str, Any]:
    line: dict[str, Any] = {"stage": "second" if plot else "first", "epoch": epoch}
    line |= {"terms": {"labels": 1 / epoch}, "test_accuracy": accuracy}
    if plot:
        names = ("predicted", "labels", "mean", "fresh_labels", "fresh_mean")
        line["label_accuracy"] = {name: accuracy + i for i, name in enumerate(names)}
        line |= {"label_gap": 0.0, "proportion_error": 3.0}
    line["seconds"] = {"train": 0.1, "label": 0.02, "evaluate": 0.01}
    return line


def result_of(last: float, epochs: int = 1, k: int = 2, **changes: Any) -> dict[str, Any]:
    labels = {"argmax": 1.0, "exact": 2.0, "entropic": 3.0, "relaxed": 4.0}
    result = {
        "test_accuracy": {"last": last, "oracle": last + 1, "oracle_epoch": 1},
        "epochs": epochs,
        "train": {"errors": 3, "proportion_error": 5.0, "entropy": 0.5, "label_accuracy": labels},
        "seconds": {"train": 10.0, "label": 2.0, "evaluate": 1.0},
        "confusion": (np.eye(k, dtype=int) * 9 + 1).tolist(),
    }
    return result | changes


def sample_of(epochs: int, k: int = 10, plot: bool = False, seed: int = 0, moons: bool = False) -> Sample:
    """Random labels of twelve bags of sixteen instances."""
    random = np.random.default_rng(seed)
    shown_epochs = np.unique(np.linspace(1, epochs, 20).round().astype(int))
    n = 12 * 16
    info: dict[str, Any] = {
        "classes": [SCRIPT, *(f"class {i}" for i in range(1, k))],
        "names": [f"{SCRIPT} {i}" for i in range(12)],
        "instances": 2000 if moons else 1347,
        "seconds": {"train": 10.0, "label": 2.0, "evaluate": 1.0},
        "timed": {"share": 0.5, "predict": 0.005, "augment": 0.001},
    }
    regions = None
    if moons:
        info |= {"low": [-1.5, -1.0], "high": [2.5, 1.5]}
        regions = random.integers(0, 101, (len(shown_epochs), *GRID)).astype(np.uint8)
    labels = random.integers(0, k, (len(shown_epochs), n)).astype(np.uint8)
    return Sample(
        info=info,
        size=np.full(12, 16),
        bag_classes=np.tile(np.arange(k), (12, 1)),
        known=np.full((12, k), 100 / k, np.float32),
        shown=np.full(12, 16),
        source=random.integers(0, 1347, n),
        truth=random.integers(0, k, n).astype(np.uint8),
        epoch=shown_epochs,
        predicted_share=random.integers(0, 20, (len(shown_epochs), 12, k)).astype(np.uint8),
        predicted=random.integers(0, k, (len(shown_epochs), n)).astype(np.uint8),
        labels=labels if plot else None,
        regions=regions,
        calibration=np.array([[10, (i + 0.5) / 10, (i + 0.4) / 10] for i in range(10)]),
    )


def write_run(
    root: Path,
    name: str,
    seed: int = 1,
    last: float | None = None,
    *,
    epochs: int = 1,
    k: int = 10,
    log: list[dict[str, Any]] | None = None,
    result: dict[str, Any] | None = None,
    with_sample: bool = True,
    finished: bool = True,
    data: str = "digits",
) -> Path:
    """A run of made-up numbers. Names with +plot are second stages."""
    folder = root / name / f"seed={seed}"
    folder.mkdir(parents=True)
    plot = "+plot" in name
    random = np.random.default_rng(seed)
    if log is None:
        curve = [90 * epoch / epochs + random.random() for epoch in range(1, epochs + 1)]
        if last is not None:
            curve[-1] = last
        log = [log_line(epoch, accuracy, plot) for epoch, accuracy in enumerate(curve, 1)]
    (folder / "recipe.json").write_text(to_json(recipe_for(name, epochs, seed, data)))
    where = {"device": "cpu: x", "torch": "2", "commit": "abcdef", "remark": SCRIPT}
    (folder / "where.json").write_text(json.dumps(where))
    write_log(folder, log)
    if with_sample:
        sample = sample_of(epochs, 2 if data == "moons" else k, plot, seed, moons=data == "moons")
        (folder / "sample.npz").write_bytes(sample.to_bytes())
    if finished:
        result = result or result_of(log[-1]["test_accuracy"], epochs, k)
        (folder / "result.json").write_text(format_json(result))
    return folder


def write_log(folder: Path, log: list[dict[str, Any]]) -> None:
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))


def change_result(folder: Path, **changes: Any) -> None:
    """Change parts of a result; dicts are merged."""
    path = folder / "result.json"
    result = json.loads(path.read_text())
    for name, value in changes.items():
        result[name] = result[name] | value if isinstance(value, dict) else value
    path.write_text(json.dumps(result))


def seeded(recipe: Recipe, seed: int) -> Recipe:
    return replace(recipe, seed=seed)

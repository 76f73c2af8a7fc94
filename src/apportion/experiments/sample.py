"""A sample of a run, for reports: a dozen bags and their labels through at most twenty epochs, as sample.npz.

It also has the calibration on the test part and where the time went. Nothing but `truth` and `calibration`
depends on hidden or test labels.
"""

import io
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apportion._random import stream
from apportion._untrusted import NUMBER, check_json, parse_json, read_npz
from apportion._writing import atomic_write
from apportion.bags.bags import bag_means
from apportion.errors import RunError
from apportion.evaluate import calibration, predict_log_proba
from apportion.experiments.data import RunData
from apportion.experiments.recipe import Recipe
from apportion.experiments.run_folder import RESUME_HINT
from apportion.pipeline import EpochState

BAGS = 12  # at most
ROWS = 4096  # of these bags, at most: a first stage has to predict them
SHOWN = 64  # instances of a bag whose labels are kept
EPOCHS = 20
CLASSES = 10  # with more than 12 classes, only this many of the largest are kept
GRID = (20, 28)  # points up and across, for the decision regions of two-dimensional data
LIMIT = 4_000_000  # bytes of the arrays in a file

INFO_SCHEMA = {
    "classes": [str],
    "names": [str],
    "instances": int,
    "low?": [NUMBER],
    "high?": [NUMBER],
    "seconds?": {"*": NUMBER},
    "timed?": {"share": NUMBER, "predict": NUMBER, "augment": NUMBER},
}


@dataclass
class Sample:
    """b bags with n shown instances in total, through e epochs."""

    info: dict[str, Any]  # class and bag names, number of instances, frame of the grid, seconds
    size: np.ndarray  # (b,) instances of each bag
    bag_classes: np.ndarray  # (b, c) the classes whose proportions are kept, the largest first if not all
    known: np.ndarray  # (b, c) known proportions in percent
    shown: np.ndarray  # (b,) instances of each bag that are shown
    source: np.ndarray  # (n,) their place in the data set
    truth: np.ndarray  # (n,) their true classes
    epoch: np.ndarray  # (e,)
    predicted_share: np.ndarray  # (e, b, c) predicted proportions in percent
    predicted: np.ndarray  # (e, n) predicted classes
    labels: np.ndarray | None = None  # (e, n) pseudo-labels, in a second stage
    regions: np.ndarray | None = None  # (e, up, across) percent of the second of two classes, else the class
    calibration: np.ndarray | None = None  # (bins, 3) instances, mean confidence, accuracy; if finished

    def to_bytes(self) -> bytes:
        info = np.frombuffer(json.dumps(self.info).encode(), np.uint8)
        arrays: dict[str, Any] = {"info": info}
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                arrays[name] = value
        content = io.BytesIO()
        np.savez_compressed(content, **arrays)
        return content.getvalue()


# --- writing


class SampleWriter:
    """Adds the epochs of a run to its sample; a run that resumes keeps the epochs before its checkpoint."""

    def __init__(self, folder: Path, recipe: Recipe, task: RunData, epochs_done: int = 0) -> None:
        self.path = folder / "sample.npz"
        self.task = task
        self.batch_size = recipe.batch_size
        self.epochs = spread_epochs(recipe.stage.epochs)
        which = choose_bags(task.bags.sizes, recipe.seed)
        self.batch = task.bags.take(which)
        sizes = task.bags.sizes[which]
        place = torch.arange(int(sizes.sum())) - torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
        self.is_shown = place < SHOWN
        self.sample = _empty_sample(task, which, self.batch.row.cpu()[self.is_shown], sizes)
        if epochs_done and self.path.exists():
            before = read_sample(folder)
            if np.array_equal(before.source, self.sample.source):  # else resumed with other data, by --force
                _keep_epochs(before, before.epoch <= epochs_done)
                self.sample = before
        self._write()

    def add(self, state: EpochState) -> None:
        """Add this epoch if it is the last, or one of those spread over the stage."""
        if not state.last and state.epoch.number not in self.epochs:
            return
        sample = self.sample
        classifier = state.learner.classifier
        if state.log_probs is None:
            log_probs = predict_log_proba(classifier, self.batch.x, self.task.prepare)
        else:
            log_probs = state.log_probs[self.batch.row]
        sample.epoch = np.append(sample.epoch, state.epoch.number)
        shares = (100 * bag_means(log_probs.exp(), self.batch.sizes)).round().to(torch.uint8).cpu().numpy()
        shares = np.take_along_axis(shares, sample.bag_classes, 1)
        sample.predicted_share = _append(sample.predicted_share, shares)
        sample.predicted = _append(sample.predicted, self._shown_classes(log_probs))
        if state.labels is not None:
            labels = self._shown_classes(state.labels.rounds[-1][self.batch.row])
            sample.labels = _append(sample.labels, labels)
        if "low" in sample.info:
            points = grid_points(sample.info["low"], sample.info["high"]).to(self.task.device)
            regions = _regions(predict_log_proba(classifier, points, self.task.prepare))
            sample.regions = _append(sample.regions, regions)
        self._write()

    def finish(self, state: EpochState, test_log_probs: Tensor, seconds: dict[str, float]) -> None:
        """Add the calibration on the test part and where the time went."""
        self.sample.calibration = np.array(calibration(test_log_probs, self.task.data.test_y))
        # the loop does not wait for the device between its parts, so they are timed here, on a few batches
        classifier = state.learner.classifier
        x = self.task.bags.x[: 4 * self.batch_size]
        size = self.batch_size
        device = self.task.device
        self.sample.info["seconds"] = seconds
        self.sample.info["timed"] = {
            "share": round(len(x) / len(self.task.bags.x), 6),
            "predict": _seconds_of(lambda: predict_log_proba(classifier, x, self.task.prepare, size), device),
            "augment": _seconds_of(lambda: [self.task.augment(part) for part in x.split(size)], device),
        }
        self._write()

    def _shown_classes(self, scores: Tensor) -> np.ndarray:
        return scores.argmax(1).cpu()[self.is_shown].numpy().astype(self.sample.truth.dtype)

    def _write(self) -> None:
        atomic_write(self.path, self.sample.to_bytes(), error=RunError, hint=RESUME_HINT)


def spread_epochs(epochs: int) -> set[int]:
    """At most EPOCHS of them, evenly spread, including the first and the last."""
    return {1 + round(i * (epochs - 1) / (EPOCHS - 1)) for i in range(EPOCHS)}


def choose_bags(sizes: Tensor, seed: int) -> Tensor:
    """The numbers of the bags in the sample: the same in every stage and method of a seed."""
    order = torch.randperm(len(sizes), generator=stream(seed, "sample"))[:BAGS]
    n_fitting = max(1, int((sizes[order].cumsum(0) <= ROWS).sum()))
    return order[:n_fitting].sort().values


def _empty_sample(task: RunData, which: Tensor, rows: Tensor, sizes: Tensor) -> Sample:
    """A sample without epochs."""
    data = task.data
    proportions = task.bags.proportions[which.to(task.device)].cpu()
    n_kept = data.n_classes if data.n_classes <= 12 else CLASSES
    bag_classes = torch.arange(n_kept).expand(len(which), -1)
    if n_kept < data.n_classes:
        bag_classes = proportions.argsort(dim=1, descending=True, stable=True)[:, :n_kept]
    info: dict[str, Any] = {
        "classes": list(data.classes),
        "names": [str(task.bags.ids[i])[:40] for i in which.tolist()],
        "instances": len(data.x),
    }
    if data.x.shape[1:] == (2,) and data.n_classes <= 10:
        low = data.x.amin(0)
        high = data.x.amax(0)
        margin = 0.05 * (high - low)
        info["low"] = [round(value, 3) for value in (low - margin).tolist()]
        info["high"] = [round(value, 3) for value in (high + margin).tolist()]
    class_type = np.uint8 if data.n_classes <= 256 else np.uint16
    shown = sizes.clamp_max(SHOWN).numpy()
    return Sample(
        info=info,
        size=sizes.numpy(),
        bag_classes=bag_classes.numpy(),
        known=np.round(100 * proportions.gather(1, bag_classes).double().numpy(), 2).astype(np.float32),
        shown=shown,
        source=task.bags.source[rows].numpy().astype(np.int32),
        truth=task.hidden.cpu()[rows].numpy().astype(class_type),
        epoch=np.zeros(0, np.int32),
        predicted_share=np.zeros((0, len(which), n_kept), np.uint8),
        predicted=np.zeros((0, len(rows)), class_type),
    )


def _keep_epochs(sample: Sample, kept: np.ndarray) -> None:
    for name in ("epoch", "predicted_share", "predicted", "labels", "regions"):
        value = getattr(sample, name)
        if value is not None:
            setattr(sample, name, value[kept])


def _append(values: np.ndarray | None, value: np.ndarray) -> np.ndarray:
    return value[None] if values is None else np.concatenate([values, value[None]])


def grid_points(low: list[float], high: list[float]) -> Tensor:
    """The points of the grid, (up * across, 2), row by row from below."""
    up = torch.linspace(low[1], high[1], GRID[0])
    across = torch.linspace(low[0], high[0], GRID[1])
    return torch.stack(torch.meshgrid(across, up, indexing="xy"), -1).reshape(-1, 2)


def _regions(log_probs: Tensor) -> np.ndarray:
    is_binary = log_probs.shape[1] == 2
    values = (100 * log_probs[:, 1].exp()).round() if is_binary else log_probs.argmax(1)
    return values.view(GRID).to(torch.uint8).cpu().numpy()


def _seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """How long the work takes on its device, after it was done once to warm up."""
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return round(time.perf_counter() - started, 4)


# --- reading


def read_sample(folder: Path) -> Sample:
    """The sample of a run. It may come from a stranger, so all shapes and ranges are checked."""
    path = folder / "sample.npz"
    arrays = {name: array.copy() for name, array in read_npz(path, LIMIT, error=RunError).items()}
    info = parse_json(
        arrays.pop("info", np.zeros(0, np.uint8)).tobytes(), str(path), INFO_SCHEMA, error=RunError
    )
    try:
        sample = Sample(info=info, **arrays)
    except TypeError:
        raise RunError(
            f"{path} is not a sample of a run: its arrays are {', '.join(sorted(arrays))}"
        ) from None
    _check_sample(sample, str(path))
    return sample


def _check_sample(sample: Sample, name: str) -> None:
    check_json(sample.info, INFO_SCHEMA, name, error=RunError)
    b, e, n = len(sample.size), len(sample.epoch), len(sample.source)
    c = sample.bag_classes.shape[-1]
    k = len(sample.info["classes"])
    shapes = {
        "size": (b,), "bag_classes": (b, c), "known": (b, c), "shown": (b,), "source": (n,), "truth": (n,),
        "epoch": (e,), "predicted_share": (e, b, c), "predicted": (e, n), "labels": (e, n),
        "regions": (e, *GRID), "calibration": (None, 3),
    }  # fmt: skip
    for key, shape in shapes.items():
        value = getattr(sample, key)
        if value is None:
            continue
        fits = value.ndim == len(shape) and all(
            s in (None, size) for s, size in zip(shape, value.shape, strict=False)
        )
        if not fits or (value.dtype.kind == "f" and not np.isfinite(value).all()):
            raise RunError(
                f"{name} is damaged: its {key} has shape {value.shape}, or numbers that are not finite"
            )
    classes = [sample.bag_classes, sample.truth, sample.predicted]
    if sample.labels is not None:
        classes.append(sample.labels)
    grid = sample.regions is None or len(sample.info.get("low", ())) == len(sample.info.get("high", ())) == 2
    good = {
        "number of bags": 0 < b <= BAGS and len(sample.info["names"]) == b,
        "classes": 0 < c <= k and all(_within(each, k) for each in classes),
        "source": _within(sample.source, sample.info["instances"]),
        "shown": bool((sample.shown >= 0).all()) and sample.shown.sum() == n,
        "grid": grid,
    }
    for what, is_good in good.items():
        if not is_good:
            raise RunError(f"{name} is damaged: its {what} cannot be that of a run")


def _within(values: np.ndarray, end: int) -> bool:
    """Whether all are whole numbers from 0 to end - 1."""
    return values.dtype.kind in "iu" and (not values.size or (values.min() >= 0 and values.max() < end))

"""What a run keeps to be looked at: `sample.json`, a dozen bags through at most twenty epochs, at most 20 kB.

Numbers of classes and rows are packed (see `packing`). What hidden and test labels enter is under
`evaluation`; nothing else depends on them.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from apportion import runs
from apportion._random import stream
from apportion.bags.bags import BagBatch, bag_means
from apportion.evaluate import calibration, confusion, predict_log_proba
from apportion.experiment.sample.packing import bits_for, pack
from apportion.experiment.sample.pieces import bag_of, grid_of, grid_points, regions, seconds_of, sparse
from apportion.experiment.sample.strangers import read_sample
from apportion.experiment.task import Task
from apportion.pipeline import EpochState
from apportion.recipes import First, Recipe, Second

LIMIT = 20_000  # bytes of the file
BAGS, EPOCHS, ROWS = 12, 20, 4096  # at most; rows are what a first stage has to predict
BITS = 112  # of a bag's labels: 112 instances of two classes, 28 of ten, 16 of a hundred
ACROSS, UP = 28, 20  # points of the grid that shows the regions of two-dimensional data


def begin(folder: Path, recipe: Recipe, task: Task, done: int) -> None:
    """Start the file, or cut it back to the epochs that are done and will not run again."""
    which, batch, shown = chosen(recipe, task)
    rows, k, names = batch.row.cpu()[shown], task.data.n_classes, task.data.classes
    start: dict[str, Any] = {
        "classes": list(names) if len("".join(names)) < 2000 else [],
        "instances": len(task.data.x),
        "bags": [bag_of(task.bags, i) for i in which.tolist()],
        "shown": [int(part.sum()) for part in shown.split(batch.sizes.tolist())],
        "source": pack(task.bags.source[rows].numpy(), bits_for(len(task.data.x))),
        "epochs": [],
        "evaluation": {"truth": pack(task.hidden.cpu()[rows].numpy(), bits_for(k))},
    }
    if task.data.x.shape[1:] == (2,) and k <= 10:
        start["grid"] = grid_of(task.data.x, ACROSS, UP)
    if done and (folder / "sample.json").exists():
        before = read(folder)
        if before["bags"] == start["bags"]:  # else the run was forced to go on with other data
            start["epochs"] = [line for line in before["epochs"] if line["epoch"] <= done]
            start |= {name: before[name] for name in ("every",) if name in before}
    _write(folder, start)


def add(folder: Path, recipe: Recipe, task: Task, epoch_state: EpochState) -> None:
    """Keep this epoch, if it is one of those spread over the stage, or its last."""
    if not epoch_state.last and epoch_state.epoch.number not in spread_epochs(stage_of(recipe).epochs):
        return
    kept, (_, batch, shown) = read(folder), chosen(recipe, task)
    classifier, bits = epoch_state.learner.classifier, bits_for(task.data.n_classes)
    if epoch_state.log_probs is None:
        log_probs = predict_log_proba(classifier, batch.x, task.prepare)
    else:
        log_probs = epoch_state.log_probs[batch.row]
    means = (100 * bag_means(log_probs.exp(), batch.sizes)).round().int().cpu()
    shares = [mean[bag["classes"]] for mean, bag in zip(means, kept["bags"], strict=True)]
    line: dict[str, Any] = {
        "epoch": epoch_state.epoch.number,
        "shares": pack(torch.cat(shares).numpy(), bits_for(101)),
        "predicted": pack(log_probs.argmax(1).cpu()[shown].numpy(), bits),
    }
    if epoch_state.labels is not None:
        labels = epoch_state.labels.rounds[-1][batch.row].argmax(1)
        line["labels"] = pack(labels.cpu()[shown].numpy(), bits)
    if "grid" in kept:
        line["grid"] = regions(
            predict_log_proba(classifier, grid_points(kept["grid"]).to(task.device), task.prepare)
        )
    kept["epochs"].append(line)
    _write(folder, kept)


def finish(
    folder: Path, recipe: Recipe, task: Task, epoch_state: EpochState, test: Tensor, seconds: dict[str, float]
) -> None:
    """Add what is known at the end: the test part by class and by confidence, and where the time went."""
    kept, classifier = read(folder), epoch_state.learner.classifier
    kept["evaluation"] |= {
        "confusion": sparse(confusion(test.argmax(1), task.data.test_y, task.data.n_classes).cpu()),
        "calibration": calibration(test, task.data.test_y),
    }
    # the loop does not wait for the device between its parts, so that these are timed here, on a few batches
    x, size = task.bags.x[: 4 * recipe.batch_size], recipe.batch_size
    predicting = seconds_of(lambda: predict_log_proba(classifier, x, task.prepare, size), task.device)
    augmenting = seconds_of(lambda: [task.augment(part) for part in x.split(size)], task.device)
    kept["seconds"] = seconds
    kept["timed"] = {
        "share": round(len(x) / len(task.bags.x), 6),
        "predict": predicting,
        "augment": augmenting,
    }
    _write(folder, _thinned(kept, recipe))


def _thinned(kept: dict[str, Any], recipe: Recipe) -> dict[str, Any]:
    """Every second epoch, counted from the last, or every fourth, until the sample fits.

    Which ones depends on their numbers and on what was thinned before, not on how long anything took: a run
    that was killed after this and trains its last epochs again comes to the same ones.
    """
    last, before = kept["epochs"][-1]["epoch"], kept.get("every")
    numbers = sorted({*(n for n in spread_epochs(stage_of(recipe).epochs) if n < last), last}, reverse=True)
    times = {part: dict.fromkeys(kept[part], 9_999_999.9999) for part in ("seconds", "timed")}
    least = before if type(before) is int and 0 < before < EPOCHS else 1
    for every in (least << i for i in range(EPOCHS)):
        lines = [line for line in kept["epochs"] if every == 1 or line["epoch"] in numbers[::every]]
        kept |= {"epochs": lines} if every == 1 else {"epochs": lines, "every": every}
        if len(lines) == 1 or len(_text(kept | times)) <= LIMIT:
            break
    return kept


def read(folder: Path, whole: bool = False) -> dict[str, Any]:
    """The sample of a run, `whole` with what is added when it finishes; it may be a stranger's."""
    return read_sample(folder / "sample.json", whole)


def stage_of(recipe: Recipe) -> First | Second:
    return recipe.second or recipe.first


def spread_epochs(epochs: int) -> set[int]:
    """At most EPOCHS of them, evenly spread, with the first and the last."""
    return {1 + round(i * (epochs - 1) / (EPOCHS - 1)) for i in range(EPOCHS)}


def chosen(recipe: Recipe, task: Task) -> tuple[Tensor, BagBatch, Tensor]:
    """The bags that are kept, the same in every stage of a seed, and which of their rows are shown."""
    order = torch.randperm(len(task.bags.sizes), generator=stream(recipe.seed, "sample"))[:BAGS]
    fits = max(1, int((task.bags.sizes[order].cumsum(0) <= ROWS).sum()))
    which = order[:fits].sort().values
    sizes = task.bags.sizes[which]
    place = torch.arange(int(sizes.sum())) - torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
    return which, task.bags.take(which), place < BITS // bits_for(task.data.n_classes)


def _write(folder: Path, kept: dict[str, Any]) -> None:
    runs.write(folder / "sample.json", _text(kept))


def _text(kept: dict[str, Any]) -> str:
    return json.dumps(kept, separators=(",", ":"))

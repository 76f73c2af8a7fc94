"""One run, from a recipe to a folder of results."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from apportion import runs
from apportion.building import (
    build_labeller,
    build_learner,
    build_loss,
    build_network,
    build_optimizers,
    build_rate,
    check,
)
from apportion.evaluate import predict
from apportion.measure import evaluated, summary
from apportion.pipeline import Moment, first_stage, second_stage
from apportion.randomness import reseed
from apportion.recipes import Recipe, to_json
from apportion.second_stage import bag_weights
from apportion.speed import pick_device, placed, unplaced
from apportion.task import Task, load_task
from apportion.where import where

CHECKPOINT_SECONDS = 20.0  # a checkpoint at most this often: what a kill costs


def moments(
    recipe: Recipe, task: Task, teacher: Path | None, resume: dict[str, Any] | None
) -> Iterator[Moment]:
    """The stage that this recipe trains: the first where it has no second, else the second."""
    shape, k, batch = task.data.x.shape[1:], task.data.n_classes, recipe.instances_per_batch
    second = recipe.second
    reseed(recipe.seed, "first" if second is None else "second", "weights")
    network = recipe.network if second is None or second.network is None else second.network
    classifier = placed(build_network(network, shape, k), task.device, batch)
    if second is None:
        learner = build_learner(recipe.first, classifier, shape, lambda n: placed(n, task.device, batch))
        return first_stage(
            learner, task.bags, build_optimizers(learner.players(), recipe.first), epochs=recipe.first.epochs,
            rate=build_rate(recipe.first), seed=recipe.seed, instances_per_batch=batch, augment=task.augment,
            resume=resume,
        )  # fmt: skip
    if teacher is None:
        raise runs.RunError("a second stage needs the run of its first stage; pass its folder as teacher")
    if second.student == "teacher":
        unplaced(classifier).load_state_dict(runs.read_weights(teacher))
    return second_stage(
        runs.read_log_probs(teacher).to(task.device), classifier, task.bags,
        build_optimizers([classifier], second), epochs=second.epochs, rate=build_rate(second),
        seed=recipe.seed, label=build_labeller(second), loss=build_loss(second),
        mixup=second.mixup, rounds=second.memory, hold=second.hold,
        weights=bag_weights(task.bags.sizes).to(task.device) if second.weighting == "bag" else None,
        momentum=second.running, stop=second.stop, instances_per_batch=batch, augment=task.augment,
        prepare=task.prepare, resume=resume,
    )  # fmt: skip


def run(
    recipe: Recipe,
    folder: Path,
    *,
    teacher: Path | None = None,
    device: str = "auto",
    data: Path | None = None,
    exact: bool = False,
) -> Iterator[dict[str, Any]]:
    """Run a recipe into a folder, yielding each line of its log; an unfinished run goes on where it was."""
    check(recipe)
    if runs.finished(folder):
        raise runs.RunError(f"{folder} holds a finished run; delete it to run it again, or use another")
    place = pick_device(device)
    torch.use_deterministic_algorithms(exact)
    # batches have one size, so the search for the best kernels pays at once
    torch.backends.cudnn.benchmark = not exact
    runs.refuse_other(folder, to_json(recipe))
    task = load_task(
        recipe, place, data
    )  # before the folder is made: what cannot start leaves nothing behind
    state = runs.start(folder, to_json(recipe), where(place, exact))
    saved, moment = time.monotonic(), None
    for moment in moments(recipe, task, teacher, state):
        line = evaluated(moment, task)
        runs.append(folder, line)
        if not moment.last and time.monotonic() - saved > CHECKPOINT_SECONDS:
            runs.checkpoint(folder, moment.state())
            saved = time.monotonic()
        yield line
    if moment is None:
        raise runs.RunError(f"{folder}: the stage has no epoch; set its epochs to at least one")
    log_probs = predict(moment.learner.classifier, task.bags.x, task.prepare, recipe.instances_per_batch)
    result = summary(runs.read_log(folder), moment, task, log_probs)
    runs.finish(folder, result, unplaced(moment.learner.classifier).state_dict(), log_probs)


def run_with_teacher(
    recipe: Recipe,
    root: Path,
    name: str,
    *,
    device: str = "auto",
    data: Path | None = None,
    exact: bool = False,
) -> Iterator[tuple[Path, int, dict[str, Any] | None]]:
    """Run a named recipe below `root`, and before it its first stage unless some run there is of that very
    recipe.

    Yields (folder, epochs, line of its log), with None for the line where the run had been finished before.
    """
    check(recipe)
    group, _, size = name.split("/")
    folder = root / name / f"seed={recipe.seed}"
    teacher = None
    if recipe.second is not None and not runs.finished(folder):
        first = replace(recipe, second=None)
        teacher = find_run(root, first) or root / group / recipe.first.method / size / f"seed={recipe.seed}"
        if not runs.finished(teacher):
            for line in run(first, teacher, device=device, data=data, exact=exact):
                yield teacher, first.first.epochs, line
    epochs = recipe.first.epochs if recipe.second is None else recipe.second.epochs
    if runs.finished(folder):
        runs.refuse_other(folder, to_json(recipe))
        yield folder, epochs, None
        return
    for line in run(recipe, folder, teacher=teacher, device=device, data=data, exact=exact):
        yield folder, epochs, line


def find_run(root: Path, recipe: Recipe) -> Path | None:
    """A finished run of this very recipe below the root, with what a second stage starts from."""
    wanted = json.loads(to_json(recipe))
    for folder in runs.all_runs(root):
        if (
            json.loads((folder / "recipe.json").read_text("utf-8")) == wanted
            and (folder / "log_probs.npy").exists()
        ):
            return folder if runs.finished(folder) else None
    return None

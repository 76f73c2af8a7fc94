"""From a recipe to a folder of results: one run, and both stages of a named recipe."""

import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from apportion import pipeline
from apportion._device import (
    deterministic_algorithms,
    find_device,
    free_memory,
    graphs_for,
    plain_network,
    usual_batch_lengths,
)
from apportion._random import reseed
from apportion.augment import PAIRS
from apportion.checkpoints import check_state
from apportion.distributed import (
    DistributedPipeline,
    ProcessGroup,
    check_same,
    process_batch_size,
    process_device,
    process_group,
)
from apportion.errors import ApportionWarning, RunError
from apportion.evaluate import (
    accuracy,
    confusion,
    entropy,
    max_proportion_gap,
    predict_log_proba,
    proportion_error,
)
from apportion.experiments import run_folder
from apportion.experiments.data import RunData, data_checksum, load_run_data
from apportion.experiments.extensions import import_modules
from apportion.experiments.provenance import describe_where
from apportion.experiments.recipe import FirstStage, Network, Recipe, SecondStage, check_recipe, to_json
from apportion.experiments.recipes import RECIPES
from apportion.experiments.sample import SampleWriter
from apportion.losses import SCE_WEIGHTS, cross_entropy, symmetric_cross_entropy
from apportion.methods import ROT, make_learner
from apportion.methods.plot import Loss, bag_weights
from apportion.networks import NETWORKS
from apportion.optim import SCHEDULES, Optimization, Schedule, halving, make_optimizers
from apportion.pipeline import EpochState
from apportion.pseudo_labels import Labeler, SoftLabels, argmax_labels, hard_labels, make_labeler, soft_labels


def run(
    recipe: Recipe,
    folder: Path,
    *,
    teacher: Path | None = None,
    device: str = "auto",
    data: Path | None = None,
    exact: bool = False,
    force: bool = False,
    imports: Sequence[str] = (),
) -> Iterator[dict[str, Any]]:
    """Train the last stage of a recipe into a folder and yield the lines of its log.

    An unfinished run resumes. `teacher` is the folder of the first stage that a second stage starts from.
    Whatever ends the run early, a signal or an error, leaves a checkpoint of the last whole epoch. `exact`
    allows deterministic algorithms only. `force` resumes although recipe, data or version have changed; this
    is recorded. `imports` are modules that register methods, networks or data sets of the recipe.
    """
    # everything that can fail early fails here, before the folder is created
    checksums = import_modules(imports)
    check_recipe(recipe)
    run_folder.check_not_finished(folder)
    run_folder.check_same_recipe(folder, to_json(recipe), force)
    place = process_device(find_device(device))
    group = process_group(place)
    task = load_run_data(recipe, place, data)
    where = describe_where(place, exact, checksums)
    where["data"] = data_checksum(task)
    where["processes"] = 1 if group is None else group.size
    if recipe.second is not None and teacher is None:
        raise RunError("a second stage needs the run of its first stage; pass its folder as teacher")
    if teacher is not None:
        where["teacher"] = run_folder.describe_teacher(teacher)
        run_folder.check_teacher_data(teacher, where["data"])
        for module in run_folder.changed_modules(teacher, checksums):
            _warn(f"the first stage in {teacher} was made with another {module}.py")
    if group is not None:
        _check_processes(group, where, recipe)
        if group.rank:
            _follow(recipe, task, teacher, exact, group)
            return
    with deterministic_algorithms(exact), run_folder.open_run(folder) as checkpointer:
        run_folder.check_not_finished(folder)  # by another process, while this one read its data
        resume = run_folder.start_run(folder, to_json(recipe), where, force)
        if group is not None:
            resume = group.broadcast(resume)
        sample = SampleWriter(folder, recipe, task, 0 if resume is None else resume["epoch"])
        label = build_labeler(recipe.second)
        fresh = None if recipe.second is None else FreshLabels(recipe.second, task, resume)
        state = None
        for state in train_stage(recipe, task, teacher, resume, label, group):
            line = evaluate_epoch(state, task, label, fresh)
            run_folder.append_log(folder, line)
            sample.add(state)
            if not state.last:
                checkpointer.keep(state.state() | ({} if fresh is None else {"fresh_labels": fresh.rounds}))
            yield line
        if state is None:
            raise RunError(f"{folder} has no epoch left to train; set epochs to more than are done")
        classifier = state.learner.classifier
        log_probs = predict_log_proba(classifier, task.bags.x, task.prepare, recipe.batch_size)
        test = predict_log_proba(classifier, task.data.test_x, task.prepare)
        result = summarize(run_folder.read_log(folder), task, log_probs, test)
        sample.finish(state, test, result["seconds"])
        run_folder.finish_run(folder, result, plain_network(classifier).state_dict(), log_probs)
    if group is not None:
        group.barrier()  # so that all processes find the run finished


# --- training


def train_stage(
    recipe: Recipe,
    task: RunData,
    teacher: Path | None,
    resume: dict[str, Any] | None,
    label: Labeler | None,
    group: ProcessGroup | None = None,
) -> Iterator[EpochState]:
    """Train the second stage of a recipe if it has one, else the first."""
    bags = task.bags
    shape = task.data.x.shape[1:]
    batch_size = recipe.batch_size
    stages: Any = pipeline if group is None else DistributedPipeline(group)
    own_batch_size = batch_size if group is None else process_batch_size(bags, group.size, batch_size)
    lengths = usual_batch_lengths(bags.sizes, own_batch_size)
    to_device, graph_part = graphs_for(task.device, lengths, parts=recipe.stage_augment in PAIRS)
    reseed(recipe.seed, "first" if recipe.second is None else "second", "weights")
    classifier = to_device(build_network(recipe.stage_network, shape, task.data.n_classes))
    if recipe.second is None:
        first = recipe.first
        augment = graph_part(task.augment)
        learner = make_learner(
            first.method,
            classifier,
            bags,
            by=first.batches,
            options=first.options,
            to_device=to_device,
            graph_part=graph_part,
        )
        optimizers = build_optimizers(learner.networks(), first)
        if resume is not None:
            check_state(resume, learner.networks(), optimizers, error=RunError)
        return stages.first_stage(
            learner,
            bags,
            optimizers,
            epochs=first.epochs,
            schedule=build_schedule(first),
            seed=recipe.seed,
            batch_size=batch_size,
            by=first.batches,
            augment=augment,
            resume=resume,
        )
    second = recipe.second
    assert teacher is not None and label is not None  # noqa: S101, PT018  # checked by `run`
    if second.student == "teacher":
        run_folder.load_weights(teacher, plain_network(classifier))
    log_probs = run_folder.read_log_probs(teacher)
    if log_probs.shape != (len(bags.x), task.data.n_classes):
        raise RunError(f"{teacher} has predictions for other data; run its first stage again")
    optimizers = build_optimizers([classifier], second)
    if resume is not None:
        check_state(resume, [classifier], optimizers, log_probs.shape, error=RunError)
    weights = None
    if second.weighting == "bag":
        rows_per_batch = own_batch_size if recipe.first.batches == "bag" else len(bags.x)
        weights = bag_weights(bags.sizes, rows_per_batch).to(task.device)
    return stages.second_stage(
        log_probs.to(task.device),
        classifier,
        bags,
        optimizers,
        epochs=second.epochs,
        schedule=build_schedule(second),
        seed=recipe.seed,
        label=label,
        loss=build_loss(second),
        mixup=second.mixup,
        weights=weights,
        memory=second.memory,
        warmup_epochs=second.warmup_epochs,
        ema=second.ema,
        stop=second.stop,
        batch_size=batch_size,
        by=recipe.first.batches,
        augment=task.augment,
        prepare=task.prepare,
        resume=resume,
    )


def build_network(network: Network, shape: Sequence[int], n_classes: int) -> nn.Module:
    return NETWORKS[network.name](shape, n_classes, **network.options)


def build_optimizers(networks: Sequence[nn.Module], stage: FirstStage | SecondStage) -> list[Optimizer]:
    """One optimizer per network: the stage's for the classifier, Adam for a generator."""
    settings = Optimization(
        stage.optimizer,
        stage.learning_rate,
        build_schedule(stage),
        stage.weight_decay,
        stage.momentum,
        stage.clip if isinstance(stage, FirstStage) else None,
    )
    if isinstance(stage, SecondStage):
        return make_optimizers(networks, settings)
    return make_optimizers(networks, settings, stage.generator_learning_rate)


def build_schedule(stage: FirstStage | SecondStage) -> Schedule:
    if stage.schedule == "halving":  # after every 100 epochs
        return partial(halving, epochs=stage.epochs)
    return SCHEDULES[stage.schedule]


def build_labeler(second: SecondStage | None) -> Labeler | None:
    if second is None:
        return None
    return make_labeler(second.labels, second.reg, math.inf if second.precision is None else second.precision)


def build_loss(second: SecondStage) -> Loss:
    if second.loss == "ce":
        return cross_entropy
    preset = second.loss.removeprefix("sce-")
    alpha, beta = SCE_WEIGHTS.get(preset, (second.alpha, second.beta))
    return partial(symmetric_cross_entropy, alpha=alpha, beta=beta, log_zero=second.log_zero)


# --- several processes


def _follow(recipe: Recipe, task: RunData, teacher: Path | None, exact: bool, group: ProcessGroup) -> None:
    """Train as a process other than the first, which alone writes to the folder."""
    with deterministic_algorithms(exact):
        label = build_labeler(recipe.second)
        for _ in train_stage(recipe, task, teacher, group.broadcast(None), label, group):
            pass
    group.barrier()


def _check_processes(group: ProcessGroup, where: dict[str, Any], recipe: Recipe) -> None:
    """All processes must have the same data, version and arithmetic, and sum whole gradients."""
    if recipe.second is None and recipe.first.clip is not None:
        raise RunError("first.clip works with one process only; leave it out, or start one process")
    if recipe.first.batches == "row":
        raise RunError("first.batches=row works with one process only; set it to bag, or start one process")
    check_same(group, {name: where[name] for name in ("apportion", "torch", "exact", "data")})


# --- evaluation

FRESH_ROUNDS = 5  # of TD_OT_5 in figure 3


class FreshLabels:
    """Exact labels made from the predictions of each of the last five epochs: TD_OT and TD_OT_5 of figure 3.

    They are only measured. The student may learn others: from a moving average of predictions (`second.ema`),
    soft ones, or predictions without transport.

    Attributes
    ----------
    rounds : list of Tensor
        The classes (N,) of each round, on the CPU, the latest last. Checkpoints have them.
    """

    def __init__(self, second: SecondStage, task: RunData, resume: dict[str, Any] | None) -> None:
        self.bags = task.bags
        self.n_classes = task.data.n_classes
        self.are_learned = second.labels == "hard" and second.ema == 0
        self.rounds: list[Tensor] = [] if resume is None else resume.get("fresh_labels", [])
        if not isinstance(self.rounds, list) or not all(map(self._is_round, self.rounds)):
            raise RunError("the checkpoint has labels of other data; delete it to start over")

    def _is_round(self, classes: Any) -> bool:
        return (
            isinstance(classes, Tensor)
            and classes.dtype == torch.int32
            and classes.shape == (len(self.bags.x),)
            and bool(((classes >= 0) & (classes < self.n_classes)).all())
        )

    def add(self, state: EpochState) -> Tensor:
        """Add the round of this epoch, and return its labels (N, k)."""
        assert state.log_probs is not None and state.labels is not None  # noqa: S101, PT018
        if self.are_learned:
            labels = state.labels.rounds[-1]
        else:
            labels = hard_labels(state.log_probs, self.bags.sizes, self.bags.proportions)
        self.rounds = [*self.rounds, labels.argmax(1).int().cpu()][-FRESH_ROUNDS:]
        return labels

    def mean(self) -> Tensor:
        """The mean of the rounds, (N, k), on the CPU."""
        total = torch.zeros(len(self.bags.x), self.n_classes)
        for classes in self.rounds:
            total.scatter_add_(1, classes.long().unsqueeze(1), torch.ones(len(classes), 1))
        return total / len(self.rounds)


def evaluate_epoch(
    state: EpochState, task: RunData, label: Labeler | None, fresh: FreshLabels | None
) -> dict[str, Any]:
    """A line of the log: loss terms, accuracies in percent, and seconds by part.

    `label` makes the labels that a student learns, and `fresh` those of figure 3; None in a first stage.
    """
    started = time.perf_counter()
    classifier = state.learner.classifier
    sizes = task.bags.sizes
    proportions = task.bags.proportions
    line: dict[str, Any] = {"stage": state.stage, "epoch": state.epoch.number, "terms": state.epoch.terms}
    test = predict_log_proba(classifier, task.data.test_x, task.prepare)
    line["test_accuracy"] = _percent(accuracy(test, task.data.test_y))
    if task.validation is not None:
        log_probs = predict_log_proba(classifier, task.validation.x, task.prepare)
        error = proportion_error(log_probs, task.validation.sizes, task.validation.proportions)
        line["validation_error"] = _percent(error)
    if state.log_probs is not None and state.labels is not None:
        latest = state.labels.rounds[-1]
        line["label_accuracy"] = {
            "predicted": _percent(accuracy(state.log_probs, task.hidden)),
            "labels": _percent(accuracy(latest, task.hidden)),
            "mean": _percent(accuracy(state.labels.mean, task.hidden)),
        }
        if fresh is not None:
            line["label_accuracy"] |= {
                "fresh_labels": _percent(accuracy(fresh.add(state), task.hidden)),
                "fresh_mean": _percent(accuracy(fresh.mean(), task.hidden.cpu())),
            }
        line["label_gap"] = max_proportion_gap(latest, sizes, proportions)
        line["proportion_error"] = _percent(proportion_error(state.log_probs, sizes, proportions))
    if state.change is not None:
        line["change"] = state.change
    if isinstance(state.learner, ROT):
        line["plan_error"] = state.learner.label.reset_worst_error()  # the largest of its batches
    elif isinstance(label, SoftLabels) and state.log_probs is not None:
        line["plan_error"] = float(label.last_error)
    line["seconds"] = {
        "train": round(state.epoch.seconds, 4),
        "label": round(state.label_seconds, 4),
        "evaluate": round(time.perf_counter() - started, 4),
    }
    return line


def summarize(log: list[dict[str, Any]], task: RunData, log_probs: Tensor, test: Tensor) -> dict[str, Any]:
    """The result of a run. The last epoch is the headline; the best test epoch is marked as oracle."""
    curve = [line["test_accuracy"] for line in log]
    best = max(range(len(curve)), key=curve.__getitem__)
    test_accuracy = {"last": curve[-1], "oracle": curve[best], "oracle_epoch": best + 1}
    if "validation_error" in log[0]:
        chosen = min(range(len(log)), key=lambda i: log[i]["validation_error"])
        test_accuracy |= {"validation": curve[chosen], "validation_epoch": chosen + 1}
    sizes = task.bags.sizes
    proportions = task.bags.proportions
    on_cpu = log_probs.cpu(), sizes, proportions.cpu()
    labels = {
        "argmax": argmax_labels(*on_cpu),
        "exact": hard_labels(*on_cpu),
        "entropic": soft_labels(*on_cpu, reg=1.0),
        "relaxed": soft_labels(*on_cpu, reg=1.0, precision=1.0),
    }
    return {
        "test_accuracy": test_accuracy,
        "epochs": len(curve),
        "train": {
            "errors": int((log_probs.argmax(1) != task.hidden).sum()),
            "proportion_error": _percent(proportion_error(log_probs, sizes, proportions)),
            "entropy": round(float(entropy(log_probs).mean()), 4),
            "label_accuracy": {
                name: _percent(accuracy(each, task.hidden.cpu())) for name, each in labels.items()
            },
        },
        "seconds": {part: round(sum(line["seconds"][part] for line in log), 2) for part in log[0]["seconds"]},
        "confusion": confusion(test.argmax(1), task.data.test_y, task.data.n_classes).tolist(),
    }


def _percent(fraction: float) -> float:
    return round(100 * fraction, 4)


# --- both stages


def folder_of_run(root: Path, name: str, recipe: Recipe) -> Path:
    """Where the run of a named recipe belongs: root/group/method/bag size/seed=n."""
    return root / name / f"seed={recipe.seed}"


def run_with_teacher(
    recipe: Recipe,
    root: Path,
    name: str,
    *,
    device: str = "auto",
    data: Path | None = None,
    exact: bool = False,
    force: bool = False,
    imports: Sequence[str] = (),
) -> Iterator[tuple[Path, int, dict[str, Any] | None]]:
    """Run a named recipe, and before it its first stage unless a run of that is there.

    Yields (folder, epochs of its stage, line of its log); the line is None if the run was finished before.
    """
    import_modules(imports)
    check_recipe(recipe)
    folder = folder_of_run(root, name, recipe)
    if run_folder.is_finished(folder):
        run_folder.check_same_recipe(folder, to_json(recipe))
        yield folder, recipe.stage.epochs, None
        return
    settings: dict[str, Any] = {
        "device": device,
        "data": data,
        "exact": exact,
        "force": force,
        "imports": imports,
    }
    teacher = None
    if recipe.second is not None:
        teacher = teacher_folder(recipe, root, name)
        if not run_folder.is_finished(teacher):
            for line in run(replace(recipe, second=None), teacher, **settings):
                yield teacher, recipe.first.epochs, line
            free_memory()
    for line in run(recipe, folder, teacher=teacher, **settings):
        yield folder, recipe.stage.epochs, line
    free_memory()


def teacher_folder(recipe: Recipe, root: Path, name: str) -> Path:
    """Where the first stage of a recipe is, or is to be trained.

    A finished run without its predictions or weights (such as those under results/) cannot teach. It is left
    alone, and its first stage is trained again next to it, in a folder that no report counts.
    """
    first = replace(recipe, second=None)
    usual_name = first_stage_name(name, recipe)
    if usual_name == name:
        group, _, size = name.split("/")
        raise RunError(
            f"{name} is the name of the first stage of this run; name the run of its second stage otherwise, "
            f"such as {group}/{recipe.first.method}+plot/{size} (--name)"
        )
    found = find_run(root, first, files_to_teach(recipe))
    if found is not None:
        return found
    usual = folder_of_run(root, usual_name, recipe)
    if not run_folder.is_finished(usual):
        return usual
    run_folder.check_same_recipe(usual, to_json(first))
    again, number = usual.with_name(f"again-{usual.name}"), 1
    while run_folder.is_finished(again) and not can_teach(again, recipe):
        number += 1
        again = usual.with_name(f"again{number}-{usual.name}")
    if not run_folder.is_finished(again):
        missing = ", ".join(file for file in files_to_teach(recipe) if not (usual / file).exists())
        _warn(f"{usual} has no {missing}, so its first stage is trained again in {again.name}")
    return again


def first_stage_name(name: str, recipe: Recipe) -> str:
    """The name under which the first stage of a recipe is trained, usually group/method/bag size.

    Some named recipes share that of another group: table1-mixup/dllp+plot/64 starts from table1/dllp/64.
    A recipe of another name, such as a changed one, keeps what it trains in its own group.
    """
    group, _, size = name.split("/")
    usual = f"{group}/{recipe.first.method}/{size}"
    if name not in RECIPES:
        return usual
    first = replace(recipe, second=None, seed=RECIPES[name].seed)
    same = [named for named, each in RECIPES.items() if each == first]
    return same[0] if same and usual not in same else usual


def files_to_teach(recipe: Recipe) -> list[str]:
    """The files of a first stage that its second stage starts from."""
    if recipe.second is not None and recipe.second.student == "teacher":
        return ["log_probs.npy", "model.safetensors"]
    return ["log_probs.npy"]


def can_teach(folder: Path, recipe: Recipe) -> bool:
    return run_folder.is_finished(folder) and all((folder / file).exists() for file in files_to_teach(recipe))


def find_run(root: Path, recipe: Recipe, files: Sequence[str]) -> Path | None:
    """A finished run of exactly this recipe below the root that has these files."""
    wanted = json.loads(to_json(recipe))
    for folder in run_folder.all_runs(root):
        if not run_folder.is_finished(folder) or not all((folder / file).exists() for file in files):
            continue
        with suppress(RunError):  # a damaged folder teaches nobody
            if not run_folder.differences(run_folder.read_recipe(folder), wanted):
                return folder
    return None


def _warn(message: str) -> None:
    import warnings

    warnings.warn(message, ApportionWarning, stacklevel=3)

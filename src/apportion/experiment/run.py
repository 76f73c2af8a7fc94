"""One run, from a recipe to a folder of results."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from apportion import pipeline, runs
from apportion._device import (
    compile_for,
    deterministic_algorithms,
    find_device,
    plain_network,
    usual_batch_lengths,
)
from apportion._random import reseed
from apportion.augment import PAIRS
from apportion.distributed import (
    DistributedPipeline,
    ProcessGroup,
    check_same,
    process_batch_size,
    process_device,
    process_group,
)
from apportion.evaluate import predict_log_proba
from apportion.experiment import sample
from apportion.experiment.measure import evaluated, summary
from apportion.experiment.task import Task, augmentation, fingerprint, load_task
from apportion.experiment.where import where
from apportion.methods.plot import bag_weights
from apportion.pseudo_labels import Labeler
from apportion.recipes import Recipe, Second, to_json
from apportion.recipes.building import (
    build_labeler,
    build_learner,
    build_loss,
    build_network,
    build_optimizers,
    build_schedule,
    by,
)
from apportion.recipes.checks import check


def epoch_states(
    recipe: Recipe,
    task: Task,
    teacher: Path | None,
    resume: dict[str, Any] | None,
    label: Labeler,
    group: ProcessGroup | None = None,
) -> Iterator[pipeline.EpochState]:
    """The stage that this recipe trains: the first where it has no second, else the second."""
    shape, k, batch = task.data.x.shape[1:], task.data.n_classes, recipe.batch_size
    stages = pipeline if group is None else DistributedPipeline(group)
    own = batch if group is None else process_batch_size(task.bags, group.size, batch)
    fast, second, pairs = (
        usual_batch_lengths(task.bags.sizes, own),
        recipe.second,
        augmentation(recipe) in PAIRS,
    )
    place, hasten = compile_for(task.device, fast, parts=pairs)
    reseed(recipe.seed, "first" if second is None else "second", "weights")
    network = recipe.network if second is None or second.network is None else second.network
    classifier = place(build_network(network, shape, k))
    if second is None:
        learner = build_learner(recipe.first, classifier, task.bags, place, hasten)
        optimizers = build_optimizers(learner.networks(), recipe.first)
        runs.check_fit(resume, learner.networks(), optimizers, None)
        return stages.first_stage(
            learner, task.bags, optimizers, epochs=recipe.first.epochs, by=by(recipe.first),
            schedule=build_schedule(recipe.first), seed=recipe.seed, batch_size=batch, resume=resume,
            augment=hasten(task.augment),
        )  # fmt: skip
    if teacher is None:
        raise runs.RunError("a second stage needs the run of its first stage; pass its folder as teacher")
    if second.student == "teacher":
        runs.load_weights(teacher, plain_network(classifier))
    log_probs, optimizers = runs.read_log_probs(teacher), build_optimizers([classifier], second)
    if log_probs.shape != (len(task.bags.x), k):
        raise runs.RunError(f"{teacher} has predictions of other data; run its first stage again")
    runs.check_fit(resume, [classifier], optimizers, log_probs.shape)
    seen = own if recipe.first.batches is None else len(task.bags.x)
    return stages.second_stage(
        log_probs.to(task.device), classifier, task.bags, optimizers, epochs=second.epochs, label=label,
        schedule=build_schedule(second), seed=recipe.seed, loss=build_loss(second), mixup=second.mixup,
        weights=bag_weights(task.bags.sizes, seen).to(task.device) if second.weighting == "bag" else None,
        memory=second.memory, warmup_epochs=second.hold, ema=second.running, stop=second.stop, resume=resume,
        batch_size=batch, by=by(recipe.first), augment=task.augment, prepare=task.prepare,
    )  # fmt: skip


def run(
    recipe: Recipe,
    folder: Path,
    *,
    teacher: Path | None = None,
    device: str = "auto",
    data: Path | None = None,
    exact: bool = False,
    force: bool = False,
) -> Iterator[dict[str, Any]]:
    """Run a recipe into a folder, yielding each line of its log; an unfinished run goes on where it was.

    Whatever ends it early, a signal or an error, leaves the checkpoint of the last whole epoch. `force` goes
    on with a changed recipe, data set or version, and this is written down.
    """
    check(recipe)
    refuse_finished(folder)
    place = process_device(find_device(device))
    runs.refuse_other(folder, to_json(recipe), force)
    # before the folder is made: what cannot start leaves nothing behind
    task, group = load_task(recipe, place, data), process_group(place)
    here = where(place, exact) | {"data": fingerprint(task), "processes": 1 if group is None else group.size}
    runs.refuse_other_data(teacher, here["data"])
    if group is not None:
        check_one_process_settings(recipe)
        check_same(group, {name: here[name] for name in ("apportion", "torch", "exact", "data")})
        if group.rank:
            return follow(recipe, task, teacher, exact, group)
    with deterministic_algorithms(exact), runs.opened(folder) as keeper:
        refuse_finished(folder)  # by another process, while this one read its data
        state, epoch_state = runs.start(folder, to_json(recipe), here, force), None
        state = state if group is None else group.broadcast(state)
        sample.begin(folder, recipe, task, 0 if state is None else state["epoch"])
        label = build_labeler(recipe.second or Second())
        for epoch_state in epoch_states(recipe, task, teacher, state, label, group):
            line = evaluated(epoch_state, task, label)
            runs.append(folder, line)
            sample.add(folder, recipe, task, epoch_state)
            if not epoch_state.last:
                keeper.keep(epoch_state.state())
            yield line
        if epoch_state is None:
            raise runs.RunError(f"{folder}: no epoch is left to train; set epochs to more than are done")
        log_probs = predict_log_proba(
            epoch_state.learner.classifier, task.bags.x, task.prepare, recipe.batch_size
        )
        test = predict_log_proba(epoch_state.learner.classifier, task.data.test_x, task.prepare)
        result = summary(runs.read_log(folder), task, log_probs, test)
        sample.finish(folder, recipe, task, epoch_state, test, result["seconds"])
        runs.finish(folder, result, plain_network(epoch_state.learner.classifier).state_dict(), log_probs)
    if group is not None:
        group.barrier()  # so that all find the run finished


def follow(recipe: Recipe, task: Task, teacher: Path | None, exact: bool, group: ProcessGroup) -> None:
    """Train as a process that writes nothing: the first one does."""
    with deterministic_algorithms(exact):
        label = build_labeler(recipe.second or Second())
        for _ in epoch_states(recipe, task, teacher, group.broadcast(None), label, group):
            pass
    group.barrier()


def check_one_process_settings(recipe: Recipe) -> None:
    """Raise `RunError` for settings that several processes do not support, before a folder is made."""
    if recipe.second is None and recipe.first.clip is not None:
        raise runs.RunError("first.clip needs the gradients of all rows; leave it out, or use one process")
    if recipe.first.batches is not None:
        raise runs.RunError(
            "first.batches needs the predictions of all rows; leave it out, or use one process"
        )


def refuse_finished(folder: Path) -> None:
    if runs.finished(folder):
        raise runs.RunError(f"{folder} holds a finished run; delete it to run it again, or use another")

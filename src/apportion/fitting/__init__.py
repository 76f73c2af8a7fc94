"""Both stages in one call, with flat arguments: from bags and a backbone to a trained classifier."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import nn

from apportion._device import compile_for, usual_batch_lengths
from apportion._random import reseed
from apportion.bags.bags import Bags
from apportion.errors import SettingsError
from apportion.evaluate import predict_log_proba
from apportion.fitting.auto import kind_of
from apportion.fitting.lengths import usual_size
from apportion.fitting.networks import Backbone, at_rate, check_network, suited, suited_student
from apportion.fitting.start import overall_shares, starting_at
from apportion.intake.instances import as_floats
from apportion.intake.mending import on_belief
from apportion.intake.weights import Relax
from apportion.methods import METHODS
from apportion.networks import NETWORKS
from apportion.pipeline import EpochState, first_stage, second_stage
from apportion.pseudo_labels import Labeler
from apportion.recipes import Second
from apportion.recipes.building import build_labeler, build_learner, build_optimizers, build_schedule
from apportion.recipes.checks import LABELS
from apportion.recipes.ranges import wrong_settings


def stage_settings(
    *,
    first_stage: str,
    second_stage: str | None,
    backbone: str | Backbone,
    labels: str,
    reg: float,
    **others: Any,
) -> dict[str, Any]:
    """What `two_stages` is told, from the words of users; a word that is not known is an error."""
    words: dict[str, tuple[Any, Any]] = {
        "first_stage": (first_stage, METHODS),
        "second_stage": (second_stage, ("plot", None)),
        "labels": (labels, LABELS),
    }
    if isinstance(backbone, nn.Module):
        what, k = f"backbone is a network, {type(backbone).__name__}", "(shape of an instance, n_classes)"
        raise SettingsError(f"{what}; pass a function {k} -> nn.Module: every stage makes a new one")
    if not callable(backbone):
        words["backbone"] = (backbone, NETWORKS)
    for name, (word, known) in words.items():
        if not isinstance(word, str | None) or word not in known:  # what cannot be hashed is no word
            raise SettingsError(f"{name} is {word!r}; there are {', '.join(map(str, known))}")
    if not isinstance(others.get("mirror", True), bool | np.bool_):
        raise SettingsError(f"mirror is {others['mirror']!r}; it must be True or False")
    for problem in wrong_settings(others | {"reg": reg}):
        raise SettingsError(problem)
    label = build_labeler(Second(labels=labels, reg=reg))
    made = backbone if callable(backbone) else NETWORKS[backbone]
    return {
        "backbone": made,
        "method": first_stage,
        "label": None if second_stage is None else label,
        **others,
    }


def two_stages(
    bags: Bags,
    backbone: Backbone,
    *,
    method: str = "dllp",
    label: Labeler | None,
    first_epochs: int | None = None,
    second_epochs: int | None = None,
    rate: float | None = None,
    second_rate: float | None = None,
    batch_size: int | None = None,
    relax: Relax = math.inf,
    mirror: bool = True,
    seed: int = 0,
) -> Iterator[EpochState]:
    """Train a teacher on the bags and, unless `label` is None, a student on its labels.

    The learner of the last state holds the classifier. Settings of None follow the instances, their device
    and the sizes of bags. Bags without proportions (NaN) teach the student alone; `relax` is for noisy ones.
    """
    shape, device, taught = bags.x.shape[1:], bags.x.device, bags.known()
    kind = kind_of(bags.x, device)
    scattered, batch = kind.batches(method, taught, bags, batch_size)
    if first_epochs is None:
        first_epochs = kind.first_epochs(taught, bags, batch, scattered, batch_size)
    second_epochs = kind.second_epochs(bags, batch, scattered) if second_epochs is None else second_epochs
    by = "row" if scattered else "bag"
    fast, pairs = usual_batch_lengths(bags.sizes, batch), method == "two-views"

    def new_network(stage: str, pairs: bool = False) -> nn.Module:
        reseed(seed, stage, "weights")
        network = compile_for(device, fast, pairs)[0](backbone(shape, bags.n_classes))
        check_network(network, backbone, as_floats(bags.x[:1]), bags.n_classes, batch, mirror)
        return starting_at(overall_shares(taught), network)

    network, (place, hasten) = new_network("first", pairs), compile_for(device, fast, parts=pairs)
    first = suited(kind.teacher(method, first_epochs, scattered), backbone, network)
    first = at_rate(first, rate, first_epochs * len(taught.x) / batch, usual_size(taught.sizes))
    learner = build_learner(first, network, shape, place, taught, hasten)
    yield from first_stage(
        learner, taught, build_optimizers(learner.networks(), first), epochs=first_epochs,
        schedule=build_schedule(first), augment=hasten(kind.seen(method, mirror)), seed=seed,
        batch_size=batch, by=by,
    )  # fmt: skip
    if label is None:
        return
    log_probs = predict_log_proba(learner.classifier, bags.x, as_floats, batch)
    student = new_network("second")
    second = suited_student(kind.student(second_epochs), backbone, student)
    second = at_rate(second, second_rate, second_epochs * len(bags.x) / batch, usual_size(bags.sizes))
    yield from second_stage(
        log_probs, student, bags, build_optimizers([student], second), epochs=second_epochs,
        schedule=build_schedule(second), label=on_belief(label, bags, relax), mixup=second.mixup,
        warmup_epochs=math.ceil(kind.hold * second_epochs), ema=second.running, prepare=as_floats,
        augment=kind.seen("plot", mirror), seed=seed, batch_size=batch, by=by,
    )  # fmt: skip


def forget(estimator: Any) -> None:
    """Take away what an earlier fit found: one that is interrupted leaves no model, not half of two."""
    for name in [name for name in vars(estimator) if name.endswith("_") and not name.startswith("_")]:
        delattr(estimator, name)

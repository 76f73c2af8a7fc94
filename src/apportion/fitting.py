"""Both stages in one call, with flat arguments: from bags and a backbone to a trained classifier."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from apportion.backbones import BACKBONES
from apportion.bags import Bags
from apportion.building import build_labeller, build_learner, build_optimizers
from apportion.checks import LABELS
from apportion.data.views import weak_and_strong
from apportion.evaluate import predict
from apportion.first_stage import METHODS
from apportion.labelling import Labeller
from apportion.mending import known_bags, on_belief
from apportion.pipeline import Moment, first_stage, second_stage
from apportion.randomness import reseed
from apportion.ranges import wrong_settings
from apportion.recipes import First, Second
from apportion.schedules import one_cycle
from apportion.speed import placed

Backbone = Callable[[Sequence[int], int], nn.Module]  # (shape of an instance, classes) -> network


class SettingError(ValueError):
    """A setting that cannot be; the message lists those that can."""


def as_floats(x: Tensor) -> Tensor:
    """What the network takes: bytes become floats batch by batch and are not scaled."""
    return x.float()


def batch_of(sizes: Tensor) -> int:
    """Instances in a batch: 256, or the largest bag up to 4,096, since a sampled bag's shares are noisy."""
    return min(4096, max(256, int(sizes.max())))


def epochs_of(sizes: Tensor, instances_per_batch: int, steps: int = 1000, least: int = 5) -> int:
    """Epochs that make about `steps` steps, and no fewer than `least`: small data is gone over more often."""
    batches = int(sizes.clamp_max(instances_per_batch).sum()) / instances_per_batch
    return max(least, math.ceil(steps / math.ceil(batches)))


def line_of(moment: Moment) -> dict[str, Any]:
    """A line of history: stage, epoch, the mean of every term, seconds."""
    epoch = moment.epoch
    return {"stage": moment.stage, "epoch": epoch.number, **epoch.terms, "seconds": round(epoch.seconds, 3)}


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
    if not callable(backbone):
        words["backbone"] = (backbone, BACKBONES)
    for name, (word, known) in words.items():
        if word not in known:
            raise SettingError(f"{name} is {word!r}; there are {', '.join(map(str, known))}")
    for problem in wrong_settings(others | {"reg": reg}):
        raise SettingError(problem)
    label = build_labeller(Second(labels=labels, reg=reg))
    made = backbone if callable(backbone) else BACKBONES[backbone]
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
    label: Labeller | None,
    first_epochs: int | None = None,
    second_epochs: int | None = None,
    rate: float = 2e-3,
    second_rate: float = 1e-3,
    instances_per_batch: int | None = None,
    rounds: int = 5,
    hold: float = 0.6,
    relax: float = math.inf,
    seed: int = 0,
) -> Iterator[Moment]:
    """Train a teacher on the bags and, unless `label` is None, a student on its labels.

    Yields after every epoch; the last moment's learner holds the classifier. The bags are on their device
    already. Settings of None follow the sizes of the bags. The student keeps the teacher's labels for a
    share `hold` of its epochs: in one cycle it has not learnt before. Bags without proportions (NaN) teach
    the student alone; `relax` is for noisy ones, see `mended_bags`.
    """
    shape, device, taught = bags.x.shape[1:], bags.x.device, known_bags(bags)
    batch = batch_of(bags.sizes) if instances_per_batch is None else instances_per_batch
    first_epochs = epochs_of(taught.sizes, batch) if first_epochs is None else first_epochs
    second_epochs = epochs_of(bags.sizes, batch, 500) if second_epochs is None else second_epochs
    if first_epochs < 1:
        raise ValueError(f"first_epochs is {first_epochs}; a teacher needs at least one")

    def new_network(stage: str) -> nn.Module:
        reseed(seed, stage, "weights")
        network = placed(backbone(shape, bags.n_classes), device, batch)
        scores = predict(network, bags.x[:1], as_floats)
        if scores.shape != (1, bags.n_classes):
            remedy = "its last layer must give one score for each class, (n, n_classes)"
            raise ValueError(f"the backbone gives {tuple(scores.shape)} for one instance; {remedy}")
        return network

    first = First(method, first_epochs, rate=rate)
    learner = build_learner(first, new_network("first"), shape, lambda net: placed(net, device, batch))
    shared = {"seed": seed, "instances_per_batch": batch}
    yield from first_stage(
        learner, taught, build_optimizers(learner.players(), first), epochs=first_epochs,
        rate=partial(one_cycle, epochs=first_epochs), **shared,
        augment=weak_and_strong if method == "two-views" else as_floats,
    )  # fmt: skip
    if label is None:
        return
    log_probs = predict(learner.classifier, bags.x, as_floats, batch)
    student = new_network("second")
    yield from second_stage(
        log_probs, student, bags, build_optimizers([student], Second(rate=second_rate)),
        epochs=second_epochs, rate=partial(one_cycle, epochs=second_epochs), label=on_belief(label, relax),
        rounds=rounds, hold=math.ceil(hold * second_epochs), prepare=as_floats, augment=as_floats, **shared,
    )  # fmt: skip

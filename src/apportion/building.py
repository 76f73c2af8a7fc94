"""From the words of a recipe to networks, learners and functions; names are checked before data is read."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer

from apportion.backbones import BACKBONES, generator
from apportion.bagging import cluster_groups, dirichlet_groups, random_groups
from apportion.data import SOURCES
from apportion.data.sets import IMAGE_SETS
from apportion.data.views import AUGMENTATIONS
from apportion.first_stage import METHODS
from apportion.labelling import Labeller, argmax_labels, hard_labels, predicted_labels
from apportion.learner import Learner
from apportion.losses import SCE_WEIGHTS, cross_entropy, symmetric_cross_entropy
from apportion.optimizers import make_optimizer
from apportion.plans import SoftLabels
from apportion.ranges import check_ranges
from apportion.recipes import First, Network, Recipe, RecipeError, Second
from apportion.schedules import SCHEDULES
from apportion.second_stage import Loss
from apportion.train import Rate

BAGGINGS = {"random": random_groups, "dirichlet": dirichlet_groups, "cluster": cluster_groups}
LABELS = ("hard", "soft", "predicted", "argmax")
LOSSES = ("ce", "sce", *(f"sce-{preset}" for preset in SCE_WEIGHTS))


def check(recipe: Recipe) -> None:
    """Refuse a recipe with a name or an option that does not exist, listing those that do."""
    stages = [("first", recipe.first), ("second", recipe.second)]
    names: list[tuple[str, str, Any]] = [
        ("data.name", recipe.data.name, SOURCES),
        ("data.bagging", recipe.data.bagging, BAGGINGS),
        ("first.method", recipe.first.method, METHODS),
        ("augment", recipe.augment, AUGMENTATIONS),
    ]
    for stage, part in stages:
        if part is not None:
            names.append((f"{stage}.optimizer", part.optimizer, ("adam", "sgd")))
            names.append((f"{stage}.schedule", part.schedule, SCHEDULES))
    if recipe.second is not None:
        names.append(("second.labels", recipe.second.labels, LABELS))
        names.append(("second.loss", recipe.second.loss, LOSSES))
        names.append(("second.student", recipe.second.student, ("new", "teacher")))
        names.append(("second.weighting", recipe.second.weighting, ("instance", "bag")))
    networks = _networks(recipe)
    names += [(f"{path}.name", network.name, BACKBONES) for path, network in networks.items()]
    for path, name, known in names:
        if name not in known:
            raise RecipeError(f"{path} is '{name}'; there are {', '.join(known)}")
    for path, network in networks.items():
        _check_options(f"{path}.options", network.options, BACKBONES[network.name], 2)
    _check_options("first.options", recipe.first.options, METHODS[recipe.first.method], 1)
    check_ranges(recipe)
    _check_together(recipe)


def _check_together(recipe: Recipe) -> None:
    """Refuse settings that are fine one by one and do not go together."""
    second, points = recipe.second, recipe.data.name not in IMAGE_SETS
    if recipe.augment != "none" and points:
        raise RecipeError(
            f"augment is '{recipe.augment}', but {recipe.data.name} has no images: set it to none"
        )
    for path, network in _networks(recipe).items():
        if network.name != "mlp" and points:
            what = f"{path}.name is '{network.name}', which takes images"
            raise RecipeError(f"{what}, but {recipe.data.name} has none: set it to mlp")
    if second is not None and second.student == "teacher" and second.network not in (None, recipe.network):
        raise RecipeError(
            "second.student is 'teacher', whose network goes on: leave second.network out, or set "
            "second.student to new"
        )


def _networks(recipe: Recipe) -> dict[str, Network]:
    own = None if recipe.second is None else recipe.second.network
    return {"network": recipe.network} | ({} if own is None else {"second.network": own})


def _check_options(path: str, options: Mapping[str, Any], maker: Callable[..., Any], given: int) -> None:
    taken = list(inspect.signature(maker).parameters.values())[given:]
    known = {option.name: option.default for option in taken if option.name != "generator"}
    for name, value in options.items():
        if name not in known:
            raise RecipeError(f"no setting '{path}.{name}'; there are {', '.join(known) or 'none'}")
        if not _alike(value, known[name]):
            raise RecipeError(f"{path}.{name} is {str(value)[:80]}; it must be such as {known[name]!r}")


def _alike(value: Any, default: Any) -> bool:
    """Whether an option has the type of its default: a number, a truth, a tuple of whole numbers."""
    if isinstance(default, tuple):
        return isinstance(value, tuple) and all(type(each) is int for each in value)
    return type(value) in ((int, float) if isinstance(default, float) else (type(default),))


def build_network(network: Network, shape: Sequence[int], n_classes: int) -> nn.Module:
    return BACKBONES[network.name](shape, n_classes, **network.options)


def build_learner(
    first: First, classifier: nn.Module, shape: Sequence[int], place: Callable[[nn.Module], nn.Module]
) -> Learner:
    """The first stage's learner; LLP-GAN gets a generator of instances of this shape as its second player."""
    options = dict(first.options)
    if first.method == "gan":
        options["generator"] = place(generator(shape, int(options.get("noise", 100))))
    return METHODS[first.method](classifier, **options)


def build_optimizers(players: Sequence[nn.Module], stage: First | Second) -> list[Optimizer]:
    """One optimiser a player: the stage's own for the classifier, Adam with β₁ = 0.5 for a generator."""
    classifier, *others = players
    own = make_optimizer(classifier, stage.optimizer, stage.rate, decay=stage.decay, momentum=stage.momentum)
    if not isinstance(stage, First):
        return [own]
    return [own, *(make_optimizer(other, "adam", stage.generator_rate, momentum=0.5) for other in others)]


def build_rate(stage: First | Second) -> Rate:
    return partial(SCHEDULES[stage.schedule], epochs=stage.epochs)


def build_labeller(second: Second) -> Labeller:
    if second.labels == "soft":
        return SoftLabels(second.reg, math.inf if second.relax is None else second.relax)
    return {"hard": hard_labels, "predicted": predicted_labels, "argmax": argmax_labels}[second.labels]


def build_loss(second: Second) -> Loss:
    if second.loss == "ce":
        return cross_entropy
    alpha, beta = SCE_WEIGHTS.get(second.loss.removeprefix("sce-"), (second.alpha, second.beta))
    return partial(symmetric_cross_entropy, alpha=alpha, beta=beta, log_zero=second.log_zero)

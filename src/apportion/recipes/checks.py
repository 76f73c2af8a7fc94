"""Whether a recipe can be run: names, options, ranges, and what goes together; before any data is read."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from apportion.augment import AUGMENTATIONS, PAIRS
from apportion.bags.simulate import BAG_KINDS
from apportion.datasets import DATASETS, IMAGE_SETS
from apportion.errors import SettingsError
from apportion.losses import SCE_WEIGHTS
from apportion.methods import METHODS, ROW_METHODS
from apportion.networks import NETWORKS
from apportion.optim import OPTIMIZERS, SCHEDULES
from apportion.pseudo_labels import PSEUDO_LABELS
from apportion.recipes import First, Network, Recipe
from apportion.recipes.ranges import check_ranges

LABELS = PSEUDO_LABELS
LOSSES = ("ce", "sce", *(f"sce-{preset}" for preset in SCE_WEIGHTS))


def check(recipe: Recipe) -> None:
    """Refuse a recipe with a name or an option that does not exist, listing those that do."""
    stages = [("first", recipe.first), ("second", recipe.second)]
    names: list[tuple[str, str, Any]] = [
        ("data.name", recipe.data.name, DATASETS),
        ("data.bagging", recipe.data.bagging, BAG_KINDS),
        ("first.method", recipe.first.method, METHODS),
        ("augment", recipe.augment, AUGMENTATIONS),
    ]
    for stage, part in stages:
        if part is not None:
            names.append((f"{stage}.optimizer", part.optimizer, OPTIMIZERS))
            names.append((f"{stage}.schedule", part.schedule, SCHEDULES))
    if recipe.second is not None:
        names.append(("second.labels", recipe.second.labels, LABELS))
        names.append(("second.loss", recipe.second.loss, LOSSES))
        names.append(("second.student", recipe.second.student, ("new", "teacher")))
        names.append(("second.weighting", recipe.second.weighting, ("instance", "bag")))
        if recipe.second.augment is not None:
            names.append(("second.augment", recipe.second.augment, AUGMENTATIONS))
    networks = _networks(recipe)
    names += [(f"{path}.name", network.name, NETWORKS) for path, network in networks.items()]
    for path, name, known in names:
        if name not in known:
            raise SettingsError(f"{path} is '{name}'; there are {', '.join(known)}")
    for path, network in networks.items():
        _check_options(f"{path}.options", network.options, NETWORKS[network.name], 2)
    _check_options("first.options", recipe.first.options, METHODS[recipe.first.method], 1)
    check_ranges(recipe)
    _check_together(recipe)


def _check_together(recipe: Recipe) -> None:
    """Refuse settings that are fine one by one and do not go together."""
    second, points = recipe.second, recipe.data.name not in IMAGE_SETS
    own = None if second is None else second.augment
    for path, augment in (("augment", recipe.augment), ("second.augment", own)):
        if augment not in ("none", None, *PAIRS) and points:
            raise SettingsError(
                f"{path} is '{augment}', but {recipe.data.name} has no images: set it to none"
            )
    _check_views(recipe)
    _check_batches(recipe.first)
    for path, network in _networks(recipe).items():
        if network.name != "mlp" and points:
            what = f"{path}.name is '{network.name}', which takes images"
            raise SettingsError(f"{what}, but {recipe.data.name} has none: set it to mlp")
    if second is not None and second.student == "teacher" and second.network not in (None, recipe.network):
        raise SettingsError(
            "second.student is 'teacher', whose network goes on: leave second.network out, or set "
            "second.student to new"
        )


def _check_views(recipe: Recipe) -> None:
    """Two views are of one method: it needs them, and no other can take them."""
    second = recipe.second
    if (recipe.first.method == "two_views") != (recipe.augment in PAIRS):
        raise SettingsError(
            f"first.method is '{recipe.first.method}' and augment is '{recipe.augment}'; the method "
            f"two_views and the views {' or '.join(PAIRS)} go together: set both or neither"
        )
    if second is not None and (second.augment or recipe.augment) in PAIRS:
        pair = second.augment or recipe.augment
        raise SettingsError(f"a second stage learns from one view; set second.augment to one, not to {pair}")


def _check_batches(first: First) -> None:
    """Scattered batches are for methods that remember bags, whose loss is that of bag means."""
    if first.batches not in (None, "scattered"):
        raise SettingsError(f"first.batches is '{first.batches}'; set scattered, or null for whole bags")
    if first.batches is not None and first.method not in ROW_METHODS:
        what = f"first.batches is '{first.batches}', but first.method is '{first.method}'"
        raise SettingsError(
            f"{what}; set the method to {' or '.join(ROW_METHODS)}, or leave first.batches out"
        )
    if first.batches is not None and first.options.get("counts"):
        raise SettingsError("first.options.counts is of whole bags; leave it out, or first.batches")


def _networks(recipe: Recipe) -> dict[str, Network]:
    own = None if recipe.second is None else recipe.second.network
    return {"network": recipe.network} | ({} if own is None else {"second.network": own})


def _check_options(path: str, options: Mapping[str, Any], maker: Callable[..., Any], given: int) -> None:
    taken = list(inspect.signature(maker).parameters.values())[given:]
    # what has no default, or none, is built here, as LLP-GAN's generator is, and what is remembered
    built = (inspect.Parameter.empty, None)
    known = {option.name: option.default for option in taken if option.default not in built}
    for name, value in options.items():
        if name not in known:
            raise SettingsError(f"no setting '{path}.{name}'; there are {', '.join(known) or 'none'}")
        if not _alike(value, known[name]):
            raise SettingsError(f"{path}.{name} is {str(value)[:80]}; it must be such as {known[name]!r}")


def _alike(value: Any, default: Any) -> bool:
    """Whether an option has the type of its default: a number, a truth, a tuple of whole numbers."""
    if isinstance(default, tuple):
        return isinstance(value, tuple) and all(type(each) is int for each in value)
    return type(value) in ((int, float) if isinstance(default, float) else (type(default),))

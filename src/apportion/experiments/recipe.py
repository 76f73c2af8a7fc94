"""A recipe says what a run trains: data, network and both stages, as frozen values that are also JSON.

`check_recipe` refuses names, options, numbers and combinations that cannot be run, before any data is read.
"""

import hashlib
import inspect
import json
import math
import re
import typing
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any

from apportion._untrusted import printable
from apportion.augment import AUGMENTATIONS, PAIRS
from apportion.bags.simulate import BAG_KINDS
from apportion.datasets import DATASETS, IMAGE_SETS, dataset_names
from apportion.errors import SettingsError
from apportion.losses import SCE_WEIGHTS
from apportion.methods import METHODS, option_defaults, takes_pairs, takes_rows
from apportion.methods.build import class_of
from apportion.networks import IMAGE_NETWORKS, NETWORKS
from apportion.optim import OPTIMIZERS, SCHEDULES
from apportion.pseudo_labels import PSEUDO_LABELS, RECIPE_REG

Options = Mapping[str, Any]  # checked against the signature of the function that takes them

LONGEST_CHANGES = 120  # characters of a folder's name

LOSSES = ("ce", "sce", *(f"sce-{preset}" for preset in SCE_WEIGHTS))


@dataclass(frozen=True)
class Data:
    name: str = "moons"
    bag_size: int = 50
    bagging: str = "random"  # or dirichlet, cluster, kmeans
    validation_fraction: float = 0.0  # of the bags: not trained on, so that they can choose an epoch


@dataclass(frozen=True)
class Network:
    name: str = "mlp"
    options: Options = field(default_factory=dict)


@dataclass(frozen=True)
class FirstStage:
    """A method that learns from the proportions of the bags."""

    method: str = "dllp"
    epochs: int = 150
    optimizer: str = "adam"
    learning_rate: float = 2e-3
    weight_decay: float = 0.0
    momentum: float = 0.9  # β₁ of Adam
    schedule: str = "one_cycle"
    options: Options = field(default_factory=dict)  # of the method
    generator_learning_rate: float = 3e-4  # of LLP-GAN's generator: Adam with β₁ = 0.5
    clip: float | None = None  # largest norm of the gradient of a step
    batches: str = "bag"  # of whole bags, or "row": of rows from all bags


@dataclass(frozen=True)
class SecondStage:
    """PLOT. The defaults are ours; the groups whose names end in `-paper` follow the paper instead."""

    epochs: int = 40
    labels: str = "hard"  # hard, soft, predicted (no transport) or argmax
    reg: float = RECIPE_REG  # soft labels: 1/λ
    precision: float | None = None  # soft labels: weight of the proportions; None: met exactly
    loss: str = "ce"  # or sce, or sce with published weights: sce-mnist, sce-cifar10, sce-cifar100, sce-eq9
    alpha: float = 0.1  # sce: weight of the cross-entropy
    beta: float = 1.0  # sce: weight of the reverse cross-entropy
    log_zero: float = -9.210340371976182  # sce: log 1e-4
    weighting: str = "instance"  # equation (22), or bag: equation (3)
    mixup: float = 0.0  # α of the Beta distribution; 1.0 for images, 0 for points and tables
    memory: int = 5  # rounds of labels that are averaged
    ema: float = 0.0  # momentum of the log-probabilities that labels are made from, at the peak rate
    student: str = "new"  # or teacher: train the network of the first stage on
    warmup_epochs: int = 10  # epochs on the teacher's labels before the first relabeling
    stop: float | None = None  # δ of algorithm 2
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    momentum: float = 0.9
    schedule: str = "flat_then_linear"
    network: Network | None = None  # None: as in the first stage
    augment: str | None = None  # None: as in the first stage


@dataclass(frozen=True)
class Recipe:
    data: Data = Data()
    network: Network = Network()
    first: FirstStage = FirstStage()
    second: SecondStage | None = None
    batch_size: int = 100
    augment: str = "none"  # or crop, crop+flip, strong(-unmirrored); two views: weak+strong(-unmirrored)
    seed: int = 1

    @property
    def stage(self) -> FirstStage | SecondStage:
        """The stage that a run of this recipe trains."""
        return self.first if self.second is None else self.second

    @property
    def stage_network(self) -> Network:
        if self.second is None or self.second.network is None:
            return self.network
        return self.second.network

    @property
    def stage_augment(self) -> str:
        if self.second is None or self.second.augment is None:
            return self.augment
        return self.second.augment


# --- JSON


def to_json(recipe: Recipe) -> str:
    return json.dumps(asdict(recipe), indent=1)


def from_json(text: str) -> Recipe:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise SettingsError(f"this is not a recipe in JSON: {problem}") from None
    return _build(Recipe, values, "")


def change_recipe(recipe: Recipe, settings: Mapping[str, str], name: str = "the recipe") -> Recipe:
    """The recipe with settings such as {"second.mixup": "0.4"}. Values are read as JSON if possible.

    `name` is what errors call the recipe.
    """
    values: dict[str, Any] = asdict(recipe)
    for path, text in settings.items():
        *parents, last = path.split(".")
        place = values
        for i, parent in enumerate(parents):
            if place.get(parent) is None and parent == "second":
                raise SettingsError(
                    f"{printable(name)} has no second stage, so there is no {printable(path)}; start from a "
                    "recipe with +plot in its name, or add a second stage before: --set second={}"
                )
            if place.get(parent) is None and parent == "network":
                place[parent] = deepcopy(values["network"])
            if not isinstance(place.get(parent), dict):
                known = ", ".join(key for key, value in place.items() if isinstance(value, dict))
                raise SettingsError(
                    f"there are no settings '{'.'.join(parents[: i + 1])}'; choose from {known}"
                )
            place = place[parent]
        try:
            place[last] = json.loads(text)
        except (ValueError, RecursionError):
            place[last] = text
    return _build(Recipe, values, "")


def changed_name(name: str, settings: Mapping[str, str]) -> str:
    """The name of a changed recipe: table1/dllp/64 with epochs=9 is `table1,epochs=9/dllp/64`.

    Its runs are kept apart from those of the named group, which are all of one kind.
    """
    if not settings:
        return name
    group, _, rest = name.partition("/")
    changes = ",".join(f"{path}={value}" for path, value in settings.items())
    safe = re.sub(r"[^\w.,=+-]", "_", changes)
    if len(safe) > LONGEST_CHANGES:
        safe = f"{safe[:LONGEST_CHANGES]}-{hashlib.sha256(changes.encode()).hexdigest()[:8]}"
    return f"{group},{safe}/{rest}"


def _build(kind: type, values: Any, path: str) -> Any:
    """A recipe, or a part of one, from plain values. Unknown keys are refused."""
    if not isinstance(values, Mapping):
        raise SettingsError(
            f"{path or 'a recipe'} must be a table of settings, not {printable(repr(values))}"
        )
    hints = typing.get_type_hints(kind)
    known = [each.name for each in fields(kind)]
    arguments = {}
    for name, value in values.items():
        full_name = f"{path}.{name}" if path else name
        if name not in known:
            raise SettingsError(
                f"there is no setting '{printable(full_name)}'; choose from {', '.join(known)}"
            )
        arguments[name] = _build_value(hints[name], value, full_name)
    return kind(**arguments)


def _build_value(hint: Any, value: Any, path: str) -> Any:
    """A value of the hinted type; anything else is refused."""
    is_union = typing.get_origin(hint) in (typing.Union, type(int | None))
    kinds = typing.get_args(hint) if is_union else (hint,)
    if value is None and type(None) in kinds:
        return None
    for kind in kinds:
        if is_dataclass(kind):
            return _build(typing.cast(type, kind), value, path)
        if kind == Options and isinstance(value, Mapping):
            return {str(k): tuple(v) if isinstance(v, list) else v for k, v in value.items()}
        if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if kind in (int, str) and isinstance(value, kind) and not isinstance(value, bool):
            return value
    names = ["null" if kind is type(None) else getattr(kind, "__name__", "table") for kind in kinds]
    raise SettingsError(f"{path} is {printable(repr(value))}; it must be of type {' or '.join(names)}")


# --- checks


def check_recipe(recipe: Recipe) -> None:
    """Raise SettingsError for a recipe that cannot be run."""
    _check_names(recipe)
    for path, network in _networks(recipe).items():
        _check_options(f"{path}.options", network.options, _network_options(network.name))
    _check_options("first.options", recipe.first.options, option_defaults(recipe.first.method))
    for path, value in numbers_of(recipe):
        allowed = _option_range(recipe, path) if ".options." in path else RANGES[path]
        if allowed is not None and not allowed.contains(value):
            raise SettingsError(f"{path} is {value!r}; it must be {allowed}")
    _check_data(recipe)
    _check_views(recipe)
    _check_batches(recipe.first)
    second = recipe.second
    if second is not None and second.student == "teacher" and second.network not in (None, recipe.network):
        raise SettingsError(
            "second.student is 'teacher', which keeps the network of the first stage; leave out "
            "second.network, or set second.student=new"
        )


def _option_range(recipe: Recipe, path: str) -> "Range | None":
    """The range of an option of one of our networks or methods; those from outside check their own."""
    owner, name = path.rsplit(".options.", 1)
    function = class_of(recipe.first.method) if owner == "first" else NETWORKS[_networks(recipe)[owner].name]
    return OPTION_RANGES.get(name) if function.__module__.startswith("apportion.") else None


def _check_names(recipe: Recipe) -> None:
    """Every name of a recipe is one of those that exist."""
    names: list[tuple[str, str, Any]] = [
        ("data.name", recipe.data.name, dataset_names()),
        ("data.bagging", recipe.data.bagging, BAG_KINDS),
        ("first.method", recipe.first.method, METHODS),
        ("first.optimizer", recipe.first.optimizer, OPTIMIZERS),
        ("first.schedule", recipe.first.schedule, SCHEDULES),
        ("first.batches", recipe.first.batches, ("bag", "row")),
        ("augment", recipe.augment, AUGMENTATIONS),
    ]
    if recipe.second is not None:
        names += [
            ("second.labels", recipe.second.labels, PSEUDO_LABELS),
            ("second.loss", recipe.second.loss, LOSSES),
            ("second.student", recipe.second.student, ("new", "teacher")),
            ("second.weighting", recipe.second.weighting, ("instance", "bag")),
            ("second.optimizer", recipe.second.optimizer, OPTIMIZERS),
            ("second.schedule", recipe.second.schedule, SCHEDULES),
        ]
        if recipe.second.augment is not None:
            names.append(("second.augment", recipe.second.augment, AUGMENTATIONS))
    names += [(f"{path}.name", network.name, NETWORKS) for path, network in _networks(recipe).items()]
    for path, name, known in names:
        if name not in known:
            own = "; if it is your own, import the module that registers it (--import my_module)"
            hint = own if path.endswith((".name", ".method")) else ""
            raise SettingsError(f"{path} is '{printable(name)}'; choose one of {', '.join(known)}{hint}")


def _networks(recipe: Recipe) -> dict[str, Network]:
    networks = {"network": recipe.network}
    if recipe.second is not None and recipe.second.network is not None:
        networks["second.network"] = recipe.second.network
    return networks


def _network_options(name: str) -> dict[str, Any]:
    """The options of a network and their defaults."""
    parameters = list(inspect.signature(NETWORKS[name]).parameters.values())[2:]
    empty = inspect.Parameter.empty
    return {each.name: each.default for each in parameters if each.default not in (empty, None)}


def _check_options(path: str, options: Options, defaults: Options) -> None:
    """Options are those that the method or network has, of the type of their default."""
    for name, value in options.items():
        if name not in defaults:
            known = ", ".join(defaults) or "none"
            raise SettingsError(f"there is no setting '{path}.{printable(name)}'; the options are: {known}")
        if not _same_type(value, defaults[name]):
            text = printable(repr(value), 80)
            raise SettingsError(f"{path}.{name} is {text}; pass a value such as {defaults[name]!r}")


def _same_type(value: Any, default: Any) -> bool:
    if isinstance(default, tuple):
        return isinstance(value, tuple) and all(type(each) is int for each in value)
    if isinstance(default, float):
        return type(value) in (int, float)
    return type(value) is type(default)


def _check_data(recipe: Recipe) -> None:
    """Views and networks for images need images."""
    if recipe.data.name in IMAGE_SETS or recipe.data.name not in DATASETS:  # others are known once loaded
        return
    views = {"augment": recipe.augment, "second.augment": recipe.second.augment if recipe.second else None}
    for path, augment in views.items():
        if augment not in ("none", None, *PAIRS):
            raise SettingsError(
                f"{path} is '{augment}', but {recipe.data.name} has no images; set it to none"
            )
    for path, network in _networks(recipe).items():
        if network.name in IMAGE_NETWORKS:
            raise SettingsError(
                f"{path}.name is '{network.name}', but {recipe.data.name} has no images; set it to mlp"
            )


def _check_views(recipe: Recipe) -> None:
    """Some methods take pairs of views and nothing else, such as two_views; others take single views."""
    if takes_pairs(recipe.first.method) != (recipe.augment in PAIRS):
        pairs = ", ".join(name for name in METHODS if takes_pairs(name))
        raise SettingsError(
            f"first.method is '{recipe.first.method}' and augment is '{recipe.augment}', but the methods for "
            f"two views ({pairs}) and the views {' and '.join(PAIRS)} need each other; set both or neither"
        )
    if recipe.second is not None and recipe.stage_augment in PAIRS:
        raise SettingsError(
            f"the second stage learns from one view, but second.augment is '{recipe.stage_augment}'; set "
            "second.augment to a single view such as crop+flip or none"
        )


def _check_batches(first: FirstStage) -> None:
    """Batches of rows are for methods that remember predictions of whole bags."""
    if first.batches == "bag":
        return
    if not takes_rows(first.method):
        with_rows = [name for name in METHODS if takes_rows(name)]
        raise SettingsError(
            f"first.batches is 'row', but the method {first.method} needs whole bags; set first.batches=bag, "
            f"or first.method to {' or '.join(with_rows)}"
        )
    if first.options.get("counts"):
        raise SettingsError("first.options.counts needs whole bags; leave it out, or set first.batches=bag")


# --- ranges


@dataclass(frozen=True)
class Range:
    """An interval. The lower end belongs to it unless `low_open`, the upper end only if `high_closed`."""

    low: float
    high: float = math.inf
    low_open: bool = False
    high_closed: bool = False

    def contains(self, value: float) -> bool:
        above = value > self.low or (value == self.low and not self.low_open)
        below = value < self.high or (value == self.high and self.high_closed)
        return above and below

    def __str__(self) -> str:
        parts = []
        if self.low > -math.inf:
            parts.append(f"{'more than' if self.low_open else 'at least'} {self.low:g}")
        if self.high < math.inf:
            parts.append(f"{'at most' if self.high_closed else 'less than'} {self.high:g}")
        elif not self.high_closed:
            parts.append("finite")
        return " and ".join(parts)


POSITIVE = Range(0, low_open=True)
NONNEGATIVE = Range(0)
AT_LEAST_1 = Range(1)
BELOW_1 = Range(0, 1)

RANGES = {
    "data.bag_size": AT_LEAST_1,
    "data.validation_fraction": BELOW_1,
    "first.epochs": AT_LEAST_1,
    "first.learning_rate": NONNEGATIVE,
    "first.weight_decay": NONNEGATIVE,
    "first.momentum": BELOW_1,
    "first.generator_learning_rate": NONNEGATIVE,
    "first.clip": POSITIVE,
    "second.epochs": AT_LEAST_1,
    "second.learning_rate": NONNEGATIVE,
    "second.weight_decay": NONNEGATIVE,
    "second.momentum": BELOW_1,
    "second.reg": POSITIVE,
    "second.precision": POSITIVE,
    "second.alpha": NONNEGATIVE,
    "second.beta": NONNEGATIVE,
    "second.log_zero": Range(-math.inf, 0, low_open=True),
    "second.mixup": NONNEGATIVE,
    "second.memory": AT_LEAST_1,
    "second.ema": BELOW_1,
    "second.warmup_epochs": NONNEGATIVE,
    "second.stop": NONNEGATIVE,
    "batch_size": AT_LEAST_1,
    "seed": Range(0, 2**32),  # as in scikit-learn
}
OPTION_RANGES = {  # of every network and method that has an option of that name
    "widths": AT_LEAST_1,
    "width": AT_LEAST_1,
    "dropout": BELOW_1,
    "slope": NONNEGATIVE,
    "last_padding": Range(0, 8),
    "noise": AT_LEAST_1,
    "weight": NONNEGATIVE,
    "adversarial": NONNEGATIVE,
    "radius": POSITIVE,
    "probe": POSITIVE,
    "ramp": POSITIVE,
    "alpha": Range(0, 1, high_closed=True),
    "reg": POSITIVE,
    "bag_first": NONNEGATIVE,
    "bag_last": NONNEGATIVE,
    "contrast": NONNEGATIVE,
    "temperature": POSITIVE,
    "momentum": BELOW_1,
    "order": NONNEGATIVE,
    "mixed": Range(0, 1, high_closed=True),
    "z": NONNEGATIVE,
    "ridge": NONNEGATIVE,
    "l2": NONNEGATIVE,
    "precision": Range(0, low_open=True, high_closed=True),  # infinite: the proportions are met exactly
}


def numbers_of(part: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a recipe with its path, including those in options and tuples."""
    if isinstance(part, int | float) and not isinstance(part, bool):
        yield path, part
    elif is_dataclass(part):
        for each in fields(part):
            yield from numbers_of(getattr(part, each.name), f"{path}.{each.name}" if path else each.name)
    elif isinstance(part, Mapping):
        for name, value in part.items():
            yield from numbers_of(value, f"{path}.{name}")
    elif isinstance(part, list | tuple):
        for value in part:
            yield from numbers_of(value, path)

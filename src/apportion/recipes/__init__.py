"""A recipe says everything about a run and nothing about how: frozen values; unknown keys are refused."""

import json
import typing
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any

from apportion.errors import SettingsError

Options = Mapping[str, Any]  # checked against the signature of what they are passed to


@dataclass(frozen=True)
class Data:
    name: str = "moons"
    bag_size: int = 50
    bagging: str = "random"  # or dirichlet, cluster
    held_out: float = 0.0  # share of the bags that no learner sees, to choose an epoch without labels


@dataclass(frozen=True)
class Network:
    name: str = "mlp"
    options: Options = field(default_factory=dict)


@dataclass(frozen=True)
class First:
    method: str = "dllp"
    epochs: int = 150
    optimizer: str = "adam"
    rate: float = 2e-3
    decay: float = 0.0
    momentum: float = 0.9  # β₁ of Adam
    schedule: str = "one-cycle"
    options: Options = field(default_factory=dict)  # of the method
    generator_rate: float = 3e-4  # LLP-GAN's second player: Adam, β₁ = 0.5
    clip: float | None = None  # largest norm of a step's gradient
    batches: str | None = None  # of whole bags; or scattered: rows of all bags, whose means are remembered


@dataclass(frozen=True)
class Second:
    """Settings of PLOT. Defaults are ours; what the paper says instead is in the `-paper` groups."""

    epochs: int = 40
    labels: str = "hard"  # hard, soft, predicted (no transport) or argmax
    reg: float = 0.1  # soft labels: 1/λ
    relax: float | None = None  # soft labels: weight of the proportions; None meets them exactly
    loss: str = "ce"  # or sce, or its weights by name: sce-mnist, sce-cifar10, sce-cifar100, sce-eq9
    alpha: float = 0.1  # sce: weight of cross-entropy
    beta: float = 1.0  # sce: weight of reverse cross-entropy
    log_zero: float = -9.210340371976182  # sce: log 1e-4
    weighting: str = "instance"  # eq. (22), or bag: eq. (3)
    mixup: float = 0.0  # alpha of the Beta distribution; 1.0 for images, 0 for points and tables
    memory: int = 5  # rounds of labels that are averaged
    running: float = 0.0  # momentum of the log-probabilities that are labeled, at the peak rate
    student: str = "new"  # or teacher: continue the first stage's network
    hold: int = 10  # epochs on the teacher's labels before the first relabeling
    stop: float | None = None  # δ of algorithm 2
    optimizer: str = "adam"
    rate: float = 1e-3
    decay: float = 0.0
    momentum: float = 0.9
    schedule: str = "flat"
    network: Network | None = None  # None: the first stage's
    augment: str | None = None  # None: the first stage's


@dataclass(frozen=True)
class Recipe:
    data: Data = Data()
    network: Network = Network()
    first: First = First()
    second: Second | None = None
    batch_size: int = 100
    augment: str = "none"  # or crop, crop+flip, strong(-unmirrored); two views: weak+strong(-unmirrored)
    seed: int = 1


def to_json(recipe: Recipe) -> str:
    return json.dumps(asdict(recipe), indent=1)


def from_json(text: str) -> Recipe:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise SettingsError(f"this is not a recipe in JSON: {problem}") from None
    return build(Recipe, values, "")


def build(kind: type, values: Mapping[str, Any], path: str) -> Any:
    """A recipe, or a part of one, from plain values; a key that no setting has is an error."""
    if not isinstance(values, Mapping):
        raise SettingsError(f"{path or 'a recipe'} must be a table of settings, not {values!r}")
    hints = typing.get_type_hints(kind)
    known = [f.name for f in fields(kind)]
    made = {}
    for name, value in values.items():
        if name not in known:
            place = f"{path} has" if path else "a recipe has"
            raise SettingsError(
                f"no setting '{path + '.' if path else ''}{name}'; {place} {', '.join(known)}"
            )
        made[name] = _value(hints[name], value, f"{path}.{name}" if path else name)
    return kind(**made)


def changed(recipe: Recipe, settings: Mapping[str, str]) -> Recipe:
    """The recipe with settings such as {"second.mixup": "0.4"}, read as JSON where that is possible."""
    values: dict[str, Any] = asdict(recipe)
    for path, text in settings.items():
        *parents, name = path.split(".")
        place = values
        for i, parent in enumerate(parents):
            if place.get(parent) is None and parent in ("second", "network"):
                place[parent] = deepcopy(values["network"]) if parent == "network" else {}
            if not isinstance(place.get(parent), dict):
                known = ", ".join(k for k, v in place.items() if isinstance(v, dict))
                raise SettingsError(f"no settings '{'.'.join(parents[: i + 1])}'; there are {known}")
            place = place[parent]
        try:
            place[name] = json.loads(text)
        except (ValueError, RecursionError):
            place[name] = text
    return build(Recipe, values, "")


def _value(hint: Any, value: Any, path: str) -> Any:
    """A value of the hinted type, or an error that says what was expected."""
    allowed = (
        typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, type(int | None)) else (hint,)
    )
    if value is None and type(None) in allowed:
        return None
    for kind in allowed:
        if is_dataclass(kind):
            return build(typing.cast(type, kind), value, path)
        if kind == Options and isinstance(value, Mapping):
            return {str(k): tuple(v) if isinstance(v, list) else v for k, v in value.items()}
        if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if kind in (int, str) and isinstance(value, kind) and not isinstance(value, bool):
            return value
    names = " or ".join("nothing" if k is type(None) else getattr(k, "__name__", "table") for k in allowed)
    raise SettingsError(f"the setting '{path}' is {value!r}; it must be {names}")

"""What every number of a recipe may be: one table, read before any data is."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from typing import Any, NamedTuple

from apportion.errors import SettingsError
from apportion.recipes import Recipe


class Range(NamedTuple):
    low: float
    high: float = math.inf
    low_open: bool = False  # the end itself is left out
    high_open: bool = True
    whole: bool = False  # of whole numbers, which are all finite

    def holds(self, value: float) -> bool:
        above = value > self.low or (value == self.low and not self.low_open)
        return above and (value < self.high or (value == self.high and not self.high_open))

    def __str__(self) -> str:
        low = f"{'more than' if self.low_open else 'at least'} {self.low:g}"
        if self.low == -math.inf:
            low = ""
        high = f"{'less than' if self.high_open else 'at most'} {self.high:g}"
        if self.high == math.inf:
            high = "finite" if self.high_open and not self.whole else ""
        return " and ".join(part for part in (low, high) if part)


POSITIVE, NONNEGATIVE, NEGATIVE = Range(0, low_open=True), Range(0), Range(-math.inf, 0, low_open=True)
COUNT, SHARE, UNIT = Range(1, whole=True), Range(0, 1), Range(0, 1, high_open=False)
STAGE = {"epochs": COUNT, "rate": NONNEGATIVE, "decay": NONNEGATIVE, "momentum": SHARE}
RANGES: dict[str, Range] = {
    "data.bag_size": COUNT,
    "data.held_out": SHARE,
    **{f"{stage}.{name}": range_ for stage in ("first", "second") for name, range_ in STAGE.items()},
    "first.generator_rate": NONNEGATIVE,
    "first.clip": POSITIVE,
    "second.reg": POSITIVE,
    "second.relax": POSITIVE,
    "second.alpha": NONNEGATIVE,
    "second.beta": NONNEGATIVE,
    "second.log_zero": NEGATIVE,
    "second.mixup": NONNEGATIVE,
    "second.memory": COUNT,
    "second.running": SHARE,
    "second.hold": Range(0, whole=True),
    "second.stop": NONNEGATIVE,
    "batch_size": COUNT,
    "seed": Range(0, 2**32),  # as scikit-learn takes it
}
OPTIONS: dict[str, Range] = {  # of networks and methods, whichever has one of that name
    "widths": COUNT,
    "width": COUNT,
    "dropout": SHARE,
    "slope": NONNEGATIVE,
    "last_padding": Range(0, 8),
    "noise": COUNT,
    "weight": NONNEGATIVE,
    "adversarial": NONNEGATIVE,
    "radius": POSITIVE,
    "probe": POSITIVE,
    "ramp": POSITIVE,
    "alpha": UNIT,
    "reg": POSITIVE,
    "bag_first": NONNEGATIVE,
    "bag_last": NONNEGATIVE,
    "contrast": NONNEGATIVE,
    "temperature": POSITIVE,
    "momentum": SHARE,
    "relax": Range(0, low_open=True, high_open=False),  # infinite: the proportions are met
}


def check_ranges(recipe: Recipe) -> None:
    """Refuse a number that is out of its range, naming the setting and the range."""
    for path, value in numbers(recipe, ""):
        range_ = OPTIONS.get(path.rsplit(".", 1)[1]) if ".options." in path else RANGES[path]
        if range_ is not None and not range_.holds(value):
            raise SettingsError(f"{path} is {value!r}; it must be {range_}")


def numbers(part: Any, path: str) -> Iterator[tuple[str, float]]:
    """Every number of a recipe with its path, those of options and of tuples too."""
    if isinstance(part, int | float) and not isinstance(part, bool):
        yield path, part
    elif is_dataclass(part):
        for each in fields(part):
            yield from numbers(getattr(part, each.name), f"{path}.{each.name}" if path else each.name)
    elif isinstance(part, Mapping):
        for name, value in part.items():
            yield from numbers(value, f"{path}.{name}")
    elif isinstance(part, list | tuple):
        for value in part:
            yield from numbers(value, path)


SETTINGS = {"rate": POSITIVE, "second_rate": POSITIVE, "reg": POSITIVE}
WHOLE = {"first_epochs": COUNT, "second_epochs": Range(0, whole=True), "batch_size": COUNT}


def wrong_settings(values: Mapping[str, Any]) -> Iterator[str]:
    """What cannot be among the numbers that the estimator and `apportion fit` are told."""
    for name, range_ in (SETTINGS | WHOLE).items():
        value, kind = values[name], Integral if name in WHOLE else Real
        if value is None and name != "reg":  # as the bags need
            continue
        if not isinstance(value, kind) or isinstance(value, bool):
            yield f"{name} is {value!r}; it must be a {'whole ' if name in WHOLE else ''}number"
        elif not range_.holds(float(value)):
            yield f"{name} is {value}; it must be {range_}"

"""What a column of a table has become: a few plain numbers and names, which go to JSON and back."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from apportion.errors import DataError

KINDS = ("number", "category", "boolean", "date", "image")
SIDES = (8, 4096)  # pixels to which images may be resized; smaller ones are no ResNet-9's
KEPT = 32  # categories with a feature of their own, the most frequent; all others share one
NAMELESS = re.compile(r"|Unnamed: \d+|_duplicated_\d+|__index_level_\d+__")  # as pandas and polars have it


@dataclass(frozen=True)
class Column:
    """A fitted transform. Numbers, dates and booleans have one value, of which the second line speaks."""

    name: str
    kind: str
    fill: float = 0.0  # stands for a missing value: the median, or the more frequent of false and true
    mean: float = 0.0
    scale: float = 1.0
    categories: tuple[str, ...] = ()  # sorted; what is not among them is 'other'
    flag: bool = False  # whether a feature says that the value is missing: where training had such rows
    shape: tuple[int, ...] = ()  # of images (channels, height, width), to which they are resized if `flag`

    @property
    def features(self) -> list[str]:
        """The names of the features that this column becomes, in their order; of an image none."""
        if self.kind == "image":
            return []
        own = {
            "number": [self.name],
            "boolean": [self.name],
            "date": [self.name, f"{self.name}: sine of the year", f"{self.name}: cosine of the year"],
            "category": [*(f"{self.name} = {c}" for c in self.categories), f"{self.name} = other"],
        }[self.kind]
        return [*own, f"{self.name} is missing"] if self.flag else own


def to_values(columns: Sequence[Column]) -> list[dict[str, Any]]:
    """Plain values for JSON; the shape is that of images alone, so that others are as they always were."""
    values = [asdict(column) | {"categories": list(column.categories)} for column in columns]
    for column, value in zip(columns, values, strict=True):
        del value["shape"]
        value |= {"shape": list(column.shape)} if column.shape else {}
    return values


def from_values(values: Any) -> tuple[Column, ...]:
    """Columns from plain values; a key, a kind or a type that is not known is an error."""
    if not isinstance(values, list) or not values:
        raise DataError("columns must be a list with at least one column")
    made = tuple(_column(value) for value in values)
    for name, times in Counter(column.name for column in made).items():
        if times > 1:
            raise DataError(f"column {name!r} stands twice among the columns")
    return made


def _column(value: Any) -> Column:
    known = {field.name: field.type for field in fields(Column)}
    if not isinstance(value, Mapping) or {*value, "shape"} != set(known):  # the shape is younger than some
        raise DataError(f"a column has the keys {', '.join(known)}, no more and no fewer, not {value!r}")
    name, categories = value["name"], value["categories"]
    if not is_text(name) or value["kind"] not in KINDS:
        raise DataError(f"column {name!r} is of kind {value['kind']!r}; there are {', '.join(KINDS)}")
    numbers = [value[key] for key in ("fill", "mean", "scale")]
    if not all(_is_number(n) for n in numbers) or not numbers[2] > 0:
        raise DataError(f"column {name!r} has fill, mean and scale {numbers}; these are numbers, scale > 0")
    if not isinstance(categories, list) or not all(is_text(c) for c in categories):
        raise DataError(f"column {name!r} has categories {categories!r}; these are a list of texts")
    if not isinstance(value["flag"], bool) or categories != sorted(set(categories)):
        raise DataError(f"column {name!r} has an unsorted category or a flag that is neither true nor false")
    fill, mean, scale = map(float, numbers)
    shape = _shape(name, value["kind"], value.get("shape", []), value["flag"])
    return Column(name, value["kind"], fill, mean, scale, tuple(categories), value["flag"], shape)


def _shape(name: str, kind: str, shape: Any, resized: bool) -> tuple[int, ...]:
    """Of an image three whole numbers, of which the first is one for gray or three; of all else none."""
    if not isinstance(shape, list) or not all(type(n) is int and 0 < n <= 1 << 16 for n in shape):
        raise DataError(f"column {name!r} has the shape {shape!r}; it is a list of whole numbers")
    if (len(shape) == 3 and shape[0] in (1, 3)) != (kind == "image") or len(shape) not in (0, 3):
        raise DataError(f"column {name!r} is of kind {kind!r} and shape {shape}; images alone have one")
    if kind == "image" and resized and (shape[1] != shape[2] or not SIDES[0] <= shape[1] <= SIDES[1]):
        what = f"resizes images to {shape[1]} × {shape[2]}"  # which may be gigabytes of a small file
        raise DataError(f"column {name!r} {what}; they become squares of {SIDES[0]} to {SIDES[1]} pixels")
    return tuple(shape)


def _is_number(value: Any) -> bool:
    """A float, or a whole number that is none too large for one."""
    return (type(value) is float and math.isfinite(value)) or (type(value) is int and abs(value) < 1 << 63)


def is_text(value: Any) -> bool:
    """A text that a file can hold: JSON may have halves of characters, which UTF-8 has not."""
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def is_nameless(name: str) -> bool:
    """Whether a column's header is empty, or a program's stand-in for an empty one."""
    return NAMELESS.fullmatch(name.strip()) is not None

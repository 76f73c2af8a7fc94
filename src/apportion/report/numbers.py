"""The numbers of a log by name, such as terms.proportion: what curves are drawn of."""

import math
from collections.abc import Iterator
from typing import Any

from apportion.runs.files import LARGEST


def numbers(values: dict[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    """Every number, nested ones under a dotted name; what is too large for one is left out."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from numbers(value, f"{path}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool) and not abs(value) > LARGEST:
            yield f"{path}{name}", float(value)


def curves(log: list[dict[str, Any]]) -> dict[str, list[float | None]]:
    """Every quantity by line, to five digits; None where a line lacks it or it is not finite."""
    lines = [
        {name: float(f"{value:.5g}") for name, value in numbers(line) if math.isfinite(value)} for line in log
    ]
    names = {name: None for line in lines for name in line if name != "epoch"}
    return {name: [line.get(name) for line in lines] for name in names}

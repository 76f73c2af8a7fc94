"""Tables of bags that need another option than they have: intervals, weights, classes without a number."""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from apportion.filling import filled, known_sum, overfull, partly
from apportion.instances import BagError


def refuse_other_forms(table: Any, weights: Any, *, fill: bool) -> None:
    """Intervals and weights, which have no option of their own, and gaps: errors that say what to pass."""
    if weights is not None and np.ptp(np.asarray(weights, float)) > 0:
        what = "rows weigh differently, but proportions here are shares of rows, not of areas"
        repeat = "r = numpy.rint(weights / unit).astype(int); numpy.repeat(X, r, axis=0), and bags so too"
        raise BagError(f"{what}; repeat each row by its weight ({repeat}), and pass proportions=")
    names, values = _numbers(table)
    if values.ndim == 3 and values.shape[2] == 2:
        widths = np.abs(np.diff(values, axis=2)).max((1, 2))
        i, noise = int(widths.argmax()), widths.max() / math.sqrt(12)
        remedy = f"pass their middles with noise={noise:.3g}, the width over the root of 12"
        raise BagError(f"bag {names[i]!r} has intervals for shares, up to {widths[i]:.3g} wide; {remedy}")
    if values.ndim == 2 and not fill:
        refuse_gaps(values, names)


def refuse_gaps(values: np.ndarray, names: Sequence[Hashable]) -> None:
    """Bags of which some classes have a number and some have none."""
    for i in np.flatnonzero(partly(values))[:1].tolist():
        what = f"has no number for {int(np.isnan(values[i]).sum())} of its {values.shape[1]} classes"
        raise BagError(f"bag {names[i]!r} {what}; pass fill=True to give these what is left of the bag")


def complete(values: np.ndarray, totals: np.ndarray, names: Sequence[Hashable]) -> np.ndarray:
    """The numbers (m, k) without gaps inside a bag; a bag may lack all of them."""
    for i in overfull(values, totals)[:1].tolist():
        much = f"{known_sum(values)[i]:g} for some of its classes, more than {totals[i]:g} for all"
        raise BagError(f"bag {names[i]!r} has {much}; mend it")
    return filled(values, totals)


def _numbers(table: Any) -> tuple[Sequence[Hashable], np.ndarray]:
    """Names and numbers of a table; none where it is of another kind, of which is told later."""
    none: tuple[Sequence[Hashable], np.ndarray] = [], np.empty(0)
    try:
        if isinstance(table, Mapping):
            return list(table), np.asarray(list(table.values()), float)
        if isinstance(table, np.ndarray):
            return range(len(table)), table.astype(float)
        if type(table).__module__.split(".")[0] == "pandas" and table.ndim == 2:
            return list(table.index), table.to_numpy(float)
    except (TypeError, ValueError):
        return none
    return none

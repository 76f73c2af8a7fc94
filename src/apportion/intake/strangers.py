"""Refusals of columns that are no class: the sum of others, a total, what stands beside a whole."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from apportion.errors import DataError
from apportion.intake.beside import beside, sum_column


def refuse_sum(values: np.ndarray, classes: Sequence[Any]) -> None:
    """A column that is the sum of the others in every row is no class."""
    i = sum_column(values) if len(values) > 1 else None
    if i is not None:
        others = [other for j, other in enumerate(classes) if j != i]
        remedy = f"drop it, or pass classes={others}; classes= with all of them, if it is a class"
        raise DataError(f"the column {classes[i]!r} is the sum of the others in every bag; {remedy}")


def refuse_total(counts: np.ndarray, sizes: np.ndarray, classes: Sequence[Any] | None, *, sure: bool) -> None:
    """A column of counts that is the number of rows of every bag, beside others, is their total: clicks of
    which some are conversions. Bags of one size may have it by accident, where it is not `sure`."""
    there = np.isfinite(counts).all(1)
    counts, sizes = counts[there], sizes[there]
    if len(sizes) < 2 or not (sure or np.ptp(sizes)) or not (counts.sum(1) > sizes).any():
        return
    for i in np.flatnonzero((counts == sizes[:, None]).all(0))[:1].tolist():
        names = list(range(counts.shape[1])) if classes is None else list(classes)
        total, others = names[i], " - ".join(f"table[{name!r}]" for name in names if name != names[i])
        remedy = f"put the rest in its place, such as table[{total!r}] - {others}, as a class of its own"
        raise DataError(f"the column {total!r} is the number of rows of every bag, a total; {remedy}")


def refuse_beside(
    values: np.ndarray, sizes: np.ndarray | None, bags: Sequence[Hashable], classes: Sequence[Any] | None
) -> None:
    """Columns without which nearly all bags are whole are no classes; `normalize` would make them such."""
    some = beside(values, sizes)
    if not some:
        return
    names = list(range(values.shape[1])) if classes is None else list(classes)
    others = [name for j, name in enumerate(names) if j not in some]
    what = f"column{'s' if len(some) > 1 else ''} {', '.join(repr(names[j]) for j in some)}"
    rest = np.delete(values, some, 1).sum(1)
    off = np.abs(rest - (np.median(rest[np.isfinite(rest)]) if sizes is None else sizes))
    i = int(np.where(np.isfinite(values).all(1), off.round(6), np.inf).argmin())
    of = "" if sizes is None else f" of {sizes[i]} rows"
    sums = f"bag {bags[i]!r}{of} sums to {values[i].sum():.6g}, and to {rest[i]:.6g} without the {what}"
    drop = "drop it" if classes is None else f"drop it, or pass classes={others}"
    drop = drop if len(some) == 1 else drop.replace("it", "them", 1)
    remedy = f"{drop}; classes= with all of them, if each is a class"
    raise DataError(f"{sums}, as nearly all bags do; {remedy}")

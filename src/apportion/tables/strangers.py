"""Columns of the file of proportions that are no class: a total, an index, the bags' own ids."""

import numpy as np

from apportion.tables.asking import Asked
from apportion.tables.shares import NO_CLASS, BagTable

LEAST = 3  # rows from which on 0, 1, 2, … is no accident: of two bags 0 and 1 may be the shares


def without_strangers(
    table: BagTable, place: np.ndarray, sizes: np.ndarray, asked: Asked, problems: list[str]
) -> BagTable:
    """The table without columns that only repeat others; each is a problem. Named classes are all kept.

    Where all bags sum to what they must, all columns are classes, whatever their numbers look like.
    """
    if asked.classes or asked.shares or _fits(table.values[place[place >= 0]], sizes[place >= 0], asked):
        return table
    kept = list(range(len(table.classes)))
    for j, what in _counting(table):
        kept.remove(j)
        problems.append(f"{table.place}, column {table.classes[j]!r}, {what}, which is no class: {NO_CLASS}")
    j = _total(table.values[:, kept])
    if j is not None:
        total = kept.pop(j)
        others = ", ".join(repr(table.classes[i]) for i in kept[:20]) + (", …" if len(kept) > 20 else "")
        what = f"is the sum of {others} in every row"
        problems.append(f"{table.place}, column {table.classes[total]!r}, {what}: {NO_CLASS}")
    return table._replace(values=table.values[:, kept], classes=tuple(table.classes[i] for i in kept))


def _fits(values: np.ndarray, sizes: np.ndarray, asked: Asked) -> bool:
    """Whether the bags that have all their numbers sum to one, or to their rows."""
    whole = np.isfinite(values).all(1)
    wanted = sizes if asked.counts is not None else np.ones(len(sizes))
    with np.errstate(over="ignore"):
        return bool(whole.any()) and np.allclose(values[whole].sum(1), wanted[whole], rtol=0, atol=1e-4)


def _counting(table: BagTable) -> list[tuple[int, str]]:
    """Columns that number the rows or repeat the ids of the bags, and which of the two."""
    n, found = len(table.values), []
    ids = table.bags.cast(str).cast(float, strict=False).to_numpy()
    for j, column in enumerate(table.values.T):
        if n < LEAST:
            break
        if (column == ids).all():
            found.append((j, "repeats the ids of the bags"))
        elif any((column == np.arange(n) + first).all() for first in (0, 1)):
            found.append((j, "numbers the rows"))
    return found


def _total(values: np.ndarray) -> int | None:
    """The column that is the sum of all others in every row with all its numbers, up to rounding."""
    whole = values[np.isfinite(values).all(1)]
    if values.shape[1] < 3 or not whole.any():
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        apart = np.abs(whole.sum(1, keepdims=True) - 2 * whole)
        sums = (apart <= 1e-4 + 2e-3 * np.abs(whole)).all(0)
    return int(sums.argmax()) if sums.any() else None

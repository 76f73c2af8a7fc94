"""Columns of the file of proportions that are no class: a total, a year, an index, the bags' own ids."""

import numpy as np

from apportion.intake.beside import LEAST, beside, sum_column
from apportion.tables.asking import Asked
from apportion.tables.shares import NO_CLASS, BagTable


@np.errstate(over="ignore", invalid="ignore")  # infinities are told of later
def without_strangers(
    table: BagTable, place: np.ndarray, sizes: np.ndarray, asked: Asked, problems: list[str], notes: list[str]
) -> BagTable:
    """The table without columns that only repeat others or stand beside a whole; each is a problem.

    Named classes are all kept. Where all bags sum to what they must, all columns are classes, whatever their
    numbers look like.
    """
    if asked.classes or asked.shares or _fits(table.values[place[place >= 0]], sizes[place >= 0], asked):
        return table
    found = [(j, f"{what}, which is no class") for j, what in _counting(table)]
    kept = [j for j in range(len(table.classes)) if j not in dict(found)]
    j = sum_column(table.values[:, kept])
    if j is not None:
        total = kept.pop(j)
        found.append((total, f"is the sum of {_names(table, kept)} in every row"))
    if asked.counts is not None:
        total = _rows(table.values[:, kept], place, sizes)
        found += [(kept[j], "is the number of rows of every bag, a total and no class") for j in total]
        kept = [j for i, j in enumerate(kept) if i not in total]
        known = place >= 0
        more = [kept[j] for j in beside(table.values[place[known]][:, kept], sizes[known])]
    else:
        more = [kept[j] for j in beside(table.values[:, kept])]
    kept = [j for j in kept if j not in more]
    found += [(j, f"is beside {_names(table, kept)}, which are whole without it") for j in more]
    for j, what in found:
        problems.append(f"{table.place}, column {table.classes[j]!r}, {what}: {NO_CLASS}")
    for j in (j for j in kept if asked.normalize and len(table.values) >= LEAST):
        if np.ptp(table.values[:, j]) == 0 and table.values[0, j]:
            what = f"has {table.values[0, j]:g} in every row and is taken as a class"
            notes.append(f"{table.place}, column {table.classes[j]!r}, {what}; if it is none: {NO_CLASS}")
    return table._replace(values=table.values[:, kept], classes=tuple(table.classes[i] for i in kept))


def _names(table: BagTable, kept: list[int]) -> str:
    return ", ".join(repr(table.classes[i]) for i in kept[:20]) + (", …" if len(kept) > 20 else "")


def _fits(values: np.ndarray, sizes: np.ndarray, asked: Asked) -> bool:
    """Whether the bags that have all their numbers sum to one, or to their rows."""
    whole = np.isfinite(values).all(1)
    wanted = sizes if asked.counts is not None else np.ones(len(sizes))
    with np.errstate(over="ignore"):
        return bool(whole.any()) and np.allclose(values[whole].sum(1), wanted[whole], rtol=0, atol=1e-4)


def _rows(values: np.ndarray, place: np.ndarray, sizes: np.ndarray) -> list[int]:
    """Columns that count all rows of every bag, such as clicks beside conversions."""
    known = place >= 0
    same = (values[place[known]] == sizes[known, None]).all(0)
    return np.flatnonzero(same).tolist() if known.sum() >= 2 else []


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

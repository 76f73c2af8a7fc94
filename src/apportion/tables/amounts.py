"""The numbers of the bags: what cannot be a proportion or a count, and sums that do not fit."""

from collections.abc import Callable

import numpy as np

from apportion.filling import filled, overfull, partly
from apportion.tables.asking import SHOWN, Asked, told
from apportion.tables.shares import BagTable

WHOLE = "unless --noise is given, counts are whole; pass shares by --proportions"


@np.errstate(invalid="ignore")  # infinities are told of, with what to do
def check_values(table: BagTable, asked: Asked, problems: list[str]) -> None:
    """Numbers that cannot be proportions, or counts, of a bag."""
    k = len(table.classes)
    if k < 2:
        remedy = "give a column for each class, also for what is left over"
        if k == 1:
            rest = "the bag's rows minus" if asked.counts is not None else "1 minus"
            remedy += f": add one such as 'not {table.classes[0]}', which is {rest} {table.classes[0]!r}"
        problems.append(f"{table.place} has {k} class ({', '.join(table.classes) or 'none'}): {remedy}")
    whole = asked.counts is not None
    limit = np.inf if whole or asked.normalise or asked.noise else 1 + 1e-6
    exact, told_of = not asked.noise, table.told[:, None]
    if asked.unlabelled:
        told_of = told_of | np.isnan(table.values).all(1, keepdims=True)
    gaps = partly(table.values)[:, None] & np.isnan(table.values)
    rules: list[tuple[Callable[[np.ndarray], np.ndarray], str]] = [
        (
            lambda v: gaps & (not asked.fill),
            "give a number, or pass --fill to give it what is left",
        ),
        (
            lambda v: ~np.isfinite(v) & ~gaps,
            "give a finite number, or drop the bag from both tables, or pass --unlabelled",
        ),
        (
            lambda v: (v < 0) & exact,
            f"{'counts' if whole else 'proportions'} are not negative, unless --noise",
        ),
        (lambda v: v > limit, "divide percentages by 100, or pass --counts, or --normalise"),
        (lambda v: np.isfinite(v) & (v % 1 != 0) & whole & exact, WHOLE),
    ]
    for wrong, remedy in rules:
        bad = np.argwhere(wrong(table.values) & ~told_of)
        if len(bad):
            cases = (
                f"{table.case(i)}, has {table.values[i, j]:g} for class {table.classes[j]!r}"
                for i, j in bad[:SHOWN].tolist()
            )
            problems.append(told(cases, len(bad), remedy))


@np.errstate(over="ignore", invalid="ignore")
def check_sums(
    table: BagTable, place: np.ndarray, sizes: np.ndarray, asked: Asked, problems: list[str]
) -> None:
    """Sums of bags whose numbers can be summed: one, or for counts the number of rows; noise has none."""
    if asked.noise:
        return
    whole, sound = asked.counts is not None, ~table.told & (table.values >= 0).all(1)
    sound &= np.isfinite(table.values).all(1)
    known = np.flatnonzero((place >= 0) & sound[place])
    totals = table.values[place].sum(1)
    bad = known[totals[known] == 0]
    if len(bad):
        cases = (table.case(place[i]) for i in bad[:SHOWN].tolist())
        problems.append(told(cases, len(bad), "all classes are zero; drop the bag from both tables"))
    wanted = sizes if whole else np.ones(len(sizes))
    over = overfull(table.values[place], wanted)
    over = over[(place >= 0)[over]]
    if len(over) and asked.fill:
        cases = (table.case(place[i]) for i in over[:SHOWN].tolist())
        problems.append(told(cases, len(over), "some classes alone are more than the bag; mend them"))
    off = (abs(totals - wanted) > (0.5 if whole else 1e-4)) & (totals > 0)  # four printed digits
    bad = known[off[known]]
    if len(bad) and not asked.normalise and len(table.classes) > 1:
        of = [f" but has {size} rows" if whole else "" for size in sizes[bad[:SHOWN]].tolist()]
        cases = (
            f"{table.case(place[i])}, sums to {totals[i]:.6g}{rows}"
            for i, rows in zip(bad[:SHOWN].tolist(), of, strict=True)
        )
        reason = "the counts are of a larger group" if whole else "they are rounded"
        problems.append(told(cases, len(bad), f"mend them, or pass --normalise if {reason}"))


def shares_of(values: np.ndarray, sizes: np.ndarray, asked: Asked) -> np.ndarray:
    """Shares (m, k) that sum to one; noisy numbers as they are, over the size of the bag."""
    if asked.fill:
        values = filled(values, sizes if asked.counts is not None else np.ones(len(sizes)))
    if not asked.noise:
        return values / values.sum(1, keepdims=True)
    return values / sizes[:, None] if asked.counts is not None else values

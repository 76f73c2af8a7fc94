"""The numbers of the bags: what cannot be a proportion or a count, and sums that do not fit."""

from collections.abc import Callable

import numpy as np

from apportion.intake.filling import UNSEEN, filled, overfull, partly, strayed, unexplained
from apportion.tables.asking import SHOWN, Asked, told
from apportion.tables.shares import BagTable

WHOLE = "unless --noise is given, counts are whole; pass shares by --proportions"


def check_options(asked: Asked, problems: list[str]) -> None:
    """Options that do not go together."""
    if asked.counts is not None and asked.fill and asked.normalize:
        what = "--fill gives what is left of a bag's total, which --normalize says is not that of its rows"
        problems.append(f"{what}: for counts pass one of them, or shares by --proportions")
    if asked.noise and asked.normalize:
        what = "--noise is of the numbers as they stand in the file, and --normalize rescales these"
        remedy = "rescale the file and the noise alike and pass --noise alone, or use ProportionClassifier"
        problems.append(f"{what}: {remedy}")
    if asked.noise not in ("", "estimate") and asked.counts is None and float(asked.noise) > 0.5:
        what = f"--noise is {asked.noise}, but it is the standard deviation of a share, 0.5 at most"
        problems.append(f"{what}: divide it as the shares were")


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
    limit = 1 + 1e-6
    if whole or asked.normalize or asked.noise:
        limit = 1.5 if asked.fill and not whole else np.inf  # what is left is left of one, not of a hundred
    exact, told_of = not asked.noise, table.told[:, None]
    if asked.unlabeled:
        told_of = told_of | np.isnan(table.values).all(1, keepdims=True)
    gaps = partly(table.values)[:, None] & np.isnan(table.values)
    rules: list[tuple[Callable[[np.ndarray], np.ndarray], str]] = [
        (
            lambda v: gaps & (not asked.fill),
            "give a number, or pass --fill to give it what is left",
        ),
        (
            lambda v: ~np.isfinite(v) & ~gaps,
            "give a finite number, or drop the bag from both tables, or pass --unlabeled",
        ),
        (
            lambda v: (v < 0) & exact,
            f"{'counts' if whole else 'proportions'} are not negative, unless --noise",
        ),
        (lambda v: v > limit, "divide percentages by 100, or pass --counts, or --normalize"),
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
    """Sums of bags whose numbers can be summed: one, or for counts the number of rows; noise moves them."""
    whole, sound = asked.counts is not None, ~table.told & np.isfinite(table.values).all(1)
    if not asked.noise:
        sound &= (table.values >= 0).all(1)
    known = np.flatnonzero((place >= 0) & sound[place])
    totals = table.values[place].sum(1)
    several = len(table.classes) > 1  # of one class alone the other is to be added, and zeros are sound
    bad = known[(totals[known] == 0) & (not asked.noise) & several]
    if len(bad):
        cases = (table.case(place[i]) for i in bad[:SHOWN].tolist())
        problems.append(told(cases, len(bad), "all classes are zero; drop the bag from both tables"))
    wanted = sizes if whole else np.ones(len(sizes))
    over = overfull(table.values[place], wanted)
    over = over[(place >= 0)[over]]
    if len(over) and asked.fill and not asked.noise:
        cases = (table.case(place[i]) for i in over[:SHOWN].tolist())
        problems.append(told(cases, len(over), "some classes alone are more than the bag; mend them"))
    if asked.noise and len(known):
        level = asked.noise if asked.noise == "estimate" else float(asked.noise)
        bad = known[strayed(table.values[place[known]], wanted[known], level)]
    else:
        off = (abs(totals - wanted) > (0.5 if whole else 1e-4)) & (totals > 0)  # four printed digits
        bad = known[off[known]]
    if len(bad) and not asked.normalize and several:
        of = [f" but has {size} rows" if whole else "" for size in sizes[bad[:SHOWN]].tolist()]
        cases = (
            f"{table.case(place[i])}, sums to {totals[i]:.6g}{rows}"
            for i, rows in zip(bad[:SHOWN].tolist(), of, strict=True)
        )
        problems.append(told(cases, len(bad), _sum_remedy(asked, whole)))
    _check_noise(table, place, sizes, asked, problems)


def _check_noise(
    table: BagTable, place: np.ndarray, sizes: np.ndarray, asked: Asked, problems: list[str]
) -> None:
    """Numbers that no such noise explains in a bag, though their sum may be right."""
    whole, sound = asked.counts is not None, ~table.told & np.isfinite(table.values).all(1)
    known = np.flatnonzero((place >= 0) & sound[place])
    if not asked.noise or problems or not len(known):
        return
    level = asked.noise if asked.noise == "estimate" else float(asked.noise)
    wanted = (sizes if whole else np.ones(len(sizes)))[known]
    bad = unexplained(table.values[place[known]], wanted, level, whole=whole)
    if len(bad):
        cases = (
            f"{table.case(place[known[i]])}, has {table.values[place[known[i]], j]:g} for class "
            f"{table.classes[j]!r} and {wanted[i]:g} for all"
            for i, j in bad[:SHOWN].tolist()
        )
        remedy = UNSEEN if level == "estimate" else "mend it, or give the deviation that the noise has"
        problems.append(told(cases, len(bad), f"--noise {level} does not explain it; {remedy}"))


def _sum_remedy(asked: Asked, whole: bool) -> str:
    if asked.noise:
        rescale = "rescale counts of a larger group, and" if whole else "divide percentages by 100, and"
        return f"noise of {asked.noise} does not explain it; mend them, or {rescale} --noise with them"
    reason = "the counts are of a larger group" if whole else "they are rounded"
    noisy = "--noise estimate if noise was added to them" if whole else "--noise DEVIATION if they are noisy"
    return f"mend them, or pass --normalize if {reason}, {noisy}"


def shares_of(values: np.ndarray, sizes: np.ndarray, asked: Asked) -> np.ndarray:
    """Shares (m, k) that sum to one; noisy numbers as they are, over the size of the bag."""
    if asked.fill:
        values = filled(values, sizes if asked.counts is not None else np.ones(len(sizes)))
    if not asked.noise:
        return values / values.sum(1, keepdims=True)
    return values / sizes[:, None] if asked.counts is not None else values

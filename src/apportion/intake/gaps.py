"""Tables of bags that need another option than they have: intervals, totals, gaps, sums that are far off."""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from apportion.bags.bags import Bags
from apportion.errors import DataError
from apportion.intake.filling import UNSEEN, filled, known_sum, overfull, partly, strayed, unexplained
from apportion.intake.remedies import ESTIMATOR


def check_table(table: Any, **flags: Any) -> None:
    """Refuse options that are neither True nor False, and intervals, which have no option of their own."""
    check_flags(**flags)
    names, values = _numbers(table)
    if values.ndim == 3 and values.shape[2] == 2:
        widths = np.abs(np.diff(values, axis=2)).max((1, 2))
        i, noise = int(widths.argmax()), widths.max() / math.sqrt(12)
        remedy = f"pass their middles with noise={noise:.3g}, the width over the root of 12"
        raise DataError(f"{names[i]} has intervals for shares, up to {widths[i]:.3g} wide; {remedy}")


def refuse_gaps(values: np.ndarray, names: Sequence[Hashable], remedy: str = ESTIMATOR.gaps) -> None:
    """Bags of which some classes have a number and some have none."""
    for i in np.flatnonzero(partly(values))[:1].tolist():
        what = f"has no number for {int(np.isnan(values[i]).sum())} of its {values.shape[1]} classes"
        raise DataError(f"bag {names[i]!r} {what}; {remedy}")


def complete(
    values: np.ndarray, sizes: np.ndarray, names: Sequence[Hashable], *, whole: bool, normalize: bool
) -> np.ndarray:
    """The numbers (m, k) without gaps inside a bag; a bag may lack all of them."""
    if whole and normalize:
        what = "fill gives what is left of a bag's total, which normalize says is not that of its rows"
        raise DataError(f"{what}; for counts pass one of them, or shares with NaN by proportions=")
    totals = sizes.astype(float) if whole else np.ones(len(sizes))
    percent = np.flatnonzero((known_sum(values) > 1.5) & (not whole))  # more than rounding and noise
    for i in [*percent.tolist(), *overfull(values, totals).tolist()][:1]:
        much = f"{known_sum(values)[i]:g} for some of its classes, more than {totals[i]:g} for all"
        remedy = "divide percentages by 100" if i in percent else "mend it"
        raise DataError(f"bag {names[i]!r} has {much}; {remedy}")
    return filled(values, totals)


def check_flags(**flags: Any) -> None:
    """Refuse what is neither True nor False: a text would be taken for True."""
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool_):
            raise DataError(f"{name} is {value!r}; it must be True or False")


def check_noise(noise: Any) -> None:
    """Refuse what is neither a deviation nor to be estimated."""
    if isinstance(noise, Mapping):
        raise DataError(f"noise is {dict(noise)!r}, by grouping, and bags are of one; pass one number")
    known = noise is None or noise == "estimate"
    if not known and (isinstance(noise, str | bool) or not 0 <= noise < math.inf):
        raise DataError(f"noise is {noise!r}; give a standard deviation, or 'estimate'")


def refuse_estimate(noise: Any, counts: Any) -> None:
    """Noise is estimated by how far counts are from the sizes of bags; shares sum to one in any case."""
    check_noise(noise)
    if noise == "estimate" and counts is None:
        raise DataError("noise is 'estimate', which is found from the sums of counts; give that of shares")


def rescaling(
    values: np.ndarray, totals: np.ndarray, names: Sequence[Hashable], noise: float | str | None
) -> np.ndarray:
    """(m, 1) what the numbers of each bag are to be multiplied by, to sum to its total."""
    if isinstance(noise, str):
        remedy = "give its standard deviation, in the units of the table"
        raise DataError(f"noise is {noise!r}, found from totals that normalize takes as they are; {remedy}")
    sums = values.sum(1)
    for i in np.flatnonzero((sums <= 0) & (noise is not None))[:1].tolist():
        raise DataError(f"bag {names[i]!r} sums to {sums[i]:g}, which cannot be rescaled; leave the bag out")
    return (totals / np.where(sums == 0, 1, sums))[:, None]


def refuse_far(
    values: np.ndarray, totals: np.ndarray, names: Sequence[Hashable], noise: Any, *, whole: bool
) -> None:
    """Noisy numbers that are none, or whose sums no such noise explains; `noise` is in their units."""
    refuse_gaps(values, names)
    for i in np.flatnonzero(~np.isfinite(values).all(1))[:1].tolist():
        remedy = "give numbers, or pass unlabeled=True with NaN for all classes of the bag"
        raise DataError(f"bag {names[i]!r} has {values[i].tolist()}; {remedy}")
    for i in strayed(values, totals, noise)[:1].tolist():
        if whole:
            what = f"counts that sum to {values[i].sum():g} but {totals[i]:g} instances"
            remedy = "pass normalize=True, and noise= in their units, if they are of a larger group"
        else:
            what = f"proportions summing to {values[i].sum():.6g}"
            fill = ", or fill=True if a class lacks its share" if values[i].sum() < 0.9 else ""
            remedy = f"divide percentages and their noise by 100, or pass normalize=True{fill}"
        raise DataError(f"bag {names[i]!r} has {what}, which noise={_said(noise)} does not explain; {remedy}")
    for i, j in unexplained(values, totals, noise, whole=whole)[:1].tolist():
        what = f"bag {names[i]!r} has {values[i, j]:g} for a class and {totals[i]:g} for all"
        remedy = UNSEEN if isinstance(noise, str) else "mend it, or give the deviation that the noise has"
        raise DataError(f"{what}, which noise={_said(noise)} does not explain; {remedy}")
    if not isinstance(noise, str) and not whole and np.max(noise) > 0.5:
        what = "but it is the standard deviation of a share, 0.5 at most"
        raise DataError(f"noise is {_said(noise)}, {what}; divide it as the shares were")


def _said(noise: Any) -> str:
    return repr(noise) if isinstance(noise, str) else f"{np.max(noise):g}"


def refuse_alike(bags: Bags) -> None:
    """Bags whose proportions are all the same tell no class from another."""
    known = bags.proportions[bags.proportions.isfinite().all(1)]
    if len(known) and float((known.amax(0) - known.amin(0)).max()) < 1e-6:
        what = "there is one bag" if len(known) == 1 else f"all {len(known)} bags have the same proportions"
        raise DataError(f"{what}, so that nothing tells the classes apart; pass bags that differ, or given=")


def _numbers(table: Any) -> tuple[list[str], np.ndarray]:
    """Names and numbers of a dict or an array; none where it is of another kind, of which is told later."""
    try:
        if isinstance(table, Mapping):
            return [f"bag {name!r}" for name in table], np.asarray(list(table.values()), float)
        if isinstance(table, np.ndarray):
            return [f"row {i}" for i in range(len(table))], table.astype(float)
    except (TypeError, ValueError):
        pass
    return [], np.empty(0)

"""Numbers of a table of bags: read, and refused where they cannot be proportions or counts."""

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from apportion.errors import DataError
from apportion.intake.gaps import refuse_gaps
from apportion.intake.ids import Groups
from apportion.intake.instances import is_missing
from apportion.intake.remedies import ESTIMATOR, Way


def numbers_of(values: Any, who: str) -> np.ndarray:
    """Numbers of a table of bags, float64, or an error that names the first that is none."""
    try:
        if isinstance(values, np.ma.MaskedArray):
            return np.ma.filled(values.astype(np.float64), np.nan)  # missing, as NaN is
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        pass
    found = np.asarray(values, dtype=object)
    gap = np.array([np.ndim(value) == 0 and is_missing(value) for value in found.ravel()], bool)  # pandas' NA
    found = np.where(gap.reshape(found.shape), math.nan, found)
    for value in found.ravel().tolist():
        try:
            float(value)
        except (TypeError, ValueError):
            remedy = "write shares as 0.31; bags are named by keys or by the index, table.set_index(...)"
            raise DataError(f"{who} has {value!r} where a number should be; {remedy}") from None
    return found.astype(np.float64)


def check_shape(values: np.ndarray) -> None:
    if values.ndim != 2 or values.shape[1] < 2:
        such = ", such as numpy.column_stack([1 - s, s]) of shares s" if values.ndim == 1 else ""
        raise DataError(
            f"proportions have shape {values.shape}; pass a row a bag and at least two classes{such}"
        )


def check_numbers(
    values: np.ndarray, names: Sequence[Hashable], classes: Any, way: Way = ESTIMATOR, *, whole: bool
) -> None:
    """Refuse numbers, as they were given, that no bag can have, whatever it sums to."""
    check_shape(values)
    refuse_gaps(values, names, way.gaps)
    word, such = ("count", "0 or more") if whole else ("proportion", "a number from 0 to 1")
    for bad, what in (
        (~np.isfinite(values), f"is not a number; {way.missing}"),
        (values < 0, f"is negative; give {such}{way.noisy}"),
    ):
        for i, j in np.argwhere(bad)[:1].tolist():
            name = j if classes is None else np.asarray(classes).tolist()[j]
            has = f"has {values[i, j]:g} as the {word} of class {name!r}"
            raise DataError(f"bag {names[i]!r} {has}, which {what}")
    for i in np.flatnonzero(~values.any(1))[:1].tolist():
        raise DataError(f"bag {names[i]!r} has {word}s that are all zero; drop the bag")


def refuse_shares(values: np.ndarray, groups: Groups) -> None:
    """Numbers that are given as counts and are shares: none is above one, some are no whole numbers, and all
    together are one in bags of several rows."""
    names, _, sizes = groups
    known, rows = values[np.isfinite(values)], np.isfinite(values).all(1)
    if not len(known) or known.min() < 0 or known.max() > 1 or (known == np.rint(known)).all():
        return
    if (abs(values[rows].sum(1) - 1) <= 0.02).all() and sizes.max() > 1:  # rounded
        i = int(np.argmax(sizes))
        what = f"has {values[i].round(4).tolist()} as counts of its {sizes[i]} instances"
        raise DataError(f"bag {names[i]!r} {what}; these are shares: pass proportions=")


def shares_of_counts(counts: np.ndarray, groups: Groups, classes: Any, way: Way = ESTIMATOR) -> np.ndarray:
    """Shares (m, k) of counts that sum to the rows of their bags."""
    names, _, sizes = groups
    check_numbers(counts, names, classes, way, whole=True)
    totals = counts.sum(1)
    for i in np.flatnonzero(~np.isclose(totals, sizes))[:1].tolist():
        what = f"has counts that sum to {totals[i]:g} but {sizes[i]} instances"
        raise DataError(f"bag {names[i]!r} {what}; {way.larger}")
    return counts / sizes[:, None]


def checked_shares(
    shares: np.ndarray, groups: Groups, normalize: bool, classes: Any = None, way: Way = ESTIMATOR
) -> np.ndarray:
    """Proportions that sum to one, or an error that names the first bag where something is wrong."""
    names, _, sizes = groups
    check_numbers(shares, names, classes, way, whole=False)
    counted = bool((shares == np.rint(shares)).all() and (shares.sum(1) == sizes).all())
    percent = f"these are counts: {way.counted}" if counted else "divide percentages by 100"
    for i, j in np.argwhere(shares > (np.inf if normalize else 1 + 1e-6))[:1].tolist():
        name = j if classes is None else np.asarray(classes).tolist()[j]
        has = f"has {shares[i, j]:g} as the proportion of class {name!r}"
        raise DataError(f"bag {names[i]!r} {has}, which is more than one; {percent}")
    totals = shares.sum(1)
    for i in np.flatnonzero((abs(totals - 1) > 1e-4) & (not normalize))[:1].tolist():  # four printed digits
        lacking = way.lacking if totals[i] < 0.9 else ""
        what = f"has proportions summing to {totals[i]:.6g}"
        two = shares.shape[1] == 2 and (shares[:, 0] <= shares[:, 1]).all()
        if two and len(shares) > 2 and (abs(totals - 1) > 0.05).mean() > 0.5:
            what += " (are they the ends of an interval? pass [1 - middle, middle], noise=width / 12 ** 0.5)"
        raise DataError(f"bag {names[i]!r} {what}; {way.rescale}{lacking}")
    return shares / totals[:, None]

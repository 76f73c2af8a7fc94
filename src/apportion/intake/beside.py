"""Columns of numbers that are no class: the sum of the others, or what stands beside a whole."""

import numpy as np

LEAST = 3  # bags from which on a sum that fits is no accident
NEARLY = 0.95  # of the bags


def sum_column(values: np.ndarray) -> int | None:
    """The column that is the sum of all others in every row with all its numbers, up to rounding."""
    whole = values[np.isfinite(values).all(1)]
    if values.shape[1] < 3 or not whole.any():
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        apart = np.abs(whole.sum(1, keepdims=True) - 2 * whole)
        sums = (apart <= 1e-4 + 2e-3 * np.abs(whole)).all(0)
    return int(sums.argmax()) if sums.any() else None


@np.errstate(over="ignore", invalid="ignore")  # huge numbers are told of later
def beside(values: np.ndarray, sizes: np.ndarray | None = None) -> list[int]:
    """Columns, such as turnout, a year and a population, without which nearly all bags are whole: shares
    (m, k) sum to about one or a hundred, and counts of bags of these `sizes` to their rows."""
    whole, k = np.isfinite(values).all(1), values.shape[1]
    values, m = values[whole], int(whole.sum())
    if m < LEAST or k < 3:
        return []
    sums = values.sum(1)
    if sizes is not None:
        # of bags of one row two rare classes may happen to sum to it
        rules = [(sizes[whole].astype(float), 0.5, 0.5)] if np.median(sizes[whole]) > 1 else []
    else:  # rounded: 2 % off at most; a small share is told from rounding where many bags sum exactly
        units = [100.0] if np.mean(np.abs(sums - 100) <= 2) >= NEARLY else [1.0, 100.0]
        near = [(0.02, 0.1)] + ([(1e-3, 5e-3)] if m >= 10 else [])
        rules = [(np.full(m, unit), unit * low, unit * high) for unit in units for low, high in near]
    for unit, low, high in rules:
        large = np.flatnonzero((values > 1.1 * unit[:, None]).all(0)).tolist()  # no part of such a whole
        if len(large) > 1 and 50 <= np.median(values[:, large].sum(1)) <= 110:
            continue  # percentages, of which some are not told of
        left = sums - values[:, large].sum(1) - unit
        alone = np.mean(np.abs(left[:, None] - values) <= low, axis=0) >= NEARLY
        more = [[j] for j in np.flatnonzero(alone).tolist() if j not in large]
        for some in ([[]] if large and np.mean(np.abs(left) <= low) >= NEARLY else []) + more:
            if k - len(large) - len(some) > 1 and np.mean(np.abs(sums - unit) > high) >= 0.5:
                return [*large, *some]
    return []

"""Noisy, rounded and partly missing proportions: what noise can explain, and the most plausible clean shares.

A table may hold counts or shares to which noise was added for privacy, or that were rounded. `denoise` draws
each bag's shares toward the overall shares of all bags, or toward predictions for the bag, as far as noise
explains the distance. This is empirical Bayes shrinkage: the variance between bags comes from the table. The
remaining uncertainty becomes a precision, the weight of the bag's shares when labels are made.
"""

import math
from typing import Literal, NamedTuple

import numpy as np

from apportion.bags.proportions import SUM_TOLERANCE, Aligned

Std = float | Literal["estimate"] | np.ndarray  # of one number; (m, 1) where numbers were rescaled bag by bag


# --- missing cells


def impute_missing_cells(values: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Values (m, k) whose missing cells are filled with the rest of the bag's total.

    A single missing class gets all of the rest, which is exact. Several divide it in proportion to their
    overall shares in the bags that have them, or evenly if no bag does. Bags without any number stay NaN.
    """
    result = values.copy()
    shares = values / totals[:, None]
    weight = np.where(np.isnan(shares), 0, totals[:, None])
    known = weight.sum(0) > 0
    overall = np.nansum((shares * weight).T, axis=1) / np.where(known, weight.sum(0), 1)
    unknown = max(0.0, 1 - overall.sum()) / max(1, (~known).sum())
    overall = np.where(known, overall, max(unknown, 1e-6))
    left = totals - np.nansum(values, axis=1)
    missing_cells = np.isnan(values)
    some_missing = missing_cells.any(1) & ~missing_cells.all(1)
    for i in np.flatnonzero(some_missing):
        missing = missing_cells[i]
        part = np.maximum(overall[missing], 1e-6)
        result[i, missing] = max(0.0, left[i]) * part / part.sum()
    return result


# --- what noise explains


def sums_beyond_noise(values: np.ndarray, totals: np.ndarray, std: Std) -> np.ndarray:
    """Indices of bags whose sums are further from their totals than noise of this `std` explains.

    The sum of k numbers has √k times their standard deviation. The logarithm covers the tails of Laplace
    noise in many bags. Noise to be estimated may have any size, but does not double or halve the overall sum.
    """
    m, k = values.shape
    off = values.sum(1) - totals
    if isinstance(std, str):
        shifted = abs(off.mean()) > 6 * off.std() / math.sqrt(m)
        same_scale = totals.sum() / 2 <= values.sum() <= 2 * totals.sum()
        return np.arange(m if shifted and not same_scale else 0)
    limit = (6 + math.log(m)) * math.sqrt(k) * np.ravel(std)
    return np.flatnonzero(np.abs(off) > limit + SUM_TOLERANCE * totals)


def cells_beyond_noise(values: np.ndarray, totals: np.ndarray, std: Std, *, counts: bool) -> np.ndarray:
    """Indices (x, 2) of bag and class of numbers below zero or above the total by more than noise explains.

    Noise to be estimated also has to explain counts that are not whole numbers.
    """
    estimate = isinstance(std, str)
    level = estimate_std(values.sum(1) - totals, values.shape[1]) if estimate else np.ravel(std)
    limit = ((6 + math.log(values.size)) * level + SUM_TOLERANCE * totals)[:, None]
    wrong = (values < -limit) | (values > totals[:, None] + limit)
    if estimate and counts:
        wrong |= np.abs(values - np.rint(values)) > limit
    return np.argwhere(wrong)


def estimate_std(off: np.ndarray, k: int) -> float:
    """The standard deviation of noise on each of k numbers, from the errors of their sums."""
    return math.sqrt(float((off**2).mean()) / k)


# --- clean shares


class PredictedShares(NamedTuple):
    """The shares of bags according to predictions for their rows."""

    shares: np.ndarray  # (m, k) mean predicted probabilities
    variance: np.ndarray  # (m, k) variance of the true shares if rows are independent draws


def predict_shares(
    probabilities: np.ndarray, bag: np.ndarray, mass: np.ndarray, weight: np.ndarray | None = None
) -> PredictedShares:
    """The shares of bags from the probabilities (N, k) of rows, whose bags are `bag` (N,).

    `mass` (m,) are the sizes of the bags, or the sums of their rows' weights (N,).
    """
    n = mass[:, None]
    rows = 1.0 if weight is None else weight
    sums = [np.bincount(bag, rows * p, len(mass)) for p in probabilities.T]
    variances = [np.bincount(bag, rows * p, len(mass)) for p in (probabilities * (1 - probabilities)).T]
    return PredictedShares(np.stack(sums, 1) / n, np.stack(variances, 1) / n**2)


def clean_proportions(
    aligned: Aligned, predicted: PredictedShares | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Shares (m, k) that sum to one, and the precision (m,) of each bag, for numbers without problems.

    Unknown shares are NaN. Precision is infinite where proportions are exact, see `denoise`. Noisy shares are
    drawn toward the overall shares, or toward those `predicted` for their bags.
    """
    m, k = aligned.values.shape
    shares = np.full((m, k), np.nan)
    precision = np.full(m, math.inf)
    known = np.flatnonzero(~np.isnan(aligned.values).all(1))
    if not len(known):
        return shares, precision
    values, totals, scale = to_common_total(aligned, known)
    sizes = aligned.sizes[known]
    percent = aligned.options.kind == "percent"
    if percent:
        values = values / totals[:, None]
    std: Std | None = aligned.options.std
    if std is not None and not isinstance(std, str):
        std = std * scale / 100 if percent else std * scale
    if std is not None:
        if predicted is not None:
            predicted = PredictedShares(predicted.shares[known], predicted.variance[known])
        clean, precision[known] = denoise(values, sizes, std, counts=aligned.counts, predicted=predicted)
    elif aligned.counts:
        clean = values / sizes[:, None]
    else:
        clean = values
    shares[known] = clean / clean.sum(1, keepdims=True)
    return shares, precision


def to_common_total(aligned: Aligned, bags: np.ndarray) -> tuple[np.ndarray, np.ndarray, float | np.ndarray]:
    """Values and totals of some bags, with missing cells imputed, and what the values were multiplied by.

    With `normalize`, that is a factor for each bag (m, 1), which makes its sum the total.
    """
    values, totals = aligned.values[bags], aligned.totals[bags]
    if aligned.options.missing_cells == "impute":
        values = impute_missing_cells(values, totals)
    if not aligned.options.normalize:
        return values, totals, 1.0
    sums = values.sum(1)
    scale = (totals / np.where(sums == 0, 1, sums))[:, None]
    return values * scale, totals, scale


def denoise(
    values: np.ndarray, sizes: np.ndarray, std: Std, *, counts: bool, predicted: PredictedShares | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Clean shares (m, k) that sum to one, and the precision (m,) of each bag's shares.

    The variance of true shares is that of random bags, plus the excess in the table that neither random bags
    nor noise explain. Precision is this variance over that of the remaining error, and the weight of the
    shares in relaxed transport. It is infinite where no error remains.
    """
    n = sizes[:, None].astype(float)
    k = values.shape[1]
    unit = n if counts else np.ones_like(n)
    off = values.sum(1, keepdims=True) - unit
    level = estimate_std(off, k) if isinstance(std, str) else std
    least = 1e-4 if np.any(level) else 0.0  # noisy numbers do not rule a class out
    shares = (values - off / k) / unit  # the nearest that sum to one
    exact_sums = np.ndim(level) == 0 and bool((np.abs(off) <= 0.01 * level + 1e-6 * unit).all())
    corrected = 0 if exact_sums else 1 / k  # the part of the error that the sums reveal
    error = level**2 * (1 - corrected) / unit**2  # (m, 1) variance of a share's error
    overall = np.clip((shares * n).sum(0) / n.sum(), least, None)
    overall /= overall.sum()
    center, chance = predicted or (overall, overall * (1 - overall) / n)
    between = _variance_between_bags((shares - center) ** 2, chance + error, overall * (1 - overall))
    weight = (chance + between) / np.maximum(chance + between + error, 1e-30)
    clean = np.clip(center + weight * (shares - center), least, None)
    remaining = (weight * error).sum(1)
    precision = np.full(len(remaining), math.inf)
    np.divide((chance + between).sum(1), remaining, out=precision, where=remaining > 0)
    return clean / clean.sum(1, keepdims=True), precision


def _variance_between_bags(squares: np.ndarray, expected: np.ndarray, most: np.ndarray) -> np.ndarray:
    """(k,) the variance in the squared distances (m, k) beyond the one expected in each bag.

    The variance of a square is twice the squared variance, and bags are weighted by its inverse. The smallest
    bags would dominate a plain mean: under noise, the count of a single row is off by more than shares
    differ.
    """
    between = most
    for _ in range(20):
        weights = np.maximum(expected + between, 1e-30) ** -2
        between = np.clip(np.average(squares - expected, axis=0, weights=weights), 0, None)
    return between

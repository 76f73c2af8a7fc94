"""Sums of the numbers of bags: what is left for a class without one, what noise explains, a total."""

import math
from typing import NamedTuple

import numpy as np

UNSEEN = "sums do not show it, as where one class is the rest of its bag: give its standard deviation"
RESIDUE = 1e-9  # below nought: what rounding leaves of 1 - 0.9 - 0.1


def without_residue(values: np.ndarray) -> np.ndarray:
    """The numbers with nought where rounding alone has made them negative."""
    return np.where((values < 0) & (values > -RESIDUE), 0.0, values)


def partly(values: np.ndarray) -> np.ndarray:
    """(m,) bags with some numbers and some missing (NaN) ones."""
    missing = np.isnan(values)
    return np.asarray(missing.any(1) & ~missing.all(1))


def overfull(values: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Numbers of the bags whose known classes alone are more than the bag."""
    return np.flatnonzero(partly(values) & (known_sum(values) > totals * (1 + 1e-4)))


def known_sum(values: np.ndarray) -> np.ndarray:
    """(m,) the sum of the classes that have a number."""
    return np.where(np.isnan(values), 0, values).sum(1)


def filled(values: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Numbers (m, k) with what is left of a bag spread over its missing classes as they are overall.

    One missing class has all that is left, which is exact; several share it in the ratio of their means over
    the bags that know them, or evenly where no bag does. Bags without any number stay so.
    """
    result, shares = values.copy(), values / totals[:, None]
    weight = np.where(np.isnan(shares), 0, totals[:, None])
    known = weight.sum(0) > 0
    overall = known_sum((shares * weight).T) / np.where(known, weight.sum(0), 1)
    unknown = max(0.0, 1 - overall.sum()) / max(1, (~known).sum())
    overall = np.where(known, overall, max(unknown, 1e-6))
    left = totals - known_sum(values)
    for i in np.flatnonzero(partly(values)):
        missing = np.isnan(values[i])
        part = np.maximum(overall[missing], 1e-6)
        result[i, missing] = max(0.0, left[i]) * part / part.sum()
    return result


def strayed(values: np.ndarray, totals: np.ndarray, noise: float | str | np.ndarray) -> np.ndarray:
    """Numbers of the bags whose sums are further from their totals than noise of this deviation explains.

    A sum of k numbers has √k times their deviation, and the logarithm is for the tails of Laplace's noise in
    many bags. Noise that is to be estimated may be of any size, but it does not double or halve all sums.
    """
    m, k = values.shape
    off = values.sum(1) - totals
    if isinstance(noise, str):
        shifted = abs(off.mean()) > 6 * off.std() / math.sqrt(m)
        alike = totals.sum() / 2 <= values.sum() <= 2 * totals.sum()
        return np.arange(m if shifted and not alike else 0)
    most = (6 + math.log(m)) * math.sqrt(k) * np.ravel(noise)
    return np.flatnonzero(np.abs(off) > most + 1e-4 * totals)  # four printed digits


def unexplained(
    values: np.ndarray, totals: np.ndarray, noise: float | str | np.ndarray, *, whole: bool
) -> np.ndarray:
    """(x, 2) bag and class of the numbers that are below nought, or above their bag, by more than noise of
    this deviation explains. Noise that is to be estimated also has to explain counts that are not whole."""
    estimate = isinstance(noise, str)
    level = _shown(values.sum(1) - totals, values.shape[1]) if estimate else np.ravel(noise)
    most = ((6 + math.log(values.size)) * level + 1e-4 * totals)[:, None]
    wrong = (values < -most) | (values > totals[:, None] + most)
    if estimate and whole:
        wrong |= np.abs(values - np.rint(values)) > most
    return np.argwhere(wrong)


def _shown(off: np.ndarray, k: int) -> float:
    """The deviation of noise on each of k numbers, by how far their sums are off."""
    return math.sqrt(float((off**2).mean()) / k)


class Foretold(NamedTuple):
    shares: np.ndarray  # (m, k) the means of the bags' predictions
    chance: np.ndarray  # (m, k) the variance of true shares, were rows independent and so probable


def foretold(probabilities: np.ndarray, place: np.ndarray, sizes: np.ndarray) -> Foretold:
    """What predictions (N, k) of rows, each in a bag (N,), say of the shares of the bags."""
    sums = (
        np.stack([np.bincount(place, p, len(sizes)) for p in each.T], 1)
        for each in (probabilities, probabilities * (1 - probabilities))
    )
    return Foretold(*(each / sizes[:, None] ** power for power, each in enumerate(sums, 1)))


def denoised(
    values: np.ndarray, sizes: np.ndarray, noise: float | str | np.ndarray, *, whole: bool,
    told: Foretold | None = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Shares (m, k) that sum to one, each drawn to the overall shares as far as noise explains its distance,
    or to what predictions have told of its bag.

    The variance of true shares is that of random bags and what the bags show beyond it and beyond noise. The
    second result (m,) weighs each bag's in transport as their remaining error deserves: predictions are as
    far off as bags differ, for all that is known. Noise may be (m, 1), of numbers that were rescaled.
    """
    n, k = sizes[:, None].astype(float), values.shape[1]
    unit = n if whole else np.ones_like(n)
    off = values.sum(1, keepdims=True) - unit
    level = _shown(off, k) if isinstance(noise, str) else noise
    least = 1e-4 if np.any(level) else 0.0  # no class is ruled out by noisy numbers
    shares = (values - off / k) / unit  # the nearest that sum to one
    tied = np.ndim(level) == 0 and bool((np.abs(off) <= 0.01 * level + 1e-6 * unit).all())
    seen = 0 if tied else 1 / k  # of the error; a rest, all sums being right, shows none
    error = level**2 * (1 - seen) / unit**2  # (m, 1) variance of a share's error
    overall = np.clip((shares * n).sum(0) / n.sum(), least, None)
    overall /= overall.sum()
    center, chance = told or (overall, overall * (1 - overall) / n)
    beyond = _beyond((shares - center) ** 2, chance + error, overall * (1 - overall))
    weight = (chance + beyond) / np.maximum(chance + beyond + error, 1e-30)
    clean = np.clip(center + weight * (shares - center), least, None)
    left = (weight * error).sum(1)  # variance that remains
    relax = np.full(len(left), math.inf)
    np.divide((chance + beyond).sum(1), left, out=relax, where=left > 0)
    return clean / clean.sum(1, keepdims=True), relax


def _beyond(squares: np.ndarray, expected: np.ndarray, most: np.ndarray) -> np.ndarray:
    """(k,) the variance that squared distances (m, k) show beyond the expected one of each.

    A square varies by twice its variance squared, and bags weigh by that: the count of a single row under
    noise is off by far more than shares can differ, and a mean over all bags would be that of the smallest.
    """
    found = most
    for _ in range(20):
        weights = np.maximum(expected + found, 1e-30) ** -2
        found = np.clip(np.average(squares - expected, axis=0, weights=weights), 0, None)
    return found

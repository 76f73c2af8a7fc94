"""Bags of which the shares of some classes only are known: the others have what is left."""

import numpy as np


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

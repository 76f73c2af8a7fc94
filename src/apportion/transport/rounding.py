"""Whole counts of a bag from its proportions."""

import numpy as np
from torch import Tensor

from apportion.transport import inputs
from apportion.transport.inputs import ArrayLike


def whole_counts(proportions: ArrayLike, sizes: ArrayLike) -> Tensor:
    """Whole counts (m, k) nearest to proportions x sizes by largest remainder; ties go to the lower class.

    Rows sum to the sizes. Remainders closer than the rounding error of the proportions count as ties.
    """
    shares = inputs.array(proportions)
    accuracy = np.finfo(shares.dtype).eps if shares.dtype.kind == "f" else np.finfo(np.float64).eps
    bag_sizes = np.diff(inputs.starts(sizes, None))[:, None]
    shares = inputs.proportions(shares, len(bag_sizes), None)
    # rounding error of a quota; below 1/k in all, so that what is rounded down never exceeds a large bag
    grid = np.minimum(4 * accuracy * bag_sizes, 0.25 / shares.shape[1])
    quotas = np.round(shares * bag_sizes / grid) * grid
    whole = np.floor(quotas + grid)
    left = bag_sizes - whole.sum(1, keepdims=True)
    # equal remainders may have been rounded to neighbours on the grid: a remainder ties with the next larger
    order = np.argsort(whole - quotas, axis=1, kind="stable")
    falling = np.take_along_axis(quotas - whole, order, 1)
    below = np.diff(falling, axis=1, prepend=falling[:, :1]) < -1.5 * grid
    level = np.empty_like(order)
    np.put_along_axis(level, order, below.cumsum(1), 1)
    rank = np.argsort(level, axis=1, kind="stable").argsort(1, kind="stable")
    return inputs.like((whole + (rank < left)).astype(np.int64), proportions)

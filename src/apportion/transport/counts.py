"""What labels of a bag must meet: its proportions as whole counts or, of rows with weights, as masses."""

import numpy as np
import torch
from torch import Tensor

from apportion.transport.solvers import ArrayLike, as_array, bag_starts, check_proportions, tensor_like


def round_to_counts(proportions: ArrayLike, sizes: ArrayLike) -> Tensor:
    """The whole counts (m, k) nearest to proportions (m, k) x sizes (m,); rows sum to the sizes.

    The method of largest remainders: quotas are rounded down, and what is left goes to the classes with the
    largest remainders. Ties go to the lower class; remainders closer than the rounding error of the
    proportions are ties.

    >>> round_to_counts([[0.25, 0.25, 0.5], [1 / 3, 1 / 3, 1 / 3]], [2, 10])
    tensor([[1, 0, 1],
            [4, 3, 3]])
    """
    shares = as_array(proportions)
    accuracy = np.finfo(shares.dtype).eps if shares.dtype.kind == "f" else np.finfo(np.float64).eps
    bag_sizes = np.diff(bag_starts(sizes, None))[:, None]
    shares = check_proportions(shares, len(bag_sizes), None)
    # rounding error of a quota; below 1/k in all, so that what is rounded down never exceeds a large bag
    grid = np.minimum(4 * accuracy * bag_sizes, 0.25 / shares.shape[1])
    quotas = np.round(shares * bag_sizes / grid) * grid
    whole = np.floor(quotas + grid)
    left = bag_sizes - whole.sum(1, keepdims=True)
    # equal remainders may have been rounded to neighbors on the grid: a remainder ties with the next larger
    order = np.argsort(whole - quotas, axis=1, kind="stable")
    falling = np.take_along_axis(quotas - whole, order, 1)
    below = np.diff(falling, axis=1, prepend=falling[:, :1]) < -1.5 * grid
    level = np.empty_like(order)
    np.put_along_axis(level, order, below.cumsum(1), 1)
    rank = np.argsort(level, axis=1, kind="stable").argsort(1, kind="stable")
    return tensor_like((whole + (rank < left)).astype(np.int64), proportions)


def class_masses(weight: Tensor, sizes: Tensor, proportions: Tensor) -> Tensor:
    """(m, k) the mass of each class: proportions times weights, rounded in bags of whole weights."""
    weight = weight.cpu().double().unsqueeze(1)
    sizes = sizes.cpu()
    total = torch.segment_reduce(weight, "sum", lengths=sizes)
    mass = proportions.cpu().double() * total
    fractions = torch.segment_reduce((weight % 1 != 0).double(), "sum", lengths=sizes)
    whole = fractions.squeeze(1) == 0
    if bool(whole.any()):
        mass[whole] = round_to_counts(proportions.cpu()[whole], total[whole].squeeze(1).long()).double()
    return mass

"""Means over the rows of bags that are laid end to end."""

import torch
from torch import Tensor


def bag_means(values: Tensor, sizes: Tensor) -> Tensor:
    """The mean of the rows of each bag, (b, k), for bags of any sizes laid end to end."""
    if values.device.type == "cpu":
        return torch.segment_reduce(values, "mean", lengths=sizes)
    return added_means(values, sizes)


def added_means(values: Tensor, sizes: Tensor) -> Tensor:
    """The same where segments have one thread a bag (CUDA), or no function at all."""
    bag = torch.repeat_interleave(sizes, output_size=len(values))
    return values.new_zeros(len(sizes), values.shape[1]).index_add_(0, bag, values) / sizes.unsqueeze(1)


def mean_by_rows(values: Tensor, sizes: Tensor) -> Tensor:
    """The mean of a value of each bag (b,) over all rows: a bag counts as often as it has rows.

    So does its count in a likelihood: of a thousand rows it says a thousand times what that of one row says.
    """
    return (values * sizes).sum() / sizes.sum()


def exact_means(values: Tensor, sizes: Tensor) -> Tensor:
    """`bag_means` in double precision, where there is any: a huge bag's sum in single strays."""
    values = values if values.device.type == "mps" else values.double()
    return bag_means(values, sizes.to(values.device))

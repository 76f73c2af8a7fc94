"""How likely the counts of bags are, if rows are independent and have the predicted probabilities."""

import math

import torch
from torch import Tensor

from apportion.bags import bag_means

CELL = 1 / 12  # variance of a number spread over the width of one: counts are whole


def count_log_likelihood(log_probs: Tensor, sizes: Tensor, proportions: Tensor) -> Tensor:
    """(m,) the logarithm of the probability of each bag's counts (n times its shares), by the normal law.

    The counts of n independent rows have the sum of their probabilities as mean, and the sum of their
    covariances diag(p) - pp' as covariance. So probabilities that are surer are expected to be nearer: the
    same shares from sure predictions are worth more than from vague ones, and being sure and wrong is dear.
    """
    probs, n = log_probs.double().exp(), sizes.double().unsqueeze(1)
    off = n * (proportions.double() - bag_means(probs, sizes))
    products = torch.stack([part.T @ part for part in probs.split(sizes.tolist())])
    k = probs.shape[1]
    mean = n * bag_means(probs, sizes)
    cell = CELL * torch.eye(k, dtype=probs.dtype)
    factor = torch.linalg.cholesky(torch.diag_embed(mean) - products + cell)
    distance = torch.linalg.solve_triangular(factor, off.unsqueeze(2), upper=False).square().sum((1, 2))
    # all classes together never differ from n: that direction, whose variance is the cell's, is left out, and
    # across it a cell of whole counts is as wide as the root of k
    volume = 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1) - math.log(CELL) - math.log(k)
    return -(distance + volume + (k - 1) * math.log(2 * math.pi)) / 2

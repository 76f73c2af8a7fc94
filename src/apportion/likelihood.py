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
    products = torch.stack([part.T @ part for part in probs.split(sizes.tolist())])  # of bags of any length
    mean = n * bag_means(probs, sizes)
    return normal_log_density(n * proportions.double() - mean, torch.diag_embed(mean) - products)


def count_loss(logits: Tensor, sizes: Tensor, proportions: Tensor, left: Tensor | None = None) -> Tensor:
    """Minus the log-likelihood of a bag's counts, by instance, mean over bags; `left` is a BagBatch's.

    Where only a share of a bag was drawn, its own counts are not known: they spread about n times the shares
    as draws without replacement do, which is added to the covariance.
    """
    probs, n = logits.float().softmax(1), sizes.float().view(-1, 1, 1)
    mean, k = bag_means(probs, sizes), probs.shape[1]
    products = bag_means((probs.unsqueeze(2) * probs.unsqueeze(1)).flatten(1), sizes).view(-1, k, k)
    covariance = n * (torch.diag_embed(mean) - products)
    if left is not None:
        drawn = torch.diag_embed(proportions) - proportions.unsqueeze(2) * proportions.unsqueeze(1)
        covariance = covariance + n * left.view(-1, 1, 1) * drawn
    off = n.squeeze(2) * (proportions - mean)
    return -(normal_log_density(off, covariance) / n.flatten()).mean()


def normal_log_density(off: Tensor, covariance: Tensor) -> Tensor:
    """(m,) of counts that are `off` (m, k) their means, each a cell of width one, of a fixed total."""
    k = off.shape[1]
    cell = CELL * torch.eye(k, dtype=off.dtype, device=off.device)
    factor = torch.linalg.cholesky_ex(covariance + cell)[0]  # unchecked: a check would wait for the device
    distance = torch.linalg.solve_triangular(factor, off.unsqueeze(2), upper=False).square().sum((1, 2))
    # all classes together never differ from n: that direction, whose variance is the cell's, is left out, and
    # across it a cell of whole counts is as wide as the root of k
    volume = 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1) - math.log(CELL) - math.log(k)
    return -(distance + volume + (k - 1) * math.log(2 * math.pi)) / 2

"""Bags too large for a batch, whose rows are drawn anew at every step: what drawing does to their mean."""

from torch import Tensor


def mean_for_log(mean: Tensor, square: Tensor, sizes: Tensor, left: float) -> Tensor:
    """(b, k) what to take the logarithm of, so that a sample's is that of the whole bag's mean on average.

    `mean` and `square` (b, k) are means of the drawn rows' values and of their squares, `left` the share of
    a bag that was not drawn. The mean of m of n rows has the variance V = (1 - m/n) S²/m (of sure
    predictions this is the hypergeometric one), and the logarithm, being concave, is then too small by about
    V / 2 mean²: a loss would prefer vague rows, which vary less. The root of mean² + V makes that good.
    """
    spread = (square - mean.square()).clamp_min(0) / (sizes - 1).clamp_min(1).unsqueeze(1)  # S²/m
    variance = left * spread
    return mean * (1 + variance / mean.clamp_min(1e-12).square()).sqrt()

"""Losses: pure functions of logits, in float32 whatever the network computes in.

Bags too large for a batch, whose rows are drawn anew at every step: what drawing does to their mean.
"""

import math

import torch.nn.functional as F
from torch import Tensor

from apportion.bags.bags import bag_means

# (alpha, beta) of symmetric cross-entropy: Wang et al.'s code by data set, and the paper's eq. (9)
SCE_WEIGHTS = {"mnist": (0.01, 1.0), "cifar10": (0.1, 1.0), "cifar100": (6.0, 0.1), "eq9": (1.0, 1.0)}
LOG_ZERO = math.log(1e-4)  # what Wang et al.'s code puts for log 0; their paper's text says -4


def proportion_loss(logits: Tensor, sizes: Tensor, proportions: Tensor, left: float = 0.0) -> Tensor:
    """Cross-entropy between known and predicted bag proportions, mean over rows; `left` is a BagBatch's.

    It differs from the KL divergence of DLLP only by the entropy of the known proportions, which no
    parameter can change. The probabilities of a bag are averaged before the logarithm, never after.
    """
    if logits.shape[1:] != proportions.shape[1:]:
        remedy = "the last layer of the network must give one for each class"
        raise ValueError(f"scores are {tuple(logits.shape)}, not (n, {proportions.shape[1]}); {remedy}")
    probabilities = logits.float().softmax(1)
    predicted = bag_means(probabilities, sizes)
    if left:
        predicted = sampling_corrected_mean(predicted, bag_means(probabilities.square(), sizes), sizes, left)
    # 1e-38, float32's least, not 1e-7: a sure but wrong prediction must keep its gradient
    each = -(proportions * predicted.clamp_min(1.2e-38).log()).sum(1)
    return mean_over_rows(each, sizes)  # P26


def mean_over_rows(values: Tensor, sizes: Tensor) -> Tensor:
    """The mean of a value of each bag (b,) over all rows: a bag counts as often as it has rows."""
    return (values * sizes).sum() / sizes.sum()


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """H(labels, prediction) of each instance, (n,)."""
    return -(labels * logits.float().log_softmax(1)).sum(1)


def reverse_cross_entropy(logits: Tensor, labels: Tensor, log_zero: float = LOG_ZERO) -> Tensor:
    """H(prediction, labels) of each instance, eq. (8), (n,); `log_zero` stands for the logarithm of zero."""
    return -(logits.float().softmax(1) * labels.clamp_min(math.exp(log_zero)).log()).sum(1)


def symmetric_cross_entropy(
    logits: Tensor, labels: Tensor, alpha: float = 0.1, beta: float = 1.0, log_zero: float = LOG_ZERO
) -> Tensor:
    """Cross-entropy in both directions, eq. (9), with the weights of Wang et al., (n,)."""
    return alpha * cross_entropy(logits, labels) + beta * reverse_cross_entropy(logits, labels, log_zero)


def divergence(clean: Tensor, moved: Tensor) -> Tensor:
    """KL(clean ‖ moved) of two sets of logits, mean over instances; no gradient flows to the clean ones."""
    known = clean.detach().float().log_softmax(1)
    return F.kl_div(moved.float().log_softmax(1), known, log_target=True, reduction="batchmean")


def sampling_corrected_mean(mean: Tensor, square: Tensor, sizes: Tensor, left: float) -> Tensor:
    """(b, k) what to take the logarithm of, so that a sample's is that of the whole bag's mean on average.

    `mean` and `square` (b, k) are means of the drawn rows' values and of their squares, `left` the share of
    a bag that was not drawn. The mean of m of n rows has the variance V = (1 - m/n) S²/m (of sure
    predictions this is the hypergeometric one), and the logarithm, being concave, is then too small by about
    V / 2 mean²: a loss would prefer vague rows, which vary less. The root of mean² + V makes that good.
    """
    spread = (square - mean.square()).clamp_min(0) / (sizes - 1).clamp_min(1).unsqueeze(1)  # S²/m
    variance = left * spread
    return mean * (1 + variance / mean.clamp_min(1e-12).square()).sqrt()

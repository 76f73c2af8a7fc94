"""Losses: pure functions of logits, computed in float32 whatever the network computes in.

Proportions are known here. A bag with some unknown shares is refused in `bags.problems` or filled in
`bags.denoise`, which also removes noise; bags without any are left out before (`Bags.known`).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from apportion.bags.bags import bag_means, bag_sums
from apportion.errors import SettingsError

LOG_ZERO = math.log(1e-4)  # log 0 in the code of Wang et al.; the text of their paper says -4
# (α, β) of symmetric cross-entropy: the code of Wang et al. by data set, and eq. (9) of the paper
SCE_WEIGHTS = {"mnist": (0.01, 1.0), "cifar10": (0.1, 1.0), "cifar100": (6.0, 0.1), "eq9": (1.0, 1.0)}


def proportion_loss(
    logits: Tensor, sizes: Tensor, proportions: Tensor, undrawn: float = 0.0, weight: Tensor | None = None
) -> Tensor:
    """Cross-entropy of known (m, k) and predicted bag proportions, mean over rows.

    It differs from the KL divergence of DLLP by the entropy of the known proportions, a constant. The
    probabilities of a bag are averaged before the logarithm, never after. `undrawn` is the fraction of a bag
    that was not drawn, and `weight` (n,) the weights of the rows, as in `BagBatch`.
    """
    losses = proportion_losses(logits, sizes, proportions, undrawn, weight)
    return mean_over_rows(losses, sizes, weight)  # P26 in docs/paper.md


def proportion_losses(
    logits: Tensor, sizes: Tensor, proportions: Tensor, undrawn: float = 0.0, weight: Tensor | None = None
) -> Tensor:
    """Cross-entropy of known and predicted proportions of each bag, (m,)."""
    if logits.shape[1:] != proportions.shape[1:]:
        raise SettingsError(
            f"the network returns shape {tuple(logits.shape)}, but there are {proportions.shape[1]} classes; "
            "its last layer must return one logit per class"
        )
    probabilities = logits.float().softmax(1)
    predicted = bag_means(probabilities, sizes, weight)
    if undrawn:
        drawn = sizes if weight is None else effective_sizes(weight, sizes)
        predicted = sampling_corrected_mean(
            predicted, bag_means(probabilities.square(), sizes, weight), drawn, undrawn
        )
    return cross_entropy_of_means(predicted, proportions)


def cross_entropy_of_means(predicted: Tensor, proportions: Tensor) -> Tensor:
    """H(proportions, predicted) of each bag, (m,)."""
    # clamped at the smallest normal float32: a confident wrong prediction must keep its gradient
    return -(proportions * predicted.clamp_min(1.2e-38).log()).sum(1)


def mean_over_rows(values: Tensor, sizes: Tensor, weight: Tensor | None = None) -> Tensor:
    """The mean over all rows of one value per bag (b,): bags count as their rows, with the rows' weights."""
    mass = sizes if weight is None else bag_sums(weight.to(values).unsqueeze(1), sizes).squeeze(1)
    return (values * mass).sum() / mass.sum()


def effective_sizes(weight: Tensor, sizes: Tensor) -> Tensor:
    """The number of equal rows whose mean is as uncertain as the weighted mean of a bag, (b,)."""
    sums = bag_sums(torch.stack([weight, weight.square()], 1).float(), sizes)
    return sums[:, 0].square() / sums[:, 1]


def sampling_corrected_mean(mean: Tensor, mean_square: Tensor, sizes: Tensor, undrawn: float) -> Tensor:
    """The mean (b, k), corrected so that its expected logarithm is that of the whole bag's mean.

    `mean` and `mean_square` (b, k) are over the drawn rows, `undrawn` is the fraction that was not drawn. The
    mean of m of n rows has variance V = (1 - m/n) S²/m (for certain predictions the hypergeometric one). The
    logarithm is concave, so on average it is too small by about V / (2 mean²), and the loss would favor
    uncertain predictions, which vary less. The square root of mean² + V corrects this.
    """
    variance_of_mean = (mean_square - mean.square()).clamp_min(0) / (sizes - 1).clamp_min(1).unsqueeze(1)
    variance = undrawn * variance_of_mean
    return mean * (1 + variance / mean.clamp_min(1e-12).square()).sqrt()


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """H(labels, prediction) of each instance, (n,); labels (n, k) may be soft."""
    return -(labels * logits.float().log_softmax(1)).sum(1)


def reverse_cross_entropy(logits: Tensor, labels: Tensor, log_zero: float = LOG_ZERO) -> Tensor:
    """H(prediction, labels) of each instance, eq. (8), (n,); `log_zero` stands for the logarithm of zero."""
    return -(logits.float().softmax(1) * labels.clamp_min(math.exp(log_zero)).log()).sum(1)


def symmetric_cross_entropy(
    logits: Tensor, labels: Tensor, alpha: float = 0.1, beta: float = 1.0, log_zero: float = LOG_ZERO
) -> Tensor:
    """α · cross-entropy + β · reverse cross-entropy of each instance, eq. (9), (n,).

    Wang et al., "Symmetric cross entropy for robust learning with noisy labels", ICCV 2019. The defaults are
    their weights for CIFAR-10.
    """
    return alpha * cross_entropy(logits, labels) + beta * reverse_cross_entropy(logits, labels, log_zero)


def kl_divergence(logits: Tensor, other: Tensor) -> Tensor:
    """KL(softmax(logits) ‖ softmax(other)), mean over instances. No gradient flows to `logits`."""
    target = logits.detach().float().log_softmax(1)
    return F.kl_div(other.float().log_softmax(1), target, log_target=True, reduction="batchmean")

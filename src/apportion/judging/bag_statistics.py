"""What the shares of bags tell by themselves: how much they differ, and how many rows are right."""

import math

import torch
from scipy.special import stdtrit
from torch import Tensor

JACKKNIFE = 200  # groups of bags at most, each left out once


def spread_of(proportions: Tensor, sizes: Tensor) -> tuple[float, float]:
    """The variance of shares over that of random bags of these sizes (1 is chance), and chance's reach."""
    known, n = proportions.double(), sizes.unsqueeze(1).double()
    overall = (known * n).sum(0) / n.sum()
    there = overall > 0
    total = (n * (known - overall).square())[:, there] / overall[there]
    freedom = max(1, (len(sizes) - 1) * (int(there.sum()) - 1))
    return float(total.sum()) / freedom, 3 * math.sqrt(2 / freedom)


def margins_of(log_probs: Tensor, sizes: Tensor, classes: Tensor, prices: Tensor) -> Tensor:
    """(N,) by how much, at least, a bag's labels grow less likely (in nats) if the row gets another class.

    Prices prove it: nobody else can gain what this one loses. Zero: another labeling is as likely.
    Infinite: the bag has one class only.
    """
    worth = log_probs.double() - prices.repeat_interleave(sizes, 0)
    own = worth.gather(1, classes.unsqueeze(1))
    return (own - worth.scatter(1, classes.unsqueeze(1), -math.inf).amax(1, keepdim=True)).squeeze(1)


def accuracy_from_bags(predicted: Tensor, known: Tensor, sizes: Tensor) -> tuple[float, float]:
    """The share of instances that are right, and half its interval of 95 %, from shares of classes alone.

    `predicted` (m, k) are the shares of the most probable classes. If a class is mistaken alike in every
    bag, they follow the known shares linearly, and the slopes say how often. The interval is a jackknife's,
    and wider where the bags show that a class is not mistaken alike.
    """
    n = sizes.double().unsqueeze(1)
    known, predicted = known.double(), predicted.double()
    joint = torch.cat([torch.ones_like(n), known, predicted], 1)
    m, k = known.shape
    groups = min(m, JACKKNIFE)
    weighed = n * joint
    sums = torch.stack([joint[i::groups, : k + 1].T @ weighed[i::groups] for i in range(groups)])
    whole = sums.sum(0)
    accuracy = float(_accuracy(whole[None], m)[0])
    if m < 3:
        return accuracy, 1.0
    each = _accuracy(whole - sums, m)
    deviation = math.sqrt((groups - 1) / groups * float((each - each.mean()).square().sum()))
    half = float(stdtrit(groups - 1, 0.975)) * deviation
    return accuracy, math.hypot(half, uneven(predicted, known, sizes))


def accuracy_interval(predicted: Tensor, known: Tensor, sizes: Tensor) -> tuple[float, float, float]:
    """`accuracy_from_bags` as it can be, and the ends of its interval; NaN, 0 and 1 if it is far above one.

    Chance alone takes it there seldom. But where rows of a bag are alike, predictions of its rows follow the
    shares of their bag, and more rows seem right than there are: then bags do not tell how many are.
    """
    accuracy, error = accuracy_from_bags(predicted, known, sizes)
    if accuracy > 1.1 or accuracy - 1 > max(0.01, 2 * error):
        return math.nan, 0.0, 1.0
    accuracy = min(1.0, max(0.0, accuracy))  # first: else an interval beyond one would have no width
    return accuracy, max(0.0, accuracy - error), min(1.0, accuracy + error)


def uneven(predicted: Tensor, known: Tensor, sizes: Tensor) -> float:
    """How far accuracy may be off because a class is mistaken otherwise from bag to bag; 0 in random bags.

    The slopes see what goes along with the known shares. What does not shows as residuals that vary more than
    chance lets them; as much again is taken to be hidden in the slopes.
    """
    spread, chance = spread_of(known, sizes)
    if spread <= 1 + chance:
        return 0.0  # rows came into bags by chance, so that no mistake goes along with shares
    n, (m, k) = sizes.double().unsqueeze(1), known.shape
    joint = torch.cat([torch.ones_like(n), known, predicted], 1)
    sums = joint[:, : k + 1].T @ (n * joint)
    pi, q, slopes, total = (part[0] for part in _slopes(sums[None], m))
    left = predicted - q - (known - pi) @ slopes
    rates = (q - pi @ slopes + slopes).clamp(0, 1)  # (k, k) how often a class is taken for another
    by_chance = float(pi @ (rates * (1 - rates)).sum(1))  # variance of residuals, times the size of a bag
    reach = 1 + 2 * math.sqrt(2 / ((m - 1) * (k - 1)))  # of chance, two deviations
    beyond = float((n * left.square()).sum()) / (m - 1) - reach * by_chance
    hidden = max(0.0, beyond) / float(n.mean()) / float(total)
    return math.sqrt(hidden) * (1 - float(pi.square().sum()))


def _accuracy(sums: Tensor, m: int) -> Tensor:
    """Accuracies (r,) from the sums that `_slopes` takes."""
    pi, q, slopes, _ = _slopes(sums, m)
    spread = torch.diag_embed(pi) - pi[:, :, None] * pi[:, None, :]  # covariance of one instance's class
    return (pi * q).sum(1) + (spread * slopes.transpose(1, 2)).sum((1, 2))


def _slopes(sums: Tensor, m: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean known and predicted shares, slopes (r, k, k) and the variance of known shares (r,), from weighted
    sums (r, 1 + k, 1 + 2k) of products of [1, known, predicted] over bags.

    All classes have one slope, and each pair of classes one of its own beside it as far as the number of bags
    bears it: a ridge of k² / m.
    """
    k = sums.shape[1] - 1
    means = sums / sums[:, :1, :1]
    pi, q = means[:, 0, 1 : k + 1], means[:, 0, k + 1 :]
    own = means[:, 1:, 1 : k + 1] - pi[:, :, None] * pi[:, None, :]  # covariance of known shares
    joint = means[:, 1:, k + 1 :] - pi[:, :, None] * q[:, None, :]  # of known with predicted ones
    total = own.diagonal(dim1=1, dim2=2).sum(1).clamp_min(1e-12)
    slope = (joint.diagonal(dim1=1, dim2=2).sum(1) / total)[:, None, None]
    ridge = total[:, None, None] / k * (k * k / m) * torch.eye(k, dtype=sums.dtype)
    slopes = slope * torch.eye(k, dtype=sums.dtype) + torch.linalg.solve(own + ridge, joint - slope * own)
    return pi, q, slopes, total

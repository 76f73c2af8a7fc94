"""Scores of predictions for held-out bags: for choosing among networks and epochs without labels."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from apportion.bags.bags import Bags, bag_means, exact_bag_means
from apportion.evaluate import bag_correlation, entropy, proportion_error
from apportion.judging.bag_statistics import accuracy_from_bags, margins_of
from apportion.methods.count_likelihood import count_log_likelihood
from apportion.transport import assign, assign_with_duals, round_to_counts

# (log-probabilities in the order of the bags, bags) -> more is better
Score = Callable[[Tensor, Bags], float]


def likelihood(log_probs: Tensor, bags: Bags) -> float:
    """The log-probability of the known counts, in nats a row."""
    found = count_log_likelihood(log_probs, bags.sizes, bags.proportions)
    return float(found.sum() / bags.sizes.sum())


def error(log_probs: Tensor, bags: Bags) -> float:
    """Minus the share of a bag that is misplaced."""
    return -proportion_error(log_probs, bags.sizes, bags.proportions)


def hard_error(log_probs: Tensor, bags: Bags) -> float:
    """Minus the share of a bag that its most probable classes misplace."""
    return -float((bag_means(_top(log_probs), bags.sizes) - bags.proportions).abs().sum(1).mean() / 2)


def cross_entropy(log_probs: Tensor, bags: Bags) -> float:
    """Minus the loss of DLLP."""
    predicted = bag_means(log_probs.double().exp(), bags.sizes).clamp_min(1e-38)
    return float((bags.proportions.double() * predicted.log()).sum(1).mean())


def correlation(log_probs: Tensor, bags: Bags) -> float:
    """Of predicted and known shares over bags, each less its class's mean."""
    return bag_correlation(exact_bag_means(log_probs.exp(), bags.sizes), bags.proportions) or 0.0


def hard_correlation(log_probs: Tensor, bags: Bags) -> float:
    """The same with the shares of the most probable classes."""
    return bag_correlation(bag_means(_top(log_probs), bags.sizes), bags.proportions) or 0.0


def accuracy(log_probs: Tensor, bags: Bags) -> float:
    """The estimate of accuracy that `diagnose` gives."""
    return accuracy_from_bags(bag_means(_top(log_probs), bags.sizes), bags.proportions, bags.sizes)[0]


def agreement(log_probs: Tensor, bags: Bags) -> float:
    """The share of rows whose class by transport is the most probable one."""
    classes = assign(log_probs.double(), bags.sizes, round_to_counts(bags.proportions, bags.sizes))
    return float((classes == log_probs.argmax(1)).double().mean())


def margin(log_probs: Tensor, bags: Bags) -> float:
    """The median margin of the labels by transport."""
    scores = log_probs.double()
    found = assign_with_duals(scores, bags.sizes, round_to_counts(bags.proportions, bags.sizes))
    return float(margins_of(scores, bags.sizes, found.classes, found.prices).clamp_max(100).median())


def certainty(log_probs: Tensor, bags: Bags) -> float:
    """Minus the mean entropy of predictions."""
    return -float(entropy(log_probs).mean())


def _top(log_probs: Tensor) -> Tensor:
    return F.one_hot(log_probs.argmax(1), log_probs.shape[1]).double()


SCORES: dict[str, Score] = {
    "likelihood": likelihood,
    "correlation": correlation,
    "hard correlation": hard_correlation,
    "accuracy": accuracy,
    "error": error,
    "hard error": hard_error,
    "cross-entropy": cross_entropy,
    "agreement": agreement,
    "margin": margin,
    "certainty": certainty,
}

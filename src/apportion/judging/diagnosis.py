"""Is an answer any good? What predictions for bags that the network has not seen say, without any label."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from apportion.bags.bags import Bags, bag_means
from apportion.errors import DataError
from apportion.evaluate import entropy
from apportion.judging.bag_statistics import accuracy_interval, margins_of, spread_of
from apportion.judging.predictions import predictions_in_bags
from apportion.judging.shuffles import shuffled_correlations
from apportion.judging.verdict import RARE, words_for
from apportion.transport import assign_with_duals, round_to_counts

LEAST_SHUFFLES = 499  # fewer cannot show that something is as rare


@dataclass(frozen=True)
class Diagnosis:
    """Figures of bags that the network has not seen; `words` says what they come to."""

    supported: bool  # False: the data cannot support an answer, or nothing shows that it can
    words: tuple[str, ...]
    spread: float  # variance of the shares over that of random bags of these sizes; 1 is chance, 0 all alike
    chance: float  # how far the spread of random bags strays from 1, three deviations
    correlation: float  # of predicted and known shares over the bags, each by what its size tells
    shuffled: float  # what shuffled shares reach in two cases of a thousand
    p_value: float  # how often shuffled shares reach this correlation
    accuracy: float  # estimated share of instances whose most probable class is right; NaN: not to be told
    low: float  # its interval, 95 %
    high: float
    largest: float  # share of the largest class: the accuracy of predicting it for everyone
    agreement: float  # share of instances whose class by transport is the most probable one
    entropy: float  # mean of the predictions', over that of a uniform one: 0 is sure, 1 knows nothing
    errors: Tensor  # (m,) the share of each bag that is misplaced
    classes: Tensor  # (N,) by transport: the likeliest that have every bag's counts
    margins: Tensor  # (N,) see margins_of
    noisy: bool = False  # shares that were noisy have been drawn together: spread and interval do not hold


def diagnose(
    probabilities: Any,
    ids: Any,
    proportions: Any = None,
    *,
    counts: Any = None,
    classes: Any = None,
    crossed: bool = False,
    shuffles: int = 1999,
) -> Diagnosis:
    """The diagnosis of predictions (N, k), for rows in bags that their network has not learned from.

    Such predictions come from held-out bags, or (`crossed`) from cross-validation by bag. `classes` are those
    of the columns of the predictions, such as `model.classes_`. What has names, the table or a DataFrame of
    predictions, is read by them.
    """
    bags, *_ = predictions_in_bags(probabilities, ids, proportions, counts, classes)
    log_probs = bags.x.double().clamp_min(1e-38).log()
    found = diagnosis_of(log_probs, bags, shuffles=shuffles, crossed=crossed)
    back = bags.source.argsort()  # rows as they were given
    return replace(found, classes=found.classes[back], margins=found.margins[back])


def worth(correlation: float, crossed: bool) -> float:
    """What a correlation is worth beside those of shuffled shares.

    Networks that judge each other's bags (`crossed`) have learned what chance has put into all of them: two
    parts that go along by chance are foretold from each other, twice. So the variance is twice that of
    shuffled shares, and what is a perfect correlation stays one: r² / (1 - r²) is halved (docs/log.md).
    """
    return correlation / math.sqrt(2 - correlation**2) if crossed else correlation


def needed(worth: float, crossed: bool) -> float:
    """The correlation that is worth so much."""
    return worth * math.sqrt(2 / (1 + worth**2)) if crossed else worth


def diagnosis_of(
    log_probs: Tensor,
    bags: Bags,
    *,
    shuffles: int = 1999,
    seed: int = 0,
    noisy: bool = False,
    crossed: bool = False,
) -> Diagnosis:
    """`diagnose` for log-probabilities in the order of the bags, whose shares were `noisy` before."""
    if shuffles < LEAST_SHUFFLES:
        raise DataError(f"shuffles is {shuffles}; pass {LEAST_SHUFFLES} at least: fewer show nothing so rare")
    log_probs, known, sizes = log_probs.double(), bags.proportions.double(), bags.sizes
    predicted, k = bag_means(log_probs.exp(), sizes), bags.n_classes
    top = torch.nn.functional.one_hot(log_probs.argmax(1), k).double()
    found = assign_with_duals(log_probs, sizes, round_to_counts(bags.proportions, sizes))
    correlation, null = shuffled_correlations(predicted, known, sizes, shuffles, seed)
    spread, chance = spread_of(known, sizes)
    accuracy, low, high = accuracy_interval(bag_means(top, sizes), known, sizes)
    values: dict[str, Any] = {
        "spread": spread,
        "chance": chance,
        "correlation": correlation,
        "shuffled": needed(float(null.quantile(1 - RARE)), crossed),
        # ties count, and the same products add up to other digits in another order
        "p_value": (1 + int((null >= worth(correlation, crossed) - 1e-9).sum())) / (1 + len(null)),
        "accuracy": accuracy,
        "low": low,
        "high": high,
        "largest": float(bags.overall.max()),
        "agreement": float((found.classes == log_probs.argmax(1)).double().mean()),
        "entropy": float(entropy(log_probs).mean() / math.log(k)),
        "errors": (predicted - known).abs().sum(1) / 2,
        "classes": found.classes,
        "margins": margins_of(log_probs, sizes, found.classes, found.prices),
        "noisy": noisy,
    }
    supported, words = words_for(values, len(sizes))
    return Diagnosis(supported, words, **values)

"""Decisions: from probabilities to classes, with what is known about shares.

The most probable class of every row is right most often, but a rare class is then predicted too rarely or
never: where no row has it with a probability of one half, argmax never names it. Two other decisions use what
is known. Prices, one per class, make the predicted shares of the training rows equal the known ones, and
decide about new rows one by one. Where the proportions of the bags of new rows are known, transport gives
every bag its counts.
"""

import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from apportion._scratch import pieces
from apportion.bags.bags import Bags
from apportion.bags.build import name_grouping, tables_of_groupings
from apportion.bags.groupings import join_groupings
from apportion.bags.predictions import bags_of_predictions
from apportion.errors import ApportionWarning, DataError, SettingsError
from apportion.pseudo_labels import transduce
from apportion.transport import assign_with_duals, round_to_counts

DECISIONS = ("argmax", "shares")
HIGHEST_PRICE = 1e6  # of a class that is nowhere
SMALLEST_LOG_PROB = -1e4
MOST_ROWS_FOR_PRICES = 1 << 20


class LearnedDecisions(NamedTuple):
    """What the training rows say about decisions."""

    class_shares: np.ndarray  # (k,) the known shares of the classes
    predicted_shares: np.ndarray  # (k,) how often each class is the most probable one
    never_predicted: str  # the classes that never are, in words
    share_prices: np.ndarray  # (k,) at which classes are predicted in their known shares


def learn_decisions(log_probs: Tensor, bags: Bags, classes: np.ndarray) -> LearnedDecisions:
    """Shares and prices from the predictions (N, k) of the training rows, in the order of `bags.x`."""
    shares = known_shares(bags)
    counts = torch.zeros(bags.n_classes, dtype=torch.float64)
    for rows in pieces(len(log_probs)):
        weight = None if bags.weight is None else bags.weight[rows]
        counts += torch.bincount(log_probs[rows].argmax(1), weight, minlength=bags.n_classes)
    known, predicted = shares.numpy(), (counts / counts.sum()).numpy()
    never = describe_never_predicted(classes, known, never_predicted(known, predicted, len(log_probs)))
    return LearnedDecisions(known, predicted, never, share_prices(log_probs, shares, bags.weight))


def known_shares(bags: Bags) -> Tensor:
    """The class shares (k,) of all rows in bags with known proportions, float64."""
    return bags.without_features().known().overall


def share_prices(log_probs: Tensor, shares: Tensor, weight: Tensor | None = None) -> np.ndarray:
    """Prices (k,) at which rows of these log-probabilities (n, k) take classes in these shares (k,).

    A row takes the class of its highest log-probability minus price. The prices are the dual variables of the
    transport of all rows to the shares. Their mean is zero. With weights, n rows are drawn in proportion to
    them, at equal distances. Of more than a million rows, so many are drawn, at equal distances too.
    """
    n_drawn = min(len(log_probs), MOST_ROWS_FOR_PRICES)
    scores = log_probs
    if weight is not None:
        mass = weight.cpu().double().cumsum(0)
        drawn = mass[-1] * (torch.arange(n_drawn, dtype=torch.float64) + 0.5) / n_drawn
        scores = scores[torch.searchsorted(mass, drawn).clamp_max(len(mass) - 1)]
    elif n_drawn < len(log_probs):
        scores = scores[torch.arange(n_drawn) * len(log_probs) // n_drawn]
    scores = scores.cpu().clamp_min(SMALLEST_LOG_PROB)
    sizes = torch.tensor([len(scores)])
    counts = round_to_counts((shares / shares.sum()).unsqueeze(0), sizes)
    prices = assign_with_duals(scores, sizes, counts).prices[0].numpy()
    finite = np.isfinite(prices)
    return np.where(finite, prices - prices[finite].mean(), HIGHEST_PRICE)


def decide_by_prices(probabilities: np.ndarray, prices: np.ndarray) -> np.ndarray:
    """Class codes (n,) of the highest log-probability minus price."""
    return (np.log(np.maximum(probabilities, 1e-300)) - prices).argmax(1)


def decide_by_bags(
    probabilities: Any, bags: Any, proportions: Any, classes: Sequence[Hashable] | None = None
) -> np.ndarray:
    """Class codes (n,): the most probable labels of the rows that have the counts of every bag.

    Arguments are those of `condition_on_proportions`. Where proportions are unknown or noisy, the counts are
    those of the predictions, or a compromise. Of several groupings, the first has its counts exactly.
    """
    if not isinstance(bags, Mapping):
        return _transduce(bags_of_predictions(probabilities, bags, proportions, classes, subset=True).bags)
    groupings = {}
    for name, table in tables_of_groupings(bags, proportions).items():
        try:
            groupings[name] = bags_of_predictions(probabilities, bags[name], table, classes, subset=True).bags
        except DataError as error:
            raise name_grouping(error, name) from None
    return _transduce(join_groupings(groupings))


def _transduce(bags: Bags) -> np.ndarray:
    log_probs = bags.x.double().clamp_min(1e-38).log()
    return transduce(log_probs, replace(bags, proportions=bags.proportions.double()))


def check_decision(decide: str, bags: Any, proportions: Any) -> None:
    """Raise SettingsError unless the arguments of `predict` go together."""
    if decide not in DECISIONS:
        raise SettingsError(f"decide is {decide!r}; pass one of {', '.join(DECISIONS)}")
    if (bags is None) != (proportions is None):
        there, missing = ("bags", "proportions") if proportions is None else ("proportions", "bags")
        raise SettingsError(f"predict has {there} but no {missing}; pass both, or neither")
    if bags is not None and decide == "argmax":
        hint = "pass decide='shares', or condition_on_proportions(probabilities, bags, proportions)"
        raise SettingsError(f"predict has the proportions of bags, which argmax does not use; {hint}")


def never_predicted(shares: np.ndarray, predicted: np.ndarray, n_rows: int) -> np.ndarray:
    """(k,) bool: classes that should have at least one of n rows, and are not predicted for any."""
    return (predicted == 0) & (shares * n_rows >= 1)


def describe_never_predicted(classes: np.ndarray, shares: np.ndarray, never: np.ndarray) -> str:
    """A sentence about classes that are never predicted, or "" if there are none."""
    if not never.any():
        return ""
    names = [
        f"{name!r} ({100 * share:.2g} %)"
        for name, share in zip(classes[never].tolist(), shares[never], strict=True)
    ]
    some = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    word = "class" if len(names) == 1 else "classes"
    verb = "is" if len(names) == 1 else "are"
    return f"the {word} {some} {verb} never the most probable one of a training row"


def warn_never_predicted(sentence: str) -> None:
    """Warn of classes that argmax never names."""
    hint = "predict(X, decide='shares') predicts every class as often as it is known to occur"
    warnings.warn(f"{sentence}; {hint}", ApportionWarning, stacklevel=4)

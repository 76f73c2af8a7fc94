"""Scores of predictions on held-out bags. None of them needs labels, and for all of them larger is better.

`SCORES` maps the names that `select_by` accepts to functions. `BagScore` and `BagCorrelation` wrap them as
scorers for scikit-learn. docs/model-selection.md compares them.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from narwhals.dependencies import is_pandas_dataframe, is_polars_dataframe
from sklearn.utils.metadata_routing import MetadataRequest
from torch import Tensor

from apportion.bags.bags import Bags, bag_means, exact_bag_means
from apportion.bags.build import Groups, column_names, group_rows, table_from_rows
from apportion.bags.instances import check_row_order, read_weight
from apportion.bags.predictions import bags_of_predictions
from apportion.bags.proportions import Proportions, name_of_bags, without_torch
from apportion.errors import DataError, SettingsError
from apportion.evaluate import bag_correlation, entropy
from apportion.methods.count_likelihood import count_log_likelihood
from apportion.selection.diagnosis import estimate_accuracy, label_margins
from apportion.transport import assign, assign_with_duals, round_to_counts

MAX_MARGIN = 100.0  # nats; rows of pure bags have infinite margins, and infinite medians do not compare

# (log-probabilities in the order of the bags, bags) -> a number, larger is better
Score = Callable[[Tensor, Bags], float]


def likelihood(log_probs: Tensor, bags: Bags) -> float:
    """The log-likelihood of the bags' counts, in nats per row."""
    log_likelihood = count_log_likelihood(log_probs, bags.sizes, bags.proportions, bags.weight)
    return float(log_likelihood.sum() / bags.mass.sum())


def correlation(log_probs: Tensor, bags: Bags) -> float:
    """The correlation of predicted and known proportions over bags, each centered by class."""
    predicted = exact_bag_means(log_probs.exp(), bags.sizes, bags.weight)
    return bag_correlation(predicted, bags.proportions) or 0.0


def hard_correlation(log_probs: Tensor, bags: Bags) -> float:
    """The correlation of the proportions of the most probable classes with the known ones."""
    return bag_correlation(_hard_proportions(log_probs, bags), bags.proportions) or 0.0


def accuracy(log_probs: Tensor, bags: Bags) -> float:
    """The accuracy that `diagnose` estimates from bags."""
    return estimate_accuracy(_hard_proportions(log_probs, bags), bags.proportions, bags.sizes)[0]


def error(log_probs: Tensor, bags: Bags) -> float:
    """Minus the proportion error: half the L1 distance between predicted and known proportions."""
    predicted = exact_bag_means(log_probs.exp(), bags.sizes, bags.weight)
    return -float((predicted - bags.proportions).abs().sum(1).mean() / 2)


def hard_error(log_probs: Tensor, bags: Bags) -> float:
    """Minus the proportion error of the most probable classes."""
    distance = (_hard_proportions(log_probs, bags) - bags.proportions).abs().sum(1)
    return -float(distance.mean() / 2)


def cross_entropy(log_probs: Tensor, bags: Bags) -> float:
    """Minus the proportion loss of DLLP."""
    predicted = bag_means(log_probs.double().exp(), bags.sizes, bags.weight).clamp_min(1e-38)
    return float((bags.proportions.double() * predicted.log()).sum(1).mean())


def agreement(log_probs: Tensor, bags: Bags) -> float:
    """The fraction of rows whose most probable class is also their class by optimal transport."""
    classes = assign(log_probs.double(), bags.sizes, round_to_counts(bags.proportions, bags.sizes))
    return float((classes == log_probs.argmax(1)).double().mean())


def margin(log_probs: Tensor, bags: Bags) -> float:
    """The median margin, in nats, of the labels by optimal transport."""
    log_probs = log_probs.double()
    solution = assign_with_duals(log_probs, bags.sizes, round_to_counts(bags.proportions, bags.sizes))
    margins = label_margins(log_probs, bags.sizes, solution.classes, solution.prices)
    return float(margins.clamp_max(MAX_MARGIN).median())


def certainty(log_probs: Tensor, bags: Bags) -> float:
    """Minus the mean entropy of the predictions."""
    return -float(entropy(log_probs).mean())


def _hard_proportions(log_probs: Tensor, bags: Bags) -> Tensor:
    """(m, k) the proportions of the most probable classes in every bag."""
    one_hot = F.one_hot(log_probs.argmax(1), log_probs.shape[1]).double()
    return bag_means(one_hot, bags.sizes, bags.weight)


SCORES: dict[str, Score] = {
    "likelihood": likelihood,
    "correlation": correlation,
    "hard_correlation": hard_correlation,
    "accuracy": accuracy,
    "error": error,
    "hard_error": hard_error,
    "cross_entropy": cross_entropy,
    "agreement": agreement,
    "margin": margin,
    "certainty": certainty,
}


class BagScore:
    """A score of held-out bags as a scorer for scikit-learn: `GridSearchCV(..., scoring=BagScore())`.

    Parameters
    ----------
    name : str, default="likelihood"
        One of the names in `SCORES`.

    Examples
    --------
    >>> from apportion import BagScore
    >>> BagScore("error").name
    'error'
    """

    def __init__(self, name: str = "likelihood") -> None:
        if name not in SCORES:
            raise SettingsError(f"name is {name!r}, which is not a score; pass one of {', '.join(SCORES)}")
        self.name = name

    def __call__(self, estimator: Any, X: Any, y: Any, *, bags: Any = None) -> float:
        """The score of an estimator that has `predict_proba` and `classes_`.

        `y` is one of: the proportions of each row's bag (n, k), labels (n,), which are counted, or a table
        with one row per bag.
        """
        probabilities = np.maximum(estimator.predict_proba(X), 1e-38)
        held_out = _held_out_bags(estimator, probabilities, X, y, bags)
        return SCORES[self.name](torch.log(held_out.x), held_out)

    def get_metadata_routing(self) -> MetadataRequest:
        return _request_bags(self)


class BagCorrelation:
    """The bag correlation as a scorer for scikit-learn: `GridSearchCV(..., scoring=BagCorrelation())`.

    It is the correlation, over held-out bags, of predicted and known proportions, each centered by class: 1
    for perfect predictions, 0 for a network that predicts the overall proportions for every bag. Unlike
    `BagScore("correlation")` it raises `DataError` if all held-out bags have the same proportions.
    """

    def __call__(self, estimator: Any, X: Any, y: Any, *, bags: Any = None) -> float:
        """The bag correlation of an estimator; `y` is as for `BagScore`."""
        held_out = _held_out_bags(estimator, estimator.predict_proba(X), X, y, bags)
        value = bag_correlation(exact_bag_means(held_out.x, held_out.sizes), held_out.proportions)
        if value is None:
            raise DataError("all held-out bags have the same proportions; hold out bags that differ")
        return value

    def get_metadata_routing(self) -> MetadataRequest:
        return _request_bags(self)


def _request_bags(scorer: Any) -> MetadataRequest:
    """scikit-learn's request that `bags` be routed to a scorer."""
    request = MetadataRequest(owner=scorer)
    request.score.add_request(param="bags", alias=True)
    return request


def _held_out_bags(estimator: Any, probabilities: np.ndarray, X: Any, y: Any, bags: Any) -> Bags:
    """Held-out bags whose instances are the predicted probabilities."""
    if bags is None:  # searches leave it out unless metadata routing is on
        raise SettingsError(
            "a score of bags needs the bag of each row; call sklearn.set_config(enable_metadata_routing=True)"
            " and pass bags= to the search's fit, or to the scorer"
        )
    check_row_order(X, bags)
    classes = estimator.classes_
    groups = group_rows(bags, len(probabilities))
    if _has_one_row_per_bag(y, groups) or _has_column(y, name_of_bags(bags)):
        table = y
    elif np.ndim(y) == 1:
        table = _count_labels(np.asarray(without_torch(y)), groups, np.asarray(classes))
    else:
        table = table_from_rows(y, groups)
    return bags_of_predictions(probabilities, bags, table, classes).bags


def _count_labels(y: np.ndarray, groups: Groups, classes: np.ndarray) -> Proportions:
    """The counts of the labels (n,) in every bag; a fold may lack some of the classes."""
    if len(y) != len(groups.number):
        raise DataError(f"there are {len(groups.number)} rows but {len(y)} labels; pass one label per row")
    one_hot = y[:, None] == classes
    unknown = np.flatnonzero(~one_hot.any(1))
    if len(unknown):
        label = y[unknown[0]]
        what = f"row {unknown[0]} of y has label {label!r}, which the estimator was not fitted on"
        raise DataError(f"{what}; pass labels among {classes.tolist()}", value=label)
    counts = np.zeros((len(groups.names), len(classes)))
    np.add.at(counts, groups.number, one_hot)
    return Proportions(dict(zip(groups.names, counts, strict=True)), "counts")


def _has_one_row_per_bag(y: Any, groups: Groups) -> bool:
    """Whether `y` is a table of bags: a dict, a frame whose index names the bags, or one row per bag."""
    if isinstance(y, Mapping | Proportions):
        return True
    n_rows = len(groups.number)
    has_index = is_pandas_dataframe(y) and type(y.index).__name__ != "RangeIndex"
    if np.ndim(y) != 2 or (len(y) == n_rows and not has_index):
        return False
    if not has_index:
        return len(y) == len(groups.names) or is_polars_dataframe(y)
    if not set(groups.names) <= set(y.index):
        return False
    return len(y) != n_rows or not _is_constant_in_bags(y.to_numpy(), groups.number)


def _has_column(y: Any, name: str | None) -> bool:
    """Whether `y` is a table of bags, whose ids are in the column of this name."""
    return (is_pandas_dataframe(y) or is_polars_dataframe(y)) and name is not None and name in list(y.columns)


def _is_constant_in_bags(y: np.ndarray, bag_of_row: np.ndarray) -> bool:
    """Whether rows of a bag are equal in `y`, and some bag has several rows: then `y` has one row per row."""
    _, first, number = np.unique(bag_of_row, return_index=True, return_inverse=True)
    expected = y[first][number]
    both_missing = (y != y) & (expected != expected)
    return len(first) < len(bag_of_row) and bool(((y == expected) | both_missing).all())


# --- the score of an estimator


def likelihood_of_rows(probabilities: np.ndarray, y: Any, classes: np.ndarray, weight: Any = None) -> float:
    """`likelihood` of probabilities (n, k) and the proportions `y` (n, k) of each row's own bag.

    Rows with equal proportions are taken for one bag.
    """
    names = column_names(y)
    rows = np.asarray(without_torch(y), dtype=np.float64)
    if names is not None:
        order = [names.index(name) for name in classes.tolist() if name in names]
        rows = rows[:, order]
    if rows.shape != probabilities.shape:
        what = f"y has proportions of shape {rows.shape}"
        hint = f"pass {probabilities.shape}, one column for each of {classes.tolist()}"
        raise DataError(f"{what}; {hint}", value=rows.shape)
    shares, bag = np.unique(rows, axis=0, return_inverse=True)
    groups = group_rows(bag.reshape(-1), len(rows))
    order = np.argsort(groups.number, kind="stable")
    log_probs = torch.from_numpy(np.log(np.maximum(probabilities, 1e-38)))[order]
    values = read_weight(weight, len(rows))
    weights = None if values is None else torch.from_numpy(values)[order]
    bags = Bags(
        log_probs, torch.from_numpy(groups.sizes), torch.from_numpy(shares).float(), torch.from_numpy(order),
        groups.names, weight=weights,
    )  # fmt: skip
    return likelihood(log_probs, bags)

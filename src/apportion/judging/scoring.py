"""Scores for choosing among classifiers without labels, as scikit-learn's searches take them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from sklearn.utils.metadata_routing import MetadataRequest

from apportion.bags.bags import Bags, exact_bag_means
from apportion.evaluate import bag_correlation
from apportion.intake.forms import bags_from
from apportion.intake.given import refuse_another_order
from apportion.intake.ids import groups_of
from apportion.intake.instances import library_of
from apportion.intake.remedies import SCORING
from apportion.judging.bag_scores import SCORES


class BagCorrelation:
    """A scorer for scikit-learn's searches: `GridSearchCV(..., scoring=BagCorrelation())`.

    The correlation, over held-out bags, of predicted and known shares, each less its class's mean over the
    bags. One is perfect; a network that gives every bag the overall shares, whose proportion error may be
    small, has zero.
    """

    def __call__(self, estimator: Any, X: Any, y: Any, *, bags: Any = None) -> float:
        """`y` (n, k) holds the shares of each row's bag, or (n,) labels, which are counted; or is a table."""
        held = held_bags(estimator, estimator.predict_proba(X), X, y, bags)
        found = bag_correlation(exact_bag_means(held.x, held.sizes), held.proportions)
        if found is None:
            raise ValueError("the held-out bags all have the same proportions; hold out bags that differ")
        return found

    def get_metadata_routing(self) -> MetadataRequest:
        request = MetadataRequest(owner=self)
        request.score.add_request(param="bags", alias=True)
        return request


class BagScore:
    """Any score of held-out bags by its name: `GridSearchCV(..., scoring=BagScore("likelihood"))`."""

    def __init__(self, name: str = "likelihood") -> None:
        if name not in SCORES:
            raise ValueError(f"there is no score {name!r}; there are {', '.join(SCORES)}")
        self.name = name

    def __call__(self, estimator: Any, X: Any, y: Any, *, bags: Any = None) -> float:
        """`y` (n, k) holds the shares of each row's bag, or (n,) labels, which are counted; or is a table."""
        probabilities = np.maximum(estimator.predict_proba(X), 1e-38)
        held = held_bags(estimator, probabilities, X, y, bags)
        return SCORES[self.name](torch.log(held.x), held)

    def get_metadata_routing(self) -> MetadataRequest:
        request = MetadataRequest(owner=self)
        request.score.add_request(param="bags", alias=True)
        return request


def held_bags(estimator: Any, probabilities: np.ndarray, X: Any, y: Any, bags: Any) -> Bags:
    """Held-out rows by bag, their probabilities for instances."""
    if bags is None:  # as searches leave it that do not route
        raise ValueError(
            "a score of bags needs the bag of each row: call sklearn.set_config(enable_metadata_routing=True)"
            " and pass bags= to the search's fit, or to the scorer"
        )
    refuse_another_order(X, bags)
    if _is_table(y, bags, len(probabilities)):
        table = {"proportions": y, "classes": estimator.classes_}
        return bags_from(probabilities, None, bags, **table, way=SCORING)[0]
    return bags_from(probabilities, y, bags, classes=estimator.classes_, way=SCORING)[0]


def _is_table(y: Any, bags: Any, n: int) -> bool:
    """Whether `y` has a row a bag: a dict, a frame whose index names the bags, or as many rows as bags."""
    if isinstance(y, Mapping):
        return True
    named = library_of(y) == "pandas" and type(getattr(y, "index", None)).__name__ != "RangeIndex"
    if np.ndim(y) != 2 or (len(y) == n and not named):
        return False
    groups = groups_of(bags, n)
    if not named:
        return len(y) == len(groups[0]) or library_of(y) == "polars"
    return set(groups[0]) <= set(y.index) and not (len(y) == n and _alike(y.to_numpy(), groups[1]))


def _alike(y: np.ndarray, bag: np.ndarray) -> bool:
    """Whether rows of a bag have the same shares, and some bag has several: so it is the shares of rows."""
    _, first, number = np.unique(bag, return_index=True, return_inverse=True)
    theirs = y[first][number]
    return len(first) < len(bag) and bool(((y == theirs) | ((y != y) & (theirs != theirs))).all())

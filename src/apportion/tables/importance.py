"""Which columns a classifier uses, without labels: by trees' own gains, or by permuting a column."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import nn

from apportion._random import stream
from apportion.bags.bags import Bags
from apportion.estimator import ProportionClassifier
from apportion.networks.average import Average
from apportion.networks.trees import BoostedTrees
from apportion.selection.scores import likelihood

REPEATS = 3  # permutations of a column
MOST_PREDICTIONS = 3_000_000  # rows times columns times repeats; of more rows, some bags are taken
MOST_CLASSES = 50  # the likelihood of counts takes k squared numbers per bag


@dataclass(frozen=True)
class ColumnImportance:
    """How much a classifier depends on one column."""

    column: str
    value: float  # the fraction of the trees' gain, or nats per row
    low: float  # the smallest and largest of several permutations
    high: float


def trees_of(model: nn.Module) -> BoostedTrees | None:
    """The trees of a classifier: itself, or a member of an average."""
    members = model.members if isinstance(model, Average) else [model]
    return next((each for each in members if isinstance(each, BoostedTrees)), None)


def tree_importances(classifier: ProportionClassifier) -> list[ColumnImportance]:
    """The columns' fractions of what the splits of the trees gain; empty without trees, or without columns.

    A column may have several features, such as one per category: theirs are added up.
    """
    trees = trees_of(classifier.model_)
    encoder = classifier.encoder_
    if trees is None or encoder is None:
        return []
    gains = np.nan_to_num(trees.importance.double().numpy())  # the file may be a stranger's
    gains = gains / max(gains.sum(), np.finfo(float).tiny)
    names = [column.name for column in encoder.columns_ for _ in column.features]
    found = dict.fromkeys(names, 0.0)
    for name, gain in zip(names, gains.tolist(), strict=True):
        found[name] += gain
    return [ColumnImportance(name, value, value, value) for name, value in found.items()]


def permutation_importances(
    classifier: ProportionClassifier, X: pl.DataFrame, bags: Bags, seed: int = 0
) -> Iterator[ColumnImportance]:
    """By how much the log-likelihood of the bags' counts falls, in nats per row, if a column is permuted.

    No label is needed: a column that tells classes apart tells bags apart whose classes differ. `X` are the
    rows of the bags, in their order. Yields the columns in the order of `X`.
    """
    which = bags_to_permute(bags, X.width, seed)
    rows = torch.isin(torch.arange(len(bags.sizes)).repeat_interleave(bags.sizes), which)
    X = X.filter(pl.Series(rows.numpy()))
    bags = bags.select(which)
    before = _score(classifier, X, bags)
    for i, name in enumerate(X.columns):
        falls = []
        for repeat in range(REPEATS):
            order = torch.randperm(X.height, generator=stream(seed, "permutation", i, repeat)).numpy()
            permuted = X.with_columns(X[name][order].alias(name))
            falls.append(before - _score(classifier, permuted, bags))
        yield ColumnImportance(name, float(np.mean(falls)), min(falls), max(falls))


def bags_to_permute(bags: Bags, n_columns: int, seed: int = 0) -> torch.Tensor:
    """The bags whose rows are permuted, sorted: all, or of many rows a random choice."""
    most = MOST_PREDICTIONS // (REPEATS * max(1, n_columns))
    order = torch.randperm(len(bags.sizes), generator=stream(seed, "permuted bags"))
    count = int((bags.sizes[order].cumsum(0) <= most).sum())
    return order[: max(1, count)].sort().values


def _score(classifier: ProportionClassifier, X: Any, bags: Bags) -> float:
    probabilities = np.maximum(classifier.predict_proba(X), 1e-38)
    return likelihood(torch.from_numpy(np.log(probabilities)), bags)

"""Tables by group: how many rows of each class has every group, with bounds and intervals?

Counts are sums of predicted probabilities, conditioned on the proportions of bags where these are known. The
bounds hold by arithmetic. The intervals have two parts: labels are drawn from their probabilities, and the
probabilities would be others if other bags had been learned from, by a network that is biased as well. Where
bags that were not learned from are predicted no better than by chance, an interval is all that arithmetic
allows. docs/tabulate.md explains and checks them.
"""

import math
import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import narwhals as nw
import numpy as np
import torch
from narwhals.dependencies import is_pandas_dataframe, is_polars_dataframe, is_polars_lazyframe
from scipy.special import ndtri
from torch import Tensor

from apportion._random import as_seed, stream
from apportion.bags.bags import Bags, bag_means
from apportion.bags.build import build_bags_without_features, check_row_order, group_rows, take_bag_columns
from apportion.bags.instances import read_weight
from apportion.bags.proportions import as_proportions, is_missing
from apportion.conditioning import condition_bags
from apportion.encoding import check_unique_columns
from apportion.errors import ApportionWarning, DataError, SettingsError, did_you_mean
from apportion.selection.crossfit import (
    check_takes_weight,
    copy_unfitted,
    fit_part,
    name_bags,
    row_ids,
    take_instances,
)
from apportion.selection.diagnosis import deflate_correlation, p_value_of, permutation_test

MIN_BAGS_TO_HALVE = 8  # halves of fewer bags cannot be learned from
# The p-value up to which intervals are given. `diagnose` asks for 0.002, but learns from three quarters of
# the bags; halves are predicted less well, and bounds where there is information help nobody.
SUPPORT = 0.05
BIAS = 4.0  # mean square error of networks over the variance that halves of the bags show (docs/tabulate.md)
Columns = dict[str, list[Any]]


@dataclass(frozen=True)
class GroupedRows:
    """Which group each row belongs to, in the order of the bags, and the names of the groups."""

    group: np.ndarray  # (N,)
    names: Columns  # one value per group

    @property
    def n_groups(self) -> int:
        """Number of groups that have rows."""
        return len(next(iter(self.names.values())))


def tabulate(
    model: Any,
    X: Any,
    by: Any,
    *,
    bags: Any = None,
    proportions: Any = None,
    sample_weight: Any = None,
    level: float = 0.9,
    replicates: int = 10,
    random_state: Any = 0,
) -> Any:
    """Predicted counts and shares of every class in groups of rows.

    Parameters
    ----------
    model : estimator
        A `ProportionClassifier`, or any estimator with `fit(X, bags=..., proportions=...)`, `predict_proba`
        and `classes_`. If it is not fitted, a copy is fitted to X and its bags.
    X : data frame or array-like of shape (n_samples, ...)
        The rows to count.
    by : str, list of str, or dict
        Columns of `X` whose combinations are the groups, or `{name: array of shape (n_samples,)}`. Columns
        that a fitted model does not know are not passed to it.
    bags, proportions : optional
        The bag of each row, and the known proportions of the bags, as in `ProportionClassifier.fit`, for one
        grouping. The table then agrees with them: the counts of all groups add up to those of every bag.
        Intervals need them.
    sample_weight : array-like of shape (n_samples,) or str, optional
        How many people, or how much else, each row stands for, or the column of `X` that has it. A row of
        weight 3 is three equal rows, each with a class of its own: counts are then of people.
    level : float, default=0.9
        Probability that an interval is meant to hold.
    replicates : int, default=10
        Models that are fitted to random halves of the bags to find out how much predictions depend on them;
        an even number. 0: no intervals.
    random_state : int, RandomState instance or None, default=0
        Determines the halves.

    Returns
    -------
    data frame or dict of lists
        One row per group and class, of the library of `X`: the columns of `by`, "class", "rows" (of the
        group, or the sum of their weights), "count", "count_low" and "count_high" (the interval; NaN without
        bags or replicates), "count_min" and "count_max" (the bounds of arithmetic), and "share", "share_low"
        and "share_high", all over "rows".

    Warns
    -----
    ApportionWarning
        If the bags do not show that the model works: each half of them is predicted no better than by chance
        by what learned from the other half, or there are fewer than eight. The intervals are then the bounds.

    Examples
    --------
    >>> import numpy as np
    >>> from apportion import ProportionClassifier, tabulate
    >>> rng = np.random.default_rng(0)
    >>> age = rng.integers(18, 90, size=400)
    >>> precinct = np.arange(400) % 20
    >>> left = rng.random(400) < np.where(age < 50, 0.8, 0.2)  # not known to anyone
    >>> shares = {i: {"left": left[precinct == i].mean(), "right": 1 - left[precinct == i].mean()}
    ...           for i in range(20)}
    >>> model = ProportionClassifier(epochs=10, pseudo_labels=None, random_state=0)
    >>> X = (age[:, None] - 50) / 20
    >>> table = tabulate(model, X, {"young": age < 50}, bags=precinct, proportions=shares, replicates=2)
    >>> table["young"], table["class"]
    ([False, False, True, True], ['left', 'right', 'left', 'right'])
    >>> round(sum(table["count"]))
    400
    """
    check_level(level, replicates)
    groups, X = _read_groups(model, X, by)
    X, bags = take_bag_columns(X, bags)
    if isinstance(sample_weight, str):
        X, sample_weight = take_bag_columns(X, sample_weight)
    check_row_order(X, bags)
    n = len(next(iter(groups.values())))
    weight = read_weight(sample_weight, n)
    if weight is not None and replicates and bags is not None:
        check_takes_weight(model)
    built = group_bags(n, bags, proportions, weight)
    X = take_instances(X, built.source.numpy())
    rows = group_by(groups, built.source.numpy())
    table = None if proportions is None else name_bags(as_proportions(proportions), built, bags)
    if not _is_fitted(model):
        if bags is None:
            raise SettingsError("the model is not fitted; fit it, or pass bags= and proportions=")
        model = copy_unfitted(model)
        for _ in fit_part(model, X, row_ids(built), table, weights_of(built)):
            pass
    probabilities = np.asarray(model.predict_proba(X), dtype=np.float64)
    counter = CellCounter(built, rows, np.asarray(model.classes_).tolist())
    counter.add_model(probabilities)
    seed = as_seed(random_state)
    for _ in add_replicates([counter], model, X, table, replicates if bags is not None else 0, seed):
        pass
    warn_without_support(counter.no_support)
    return _as_frame(counter.table(level), X)


def check_level(level: float, replicates: int) -> None:
    """Raise SettingsError for a level or a number of replicates that make no sense."""
    if not 0 < level < 1:
        raise SettingsError(f"level is {level}; pass a probability, such as 0.9")
    if replicates < 0 or replicates % 2:
        raise SettingsError(f"replicates is {replicates}; pass an even number, or 0 for no intervals")


def _is_fitted(model: Any) -> bool:
    return hasattr(model, "classes_")


# --- groups and bags


def _read_groups(model: Any, X: Any, by: Any) -> tuple[dict[str, Any], Any]:
    """The columns of the groups, and X without those that a fitted model does not know."""
    if len(by) == 0:
        raise SettingsError("by names no column; name at least one")
    if isinstance(by, Mapping):
        return {str(name): values for name, values in by.items()}, X
    names = [by] if isinstance(by, str) else list(by)
    if is_polars_lazyframe(X):
        X = X.collect()
    if not (is_pandas_dataframe(X) or is_polars_dataframe(X)):
        raise DataError(f"by is {by!r}, but X is not a data frame; pass {{name: array}}", value=by)
    check_unique_columns(X)
    for name in names:
        if name not in X.columns:
            what = f"by has {name!r}{did_you_mean(name, list(X.columns))}, which is not a column of X"
            raise DataError(f"{what}; it has {list(X.columns)[:20]}", value=name)
    groups = {name: X[name] for name in names}
    features = getattr(model, "feature_names_in_", None)
    if features is not None:
        unknown = [name for name in names if name not in list(features)]
        X = X.drop(columns=unknown) if is_pandas_dataframe(X) else X.drop(unknown)
    return groups, X


def group_by(columns: Mapping[str, Any], source: np.ndarray) -> GroupedRows:
    """Groups of rows with equal values in all columns; `source` is the order in which rows are counted."""
    codes: list[np.ndarray] = []
    values: list[Sequence[Hashable]] = []
    n = len(source)
    for name, column in columns.items():
        # missing values and empty texts are one group, "", as files do not tell them apart
        texts = ["" if is_missing(value) else value for value in _as_list(column)]
        if len(texts) != n:
            raise DataError(f"there are {n} rows but {len(texts)} values of {name!r}; pass one per row")
        found = group_rows(texts, n)
        codes.append(found.number)
        values.append(found.names)
    shape = tuple(len(each) for each in values)
    distinct, group = np.unique(np.ravel_multi_index(codes, shape), return_inverse=True)
    places = np.unravel_index(distinct, shape)
    names = {
        name: [each[i] for i in place.tolist()]
        for name, each, place in zip(columns, values, places, strict=True)
    }
    return GroupedRows(group.reshape(-1)[source], names)


def _as_list(column: Any) -> list[Any]:
    return column.to_list() if hasattr(column, "to_list") else np.asarray(column).tolist()


def group_bags(n: int, bags: Any, proportions: Any, weight: np.ndarray | None = None) -> Bags:
    """The bags of n rows with weights; without bags, all rows are one bag of unknown proportions."""
    if bags is None:
        if proportions is not None:
            raise SettingsError("proportions belong to bags; pass bags=, the bag of every row")
        nothing = torch.full((1, 1), math.nan)
        weights = None if weight is None else torch.from_numpy(weight).float()
        return Bags(torch.empty(n, 0), torch.tensor([n]), nothing, torch.arange(n), ["all"], weight=weights)
    if isinstance(bags, Mapping):
        raise SettingsError("tabulate takes one grouping of bags; pass the bag of every row in one of them")
    if proportions is None:
        raise SettingsError("bags have no use without proportions; pass proportions=, one row per bag")
    return build_bags_without_features(n, bags=bags, proportions=proportions, weight=weight).bags


def weights_of(bags: Bags) -> np.ndarray | None:
    """(N,) the weights of the rows, in the order of the bags, if they have any."""
    return None if bags.weight is None else bags.weight.double().numpy()


# --- counting


class CellCounter:
    """Counts of classes in groups of rows, for a model and for replicates of it."""

    def __init__(self, bags: Bags, rows: GroupedRows, classes: Sequence[Hashable]) -> None:
        self.bags = bags
        self.rows = rows
        self.classes = classes
        self.m = len(bags.sizes)
        self.k = len(classes)
        self.bag = np.repeat(np.arange(self.m), bags.sizes.numpy())
        self.known = bags.proportions.isfinite().all(1).numpy()
        self.weight = weights_of(bags)
        self.mass = bags.sizes.numpy() if self.weight is None else bags.mass.numpy()
        cell = self.bag * rows.n_groups + rows.group
        cells = np.bincount(cell, self.weight, self.m * rows.n_groups)
        self.n_cells = cells.reshape(self.m, rows.n_groups)
        self.replicates: list[np.ndarray] = []
        self.no_support = ""  # why the bags do not show that the model works, once that has been tested

    def add_model(self, probabilities: np.ndarray) -> None:
        """Count with the probabilities (N, k) of the model, in the order of the bags."""
        conditioned = self._condition(probabilities)
        self.counts = self._count(conditioned)
        self.variance = np.stack([self._label_variance(conditioned[:, c]) for c in range(self.k)], 1)

    def add_replicate(self, probabilities: np.ndarray) -> None:
        """Count with the probabilities (N, k) of a model that was fitted to other bags."""
        self.replicates.append(self._count(self._condition(probabilities)))

    def _condition(self, probabilities: np.ndarray) -> np.ndarray:
        if not self.known.any():
            return probabilities
        log_probs = torch.from_numpy(np.log(np.maximum(probabilities, 1e-38)))
        values = condition_bags(log_probs, self.bags).numpy()
        return values / values.sum(1, keepdims=True)

    def _count(self, probabilities: np.ndarray) -> np.ndarray:
        """(groups, k) sums of probabilities."""
        columns = [
            np.bincount(self.rows.group, self._weigh(probabilities[:, c]), minlength=self.rows.n_groups)
            for c in range(self.k)
        ]
        return np.stack(columns, 1)

    def _weigh(self, values: np.ndarray) -> np.ndarray:
        return values if self.weight is None else values * self.weight

    def _label_variance(self, p: np.ndarray) -> np.ndarray:
        """(groups,) the variance of counts of labels drawn from p (N,), given the totals of known bags.

        A row of weight w has w labels, which are drawn one by one.
        """
        cell = self.bag * self.rows.n_groups + self.rows.group
        v = np.bincount(cell, self._weigh(p * (1 - p)), minlength=self.m * self.rows.n_groups)
        v = v.reshape(self.m, self.rows.n_groups)
        total = v.sum(1, keepdims=True)
        left = 1 - v / np.maximum(total, 1e-12)
        left[~self.known] = 1.0
        return (v * left).sum(0)

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """(groups, k) the smallest and largest counts that the totals of the known bags allow."""
        n = self.n_cells[:, :, None]
        counts = np.nan_to_num(self.bags.proportions.double().numpy()) * self.mass[:, None]
        whole = np.abs(counts - counts.round()) <= 1e-6 * self.mass[:, None]  # up to the rounding of float32
        counts = np.where(whole, counts.round(), counts)
        counts = np.broadcast_to(counts, (self.m, self.k))[:, None]
        least = np.maximum(0.0, counts + n - self.mass[:, None, None])
        most = np.minimum(counts, n)
        known = self.known[:, None, None]
        return np.where(known, least, 0.0).sum(0), np.where(known, most, n).sum(0)

    def table(self, level: float) -> Columns:
        """One entry per group and class: counts, intervals, bounds, and shares of the rows of the group."""
        rows = np.repeat(self.n_cells.sum(0), self.k)  # or the sum of their weights
        least, most = (each.reshape(-1) for each in self.bounds())
        counts = self.counts.reshape(-1).clip(least, most)
        low = np.full(len(counts), math.nan)
        high = low.copy()
        if self.no_support:
            low, high = least, most
        elif self.replicates:
            from_model = ((np.array(self.replicates) - self.counts) ** 2).mean(0) * BIAS
            width = float(ndtri((1 + level) / 2)) * np.sqrt(from_model + self.variance).reshape(-1)
            low = np.maximum(least, counts - width)
            high = np.minimum(most, counts + width)
        columns: Columns = {
            name: [value for value in values for _ in range(self.k)]
            for name, values in self.rows.names.items()
        }
        columns["class"] = list(self.classes) * self.rows.n_groups
        whole = np.abs(rows - rows.round()) <= 1e-6 * rows  # up to the rounding of weights
        columns["rows"] = np.where(whole, rows.round(), rows).tolist()
        figures = {
            "count": counts,
            "count_low": low,
            "count_high": high,
            "count_min": least,
            "count_max": most,
        }
        figures |= {"share": counts / rows, "share_low": low / rows, "share_high": high / rows}
        return columns | {name: values.tolist() for name, values in figures.items()}


def add_replicates(
    counters: Sequence[CellCounter], model: Any, X: Any, table: Any, replicates: int, seed: int
) -> Iterator[tuple[int, Any]]:
    """Fit copies of a model to random halves of the bags, and count with each in tables of the same bags.

    Yields (replicate, state) after every epoch. In the end, each half has been predicted by what learned from
    the other half, which tests whether the bags show that the model works. There are no replicates for fewer
    than eight known bags.
    """
    first = counters[0]
    known = np.flatnonzero(first.known)
    if not replicates:
        return
    if len(known) < MIN_BAGS_TO_HALVE:
        for counter in counters:
            counter.no_support = (
                f"{len(known)} bags are too few to be halved; at least {MIN_BAGS_TO_HALVE} are needed"
            )
        return
    ids = row_ids(first.bags)
    weight = first.weight
    unseen = torch.zeros(first.m, first.k, dtype=torch.float64)  # sums of predictions by the other half
    for i in range(0, replicates, 2):
        order = known[torch.randperm(len(known), generator=stream(seed, "halves", i)).numpy()]
        for j, half in enumerate((order[: len(order) // 2], order[len(order) // 2 :])):
            learned = np.zeros(first.m, bool)
            learned[half] = True
            train = np.flatnonzero(learned[first.bag])
            part = copy_unfitted(model)
            train_weight = None if weight is None else weight[train]
            for state in fit_part(part, take_instances(X, train), ids[train], table, train_weight):
                yield i + j, state
            probabilities = np.asarray(part.predict_proba(X), dtype=np.float64)
            for counter in counters:
                counter.add_replicate(probabilities)
            means = bag_means(torch.from_numpy(probabilities), first.bags.sizes, first.bags.weight)
            unseen += torch.from_numpy(~learned).unsqueeze(1) * means
    reason = _reason_against(unseen[known], first, known)
    for counter in counters:
        counter.no_support = reason


def _reason_against(predicted: Tensor, counter: CellCounter, known: np.ndarray) -> str:
    """Why the bags do not show that the model works, from predictions by halves without them; "" if they do.

    Without it, all halves predict the overall shares, agree about everything, and intervals would be narrow.
    """
    sizes = torch.from_numpy(np.asarray(counter.mass, dtype=np.float64)[known])
    correlation, null = permutation_test(predicted, counter.bags.proportions.double()[known], sizes, 1999)
    correlation = deflate_correlation(correlation)  # the halves are predicted from each other
    p_value = p_value_of(correlation, null)
    if p_value <= SUPPORT:
        return ""
    what = "proportions of bags that were not learned from are predicted no better than by chance"
    return f"{what} (permutation test, p = {p_value:.2g})"


def warn_without_support(reason: str) -> None:
    """Say that intervals are bounds, and why."""
    if reason:
        message = f"the intervals are all that arithmetic allows, and the counts may be far off: {reason}"
        warnings.warn(message, ApportionWarning, stacklevel=3)


def _as_frame(columns: Columns, X: Any) -> Any:
    """Columns as a frame of the library of X; as they are if X is an array."""
    if not (is_pandas_dataframe(X) or is_polars_dataframe(X)):
        return columns
    return nw.from_dict(columns, backend=nw.get_native_namespace(X)).to_native()

"""Cross-fitting: every bag is predicted by an estimator that was trained without it."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from narwhals.dependencies import is_pandas_dataframe, is_polars_dataframe, is_polars_lazyframe
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import has_fit_parameter

from apportion._random import stream
from apportion.bags.bags import Bags
from apportion.bags.proportions import Proportions, fix_key, key_by_name
from apportion.errors import SettingsError

LARGE = 1_000_000  # rows; half of them are enough to learn from
FOLDS = 4
FOLDS_IF_LARGE = 2
QUIET = "_quiet"  # attribute of an estimator: it does not warn of its classes, since the model itself does


def cross_fit(
    model: Any,
    X: Any,
    bags: Bags,
    proportions: Any,
    out: np.ndarray,
    *,
    folds: int | None = None,
    seed: int = 0,
    rows: np.ndarray | None = None,
) -> Iterator[tuple[int, Any]]:
    """Predict every bag with a copy of an estimator that was trained on other bags.

    Parameters
    ----------
    model : estimator
        With `fit(X, bags=..., proportions=...)` and `predict_proba`, or a pipeline that ends in one. It is
        copied, and not changed.
    X : array, data frame or list of N instances
        In the order of the rows of `bags`, unless `rows` says where they are.
    bags : Bags
        With known proportions; `x` is not used. If its rows have weights, `fit` gets them as `sample_weight`.
    proportions : table or Proportions
        What `fit` learns from, with the names of the bags. It may have more bags.
    out : array (N, k)
        Is filled with the predicted probabilities.
    folds : int, optional
        Number of parts of the bags. Each part is predicted by a copy that learned from the others. None:
        four, or two for more than a million rows.
    seed : int, default=0
        Determines which bags are in which part.
    rows : array (N,), optional
        The place in `X` of each row of `bags`, such as `bags.source`: faster than to sort large tables first.

    Yields
    ------
    (fold, state)
        After every epoch of an estimator with `iter_fit`; otherwise once per fold, with None.
    """
    fold_of_bag = assign_folds(bags, folds, seed)
    fold_of_row = torch.repeat_interleave(fold_of_bag, bags.sizes).numpy()
    ids = row_ids(bags)
    rows = np.arange(len(ids)) if rows is None else rows
    order = ascending(rows)  # which keeps the order of the rows in each bag
    rows, fold_of_row, ids = rows[order], fold_of_row[order], ids[order]
    weight = None if bags.weight is None else bags.weight.numpy()[order]
    for fold in range(int(fold_of_bag.max()) + 1):
        train = fold_of_row != fold
        part = copy_unfitted(model)
        train_weight = None if weight is None else weight[train]
        for state in fit_part(part, take_instances(X, rows[train]), ids[train], proportions, train_weight):
            yield fold, state
        out[order[~train]] = part.predict_proba(take_instances(X, rows[~train]))


def ascending(numbers: np.ndarray) -> np.ndarray:
    """`np.argsort` for distinct whole numbers that are not much larger than there are."""
    place = np.full(numbers.max(initial=-1) + 1, -1)
    place[numbers] = np.arange(len(numbers))
    return place[place >= 0]


def assign_folds(bags: Bags, folds: int | None, seed: int) -> torch.Tensor:
    """(m,) the fold of every bag. None: four folds, or two for more than a million rows."""
    m = len(bags.sizes)
    if folds is None:
        folds = min(m, FOLDS if int(bags.sizes.sum()) <= LARGE else FOLDS_IF_LARGE)
    if not 2 <= folds <= m:
        raise SettingsError(f"folds is {folds}, and there are {m} bags; pass a number from 2 to {m}")
    fold_of_bag = torch.empty(m, dtype=torch.int64)
    fold_of_bag[torch.randperm(m, generator=stream(seed, "folds"))] = torch.arange(m) % folds
    return fold_of_bag


def copy_unfitted(model: Any) -> Any:
    """An unfitted copy that learns from all rows: no bags held out for the choice of an epoch."""
    part = clone(model) if hasattr(model, "get_params") else copy.deepcopy(model)
    last = part.steps[-1][1] if isinstance(part, Pipeline) else part
    if hasattr(last, "get_params"):
        plain = {"validation_fraction": 0.0, "select_by": None, "calibrate": False}
        known = last.get_params(deep=False)
        last.set_params(**{name: value for name, value in plain.items() if name in known})
    if hasattr(last, QUIET):
        setattr(last, QUIET, True)
    return part


def fit_part(
    model: Any, X: Any, ids: np.ndarray, table: Any, weight: np.ndarray | None = None
) -> Iterator[Any]:
    """Fit an estimator; yields the states of its training if it shows them, otherwise None once."""
    data = {"bags": ids, "proportions": table}
    if weight is not None:
        data["sample_weight"] = weight
    if hasattr(model, "iter_fit"):
        yield from model.iter_fit(X, **data)
        return
    prefix = f"{model.steps[-1][0]}__" if isinstance(model, Pipeline) else ""
    model.fit(X, **{f"{prefix}{name}": values for name, values in data.items()})
    yield None


def check_takes_weight(model: Any) -> None:
    """Raise SettingsError if an estimator's `fit` has no `sample_weight`."""
    last = model.steps[-1][1] if isinstance(model, Pipeline) else model
    if not has_fit_parameter(last, "sample_weight"):
        raise SettingsError(
            f"rows have weights, but fit of {type(last).__name__} takes no sample_weight; leave sample_weight"
            " out, or repeat rows"
        )


def row_ids(bags: Bags) -> np.ndarray:
    """(N,) the bag id of every row: whole numbers, if all ids are, or else Python objects."""
    names = np.empty(len(bags.sizes), dtype=object)
    names[:] = list(bags.ids)
    if all(type(name) is int and abs(name) < 1 << 62 for name in bags.ids):
        names = names.astype(np.int64)  # millions of objects take seconds
    return np.repeat(names, bags.sizes.numpy())


def take_instances(X: Any, rows: np.ndarray) -> Any:
    """Some rows of instances in any form that `fit` accepts."""
    if is_polars_lazyframe(X):
        X = X.collect()
    if is_polars_dataframe(X) or isinstance(X, np.ndarray):
        return X[rows]
    if is_pandas_dataframe(X):
        return X.iloc[rows]
    if isinstance(X, torch.Tensor):
        return X[torch.from_numpy(rows)]
    if hasattr(X, "tocsr"):
        return X.tocsr()[rows]
    return [X[i] for i in rows.tolist()]


def name_bags(table: Proportions, bags: Bags, ids: Any = None) -> Proportions:
    """A table that is read for some of its bags as it is for all of them, whose `ids` may have a name."""
    table = key_by_name(table, ids)
    if is_pandas_dataframe(table.table) or is_polars_dataframe(table.table):
        return fix_key(table, bags.ids)
    if not isinstance(table.table, np.ndarray | torch.Tensor | list | tuple):
        return table
    return replace(table, table=dict(zip(bags.ids, np.asarray(table.table), strict=True)))

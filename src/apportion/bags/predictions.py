"""Predicted probabilities in bags with known proportions: `Bags` whose instances are predictions."""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from narwhals.dependencies import is_pandas_dataframe, is_polars_dataframe
from torch import Tensor

from apportion.bags.arrays import as_tensor
from apportion.bags.bags import Bags
from apportion.bags.build import BuiltBags, column_names, group_rows, read_shares
from apportion.bags.denoise import predict_shares
from apportion.bags.instances import check_row_order, read_weight
from apportion.bags.proportions import Proportions, key_by_name
from apportion.errors import DataError


def bags_of_predictions(
    probabilities: Any,
    bags: Any,
    proportions: Any,
    classes: Sequence[Hashable] | None = None,
    *,
    subset: bool = False,
    unavailable: frozenset[str] = frozenset(),
    weight: Any = None,
) -> BuiltBags:
    """Bags whose instances are predicted probabilities (N, k), and the classes of their columns.

    `classes` names the columns of the predictions; None: the names of a frame, or the sorted classes of the
    table, as in `classes_` of an estimator. Noisy proportions are drawn toward the mean prediction of their
    bag. `subset` and `unavailable` are those of `read_shares`, `weight` (N,) are the rows' weights.
    """
    check_row_order(probabilities, bags, "probabilities", counted_index=False)
    probabilities, classes = _align_columns(probabilities, classes)
    x = as_tensor(probabilities)
    groups = group_rows(bags, len(x))
    weight = read_weight(weight, len(x))
    mass = groups.sizes if weight is None else np.bincount(groups.number, weight, len(groups.sizes))
    table = key_by_name(proportions, bags)
    if classes is None:
        _check_column_order(table)
    elif table.classes is None:
        table = replace(table, classes=classes)
    # `read_shares` sorts the classes: rank[j] is the place of column j of the predictions among them
    rank = np.argsort(np.argsort(np.asarray(classes if classes is not None else range(x.shape[1]))))
    predicted = None
    if table.std is not None:
        check_probabilities(x)
        predicted = predict_shares(x.double().numpy()[:, np.argsort(rank)], groups.number, mass, weight)
    shares, precision, known = read_shares(
        table, groups.names, mass, predicted=predicted, subset=subset, unavailable=unavailable
    )
    check_probabilities(x, len(known))
    _check_same_classes(classes, known)
    order = torch.from_numpy(np.argsort(groups.number, kind="stable"))
    built = Bags(
        x[order],
        torch.from_numpy(groups.sizes),
        torch.from_numpy(shares[:, rank]).float(),
        order,
        groups.names,
        precision=torch.from_numpy(precision) if np.isfinite(precision).any() else None,
        weight=None if weight is None else torch.from_numpy(weight).float()[order],
    )
    return BuiltBags(built, known[rank])


def _align_columns(probabilities: Any, classes: Sequence[Hashable] | None) -> tuple[Any, Any]:
    """A frame of predictions with its columns in the order of the classes; by default these are its names."""
    names = column_names(probabilities)
    if names is None:
        return probabilities, None if classes is None else list(classes)
    wanted = names if classes is None else np.asarray(classes, dtype=object).tolist()
    if len(set(names)) < len(names) or set(wanted) != set(names):
        hint = "name the same classes, each once, or pass an array with one column per class"
        raise DataError(f"the frame of predictions has the columns {names}, the classes are {wanted}; {hint}")
    places = [names.index(name) for name in wanted]
    is_pandas = is_pandas_dataframe(probabilities)
    return probabilities.iloc[:, places] if is_pandas else probabilities[:, places], wanted


def _check_column_order(table: Proportions) -> None:
    """Raise DataError for a frame with unsorted columns, if the columns of the predictions have no names.

    Predictions without names follow the sorted classes, but the user may mean the order of the frame.
    """
    if not (is_pandas_dataframe(table.table) or is_polars_dataframe(table.table)):
        return
    names = list(table.classes or table.table.columns)
    names = [name for name in names if name != table.key]
    if not _is_sorted(names):
        raise DataError(
            f"the table has the columns {names}, predictions may have another order; pass classes=, in the"
            " order of the predictions' columns (model.classes_)"
        )


def _is_sorted(names: Sequence[Any]) -> bool:
    """Whether names ascend; False if they are of several types and have no order."""
    try:
        return all(one < other for one, other in pairwise(names))
    except TypeError:
        return False


def _check_same_classes(classes: Sequence[Hashable] | None, known: np.ndarray) -> None:
    if classes is None:
        return
    there = np.unique(np.asarray(classes))
    if len(there) != len(known) or (there != known).any():
        what = f"the predictions have the classes {there.tolist()}, the table has {known.tolist()}"
        raise DataError(f"{what}; pass the same classes for both")


def check_probabilities(x: Tensor, n_classes: int | None = None) -> None:
    """Raise `DataError` unless x holds probabilities (N, n_classes); the message guesses what it holds."""
    if x.ndim != 2 or (n_classes is not None and x.shape[1] != n_classes):
        wanted = "one column per class" if n_classes is None else f"{n_classes} columns, one per class"
        raise DataError(f"predictions have shape {tuple(x.shape)}; pass {wanted}", value=tuple(x.shape))
    x = x.double()
    low, high = (float(end) for end in torch.aminmax(x))
    off = float((x.sum(1) - 1).abs().max())
    if low >= 0 and off <= 1e-3:
        return
    hint = "each row must hold the probabilities of all classes, which sum to one"
    if high <= 0 and float((x.exp().sum(1) - 1).abs().max()) <= 1e-3:
        hint = "these look like log-probabilities: pass numpy.exp of them"
    elif low >= 0 and float((x.sum(1) - 100).abs().max()) <= 0.1:
        hint = "these look like percentages: divide them by 100"
    elif low < 0:
        hint = "if these are logits, pass their softmax"
    what = f"predictions range from {low:g} to {high:g}, and rows miss a sum of one by up to {off:g}"
    raise DataError(f"{what}; {hint}", value=off)

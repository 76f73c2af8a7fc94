"""A few rows whose class is known: they move to pure bags, and their old bags keep the other rows.

Pure bags are as large as the other bags. In bags of one row, known labels would outweigh all proportions in
the loss, since the proportions of a single row are its class.
"""

import math
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import torch
from narwhals.dependencies import is_pandas_series

from apportion.bags.bags import Bags
from apportion.bags.instances import has_index
from apportion.errors import DataError


def read_known_labels(known_labels: Any, X: Any, bags: Any, n: int) -> dict[int, Hashable]:
    """{row: class}, rows counted from 0 in the order of `X`.

    `known_labels` is such a dict or a pandas series. A series is matched by its index to that of `X`, or to
    that of `bags` where `X` has none, or else by position; missing values mean that the class is unknown.
    """
    if is_pandas_series(known_labels):
        known_labels = _labels_from_series(known_labels, X, bags, n)
    if known_labels is None:
        return {}
    if not isinstance(known_labels, Mapping):
        what = f"known_labels is a {type(known_labels).__name__}"
        raise DataError(f"{what}; pass {{row: class}}, rows counted from 0, or a pandas series")
    labels = {}
    for row, label in known_labels.items():
        is_number = isinstance(row, int | float | np.number) and not isinstance(row, bool)
        if not is_number or not float(row).is_integer():
            hint = "give its position, counted from 0, such as X.index.get_loc(row)"
            raise DataError(f"known_labels has a label for row {row!r}; {hint}", value=row)
        if not 0 <= row < n:
            what = f"known_labels has a label for row {row}, but there are {n} rows"
            raise DataError(f"{what}; pass rows from 0 to {n - 1}", value=row)
        labels[int(row)] = label
    return labels


def _labels_from_series(labels: Any, X: Any, bags: Any, n: int) -> dict[int, Hashable]:
    index = labels.index.tolist()
    present = labels.notna().to_numpy()
    frame, name = _first_with_index(X, bags)
    if frame is None and len(index) == n and index != list(range(n)):
        hint = "pass X as a data frame with this index, or known_labels.reset_index(drop=True)"
        raise DataError(f"known_labels has all {n} rows, but X has no index to find {index[0]!r} by; {hint}")
    positions = index
    if frame is not None and labels.index.equals(frame.index):
        positions = list(range(n))
    elif frame is not None:
        positions = _positions_in(frame, name, labels.index, present)
    values = labels.tolist()
    labels_by_row: dict[int, Hashable] = {}
    for i in np.flatnonzero(present).tolist():
        if positions[i] in labels_by_row:
            raise DataError(f"known_labels has row {index[i]!r} twice; keep one label", value=index[i])
        labels_by_row[positions[i]] = values[i]
    return labels_by_row


def _first_with_index(X: Any, bags: Any) -> tuple[Any, str]:
    """The first of `X`, `bags` or the groupings in `bags` that has a pandas index, and its name."""
    if has_index(X):
        return X, "X"
    for ids in bags.values() if isinstance(bags, Mapping) else [bags]:
        if has_index(ids):
            return ids, "bags"
    return None, ""


def _positions_in(frame: Any, name: str, index: Any, present: np.ndarray) -> list[int]:
    """The position in `frame` of each row of an index."""
    if not frame.index.is_unique:
        row = frame.index[frame.index.duplicated()][0]
        what = f"the index of {name} has {row!r} twice, so known_labels cannot be matched to it"
        raise DataError(f"{what}; pass {{position: class}}", value=row)
    positions = frame.index.get_indexer(index)
    missing = np.flatnonzero((positions < 0) & present)
    if len(missing):
        row = index.tolist()[missing[0]]
        what = f"known_labels has a label for row {row!r}, which is not in the index of {name}"
        raise DataError(f"{what}; drop it, or pass {{position: class}}", value=row)
    return positions.tolist()


def add_known_labels(bags: Bags, labels: Mapping[int, Hashable], classes: np.ndarray, *, exact: bool) -> Bags:
    """The bags, with the rows of `labels` {row: class} moved to pure bags of one class each.

    The other bags get the proportions of their remaining rows. With `exact`, proportions have no noise, and
    labels that contradict them raise DataError.
    """
    n = len(bags.source)
    k = bags.n_classes
    code = {name: i for i, name in enumerate(classes.tolist())}
    for row, name in labels.items():
        if name not in code:
            hint = f"use one of {list(code)}, or leave it out"
            raise DataError(f"known_labels has class {name!r} for row {row}; {hint}", value=name)
    codes = torch.tensor([code[name] for name in labels.values()])
    position = torch.empty(n, dtype=torch.int64)
    position[bags.source] = torch.arange(n)
    rows = position[torch.tensor(list(labels))]
    counts, taken = _count_labels(bags, rows, codes)
    left = bags.proportions.double() * bags.mass.unsqueeze(1) - taken
    if exact:
        _check_room(bags, left, taken, list(code))

    left = left.clamp_min(0)
    sizes = bags.sizes - counts.sum(1).long()
    shares = torch.where(left.sum(1, keepdim=True) > 0, left / left.sum(1, keepdim=True), 1 / k)
    shares = torch.where(bags.proportions.isnan(), math.nan, shares)
    kept = (sizes > 0).nonzero().flatten()
    others = torch.ones(n, dtype=torch.bool)
    others[rows] = False
    pure, pure_class = _pure_bags(rows, codes, k, size=int(bags.sizes.median()))
    order = torch.cat([others.nonzero().flatten(), *pure])
    pure_shares = torch.nn.functional.one_hot(torch.tensor(pure_class), k)
    precision = bags.precision
    if precision is not None:
        exactly = torch.full((len(pure),), math.inf, dtype=precision.dtype)
        precision = torch.cat([precision[kept], exactly])
    return Bags(
        bags.x[order],
        torch.cat([sizes[kept], torch.tensor([len(part) for part in pure])]),
        torch.cat([shares[kept], pure_shares]).float(),
        bags.source[order],
        ids=[*(bags.ids[i] for i in kept.tolist()), *(f"known labels {i}" for i in range(len(pure)))],
        precision=precision,
        pure=torch.arange(len(kept) + len(pure)) >= len(kept),
        weight=None if bags.weight is None else bags.weight[order],
    )


def _pure_bags(
    rows: torch.Tensor, codes: torch.Tensor, n_classes: int, size: int
) -> tuple[list[torch.Tensor], list[int]]:
    """The rows of each pure bag, `size` at most, and its class. `codes` are the classes of `rows`."""
    bags = []
    class_of_bag = []
    for c in range(n_classes):
        for part in rows[codes == c].split(size):
            if len(part):
                bags.append(part)
                class_of_bag.append(c)
    return bags, class_of_bag


def _count_labels(bags: Bags, rows: torch.Tensor, codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(m, k) float64: how many rows of each bag have a known label of each class, and their weight."""
    bag = torch.repeat_interleave(bags.sizes)[rows]
    one_hot = torch.nn.functional.one_hot(codes, bags.n_classes).double()
    zeros = torch.zeros(len(bags.sizes), bags.n_classes, dtype=torch.float64)
    counts = zeros.index_add(0, bag, one_hot)
    if bags.weight is None:
        return counts, counts
    return counts, zeros.index_add(0, bag, one_hot * bags.weight[rows].double().unsqueeze(1))


def _check_room(bags: Bags, left: torch.Tensor, taken: torch.Tensor, classes: list[Hashable]) -> None:
    """Refuse more known labels of a class than the bag's proportions allow."""
    wrong = (left < -0.5).nonzero()
    if len(wrong):
        b, c = wrong[0].tolist()
        what = f"{bags.name(b)} has {int(taken[b, c])} known labels of class {classes[c]!r}"
        hint = "correct them, or pass Proportions(..., std=) if the proportions are noisy"
        raise DataError(f"{what}, more than its proportions allow; {hint}", bag=bags.ids[b])

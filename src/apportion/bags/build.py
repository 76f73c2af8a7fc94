"""Build `Bags` from users' data: rows with bag ids, and labels or a table of proportions.

`build_bags` goes from top to bottom: the ids of the bags and which rows make up which bag, the proportions
of the bags, the rows with a known label, and only then the features, which are written to their place once.
"""

import math
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from narwhals.dependencies import (
    is_pandas_dataframe,
    is_pandas_series,
    is_polars_dataframe,
    is_polars_series,
)
from torch import Tensor

from apportion._scratch import empty_array, pieces
from apportion.bags.arrays import (
    as_tensor,
    move_channels_first,
    refuse_masked_values,
    stack_images,
)
from apportion.bags.bags import Bags
from apportion.bags.denoise import PredictedShares, clean_proportions
from apportion.bags.groupings import join_groupings
from apportion.bags.instances import LazyIds, check_row_order, take_bag_columns, take_rows
from apportion.bags.known_labels import add_known_labels, read_known_labels
from apportion.bags.problems import (
    OPTIONS,
    check_overall_shares,
    check_same_classes,
    find_coverage,
    find_problems,
    raise_problem,
)
from apportion.bags.proportions import (
    Proportions,
    align,
    as_proportions,
    clip_rounding_residue,
    is_missing,
    key_by_name,
    without_torch,
)
from apportion.errors import ApportionWarning, DataError, SettingsError, did_you_mean

NOT_ROW_BY_ROW = frozenset(OPTIONS)  # proportions row by row take no options
NOT_EXPANDED = frozenset(["std", "estimate", "missing_bags"])  # what proportions row by row cannot keep


@dataclass(frozen=True)
class BuiltBags:
    """Bags, and the sorted classes that the columns of their proportions stand for."""

    bags: Bags
    classes: np.ndarray  # (k,)


def build_bags(
    X: Any, y: Any = None, *, bags: Any = None, proportions: Any = None, known_labels: Any = None
) -> BuiltBags:
    """Bags from instances and the proportions of their bags.

    Parameters
    ----------
    X : array-like of shape (n, ...) or data frame
        Rows of numbers, or images as bytes. The columns of a frame must be numbers; `ProportionClassifier`
        encodes others.
    y : array-like, optional
        Labels (n,), which are counted in every bag and not used again, or the proportions of each row's own
        bag (n, k), see `expand_proportions`. Labels without bags are bags of one row: supervised learning.
    bags : array-like, str or dict, optional
        The bag id of every row, the column of `X` that has them, or `{grouping: either}` if rows lie in a bag
        of each of several groupings.
    proportions : table, Proportions or dict, optional
        One row per bag, in any form that `Proportions` takes, or `{grouping: either}`.
    known_labels : dict or pandas series, optional
        `{row: class}` of a few rows, in addition to the proportions. They become pure bags.

    Returns
    -------
    BuiltBags
        With `bags` and the sorted `classes`.
    """
    X, bags = take_bag_columns(X, bags)
    check_row_order(X, bags)
    x = as_tensor(move_channels_first(stack_images(X)))
    built = build_bags_without_features(
        len(x), y, bags=bags, proportions=proportions, known_labels=known_labels, X=X
    )
    return replace(built, bags=replace(built.bags, x=take_rows(x, built.bags.source)))


def build_bags_without_features(
    n: int, y: Any = None, *, bags: Any = None, proportions: Any = None, known_labels: Any = None,
    X: Any = None, weight: np.ndarray | None = None,
) -> BuiltBags:  # fmt: skip
    """`build_bags` for n rows whose features come later: `x` has no columns.

    `known_labels` may be a series that is matched to the index of `X`; `weight` (n,) are the rows' weights.
    """
    labels: Mapping[int, Hashable] = {}
    if known_labels is not None:
        labels = read_known_labels(known_labels, X, bags, n)
    _check_one_source(y, proportions)
    if isinstance(bags, Mapping):
        return _build_groupings(n, y, bags, proportions, labels, weight)
    return _build_grouping(n, y, bags, proportions, labels, weight)


def _check_one_source(y: Any, proportions: Any) -> None:
    """Raise DataError unless exactly one of labels and proportions is given."""
    if y is None and proportions is None:
        raise DataError("y and proportions are both missing; pass bags= and proportions=, or labels y")
    if y is not None and proportions is not None:
        raise DataError("y and proportions are both given; pass one of them")


# --- one grouping


def _build_grouping(
    n: int,
    y: Any,
    ids: Any,
    proportions: Any,
    known_labels: Mapping[int, Hashable],
    weight: np.ndarray | None = None,
) -> BuiltBags:
    """Bags of one grouping; they may all have the same proportions."""
    groups = group_rows(ids, n)
    mass = groups.sizes if weight is None else np.bincount(groups.number, weight, len(groups.sizes))
    precision = np.full(len(groups.sizes), math.inf)
    exact = True
    if y is None:
        if ids is None:
            raise DataError("proportions belong to bags; pass bags=, the bag id of every row")
        _refuse_whole_tables(ids, proportions)
        proportions = key_by_name(proportions, ids)
        shares, precision, classes = read_shares(proportions, groups.names, mass)
        exact = as_proportions(proportions).std is None
        if np.isnan(shares).all():
            raise DataError("no bag has proportions, so there is nothing to learn from")
    elif np.ndim(y) == 1:
        shares, classes = _count_labels(np.asarray(refuse_masked_values(y)), groups, weight)
    else:
        if ids is None:
            raise DataError("y has proportions of bags; pass bags=, the bag id of every row")
        table = table_from_rows(y, groups)
        shares, precision, classes = read_shares(table, groups.names, mass, unavailable=NOT_ROW_BY_ROW)
    bags = _bags_of(groups, shares, precision, weight)
    if known_labels:
        bags = add_known_labels(bags, known_labels, classes, exact=exact)
    return BuiltBags(bags, classes)


def read_shares(
    proportions: Any,
    bags: Sequence[Hashable],
    sizes: np.ndarray,
    *,
    predicted: PredictedShares | None = None,
    subset: bool = False,
    unavailable: frozenset[str] = frozenset(),
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shares (m, k), precision (m,) and classes (k,) of a table; the first problem is raised."""
    aligned = align(proportions, bags, sizes, subset=subset, unavailable=unavailable)
    for problem in find_problems(aligned):
        raise_problem(problem)
    coverage = None if subset else find_coverage(aligned)
    if coverage is not None:
        warnings.warn(coverage.text(), ApportionWarning, stacklevel=5)
    shares, precision = clean_proportions(aligned, predicted)
    return shares, precision, aligned.classes


def _bags_of(groups: "Groups", shares: np.ndarray, precision: np.ndarray, weight: np.ndarray | None) -> Bags:
    """The bags of rows in any order, without features."""
    source = torch.from_numpy(sort_rows(groups.number, groups.sizes))
    return Bags(
        torch.empty(len(source), 0),
        torch.from_numpy(groups.sizes),
        torch.from_numpy(shares).float(),
        source,
        groups.names,
        precision=torch.from_numpy(precision) if np.isfinite(precision).any() else None,
        weight=None if weight is None else torch.from_numpy(weight).float()[source],
    )


def _count_labels(
    y: np.ndarray, groups: "Groups", weight: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Shares (m, k) counted from labels, and the sorted classes."""
    if len(y) != len(groups.number):
        raise DataError(f"there are {len(groups.number)} rows but {len(y)} labels; pass one label per row")
    classes, code = np.unique(y, return_inverse=True)
    k = len(classes)
    if k < 2:
        raise DataError(f"all labels are of one class, {classes.tolist()}; pass labels of at least two")
    cell = groups.number.astype(np.int64) * k + code
    counts = np.bincount(cell, weight, minlength=len(groups.names) * k).reshape(-1, k)
    return counts / counts.sum(1, keepdims=True), classes


def table_from_rows(y: Any, groups: "Groups") -> Proportions:
    """The table of bags from proportions row by row; all rows of a bag must agree."""
    names = column_names(y)
    rows = np.asarray(refuse_masked_values(without_torch(y)), dtype=np.float64)
    if len(rows) != len(groups.number):
        raise DataError(
            f"there are {len(groups.number)} rows but y has {len(rows)}; pass one row of y per row"
        )
    first = np.unique(groups.number, return_index=True)[1]
    shares = clip_rounding_residue(rows[first])
    wrong = np.flatnonzero((np.abs(rows - shares[groups.number]) > 1e-6).any(1))
    if len(wrong):
        i = int(wrong[0])
        bag = groups.names[groups.number[i]]
        one, other = (np.round(each, 6).tolist() for each in (shares[groups.number[i]], rows[i]))
        what = f"bag {bag!r} has rows of y that disagree: {one} and, in row {i}, {other}"
        raise DataError(f"{what}; give every row the proportions of its bag, see expand_proportions", bag=bag)
    return Proportions(dict(zip(groups.names, shares, strict=True)), classes=names)


def column_names(frame: Any) -> list[Any] | None:
    """The names of a frame's columns; None if there is a single column, or if names are only numbers."""
    if not (is_pandas_dataframe(frame) or is_polars_dataframe(frame)) or frame.shape[1] < 2:
        return None
    names = list(frame.columns)
    truth_values = isinstance(names[0], bool | np.bool_)  # which equal 0 and 1
    polars = is_polars_dataframe(frame)
    counting = [f"column_{i}" for i in range(len(names))] if polars else list(range(len(names)))
    return None if names == counting and not truth_values else names


# --- several groupings


def _build_groupings(
    n: int,
    y: Any,
    bags: Mapping[Hashable, Any],
    proportions: Any,
    known_labels: Mapping[int, Hashable],
    weight: np.ndarray | None,
) -> BuiltBags:
    if y is not None and np.ndim(y) > 1:
        raise DataError(
            "y has the proportions of one grouping; pass proportions={grouping: table} for several"
        )
    tables = tables_of_groupings(bags, proportions) if y is None else dict.fromkeys(bags)
    built: dict[Hashable, BuiltBags] = {}
    for name, ids in bags.items():
        try:
            built[name] = _build_grouping(n, y, ids, tables[name], known_labels, weight)
        except DataError as error:
            raise name_grouping(error, name) from None
    for problem in check_same_classes({name: each.classes.tolist() for name, each in built.items()}):
        raise_problem(problem)
    classes = next(iter(built.values())).classes
    joined = join_groupings({name: each.bags for name, each in built.items()})
    overall = {name: each.bags.overall.numpy() for name, each in built.items() if each.bags.precision is None}
    for problem in check_overall_shares(overall, classes.tolist()):
        warnings.warn(problem.text(), ApportionWarning, stacklevel=4)
    return BuiltBags(joined, classes)


def name_grouping(error: DataError, grouping: Hashable) -> DataError:
    """The same error with the grouping in its message."""
    message = f"grouping {grouping!r}: {error}"
    return DataError(message, bag=error.bag, value=error.value, problems=error.problems)


def tables_of_groupings(bags: Mapping[Hashable, Any], proportions: Any) -> dict[Hashable, Proportions]:
    """The table of each grouping. Where rows are dicts, a class that only some groupings name is added."""
    for ids in bags.values():
        if isinstance(ids, str) or not hasattr(ids, "__len__"):
            raise DataError("bags is a dict with one id per key; pass the bag ids, or {grouping: bag ids}")
    if not bags:
        raise DataError("bags is an empty dict; pass the bag ids, or {grouping: bag ids}")
    wanted = ", ".join(f"{name!r}: table" for name in list(bags)[:3])
    if not isinstance(proportions, Mapping):
        raise DataError(f"bags has the groupings {list(bags)[:9]}; pass proportions={{{wanted}}}")
    for name in proportions:
        if name not in bags:
            what = f"proportions has the grouping {name!r}{did_you_mean(name, bags)}"
            raise DataError(
                f"{what}, but bags has {list(bags)[:9]}; pass proportions={{{wanted}}}", value=name
            )
    for name in bags:
        if proportions.get(name) is None:
            raise DataError(
                f"grouping {name!r} has bags but no table; pass proportions={{{wanted}}}", value=name
            )
    tables = {name: key_by_name(proportions[name], ids, name) for name, ids in bags.items()}
    return _add_missing_classes(tables)


def _add_missing_classes(tables: dict[Hashable, Proportions]) -> dict[Hashable, Proportions]:
    rows = []
    for table in tables.values():
        if not isinstance(table.table, Mapping) or not table.table:
            return tables
        rows += [row for row in table.table.values() if row is not None]
    if len(tables) < 2 or not all(isinstance(row, Mapping) or is_pandas_series(row) for row in rows):
        return tables
    classes = dict.fromkeys(name for row in rows for name in row.keys())  # noqa: SIM118  may be a series
    filled = {}
    for name, table in tables.items():
        gap = math.nan if table.missing_cells == "impute" else 0.0
        wide = {
            bag: row if row is None else dict.fromkeys(classes, gap) | dict(row)
            for bag, row in table.table.items()
        }
        filled[name] = replace(table, table=wide)
    return filled


def _refuse_whole_tables(ids: Any, proportions: Any) -> None:
    """Raise DataError for {name: table} if there is only one grouping of bags."""
    if not isinstance(proportions, Mapping) or len(getattr(ids, "shape", ())) > 1:
        return
    for name, table in proportions.items():
        if isinstance(table, Proportions) or is_pandas_dataframe(table) or is_polars_dataframe(table):
            hint = "pass bags={name: ids} with the same names, if rows lie in a bag of each"
            raise DataError(f"proportions has a table for {name!r}, but bags is a single grouping; {hint}")


# --- bag ids


class Groups(NamedTuple):
    """Which row belongs to which bag."""

    names: Sequence[Hashable]  # (m,) sorted, or in order of appearance where they cannot be sorted
    number: np.ndarray  # (n,) the bag of each row
    sizes: np.ndarray  # (m,) int64


def group_rows(ids: Any, n: int) -> Groups:
    """Bags from the bag id of each of n rows; without ids, every row is a bag."""
    if ids is None:
        return Groups(range(n), np.arange(n), np.ones(n, np.int64))
    ids = _one_column(ids)
    if len(ids) != n:
        raise DataError(f"there are {n} rows but {len(ids)} bag ids; pass one id per row")
    coded = _factorize_batches(ids) if isinstance(ids, LazyIds) else _factorize(ids)
    if coded is None:
        coded = _factorize_objects(read_bag_ids(ids.collect() if isinstance(ids, LazyIds) else ids))
    names, number = _sort_names(*coded)
    sizes = np.zeros(len(names), np.int64)
    for rows in pieces(n):
        sizes += np.bincount(number[rows], minlength=len(names))
    return Groups(names, number, sizes)


def sort_rows(number: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The rows of each bag, bag after bag, and in their order within a bag: a counting sort, int64."""
    source = empty_array(len(number), np.int64)
    following = np.cumsum(sizes) - sizes  # where the next row of each bag goes
    for rows in pieces(len(number)):
        part = number[rows]
        if len(sizes) <= 1 << 16:
            part = part.astype(np.uint16)  # which are sorted by digits, several times faster
        order = np.argsort(part, kind="stable")
        part = part[order]
        first = np.flatnonzero(np.concatenate([[True], part[1:] != part[:-1]]))
        counts = np.diff(first, append=len(part))
        rank = np.arange(len(part)) - np.repeat(first, counts)
        source[following[part] + rank] = rows.start + order
        following[part[first]] += counts
    return source


def _factorize_batches(ids: LazyIds) -> tuple[list[Any], np.ndarray] | None:
    """`_factorize` for a column that is read a batch at a time."""
    number = empty_array(len(ids), np.int32)
    code: dict[Any, int] = {}
    start = 0
    for batch in ids.batches():
        coded = _factorize(batch)
        if coded is None:
            return None
        names, own = coded
        codes = np.array([code.setdefault(name, len(code)) for name in names], np.int32)
        number[start : start + len(batch)] = codes[own]
        start += len(batch)
    return list(code), number


def _factorize(ids: Any) -> tuple[list[Any], np.ndarray] | None:
    """Distinct ids, and the position of each row's id among them; None if this needs Python objects.

    One Python object per row would take gigabytes for large data.
    """
    array: Any = without_torch(ids)
    if is_polars_series(ids):
        if ids.dtype.is_integer() and not ids.null_count():
            array = ids.to_numpy()
        elif str(ids.dtype) == "String" and not ids.null_count():
            distinct = ids.unique()
            return distinct.to_list(), ids.replace_strict(distinct, list(range(len(distinct)))).to_numpy()
    elif is_pandas_series(ids) and ids.dtype.kind in "iu":
        array = ids.to_numpy() if not ids.hasnans else ids
    elif is_pandas_series(ids) and str(ids.dtype) in ("str", "string") and not ids.hasnans:
        number, distinct = ids.factorize()
        return distinct.tolist(), number
    if isinstance(array, np.ndarray) and array.dtype.kind in "iuU" and array.ndim == 1:
        array = refuse_masked_values(array)
        names, number = _unique(array)
        return names.tolist(), number
    return None


def _unique(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`np.unique` with the inverse; whole numbers that lie close together are counted and not sorted."""
    if ids.dtype.kind in "iu" and len(ids):
        low = ids.min()
        if int(ids.max()) - int(low) < len(ids):
            wide = ids.astype(np.int64) if ids.dtype.kind == "i" else ids  # the differences may not fit
            place = (wide - wide.dtype.type(low)).astype(np.int64, copy=False)
            there = np.bincount(place) > 0
            return np.flatnonzero(there).astype(ids.dtype) + low, (np.cumsum(there) - 1)[place]
    return np.unique(ids, return_inverse=True)


def _factorize_objects(keys: Sequence[Hashable]) -> tuple[list[Any], np.ndarray]:
    place = {name: i for i, name in enumerate(dict.fromkeys(keys))}
    return list(place), np.fromiter(map(place.__getitem__, keys), dtype=np.int64, count=len(keys))


def _sort_names(names: list[Any], number: np.ndarray) -> tuple[list[Any], np.ndarray]:
    """Names in sorted order, and numbers that match. Names of mixed types keep their order of appearance."""
    try:
        order = sorted(range(len(names)), key=names.__getitem__)  # type: ignore[type-var]
    except TypeError:
        return names, number
    rank = np.empty(len(names), number.dtype)
    rank[order] = np.arange(len(names))
    ranked = empty_array(len(number), number.dtype)
    for rows in pieces(len(number)):
        ranked[rows] = rank[number[rows]]
    return [names[i] for i in order], ranked


def read_bag_ids(ids: Any) -> list[Hashable]:
    """The bag id of each row, checked: hashable and not missing."""
    values = ids.tolist() if isinstance(ids, np.ndarray | Tensor) else list(ids)
    try:
        if not any(map(is_missing, set(values))):  # rows are many, bags are few
            return values
    except TypeError:  # one of them cannot be hashed
        pass
    for i, value in enumerate(values):
        try:
            hash(value)
        except TypeError:
            what = f"row {i} has the bag id {value!r}, which cannot be hashed"
            raise DataError(f"{what}; use a string or a number", value=value) from None
        if is_missing(value):
            raise DataError(f"row {i} has no bag id ({value!r}); fill it in or drop the row", value=value)
    return values


def _one_column(ids: Any) -> Any:
    if isinstance(ids, str):
        raise DataError(
            f"bags is {ids!r}, but X is not a data frame; pass the bag id of every row", value=ids
        )
    if isinstance(ids, Mapping):
        what = f"bags is a dict, which names several groupings, {list(ids)[:3]}"
        raise DataError(f"{what}; pass the ids of one of them here")
    shape = tuple(getattr(ids, "shape", ()))
    if len(shape) < 2:
        return ids
    if shape[1:] != (1,):
        hint = "one id per row"
        if is_pandas_dataframe(ids):
            hint = "one column, or pandas.MultiIndex.from_frame(bags); dict(bags) for several groupings"
        if is_polars_dataframe(ids):
            hint = "one column; bags.to_dict() for several groupings"
        raise DataError(f"bags has shape {shape}; pass {hint}", value=shape)
    if is_polars_dataframe(ids):
        return ids.to_series()
    return ids.iloc[:, 0] if is_pandas_dataframe(ids) else ids.reshape(-1)


# --- proportions row by row


def expand_proportions(proportions: Any, bags: Any) -> Any:
    """The proportions of each row's own bag: the form of `y` that cross-validation can cut into folds.

    Parameters
    ----------
    proportions : table or Proportions
        One row per bag.
    bags : array-like of shape (n,)
        The bag id of every row.

    Returns
    -------
    array or data frame of shape (n, k)
        Columns follow the sorted classes. For a data frame the result is a data frame, which keeps their
        names, with the index of `bags` where that is a pandas series.
    """
    if bags is None:
        raise DataError("bags is missing; pass bags=, the bag id of every row")
    options = key_by_name(proportions, bags)
    if options.std is not None or options.missing_bags == "allow":
        name = "missing_bags" if options.std is None else "std"
        hint = "fit on the table itself, or leave it out for a search and fit on the table afterwards"
        raise SettingsError(f"proportions row by row cannot keep {name}; {hint}")
    groups = group_rows(bags, len(bags))
    shares, _, classes = read_shares(options, groups.names, groups.sizes, unavailable=NOT_EXPANDED)
    return _as_frame(shares[groups.number], options.table, classes, bags)


def _as_frame(rows: np.ndarray, table: Any, classes: np.ndarray, bags: Any) -> Any:
    """Rows as a frame of the same library as the table, if that keeps the names of the classes."""
    names = classes.tolist()
    if is_pandas_dataframe(table):
        index = bags.index if is_pandas_series(bags) else None
        frame = type(table)(rows, columns=names, index=index)
    elif is_polars_dataframe(table):
        frame = type(table)(rows, schema=[str(name) for name in names])
    else:
        return rows
    return rows if column_names(frame) is None else frame

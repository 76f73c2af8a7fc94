"""From users' tables to bags: any hashable ids, proportions or counts, and errors that name the bag."""

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from apportion.bags import Bags
from apportion.gaps import refuse_gaps
from apportion.instances import BagError, as_instances, numbers_of
from apportion.named import check_names


def _refuse(name: Hashable, what: str) -> NoReturn:
    raise BagError(f"bag {name!r} {what}")


def group_bags(
    x: Any, ids: Any, proportions: Any = None, *, counts: Any = None, bag_column: str | None = None,
    normalise: bool = False,
) -> Bags:  # fmt: skip
    """Bags from instances, the bag id of each, and a table with the proportions or the counts of every bag.

    `ids` (N,) are of any hashable type. The table is a dict {bag: vector}, a DataFrame with a row a bag
    (indexed by bag, or named in `bag_column`), or an array whose rows follow the sorted ids. Instances keep
    their order inside a bag; `Bags.source` says where each was.
    """
    if (proportions is None) == (counts is None):
        raise BagError("pass either proportions or counts, one row a bag")
    x, keys = as_instances(x), keys_of(ids)
    if len(keys) != len(x):
        raise BagError(f"there are {len(x)} instances but {len(keys)} bag ids; pass one id an instance")
    names, number, sizes = numbered(keys)
    table = rows_by_id(counts if proportions is None else proportions, names, bag_column)
    if proportions is None and table.ndim == 2 and not normalise:
        table = shares_of_counts(table, sizes, names)
    shares = checked_shares(table, names, normalise)
    order = torch.from_numpy(np.argsort(number, kind="stable"))
    x = x if bool((order.diff() == 1).all()) else x[order]  # where they are in order, in a mapped file too
    return Bags(x, torch.from_numpy(sizes), torch.from_numpy(shares).float(), order, names)


def keys_of(ids: Any) -> Sequence[Hashable] | np.ndarray:
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "iu" and ids.ndim == 1:
        return ids  # a list of millions of numbers takes gigabytes
    values = ids.tolist() if isinstance(ids, np.ndarray | Tensor) else list(ids)
    for i, value in enumerate(values):
        try:
            hash(value)
        except TypeError as problem:
            what = f"instance {i} has a bag id that cannot be hashed ({value!r}); use a string or a number"
            raise BagError(what) from problem
        same = value == value  # NaN is not; of pandas' NA it is not known
        if value is None or not isinstance(same, bool | np.bool_) or not same:
            raise BagError(f"instance {i} has no bag id ({value!r}); name its bag or drop the instance")
    return values


def numbered(keys: Sequence[Hashable] | np.ndarray) -> tuple[list[Hashable], np.ndarray, np.ndarray]:
    """Sorted names (as they appear where they cannot be sorted), the number of each key, the sizes."""
    if isinstance(keys, np.ndarray):
        found, number, sizes = np.unique(keys, return_inverse=True, return_counts=True)
        return found.tolist(), number, sizes
    names = list(dict.fromkeys(keys))
    with suppress(TypeError):  # ids of mixed types keep the order in which they appear
        names = sorted(names)  # type: ignore[type-var]
    place = {name: i for i, name in enumerate(names)}
    number = np.fromiter((place[key] for key in keys), dtype=np.int64, count=len(keys))
    return names, number, np.bincount(number, minlength=len(names))


def rows_by_id(table: Any, names: list[Hashable], bag_column: str | None) -> np.ndarray:
    """The rows of a table (dict, DataFrame, array) in the order of `names`, float64."""
    library = type(table).__module__.split(".")[0]
    if library in ("pandas", "polars") and len(table.shape) == 1:
        table = _vectors(table, library)
    if isinstance(table, Mapping):
        keys, values = list(table), [numbers_of(row, f"bag {name!r}") for name, row in table.items()]
    elif library in ("pandas", "polars"):
        if bag_column is None and library == "polars":
            raise BagError("a polars table has no index; say which column names the bags: bag_column=...")
        keys = list(table.index) if bag_column is None else list(table[bag_column])
        columns = [name for name in table.columns if name != bag_column]
        values = np.column_stack([numbers_of(table[name], f"the column {name!r}") for name in columns])
    else:
        values = numbers_of(table, "the table")
        if len(values) != len(names):
            raise BagError(f"there are {len(names)} bags but {len(values)} rows; pass a dict to name them")
        return values
    check_names(keys, names)
    row_of = dict(zip(keys, values, strict=True))
    for name, row in row_of.items():
        if row.ndim != 1:
            _refuse(
                name, f"has {row} for proportions; give a number for each class, such as [1 - {row}, {row}]"
            )
        if len(row) != len(values[0]):
            _refuse(name, f"has {len(row)} classes, others have {len(values[0])}; give all")
    return np.array([row_of[name] for name in names])


def _vectors(series: Any, library: str) -> dict[Hashable, Any]:
    """The vectors of a pandas series by bag; one number a bag would say nothing of the other classes."""
    if library == "polars" or series.dtype != object:
        remedy = (
            "pass a table with a column for each class, such as pandas.DataFrame({'no': 1 - s, 'yes': s})"
        )
        raise BagError(f"a series has one number a bag; {remedy}")
    return dict(zip(series.index, series, strict=True))


def shares_of_counts(counts: np.ndarray, sizes: np.ndarray, names: Sequence[Hashable]) -> np.ndarray:
    totals = counts.sum(1)
    for i in np.flatnonzero(~np.isclose(totals, sizes) & ~np.isnan(totals))[:1].tolist():
        remedy = (
            "rescale counts of a larger group; ProportionClassifier(normalise=True) does, noise= if noisy"
        )
        _refuse(names[i], f"has counts that sum to {totals[i]:g} but {sizes[i]} instances; {remedy}")
    return counts / sizes[:, None]


def checked_shares(
    shares: np.ndarray, names: Sequence[Hashable], normalise: bool, classes: Any = None
) -> np.ndarray:
    """Proportions that sum to one, or an error that names the first bag where something is wrong."""
    if shares.ndim != 2 or shares.shape[1] < 2:
        raise BagError(f"proportions have shape {shares.shape}; pass a row a bag and at least two classes")
    refuse_gaps(shares, names)
    taken = "it is taken by ProportionClassifier"
    for bad, what in (
        (~np.isfinite(shares), f"is not a number; give one or drop the bag; {taken}(unlabelled=True)"),
        (shares < 0, f"is negative; give a number from 0 to 1; if noise was added, {taken}(noise=)"),
        (shares > (np.inf if normalise else 1 + 1e-6), "is more than one; divide percentages by 100"),
    ):
        for i, j in np.argwhere(bad)[:1].tolist():
            name = j if classes is None else np.asarray(classes).tolist()[j]
            _refuse(names[i], f"has {shares[i, j]:g} as the proportion of class {name!r}, which {what}")
    totals = shares.sum(1)
    for i in np.flatnonzero(totals == 0)[:1].tolist():
        _refuse(names[i], "has proportions that are all zero; drop the bag")
    for i in np.flatnonzero((abs(totals - 1) > 1e-4) & (not normalise))[:1].tolist():  # four printed digits
        fill = ", fill=True if a class lacks its share" if totals[i] < 0.9 else ""
        remedy = f"rescale them; ProportionClassifier(normalise=True) does{fill}"
        _refuse(names[i], f"has proportions summing to {totals[i]:.6g}; {remedy}")
    return shares / totals[:, None]

"""From users' tables to bags: any hashable ids, proportions or counts, and errors that name the bag."""

from collections.abc import Hashable, Mapping
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from apportion.bags.bags import Bags
from apportion.errors import DataError
from apportion.intake.filling import without_residue
from apportion.intake.given import refuse_another_order
from apportion.intake.ids import Groups, groups_of
from apportion.intake.instances import as_instances, library_of
from apportion.intake.matching import check_names, check_order
from apportion.intake.named import by_name
from apportion.intake.remedies import ESTIMATOR, GROUPING, Way
from apportion.intake.sound import check_numbers, checked_shares, numbers_of, refuse_shares, shares_of_counts
from apportion.intake.strangers import refuse_beside, refuse_sum, refuse_total


def _refuse(name: Hashable, what: str) -> NoReturn:
    raise DataError(f"bag {name!r} {what}")


def build_bags(
    x: Any, ids: Any, proportions: Any = None, *, counts: Any = None, bag_column: str | None = None,
    normalize: bool = False,
) -> Bags:  # fmt: skip
    """Bags from instances, the bag id of each, and a table with the proportions or the counts of every bag.

    `ids` (N,) are of any hashable type. The table is {bag: vector}, {bag: {class: number}}, a DataFrame with
    a row a bag (named in its index or in a column, `bag_column`), or an array whose rows follow the sorted
    ids. Classes keep the order of the table's columns, instances theirs inside a bag (see `Bags.source`).
    """
    refuse_another_order(x, ids, "x")
    x = as_instances(x)
    groups = groups_of(ids, len(x))
    scaled, whole = not normalize, counts is not None
    rows, classes = table_rows(proportions, counts, groups, key=bag_column, scaled=scaled, way=GROUPING)
    if whole and normalize:
        check_numbers(rows, groups[0], classes, GROUPING, whole=True)
    return bags_of(x, groups, checked_shares(rows, groups, normalize, classes, GROUPING))


def bags_of(x: Tensor, groups: Groups, shares: np.ndarray) -> Bags:
    """The bags of instances that come in any order."""
    names, number, sizes = groups
    known = torch.from_numpy(sizes), torch.from_numpy(shares).float()
    if (np.diff(number) >= 0).all():  # in order as they are: not copied, in a mapped file neither
        return Bags(x, *known, torch.arange(len(x)), names)
    order = torch.from_numpy(np.argsort(number, kind="stable"))
    return Bags(x[order], *known, order, names)


def table_rows(
    proportions: Any, counts: Any, groups: Groups, classes: Any = None, *, gap: float = 0.0,
    key: str | None = None, scaled: bool = True, way: Way = ESTIMATOR,
) -> tuple[np.ndarray, list[Any] | None]:  # fmt: skip
    """Numbers (m, k) in the order of the bags, and the names of their columns; `scaled` counts are shares. A
    class that a bag of {bag: {class: number}} does not name has `gap`."""
    names, _, sizes = groups
    if (proportions is None) == (counts is None):
        raise DataError("pass either proportions or counts, one row a bag")
    table = counts if proportions is None else proportions
    if isinstance(table, dict):
        table = {name: row for name, row in table.items() if row is not None}
        if not table:
            raise DataError("no bag has proportions, so that there is nothing to learn from")
    table, found, key = by_name(table, names, classes, gap=gap, key=key, subset=way.subset)
    rows = without_residue(rows_by_id(table, list(names), key, way))
    if rows.ndim != 2:
        return rows, found
    if counts is not None:
        refuse_shares(rows, groups)
    if classes is None and found is not None:
        refuse_sum(rows, found)
    if counts is not None and (scaled or classes is None):
        refuse_total(rows, sizes, found, sure=scaled)
    if classes is None:
        refuse_beside(rows, sizes if counts is not None else None, names, found)
    return shares_of_counts(rows, groups, found, way) if counts is not None and scaled else rows, found


def rows_by_id(table: Any, names: list[Hashable], bag_column: str | None, way: Way = ESTIMATOR) -> np.ndarray:
    """The rows of a table (dict, DataFrame, array) in the order of `names`, float64."""
    library = library_of(table)
    if library in ("pandas", "polars") and len(table.shape) == 1:
        table = _vectors(table, library)
    if isinstance(table, Mapping):
        keys, values = list(table), _rows(table)
    elif library in ("pandas", "polars"):
        keys = list(table.index) if bag_column is None else list(table[bag_column])
        if bag_column is None and not way.subset:
            _refuse_default_index(table.index, names)
        columns = [name for name in table.columns if name != bag_column]
        values = np.column_stack([numbers_of(table[name], f"the column {name!r}") for name in columns])
    else:
        values = numbers_of(table, "the table")
        if len(values) != len(names):
            raise DataError(f"there are {len(names)} bags but {len(values)} rows; pass a dict to name them")
        check_order(names)
        return values
    check_names(keys, names, way)
    place = {name: i for i, name in enumerate(keys)}
    values = np.concatenate([values, np.full((1, *values.shape[1:]), np.nan)])  # the last is of absent bags
    return values[[place.get(name, -1) for name in names]]


def _refuse_default_index(index: Any, names: list[Hashable]) -> None:
    """Rows that only count themselves name no bags, unless these are counted alike, all of them."""
    counting = type(index).__name__ == "RangeIndex" and index.name is None and index[:1].tolist() == [0]
    for name in set(names).symmetric_difference(index) if counting else ():
        what = f"the table's rows are numbered 0 to {len(index) - 1}, and the bags are not, such as {name!r}"
        raise DataError(f"{what}; name the bags by table.set_index(...)")


def _rows(table: Mapping[Hashable, Any]) -> np.ndarray:
    """The vectors of a dict as one array; bag by bag only where that fails, to name the bag."""
    with suppress(TypeError, ValueError):
        if not any(isinstance(row, np.ma.MaskedArray) for row in table.values()):
            values = np.array(list(table.values()), np.float64)
            if values.ndim > 1:
                return values
    rows = [numbers_of(row, f"bag {name!r}") for name, row in table.items()]
    for name, row in zip(table, rows, strict=True):
        if row.ndim != 1:
            share = f"{float(row):.6g}" if row.ndim == 0 else str(row.tolist())
            such = f", such as [1 - {share}, {share}]" if row.ndim == 0 and 0 <= row <= 1 else ""
            _refuse(name, f"has {share} for proportions; give a number for each class{such}")
        if len(row) != len(rows[0]):
            _refuse(name, f"has {len(row)} classes, others have {len(rows[0])}; give all")
    return np.array(rows)


def _vectors(series: Any, library: str) -> dict[Hashable, Any]:
    """The vectors of a pandas series by bag; one number a bag would say nothing of the other classes."""
    if library == "polars" or series.dtype != object:
        remedy = "pass a table with a column a class, such as pandas.DataFrame({'no': 1 - s, 'yes': s})"
        raise DataError(f"a series has one number a bag; {remedy}")
    return dict(zip(series.index, series, strict=True))

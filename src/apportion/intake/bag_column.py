"""The column of a table that names the bags, where no index does."""

from collections.abc import Hashable, Sequence
from typing import Any

from apportion.errors import DataError
from apportion.intake.instances import library_of

LEAST = 3  # bags from which on a column of their ids is no accident: of two, 0 and 1 may be the shares


def bag_column(
    table: Any, names: set[Hashable], library: str, classes: Sequence[Hashable], subset: bool
) -> str | None:
    """The column that names the bags, where no index does; an index that only counts the rows does not.

    One that lacks a few of the bags is found too, so that an error can name these.
    """
    index, columns = [] if library == "polars" else list(table.index), list(table.columns)
    for name in (name for i, name in enumerate(columns) if name in columns[:i]):
        raise DataError(f"the column {name!r} stands twice in the table; keep one")
    columns = [name for name in columns if name not in classes]
    found = [name for name in columns if _holds(table[name], names)]
    counting = library == "pandas" and type(table.index).__name__ == "RangeIndex"
    if counting and (len(names) >= LEAST or (subset and classes)):
        whole = [name for name in found if _once(table[name], names, subset)]
        if not names <= set(index):  # nor does it name all bags: the column whose values are some of them
            whole = whole or [name for name in columns if _some(table[name], names)]
        if len(whole) == 1:
            return whole[0]
    for name in found if counting and subset and not classes and len(names) < min(LEAST, len(index)) else ():
        remedy = f"pass table.set_index({name!r}), or classes= if it is one of them"
        raise DataError(f"the column {name!r} or the rows' numbers may name the bags; {remedy}")
    for name in (name for name in found if library == "pandas" and _values(table[name]) == index):
        raise DataError(f"the column {name!r} repeats the names of the bags; pass table.set_index({name!r})")
    if library == "pandas" and set(index) & names:
        return None
    found = found or [name for name in columns if _some(table[name], names)]
    if not found and library == "polars":
        remedy = f"one must have all bags of the instances in it, such as {next(iter(names))!r}"
        raise DataError(f"no column of the polars table names the bags; {remedy}")
    return min(found, key=lambda name: not _once(table[name], names, subset), default=None)


def _values(column: Any) -> list[Any]:
    """The values of a column; None for missing ones, since pandas' NA cannot be compared."""
    missing = column.isna() if library_of(column) == "pandas" else column.is_null()
    if not missing.any():
        return column.to_list()
    return [None if gap else value for gap, value in zip(missing, column.to_list(), strict=True)]


def _once(column: Any, names: set[Hashable], subset: bool) -> bool:
    """Just the bags; or, where the table may have more, the bags of all rows, each once."""
    values = _values(column)
    return len(set(values)) == len(values) if subset else set(values) == names


def _holds(column: Any, names: set[Hashable]) -> bool:
    values = _values(column)
    return next(iter(names)) in values and names <= set(values)  # most columns are done with the first


def _some(column: Any, names: set[Hashable]) -> bool:
    """Most of the bags and nothing else, each once."""
    values = _values(column)
    return len(names) < 2 * len(values) and len(set(values) & names) == len(values)

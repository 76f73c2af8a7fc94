"""Tables of bags whose columns or keys have names: each number goes to the class that its name says."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from apportion.errors import DataError
from apportion.intake.bag_column import bag_column
from apportion.intake.instances import library_of
from apportion.intake.sound import numbers_of


class Named(NamedTuple):
    table: Any  # as it was, with its columns in the order of the classes
    classes: list[Hashable] | None  # None: nothing names them
    bag_column: str | None = None  # of a polars table, which has no index


def by_name(
    table: Any, names: Sequence[Hashable], classes: Any, *, gap: float = 0.0, key: str | None = None,
    subset: bool = False,
) -> Named:  # fmt: skip
    """The table, its columns in the order of `classes`, or of its own names where none are asked for.

    Names are the columns of a DataFrame (pandas, its index or one of its columns naming the bags; polars, one
    of its columns), or the inner keys of {bag: {class: number}}, where value_counts() of each bag may stand
    and a class that a bag does not name has `gap`; or those of a series by (bag, class), such as
    groupby(...).value_counts(). `key` is the column that names the bags, if that is known. The names are a
    `subset` of the table's, where it may have more.
    """
    asked = None if classes is None else list(classes)
    library, table = library_of(table), _unstacked(table, set(names), gap)
    if isinstance(table, Mapping) and table and all(map(has_names, table.values())):
        table, there = _vectors(table, names, gap)
    elif library in ("pandas", "polars") and len(table.shape) == 2:
        key = bag_column(table, set(names), library, asked or (), subset) if key is None else key
        for name in {key} - {None, *table.columns}:
            raise DataError(f"there is no column {name!r} in the table; it has {list(table.columns)}")
        table = table.set_index(key) if library == "pandas" and key is not None else table
        there = [name for name in table.columns if name != key]
    else:
        return Named(table, asked)
    for name in (name for name in asked or () if name not in there):
        name = name.item() if isinstance(name, np.generic) else name
        remedy = "give it one, of NaN if what is left is its share (fill=True)"
        raise DataError(f"class {name!r} has no column in the table; it has {there}: {remedy}")
    chosen = there if asked is None else asked
    places = [there.index(name) for name in chosen]
    if isinstance(table, Mapping):
        return Named({bag: [row[i] for i in places] for bag, row in table.items()}, chosen)
    if library == "pandas":
        return Named(table.iloc[:, places], chosen)  # a list of True and False would pick rows
    return Named(table[[key, *chosen]], chosen, key)


def column_names(frame: Any) -> list[Any] | None:
    """The names of a frame's columns; None where it has one alone, or they only count themselves."""
    if library_of(frame) not in ("pandas", "polars") or len(frame.shape) != 2 or frame.shape[1] < 2:
        return None
    names = list(frame.columns)
    truths = isinstance(names[0], bool | np.bool_)  # which equal 0 and 1
    own = library_of(frame) == "polars"  # which counts by names of its own
    counting = [f"column_{i}" for i in range(len(names))] if own else list(range(len(names)))
    return None if names == counting and not truths else names


def _unstacked(table: Any, names: set[Hashable], gap: float) -> Any:
    """A pandas series by (bag, class) as a table with a column a class; all else as it is."""
    if library_of(table) != "pandas" or len(table.shape) != 1 or type(table.index).__name__ != "MultiIndex":
        return table
    if table.dtype == object or not names.isdisjoint(table.index):  # vectors, or one number a bag
        return table
    for one in table.index[table.index.duplicated()][:1].tolist():
        raise DataError(f"{one!r} stands twice in the series of (bag, class); keep one number each")
    numbers = numbers_of(table, "the series")  # whole ones could not hold the gap
    return type(table)(numbers, index=table.index).unstack(fill_value=gap)


def has_names(row: Any) -> bool:
    """A dict, or a pandas series whose index is more than the places of its values."""
    return isinstance(row, Mapping) or (
        library_of(row) == "pandas" and type(row.index).__name__ != "RangeIndex"
    )


def _vectors(
    table: Mapping[Any, Any], names: Sequence[Hashable], gap: float
) -> tuple[dict[Any, list[Any]], list[Any]]:
    """{bag: numbers} from {bag: {class: number}}, and the classes."""
    there = list(dict.fromkeys(name for row in table.values() for name in row.keys()))  # noqa: SIM118  series
    if not set(table) & set(names) and set(there) & set(names):
        raise DataError(
            "the table's keys are classes, and theirs are bags; turn it round: pass the DataFrame itself, or "
            "its to_dict('index')"
        )
    return {bag: [row.get(name, gap) for name in there] for bag, row in table.items()}, there


def framed(rows: np.ndarray, table: Any, names: np.ndarray, bags: Any) -> Any:
    """Rows as a frame of the table's own library where that keeps the names of their columns, with the index
    of the bags that they are of; else as they are."""
    if library_of(table) not in ("pandas", "polars") or len(table.shape) != 2:
        return rows
    named: dict[str, Any] = {"columns": names.tolist()}
    if library_of(bags) == "pandas" and type(bags).__name__ == "Series":
        named["index"] = bags.index
    named = named if library_of(table) == "pandas" else {"schema": [str(name) for name in names.tolist()]}
    frame = type(table)(rows, **named)
    return rows if column_names(frame) is None else frame

"""Tables of bags whose columns or keys have names: each number goes to the class that its name says."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple
from unicodedata import normalize

import numpy as np

from apportion.intake.instances import BagError, library_of

LEAST = 3  # bags from which on a column of their ids is no accident: of two, 0 and 1 may be the shares


class Named(NamedTuple):
    table: Any  # as it was, with its columns in the order of the classes
    classes: list[Hashable] | None  # None: nothing names them
    bag_column: str | None = None  # of a polars table, which has no index


def by_name(
    table: Any, names: Sequence[Hashable], classes: Any, *, gap: float = 0.0, key: str | None = None
) -> Named:
    """The table, its columns in the order of `classes`, or of its own names where none are asked for.

    Names are the columns of a DataFrame (pandas, its index or one of its columns naming the bags; polars, one
    of its columns), or the inner keys of {bag: {class: number}}, where value_counts() of each bag may stand
    and a class that a bag does not name has `gap`. `key` is the column that names the bags, if that is known.
    """
    asked = None if classes is None else list(classes)
    library = library_of(table)
    if isinstance(table, Mapping) and table and all(map(_has_names, table.values())):
        table, there = _vectors(table, names, gap)
    elif library in ("pandas", "polars") and len(table.shape) == 2:
        key = _bag_column(table, set(names), library, asked or ()) if key is None else key
        for name in {key} - {None, *table.columns}:
            raise BagError(f"there is no column {name!r} in the table; it has {list(table.columns)}")
        table = table.set_index(key) if library == "pandas" and key is not None else table
        there = [name for name in table.columns if name != key]
    else:
        return Named(table, asked)
    for name in (name for name in asked or () if name not in there):
        raise BagError(f"class {name!r} has no column in the table; it has {there}")
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


def _has_names(row: Any) -> bool:
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
        raise BagError(
            "the table's keys are classes, and theirs are bags; turn it round: pass the DataFrame itself, or "
            "its to_dict('index')"
        )
    return {bag: [row.get(name, gap) for name in there] for bag, row in table.items()}, there


def _bag_column(table: Any, names: set[Hashable], library: str, classes: Sequence[Hashable]) -> str | None:
    """The column that names the bags, where no index does; an index that only counts the rows does not.

    One that lacks a few of the bags is found too, so that an error can name these.
    """
    index, columns = [] if library == "polars" else list(table.index), list(table.columns)
    for name in (name for i, name in enumerate(columns) if name in columns[:i]):
        raise BagError(f"the column {name!r} stands twice in the table; keep one")
    found = [name for name in columns if _holds(table[name], names)]
    if library == "pandas" and type(table.index).__name__ == "RangeIndex" and len(names) >= LEAST:
        whole = [name for name in found if set(table[name]) == names and name not in classes]
        if not names <= set(index):  # nor does it name all bags: the column whose values are some of them
            whole = whole or [name for name in columns if name not in classes and _some(table[name], names)]
        if len(whole) == 1:
            return whole[0]
    for name in (name for name in found if library == "pandas" and list(table[name]) == index):
        raise BagError(f"the column {name!r} repeats the names of the bags; pass table.set_index({name!r})")
    if library == "pandas" and set(index) & names:
        return None
    found = found or [name for name in columns if _some(table[name], names)]
    if not found and library == "polars":
        remedy = f"one must have all bags of the instances in it, such as {next(iter(names))!r}"
        raise BagError(f"no column of the polars table names the bags; {remedy}")
    return found[0] if found else None


def _holds(column: Any, names: set[Hashable]) -> bool:
    values = column.to_list()
    return next(iter(names)) in values and names <= set(values)  # most columns are done with the first


def _some(column: Any, names: set[Hashable]) -> bool:
    """Most of the bags and nothing else, each once."""
    values = column.to_list()
    return len(names) < 2 * len(values) and len(set(values) & names) == len(values)


def check_names(keys: Sequence[Hashable], names: Sequence[Hashable]) -> None:
    """Refuse a table whose bags are not those of the instances, each once."""
    seen, known = set(), set(names)
    _refuse_other_form(keys, known)
    if keys and known.isdisjoint(keys):
        one, other = (f"{each[0]!r} ({type(each[0]).__name__})" for each in (keys, names))
        remedy = "write both alike, such as by map(str, ...)"
        raise BagError(f"no bag of the table is one of the instances': {one} there, {other} here; {remedy}")
    for name in keys:
        if name in seen:
            raise BagError(f"bag {name!r} stands twice in the table; keep one row a bag")
        if name not in known:
            raise BagError(f"bag {name!r} is in the table but has no instance; drop it from the table")
        seen.add(name)
    for name in (name for name in names if name not in seen):
        remedy = (
            "add it (a row of NaN, with unlabelled=True, if its shares are not known) or drop its instances"
        )
        raise BagError(f"bag {name!r} has instances but no row in the table; {remedy}")


def _refuse_other_form(keys: Sequence[Hashable], known: set[Hashable]) -> None:
    """Ids that look the same and are not: é may be one character, or an e with an accent after it."""
    lost = known.difference(keys)
    forms = {normalize("NFC", name) for name in lost if isinstance(name, str)}
    for key in (key for key in keys if isinstance(key, str) and key not in known):
        if normalize("NFC", key) in forms:
            remedy = "write both by unicodedata.normalize('NFC', id)"
            raise BagError(f"bag {key!r} has other Unicode characters among the instances; {remedy}")

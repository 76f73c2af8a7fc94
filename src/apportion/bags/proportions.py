"""Proportions: a table of class shares or counts per bag, and how to interpret it.

`align` reads every accepted form of table and puts its numbers in the order of the bags and of the sorted
classes. `problems` decides whether these numbers can be right.
"""

import math
import re
import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from narwhals.dependencies import (
    is_pandas_dataframe,
    is_pandas_series,
    is_polars_dataframe,
    is_polars_series,
)

from apportion.errors import DataError, SettingsError, did_you_mean

KINDS = ("shares", "percent", "counts")
SUM_TOLERANCE = 1e-4  # relative: shares printed with four digits sum to one within this
COUNT_TOLERANCE = 1e-5  # relative: counts that were computed in float32
ROUNDING_RESIDUE = 1e-9  # negative numbers above -1e-9 are floating-point residue, as of 1 - 0.9 - 0.1
FEW = 3  # with at least this many bags, a column of their ids is not a coincidence; 0 and 1 may be shares


@dataclass(frozen=True)
class Proportions:
    """A table with the class proportions of every bag, and how to interpret it.

    Parameters
    ----------
    table : dict, data frame, series or array
        One row per bag: `{bag: [0.3, 0.7]}`, `{bag: {"no": 0.3, "yes": 0.7}}` (also the `value_counts()` of
        each bag), a pandas or polars frame with one column per class and the bags in its index or in a
        column, a pandas series by (bag, class), or an array in the order of the sorted bag ids. Except for an
        array, the table may have bags that are not in the data.
    kind : {"shares", "percent", "counts"}, default="shares"
        What the numbers are: shares that sum to 1, percentages that sum to 100, or counts that sum to the
        number of rows of the bag.
    key : str, optional
        The column of a frame that names the bags. None: the column with the name of the bags of the rows, or
        else the index or the column that has their ids.
    classes : sequence, optional
        Which columns of a frame are classes. For a table without names, the names of its columns in order.
    std : float or "estimate", optional
        Standard deviation of the error of each number, where noise was added or numbers were rounded.
        "estimate": estimated from the differences between the sums and their totals.
    normalize : bool, default=False
        Rescale the numbers of each bag to the right total: rounded shares, or counts of a larger group.
    missing_bags : {"error", "allow"}, default="error"
        "allow": bags without any number, or without a row in the table, have unknown proportions.
    missing_cells : {"error", "impute"}, default="error"
        "impute": classes without a number divide the rest of the bag's total.
    rest : hashable, optional
        Name of an additional class for everything that the columns do not cover: the difference between
        their sum and 1, 100, or the number of rows of the bag.
    """

    table: Any
    kind: Literal["shares", "percent", "counts"] = "shares"
    _: KW_ONLY
    key: Any = None
    classes: Sequence[Hashable] | None = None
    std: float | Literal["estimate"] | None = None
    normalize: bool = False
    missing_bags: Literal["error", "allow"] = "error"
    missing_cells: Literal["error", "impute"] = "error"
    rest: Hashable | None = None

    def __post_init__(self) -> None:
        _check_choice("kind", self.kind, KINDS)
        _check_choice("missing_bags", self.missing_bags, ("error", "allow"))
        _check_choice("missing_cells", self.missing_cells, ("error", "impute"))
        if not isinstance(self.normalize, bool | np.bool_):
            raise SettingsError(f"normalize is {self.normalize!r}; pass True or False")
        if isinstance(self.classes, str):
            raise SettingsError(f"classes is {self.classes!r}; pass a list of class names")
        self._check_std()
        if self.rest is not None and self.normalize:
            raise SettingsError(
                "rest keeps the remainder of sums, and normalize=True removes it; pass one of them"
            )
        if self.rest is not None and self.missing_cells == "impute":
            raise SettingsError(
                'rest and missing_cells="impute" both use the remainder of sums; pass one of them'
            )
        if self.rest is not None and self.std == "estimate":
            raise SettingsError(
                'rest makes all sums right, and std="estimate" needs their errors; pass std as a number'
            )
        if self.kind == "counts" and self.normalize and self.missing_cells == "impute":
            what = 'missing_cells="impute" needs counts that sum to the size of the bag'
            raise SettingsError(f"{what}, and normalize=True says that they do not; pass one of the two")

    def _check_std(self) -> None:
        if self.std is None:
            return
        if self.std == "estimate":
            if self.normalize:
                what = 'std="estimate" needs the errors of sums, which normalize=True removes'
                raise SettingsError(f"{what}; pass std as a number")
            return
        if isinstance(self.std, str | bool) or not 0 <= self.std < math.inf:
            raise SettingsError(f"std is {self.std!r}; pass a standard deviation, or 'estimate'")


def _check_choice(name: str, value: Any, known: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in known:
        choices = ", ".join(repr(each) for each in known)
        raise SettingsError(f"{name} is {value!r}{did_you_mean(value, known)}; pass one of {choices}")


def as_proportions(table: Any) -> Proportions:
    """A plain table as `Proportions` of shares; `Proportions` stay as they are."""
    return table if isinstance(table, Proportions) else Proportions(table)


def key_by_name(proportions: Any, bags: Any, grouping: Any = None) -> Proportions:
    """`Proportions` whose key is the column with the name of the bags, or of their grouping, if there is one.

    The name of the bags is that of a series, such as a column of X.
    """
    options = as_proportions(proportions)
    table = options.table
    if options.key is not None or not (is_pandas_dataframe(table) or is_polars_dataframe(table)):
        return options
    for name in (name_of_bags(bags), grouping):
        is_class = options.classes is not None and name in list(options.classes)
        if isinstance(name, str) and name in list(table.columns) and not is_class:
            return replace(options, key=name)
    return options


def fix_key(options: Proportions, bags: Sequence[Hashable]) -> Proportions:
    """The same for a frame, read for some of these bags as it is for all of them."""
    table = options.table
    if options.key is not None:
        return options
    key = _find_key(table, set(bags), list(options.classes or []), subset=False)
    if key is not None:
        return replace(options, key=key)
    if table.index.name is None and table.index.nlevels == 1:
        return replace(options, table=table.rename_axis("bag"))
    return options


def name_of_bags(bags: Any) -> str | None:
    """The name of the column that bag ids come from, if they know it."""
    one_column = (is_pandas_dataframe(bags) or is_polars_dataframe(bags)) and bags.shape[1] == 1
    name = list(bags.columns)[0] if one_column else getattr(bags, "name", None)
    return name if isinstance(name, str) and name else None


@dataclass(frozen=True)
class Aligned:
    """The numbers of a table: one row per bag, one column per class, in the units of the table."""

    values: np.ndarray  # (m, k) float64; NaN: missing
    bags: Sequence[Hashable]  # (m,)
    sizes: np.ndarray  # (m,) rows of each bag
    totals: np.ndarray  # (m,) what the numbers of each bag should sum to: 1, 100, or the size of the bag
    classes: np.ndarray  # (k,) sorted; column numbers where the table does not name its classes
    rows: np.ndarray  # (m,) the row of each bag in the table, counted from 0; -1: it has none
    options: Proportions
    counts: bool  # whether the numbers are counts, and not shares or percentages
    table: "_Table"  # as it was read
    unavailable: frozenset[str]  # options that hints must not recommend here

    @property
    def table_bags(self) -> Sequence[Hashable] | None:
        """The ids in the table, row by row; None: it has none."""
        return self.table.bags

    def drop_classes(self, columns: Sequence[int]) -> "Aligned":
        """The same without these columns."""
        kept = [j for j in range(len(self.classes)) if j not in columns]
        return replace(self, values=self.values[:, kept], classes=self.classes[kept])


def align(
    proportions: Any,
    bags: Sequence[Hashable],
    sizes: np.ndarray,
    *,
    subset: bool = False,
    unavailable: frozenset[str] = frozenset(),
) -> Aligned:
    """The numbers of a table, or of `Proportions`, for bags of these ids and sizes.

    A table that cannot be read raises `DataError`; numbers that cannot be right are left to `find_problems`.
    `subset` says that the table usually has many more bags than these.
    """
    options = as_proportions(proportions)
    return _place_rows(_read(options, bags, subset), options, bags, sizes, unavailable)


def rename_bags(aligned: Aligned, names: Mapping[Hashable, Hashable]) -> Aligned:
    """The same with other ids for some rows of the table: {id in the table: id of the bag}."""
    table = aligned.table
    if not names or table.bags is None:
        return aligned
    renamed = table._replace(bags=[names.get(bag, bag) for bag in table.bags])
    return _place_rows(renamed, aligned.options, aligned.bags, aligned.sizes, aligned.unavailable)


def align_to_itself(aligned: Aligned) -> Aligned:
    """All rows of the table as bags of unknown sizes, which are zero."""
    bags = list(dict.fromkeys(aligned.table.bags or ()))
    sizes = np.zeros(len(bags), np.int64)
    return _place_rows(aligned.table, aligned.options, bags, sizes, aligned.unavailable)


def _place_rows(
    table: "_Table",
    options: Proportions,
    bags: Sequence[Hashable],
    sizes: np.ndarray,
    unavailable: frozenset[str],
) -> Aligned:
    if table.bags is None:
        _check_array(table.values, bags)
        rows = np.arange(len(bags))
    else:
        first: dict[Hashable, int] = {}
        for i, bag in enumerate(table.bags):
            first.setdefault(bag, i)
        rows = np.array([first.get(bag, -1) for bag in bags], dtype=np.int64)
    padded = np.concatenate([table.values, np.full((1, *table.values.shape[1:]), np.nan)])
    values = clip_rounding_residue(padded[rows])
    if values.ndim != 2:
        two = ", such as numpy.column_stack([1 - s, s])" if values.ndim == 1 else ""
        what = f"the table has shape {table.values.shape}"
        raise DataError(f"{what}; pass one row per bag and one column per class{two}")
    values, classes = _sort_classes(values, table.classes)
    counts = options.kind == "counts"
    if counts:
        totals = sizes.astype(float)
    else:
        totals = np.full(len(sizes), 100.0 if options.kind == "percent" else 1.0)
    aligned = Aligned(values, bags, sizes, totals, classes, rows, options, counts, table, unavailable)
    return aligned if options.rest is None else _add_rest(aligned)


def clip_rounding_residue(values: np.ndarray) -> np.ndarray:
    """The numbers, with zero where floating point alone made them negative."""
    return np.where((values < 0) & (values > -ROUNDING_RESIDUE), 0.0, values)


def _add_rest(aligned: Aligned) -> Aligned:
    """The same with a class for what the sums leave open. A bag without any number has no rest either."""
    rest = aligned.options.rest
    classes = aligned.classes.tolist()
    if rest in classes:
        raise DataError(
            f"rest is {rest!r}, which is a column of the table already; pass a new name", value=rest
        )
    left = aligned.totals - np.nansum(aligned.values, axis=1)
    left[np.abs(left) < 1e-9 * aligned.totals] = 0.0
    left[np.isnan(aligned.values).all(1)] = np.nan
    values, order = _sort_classes(np.column_stack([aligned.values, left]), [*classes, rest])
    return replace(aligned, values=values, classes=order)


def _sort_classes(values: np.ndarray, names: Sequence[Any] | None) -> tuple[np.ndarray, np.ndarray]:
    if names is None:
        return values, np.arange(values.shape[1])
    classes = check_classes(names, values.shape[1])
    order = np.argsort(classes, kind="stable")
    return values[:, order], classes[order]


def check_classes(names: Sequence[Any], k: int) -> np.ndarray:
    """The names of k classes as an array. They must be unique and of one type, so that they can be sorted."""
    for name in names:
        if isinstance(name, tuple) or is_missing(name):
            raise DataError(f"a class is named {name!r}; give every column a single name", value=name)
    kinds = {np.asarray(name).dtype.kind for name in names}
    if len({"number" if kind in "iuf" else kind for kind in kinds}) > 1:
        raise DataError(
            f"the classes {list(names)} are of several types; convert them, such as with map(str)"
        )
    classes = np.asarray(names)
    if len(classes) != k or len(np.unique(classes)) != k:
        raise DataError(f"there are {k} columns but the classes are {classes.tolist()}; name each once")
    return classes


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN or NA of pandas, which does not equal itself."""
    same = value == value  # noqa: PLR0124
    return value is None or not isinstance(same, bool | np.bool_) or not same


# --- reading: every form of table as numbers with the names of rows and columns


class _Table(NamedTuple):
    values: np.ndarray  # (rows, k) float64
    bags: list[Hashable] | None  # None: rows follow the sorted bag ids
    classes: list[Any] | None  # None: columns have no names


def without_torch(values: Any) -> Any:
    """A tensor as an array: without gradients, from any device, and float32 in place of bfloat16.

    Lists and dicts of tensors become lists and dicts of arrays; everything else stays as it is.
    """
    torch = sys.modules.get("torch")  # not imported for this: `apportion check` starts without it
    if torch is None:
        return values
    if isinstance(values, torch.Tensor):
        return (values.float() if values.dtype == torch.bfloat16 else values).numpy(force=True)
    if isinstance(values, list | tuple) and values and isinstance(values[0], torch.Tensor):
        return [without_torch(value) for value in values]
    if isinstance(values, dict) and any(isinstance(value, torch.Tensor) for value in values.values()):
        return {name: without_torch(value) for name, value in values.items()}
    return values


def _read(options: Proportions, bags: Sequence[Hashable], subset: bool) -> _Table:
    table = without_torch(options.table)
    classes_passed = None if options.classes is None else list(options.classes)
    gap = math.nan if options.missing_cells == "impute" else 0.0  # value of a class that a bag does not name
    names = set(bags)
    if isinstance(table, Proportions):
        raise DataError("the table in Proportions is a Proportions, too; pass the table itself")
    if is_pandas_series(table) or is_polars_series(table):
        table = _read_series(table, names, gap)
    if isinstance(table, Mapping):
        table = {bag: row for bag, row in table.items() if row is not None}
        if not table:
            raise DataError("no bag has proportions, so there is nothing to learn from")
        _refuse_intervals(table)
        if all(_has_names(row) for row in table.values()):
            return _read_dict_of_dicts(table, names, classes_passed, gap)
        return _Table(_read_vectors(table), list(table), classes_passed)
    if is_pandas_dataframe(table) or is_polars_dataframe(table):
        return _read_frame(table, names, options.key, classes_passed, subset)
    values = to_numbers(table, "the table")
    if values.ndim == 0:
        raise DataError(f"the table is {table!r}; pass one row per bag and one column per class")
    if values.ndim == 3 and values.shape[2] == 2:
        _refuse_intervals(dict(enumerate(values)), row="row")
    return _Table(values, None, classes_passed)


def to_numbers(values: Any, where: str) -> np.ndarray:
    """Numbers as float64, with NaN for missing ones. `where` is the place that error messages name."""
    try:
        if isinstance(values, np.ma.MaskedArray):
            return np.ma.filled(values.astype(np.float64), np.nan)
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        pass
    objects = np.asarray(values, dtype=object)
    missing = np.array([np.ndim(value) == 0 and is_missing(value) for value in objects.ravel()], bool)
    objects = np.where(missing.reshape(objects.shape), math.nan, objects)
    for value in objects.ravel().tolist():
        try:
            float(value)
        except (TypeError, ValueError):
            hint = (
                "write numbers such as 0.31, or pass key= for the column of bags and classes= for the classes"
            )
            raise DataError(f"{where} has {value!r} where a number should be; {hint}", value=value) from None
    return objects.astype(np.float64)


def _check_array(values: np.ndarray, bags: Sequence[Hashable]) -> None:
    """Check an array, whose rows follow the sorted ids: ids such as "b10" must not sort before "b9"."""
    if len(values) != len(bags):
        hint = "pass a dict or a data frame, which name the bags"
        raise DataError(f"there are {len(bags)} bags, but the table has {len(values)} rows; {hint}")
    last: dict[tuple[str, str], tuple[int, Hashable]] = {}
    for bag in bags:
        match = re.fullmatch(r"(\D*)(\d+)(\D*)", bag, re.DOTALL) if isinstance(bag, str) else None
        if match is None:
            continue
        pattern = str(match[1]), str(match[3])
        number = int(match[2])
        before, other = last.get(pattern, (number, bag))
        if before > number:
            what = f"the table does not name its bags, and bag {other!r} sorts before bag {bag!r} as text"
            raise DataError(f"{what}; pass a dict or a data frame, or ids as numbers", bag=bag)
        last[pattern] = number, bag


def _read_vectors(table: Mapping[Any, Any]) -> np.ndarray:
    """The vectors of {bag: vector} as rows. If they cannot be converted at once, an error names the bag."""
    try:
        if not any(isinstance(row, np.ma.MaskedArray) for row in table.values()):
            values = np.array(list(table.values()), np.float64)
            if values.ndim > 1:
                return values
    except (TypeError, ValueError):
        pass
    rows = [to_numbers(row, f"bag {bag!r}") for bag, row in table.items()]
    for bag, row in zip(table, rows, strict=True):
        if row.ndim != 1:
            share = f"{float(row):.6g}" if row.ndim == 0 else str(row.tolist())
            both = f", such as [1 - {share}, {share}]" if row.ndim == 0 and 0 <= row <= 1 else ""
            raise DataError(f"bag {bag!r} has {share}; pass one number per class{both}", bag=bag, value=share)
        if len(row) != len(rows[0]):
            what = f"bag {bag!r} has {len(row)} classes, others have {len(rows[0])}"
            raise DataError(f"{what}; give one number per class", bag=bag, value=len(row))
    return np.array(rows)


def _refuse_intervals(table: Mapping[Any, Any], row: str = "bag") -> None:
    """Raise DataError for lower and upper bounds of every class, (m, k, 2)."""
    try:
        values = np.asarray(list(table.values()), float)
    except (TypeError, ValueError):
        return
    if values.ndim == 3 and values.shape[2] == 2:
        widths = np.abs(np.diff(values, axis=2)).max((1, 2))
        i = int(widths.argmax())
        hint = f"pass their middles, with std={widths.max() / math.sqrt(12):.3g} (width / √12)"
        bag = list(table)[i]
        raise DataError(f"{row} {bag!r} has intervals, up to {widths[i]:.3g} wide; {hint}", bag=bag)


def _has_names(row: Any) -> bool:
    """Whether a row is a dict, or a series whose index is more than positions."""
    return isinstance(row, Mapping) or (is_pandas_series(row) and type(row.index).__name__ != "RangeIndex")


def _read_dict_of_dicts(
    table: Mapping[Any, Any], names: set[Hashable], classes_passed: list[Any] | None, gap: float
) -> _Table:
    classes = list(dict.fromkeys(name for row in table.values() for name in row.keys()))  # noqa: SIM118  series
    if not set(table) & names and set(classes) & names:
        hint = "pass {bag: {class: share}}, such as to_dict('index') of a data frame"
        raise DataError(f"the table is {{class: {{bag: share}}}}; {hint}")
    columns = _choose_columns(classes, classes_passed)
    rows = {bag: [row.get(name, gap) for name in columns] for bag, row in table.items()}
    return _Table(_read_vectors(rows), list(table), columns)


def _choose_columns(there: list[Any], classes_passed: list[Any] | None) -> list[Any]:
    if classes_passed is None:
        return there
    for name in classes_passed:
        if name not in there:
            name = name.item() if isinstance(name, np.generic) else name
            what = f"classes has {name!r}{did_you_mean(name, there)}, which is not a column"
            hint = f"name some of {there}, or pass rest= if it is what the others leave"
            raise DataError(f"{what} of the table; {hint}", value=name)
    return classes_passed


def _read_series(series: Any, names: set[Hashable], gap: float) -> Any:
    """A series by (bag, class) as a frame; a series of vectors as a dict."""
    if is_polars_series(series):
        series_of_vectors = False
    elif series.dtype == object:
        series_of_vectors = True
    else:
        series_of_vectors = False
        by_class = type(series.index).__name__ == "MultiIndex" and names.isdisjoint(series.index)
        if by_class:
            if not series.index.is_unique:
                twice = series.index[series.index.duplicated()][0]
                raise DataError(f"the series has {twice!r} twice; keep one number per bag and class")
            numbers = to_numbers(series, "the series")  # a series of integers could not hold the gap
            return type(series)(numbers, index=series.index).unstack(fill_value=gap)
    if not series_of_vectors:
        hint = "pass one column per class, such as pandas.DataFrame({'no': 1 - s, 'yes': s})"
        raise DataError(f"a series has one number per bag; {hint}")
    return dict(zip(series.index, series, strict=True))


def _read_frame(
    table: Any, names: set[Hashable], key: Any, classes_passed: list[Any] | None, subset: bool
) -> _Table:
    columns = list(table.columns)
    for i, name in enumerate(columns):
        if name in columns[:i]:
            raise DataError(f"the table has two columns named {name!r}; keep one", value=name)
    if key is None:
        key = _find_key(table, names, classes_passed or [], subset)
    elif key not in columns:
        what = f"key is {key!r}, which is not a column of the table{did_you_mean(key, columns)}"
        raise DataError(f"{what}; pass one of {columns}", value=key)
    if key is None and not subset:
        _refuse_row_numbers(table.index, names)
    bags = list(table.index) if key is None else _column_values(table[key])
    others = columns if key is None else [name for name in columns if name != key]  # one may be named None
    classes = _choose_columns(others, classes_passed)
    if not classes:
        return _Table(np.empty((len(bags), 0)), bags, classes)
    values = [to_numbers(table[name], f"column {name!r} of the table") for name in classes]
    return _Table(np.column_stack(values), bags, classes)


def _find_key(table: Any, names: set[Hashable], classes: list[Any], subset: bool) -> Any:
    """The column of a frame that names the bags; None: its index does.

    A column with the ids is preferred to an index that only numbers the rows. A column that lacks a few of
    the bags also counts, so that an error can name the missing ones.
    """
    pandas = is_pandas_dataframe(table)
    index = list(table.index) if pandas else []
    columns = [name for name in table.columns if name not in classes]
    values = {name: _column_values(table[name]) for name in columns}
    found = [name for name in columns if _has_all(values[name], names)]
    counting = pandas and type(table.index).__name__ == "RangeIndex" and table.index.name is None
    if counting and (len(names) >= FEW or (subset and classes)):
        exact = [name for name in found if _has_each_once(values[name], names, subset)]
        if not exact and not names <= set(index):
            exact = [name for name in columns if _has_most(values[name], names)]
        if len(exact) == 1:
            return exact[0]
    if counting and subset and not classes and found and len(names) < min(FEW, len(index)):
        what = f"the bags may be named by column {found[0]!r} or by the row numbers of the table"
        raise DataError(f"{what}; pass key={found[0]!r}, or classes= if it is a class")
    for name in found:
        if pandas and values[name] == index:
            what = f"both the index and column {name!r} of the table name the bags"
            raise DataError(f"{what}; pass key={name!r}, or drop the column", value=name)
    if pandas and set(index) & names:
        if table.index.name is None and table.index.dtype.kind in "iu":
            _refuse_doubtful_index(set(index), values, names, chosen=bool(classes))
        return None
    if not found:
        found = [name for name in columns if _has_most(values[name], names)]
    if not found and not pandas:
        hint = f"one must have all bags of the data, such as {next(iter(names))!r}; name it with key="
        raise DataError(f"no column of the table names the bags; {hint}")
    for name in found:
        if _has_each_once(values[name], names, subset):
            return name
    return found[0] if found else None


def _column_values(column: Any) -> list[Any]:
    """The values of a column, missing ones as None: NA of pandas cannot be compared."""
    missing = column.isna() if is_pandas_series(column) else column.is_null()
    values = column.to_list()
    if not missing.any():
        return values
    return [None if gap else value for gap, value in zip(missing, values, strict=True)]


def _has_all(values: list[Any], names: set[Hashable]) -> bool:
    return next(iter(names)) in values and names <= set(values)  # most columns fail at the first name


def _has_each_once(values: list[Any], names: set[Hashable], subset: bool) -> bool:
    return len(set(values)) == len(values) if subset else set(values) == names


def _has_most(values: list[Any], names: set[Hashable]) -> bool:
    """Whether values are most of the bags and nothing else, each once."""
    return len(names) < 2 * len(values) and len(set(values) & names) == len(values)


def _refuse_doubtful_index(
    index: set[Hashable], columns: Mapping[Any, list[Any]], names: set[Hashable], *, chosen: bool
) -> None:
    """Raise DataError for whole numbers without a name beside a column that may name the bags.

    The numbers may be those of rows, some of which were left out or moved. If the classes are `chosen`, any
    column besides them with another value in every row may name the bags, and the index may not.
    """
    n_matched = len(index & names)
    for name, values in columns.items():
        if len(set(values)) < len(values) or None in values or _has_fractions(values):
            continue
        if chosen or len(set(values) & names) > n_matched:
            what = f"the bags may be named by column {name!r} of the table or by its index, which has no name"
            hint = f"pass key={name!r}, or name the index, such as with table.rename_axis('bag')"
            raise DataError(f"{what}; {hint}", value=name)


def _has_fractions(values: list[Any]) -> bool:
    return any(isinstance(value, float) and value % 1 != 0 for value in values)


def _refuse_row_numbers(index: Any, names: set[Hashable]) -> None:
    """Raise DataError for an index that only numbers the rows, unless bags are numbered in the same way."""
    counting = type(index).__name__ == "RangeIndex" and index.name is None and index[:1].tolist() == [0]
    if counting and names != set(index):
        bag = next(iter(names.difference(index) or names))
        what = f"the index of the table only numbers its rows from 0 to {len(index) - 1}, unlike bag {bag!r}"
        raise DataError(f"{what}; pass key= for the column of the bags, or use table.set_index(...)")

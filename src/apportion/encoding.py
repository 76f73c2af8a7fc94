"""TableEncoder: the columns of a table as float32 features.

Numbers are standardized and their tails are bounded, categories become indicators, dates become a trend and a
season, and missing values are filled and flagged. Tables are pandas or polars frames, which are read through
narwhals, or arrays of numbers. They are read one column and one slice of rows at a time, so that no second
copy of the table is held. A polars LazyFrame is streamed.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import date
from itertools import chain
from typing import Any, Self

import narwhals as nw
import numpy as np
from narwhals.dependencies import is_pandas_dataframe
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from apportion._scratch import empty_array, pieces
from apportion.errors import DataError

KINDS = ("number", "category", "boolean", "date")
MAX_CATEGORIES = 32  # the most frequent have a feature of their own, all others share one
SLICE = 1 << 14  # rows encoded at once: they stay in the processor's cache
BATCH = 250_000  # rows read at once from a LazyFrame, at most
BATCH_VALUES = 1 << 22  # read at once, unless columns are very many
CELLS = 1 << 20  # numbers of an array encoded at once
MAX_LEVELS = 10  # different values up to which whole numbers may be codes
TAIL = 3.0  # standardized numbers stay between -3 and 3
DAY = 86_400_000_000  # microseconds
YEAR = 365.2425  # days


@dataclass(frozen=True)
class Column:
    """How one column becomes features."""

    name: str
    kind: str  # one of KINDS
    fill: float = 0.0  # replaces a missing value: the median, or the more frequent of false and true
    mean: float = 0.0
    scale: float = 1.0
    categories: tuple[str, ...] = ()  # sorted; every other value is "other"
    indicator: bool = False  # whether one more feature says that the value is missing
    bounded: bool = False  # whether the standardized numbers go through `bound_tails`
    levels: tuple[float, ...] = ()  # whole numbers that have an indicator each

    @property
    def features(self) -> list[str]:
        """The names of the features, in their order."""
        names = [self.name]
        if self.kind == "date":
            names += [f"{self.name}: sine of the year", f"{self.name}: cosine of the year"]
        if self.kind == "category":
            names = [f"{self.name} = {category}" for category in (*self.categories, "other")]
        names += [f"{self.name} = {level:.0f}" for level in self.levels]
        if self.indicator:
            names.append(f"{self.name} is missing")
        return names

    @property
    def knows_other(self) -> bool:
        """Whether the rows of the fit may have had values that are counted as "other"."""
        return len(self.categories) in (0, MAX_CATEGORIES)


class TableEncoder(TransformerMixin, BaseEstimator):
    """Encode the columns of a data frame, or of an array of numbers, as float32 features.

    | column | features | learned by `fit` |
    |---|---|---|
    | number | (value - mean) / standard deviation, tails bounded | median, mean, deviation |
    | whole number with 3 to 10 values | as a number, and one indicator per value | the values |
    | number with two values | 0 for the smaller, 1 for the larger | the more frequent value |
    | text, categorical | one per category: the 32 most frequent, and "other" | the categories |
    | boolean | 0 or 1 | the more frequent value |
    | date, time | days since 1970, standardized; sine and cosine of the time of year | as for numbers |

    Missing numbers, booleans and dates become the median or the more frequent value. A column with missing
    values in `fit` gets one more feature, "is missing". A category that `fit` has not seen counts as "other".
    If `fit` saw fewer than 32 categories, nothing was learned about others, and an unseen category gets the
    mean of the known ones instead.

    Whole numbers with few values may be codes, whose order means nothing, or counts: both features are there.
    Numbers with more values that are codes, such as postcodes, should be texts or named in `categorical`.

    Tails are bounded smoothly: a standardized number z becomes z / sqrt(1 + (z / 3)²), which lies between -3
    and 3 and is nearly z around the mean. A few very large incomes then neither compress all others nor
    dominate a network.

    Parameters
    ----------
    categorical : sequence of str, default=()
        Columns that are categories although they look like numbers, such as postcodes.

    Attributes
    ----------
    columns_ : tuple of Column
        What was learned about each column.
    feature_names_in_ : ndarray of str
        The names of the columns, in the order of `columns_`. Absent if `X` was an array.
    n_features_in_ : int
        The number of columns.

    Examples
    --------
    >>> import polars as pl
    >>> people = pl.DataFrame({"age": [20, 40, None], "city": ["Bern", "Wien", "Bern"]})
    >>> encoder = TableEncoder().fit(people)
    >>> encoder.get_feature_names_out().tolist()
    ['age', 'age is missing', 'city = Bern', 'city = Wien', 'city = other']
    >>> encoder.transform(people).shape
    (3, 5)
    """

    columns_: tuple[Column, ...]

    def __init__(self, categorical: Sequence[str] = ()) -> None:
        self.categorical = categorical

    def fit(self, X: Any, y: Any = None, *, rows: np.ndarray | None = None) -> Self:
        """Learn medians, means, deviations and categories.

        Parameters
        ----------
        X : pandas or polars DataFrame, polars LazyFrame, or array of numbers of shape (n_rows, n_columns)
        y : ignored
        rows : boolean array of shape (n_rows,), optional
            The rows to learn from. By default all.
        """
        if isinstance(X, np.ndarray):
            return self._fit_array(X, rows)
        frame = _as_frame(X)
        schema = frame.collect_schema()
        for name in self.categorical:
            if name not in schema:
                there = list(schema)[:20]
                raise DataError(f"there is no column {name!r} (categorical); the columns are {there}")
        if not len(schema):
            raise DataError("the table has no column; pass at least one")
        buffer = empty_array(_count_rows(frame), np.float64)
        columns = []
        for name in schema:
            forced = "category" if name in self.categorical else None
            columns.append(_fit_column(str(name), _read_column(frame, name), forced, rows, buffer))
        self._set_columns(columns, named=True)
        return self

    def transform(
        self, X: Any, out: np.ndarray | None = None, places: np.ndarray | None = None
    ) -> np.ndarray:
        """Features of shape (n_rows, n_features), float32.

        Parameters
        ----------
        X : pandas or polars DataFrame, polars LazyFrame, or array, as in `fit`
            Columns of a frame that `fit` has not seen are ignored.
        out : float32 array of shape (n_rows, n_features), optional
            Where to write; by default a new array.
        places : integer array of shape (n_rows,), optional
            Row i of X becomes row `places[i]` of `out`. By default rows keep their order.
        """
        check_is_fitted(self)
        if not self.named:
            return self._transform_array(X, out, places)
        frame = _as_frame(X)
        names = {str(name): name for name in frame.collect_schema()}
        missing = [column.name for column in self.columns_ if column.name not in names]
        if missing:
            raise DataError(f"there is no column {missing[0]!r}; the columns are {list(names)[:20]}")
        selected = frame.select([nw.col(names[column.name]) for column in self.columns_])
        n_rows = _count_rows(selected)
        if out is None:
            out = np.empty((n_rows, len(self.get_feature_names_out())), np.float32)
        start = 0
        for part in _slices(selected):
            stop = start + len(part)
            out[slice(start, stop) if places is None else places[start:stop]] = self._encode(part, start)
            start = stop
        if start != n_rows:  # polars may end a stream early when a thread that reads a file fails
            raise DataError(f"the table ended after {start} of {n_rows} rows; its file is damaged")
        return out

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """The names of the features. `input_features` is ignored."""
        check_is_fitted(self)
        return np.array([name for column in self.columns_ for name in column.features], dtype=object)

    def to_json(self) -> dict[str, Any]:
        """The fitted state as plain values for `json.dump`."""
        check_is_fitted(self)
        columns = [
            asdict(column) | {"categories": list(column.categories), "levels": list(column.levels)}
            for column in self.columns_
        ]
        return {"categorical": list(self.categorical), "columns": columns, "named": self.named}

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """The encoder whose state `to_json` returned. Every value is checked, as files may be hostile."""
        if not isinstance(values, Mapping) or set(values) != {"categorical", "columns", "named"}:
            raise DataError("the state of an encoder has the keys 'categorical', 'columns' and 'named' only")
        if not isinstance(values["named"], bool):
            raise DataError("whether the columns of an encoder are named is a boolean")
        if not _are_texts(values["categorical"]):
            raise DataError("the categorical columns of an encoder are a list of texts")
        columns = values["columns"]
        if not isinstance(columns, list) or not columns:
            raise DataError("the columns of an encoder are a list with at least one entry")
        encoder = cls(tuple(values["categorical"]))
        encoder._set_columns([_column_from_json(value) for value in columns], named=values["named"])
        if len({column.name for column in encoder.columns_}) < len(columns):
            raise DataError("the columns of an encoder have different names")
        if not values["named"] and any(column.kind != "number" for column in encoder.columns_):
            raise DataError("the columns of an array are numbers")
        return encoder

    def _set_columns(self, columns: Sequence[Column], *, named: bool) -> None:
        self.columns_ = tuple(columns)
        self.n_features_in_ = len(columns)
        if named:
            self.feature_names_in_ = np.array([column.name for column in columns], dtype=object)
        elif "feature_names_in_" in vars(self):
            del self.feature_names_in_

    @property
    def named(self) -> bool:
        """Whether `fit` had a frame, whose columns have names, and not an array."""
        return "feature_names_in_" in vars(self)

    def _fit_array(self, X: np.ndarray, rows: np.ndarray | None) -> Self:
        _check_numbers(X)
        if len(self.categorical):
            hint = "pass a data frame, and name its columns"
            raise DataError(f"X is an array, whose columns have no names to call categorical; {hint}")
        columns = []
        buffer = empty_array(len(X), np.float64)
        for j in range(X.shape[1]):
            parts = (X[each, j] for each in pieces(len(X)))
            columns.append(_fit_numbers(f"x{j}", "number", _gather(parts, rows, buffer)))
        self._set_columns(columns, named=False)
        return self

    def _transform_array(self, X: Any, out: np.ndarray | None, places: np.ndarray | None) -> np.ndarray:
        if not isinstance(X, np.ndarray):
            raise DataError(f"X is a {type(X).__name__}, but the encoder was fitted on an array; pass one")
        _check_numbers(X)
        if X.shape[1] != self.n_features_in_:
            raise DataError(
                f"X has {X.shape[1]} columns, but the encoder was fitted on {self.n_features_in_}"
            )
        fill, mean, scale = (
            np.array([getattr(column, name) for column in self.columns_])
            for name in ("fill", "mean", "scale")
        )
        bounded = np.array([column.bounded for column in self.columns_])
        indicator = np.flatnonzero([column.indicator for column in self.columns_])
        with_levels = np.flatnonzero([len(column.levels) for column in self.columns_])
        widths = np.array([len(column.features) for column in self.columns_])
        first = widths.cumsum() - widths
        if out is None:
            out = np.empty((len(X), int(widths.sum())), np.float32)
        step = max(1, min(SLICE, CELLS // X.shape[1]))
        for start in range(0, len(X), step):
            floats = X[start : start + step].astype(np.float64)
            if np.isinf(floats).any():
                row, j = np.argwhere(np.isinf(floats))[0]
                raise _infinite(f"x{j}", start + row, floats[row, j])
            missing = np.isnan(floats)
            standardized = (np.where(missing, fill, floats) - mean) / scale
            features = np.empty((len(floats), out.shape[1]), np.float32)
            features[:, first] = np.where(bounded, bound_tails(standardized), standardized)
            features[:, first[indicator] + widths[indicator] - 1] = missing[:, indicator]
            for j in with_levels:
                levels = self.columns_[j].levels
                stop = first[j] + 1 + len(levels)
                features[:, first[j] + 1 : stop] = floats[:, j, None] == levels
            out[slice(start, start + step) if places is None else places[start : start + step]] = features
        return out

    def _encode(self, part: nw.DataFrame, start: int) -> np.ndarray:
        """Features of a slice, whose first row is row `start` of the table."""
        features = np.zeros((len(part), sum(len(column.features) for column in self.columns_)), np.float32)
        left = 0
        for column, name in zip(self.columns_, part.columns, strict=True):
            right = left + len(column.features)
            if column.kind == "category":
                _encode_categories(column, part.get_column(name), features[:, left:right])
            else:
                _encode_numbers(column, part.get_column(name), features[:, left:right], start)
            left = right
        return features


def kind_of(dtype: Any) -> str | None:
    """What a column of this narwhals type is encoded as, one of KINDS; None if it cannot be encoded."""
    if dtype.is_numeric():
        return "number"
    if dtype == nw.Boolean:
        return "boolean"
    if dtype in (nw.Date, nw.Datetime):
        return "date"
    if dtype in (nw.String, nw.Categorical, nw.Enum):
        return "category"
    return None


def bound_tails(standardized: np.ndarray) -> np.ndarray:
    """z / sqrt(1 + (z / TAIL)²): between -TAIL and TAIL, and nearly z around zero."""
    return standardized / np.hypot(1.0, standardized / TAIL)


def _check_numbers(X: np.ndarray) -> None:
    if X.ndim != 2 or X.dtype.kind not in "biuf" or X.shape[1] == 0:
        what = f"X is an array of shape {X.shape} and type {X.dtype}"
        raise DataError(f"{what}; pass numbers of shape (n_rows, n_columns), or a data frame")


def check_unique_columns(frame: Any) -> None:
    """Raise DataError for a pandas frame that has two columns of one name."""
    names = list(getattr(frame, "columns", ())) if is_pandas_dataframe(frame) else []
    if len(set(names)) < len(names):
        name = next(name for name in names if names.count(name) > 1)
        raise DataError(f"X has two columns named {name!r}; rename or drop one", value=name)


def _as_frame(X: Any) -> nw.DataFrame | nw.LazyFrame:
    check_unique_columns(X)
    try:
        return nw.from_native(X)
    except TypeError:
        raise DataError(f"X is a {type(X).__name__}; pass a pandas or polars data frame") from None


def _read_column(frame: nw.DataFrame | nw.LazyFrame, name: Any) -> Iterator[nw.Series]:
    """One column, of a LazyFrame a batch at a time. Python objects of one type, such as True and None, get
    that type."""
    if not isinstance(frame, nw.LazyFrame):
        yield _infer_objects(frame.get_column(name))
        return
    empty = True
    for batch in read_batches(frame.select(name).to_native()):
        yield nw.from_native(batch, eager_only=True)[name]
        empty = False
    if empty:
        yield frame.select(name).collect()[name]


def _infer_objects(values: nw.Series) -> nw.Series:
    if values.dtype != nw.Object or not values.implementation.is_pandas_like():
        return values
    objects = values.to_native()
    if all(isinstance(value, date) for value in objects.dropna()):
        typed = objects.astype("datetime64[us]")
    else:
        typed = objects.convert_dtypes()
    return nw.from_native(typed, series_only=True)


def _count_rows(frame: nw.DataFrame | nw.LazyFrame) -> int:
    if isinstance(frame, nw.LazyFrame):
        return int(frame.select(nw.len()).collect().item())
    return len(frame)


def read_batches(frame: Any) -> Iterator[Any]:
    """The rows of a polars LazyFrame in their order, as frames that are small enough for memory.

    Polars holds several row groups of a file at once if it reads it as a whole, and one if it reads a slice.
    """
    n_columns = max(1, len(frame.collect_schema()))
    n_rows = min(BATCH, max(SLICE, BATCH_VALUES // n_columns))
    if not _reads_slices(frame):
        yield from frame.collect_batches(chunk_size=n_rows, maintain_order=True)
        return
    start = 0
    while len(batch := frame.slice(start, n_rows).collect(engine="streaming")):
        yield batch
        start += len(batch)


def _reads_slices(frame: Any) -> bool:
    """Whether a slice of a LazyFrame is read from its file alone: columns are selected, but rows are not."""
    plan = frame.slice(1, 7).explain()
    scans = plan.count("Parquet SCAN [")
    return scans == plan.count("SLICE: Positive") == 1 and "SLICE[" not in plan and "CACHE[" not in plan


def _slices(frame: nw.DataFrame | nw.LazyFrame) -> Iterator[nw.DataFrame]:
    """The rows in their order, SLICE at a time."""
    if isinstance(frame, nw.LazyFrame):
        for batch in read_batches(frame.to_native()):
            yield from _slices(nw.from_native(batch, eager_only=True))
    else:
        for start in range(0, len(frame), SLICE):
            yield frame[start : start + SLICE]


def _fit_column(
    name: str, batches: Iterator[nw.Series], kind: str | None, rows: np.ndarray | None, buffer: np.ndarray
) -> Column:
    """What is learned from a column, whose `batches` have one type. Numbers are written to `buffer` (n,)."""
    first = next(batches)
    kind = kind or kind_of(first.dtype)
    if kind is None:
        types = "numbers, texts, booleans or dates"
        raise DataError(f"column {name!r} has values of type {first.dtype}; drop it, or make them {types}")
    batches = chain([first], batches)
    if kind == "category":
        return _fit_categories(name, batches, rows)
    floats = _gather((_as_floats(name, batch, kind) for batch in batches), rows, buffer)
    return _fit_numbers(name, kind, floats)


def _gather(parts: Iterator[np.ndarray], rows: np.ndarray | None, buffer: np.ndarray) -> np.ndarray:
    """The numbers of all parts, or those of the `rows` (n,) bool, at the start of `buffer`."""
    start = stop = 0
    for part in parts:
        own = part if rows is None else part[rows[start : start + len(part)]]
        buffer[stop : stop + len(own)] = own
        start += len(part)
        stop += len(own)
    if start != len(buffer):  # polars may end a stream early when a thread that reads a file fails
        raise DataError(f"the table ended after {start} of {len(buffer)} rows; its file is damaged")
    return buffer[:stop]


def _fit_numbers(name: str, kind: str, floats: np.ndarray) -> Column:
    """What is learned from numbers, booleans or dates: float64, NaN where a value is missing.

    They may lie in a file, and are read a piece at a time. Missing ones are filled in place.
    """
    slices = list(pieces(len(floats)))
    missing = sum(int(np.isnan(floats[each]).sum()) for each in slices)
    if missing == len(floats):
        raise DataError(f"column {name!r} has no value in any row that is learned from; drop it")
    for each in slices:
        if np.isinf(floats[each]).any():
            row = each.start + int(np.flatnonzero(np.isinf(floats[each]))[0])
            what = f"column {name!r} has the value {floats[row]}"
            raise DataError(f"{what}; leave infinite numbers out, or empty")
    present = floats
    if missing:
        present = empty_array(len(floats) - missing, np.float64)
        stop = 0
        for each in slices:
            part = floats[each][~np.isnan(floats[each])]
            present[stop : stop + len(part)] = part
            stop += len(part)
    indicator = missing > 0
    if kind == "boolean":
        ones = sum(float(present[each].sum()) for each in pieces(len(present)))
        return Column(name, kind, fill=float(ones / len(present) > 0.5), indicator=indicator)
    low, high = float(present.min()), float(present.max())
    if kind == "number" and low < high < np.inf:
        n_low = sum(int((present[each] == low).sum()) for each in pieces(len(present)))
        n_high = sum(int((present[each] == high).sum()) for each in pieces(len(present)))
        if n_low + n_high == len(present):
            fill = high if n_high / len(present) > 0.5 else low
            return Column(name, kind, fill, low, high - low, indicator=indicator)
    levels = _few_whole_values(present) if kind == "number" else ()
    if not missing:
        present = empty_array(len(floats), np.float64)
        present[:] = floats
    fill = float(np.median(present, overwrite_input=True))
    if missing:
        for each in slices:
            floats[each][np.isnan(floats[each])] = fill
    with np.errstate(over="ignore", invalid="ignore"):
        mean = sum(float(floats[each].sum()) for each in slices) / len(floats)
        squares = sum(float(np.square(floats[each] - mean).sum()) for each in slices)
        scale = math.sqrt(squares / len(floats)) if squares < math.inf else math.inf
    if not np.isfinite([mean, scale]).all():
        raise DataError(f"column {name!r} has numbers too large to be squared and summed; divide them")
    constant = scale <= 10 * np.finfo(np.float64).eps * abs(mean)  # one value, up to rounding
    scale = 1.0 if constant else scale
    if kind == "date":
        return Column(name, kind, fill, mean, scale, indicator=indicator)
    levels = () if constant else levels
    return Column(name, kind, fill, mean, scale, (), indicator, bounded=True, levels=levels)


def _few_whole_values(present: np.ndarray) -> tuple[float, ...]:
    """The different values, sorted, if they are whole and at most MAX_LEVELS; otherwise none."""
    values = np.empty(0)
    first = slice(0, 1000)  # most columns of other numbers are recognized by their first rows
    for each in (first, *pieces(len(present))):
        if (present[each] % 1 != 0).any():
            return ()
        values = np.union1d(values, present[each])
        if len(values) > MAX_LEVELS:
            return ()
    return tuple(values.tolist())


def _fit_categories(name: str, batches: Iterator[nw.Series], rows: np.ndarray | None) -> Column:
    counts: Counter[str] = Counter()
    start = 0
    has_missing = False
    for values in batches:
        stop = start + len(values)
        if rows is not None:
            own = nw.new_series("rows", rows[start:stop], nw.Boolean, backend=values.implementation)
            values = values.filter(own)
        present = _as_texts(values.drop_nulls()).alias("category")
        has_missing |= len(present) < len(values)
        found = present.value_counts(name="count")
        counts.update(dict(zip(found["category"].to_list(), found["count"].to_list(), strict=True)))
        start = stop
    most = sorted(counts, key=lambda text: (-counts[text], text))[:MAX_CATEGORIES]
    return Column(name, "category", categories=tuple(sorted(most)), indicator=has_missing)


def _as_floats(name: str, values: nw.Series, kind: str, start: int = 0) -> np.ndarray:
    """float64, NaN where a value is missing; dates are days since 1970."""
    values = _infer_objects(values)
    if kind_of(values.dtype) != kind:
        if values.is_null().all():
            return np.full(len(values), np.nan)
        row = int(np.flatnonzero(~values.is_null().to_numpy())[0])
        raise DataError(
            f"column {name!r}, row {start + row}, has {str(values[row])[:80]!r}, which is not a {kind}; "
            f"the column had the kind {kind!r} when the encoder was fitted"
        )
    if kind == "date":
        return values.dt.timestamp("us").cast(nw.Float64).to_numpy() / DAY
    return values.cast(nw.Float64).to_numpy()


def _as_texts(values: nw.Series) -> nw.Series:
    if values.dtype == nw.Boolean:  # pandas would write True and False, polars true and false
        return values.replace_strict([True, False], ["true", "false"], return_dtype=nw.String)
    return values.cast(nw.String)


def _encode_categories(column: Column, values: nw.Series, features: np.ndarray) -> None:
    """Write the features of one column into zeros of shape (n, width)."""
    n_categories = len(column.categories)
    codes = {category: code for code, category in enumerate(column.categories)}
    missing = values.is_null().to_numpy()
    texts = _as_texts(_infer_objects(values)).to_list()
    place = np.fromiter((codes.get(text, n_categories) for text in texts), np.int64, len(texts))
    # without an indicator of its own a missing value counts as "other"
    place[missing] = n_categories + column.indicator
    features[np.arange(len(features)), place] = 1.0
    if not column.knows_other:  # the weight of "other" has learned nothing: take the mean of the categories
        other = place == n_categories
        features[other, :n_categories] = 1 / n_categories
        features[other, n_categories:] = 0.0


def _encode_numbers(column: Column, values: nw.Series, features: np.ndarray, start: int) -> None:
    """Write the features of one column into zeros of shape (n, width)."""
    floats = _as_floats(column.name, values, column.kind, start)
    if np.isinf(floats).any():
        row = int(np.flatnonzero(np.isinf(floats))[0])
        raise _infinite(column.name, start + row, floats[row])
    missing = np.isnan(floats)
    with np.errstate(over="ignore"):  # beyond float32; the row then has no probabilities, which is an error
        standardized = (np.where(missing, column.fill, floats) - column.mean) / column.scale
        features[:, 0] = bound_tails(standardized) if column.bounded else standardized
    if column.levels:
        features[:, 1 : 1 + len(column.levels)] = floats[:, None] == column.levels
    if column.kind == "date":
        angle = np.where(missing, 0.0, floats) * (2 * np.pi / YEAR)
        features[:, 1] = np.where(missing, 0.0, np.sin(angle))
        features[:, 2] = np.where(missing, 0.0, np.cos(angle))
    if column.indicator:
        features[:, -1] = missing


def _infinite(name: str, row: int, value: float) -> DataError:
    hint = "give a finite number, or leave it empty"
    return DataError(f"column {name!r}, row {row}, has the value {value}; {hint}", value=value)


def _column_from_json(value: Any) -> Column:
    known = [field.name for field in fields(Column)]
    if not isinstance(value, Mapping) or set(value) != set(known):
        raise DataError(f"a column of an encoder has the keys {', '.join(known)}, and no others")
    name, categories = value["name"], value["categories"]
    if not is_text(name) or value["kind"] not in KINDS:
        raise DataError(f"a column of an encoder is of kind {str(value['kind'])[:80]!r}; known are {KINDS}")
    numbers = [value[key] for key in ("fill", "mean", "scale")]
    if not all(_is_number(number) for number in numbers) or not numbers[2] > 0:
        raise DataError(f"column {name!r} has fill, mean and scale that are not numbers with scale > 0")
    if not _are_texts(categories) or categories != sorted(set(categories)):
        raise DataError(f"column {name!r} has categories that are not a sorted list of different texts")
    if len(categories) > MAX_CATEGORIES:
        raise DataError(f"column {name!r} has more than {MAX_CATEGORIES} categories")
    if not isinstance(value["indicator"], bool) or not isinstance(value["bounded"], bool):
        raise DataError(f"column {name!r} has an indicator or bounded that is not a boolean")
    levels = value["levels"]
    if not isinstance(levels, list) or not all(_is_number(level) for level in levels):
        raise DataError(f"column {name!r} has levels that are not a list of numbers")
    if len(levels) > MAX_LEVELS or levels != sorted(set(levels)) or any(level % 1 for level in levels):
        raise DataError(f"column {name!r} has levels that are not up to {MAX_LEVELS} sorted whole numbers")
    if levels and value["kind"] != "number":
        raise DataError(f"column {name!r} has levels, but is not a number")
    fill, mean, scale = (float(number) for number in numbers)
    tail = tuple(categories), value["indicator"], value["bounded"], tuple(map(float, levels))
    return Column(name, value["kind"], fill, mean, scale, *tail)


def _is_number(value: Any) -> bool:
    """A finite float, or a whole number small enough to become one."""
    if type(value) is float:
        return math.isfinite(value)
    return type(value) is int and abs(value) < 1 << 63


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(is_text(value) for value in values)


def is_text(value: Any) -> bool:
    """Whether a value is a text that can be written as UTF-8. JSON may hold halves of characters."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)

"""A column of a table becomes features: fitted on the rows of training, the same for all rows after."""

from collections.abc import Sequence

import numpy as np

from apportion.errors import DataError
from apportion.tables.columns import KEPT, Column
from apportion.tables.reading import pl

_DAY = 86_400_000_000  # microseconds
_YEAR = 365.2425  # days


def kind_of(dtype: pl.DataType) -> str | None:
    """What a column of this type is taken for; None where there is no transform."""
    if dtype.is_numeric():
        return "number"
    if dtype == pl.Boolean:
        return "boolean"
    if dtype in (pl.Date, pl.Datetime):
        return "date"
    return "category" if dtype in (pl.String, pl.Categorical, pl.Enum) else None


def read_as(values: pl.Series, kind: str) -> pl.Series:
    """The values as the kind has them; null where they are missing, or are no such thing."""
    if kind in ("category", "image"):
        return values.cast(pl.String)
    if values.dtype in (pl.Categorical, pl.Enum):
        values = values.cast(pl.String)
    text = values.dtype == pl.String
    if kind == "boolean":
        lower = values.cast(pl.String).str.to_lowercase()
        known = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False}
        return lower.replace_strict(known, default=None, return_dtype=pl.Boolean)
    if kind == "date":
        if text:
            try:
                return values.str.to_datetime(strict=False, time_unit="us")
            except pl.exceptions.ComputeError:  # not one of them is a date
                return _none(values).cast(pl.Datetime("us"))
        return (
            values.cast(pl.Datetime("us"), strict=False) if kind_of(values.dtype) == kind else _none(values)
        )
    return values.cast(pl.Float64, strict=False) if text or kind_of(values.dtype) == kind else _none(values)


def _none(values: pl.Series) -> pl.Series:
    return pl.Series(values.name, [None] * len(values), dtype=pl.Float64)


def spoilt(values: pl.Series, kind: str) -> np.ndarray:
    """Places of values that are there but are not of the kind, or are infinite."""
    read = read_as(values, kind)
    bad = read.is_null() & values.is_not_null()
    if kind == "number":
        odd = read.is_infinite() | read.is_nan() if values.dtype == pl.String else read.is_infinite()
        bad = bad | odd.fill_null(False)  # the text nan is no number, and no gap unless it is called one
    return np.flatnonzero(bad.to_numpy())


def _floats(values: pl.Series, kind: str) -> np.ndarray:
    """One float64 a value, NaN where it is missing; dates are days since 1970."""
    read = read_as(values, kind)
    if kind == "date":
        return read.cast(pl.Int64).cast(pl.Float64).to_numpy() / _DAY
    return read.cast(pl.Float64).to_numpy()


def fit_column(values: pl.Series, kind: str) -> Column:
    """Medians and means, or the most frequent categories, of the rows of training."""
    name = values.name
    if kind == "category":
        counts = read_as(values, kind).alias("category").value_counts().drop_nulls()
        counts = counts.sort(["count", "category"], descending=[True, False]).head(KEPT)
        return Column(name, kind, categories=tuple(sorted(counts["category"])), flag=values.has_nulls())
    floats = _floats(values, kind)
    missing = np.isnan(floats)
    there = floats[~missing] if missing.any() else floats
    if not len(there):
        raise DataError(f"column {name!r} has no value in any row that is learned from; drop it")
    if kind == "boolean":
        return Column(name, kind, fill=float(there.mean() > 0.5), flag=bool(missing.any()))
    fill = float(np.median(there))
    if missing.any():
        floats = np.where(missing, fill, floats)
    with np.errstate(over="ignore", invalid="ignore"):
        mean, scale = float(floats.mean()), float(floats.std())
    if not np.isfinite([mean, scale]).all():
        raise DataError(f"column {name!r} has numbers too large to be squared and summed; divide them")
    steady = scale <= 10 * np.finfo(np.float64).eps * abs(mean)  # one value, up to rounding
    return Column(name, kind, fill, mean, 1.0 if steady else scale, flag=bool(missing.any()))


def has_other(column: Column) -> bool:
    """Whether training may have had texts beyond those that are features, so that others are known of."""
    return len(column.categories) in (0, KEPT)


def features_of(columns: Sequence[Column], frame: pl.DataFrame) -> np.ndarray:
    """Features (n, d) float32 of the rows, in the order of the columns."""
    out = np.zeros((frame.height, sum(len(column.features) for column in columns)), np.float32)
    at = 0
    for column in columns:
        width = len(column.features)
        _write(column, frame[column.name], out[:, at : at + width])
        at += width
    return out


def _write(column: Column, values: pl.Series, out: np.ndarray) -> None:
    """The features of one column, into zeros (n, width)."""
    if column.kind == "category":
        codes = {category: i for i, category in enumerate(column.categories)}
        other = len(codes)
        read = read_as(values, "category")
        missing = read.is_null().to_numpy()
        place = read.replace_strict(codes, default=other, return_dtype=pl.Int64).to_numpy().copy()
        place[missing] = other + column.flag  # without a flag a missing value is 'other'
        out[np.arange(len(out)), place] = 1.0
        if not has_other(column):  # its weight has learned nothing: use the mean of all categories
            out[place == other, :] = np.append(np.full(other, 1 / other), np.zeros(1 + column.flag))
        return
    floats = _floats(values, column.kind)
    missing = np.isnan(floats)
    with np.errstate(over="ignore"):  # what is too large has no probabilities, which is told with its row
        out[:, 0] = (np.where(missing, column.fill, floats) - column.mean) / column.scale
    if column.kind == "date":
        turn = np.where(missing, 0.0, floats) * (2 * np.pi / _YEAR)
        out[:, 1], out[:, 2] = np.where(missing, 0.0, np.sin(turn)), np.where(missing, 0.0, np.cos(turn))
    if column.flag:
        out[:, -1] = missing

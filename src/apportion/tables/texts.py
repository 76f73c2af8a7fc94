"""The texts of a CSV become values: numbers, truth values and dates, the same at every reading."""

import logging
from collections.abc import Sequence
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

from apportion.errors import DataError
from apportion.tables.asking import listed
from apportion.tables.dialect import Dialect, dialect_of, names_of, refuse_twice, why
from apportion.tables.lines import refuse_cut_off, trailing

try:
    import polars as pl
except ModuleNotFoundError as problem:
    raise DataError("tables are read with polars; pip install 'apportion[cli]'") from problem

FIRST = 1_000  # rows that show of nearly all columns of texts that these are no dates
SMALL = 1 << 20  # bytes of a file whose types are found each time; those of a larger one are remembered


def read_csv(
    path: Path, dialect: Dialect, texts: Sequence[str] | None, missing: Sequence[str]
) -> pl.LazyFrame:
    """The columns `texts` stay texts, all if that is None; lines without any value at the end are no rows."""
    refuse_twice(path, dialect.separator)
    refuse_cut_off(path, dialect)
    try:
        frame = _read(path, dialect, texts, tuple(missing))
    except (pl.exceptions.ComputeError, pl.exceptions.NoDataError) as problem:
        reason = (str(problem).splitlines() or [""])[0]
        raise DataError(why(path, dialect.separator, reason)) from problem
    if frame.width > 1:
        frame = frame.head(frame.height - min(frame.height, trailing(path, dialect)))
    return frame.rename(_plain_names(path, dialect, frame.columns)).lazy()


def first_texts(path: Path, missing: Sequence[str]) -> pl.DataFrame:
    """The first rows as they are written."""
    dialect = dialect_of(path)
    frame = pl.read_csv(path, infer_schema=False, n_rows=FIRST, **_about(dialect, tuple(missing)))
    return frame.rename(_plain_names(path, dialect, frame.columns))


def _plain_names(path: Path, dialect: Dialect, header: Sequence[str]) -> dict[str, str]:
    """Names that have quotes in them, which a header doubles and polars leaves doubled."""
    if not any('""' in name for name in header):
        return {}
    known = names_of(path, dialect.separator)
    return {name: plain for name in header if (plain := name.replace('""', '"')) != name and plain in known}


def _read(
    path: Path, dialect: Dialect, texts: Sequence[str] | None, missing: tuple[str, ...]
) -> pl.DataFrame:
    about = _about(dialect, missing)
    if texts is None:
        return pl.read_csv(path, infer_schema=False, **about)
    about |= {"decimal_comma": dialect.decimal_comma}
    header = pl.read_csv(path, n_rows=0, **about).columns
    plain = _plain_names(path, dialect, header)
    kept = frozenset(name for name in header if plain.get(name, name) in texts)
    file = path.stat()
    found = _remembered if file.st_size > SMALL else _types
    state = (file.st_size, file.st_mtime_ns, file.st_ctime_ns, file.st_ino)
    types, dates = found(str(path.absolute()), dialect, kept, missing, state)
    frame = pl.read_csv(path, infer_schema=False, schema_overrides=types, **about)
    return frame.with_columns(_dates(path, frame.select(dates))) if dates else frame


def _about(dialect: Dialect, missing: tuple[str, ...]) -> dict[str, Any]:
    told = {"null_values": list(missing), "separator": dialect.separator, "eol_char": dialect.line_end}
    return {**told, "glob": False}


Types = tuple[dict[str, Any], list[str]]


def _types(
    path: str, dialect: Dialect, texts: frozenset[str], missing: tuple[str, ...], state: tuple[int, ...]
) -> Types:
    """The types of the columns, and which texts may be dates: to try it on every text takes minutes.

    A column with one text that is no date stays one of texts, whatever follows; the first rows show most.
    """
    about = _about(dialect, missing) | {"decimal_comma": dialect.decimal_comma}
    about |= {"schema_overrides": dict.fromkeys(texts, pl.String)}
    types = dict(pl.scan_csv(path, infer_schema_length=None, **about).collect_schema())
    left = [name for name, kind in types.items() if kind == pl.String and name not in texts]
    if not left:
        return types, []
    tried = pl.scan_csv(path, infer_schema_length=2 * FIRST, try_parse_dates=True, **about).collect_schema()
    seen = pl.read_csv(path, infer_schema=False, n_rows=FIRST, **_about(dialect, missing))
    empty = [name for name in left if not (seen[name].is_not_null() & (seen[name] != "")).any()]
    return types, [name for name in left if tried[name] != pl.String or name in empty]


_remembered = lru_cache(16)(_types)  # as `fit` reads its table again


def _dates(path: Path, frame: pl.DataFrame) -> list[pl.Series]:
    """Those columns of texts that are dates, or times, in all rows."""
    found = []
    for column in frame:
        file = BytesIO()
        pl.DataFrame({"row": pl.repeat(0, len(column), eager=True), "date": column}).write_csv(file)
        file.seek(0)
        try:
            read = pl.read_csv(file, infer_schema_length=None, try_parse_dates=True)["date"]
        except pl.exceptions.PolarsError as problem:
            remedy = (
                f"write all as 2020-12-25, or --categorical {listed([column.name])} if they are categories"
            )
            what = f"column {column.name!r} has dates or times that are written in several ways"
            raise DataError(f"{path}, {what}: {remedy}") from problem
        if read.dtype.is_temporal():
            found.append(read.alias(column.name))
            first = column.str.extract(r"^\s*(\d{1,2})[-/]\d{1,2}[-/]\d{4}").cast(pl.Int64)
            there = first.is_not_null()
            if there.any() and not (first > 12).any():
                _tell_of_order(path, column.name, column.filter(there)[0])
    return found


@lru_cache(100)  # once, though a table is read several times
def _tell_of_order(path: Path, name: str, text: str) -> None:
    logging.getLogger("apportion").warning(
        "%s, column %r has dates such as %s, and none shows whether the day or the month is first: they are "
        "read as day, month, year; write them as 2020-12-25 if that is wrong", path, name, text,
    )  # fmt: skip

"""CSV, Parquet and Excel files as polars frames, and frames as files.

In a CSV the separator (comma, semicolon, tab or bar) and the decimal mark are found from the file; texts
become numbers, booleans and dates where all values of a column are. Everything else is an error that names
the file and says what to do. Damaged files raise `DataError`, and small files that claim to hold huge tables
are refused before they are read.
"""

import csv
import io
import mmap
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from apportion._untrusted import check_unpacked_size, printable
from apportion._writing import atomic_file
from apportion.errors import ApportionWarning, DataError

TEXT_SUFFIXES = (".csv", ".tsv", ".txt")
PARQUET_SUFFIXES = (".parquet", ".pq")
EXCEL_SUFFIXES = (".xlsx",)
OUTPUT_SUFFIXES = (".csv", *PARQUET_SUFFIXES, *EXCEL_SUFFIXES)
COMPRESSED = (b"\x1f\x8b", b"x\x01", b"x\x9c", b"x\xda", b"\x28\xb5\x2f\xfd")  # polars would unpack these
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # Excel writes it before UTF-8

MAX_COLUMNS = 3_000
MAX_EXCEL = 1 << 28  # bytes in an Excel file, unpacked
MAX_VALUES = 1 << 26  # a file may always claim so many values, half a gigabyte,
MAX_VALUES_PER_BYTE = 200  # and a larger one so many for each of its bytes
MEMORY_OF_POLARS = 1 << 30  # bytes, with its threads and buffers
MEMORY_PER_VALUE = 32  # bytes; a value is read, encoded, predicted and written
MEMORY_PER_ROW = 16  # bytes, of a Parquet file, which is read in pieces
HEAD = 1 << 20  # bytes from which the dialect of a CSV is found
FIRST_ROWS = 1_000  # rows that show, for nearly all columns of texts, that they are not dates


class Dialect(NamedTuple):
    """How a CSV is written."""

    separator: str = ","
    decimal_comma: bool = False


def is_text_file(path: Path) -> bool:
    return path.suffix.lower() in TEXT_SUFFIXES


def read_table(path: Path, *, texts: Sequence[str] | None = (), missing: Sequence[str] = ()) -> pl.LazyFrame:
    """The table in a CSV, Parquet or Excel file. Parquet is read when the frame is collected, others now.

    Of an Excel file it is the first sheet. The columns `texts` of a CSV stay texts, so that 007 does not
    become 7; `None`: all of them. Empty fields are missing, and so are those that read as one of `missing`.
    """
    suffix = path.suffix.lower()
    if suffix not in (*TEXT_SUFFIXES, *PARQUET_SUFFIXES, *EXCEL_SUFFIXES):
        known = ", ".join((*TEXT_SUFFIXES, *PARQUET_SUFFIXES, *EXCEL_SUFFIXES))
        raise DataError(f"{printable(path)} is not a table; its name must end in one of {known}")
    if not path.is_file():
        raise DataError(f"there is no file {printable(path)}")
    _check_memory(path, 0)
    with clean_errors(path):
        if is_text_file(path):
            return _read_csv(path, texts, missing).lazy()
        if suffix in EXCEL_SUFFIXES:
            return _read_excel(path, missing).lazy()
        frame = pl.scan_parquet(path, glob=False)
        n_rows = int(frame.select(pl.len()).collect().item())
        _check_size(path, n_rows, len(frame.collect_schema()))
        return frame


@contextmanager
def clean_errors(path: Path, action: str = "read") -> Iterator[None]:
    """Turn errors and panics of polars, and errors of the system, into one line that names the file."""
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, MemoryError) as problem:
        lines = str(problem)[:1_000].splitlines()
        reason = printable(lines[0]) if lines else type(problem).__name__
        raise DataError(f"{printable(path)} cannot be {action}: {reason}") from problem


def write_table(frame: pl.LazyFrame, path: Path) -> None:
    """Write a table next to its place, then move it there: a failure leaves nothing behind."""
    check_output_suffix(path)
    with atomic_file(path, error=DataError) as temporary, clean_errors(path, "written"):
        if path.suffix.lower() == ".csv":
            frame.sink_csv(temporary)
        elif path.suffix.lower() in EXCEL_SUFFIXES:
            _write_excel(frame.collect(), temporary)
        else:
            frame.sink_parquet(temporary)


def check_output_suffix(path: Path) -> None:
    """Raise DataError for a file of another kind than tables are written to."""
    if path.suffix.lower() not in OUTPUT_SUFFIXES:
        raise DataError(f"{printable(path)} must end in one of {', '.join(OUTPUT_SUFFIXES)}")
    if path.suffix.lower() in EXCEL_SUFFIXES:
        _check_excel_extra("xlsxwriter")


# --- Excel


def _read_excel(path: Path, missing: Sequence[str]) -> pl.DataFrame:
    """The first sheet; cells that read as one of `missing` are missing, and its columns are typed again."""
    _check_excel_extra("fastexcel")
    import fastexcel

    check_unpacked_size(path, MAX_EXCEL, error=DataError)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of types that fastexcel guesses cell by cell
        try:
            frame = pl.read_excel(path, engine="calamine", infer_schema_length=None)
        except (fastexcel.FastExcelError, RuntimeError, ValueError) as problem:
            reason = printable(str(problem).splitlines()[0] if str(problem) else type(problem).__name__)
            raise DataError(f"{printable(path)} cannot be read: {reason}") from problem
    _check_size(path, frame.height, frame.width)
    if not frame.width:
        raise DataError(f"{printable(path)} has no columns in its first sheet")
    for name in frame.columns if missing else ():
        texts = frame[name].cast(pl.String)
        found = texts.is_in(list(missing))
        if found.any():
            kept = pl.DataFrame({name: texts.set(found, None)})
            typed = pl.read_csv(kept.write_csv().encode(), infer_schema_length=None)
            frame = frame.with_columns(typed[name])
    return frame


def _write_excel(frame: pl.DataFrame, path: Path) -> None:
    """One sheet. Texts stay texts: none becomes a formula or a link."""
    import xlsxwriter

    options = {"strings_to_formulas": False, "strings_to_urls": False, "nan_inf_to_errors": True}
    with path.open("wb") as file, xlsxwriter.Workbook(file, options) as workbook:
        frame.fill_nan(None).write_excel(workbook, worksheet="table", autofit=frame.height <= 10_000)


def _check_excel_extra(module: str) -> None:
    try:
        import_module(module)
    except ImportError:
        raise DataError(f"Excel files need {module}; pip install 'apportion[excel]'") from None


def first_texts(path: Path, n_rows: int, missing: Sequence[str] = ()) -> pl.DataFrame:
    """The first rows of a CSV as they are written."""
    with clean_errors(path):
        dialect = csv_dialect(path)
        names = _read_header(path, dialect)
        frame = pl.read_csv(path, infer_schema=False, n_rows=n_rows, **_polars_options(dialect, missing))
        return _rename(frame, names)


def column_names(path: Path) -> list[str]:
    """The names of the columns of a table, without reading its rows."""
    if is_text_file(path) and path.is_file():
        with clean_errors(path):
            return _read_header(path, csv_dialect(path))
    return read_table(path).collect_schema().names()


def _check_size(path: Path, n_rows: int, n_columns: int) -> None:
    """Refuse a small file that claims to be a large table."""
    if n_columns > MAX_COLUMNS:
        what = f"{printable(path)} has {n_columns:,} columns, more than {MAX_COLUMNS:,}"
        raise DataError(f"{what}; select fewer, or pass an array to ProportionClassifier")
    size = path.stat().st_size
    if n_rows * n_columns > max(MAX_VALUES, MAX_VALUES_PER_BYTE * size):
        what = f"{n_rows:,} rows of {n_columns:,} columns in {size:,} bytes"
        raise DataError(f"{printable(path)} claims to hold {what}, which cannot be data")
    in_pieces = path.suffix.lower() in PARQUET_SUFFIXES
    _check_memory(path, MEMORY_PER_ROW * n_rows if in_pieces else MEMORY_PER_VALUE * n_rows * n_columns)


def _check_memory(path: Path, n_bytes: int) -> None:
    """Raise DataError if a limit leaves too little memory: polars would end the process without a word."""
    needed = MEMORY_OF_POLARS + n_bytes
    try:
        mmap.mmap(-1, needed).close()  # only reserved, not used
    except (OSError, ValueError, OverflowError) as problem:
        what = f"{printable(path)} needs about {needed / 2**30:.1f} GiB of memory"
        raise DataError(f"{what}, more than is left; raise the limit, or split the table") from problem


# --- CSV


def _read_csv(path: Path, texts: Sequence[str] | None, missing: Sequence[str]) -> pl.DataFrame:
    dialect = csv_dialect(path)
    names = _read_header(path, dialect)
    _check_size(path, _count_lines(path), len(names))
    _check_end(path, dialect, names)
    options = _polars_options(dialect, missing)
    try:
        if texts is None:
            frame = pl.read_csv(path, infer_schema=False, **options)
        else:
            frame = _read_typed(path, dialect, names, texts, options)
    except (pl.exceptions.ComputeError, pl.exceptions.NoDataError) as problem:
        raise DataError(_explain(path, dialect, len(names), str(problem)[:1_000])) from problem
    if frame.width > 1:
        n_empty = min(frame.height, _count_empty_end(path, dialect))
        frame = frame.head(frame.height - n_empty)
    return _rename(frame, names)


def _rename(frame: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """With the names of the header: polars leaves doubled quotes in them as they are."""
    if frame.width == len(names):
        frame.columns = [name or known for name, known in zip(names, frame.columns, strict=True)]
    return frame


def csv_dialect(path: Path) -> Dialect:
    """The separator and the decimal mark of a CSV. Files that are not UTF-8 text are refused."""
    with path.open("rb") as file:
        head = file.read(HEAD)
    if head.startswith(COMPRESSED):
        raise DataError(f"{printable(path)} is compressed; unpack it first")
    header = _first_line(head.removeprefix(BYTE_ORDER_MARK))
    try:
        header.decode()
        is_text = b"\0" not in header
    except UnicodeDecodeError:
        is_text = False
    if not is_text:
        raise DataError(f"{printable(path)} is not UTF-8 text; save it as 'CSV UTF-8'")
    separator = _find_separator(head, [mark for mark in ",;\t|" if mark.encode() in header])
    return Dialect(separator, separator != "," and _has_decimal_commas(head, separator))


def _first_line(head: bytes) -> bytes:
    """Up to the first line break outside of quotes, without what is quoted."""
    return re.sub(rb'"[^"]*"', b"", head).partition(b"\n")[0].rstrip(b"\r")


def _find_separator(head: bytes, candidates: list[str]) -> str:
    """Of several marks in a header, the one that divides the following lines into as many fields."""
    if len(candidates) < 2:
        return candidates[0] if candidates else ","
    text = head.removeprefix(BYTE_ORDER_MARK).decode(errors="replace")
    n_fields = {}
    for mark in candidates:
        with suppress(csv.Error):
            rows = islice(csv.reader(io.StringIO(text, newline=""), delimiter=mark), 50)
            widths = {len(row) for row in rows if row}
            if len(widths) == 1:
                n_fields[mark] = widths.pop()
    if not n_fields:
        return candidates[0]
    return max(n_fields, key=lambda mark: n_fields[mark])


def _has_decimal_commas(head: bytes, separator: str) -> bool:
    """Whether some fields are numbers with a comma in them, and none is a number with a point."""
    edge = re.escape(separator.encode())
    number = rb"(?:^|" + edge + rb')"?[+-]?\d*%b\d+"?(?=' + edge + rb"|\r?$)"
    commas = re.search(number % b",", head, re.MULTILINE)
    points = re.search(number % rb"\.", head, re.MULTILINE)
    return commas is not None and points is None


def _read_header(path: Path, dialect: Dialect) -> list[str]:
    """The names of the columns, each of which must be there once."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            rows = csv.reader(file, delimiter=dialect.separator)
            names = next((row for row in rows if row), [])
    except csv.Error as problem:  # such as a field longer than Python's reader takes
        raise DataError(
            f"{printable(path)} cannot be read: its header is no line of names: {problem}"
        ) from None
    for name, count in Counter(names).items():
        if name and count > 1:
            what = f"{printable(path)} has {count} columns {printable(repr(name))}"
            raise DataError(f"{what}; give them different names, or leave all but one out")
    return names


def _count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return 1 + sum(part.count(b"\n") for part in iter(lambda: file.read(1 << 20), b""))


def _check_end(path: Path, dialect: Dialect, names: Sequence[str]) -> None:
    """Refuse a file whose last line lacks both fields and its end: it was cut off."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - HEAD))
        _, line_break, line = file.read().rpartition(b"\n")
    if not line_break or not line.strip(b" \t\r" + dialect.separator.encode()) or line.count(b'"') % 2:
        return  # with an odd number of quotes the line began in an earlier one
    with suppress(csv.Error):
        fields = next(csv.reader([line.decode(errors="replace")], delimiter=dialect.separator))
        named = [name for name in names if name.strip()]  # a separator after the last name makes no column
        if len(fields) < len(named):
            what = f"its last line has {len(fields)} fields and the header {len(named)}"
            raise DataError(f"{printable(path)} is cut off: {what}; copy it again, or end that line")


def _polars_options(dialect: Dialect, missing: Sequence[str]) -> dict[str, Any]:
    return {"separator": dialect.separator, "null_values": list(missing), "glob": False}


def _read_typed(
    path: Path, dialect: Dialect, names: Sequence[str], texts: Sequence[str], options: dict[str, Any]
) -> pl.DataFrame:
    """A CSV with the type of each column found from all of its rows."""
    typed = options | {"decimal_comma": dialect.decimal_comma}
    header = pl.read_csv(path, n_rows=0, **typed).columns
    plain = dict(zip(header, names, strict=True)) if len(header) == len(names) else {}
    kept = [name for name in header if plain.get(name, name) in texts]
    overrides = {"schema_overrides": dict.fromkeys(kept, pl.String)}
    types = dict(pl.scan_csv(path, infer_schema_length=None, **typed, **overrides).collect_schema())
    left = [name for name, dtype in types.items() if dtype == pl.String and name not in kept]
    candidates = _date_candidates(path, left, typed | overrides, options) if left else []
    frame = pl.read_csv(path, infer_schema=False, schema_overrides=types, **typed)
    return frame.with_columns(_parse_dates(path, frame[name]) for name in candidates)


def _date_candidates(
    path: Path, names: Sequence[str], typed: dict[str, Any], options: dict[str, Any]
) -> list[str]:
    """Columns of texts whose first rows are all dates, or all empty: to parse the others takes minutes."""
    schema = pl.scan_csv(
        path, infer_schema_length=2 * FIRST_ROWS, try_parse_dates=True, **typed
    ).collect_schema()
    first = pl.read_csv(path, infer_schema=False, n_rows=FIRST_ROWS, **options)
    empty = [name for name in names if not (first[name].is_not_null() & (first[name] != "")).any()]
    return [name for name in names if schema[name] != pl.String or name in empty]


def _parse_dates(path: Path, column: pl.Series) -> pl.Series:
    """The column as dates or times if all of its texts are, else as it is."""
    file = io.BytesIO()
    pl.DataFrame({"row": pl.repeat(0, len(column), eager=True), "date": column}).write_csv(file)
    file.seek(0)
    try:
        dates = pl.read_csv(file, infer_schema_length=None, try_parse_dates=True)["date"]
    except pl.exceptions.PolarsError as problem:
        what = f"{printable(path)}, column {printable(repr(column.name))}, has dates in several formats"
        raise DataError(
            f"{what}; write all as 2020-12-25, or name the column with --categorical"
        ) from problem
    if not dates.dtype.is_temporal():
        return column
    first = column.str.extract(r"^\s*(\d{1,2})[-/]\d{1,2}[-/]\d{4}").cast(pl.Int64)
    if first.is_not_null().any() and not (first > 12).any():
        example = column.filter(first.is_not_null())[0]
        warnings.warn(
            f"{printable(path)}, column {printable(repr(column.name))}, has dates such as {example}, read as "
            "day, month, year; if the month is first, write them as 2020-12-25",
            ApportionWarning,
            stacklevel=2,
        )
    return dates.alias(column.name)


def _count_empty_end(path: Path, dialect: Dialect) -> int:
    """The lines at the end that have nothing but separators, as spreadsheets leave them."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - HEAD))
        lines = file.read().replace(b"\r\n", b"\n").removesuffix(b"\n").split(b"\n")
    separator = dialect.separator.encode()
    n_empty = 0
    for line in reversed(lines):
        if line.strip(separator):
            break
        n_empty += 1
    return n_empty


def _explain(path: Path, dialect: Dialect, width: int, reason: str) -> str:
    """Why polars cannot read a CSV, with what to do about it where that is known."""
    reason = printable(reason.splitlines()[0]) if reason else "the file is damaged"
    if "utf-8" in reason.lower():
        return f"{printable(path)} is not UTF-8 text; save it as 'CSV UTF-8'"
    if "more fields" not in reason:
        hint = (
            "; close the double quote that is open there" if "quote" in reason or 'parse `"' in reason else ""
        )
        return f"{printable(path)} cannot be read: {reason}{hint}"
    row, n_fields = _first_long_row(path, dialect, width)
    where = f"row {row} has {n_fields} fields, the header {width}" if row else reason
    hint = f"put double quotes around values that have {dialect.separator!r} in them"
    return f"{printable(path)} cannot be read: {where}; {hint}"


def _first_long_row(path: Path, dialect: Dialect, width: int) -> tuple[int, int]:
    """The number of the first row with more fields than the header, and how many; zeros if there is none."""
    with path.open(encoding="utf-8", errors="replace", newline="") as file, suppress(csv.Error):
        for number, row in enumerate(csv.reader(file, delimiter=dialect.separator)):
            if len(row) > width:
                return number, len(row)
    return 0, 0

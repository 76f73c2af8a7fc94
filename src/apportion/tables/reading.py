"""CSV and Parquet files as lazy frames: how texts become values, and what is too much to be read."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from apportion.errors import DataError
from apportion.tables.asking import Asked
from apportion.tables.dialect import Dialect, dialect_of, is_csv
from apportion.tables.lines import claimed
from apportion.tables.texts import pl, read_csv
from apportion.tables.trial import tried

BATCH = 250_000  # rows held at once while a table is gone through
ENDINGS = (".csv", ".parquet", ".pq")  # of tables that are written
READ = (".csv", ".tsv", ".txt", ".parquet", ".pq")
PACKED = (".gz", ".zip", ".bz2", ".xz", ".zst")
WIDEST = 3_000  # columns
ALWAYS = 1 << 26  # values that are never too many: half a gigabyte
A_BYTE = 200  # values for each byte of the file, where there are more
ROW = "\0row"  # no user's column has this name

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def plainly(what: str) -> Iterator[None]:
    """Errors of polars and of the system, panics among them, as one line of ours."""
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as problem:
        reason = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise DataError(f"{what}: {reason}") from problem


def of_table(work: Callable[Concatenate[Asked, P], T]) -> Callable[Concatenate[Asked, P], T]:
    """Parquet is read late: what goes through a table may find at any place that it is damaged."""

    @wraps(work)
    def told(asked: Asked, *rest: P.args, **named: P.kwargs) -> T:
        with plainly(f"{asked.table} cannot be read"):
            return work(asked, *rest, **named)

    return told


def open_table(path: Path, *, texts: Sequence[str] | None = (), missing: Sequence[str] = ()) -> pl.LazyFrame:
    """A table. Parquet is read as it is gone through, CSV at once.

    Of a CSV the columns `texts` stay texts, so that 007 is not 7; None leaves all so. Empty fields are
    missing, and so are those that read as one of `missing`; lines without any value at its end are no rows.
    """
    ending = ".csv" if is_csv(path) else check_ending(path, READ)
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    with plainly(f"{path} cannot be read as {ending[1:]}"):
        dialect = dialect_of(path) if ending == ".csv" else Dialect()
        _check_size(path, ending, dialect)
        frame = (
            read_csv(path, dialect, texts, missing) if ending == ".csv" else pl.scan_parquet(path, glob=False)
        )
        frame.collect_schema()
    return frame


def _check_size(path: Path, ending: str, dialect: Dialect) -> None:
    """A small file that claims a large table is refused before any of it is read."""
    most, problem = max(ALWAYS, A_BYTE * path.stat().st_size), ""
    if ending == ".csv":
        rows, columns = claimed(path, dialect)
    else:
        rows, columns, problem = tried(path, most)
    if problem:
        raise DataError(f"{path} cannot be read as {ending[1:]}: {problem}")
    if columns > WIDEST:
        remedy = "give fewer, or an array to ProportionClassifier"
        raise DataError(f"{path} has {columns:,} columns, more than {WIDEST:,}: {remedy}")
    if rows * columns > most:
        size = f"{rows:,} rows of {columns:,} columns in {path.stat().st_size:,} bytes"
        raise DataError(f"{path} has {size}, as no table of people has; write it anew if it is one")


def save_table(frame: pl.LazyFrame, path: Path) -> None:
    """Write a table beside its place, then move it there: a failure leaves nothing behind."""
    from apportion._untrusted import atomic_file

    ending = check_ending(path)
    with atomic_file(path, error=DataError) as beside, plainly(f"{path} cannot be written"):
        if ending == ".csv":
            frame.sink_csv(beside)
        else:
            frame.sink_parquet(beside)


def check_ending(path: Path, known: Sequence[str] = ENDINGS) -> str:
    """The ending of a table's name, in lower case: one of those that are written, or else `known`."""
    if path.suffix.lower() not in known:
        remedy = "unpack it first" if path.suffix.lower() in PACKED else "these are the tables that are known"
        raise DataError(f"{path} does not end in {', '.join(known)}; {remedy}")
    return path.suffix.lower()


def batches(frame: pl.LazyFrame, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    """The rows of some columns in their order, a batch at a time; fewer than the table has are an error."""
    left = int(frame.select(pl.len()).collect().item())
    for part in frame.select(columns).collect_batches(chunk_size=BATCH, maintain_order=True):
        left -= part.height
        yield part
    if left:  # polars keeps a panic of the threads that read to itself, and ends early
        raise DataError(f"the table ends {left} rows before its end; it is damaged")


def numbered_rows(frame: pl.LazyFrame) -> pl.LazyFrame:
    """The table with a first column that counts its rows from one."""
    return frame.with_row_index(ROW, offset=1)

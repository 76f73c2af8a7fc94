"""CSV and Parquet files as lazy frames; the only rule here is how texts become values."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from apportion.tables.columns import TableError

try:
    import polars as pl
except ModuleNotFoundError as problem:
    raise TableError("tables are read with polars; pip install 'apportion[tables]'") from problem

BATCH = 250_000  # rows held at once while a table is gone through
ENDINGS = (".csv", ".parquet", ".pq")


def open_table(path: Path, *, texts: Sequence[str] | None = (), missing: Sequence[str] = ()) -> pl.LazyFrame:
    """A table. Parquet is read as it is gone through, CSV at once.

    Of a CSV the columns `texts` stay texts, so that 007 is not 7; None leaves all so. Empty fields are
    missing, and so are those that read as one of `missing`.
    """
    ending = check_ending(path)
    if not path.is_file():
        raise TableError(f"there is no file {path}")
    try:
        if ending != ".csv":
            frame = pl.scan_parquet(path, glob=False)
        elif texts is None:
            frame = pl.read_csv(path, null_values=list(missing), infer_schema=False, glob=False).lazy()
        else:
            there = set(texts) & set(pl.read_csv(path, n_rows=0, glob=False).columns)
            frame = pl.read_csv(
                path, null_values=list(missing), infer_schema_length=None, try_parse_dates=True,
                schema_overrides=dict.fromkeys(there, pl.String), glob=False,
            ).lazy()  # fmt: skip
        frame.collect_schema()
    except (pl.exceptions.PolarsError, OSError) as problem:
        reason = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise TableError(f"{path} cannot be read as {ending[1:]}: {reason}") from problem
    return frame


def save_table(frame: pl.LazyFrame, path: Path) -> None:
    """Write a table beside its place, then move it there: a failure leaves nothing behind."""
    beside = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if check_ending(path) == ".csv":
            frame.sink_csv(beside)
        else:
            frame.sink_parquet(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def check_ending(path: Path) -> str:
    """The ending of a table's name, in lower case."""
    if path.suffix.lower() not in ENDINGS:
        raise TableError(f"{path} does not end in {', '.join(ENDINGS)}; these are the tables that are known")
    return path.suffix.lower()


def batches(frame: pl.LazyFrame, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    """The rows of some columns in their order, a batch at a time."""
    return iter(frame.select(columns).collect_batches(chunk_size=BATCH, maintain_order=True))


def numbered_rows(frame: pl.LazyFrame) -> pl.LazyFrame:
    """The table with a first column that counts its rows from one."""
    return frame.with_row_index(ROW, offset=1)


ROW = "\0row"  # no user's column has this name

"""Parquet is decoded by native code that ends its process on some damaged files, so it is tried apart first.

As a script this is the other process: a path goes in, how large the table is and what is wrong with it come
out, a line each. It imports nothing of this package, so that it starts quickly.
"""

import atexit
import json
import select
import subprocess
import sys
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

SMALL = 1 << 20  # bytes of a file that is tried each time; of a larger one the answer is remembered
ROOM = 4 << 30  # bytes of memory that a trial may take, beside some for each byte of the file


class Tried(NamedTuple):
    rows: int
    columns: int
    problem: str  # what keeps the file from being read, in one line; empty where nothing does


def tried(path: Path, most: int) -> Tried:
    """A Parquet file, read in another process; one of more than `most` values is not read, only counted."""
    about = path.stat()
    if about.st_size <= SMALL:
        return _tried(str(path.absolute()), about.st_size, most)
    return _remembered(str(path.absolute()), about.st_size, most, about.st_mtime_ns)


@lru_cache(16)
def _remembered(path: str, size: int, most: int, changed: int) -> Tried:
    return _tried(path, size, most)


def _tried(path: str, size: int, most: int) -> Tried:
    process = _other()
    if process.stdin is None or process.stdout is None:
        raise ValueError("the other process has no pipes")
    try:
        process.stdin.write(json.dumps([path, size, most]) + "\n")
        process.stdin.flush()
        there, _, _ = select.select([process.stdout], [], [], 60 + size / 1e6)
        line = process.stdout.readline() if there else ""
    except OSError:
        line = ""
    if line:
        return Tried(*json.loads(line))
    end()
    return Tried(0, 0, "its reader crashed, ran out of memory or did not come to an end; it is damaged")


@cache
def _other() -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603  this very file
        [sys.executable, "-W", "ignore", __file__],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip


def end() -> None:
    """End the other process, if there is one; the next trial starts another."""
    if _other.cache_info().currsize:
        _other().kill()
        _other().communicate()
        _other.cache_clear()


atexit.register(end)


def serve() -> None:
    """Answer until the input ends."""
    import polars as pl

    known = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError, ArithmeticError)
    for line in sys.stdin:
        path, size, most = json.loads(line)
        _limit(ROOM + 8 * size)
        rows, columns, said = 0, 0, ""
        try:
            frame = pl.scan_parquet(path, glob=False)
            columns, rows = len(frame.collect_schema()), int(frame.select(pl.len()).collect().item())
            if rows * columns <= most:
                seen = sum(part.height for part in frame.collect_batches(maintain_order=True))
                # polars keeps a panic of the threads that read to itself, and ends early
                said = "" if seen == rows else f"it has {seen} of the {rows} rows that it speaks of"
        except known as problem:
            said = (str(problem).splitlines() or [""])[0] or type(problem).__name__
        sys.stdout.write(json.dumps([rows, columns, said]) + "\n")
        sys.stdout.flush()


def _limit(size: int) -> None:
    try:
        import resource
    except ImportError:  # on Windows the memory is not limited
        return
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.getrlimit(resource.RLIMIT_AS)[1]))


if __name__ == "__main__":
    serve()

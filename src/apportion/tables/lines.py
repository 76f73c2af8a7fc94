"""The lines of a CSV: how many there are, those without a value at its end, a last one that was cut off."""

import csv
from contextlib import suppress
from pathlib import Path

from apportion.errors import DataError
from apportion.tables.dialect import HEAD, Dialect, names_of


def claimed(path: Path, dialect: Dialect) -> tuple[int, int]:
    """The lines of a CSV, and the columns of its first: short lines are filled up with missing values."""
    end = dialect.line_end.encode()
    with path.open("rb") as file:
        first, _, rest = file.read(1 << 22).partition(end)
        lines = 1 + rest.count(end)
        while part := file.read(1 << 20):
            lines += part.count(end)
    return lines, 1 + first.count(dialect.separator.encode())


def trailing(path: Path, dialect: Dialect) -> int:
    """The lines without any value at the end of a CSV, as spreadsheets leave them: nothing but separators."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - HEAD))
        text = file.read().replace(b"\r\n", b"\n").removesuffix(dialect.line_end.encode())
    lines, mark = text.split(dialect.line_end.encode()), dialect.separator.encode()
    return next((i for i, line in enumerate(reversed(lines)) if line.strip(mark)), 0)


def refuse_cut_off(path: Path, dialect: Dialect) -> None:
    """A last line that lacks fields and its end: what wrote the file was stopped.

    Lines that lack fields are read elsewhere, with gaps in their last columns, as some programs leave those
    out. A line with an odd number of quotes began in a line before it, and says nothing.
    """
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - HEAD))
        _, end, line = file.read().rpartition(dialect.line_end.encode())
    if not end or not line.strip(b"\x1a \t\r" + dialect.separator.encode()) or line.count(b'"') % 2:
        return
    named = [i for i, name in enumerate(names_of(path, dialect.separator), 1) if name.strip()]
    fields, width = 0, max(named, default=0)  # a separator after the last name makes no column
    with suppress(csv.Error):  # a field that is too long for Python's reader
        fields = len(next(csv.reader([line.decode(errors="replace")], delimiter=dialect.separator)))
    if 0 < fields < width:
        what = f"it ends within a row: the last line has {fields} fields, the header {width}"
        remedy = "copy the file anew, or end that line if it is whole"
        raise DataError(f"{path} cannot be read as csv: {what}; {remedy}")

"""How a CSV is written: commas, semicolons, tabs or bars between its fields, points or commas in its numbers.

The header decides the first: a comma outside of quotes makes it an ordinary CSV, unless another mark alone
gives the lines below as many fields. Files that are no UTF-8 text are refused with the line that makes them
such.
"""

import csv
import re
from collections import Counter
from contextlib import suppress
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from apportion.errors import DataError

HEAD = 1 << 20  # bytes that are looked at
LINES = 50  # that say what separates
PACKED = (b"\x1f\x8b", b"x\x01", b"x\x9c", b"x\xda", b"\x28\xb5\x2f\xfd")  # what polars would unpack
MARK = b"\xef\xbb\xbf"  # before UTF-8, as Excel writes it
QUOTE = "close the double quote that is open there, or double it"
WIDE = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


class Dialect(NamedTuple):
    separator: str = ","
    decimal_comma: bool = False
    line_end: str = "\n"


def is_csv(path: Path) -> bool:
    """Whether a table is a text; what parts its columns is found out, whatever its name ends in."""
    return path.suffix.lower() in (".csv", ".tsv", ".txt")


def dialect_of(path: Path) -> Dialect:
    """The dialect of a CSV; an error where it is compressed or its header is no UTF-8."""
    with path.open("rb") as file:
        head = file.read(HEAD)
    if head.startswith(PACKED):
        raise DataError(f"{path} is compressed; unpack it first")
    bare = re.sub(rb'"[^"]*"', b"", head.removeprefix(MARK))
    line_end = "\r" if b"\r" in bare and b"\n" not in bare else "\n"  # as programs of old Macs write it
    header = bare.partition(line_end.encode())[0].rstrip(b"\r")
    if b"\0" in header or head.startswith(tuple(WIDE)):
        raise DataError(recode(path, WIDE.get(head[:2], "utf-16-le")))
    try:
        header.decode()
    except UnicodeDecodeError:
        raise DataError(recode(path, "cp1252")) from None
    if re.fullmatch(rb"sep=.", header):
        raise DataError(f"{path} begins with a line {header.decode()!r} for Excel; delete that line")
    separator = _separator(head, [mark for mark in ",;\t|" if mark.encode() in header])
    decimal_comma = separator != "," and _has_decimal_commas(head.replace(b"\r", b"\n"), separator)
    return Dialect(separator, decimal_comma, line_end)


def _separator(head: bytes, marks: list[str]) -> str:
    """Of several marks in a header the one that gives the lines below as many fields, and most of them."""
    found, text = {}, head.removeprefix(MARK).decode(errors="replace")
    for mark in marks if len(marks) > 1 else []:
        with suppress(csv.Error):
            rows = islice(csv.reader(StringIO(text, newline=""), delimiter=mark), LINES)
            widths = [len(row) for row in rows if row]
            if len(widths) > 1 and len(set(widths)) == 1:
                found[mark] = widths[0]
    return max(found, key=found.__getitem__) if found else (marks or [","])[0]


def names_of(path: Path, separator: str) -> list[str]:
    """The names in the header; none where one is too long for Python's reader."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file, suppress(csv.Error):
        return next((row for row in csv.reader(file, delimiter=separator) if row), [])
    return []


def refuse_twice(path: Path, separator: str) -> None:
    """A header that stands twice, of which the reader would rename the second and say nothing."""
    for name, times in Counter(names_of(path, separator)).items():
        if name and times > 1:
            raise DataError(f"{path} has {times} columns {name!r}; name each once, or leave all but one out")


def _has_decimal_commas(head: bytes, separator: str) -> bool:
    """Whether fields are numbers with a comma in them, and none is a number with a point."""
    edge = re.escape(separator.encode())
    number = rb"(?:^|" + edge + rb')"?[+-]?\d*%b\d+"?(?=' + edge + rb"|\r?$)"
    commas, points = (re.search(number % mark, head, re.MULTILINE) for mark in (b",", rb"\."))
    return commas is not None and points is None


def recode(path: Path, encoding: str) -> str:
    """What a file is that is no UTF-8, and the line that writes it anew."""
    name = {"cp1252": "Latin-1 or Windows-1252 perhaps"}.get(encoding, encoding.upper())
    new = path.with_name(f"{path.stem}-utf8{path.suffix}")
    program = f"from pathlib import Path as P; P({str(new)!r}).write_text(P({str(path)!r})"
    line = f'python -c "{program}.read_text({encoding!r}), {"utf-8"!r})"'
    return f"{path} is not UTF-8 but {name}; save it as 'CSV UTF-8', or write it anew: {line}"


def why(path: Path, separator: str, reason: str) -> str:
    """The reader's reason why a CSV cannot be read, in a user's words with a remedy where there are some."""
    if "utf-8" in reason.lower():
        return recode(path, "cp1252")
    if "more fields" not in reason:
        known = {"malformed": QUOTE, 'parse `"': QUOTE, "empty": "it has no header; write it anew"}
        remedy = next((f"; {each}" for word, each in known.items() if word in reason), "")
        return f"{path} cannot be read as csv: {reason}{remedy}"
    row, fields, width = _widest(path, separator)
    where = f"row {row}, has {fields} fields where the header has {width}" if row else reason
    remedy = f"put values that have {separator!r} in them between double quotes, names in the header too"
    remedy = "delete the first line, if it is no header" if row and width == 1 else remedy
    return f"{path} cannot be read as csv: {where}; {remedy}"


def _widest(path: Path, separator: str) -> tuple[int, int, int]:
    """The first row with more fields than the header, their number, and the header's; zeros for none."""
    try:
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            rows = csv.reader(file, delimiter=separator)
            width = len(next(rows, []))
            return next(
                ((i, len(row), width) for i, row in enumerate(rows, 1) if len(row) > width), (0, 0, 0)
            )
    except csv.Error:  # a field that is too long for Python's reader
        return 0, 0, 0

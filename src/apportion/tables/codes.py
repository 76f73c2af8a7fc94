"""Numbers of a CSV that may be codes or dates: 0765 reads as 765, and 20201225 as twenty millions."""

from collections.abc import Sequence
from pathlib import Path

from apportion.tables.asking import SHOWN, listed
from apportion.tables.dialect import is_csv
from apportion.tables.texts import first_texts, pl

DAY = r"^(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])$"


def codes(path: Path, names: Sequence[str], missing: Sequence[str] = ()) -> list[str]:
    """Notes on columns of numbers whose first texts begin with a zero, or are all days without hyphens."""
    if not is_csv(path) or not names:
        return []
    texts, notes = first_texts(path, missing), []
    columns = {name: texts[name].drop_nulls().str.strip_chars() for name in names if name in texts.columns}
    zeros = {name: found[0] for name, column in columns.items() if len(found := _like(column, r"^0\d+$"))}
    if zeros:
        what = f"{_listed(zeros)} begin with a zero, which numbers lose"
        notes.append(f"{what}: --categorical {listed(zeros)} if they are codes")
    days = {name: column[0] for name, column in columns.items() if 0 < len(column) == len(_like(column, DAY))}
    if days:
        notes.append(f"{_listed(days)} are taken as numbers: write 20201225 as 2020-12-25 if they are dates")
    return notes


def _like(column: pl.Series, pattern: str) -> pl.Series:
    return column.filter(column.str.contains(pattern))


def _listed(examples: dict[str, str]) -> str:
    cases = [f"{text!r} in column {name!r}" for name, text in examples.items()]
    more = f" and {len(cases) - SHOWN:,} more columns" if len(cases) > SHOWN else ""
    return f"texts such as {', '.join(cases[:SHOWN])}{more}"

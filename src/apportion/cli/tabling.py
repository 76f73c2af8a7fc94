"""The options by which commands are told about tables."""

import csv
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from apportion.tables.asking import Asked

Table = Annotated[Path, typer.Argument(help="CSV or Parquet, a row an instance.")]
Bag = Annotated[str, typer.Option(metavar="COLUMN", help="The column that names each row's bag.")]
Proportions = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A row a bag: the column of the bags and one a class.")
]
Counts = Annotated[Path | None, typer.Option(metavar="FILE", help="The same with whole numbers.")]
Shares = Annotated[
    str, typer.Option(metavar="A,B", help="Columns of TABLE that repeat their bag's shares on every row.")
]
Key = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="The bags' column in FILE, where it is named otherwise.")
]
Classes = Annotated[
    str,
    typer.Option(metavar="A,B", help='The classes\' columns in FILE; all, if not given. "A, b" has a comma.'),
]
Drop = Annotated[str, typer.Option(metavar="A,B", help="Columns of TABLE that are no features.")]
Categorical = Annotated[
    str, typer.Option(metavar="A,B", help="Columns that are categories though they look like numbers.")
]
Missing = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT", help="A text of a CSV that means missing, as an empty field does; repeatable."
    ),
]
Normalise = Annotated[
    bool, typer.Option("--normalise", help="Rescale shares, or counts of a larger group, to sum to one.")
]
Noise = Annotated[
    str, typer.Option(metavar="DEVIATION", help="Of the error of each number, or 'estimate' (for counts).")
]
Unlabelled = Annotated[
    bool, typer.Option("--unlabelled", help="Take bags without a row in FILE, or without numbers in it.")
]
Fill = Annotated[
    bool, typer.Option("--fill", help="Give classes without a number what is left of their bag.")
]
Given = Annotated[
    str, typer.Option(metavar="COLUMN", help="Of TABLE: the class of a few rows, empty in all others.")
]


def asked(
    table: Path, bag: str, proportions: Path | None, counts: Path | None, shares: str, key: str | None,
    classes: str, drop: str, categorical: str, missing: list[str] | None, normalise: bool,
    noise: str, unlabelled: bool, fill: bool = False, given: str = "",
) -> "Asked":  # fmt: skip
    from apportion.tables.asking import Asked

    if noise and noise != "estimate" and not re.fullmatch(r"[0-9]*\.?[0-9]+", noise):
        raise typer.BadParameter(f"--noise is {noise!r}; give a standard deviation, such as 1.5, or estimate")
    lists = (_list(text) for text in (shares, classes, drop, categorical))
    shared, named, dropped, categories = lists
    return Asked(
        table,
        bag,
        proportions,
        counts,
        shared,
        key,
        named,
        dropped,
        categories,
        tuple(missing or ()),
        normalise,
        noise,
        unlabelled,
        fill,
        given,
    )


def check_apart(outputs: Iterable[Path | None], inputs: Iterable[Path | None]) -> None:
    """Refuse to write over what is read, by whatever name or link, and two results in one place."""
    from apportion.tables.columns import TableError

    seen = [path for path in inputs if path is not None]
    for out in (path for path in outputs if path is not None):
        for path in seen:
            there = out.exists() and path.exists()
            if out.samefile(path) if there else out.resolve() == path.resolve():
                same = f"{out} would be written over {path}" if path != out else f"{out} would be overwritten"
                raise TableError(f"{same}, which this command reads or writes too; name another file")
        seen.append(out)


def _list(text: str) -> tuple[str, ...]:
    """Names between commas; one that has a comma stands in double quotes, as in a CSV."""
    names = next(csv.reader([text], skipinitialspace=True), [])
    return tuple(name.strip() for name in names if name.strip())

"""What a user says of the tables, and what a check has found in them."""

import csv
from collections.abc import Iterable
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from apportion.tables.columns import Column

SHOWN = 3  # cases named of each thing that is wrong


@dataclass(frozen=True)
class Asked:
    """The two tables, or the one, and how to read them. One of proportions, counts and shares is given."""

    table: Path  # a row an instance
    bag: str  # its column with the names of the bags
    proportions: Path | None = None  # a row a bag, a column a class
    counts: Path | None = None  # the same with whole numbers
    shares: tuple[str, ...] = ()  # columns of the table itself: the proportions of each row's bag
    key: str | None = None  # the bags' column in the second table, where its name is another
    classes: tuple[str, ...] = ()  # the columns of the classes; all others of the second table, if empty
    drop: tuple[str, ...] = ()  # columns that are no features
    categorical: tuple[str, ...] = ()  # columns that are categories whatever they look like
    missing: tuple[str, ...] = ()  # texts that mean a missing value in a CSV
    normalize: bool = False  # rescale shares or counts that do not sum to one or to the size of the bag
    noise: str = ""  # deviation of the error of each number, or "estimate"; such numbers may be negative
    unlabeled: bool = False  # bags whose numbers are all missing are taken
    fill: bool = False  # classes whose numbers are missing have what is left of their bag
    given: str = ""  # a column of the table that gives the class of a few rows and is empty in all others
    beside: tuple[str, ...] = ()  # columns of bags of other groupings, about which is asked beside this one
    keep: tuple[str, ...] = ()  # columns of bags that are features all the same
    image: str = ""  # a column of the table that names a file a row: these images alone are learned from
    pixels: int = 0  # height and width to which these are resized; if 0, all must have one size

    @property
    def texts(self) -> tuple[str, ...]:
        """Columns that stay texts in a CSV, whatever they look like."""
        return (self.bag, *self.beside, self.given, self.image, *self.categorical)


@dataclass(frozen=True)
class Found:
    """A check's findings; what follows `problems` can be used only where there is none."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    kinds: dict[str, str] = field(default_factory=dict)  # of the feature columns, in the table's order
    names: Any = ()  # (m,) a polars series: the sorted names of the bags, as the table has them
    sizes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # (m,)
    shares: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))  # (m, k)
    classes: tuple[str, ...] = ()
    image: Column | None = None  # how files become images, where these are learned from


def listed(names: Iterable[str]) -> str:
    """Names as an option takes several: between commas, in quotes where one has a comma, and for a shell."""
    line = StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return quote(line.getvalue())


def folded(notes: list[str], what: str) -> list[str]:
    """Notes of one kind on columns: the first few, and how many more columns there are."""
    more = len(notes) - SHOWN
    return notes if more < 1 else [*notes[:SHOWN], f"and {more:,} more column{'s' * (more > 1)} {what}"]


def told(cases: Iterable[str], n: int, remedy: str) -> str:
    """One line for a thing that is wrong in n cases: the first few of them, how many more, what to do."""
    more = f"; and {n - SHOWN:,} more" if n > SHOWN else ""
    return f"{'; '.join(list(cases)[:SHOWN])}{more}: {remedy}"

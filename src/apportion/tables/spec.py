"""What a user asks of a table, and what a check reports about it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal

from apportion._untrusted import printable
from apportion.bags.problems import Problem
from apportion.errors import DataError

SHOWN = 3  # cases named of each kind of problem


@dataclass(frozen=True)
class BagColumn:
    """A column that names the bag of each row, and the file with the proportions of these bags."""

    name: str
    file: Path | None = None  # one row per bag, one column per class; None: `TableSpec.shares`
    key: str | None = None  # the column of the bags in `file`, if it has another name there
    std: float | Literal["estimate"] | None = None  # of the error of each number in `file`


@dataclass(frozen=True)
class TableSpec:
    """A table, the proportions of its bags, and how to read them. Fields are options of the command line."""

    table: Path
    bags: tuple[BagColumn, ...]  # more than one: several groupings of the same rows
    kind: Literal["shares", "percent", "counts"] = "shares"
    shares: tuple[str, ...] = ()  # columns of the table itself that repeat the shares of each row's bag
    classes: tuple[str, ...] = ()  # columns of the classes; by default all other columns of the file
    normalize: bool = False
    missing_bags: Literal["error", "allow"] = "error"
    missing_cells: Literal["error", "impute"] = "error"
    rest: str | None = None
    known_labels: str | None = None  # a column with the class of a few rows, empty in all others
    weight: str | None = None  # a column with the weight of each row in its bag
    drop: tuple[str, ...] = ()  # columns that are not features
    categorical: tuple[str, ...] = ()  # columns that are categories although they look like numbers
    keep: tuple[str, ...] = ()  # columns of bags that are features, too
    missing: tuple[str, ...] = ()  # texts of a CSV that mean a missing value
    image: str | None = None  # a column that names an image file per row: only these are learned from
    pixels: int | None = None  # height and width to which images are resized

    @property
    def bag_names(self) -> tuple[str, ...]:
        return tuple(bag.name for bag in self.bags)

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Columns of a CSV that stay texts, whatever they look like."""
        others = tuple(name for name in (self.known_labels, self.image) if name is not None)
        return (*self.bag_names, *others, *self.categorical)

    @property
    def used_columns(self) -> tuple[str, ...]:
        """Columns with a role other than feature."""
        others = tuple(name for name in (self.known_labels, self.image, self.weight) if name is not None)
        return (*self.bag_names, *others, *self.shares)


@dataclass
class CheckReport:
    """The findings of a check. Problems that share a hint are grouped: the first cases, and how many."""

    notes: list[str] = field(default_factory=list)
    kinds: dict[str, str] = field(default_factory=dict)  # of the feature columns, in the table's order
    groups: dict[str, "ProblemGroup"] = field(default_factory=dict)  # by hint

    def add(self, problem: Problem) -> None:
        hint = problem.render_hint("cli")
        group = self.groups.setdefault(hint, ProblemGroup(hint))
        group.n_cases += 1
        if len(group.cases) < SHOWN:
            group.cases.append(problem)

    def add_cases(self, rule: str, messages: Iterable[str], n_cases: int, hint: str) -> None:
        """Add `n_cases` findings of one kind, of which the first ones are described."""
        shown = list(islice(messages, SHOWN))
        for message in shown:
            self.add(Problem(rule, message, hint))
        self.groups[hint].n_cases += n_cases - len(shown)

    def add_message(self, rule: str, message: str, hint: str = "") -> None:
        self.add(Problem(rule, message, hint))

    @property
    def problems(self) -> list[Problem]:
        return [problem for group in self.groups.values() for problem in group.cases]

    def raise_problems(self) -> None:
        """Raise a DataError that lists all problems, if there are any."""
        if self.groups:
            n_cases = sum(group.n_cases for group in self.groups.values())
            title = f"{n_cases:,} problem{'s' if n_cases > 1 else ''}"
            lines = [line for group in self.groups.values() for line in group.lines()]
            raise DataError("\n".join([title, *lines]), problems=self.problems)


@dataclass
class ProblemGroup:
    hint: str
    cases: list[Problem] = field(default_factory=list)
    n_cases: int = 0

    def lines(self) -> list[str]:
        lines = [f"  {printable(problem.message, 300)}" for problem in self.cases]
        more = self.n_cases - len(self.cases)
        if more:
            lines.append(f"  and {more:,} more")
        if self.hint:
            lines.append(f"    → {printable(self.hint, 2_000)}")
        return lines

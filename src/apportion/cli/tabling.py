"""The options by which commands are told about tables."""

import csv
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from apportion.tables.asking import Asked

Table = Annotated[Path, typer.Argument(help="CSV or Parquet, a row an instance.")]
Bag = Annotated[
    list[str],
    typer.Option(metavar="COLUMN", help="The column that names each row's bag; repeatable, a FILE for each."),
]
Proportions = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="A row a bag: the column of the bags and one a class."),
]
Counts = Annotated[list[Path] | None, typer.Option(metavar="FILE", help="The same with whole numbers.")]
Shares = Annotated[
    str, typer.Option(metavar="A,B", help="Columns of TABLE that repeat their bag's shares on every row.")
]
Key = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN", help="The bags' column in FILE, where it is named otherwise."),
]
Classes = Annotated[
    str,
    typer.Option(metavar="A,B", help='The classes\' columns in FILE; all, if not given. "A, b" has a comma.'),
]
Drop = Annotated[str, typer.Option(metavar="A,B", help="Columns of TABLE that are no features.")]
Categorical = Annotated[
    str, typer.Option(metavar="A,B", help="Columns that are categories though they look like numbers.")
]
Keep = Annotated[
    str,
    typer.Option(metavar="A,B", help="Columns of --bag that are features too, as age groups are."),
]
Missing = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT", help="A text of a CSV that means missing, as an empty field does; repeatable."
    ),
]
Normalize = Annotated[
    bool, typer.Option("--normalize", help="Rescale shares, or counts of a larger group, to sum to one.")
]
Noise = Annotated[
    list[str] | None,
    typer.Option(metavar="DEVIATION", help="Of the error of each number, or 'estimate' (for counts)."),
]
Unlabeled = Annotated[
    bool, typer.Option("--unlabeled", help="Take bags without a row in FILE, or without numbers in it.")
]
Fill = Annotated[
    bool, typer.Option("--fill", help="Give classes without a number what is left of their bag.")
]
Given = Annotated[
    str, typer.Option(metavar="COLUMN", help="Of TABLE: the class of a few rows, empty in all others.")
]
Device = Annotated[str, typer.Option(help="cpu, cuda, mps, or auto: cuda for images, if it is there.")]
Image = Annotated[str, typer.Option(metavar="COLUMN", help="Of TABLE: the files of images to learn from.")]
Pixels = Annotated[int | None, typer.Option(min=8, max=4096, help="Resize images to N × N pixels.")]


def asked(
    table: Path, bag: list[str], proportions: list[Path] | None, counts: list[Path] | None, shares: str,
    key: list[str] | None, classes: str, drop: str, categorical: str, missing: list[str] | None,
    normalize: bool, noise: list[str] | None, unlabeled: bool, fill: bool = False, given: str = "",
    keep: str = "", image: str = "", pixels: int | None = None,
) -> "list[Asked]":  # fmt: skip
    """A question about each grouping of the rows."""
    from apportion.tables.asking import Asked

    if pixels and not image:
        raise typer.BadParameter("--pixels is of images: name the column of their files with --image")
    levels = _levels(noise or [], len(bag))
    lists = (_list(text) for text in (shares, classes, drop, categorical, keep))
    shared, named, dropped, categories, kept = lists
    rest: dict[str, Any] = {
        "classes": named, "drop": dropped, "categorical": categories, "missing": tuple(missing or ()),
        "normalize": normalize, "unlabeled": unlabeled, "fill": fill, "given": given,
        "keep": kept, "image": image, "pixels": pixels or 0,
    }  # fmt: skip
    files = {"proportions": list(proportions or ()), "counts": list(counts or ())}
    if len(bag) == 1:
        one: dict[str, Any] = {name: _single(paths, name) for name, paths in files.items()}
        one |= {"key": _single(key or [], "key"), "noise": levels[0]}
        return [Asked(table, bag[0], **one, shares=shared, **rest)]
    kind = "counts" if files["counts"] else "proportions"
    if len(files[kind]) != len(bag) or all(files.values()) or shared or len(key or bag) != len(bag):
        what = f"there are {len(bag)} of --bag, {len(files['proportions'])} of --proportions"
        told = f"{what}, {len(files['counts'])} of --counts and {len(key or [])} of --key"
        remedy = "pass as many files of one kind as bags, in their order"
        raise typer.BadParameter("--shares is for one --bag" if shared else f"{told}; {remedy}")
    asked = []
    for i, (name, path) in enumerate(zip(bag, files[kind], strict=True)):
        own: dict[str, Any] = {kind: path, "key": key[i] if key else None, "noise": levels[i]}
        asked.append(Asked(table, name, **own, beside=(*bag[:i], *bag[i + 1 :]), **rest))
    return asked


def about_one(questions: "list[Asked]", command: str) -> "Asked":
    """For commands that take one grouping at a time."""
    if len(questions) > 1:
        raise typer.BadParameter(f"{command} takes one --bag at a time; ask about each by itself")
    return questions[0]


def _levels(noise: list[str], n: int) -> list[str]:
    """The noise of each of n groupings: one for all, or one each, of which 0 is none."""
    for level in noise:
        if level != "estimate" and not re.fullmatch(r"[0-9]*\.?[0-9]+", level):
            what = f"--noise is {level!r}"
            raise typer.BadParameter(f"{what}; give a standard deviation, such as 1.5, or estimate")
    if len(noise) not in (0, 1, n):
        raise typer.BadParameter(f"there are {len(noise)} of --noise and {n} of --bag; pass one, or one each")
    each = noise * n if len(noise) == 1 else noise or [""] * n
    return ["" if n > 1 and level != "estimate" and level and not float(level) else level for level in each]


def _single(values: list[Any], name: str) -> Any:
    if len(values) > 1:
        raise typer.BadParameter(f"there are {len(values)} of --{name} and one --bag; name a bag for each")
    return values[0] if values else None


def check_apart(outputs: Iterable[Path | None], inputs: Iterable[Path | None]) -> None:
    """Refuse to write over what is read, by whatever name or link, and two results in one place."""
    from apportion.errors import DataError

    seen = [path for path in inputs if path is not None]
    for out in (path for path in outputs if path is not None):
        for path in seen:
            there = out.exists() and path.exists()
            if out.samefile(path) if there else out.resolve() == path.resolve():
                same = f"{out} would be written over {path}" if path != out else f"{out} would be overwritten"
                raise DataError(f"{same}, which this command reads or writes too; name another file")
        seen.append(out)


def _list(text: str) -> tuple[str, ...]:
    """Names between commas; one that has a comma stands in double quotes, as in a CSV."""
    names = next(csv.reader([text], skipinitialspace=True), [])
    return tuple(name.strip() for name in names if name.strip())

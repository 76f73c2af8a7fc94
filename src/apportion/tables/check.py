"""Everything that is wrong with a table and the proportions of its bags, before anything is trained.

`check` reports all problems at once. Feature columns are checked in `features`, images in `images`. What may
be wrong with proportions is decided in `bags.problems`. The ids of a file of proportions are read in the type
of those of the table (`cast_ids`).
"""

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from apportion._untrusted import name_list
from apportion.bags.denoise import clean_proportions
from apportion.bags.problems import (
    check_bags_differ,
    check_overall_shares,
    check_same_classes,
    find_coverage,
    find_doubts,
    find_problems,
)
from apportion.bags.proportions import Aligned, Proportions, align
from apportion.errors import DataError, did_you_mean
from apportion.tables.features import (
    FORMATS,
    INTERVAL,
    PROBED_ROWS,
    ROW,
    check_features,
    find_thousands,
    note_giveaways,
)
from apportion.tables.images import ImageColumn, check_images
from apportion.tables.read import clean_errors, first_texts, is_text_file, read_table
from apportion.tables.spec import SHOWN, BagColumn, CheckReport, TableSpec

DIGITS = re.compile(r"[0-9]+")
NAMELESS = re.compile(r"|Unnamed: \d+|_duplicated_\d+|__index_level_\d+__")  # as pandas and polars write it


@dataclass
class CheckedTable:
    """A table that can be learned from, and the proportions of its bags."""

    frame: pl.LazyFrame  # as it was read, all columns
    report: CheckReport
    proportions: dict[str, Proportions]  # by the name of the column of bags
    aligned: dict[str, Aligned] = field(default_factory=dict)  # the same, in the order of the sorted bags
    classes: tuple[Any, ...] = ()
    image: ImageColumn | None = None


def check(spec: TableSpec, *, learn: bool = True) -> CheckedTable:
    """Check a table and the proportions of its bags; `report` in the result has all problems and notes.

    One column is held in memory at a time. Without `learn` the features are not checked, and bags may all
    have the same proportions.
    """
    report = CheckReport()
    frame = read_table(spec.table, texts=spec.text_columns, missing=spec.missing)
    checked = CheckedTable(frame, report, {})
    with clean_errors(spec.table):
        _check_columns(spec, frame.collect_schema().names(), report)
        if not int(frame.select(pl.len()).collect().item()):
            report.add_message("no rows", f"{spec.table.name} has no rows", "give one row per instance")
        if report.groups:
            return checked
        if learn and spec.image is not None:
            checked.image = check_images(spec, frame, report)
        elif learn:
            check_features(spec, frame, report)
        aligned, shares = _check_groupings(spec, checked, learn)
        if learn and aligned and not report.groups:
            if spec.image is None:
                note_giveaways(spec, frame, report, checked.classes)
            about = [_describe_bags(spec, *each) for each in zip(spec.bags, aligned, shares, strict=True)]
            report.notes[:0] = [note for notes in about for note in notes]
    return checked


def _check_columns(spec: TableSpec, columns: Sequence[str], report: CheckReport) -> None:
    """Columns that options name: they exist, and have one role each."""
    options = {
        "--bag": spec.bag_names,
        "--shares": spec.shares,
        "--drop": spec.drop,
        "--categorical": spec.categorical,
        "--keep": spec.keep,
        "--known-labels": () if spec.known_labels is None else (spec.known_labels,),
        "--image": () if spec.image is None else (spec.image,),
        "--weight": () if spec.weight is None else (spec.weight,),
    }
    for option, names in options.items():
        for name in names:
            if name not in columns:
                guess = did_you_mean(name, columns)
                hint = f"the columns are {name_list(columns, 20)}"
                report.add_message(
                    "column", f"{spec.table.name} has no column {name!r} ({option}){guess}", hint
                )
    for name in spec.used_columns:
        if spec.used_columns.count(name) > 1:
            what = f"column {name!r} is used twice, as bag, shares, labels, weight or image"
            report.add_message("options", what, "name it once")
            break
    for name in spec.keep:
        if name not in spec.bag_names:
            what = f"column {name!r} (--keep) is not a --bag"
            report.add_message("options", what, "leave it out: it is a feature anyway")
        if name in spec.drop:
            what = f"column {name!r} is kept and dropped"
            report.add_message("options", what, "name it with --keep or --drop, not both")
    if spec.image is not None and (spec.categorical or spec.keep or spec.image in spec.drop):
        what = "with --image, only the images are used as features"
        report.add_message("options", what, "leave --categorical, --keep and --drop of that column out")


# --- bags and their proportions


def _check_groupings(
    spec: TableSpec, checked: CheckedTable, learn: bool
) -> tuple[list[Aligned], list[np.ndarray]]:
    """The proportions of each grouping, in the order of its sorted bags, and the shares that they come to."""
    report = checked.report
    if spec.weight is not None:
        _check_weight(spec.table, spec.weight, checked.frame, report)
    found = [_check_bags(spec, bag, checked) for bag in spec.bags]
    aligned = [each for each in found if each is not None]
    if report.groups or len(aligned) < len(found):
        return [], []
    classes: dict[Hashable, Any] = {}
    overall = {}
    shares = []
    for bag, each in zip(spec.bags, aligned, strict=True):
        coverage = find_coverage(each)
        if coverage is not None:
            report.notes.append(f"{proportions_file(spec, bag).name}: {coverage.text('cli')}")
        clean, _ = clean_proportions(each)
        shares.append(clean)
        classes[bag.name] = each.classes.tolist()
        if bag.std is None:
            overall[bag.name] = each.sizes @ clean / each.sizes.sum()
    for problem in check_same_classes(classes):
        report.add(problem)
        return [], []
    checked.aligned = dict(zip(spec.bag_names, aligned, strict=True))
    checked.classes = tuple(aligned[0].classes.tolist())
    for problem in check_overall_shares(overall, checked.classes):
        report.notes.append(problem.text("cli"))
    if learn:
        for problem in check_bags_differ(np.concatenate(shares)):
            report.add(problem)
    _check_known_labels(spec, checked)
    return aligned, shares


def _check_bags(spec: TableSpec, bag: BagColumn, checked: CheckedTable) -> Aligned | None:
    """Check one grouping. None: its file cannot be read as proportions."""
    report = checked.report
    place = proportions_file(spec, bag).name
    bags = _count_bags(spec, bag.name, checked.frame, report)
    try:
        with clean_errors(proportions_file(spec, bag)):
            table = _read_table_of_bags(spec, bag, checked.frame, bags[bag.name], report)
            if table is None:
                return None
            checked.proportions[bag.name] = proportions = Proportions(
                table,
                spec.kind,
                key=table.columns[0],
                classes=list(spec.shares or spec.classes) or None,
                std=bag.std,
                normalize=spec.normalize,
                missing_bags=spec.missing_bags,
                missing_cells=spec.missing_cells,
                rest=spec.rest,
            )
            aligned = align(proportions, bags[bag.name].to_list(), bags["len"].to_numpy().astype(np.int64))
    except DataError as problem:
        report.add_message("proportions", f"{place}: {problem}")
        return None
    for problem in find_problems(aligned):
        report.add(replace(problem, message=f"{place}: {problem.message}"))
    return aligned


def _read_table_of_bags(
    spec: TableSpec, bag: BagColumn, frame: pl.LazyFrame, ids: pl.Series, report: CheckReport
) -> pl.DataFrame | None:
    """One row per bag, whose id is the first column. None: a problem is reported."""
    if bag.file is None:
        return _shares_in_table(spec, bag.name, frame, report)
    return _read_proportions(spec, bag, ids, report)


def proportions_file(spec: TableSpec, bag: BagColumn) -> Path:
    return spec.table if bag.file is None else bag.file


def _count_bags(spec: TableSpec, name: str, frame: pl.LazyFrame, report: CheckReport) -> pl.DataFrame:
    """The sorted bags with their sizes, or weights. Rows without a bag are a problem."""
    size = pl.len().alias("len")
    if spec.weight is not None and spec.kind == "counts":  # counts of what the rows stand for
        size = pl.col(spec.weight).cast(pl.Float64, strict=False).sum().alias("len")
    counted = frame.group_by(name).agg(size).collect(engine="streaming")
    if counted[name].dtype in (pl.Categorical, pl.Enum):
        counted = counted.with_columns(pl.col(name).cast(pl.String))
    lost = pl.col(name).is_null()
    if counted[name].dtype.is_float():
        lost |= pl.col(name).is_nan()
    if len(counted.filter(lost)):
        rows = frame.select(name).with_row_index(ROW, offset=1).filter(lost)
        n_lost, first = rows.select(pl.len(), pl.col(ROW).first().alias("first")).collect().row(0)
        what = f"{spec.table.name} has {n_lost:,} rows without a bag, first row {first}"
        report.add_message("no bag", what, f"fill in the column {name!r}, or leave these rows out")
    return counted.filter(~lost).sort(name)


def _read_proportions(
    spec: TableSpec, bag: BagColumn, ids: pl.Series, report: CheckReport
) -> pl.DataFrame | None:
    """The file with one row per bag: ids in the type of `ids`, and numbers. None: a problem is reported."""
    path = proportions_file(spec, bag)
    key = bag.key or bag.name
    with clean_errors(path):
        frame = read_table(path, texts=[key], missing=spec.missing).collect()
    if key not in frame.columns:
        guess = did_you_mean(key, frame.columns)
        what = f"{path.name} has no column {key!r}{guess}; it has {name_list(frame.columns, 20)}"
        report.add_message("column", what, "rename the column of the bags, or name it with --key")
        return None
    classes = list(spec.classes) or [name for name in frame.columns if name != key]
    for name in classes:
        if NAMELESS.fullmatch(name.strip()):
            what = f"{path.name}, column {frame.columns.index(name) + 1}, has no name (an index of pandas?)"
            report.add_message("column", what, "leave it out of the file, or name the classes with --classes")
            return None
        if name not in frame.columns:
            guess = did_you_mean(name, frame.columns)
            what = f"{path.name} has no column {name!r} (--classes){guess}"
            report.add_message("column", what, f"the columns are {name_list(frame.columns, 20)}")
            return None
    if frame[key].null_count():
        rows = frame[key].is_null().arg_true() + 1
        cases = (f"{path.name}, row {row}, has no bag" for row in rows)
        report.add_cases("no bag", cases, len(rows), f"fill in the column {key!r}, or leave these rows out")
        return None
    converted = cast_ids(frame[key], ids.dtype)
    if converted.null_count() < len(converted):  # else nothing fits, which is reported with one id of each
        frame = frame.with_columns(converted.alias(key)).filter(converted.is_not_null())
    frame = frame.select(_match_zeros(frame[key], ids, path, report), *classes)
    if _check_numbers(spec, path, frame.filter(pl.col(key).is_in(ids.implode())), classes, report):
        return None
    strange = frame[key].filter(~frame[key].is_in(ids.implode()))
    if 0 < len(strange) < frame.height:
        has = f"{path.name} has {name_some(strange.to_list(), 'bag')}"
        report.notes.append(f"{has}, which {spec.table.name} does not have; not used")
    return frame.with_columns(pl.col(classes).cast(pl.Float64, strict=False))


def name_some(values: Sequence[Any], what: str) -> str:
    """How many values there are, and the first three: "5 bags ('a', 'b', 'c', …)"."""
    some = ", ".join(repr(value) for value in values[:SHOWN]) + (", …" if len(values) > SHOWN else "")
    return f"{len(values):,} {what}{'' if len(values) == 1 else 's'} ({some})"


def _match_zeros(listed: pl.Series, ids: pl.Series, path: Path, report: CheckReport) -> pl.Series:
    """The ids of a file as the table writes them, where they differ by zeros in front alone: 7 for 007.

    Only whole numbers are matched, and only if no two ids of the table, or of the file, are the same number.
    """
    if ids.dtype != pl.String or listed.dtype != pl.String:
        return listed
    here, there = (each.unique(maintain_order=True).to_list() for each in (ids, listed))
    numbers, others = (
        {name.lstrip("0"): name for name in each if DIGITS.fullmatch(name)} for each in (here, there)
    )
    for each, names in ((here, numbers), (there, others)):
        if len(names) < sum(DIGITS.fullmatch(name) is not None for name in each):
            return listed
    found = {other: numbers[plain] for plain, other in others.items() if numbers.get(plain, other) != other}
    if not found:
        return listed
    first = [f"{other!r} is {name!r}" for other, name in list(found.items())[:SHOWN]]
    some = ", ".join(first) + (", …" if len(found) > SHOWN else "")
    report.notes.append(f"{path.name}: bags are matched without the zeros in front of their ids ({some})")
    return listed.replace(found)


def cast_ids(ids: pl.Series, dtype: pl.DataType) -> pl.Series:
    """Ids in another type, null where they cannot be: a number in Parquet meets the same number in a CSV."""
    if ids.dtype == pl.String and dtype == pl.Boolean:
        truths = {"true": True, "false": False, "1": True, "0": False}
        return ids.str.to_lowercase().replace_strict(truths, default=None, return_dtype=pl.Boolean)
    if ids.dtype == pl.String and dtype.is_temporal():
        try:
            return ids.str.to_datetime(strict=False, time_unit="us").cast(dtype, strict=False)
        except pl.exceptions.ComputeError:  # none of them is a date
            return pl.Series(ids.name, [None] * len(ids), dtype=dtype)
    converted = ids.cast(dtype, strict=False)
    if ids.dtype != pl.String and (dtype.is_integer() or dtype == pl.Date):
        cut = converted.cast(ids.dtype, strict=False) != ids  # 1.5 is not bag 1
        return converted.set(cut.fill_null(False), None)
    return converted


def _check_numbers(
    spec: TableSpec, path: Path, frame: pl.DataFrame, classes: Sequence[str], report: CheckReport
) -> bool:
    """Report texts where numbers should be, and thousands points; whether there are any."""
    key = frame.columns[0]
    found = False
    for name in classes:
        column = frame[name]
        if column.dtype != pl.String:
            continue
        wrong = frame.filter(column.is_not_null() & column.cast(pl.Float64, strict=False).is_null())
        if wrong.height:
            cases = (
                f"{path.name}: bag {bag!r} has {text!r} for class {name!r}"
                for bag, text in wrong.select(key, name).rows()
            )
            hint = _number_hint(wrong[name].to_list(), name, counts=spec.kind == "counts")
            report.add_cases("number", cases, wrong.height, hint)
            found = True
    if is_text_file(path) and spec.kind == "counts":
        texts = first_texts(path, PROBED_ROWS, spec.missing)
        sure, possible = find_thousands(texts.select(name for name in classes if name in texts.columns))
        suspects = sure | possible
        if suspects:
            cases = (
                f"{path.name}, column {name!r}, has {example!r}, whose points look like thousands separators"
                for name, example in suspects.items()
            )
            report.add_cases("thousands", cases, len(suspects), "write 2.340 as 2340")
            found = True
    return found


def _number_hint(texts: Sequence[str], name: str, *, counts: bool) -> str:
    """How to write texts that stand where the number of a class should be."""

    def all_match(*patterns: str) -> bool:
        pattern = re.compile(rf"\s*({'|'.join(patterns)})\s*")
        return all(pattern.fullmatch(text) for text in texts)

    thousands, commas, percent = FORMATS[1], FORMATS[2], FORMATS[3]
    if counts and all_match(thousands.pattern):  # as a share, 12,345 would be a percentage
        return thousands.hint
    if all_match(commas.pattern, percent.pattern):
        return "write 0,35 or 35% as 0.35"
    if all_match(INTERVAL):
        return "give the middle of an interval, and its width / 12 ** 0.5 as --std"
    return f"give a number; if {name!r} is not a class, name the classes with --classes"


def _shares_in_table(
    spec: TableSpec, bag: str, frame: pl.LazyFrame, report: CheckReport
) -> pl.DataFrame | None:
    """One row per bag from columns that repeat its shares; rows of a bag must agree."""
    numbers = [pl.col(name).cast(pl.Float64, strict=False).fill_nan(None) for name in spec.shares]
    rows = frame.select(bag, *numbers).with_row_index(ROW, offset=1).filter(pl.col(bag).is_not_null())
    spread = [(pl.col(name).max() - pl.col(name).min()).alias(f"{ROW}{name}") for name in spec.shares]
    gaps = [pl.col(name).null_count().alias(f"{ROW}{ROW}{name}") for name in spec.shares]
    firsts = [pl.col(name).first() for name in spec.shares]
    table = rows.group_by(bag).agg(*firsts, *spread, *gaps).sort(bag).collect(engine="streaming")
    agree = True
    for name in spec.shares:
        differs = (pl.col(f"{ROW}{name}") > 1e-6) | (pl.col(f"{ROW}{ROW}{name}") > 0)
        wrong = table.filter(differs & pl.col(name).is_not_null())
        if wrong.height:
            cases = (
                f"{spec.table.name}: bag {each!r} has rows with different values in column {name!r}, "
                f"{first:g} in its first row"
                for each, first in wrong.select(bag, name).rows()
            )
            report.add_cases(
                "rows disagree", cases, wrong.height, "every row repeats the shares of its whole bag"
            )
            agree = False
    if table[bag].dtype in (pl.Categorical, pl.Enum):
        table = table.with_columns(pl.col(bag).cast(pl.String))
    return table.select(bag, *spec.shares) if agree else None


def _check_known_labels(spec: TableSpec, checked: CheckedTable) -> None:
    """Known labels are classes."""
    if spec.known_labels is None:
        return
    classes = [str(name) for name in checked.classes]
    label = pl.col(spec.known_labels).cast(pl.String)
    rows = checked.frame.select(label).with_row_index(ROW, offset=1)
    wrong = rows.filter(~label.is_in(classes)).collect()
    if wrong.height:
        cases = (f"{spec.table.name}, row {row}, has the known label {text!r}" for row, text in wrong.rows())
        hint = f"the classes are {', '.join(classes)}; leave it empty if it is unknown"
        checked.report.add_cases("known label", cases, wrong.height, hint)


def _check_weight(table: Path, name: str, frame: pl.LazyFrame, report: CheckReport) -> None:
    """Weights are numbers of zero or more."""
    weight = pl.col(name).cast(pl.Float64, strict=False)
    rows = frame.select(name, good=weight.is_finite() & (weight >= 0)).with_row_index(ROW, offset=1)
    wrong = rows.filter(~pl.col("good").fill_null(False)).select(ROW, name).collect()
    if wrong.height:
        cases = (f"{table.name}, row {row}, has the weight {value!r}" for row, value in wrong.rows())
        report.add_cases("weight", cases, wrong.height, "give every row a number of zero or more")


def read_weight_column(table: Path, name: str | None, frame: pl.LazyFrame) -> np.ndarray | None:
    """The weights of the rows of a table, checked; None without a name."""
    if name is None:
        return None
    columns = frame.collect_schema().names()
    if name not in columns:
        what = f"{table.name} has no column {name!r} (--weight){did_you_mean(name, columns)}"
        raise DataError(f"{what}; it has {name_list(columns, 20)}")
    report = CheckReport()
    with clean_errors(table):
        _check_weight(table, name, frame, report)
        report.raise_problems()
        return frame.select(pl.col(name).cast(pl.Float64)).collect().to_series().to_numpy()


def _describe_bags(spec: TableSpec, bag: BagColumn, aligned: Aligned, shares: np.ndarray) -> list[str]:
    """A line about a grouping, and others if its bags are few, or differ as by chance, or less."""
    notes = [_summary(spec, bag, aligned, shares)]
    if bag.std is None and spec.weight is None:
        by = f"by {bag.name!r}: " if len(spec.bags) > 1 else ""
        notes += [f"{by}{problem.text('cli')}" for problem in find_doubts(shares, aligned.sizes)]
    return notes


def _summary(spec: TableSpec, bag: BagColumn, aligned: Aligned, shares: np.ndarray) -> str:
    """One line about a grouping: its bags, their sizes, and the range of the shares of each class."""
    sizes = aligned.sizes
    known = shares[np.isfinite(shares).all(1)]
    ranges = ", ".join(
        f"{name} {100 * low:.3g} to {100 * high:.3g} %"
        for name, low, high in zip(aligned.classes.tolist(), known.min(0), known.max(0), strict=True)
    )
    by = f" by {bag.name!r}" if len(spec.bags) > 1 else ""
    rows = f"{sizes.min():,.0f} to {sizes.max():,.0f} rows (median {int(np.median(sizes)):,})"
    return f"{spec.table.name}: {sizes.sum():,.0f} rows in {len(sizes):,} bags{by} of {rows}; {ranges}"

"""Everything that is wrong with a table and the proportions of its bags, before anything is trained.

`check` reports all problems at once. What may be wrong with proportions is decided in `bags.problems`. Notes
are about what is probably not meant: columns that give a class or a bag away, text that looks like numbers,
numbers that look like codes.
"""

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from apportion._untrusted import printable
from apportion.bags.problems import (
    check_bags_differ,
    check_overall_shares,
    check_same_classes,
    clean_proportions,
    find_problems,
)
from apportion.bags.proportions import Aligned, Proportions, align
from apportion.errors import DataError, did_you_mean
from apportion.tables.images import SUFFIXES, ImageColumn, check_images
from apportion.tables.read import clean_errors, csv_dialect, first_texts, is_text_file, read_table
from apportion.tables.spec import SHOWN, BagColumn, CheckReport, TableSpec, name_list, option_list

ROW = "\0row"  # no user's column has this name
PROBED_ROWS = 10_000  # decide for nearly all columns; only those left over are scanned whole
NAMELESS = re.compile(r"|Unnamed: \d+|_duplicated_\d+|__index_level_\d+__")  # as pandas and polars write it
MAX_CATEGORIES = 32  # that become features, as in `encoding`
PROBED_BAGS = 100
COLUMNS_AT_ONCE = 64  # plans over thousands of columns take long to optimize


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
            _check_features(spec, frame, report)
        aligned, shares = _check_groupings(spec, checked, learn)
        if learn and aligned and not report.groups:
            if spec.image is None:
                _note_giveaways(spec, frame, report, [str(name) for name in checked.classes])
            report.notes[:0] = [
                _summary(spec, *each) for each in zip(spec.bags, aligned, shares, strict=True)
            ]
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
            what = f"column {name!r} is used twice, as bag, shares, labels or image"
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


# --- feature columns


def _check_features(spec: TableSpec, frame: pl.LazyFrame, report: CheckReport) -> None:
    """Find the kind of every feature column, and what cannot be used in it."""
    schema = frame.collect_schema()
    for name, dtype in schema.items():
        if not name:
            report.notes.append(f"{spec.table.name} has a column without a name, which is left out")
        used = name in spec.used_columns and name not in spec.keep
        if not name or used or name in spec.drop:
            continue
        kind = "category" if name in (*spec.categorical, *spec.keep) else polars_kind(dtype)
        if kind is None or dtype.is_nested():
            hint = f"leave it out with --drop {option_list([name])}"
            what = f"column {name!r} has values of type {dtype}, which cannot be features"
            report.add_message("type", what, hint)
        else:
            report.kinds[name] = kind
    if not report.kinds and not report.groups:
        what = f"{spec.table.name} has no feature column next to the bags and their shares"
        report.add_message("no features", what, "add the columns that describe a row")
        return
    texts = _first_texts(spec)
    ambiguous = _check_thousands(spec, texts, report)
    empty = []
    constant = []
    for name, kind in list(report.kinds.items()):
        if name in ambiguous:
            continue
        values = _column_facts(frame.select(name), name, kind)
        if values["missing"] == values["rows"]:
            empty.append(name)
        elif values["distinct"] <= 1 and not values["missing"]:
            constant.append(name)
            del report.kinds[name]
        else:
            _check_values(spec, frame, name, kind, values, report)
    if empty:
        hint = f"leave it out with --drop {option_list(empty)}"
        cases = (f"column {name!r} has no value in any row" for name in empty)
        report.add_cases("empty column", cases, len(empty), hint)
    if constant and not report.kinds:
        what = f"every feature of {spec.table.name} has the same value in all rows"
        report.add_message("constant features", what, "add columns that differ between rows")
    elif set(report.kinds.values()) == {"date"}:
        what = f"{spec.table.name} has no feature but dates ({name_list(list(report.kinds))})"
        report.add_message("dates only", what, "add columns that tell rows of one day apart")
    if constant and report.kinds:
        report.notes.append(f"left out, since all rows have the same value: {name_list(constant)}")
    _note_codes(report, texts)


def polars_kind(dtype: pl.DataType) -> str | None:
    """`encoding.kind_of` for polars types; importing that brings scikit-learn, which takes a second."""
    if dtype.is_numeric():
        return "number"
    if dtype == pl.Boolean:
        return "boolean"
    if dtype in (pl.Date, pl.Datetime):
        return "date"
    return "category" if dtype in (pl.String, pl.Categorical, pl.Enum) else None


def _column_facts(column: pl.LazyFrame, name: str, kind: str) -> dict[str, Any]:
    """Counts of one column, in one pass."""
    value = pl.col(name)
    dtype = column.collect_schema()[name]
    missing = value.is_null()
    if dtype.is_float():
        missing |= value.is_nan()
    facts = {"rows": pl.len(), "missing": missing.sum()}
    if kind == "category":
        text = value.cast(pl.String)
        facts["distinct"] = text.drop_nulls().n_unique()
        facts["numbers"] = _is_number(value).sum()
        facts["images"] = text.str.to_lowercase().str.contains("(" + "|".join(SUFFIXES) + ")$").sum()
    else:
        present = value.filter(~missing)
        facts["distinct"] = 1 + (present.min() != present.max()).cast(pl.Int64)
    if dtype.is_float():
        facts["infinite"] = value.is_infinite().sum()
    if dtype == pl.Datetime:
        facts["times"] = (value.dt.time() != time(0)).sum()
    return column.select(**facts).collect(engine="streaming").row(0, named=True)


def _is_number(value: pl.Expr) -> pl.Expr:
    """Whether texts are numbers; nan is not, although it can be read as one."""
    number = value.cast(pl.String).cast(pl.Float64, strict=False)
    return number.is_not_null() & number.is_not_nan().fill_null(False)


def _check_values(
    spec: TableSpec, frame: pl.LazyFrame, name: str, kind: str, facts: dict[str, Any], report: CheckReport
) -> None:
    """What cannot be used, or is probably not meant, in a column with different values."""
    if facts.get("infinite"):
        cases = _cases(spec, frame, name, pl.col(name).is_infinite())
        report.add_cases(
            "infinite", cases, facts["infinite"], "give a number, or leave it empty where it is missing"
        )
    if facts.get("times"):
        report.notes.append(f"column {name!r} has times of day, of which only the date is used")
    if kind != "category" or name in (*spec.categorical, *spec.keep):
        return
    present = facts["rows"] - facts["missing"]
    advice = _advice(frame, name, is_csv=is_text_file(spec.table)) if facts["distinct"] > 1 else ""
    if present / 2 <= facts["numbers"] < present:
        wrong = ~_is_number(pl.col(name)) & pl.col(name).is_not_null()
        default = f"name texts that mean missing with --missing, or pass --categorical {option_list([name])}"
        cases = _cases(spec, frame, name, wrong)
        report.add_cases(
            "text among numbers",
            cases,
            present - facts["numbers"],
            f"most values are numbers; {advice or default}",
        )
    elif advice:
        report.notes.append(f"column {name!r} becomes categories; {advice}")
    elif facts["distinct"] > MAX_CATEGORIES:
        hint = f"--drop {option_list([name])} if it names the rows"
        if facts["images"] == present:
            hint = f"--image {option_list([name])} learns from the images that it names"
        what = f"{facts['distinct']:,} different texts; the {MAX_CATEGORIES} most frequent become features"
        report.notes.append(f"column {name!r} has {what}: {hint}")


def _cases(spec: TableSpec, frame: pl.LazyFrame, name: str, wrong: pl.Expr) -> list[str]:
    """The first rows with a wrong value, described."""
    names = list(dict.fromkeys((*spec.bag_names, name)))
    rows = frame.select(names).with_row_index(ROW, offset=1).filter(wrong).head(SHOWN).collect()
    bag = spec.bag_names[0]
    return [
        f"{spec.table.name}, row {row[ROW]}, bag {row[bag]!r}, column {name!r}, has {row[name]!r}"
        for row in rows.to_dicts()
    ]


# --- texts that look like something else


@dataclass(frozen=True)
class TextFormat:
    """A way of writing numbers or dates that is not read as such."""

    what: str
    pattern: str
    hint: str
    strip: bool = True  # whether spaces around it do not matter


_PLAIN = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
_ANY = r"[+-]?\d[\d.,'’\s\u00a0\u202f]*"  # a number in the format of any country
_MONEY = r"([$€£¥₹₩]|[A-Z]{2}\$|USD|EUR|GBP|CHF|JPY|Kč|kr\.?|zł)"
_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_CLOCK = r"([ T]\d{1,2}:\d{2}.*)?"
_THOUSANDS_POINTS = r"^[+-]?[1-9]\d{0,2}(\.\d{3})+(,\d+)?$"  # 2.340 in countries with decimal commas
_DECIMAL_COMMA = r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+"
_INTERVAL = r"[\[(]?\s*[\d.]+\s*%?\s*(-|–|,|;|to|\.\.)\s*[\d.]+\s*%?\s*[\])]?"
_DAY = r"^(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])$"

FORMATS = (
    TextFormat(
        "numbers with spaces around them",
        rf"\s+{_PLAIN}\s*|{_PLAIN}\s+",
        "write them without spaces",
        strip=False,
    ),
    TextFormat(
        "numbers with thousands separators",
        r"[+-]?[1-9]\d{0,2}([,'’ \u00a0\u202f]\d{3})+(\.\d+)?",
        "write 12,345 as 12345",
    ),
    TextFormat("numbers with decimal commas", _DECIMAL_COMMA, "write 1,5 as 1.5"),
    TextFormat("percentages", rf"{_ANY}%", "write 35% as 35"),
    TextFormat("amounts of money", rf"[+-]?\s*{_MONEY}\s*{_ANY}|{_ANY}{_MONEY}", "write $1200 as 1200"),
    TextFormat(
        "dates",
        rf"\d{{1,2}}[./-]\d{{1,2}}[./-](\d{{4}}|\d{{2}}){_CLOCK}"
        rf"|(?i:\d{{1,2}}(st|nd|rd|th)?[ .-]*{_MONTH},?[ -]*\d{{2,4}}{_CLOCK})"
        rf"|(?i:{_MONTH} \d{{1,2}}(st|nd|rd|th)?,? \d{{4}}{_CLOCK})",
        "write them as 2020-12-25",
    ),
)
MISSING_WORDS = (
    "na", "n/a", "#n/a", "n.a.", "n.a", "nan", "null", "none", "nil", "missing", "unknown", "not available",
    "k.a.", "k. a.", "s/o", "-", "--", "–", "—", "?", ".", "..", "...", "…", "*",
)  # fmt: skip


def _advice(frame: pl.LazyFrame, name: str, *, is_csv: bool) -> str:
    """What to do about texts that are meant as numbers or dates; empty if they are not."""
    first = frame.select(pl.col(name).cast(pl.String)).head(10 * PROBED_ROWS).drop_nulls()
    counts = (
        first.group_by(name).len().sort("len", name, descending=[True, False]).collect(engine="streaming")
    )
    texts = counts[name]
    plain = texts.str.contains(f"^({_PLAIN})$")
    gaps = texts.str.strip_chars().str.to_lowercase().is_in(MISSING_WORDS)
    keep = f"or pass --categorical {option_list([name])} if they are categories"
    others = counts.filter(~plain & ~gaps)
    if not others.height:
        if not plain.any() or not gaps.any():
            return ""
        found = texts.filter(gaps).to_list()
        hint = (
            " ".join(f"--missing={option_list([text])}" for text in found) if is_csv else "leave these empty"
        )
        return f"{name_list(found)} next to numbers: pass {hint} if that means missing, {keep}"
    for text_format in FORMATS:
        edge = r"\s*" if text_format.strip else ""
        matches = others[name].str.contains(f"^{edge}({text_format.pattern}){edge}$")
        if 2 * others.filter(matches)["len"].sum() > others["len"].sum():
            example = printable(repr(others.filter(matches)[name][0]), 60)
            return f"most texts look like {text_format.what}, such as {example}: {text_format.hint}, {keep}"
    return ""


def _first_texts(spec: TableSpec) -> pl.DataFrame | None:
    """The first rows of a CSV as they are written."""
    if not is_text_file(spec.table):
        return None
    return first_texts(spec.table, 10 * PROBED_ROWS, spec.missing)


def _check_thousands(spec: TableSpec, texts: pl.DataFrame | None, report: CheckReport) -> list[str]:
    """Columns whose points probably separate thousands, but were read as decimal points: 2.340 beside 921.

    This happens where decimal commas are common, so only files without commas between fields are searched.
    """
    if texts is None or csv_dialect(spec.table).separator == ",":
        return []
    names = [name for name in report.kinds if name not in (*spec.categorical, *spec.keep)]
    sure, possible = find_thousands(texts.select(name for name in names if name in texts.columns))
    hint = "write 2.340 as 2340, or 921 next to it as 921.000 if its point is a decimal point"
    cases = (
        f"{spec.table.name}, column {name!r}, has {example!r}, whose points look like thousands separators"
        for name, example in sure.items()
    )
    if sure:
        report.add_cases("thousands", cases, len(sure), hint)
    for name, example in possible.items():
        what = f"{example!r} is read with a decimal point; write 2340 for 2.340 if it separates thousands"
        report.notes.append(f"column {name!r}: {what}")
    return list(sure)


def find_thousands(texts: pl.DataFrame) -> tuple[dict[str, str], dict[str, str]]:
    """Columns whose points are all followed by three digits, with an example: the sure and the possible ones.

    Decimal commas, a last zero or several points in a number make it sure.
    """
    columns = {column.name: column.drop_nulls().str.strip_chars() for column in texts}
    commas = any(
        2 * column.str.contains(f"^({_DECIMAL_COMMA})$").sum() > len(column) for column in columns.values()
    )
    sure = {}
    possible = {}
    for name, column in columns.items():
        points = column.filter(column.str.contains(".", literal=True))
        whole = column.filter(column.str.contains(r"^[+-]?\d+$") & (column != "0"))
        if not len(points) or not points.str.contains(_THOUSANDS_POINTS).all():
            continue
        if points.str.ends_with(".000").all() or whole.str.contains(r"^[+-]?\d{4,}$").any():
            continue
        several = points.str.contains(r"\..*\.").any()
        if commas or several or (points.str.ends_with("0").any() and len(whole)):
            sure[name] = points[0]
        elif len(whole):
            possible[name] = points[0]
    return sure, possible


def _note_codes(report: CheckReport, texts: pl.DataFrame | None) -> None:
    """Numbers of a CSV that may be codes or dates: 0765 is read as 765, and 20201225 as twenty millions."""
    if texts is None:
        return
    numbers = [name for name, kind in report.kinds.items() if kind == "number" and name in texts.columns]
    codes = {}
    days = {}
    for name in numbers:
        column = texts[name].drop_nulls().str.strip_chars()
        zeros = column.filter(column.str.contains(r"^0\d+$"))
        if len(zeros):
            codes[name] = zeros[0]
        if len(column) and column.str.contains(_DAY).all():
            days[name] = column[0]
    if codes:
        example = next(iter(codes.values()))
        what = f"{name_list(list(codes))}: numbers such as {example} lose their first zero"
        report.notes.append(f"{what}; --categorical {option_list(codes)} if they are codes")
    if days:
        example = next(iter(days.values()))
        what = f"{name_list(list(days))}: numbers such as {example} may be dates"
        report.notes.append(f"{what}; write them as 2020-12-25 if they are")


# --- features that give too much away


def _note_giveaways(
    spec: TableSpec, frame: pl.LazyFrame, report: CheckReport, classes: Sequence[str]
) -> None:
    """Note features that tell a class, the bag of a row, or its number. They may be meant, so they stay."""
    folded = {name.strip().casefold() for name in classes}
    named = [name for name in report.kinds if name.strip().casefold() in folded]
    _note_columns(named, "named like a class", "if it holds shares or labels", report)
    texts = [name for name, kind in report.kinds.items() if kind == "category" and name not in named]
    labels = _label_columns(frame, texts, sorted(name.strip().lower() for name in classes))
    _note_columns(labels, "its values are the classes", "if it holds labels", report)
    known = (*named, *labels, *spec.keep)
    others = [name for name in report.kinds if name not in known]
    steady = _constant_in_bags(frame, spec.bag_names[0], others)
    what = "the same value in all rows of a bag tells which bag a row is from, and scores look too good"
    _note_columns(steady, what, "if that is not meant", report)
    numbers = [n for n, kind in report.kinds.items() if kind == "number" and n not in (*known, *steady)]
    _note_columns(
        _row_numbers(frame, numbers), "a different whole number in every row", "if it is an id", report
    )


def _note_columns(names: Sequence[str], what: str, when: str, report: CheckReport) -> None:
    if names:
        columns = "column" if len(names) == 1 else "columns"
        report.notes.append(f"{columns} {name_list(names)}: {what}; --drop {option_list(names)} {when}")


def _parts(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[start : start + COLUMNS_AT_ONCE] for start in range(0, len(names), COLUMNS_AT_ONCE))


def _label_columns(frame: pl.LazyFrame, names: Sequence[str], classes: Sequence[str]) -> list[str]:
    """Columns of texts in which every value is a class, in upper or lower case, and not all are the same."""

    def search(rows: pl.LazyFrame, names: Sequence[str], least: int) -> list[str]:
        found = []
        for part in _parts(names):
            conditions = []
            for i, name in enumerate(part):
                text = pl.col(name).cast(pl.String).str.strip_chars().str.to_lowercase().drop_nulls()
                conditions.append((text.is_in(classes).all() & (text.n_unique() >= least)).alias(str(i)))
            values = rows.select(conditions).collect(engine="streaming").row(0)
            found += [name for name, is_label in zip(part, values, strict=True) if is_label]
        return found

    return search(frame, search(frame.head(PROBED_ROWS), names, 0), 2)


def _constant_in_bags(frame: pl.LazyFrame, bag: str, names: Sequence[str]) -> list[str]:
    """Columns with one value in each bag; none if there is one bag, or bags have one row each."""

    def search(rows: pl.LazyFrame, names: Sequence[str]) -> tuple[list[str], bool]:
        found = []
        enough = True
        for part in _parts(names):
            # by their hashes, since the minimum of texts is slow to find, and a missing value has a hash, too
            hashes = [pl.col(name).hash().alias(str(i)) for i, name in enumerate(part)]
            constant = [pl.col(str(i)).min() == pl.col(str(i)).max() for i in range(len(part))]
            grouped = rows.select(pl.col(bag).alias("bag"), *hashes).drop_nulls("bag").group_by("bag")
            counts = grouped.agg(pl.len().alias("rows"), *constant)
            all_constant = [pl.col(str(i)).all() for i in range(len(part))]
            query = counts.select(pl.len().alias("bags"), pl.col("rows").max(), *all_constant)
            values = query.collect(engine="streaming").row(0, named=True)
            enough = values["bags"] > 1 and (values["rows"] or 0) > 1
            found += [name for i, name in enumerate(part) if values[str(i)]]
        return found, enough

    # rows of a few bags rule nearly all columns out: to group all rows takes much memory
    some = frame.select(bag).head(PROBED_ROWS).collect().to_series().drop_nulls().unique(maintain_order=True)
    sample = frame.select(bag, *names).filter(pl.col(bag).is_in(some.head(PROBED_BAGS).implode()))
    first, _ = search(sample.head(PROBED_ROWS).collect(engine="streaming").lazy(), names)
    found, enough = search(frame, first)
    return found if enough else []


def _row_numbers(frame: pl.LazyFrame, names: Sequence[str]) -> list[str]:
    """Columns of whole numbers that are all there and all different; few rows prove nothing."""

    def search(rows: pl.LazyFrame, names: Sequence[str]) -> list[str]:
        found = []
        for part in _parts(names):
            counts = [pl.len().alias("rows")]
            for i, name in enumerate(part):
                counts.append((pl.col(name) % 1 == 0).sum().alias(f"{i} whole"))
                counts.append(pl.col(name).n_unique().alias(str(i)))
            values = rows.select(counts).collect(engine="streaming").row(0, named=True)
            n = values["rows"]
            if n > MAX_CATEGORIES:
                found += [name for i, name in enumerate(part) if values[f"{i} whole"] == values[str(i)] == n]
        return found

    first = search(frame.head(PROBED_ROWS), names)
    return [name for name in first if search(frame, [name])]


# --- bags and their proportions


def _check_groupings(
    spec: TableSpec, checked: CheckedTable, learn: bool
) -> tuple[list[Aligned], list[np.ndarray]]:
    """The proportions of each grouping, in the order of its sorted bags, and the shares that they come to."""
    report = checked.report
    found = [_check_bags(spec, bag, checked) for bag in spec.bags]
    aligned = [each for each in found if each is not None]
    if report.groups or len(aligned) < len(found):
        return [], []
    classes: dict[Hashable, Any] = {
        bag.name: each.classes.tolist() for bag, each in zip(spec.bags, aligned, strict=True)
    }
    for problem in check_same_classes(classes):
        report.add(problem)
        return [], []
    checked.aligned = dict(zip(spec.bag_names, aligned, strict=True))
    checked.classes = tuple(aligned[0].classes.tolist())
    _check_known_labels(spec, checked)
    shares = [clean_proportions(each)[0] for each in aligned]
    overall = {}
    for bag, each, numbers in zip(spec.bags, aligned, shares, strict=True):
        if bag.std is None:
            overall[bag.name] = each.sizes @ numbers / each.sizes.sum()
    report.notes += [problem.text("cli") for problem in check_overall_shares(overall, checked.classes)]
    if learn:
        for problem in check_bags_differ(np.concatenate(shares)):
            report.add(problem)
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
    """The sorted bags with their sizes. Rows without a bag are a problem."""
    counted = frame.select(name).group_by(name).len().collect(engine="streaming")
    if counted[name].dtype in (pl.Categorical, pl.Enum):
        counted = counted.with_columns(pl.col(name).cast(pl.String))
    lost = pl.col(name).is_null()
    if counted[name].dtype.is_float():
        lost |= pl.col(name).is_nan()
    n_lost = int(counted.filter(lost)["len"].sum())
    if n_lost:
        first = frame.select(name).with_row_index(ROW, offset=1).filter(lost).head(1).collect()[ROW].item()
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
    frame = frame.select(key, *classes)
    if _check_numbers(spec, path, frame.filter(pl.col(key).is_in(ids.implode())), classes, report):
        return None
    n_strange = int((~frame[key].is_in(ids.implode())).sum())
    if 0 < n_strange < frame.height:
        report.notes.append(
            f"{path.name} has {n_strange:,} bags that {spec.table.name} does not have; not used"
        )
    return frame.with_columns(pl.col(classes).cast(pl.Float64, strict=False))


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
    if all_match(_INTERVAL):
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


def _summary(spec: TableSpec, bag: BagColumn, aligned: Aligned, shares: np.ndarray) -> str:
    """One line about a grouping: its bags, their sizes, and the range of the shares of each class."""
    sizes = aligned.sizes
    known = shares[np.isfinite(shares).all(1)]
    ranges = ", ".join(
        f"{name} {100 * low:.3g} to {100 * high:.3g} %"
        for name, low, high in zip(aligned.classes.tolist(), known.min(0), known.max(0), strict=True)
    )
    by = f" by {bag.name!r}" if len(spec.bags) > 1 else ""
    rows = f"{sizes.min():,} to {sizes.max():,} rows (median {int(np.median(sizes)):,})"
    return f"{spec.table.name}: {sizes.sum():,} rows in {len(sizes):,} bags{by} of {rows}; {ranges}"

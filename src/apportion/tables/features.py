"""Which columns of a table become features, what is wrong with them, and what is probably not meant.

`encoding` decides what a column is (a number, a category, a boolean or a date), fills its missing values and
makes features of it. Columns without information are left out. Notes are about text that looks like numbers
or dates, numbers that look like codes, and columns that give a class or a bag away.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import time
from typing import Any

import polars as pl

from apportion._untrusted import name_list, printable
from apportion.bags.problems import option_list
from apportion.tables.images import SUFFIXES
from apportion.tables.read import csv_dialect, first_texts, is_text_file
from apportion.tables.spec import SHOWN, CheckReport, TableSpec

ROW = "\0row"  # no user's column has this name
PROBED_ROWS = 10_000  # decide for nearly all columns; only those left over are scanned whole
MAX_CATEGORIES = 32  # that become features, as in `encoding`
ROWS_FOR_IDS = 32  # in fewer rows, whole numbers that all differ may be a coincidence
PROBED_BAGS = 100
REPEATS = 5  # of a value; if they are all in few bags, that is no coincidence
FEWEST_BAGS = 5  # in fewer bags, a value that occurs in one of them may be a coincidence
COLUMNS_AT_ONCE = 64  # plans over thousands of columns take long to optimize


# --- feature columns


def check_features(spec: TableSpec, frame: pl.LazyFrame, report: CheckReport) -> None:
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
INTERVAL = r"[\[(]?\s*[\d.]+\s*%?\s*(-|–|,|;|to|\.\.)\s*[\d.]+\s*%?\s*[\])]?"
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


def note_giveaways(spec: TableSpec, frame: pl.LazyFrame, report: CheckReport, classes: Sequence[Any]) -> None:
    """Note features that tell a class, the bag of a row, or its number. They may be meant, so they stay."""
    class_names = [str(name).strip() for name in classes]
    folded = {name.casefold() for name in class_names}
    named = [name for name in report.kinds if name.strip().casefold() in folded]
    _note_columns(named, "named like a class", "if it holds shares or labels", report)
    texts = [name for name, kind in report.kinds.items() if kind == "category" and name not in named]
    labels = _label_columns(frame, texts, sorted(name.lower() for name in class_names))
    _note_columns(labels, "its values are the classes", "if it holds labels", report)
    known = (*named, *labels, *spec.keep)
    others = [name for name in report.kinds if name not in known]
    steady = _constant_in_bags(frame, spec.bag_names[0], others)
    what = "the same value in all rows of a bag tells which bag a row is from, and scores look too good"
    _note_columns(steady, what, "if that is not meant", report)
    nested = _nearly_constant(frame, spec.bag_names[0], [name for name in others if name not in steady])
    what = "every value occurs in few bags, which nearly tells the bag of a row, and scores look too good"
    codes = [name for name in nested if report.kinds[name] == "number"]
    when = (
        f"if that is not meant, or --categorical {option_list(codes)} for codes"
        if codes
        else "if that is not meant"
    )
    _note_columns(nested, what, when, report)
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


def _nearly_constant(frame: pl.LazyFrame, bag: str, names: Sequence[str]) -> list[str]:
    """Columns most of whose rows have a repeated value, and whose values occur in few of the bags each.

    The first rows decide. Numbers that are simply continuous repeat no value, or in any bag.
    """
    found = []
    for part in _parts(names):
        rows = frame.select(bag, *part).head(10 * PROBED_ROWS).collect(engine="streaming")
        sizes = rows[bag].drop_nulls().value_counts()["count"].to_list()
        if len(sizes) < FEWEST_BAGS or 2 * max(sizes) > sum(sizes):
            return []
        for name in part:
            counts = rows.group_by(name).agg(pl.len().alias("\0rows"), pl.col(bag).n_unique().alias("\0bags"))
            repeated = counts.filter(pl.col(name).is_not_null() & (pl.col("\0rows") >= REPEATS))
            few = repeated.filter(pl.col("\0bags") <= max(1, len(sizes) // 10))
            n_few, n_repeated = (sum(each["\0rows"].to_list()) for each in (few, repeated))
            if 2 * n_repeated > rows.height and n_few >= 0.9 * n_repeated:
                found.append(name)
    return found


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
            if n > ROWS_FOR_IDS:
                found += [name for i, name in enumerate(part) if values[f"{i} whole"] == values[str(i)] == n]
        return found

    first = search(frame.head(PROBED_ROWS), names)
    return [name for name in first if search(frame, [name])]

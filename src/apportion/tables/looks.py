"""What texts look like that are meant as numbers or dates, and how to write them so that they become such."""

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from apportion.tables.asking import listed, told
from apportion.tables.dialect import dialect_of, is_csv
from apportion.tables.reading import open_table, pl

PROBED = 100_000  # rows that speak for a column
GAPS = {
    "na", "n/a", "#n/a", "n.a.", "n.a", "nan", "null", "none", "nil", "missing", "unknown", "not available",
    "k.a.", "k. a.", "s/o", "-", "--", "–", "—", "?", ".", "..", "...", "…", "*",
}  # fmt: skip
_PLAIN = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
_ANY = r"[+-]?\d[\d.,'’\s\u00a0\u202f]*"  # a number in any country's writing
_MONEY = r"([$€£¥₹₩]|[A-Z]{2}\$|USD|EUR|GBP|CHF|JPY|Kč|kr\.?|zł)"
_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_CLOCK = r"([ T]\d{1,2}:\d{2}.*)?"
_POINTS = r"^[+-]?[1-9]\d{0,2}(\.\d{3})+(,\d+)?$"  # 2.340 as it is written where commas are decimal


class Look(NamedTuple):
    what: str
    pattern: str
    remedy: str


SPACED = Look("numbers with spaces beside them", rf"\s+{_PLAIN}\s*|{_PLAIN}\s+", "write them without spaces")
DECIMAL = Look("numbers with decimal commas", r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+", "write 1,5 as 1.5")
PERCENT = Look("percentages", rf"{_ANY}%", "write 35% as 35")
THOUSANDS = Look(
    "numbers with separators of thousands",
    r"[+-]?[1-9]\d{0,2}([,'’ \u00a0\u202f]\d{3})+(\.\d+)?",
    "write 12,345 as 12345",
)
LOOKS = (
    SPACED,
    THOUSANDS,
    DECIMAL,
    PERCENT,
    Look("amounts of money", rf"[+-]?\s*{_MONEY}\s*{_ANY}|{_ANY}{_MONEY}", "write $1200 as 1200"),
    Look(
        "dates",
        rf"\d{{1,2}}[./-]\d{{1,2}}[./-](\d{{4}}|\d{{2}}){_CLOCK}"
        rf"|(?i:\d{{1,2}}(st|nd|rd|th)?[ .-]*{_MONTH},?[ -]*\d{{2,4}}{_CLOCK})"
        rf"|(?i:{_MONTH} \d{{1,2}}(st|nd|rd|th)?,? \d{{4}}{_CLOCK})",
        "write them as 2020-12-25",
    ),
)


class Seen(NamedTuple):
    """The texts of a column: the look of most that are no plain numbers, and those that mean a gap."""

    look: Look | None
    example: str
    gaps: list[str]  # as they are written; empty unless all else are numbers


def seen_in(frame: pl.LazyFrame, name: str) -> Seen:
    """How the first texts of a column look."""
    texts = frame.select(pl.col(name).cast(pl.String)).head(PROBED).drop_nulls()
    counts = (
        texts.group_by(name).len().sort("len", name, descending=[True, False]).collect(engine="streaming")
    )
    plain = counts[name].str.contains(f"^({_PLAIN})$")
    gap = counts[name].str.strip_chars().str.to_lowercase().is_in(list(GAPS))
    strange = counts.filter(~plain & ~gap)
    if not strange.height:
        return Seen(None, "", counts.filter(gap)[name].to_list() if plain.any() else [])
    found = [_share(strange, name, look) for look in LOOKS]
    most = max(range(len(LOOKS)), key=found.__getitem__)
    if found[most] * 2 <= strange["len"].sum():
        return Seen(None, "", [])
    example = strange.filter(strange[name].str.contains(_whole(LOOKS[most])))[name][0]
    return Seen(LOOKS[most], example, [])


def _whole(look: Look) -> str:
    return f"^({look.pattern})$" if look is SPACED else rf"^\s*({look.pattern})\s*$"


def _share(strange: pl.DataFrame, name: str, look: Look) -> int:
    return int(strange.filter(strange[name].str.contains(_whole(look)))["len"].sum())


def advice(seen: Seen, name: str, *, csv: bool) -> str:
    """What to do with the texts of a column that is meant as numbers or dates; empty where it is not."""
    keep = f"or --categorical {listed([name])} if they are categories"
    if seen.look is not None:
        return f"most texts look like {seen.look.what}, such as {seen.example!r}: {seen.look.remedy}, {keep}"
    if seen.gaps:
        empty = " ".join(f"--missing={quote(text)}" for text in seen.gaps) if csv else "leave these empty"
        return f"{', '.join(map(repr, seen.gaps))} beside numbers: {empty} if that means missing, {keep}"
    return ""


def check_points(
    path: Path, names: Sequence[str], problems: list[str], notes: list[str], *, whole: bool = False,
    missing: Sequence[str] = (),
) -> list[str]:  # fmt: skip
    """The columns whose points are separators of thousands, read as decimal ones: 2.340 beside 921.

    Only where fields are not between commas, or numbers are whole. It is a problem where decimal commas of a
    column or a last zero speak for it, and a note where only three digits do.
    """
    if not is_csv(path) or not (whole or dialect_of(path).separator != ","):
        return []
    texts = open_table(path, texts=None, missing=missing).head(PROBED).collect()
    columns = {name: texts[name].drop_nulls().str.strip_chars() for name in names if name in texts.columns}
    decimal = rf"^({DECIMAL.pattern})$"
    commas = any(2 * column.str.contains(decimal).sum() > len(column) for column in columns.values())
    sure: dict[str, str] = {}
    perhaps: list[str] = []
    for name, column in columns.items():
        points = column.filter(column.str.contains(".", literal=True))
        rest = column.filter(column.str.contains(r"^[+-]?\d+$") & (column != "0"))
        three = len(points) > 0 and points.str.contains(_POINTS).all()
        if not three or points.str.ends_with(".000").all() or rest.str.contains(r"^[+-]?\d{4,}$").any():
            continue
        case = f"{path.name}, column {name!r}, has {points[0]!r}"
        several = points.str.contains(r"\..*\.").any()  # 1.234.567
        if whole or commas or several or (points.str.ends_with("0").any() and len(rest)):
            sure[name] = case
        elif len(rest):
            perhaps.append(case)
    remedy = "write 2.340 as 2340"
    if sure:
        what = "its points look like separators of thousands"
        others = "" if whole else ", or 921 beside it as 921.000 if its point is a decimal one"
        problems.append(told(sure.values(), len(sure), f"{what}; {remedy}{others}"))
    if perhaps:
        what = "read as a decimal point, with three digits after it in all rows"
        notes.append(told(perhaps, len(perhaps), f"{what}; {remedy} if it separates thousands"))
    return list(sure)

"""The feature columns of a table: what each is taken for, and values that no transform can use."""

from datetime import time

from apportion.tables.asking import SHOWN, Asked, folded, listed, told
from apportion.tables.codes import codes
from apportion.tables.columns import KEPT
from apportion.tables.dialect import is_csv
from apportion.tables.looks import advice, check_points, seen_in
from apportion.tables.reading import ROW, numbered_rows, pl
from apportion.tables.transforms import kind_of

PICTURE = r"\.(png|jpe?g|tiff?|bmp|gif|webp|ppm)$"  # how the name of a file of an image ends


def check_features(
    asked: Asked, frame: pl.LazyFrame, problems: list[str], notes: list[str]
) -> dict[str, str]:
    """The kind of every feature column; problems and notes are added to the lists."""
    schema, kinds = frame.collect_schema(), {}
    for name, dtype in schema.items():
        if not name:  # an index that pandas has written, to be named by no option
            notes.append(f"{asked.table.name} has a column without a name; it is left out")
        known = (asked.bag, *asked.beside, asked.given, *asked.shares)
        if not name or name in asked.drop or (name in known and name not in asked.keep):
            continue
        # a bag's name is a category, whatever it looks like
        kind = "category" if name in (*asked.categorical, *asked.keep) else kind_of(dtype)
        if kind is None or (kind == "category" and dtype.is_nested()):
            remedy = f"leave it out with --drop {listed([name])}"
            problems.append(
                f"column {name!r} has values of type {dtype}, for which there is no transform: {remedy}"
            )
        else:
            kinds[name] = kind
    if not kinds:
        problems.append(f"{asked.table.name} has no column for features beside the bags and their shares")
    empty: list[str] = []
    gaps: list[str] = []
    read = [name for name in kinds if name not in asked.categorical]
    pointed = check_points(asked.table, read, problems, notes, missing=asked.missing)
    for name, kind in [(name, kind) for name, kind in kinds.items() if name not in pointed]:
        # of the one column: plans over thousands of columns take long to make
        both = frame.select(*dict.fromkeys(c for c in (asked.bag, name) if c in schema))
        if not _check_column(asked, both, name, kind, problems, notes, empty, gaps):
            del kinds[name]
    notes += folded(gaps, "with gaps")
    notes += codes(asked.table, [name for name, kind in kinds.items() if kind == "number"], asked.missing)
    if empty:
        cases = (f"column {name!r}" for name in empty)
        problems.append(
            told(cases, len(empty), f"no value in any row; leave it out with --drop {listed(empty)}")
        )
    return kinds


def _check_column(
    asked: Asked, frame: pl.LazyFrame, name: str, kind: str, problems: list[str], notes: list[str],
    empty: list[str], gaps: list[str],
) -> bool:  # fmt: skip
    """Whether the column says anything; what is wrong with it is added to the problems."""
    column, dtype = pl.col(name), frame.collect_schema()[name]
    gone = column.is_null() | (column.is_nan() if dtype.is_float() else False)
    seen = frame.select(**_asks(column, dtype, kind, gone)).collect(engine="streaming").row(0, named=True)
    if seen["gone"] == seen["rows"]:
        empty.append(name)
        return True
    filled = seen["rows"] - seen["gone"]
    if seen.get("infinite"):
        remedy = "give a number, or leave it empty where it is missing"
        _name_rows(asked, frame, name, column.is_infinite(), seen["infinite"], remedy, problems)
    meant = _meant(asked, frame, name) if kind == "category" and seen["distinct"] > 1 else ""
    mixed = filled / 2 <= seen.get("numbers", 0) < filled and name not in asked.categorical
    if mixed:
        spoilt = ~_is_number(column) & column.is_not_null()
        texts = f"say which texts mean missing with --missing, or --categorical {listed([name])}"
        remedy = f"most are numbers; {meant or texts}"
        _name_rows(asked, frame, name, spoilt, filled - seen["numbers"], remedy, problems)
    if seen["distinct"] <= 1 and not seen["gone"]:
        notes.append(f"column {name!r} has the same value in all rows; it is left out")
        return False
    if seen.get("times"):
        what = "of which the day and the season become features, the hour and the weekday do not"
        notes.append(f"column {name!r} has times of day, {what}: add columns of these if they matter")
    if seen["gone"]:
        gaps.append(f"column {name!r} is missing in {seen['gone']:,} of {seen['rows']:,} rows")
    if meant and not mixed:
        notes.append(f"column {name!r} becomes categories; {meant}")
    elif kind == "category" and seen["distinct"] > KEPT:
        several = f"{seen['distinct']:,} different texts; the {KEPT} most frequent become features"
        remedy = f"--drop {listed([name])} if it names the rows"
        if seen["pictures"] == filled:
            remedy = f"--image {listed([name])} learns from the images that it names"
        notes.append(f"column {name!r} has {several}, all others one: {remedy}")
    return True


def _asks(column: pl.Expr, dtype: pl.DataType, kind: str, gone: pl.Expr) -> dict[str, pl.Expr]:
    """What is counted of a column."""
    asks = {"rows": pl.len(), "gone": gone.sum()}
    if kind == "category":
        asks |= {"distinct": column.cast(pl.String).drop_nulls().n_unique()}
        ends = column.cast(pl.String).str.to_lowercase().str.contains(PICTURE)
        return asks | {"numbers": _is_number(column).sum(), "pictures": ends.sum()}
    there = column.filter(~gone)
    asks |= {"distinct": 1 + (there.min() != there.max()).cast(pl.Int64)}
    if dtype.is_float():
        asks |= {"infinite": column.is_infinite().sum()}
    if dtype == pl.Datetime:
        asks |= {"times": (column.dt.time() != time(0)).sum()}
    return asks


def _is_number(column: pl.Expr) -> pl.Expr:
    """Whether texts are numbers; nan is none, though it can be read as one."""
    number = column.cast(pl.String).cast(pl.Float64, strict=False)
    return number.is_not_null() & number.is_not_nan().fill_null(False)


def _meant(asked: Asked, frame: pl.LazyFrame, name: str) -> str:
    """What the texts look like that were meant as numbers or dates; nothing of what is called categories."""
    if name in asked.categorical:
        return ""
    return advice(seen_in(frame, name), name, csv=is_csv(asked.table))


def _name_rows(
    asked: Asked, frame: pl.LazyFrame, name: str, wrong: pl.Expr, n: int, remedy: str, problems: list[str]
) -> None:
    columns = [c for c in dict.fromkeys((asked.bag, name)) if c in frame.collect_schema()]
    rows = numbered_rows(frame.select(columns)).filter(wrong).head(SHOWN).collect().to_dicts()
    cases = (
        f"{asked.table.name}, row {row[ROW]}, bag {row.get(asked.bag)!r}, column {name!r}, has {row[name]!r}"
        for row in rows
    )
    problems.append(told(cases, n, remedy))

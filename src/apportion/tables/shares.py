"""The proportions of the bags, from a table of their own or from columns of the instances' table."""

from itertools import islice
from typing import NamedTuple

import numpy as np

from apportion.errors import DataError
from apportion.intake.filling import without_residue
from apportion.tables.asking import SHOWN, Asked, told
from apportion.tables.columns import is_nameless
from apportion.tables.looks import check_points
from apportion.tables.reading import ROW, numbered_rows, open_table, pl, plainly
from apportion.tables.transforms import kind_of, read_as
from apportion.tables.writing import as_number

NO_CLASS = "leave it out of the file, or name the classes with --classes"


class BagTable(NamedTuple):
    place: str  # the file's name
    bags: pl.Series  # (r,) ids in the type of the instances' table
    rows: np.ndarray  # (r,) row numbers from one
    values: np.ndarray  # (r, k) float64, NaN where there is no number
    classes: tuple[str, ...]
    told: np.ndarray  # (r,) rows of which enough was said: a text stands among their numbers

    def case(self, i: int) -> str:
        return f"{self.place}, row {self.rows[i]}, bag {self.bags[int(i)]!r}"


def separate_table(asked: Asked, bags: pl.Series, problems: list[str], notes: list[str]) -> BagTable | None:
    """The rows of the file of proportions or counts; None where its columns are not what was asked for."""
    path, key = asked.proportions or asked.counts, asked.key or asked.bag
    if path is None:
        raise ValueError("no file of proportions or counts was named")
    try:
        with plainly(f"{path} cannot be read"):
            frame = open_table(path, texts=[key], missing=asked.missing).collect()
    except DataError as problem:
        problems.append(str(problem))
        return None
    if key not in frame.columns:
        remedy = "rename the column of the bags, or name it with --key"
        problems.append(f"{path.name} has no column {key!r} but {_list(frame.columns)}: {remedy}")
        return None
    classes = asked.classes or _class_columns(frame, key, path.name, problems)
    for name in (name for name in classes if name not in frame.columns):
        problems.append(f"{path.name} has no column {name!r} for that class; it has {_list(frame.columns)}")
        return None
    if check_points(path, classes, problems, notes, whole=asked.counts is not None and not asked.noise):
        return None
    frame = frame.with_row_index(ROW, offset=1)
    ids = _as_ids(frame[key], bags.dtype)
    lost = frame.filter(ids.is_null())
    if len(bags) and lost.height == frame.height and frame[key].null_count() < frame.height:
        problems.append(strange_ids(asked, bags, path.name, frame[key].drop_nulls()[0]))
        return None
    if lost.height:
        cases = (f"{path.name}, row {row}, has bag {bag!r}" for row, bag in lost.select(ROW, key).rows())
        remedy = f"give a bag's id, of type {bags.dtype} as in {asked.table.name}"
        problems.append(told(islice(cases, SHOWN), lost.height, remedy))
    frame, ids = frame.filter(ids.is_not_null()), ids.drop_nulls()
    if not frame.height:
        problems.append(f"{path.name} has no row with a bag of {asked.table.name}; give a row a bag")
        return None
    columns = [frame[name].cast(pl.Float64, strict=False).to_numpy() for name in classes]
    values = without_residue(np.column_stack(columns)) if columns else np.zeros((frame.height, 0))
    table = BagTable(path.name, ids, frame[ROW].to_numpy(), values, classes, np.zeros(len(values), bool))
    here = ids.is_in(bags.implode()).to_numpy()
    _name_texts(frame, table, here, problems, counts=asked.counts is not None)
    return table


def strange_ids(asked: Asked, bags: pl.Series, place: str, other: object) -> str:
    """What is wrong where no bag of one table stands in the other."""
    what = f"no bag of {asked.table.name} is in {place}: the one has {bags[0]!r}, the other {other!r}"
    float_ids = " (pandas writes 1.0 for 1 where an id is missing: astype('Int64') mends it)"
    pandas = float_ids if any(str(one).endswith(".0") for one in (bags[0], other)) else ""
    return f"{what}: write the ids alike in both{pandas}, or name the right columns with --bag and --key"


def _class_columns(frame: pl.DataFrame, key: str, place: str, problems: list[str]) -> tuple[str, ...]:
    """All columns beside the bags' that have a name; one without is told of, not taken for a class."""
    names = [name for name in frame.columns if name != key]
    for name in filter(is_nameless, names):
        what = f"{place}, column {frame.columns.index(name) + 1}, has no name ({name!r})"
        problems.append(f"{what}; it may be an index of pandas (index=False writes none): {NO_CLASS}")
    return tuple(name for name in names if not is_nameless(name))


def _as_ids(values: pl.Series, dtype: pl.DataType) -> pl.Series:
    """Ids in the type of the instances' table; null where they cannot be."""
    if values.dtype == pl.String and (kind := kind_of(dtype)) in ("date", "boolean"):
        return read_as(values, kind).cast(dtype, strict=False)
    ids, whole = values.cast(dtype, strict=False), dtype.is_integer() or dtype == pl.Date
    cut = whole and values.dtype != pl.String  # 1.5 is not bag 1
    return ids.set(ids.cast(values.dtype, strict=False) != values, None) if cut else ids


def _name_texts(
    frame: pl.DataFrame, table: BagTable, known: np.ndarray, problems: list[str], *, counts: bool
) -> None:
    for j, name in enumerate(table.classes):
        column = frame[name]
        bad = np.flatnonzero(np.isnan(table.values[:, j]) & column.is_not_null().to_numpy() & known)
        if len(bad) and column.dtype == pl.String:
            cases = (f"{table.case(i)}, has {column[i]!r} for class {name!r}" for i in bad.tolist())
            remedy = as_number([column[i] for i in bad.tolist()], name, counts=counts)
            problems.append(told(islice(cases, SHOWN), len(bad), remedy))
            table.told[bad] = True


def shares_in_table(asked: Asked, frame: pl.LazyFrame, problems: list[str]) -> BagTable:
    """One row a bag from columns that repeat its shares; rows of a bag that disagree are a problem."""
    numbers = [pl.col(name).cast(pl.Float64, strict=False).fill_nan(None) for name in asked.shares]
    rows = numbered_rows(frame.select(asked.bag, *numbers)).filter(pl.col(asked.bag).is_not_null())
    grouped = rows.group_by(asked.bag).agg(
        pl.col(ROW).min(),
        *(pl.col(name).first() for name in asked.shares),
        *((pl.col(name).max() - pl.col(name).min()).alias(f"{ROW}{name}") for name in asked.shares),
        *((pl.col(name).null_count()).alias(f"{ROW}{ROW}{name}") for name in asked.shares),
    )
    found = grouped.sort(asked.bag).collect(engine="streaming")
    values = without_residue(np.column_stack([found[name].to_numpy() for name in asked.shares]))
    no = np.zeros(len(values), bool)
    table = BagTable(asked.table.name, found[asked.bag], found[ROW].to_numpy(), values, asked.shares, no)
    for name in asked.shares:
        apart = found.filter((pl.col(f"{ROW}{name}") > 1e-6) | (pl.col(f"{ROW}{ROW}{name}") > 0))
        apart = apart.filter(pl.col(name).is_not_null())  # else it is told as a missing number
        if apart.height:
            one = apart.head(SHOWN).select(asked.bag, pl.col(name).alias(f"{ROW}first"))
            other = rows.join(one.lazy(), on=asked.bag).filter(
                pl.col(name).is_null() | ((pl.col(name) - pl.col(f"{ROW}first")).abs() > 1e-6)
            )
            first = other.group_by(asked.bag).agg(pl.all().sort_by(ROW).first()).sort(ROW).collect()
            cases = (
                f"{table.place}, row {row[ROW]}, bag {row[asked.bag]!r}, has {row[name]} for class {name!r} "
                f"where the bag's first row has {row[f'{ROW}first']}"
                for row in first.to_dicts()
            )
            problems.append(told(cases, apart.height, "every row repeats the shares of its whole bag"))
    return table


def _list(names: list[str]) -> str:
    return ", ".join(map(repr, names[:20])) + (", …" if len(names) > 20 else "")

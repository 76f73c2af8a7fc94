"""What is wrong with the tables: all of it, with row and bag named, before anything is trained or written."""

from collections.abc import Sequence

import numpy as np

from apportion.errors import DataError
from apportion.tables.amounts import check_options, check_sums, check_values, shares_of
from apportion.tables.asking import Asked, Found, told
from apportion.tables.columns import Column
from apportion.tables.giveaways import note_giveaways
from apportion.tables.labels import check_given
from apportion.tables.meeting import check_names
from apportion.tables.pictures import check_pictures
from apportion.tables.reading import ROW, numbered_rows, of_table, open_table, pl
from apportion.tables.shares import BagTable, separate_table, shares_in_table
from apportion.tables.strangers import without_strangers
from apportion.tables.values import check_features


@of_table
def check(asked: Asked, *, learn: bool = True, kinds: dict[str, str] | None = None) -> Found:
    """Go through both tables; nothing of the instances is held in memory but one column at a time. Where
    nothing is to be learned, features may be empty and all bags alike, and no kinds are found. Features whose
    `kinds` are known have been gone through already."""
    problems, notes, image = list[str](), list[str](), None
    frame = open_table(asked.table, texts=asked.texts, missing=asked.missing)
    schema = frame.collect_schema()
    _check_columns(asked, schema.names(), problems)
    if not frame.select(pl.len()).collect().item():
        return Found([*problems, f"{asked.table.name} has no rows: give a row an instance"])
    one_source = _check_sources(asked, problems)
    check_options(asked, problems)
    if learn and kinds is None:
        kinds, image = _check_instances(asked, frame, problems, notes)
    if not one_source or asked.bag not in schema or not set(asked.shares) <= set(schema):
        return Found(problems, notes)
    bags = _bags_of(asked, frame, problems)
    if asked.shares:
        table: BagTable | None = shares_in_table(asked, frame, problems)
    else:
        table = separate_table(asked, bags[asked.bag], problems, notes)
    if table is None or not bags.height:
        return Found(problems, notes)
    table, place = check_names(table, bags, asked, problems, notes)
    sizes = bags["len"].to_numpy().astype(np.int64)
    table = without_strangers(table, place, sizes, asked, problems, notes)
    check_values(table, asked, problems)
    check_given(asked, frame, table.classes, problems)
    check_sums(table, place, sizes, asked, problems)
    if problems:
        return Found(problems, notes)
    values = np.where(place[:, None] < 0, np.nan, table.values[place])  # a bag without a row has none
    shares = shares_of(values, sizes, asked)
    known = shares[np.isfinite(shares).all(1)]
    if not len(known):
        return Found(["no bag has proportions, so that there is nothing to learn from"], notes)
    if learn:
        (notes if asked.beside else problems).extend(_alike(known, asked))
        note_giveaways(asked, frame, {} if asked.image else kinds or {}, table.classes, notes)
        notes.insert(0, _summary(asked, sizes, known, table.classes))
    return Found(problems, notes, kinds or {}, bags[asked.bag], sizes, shares, table.classes, image)


def _check_instances(
    asked: Asked, frame: pl.LazyFrame, problems: list[str], notes: list[str]
) -> tuple[dict[str, str], Column | None]:
    """The kinds of the columns that are learned from, and how files become images where these are."""
    if asked.image:
        return {asked.image: "image"}, check_pictures(asked, frame, problems, notes)
    return check_features(asked, frame, problems, notes), None


def _alike(shares: np.ndarray, asked: Asked) -> list[str]:
    """What to say of bags that are all alike; beside those of another grouping they do no harm."""
    if np.ptp(shares, axis=0).max() >= 1e-6:
        return []
    bags = f"all bags by {asked.bag!r}" if asked.beside else "all bags"
    return [f"{bags} have the same proportions, so that nothing tells the classes apart"]


def _check_columns(asked: Asked, there: Sequence[str], problems: list[str]) -> None:
    """The words of the question: columns that the table does not have, or that are named twice."""
    named = {"--bag": (asked.bag,), "--shares": asked.shares, "--drop": asked.drop}
    named |= {"--given": (asked.given,) if asked.given else (), "--keep": asked.keep}
    named |= {"--image": (asked.image,) if asked.image else ()}
    for option, names in (named | {"--categorical": asked.categorical}).items():
        for name in (name for name in names if name not in there):
            columns = ", ".join(map(repr, there[:20])) + (", …" if len(there) > 20 else "")
            problems.append(f"{asked.table.name} has no column {name!r} ({option}); it has {columns}")
    for name in (name for name in asked.keep if name in asked.drop or name not in (asked.bag, *asked.beside)):
        what = "is dropped, too" if name in asked.drop else "is no --bag, and a feature anyway"
        problems.append(f"column {name!r} (--keep) {what}: leave it out of --keep")
    if asked.image and (asked.categorical or asked.keep):
        problems.append("images alone are learned from: leave --categorical and --keep out beside --image")
    if asked.image and asked.image in asked.drop:
        problems.append(f"column {asked.image!r} (--image) is dropped, too: leave it out of --drop")
    known = (asked.bag, *asked.beside, *asked.shares, *((asked.image,) if asked.image else ()))
    if len(set(known)) < len(known) or len(set(asked.classes)) < len(asked.classes):
        problems.append("a column is named twice among bag, image, shares and classes: name each once")


def _check_sources(asked: Asked, problems: list[str]) -> bool:
    """Whether the proportions come from one place."""
    given = [asked.proportions is not None, asked.counts is not None, bool(asked.shares)]
    if sum(given) != 1:
        remedy = "pass one of --proportions FILE, --counts FILE and --shares COLUMNS"
        problems.append(f"the proportions of the bags come from {sum(given)} places: {remedy}")
    return sum(given) == 1


def _bags_of(asked: Asked, frame: pl.LazyFrame, problems: list[str]) -> pl.DataFrame:
    """Sorted bags with their sizes and first rows; rows without a bag are a problem."""
    name = pl.col(asked.bag)
    grouped = numbered_rows(frame.select(asked.bag)).group_by(asked.bag).agg(pl.len(), pl.col(ROW).min())
    found = grouped.collect(engine="streaming")
    if found[asked.bag].dtype in (pl.Categorical, pl.Enum):
        found = found.with_columns(name.cast(pl.String))
    lost = name.is_null() | (name.is_nan() if found[asked.bag].dtype.is_float() else False)
    for row in found.filter(lost).to_dicts():
        cases = [f"{asked.table.name} has {row['len']:,} rows without a bag, first row {row[ROW]}"]
        problems.append(told(cases, 1, f"fill in the column {asked.bag!r} or leave these rows out"))
    return found.filter(~lost).sort(asked.bag)


def _summary(asked: Asked, sizes: np.ndarray, shares: np.ndarray, classes: tuple[str, ...]) -> str:
    spread = ", ".join(
        f"{name} {100 * low:.3g} to {100 * high:.3g} %"
        for name, low, high in zip(classes, shares.min(0), shares.max(0), strict=True)
    )
    middle = f"{sizes.min():,} to {sizes.max():,} rows, half of them at most {int(np.median(sizes)):,}"
    by = f" by {asked.bag!r}" if asked.beside else ""
    return f"{asked.table.name}: {sizes.sum():,} rows in {len(sizes):,} bags{by} of {middle}; {spread}"


def refuse(found: Found) -> None:
    """An error with all problems, a line each, where there are any."""
    if found.problems:
        n = len(found.problems)
        lines = "".join(f"\n  {problem}" for problem in found.problems)
        raise DataError(f"{n} thing{'s are' if n > 1 else ' is'} wrong; nothing was written{lines}")

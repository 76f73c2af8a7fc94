"""Feature columns that give more away than they should: a class, which bag a row is of, its number.

They are noted and taken all the same, as a region or a price may look like this too.
"""

from collections.abc import Iterator, Mapping, Sequence

from apportion.tables.asking import Asked, listed, told
from apportion.tables.columns import KEPT
from apportion.tables.reading import pl

PROBED = 10_000  # rows that speak for nearly all columns: only those left over are gone through whole
AT_ONCE = 64  # columns: plans over thousands take long to make


def note_giveaways(
    asked: Asked, frame: pl.LazyFrame, kinds: Mapping[str, str], classes: Sequence[str], notes: list[str]
) -> None:
    """Add a note for each feature column that is no fair one, with the option that leaves it out."""
    known = {name.strip().casefold(): name for name in classes}
    named = [name for name in kinds if name.strip().casefold() in known]
    _note(named, "named as a class and taken as a feature", "if it holds shares or labels", notes)
    texts = [name for name, kind in kinds.items() if kind == "category" and name not in named]
    labels = _labels(frame, texts, [name.strip().lower() for name in classes])
    _note(labels, "the classes are its values, and it is taken as a feature", "if it holds labels", notes)
    named += labels
    steady = _steady(frame, asked.bag, [name for name in kinds if name not in (*named, *asked.keep)])
    what = "the same value in all rows of a bag says which bag a row is of, so that held-out bags are told"
    _note(steady, f"{what} too well", "if that is not meant", notes)
    numbers = [n for n, kind in kinds.items() if kind == "number" and n not in (*named, *steady)]
    what = "another whole number in every row"
    _note(_numbering(frame, numbers), what, "if it counts or names the rows", notes)


def _note(names: Sequence[str], what: str, when: str, notes: list[str]) -> None:
    """One note for all columns of a sort: of tables about bags there may be hundreds."""
    if names:
        cases = (f"column {name!r}" for name in names)
        notes.append(told(cases, len(names), f"{what}; --drop {listed(names)} {when}"))


def _parts(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[at : at + AT_ONCE] for at in range(0, len(names), AT_ONCE))


def _labels(frame: pl.LazyFrame, names: Sequence[str], classes: Sequence[str]) -> list[str]:
    """Columns of texts of which each is a class, in whatever case, and not all the same."""
    left = [name for part in _parts(names) for name in _labels_in(frame.head(PROBED), part, classes)]
    return [name for part in _parts(left) for name in _labels_in(frame, part, classes, least=2)]


def _labels_in(
    frame: pl.LazyFrame, names: Sequence[str], classes: Sequence[str], *, least: int = 0
) -> list[str]:
    asks = []
    for i, name in enumerate(names):
        text = pl.col(name).cast(pl.String).str.strip_chars().str.to_lowercase().drop_nulls()
        asks.append((text.is_in(list(classes)).all() & (text.n_unique() >= least)).alias(str(i)))
    seen = frame.select(asks).collect(engine="streaming").row(0) if asks else ()
    return [name for name, same in zip(names, seen, strict=True) if same]


def _steady(frame: pl.LazyFrame, bag: str, names: Sequence[str]) -> list[str]:
    """Columns with one value in each bag; none where bags have a row each, or there is one bag."""
    left = [name for part in _parts(names) for name in _steady_in(frame.head(PROBED), bag, part)]
    return [name for part in _parts(left) for name in _steady_in(frame, bag, part, whole=True)]


def _steady_in(frame: pl.LazyFrame, bag: str, names: Sequence[str], *, whole: bool = False) -> list[str]:
    # hashes, as of texts the least and the largest would be slow to find; a missing value has one too
    values = [pl.col(name).hash().alias(str(i)) for i, name in enumerate(names)]
    same = [(pl.col(str(i)).min() == pl.col(str(i)).max()) for i in range(len(names))]
    rows = frame.select(pl.col(bag).alias("bag"), *values).drop_nulls("bag")
    grouped = rows.group_by("bag").agg(pl.len().alias("rows"), *same)
    asks = [pl.len().alias("bags"), pl.col("rows").max(), *(pl.col(str(i)).all() for i in range(len(names)))]
    seen = grouped.select(asks).collect(engine="streaming").row(0, named=True)
    if whole and (seen["bags"] < 2 or (seen["rows"] or 0) < 2):
        return []
    return [name for i, name in enumerate(names) if seen[str(i)]]


def _numbering(frame: pl.LazyFrame, names: Sequence[str]) -> list[str]:
    """Columns of whole numbers that are all there and all different; few rows prove nothing."""
    left = [name for part in _parts(names) for name in _numbering_in(frame.head(PROBED), part)]
    return [name for name in left if _numbering_in(frame, [name])]


def _numbering_in(frame: pl.LazyFrame, names: Sequence[str]) -> list[str]:
    asks = [pl.len().alias("rows")]
    for i, name in enumerate(names):
        asks += [(pl.col(name) % 1 == 0).sum().alias(f"{i} whole"), pl.col(name).n_unique().alias(f"{i}")]
    seen = frame.select(asks).collect(engine="streaming").row(0, named=True)
    if seen["rows"] <= KEPT:
        return []
    return [name for i, name in enumerate(names) if seen[f"{i} whole"] == seen[f"{i}"] == seen["rows"]]

"""The bags of both tables meet by their ids: each stands in both, once."""

import numpy as np

from apportion.intake.twins import written_otherwise
from apportion.tables.asking import SHOWN, Asked, told
from apportion.tables.reading import ROW, pl
from apportion.tables.shares import BagTable, strange_ids


def check_names(
    table: BagTable, bags: pl.DataFrame, asked: Asked, problems: list[str], notes: list[str]
) -> np.ndarray:
    """The row of each bag in the table of proportions, -1 for none: both have the same bags, each once."""
    key = asked.bag
    given = pl.DataFrame({key: table.bags, "at": pl.int_range(len(table.bags), eager=True)})
    known = bags.join(given.unique(key, keep="first"), on=key, how="left", maintain_order="left")
    lost = known.filter(pl.col("at").is_null())
    strange = given.filter(~pl.col(key).is_in(bags[key].implode()))[key]
    if strange.dtype == pl.String and (pairs := written_otherwise(lost[key], strange)):
        cases = [f"bag {name!r} of {table.place} {how} in {asked.table.name}" for name, how in pairs[:SHOWN]]
        problems.append(told(cases, len(pairs), "write both alike"))
        return known["at"].fill_null(-1).to_numpy()
    if lost.height == known.height:
        problems.append(strange_ids(asked, bags[key], table.place, table.bags[0]))
        return np.full(known.height, -1)
    twice = given.filter(pl.col(key).is_duplicated()).sort(key, "at")
    if twice.height:
        cases = (table.case(i) for i in twice["at"].head(SHOWN).to_list())
        problems.append(told(cases, twice.height, "these bags stand in several rows; keep one row a bag"))
    if lost.height and asked.unlabelled:
        notes.append(f"{lost.height:,} bags have no row in {table.place}; they are without proportions")
    elif lost.height:
        cases = (
            f"bag {row[key]!r} ({row['len']} rows of {asked.table.name}, first row {row[ROW]})"
            for row in lost.head(SHOWN).to_dicts()
        )
        remedy = "add it, leave these rows out, or pass --unlabelled"
        problems.append(told(cases, lost.height, f"no row in {table.place}; {remedy}"))
    empty = given.join(bags, on=key, how="anti").sort("at")
    if empty.height:
        cases = (table.case(i) for i in empty["at"].head(SHOWN).to_list())
        problems.append(
            told(cases, empty.height, f"no row in {asked.table.name}; drop it from {table.place}")
        )
    return known["at"].fill_null(-1).to_numpy()  # -1: no row

"""The bags of both tables meet by their ids: those of the instances stand in the other, each once."""

import numpy as np

from apportion.intake.remedies import ONE_ROW
from apportion.intake.twins import written_otherwise
from apportion.tables.asking import SHOWN, Asked, told
from apportion.tables.reading import ROW, pl
from apportion.tables.shares import BagTable, strange_ids


def check_names(
    table: BagTable, bags: pl.DataFrame, asked: Asked, problems: list[str], notes: list[str]
) -> tuple[BagTable, np.ndarray]:
    """The table of proportions with the rows of these bags alone, and which is each bag's, -1 for none."""
    key = asked.bag
    there, lost = table.bags.is_in(bags[key].implode()), ~bags[key].is_in(table.bags.implode())
    strange = table.bags.filter(~there)
    if strange.dtype == pl.String and (pairs := written_otherwise(bags[key].filter(lost), strange)):
        cases = [f"bag {name!r} of {table.place} {how} in {asked.table.name}" for name, how in pairs[:SHOWN]]
        problems.append(told(cases, len(pairs), "write both alike"))
        return table, _places(table, bags, key)
    if lost.all():
        problems.append(strange_ids(asked, bags[key], table.place, table.bags[0]))
        return table, np.full(bags.height, -1)
    if len(strange):
        what = f"{table.place} has {len(strange):,} rows of bags that {asked.table.name} has not"
        notes.append(f"{what}, such as {strange[0]!r}; they are left out")
        table = _rows(table, there.to_numpy())
    twice = pl.DataFrame({key: table.bags}).with_row_index("at").filter(pl.col(key).is_duplicated())
    if twice.height:
        cases = [table.case(i) for i in twice.sort(key, "at")["at"].head(SHOWN).to_list()]
        problems.append(told(cases, twice.height, f"these bags stand in several rows; {ONE_ROW}"))
    without = bags.filter(lost)
    if without.height and asked.unlabeled:
        notes.append(f"{without.height:,} bags have no row in {table.place}; they are without proportions")
    elif without.height:
        cases = [
            f"bag {row[key]!r} ({row['len']} rows of {asked.table.name}, first row {row[ROW]})"
            for row in without.head(SHOWN).to_dicts()
        ]
        remedy = "add it, leave these rows out, or pass --unlabeled"
        problems.append(told(cases, without.height, f"no row in {table.place}; {remedy}"))
    return table, _places(table, bags, key)


def _rows(table: BagTable, kept: np.ndarray) -> BagTable:
    parts = {"rows": table.rows[kept], "values": table.values[kept], "told": table.told[kept]}
    return table._replace(bags=table.bags.filter(pl.Series(kept)), **parts)


def _places(table: BagTable, bags: pl.DataFrame, key: str) -> np.ndarray:
    """(m,) the first row of each bag in the table, -1 for none."""
    given = pl.DataFrame({key: table.bags, "at": pl.int_range(len(table.bags), eager=True)})
    known = bags.join(given.unique(key, keep="first"), on=key, how="left", maintain_order="left")
    return known["at"].fill_null(-1).to_numpy()

"""A column of the table that gives the class of a few rows; it is empty in all others."""

from apportion.tables.asking import SHOWN, Asked, told
from apportion.tables.reading import ROW, numbered_rows, of_table, open_table, pl


def check_given(asked: Asked, frame: pl.LazyFrame, classes: tuple[str, ...], problems: list[str]) -> None:
    """Given labels that are no class."""
    if not asked.given or asked.given not in frame.collect_schema():
        return  # a column that is not there is told of with all others
    label = pl.col(asked.given).cast(pl.String)
    rows = numbered_rows(frame.select(asked.given)).filter(~label.is_in(list(classes))).collect()
    if rows.height:
        cases = (
            f"{asked.table.name}, row {row[ROW]}, is given as {row[asked.given]!r}"
            for row in rows.head(SHOWN).to_dicts()
        )
        problems.append(told(cases, rows.height, f"give one of {', '.join(classes)}, or leave it empty"))


@of_table
def given_labels(asked: Asked) -> dict[int, str]:
    """{row: class} of the rows whose class is given, counted from zero."""
    if not asked.given:
        return {}
    frame = open_table(asked.table, texts=asked.texts, missing=asked.missing).select(asked.given)
    rows = numbered_rows(frame).filter(pl.col(asked.given).is_not_null()).collect()
    return {row - 1: str(name) for row, name in rows.select(ROW, pl.col(asked.given).cast(pl.String)).rows()}

"""What rows to be scored have that those of training had not: gaps, categories and far numbers, for notes."""

from collections.abc import Sequence

from apportion.tables.asking import folded
from apportion.tables.columns import Column
from apportion.tables.reading import pl
from apportion.tables.transforms import has_other

FAR = 10  # deviations from the mean: of training at most one row in FAR² was as far (Chebyshev)


def unlike(frame: pl.LazyFrame, columns: Sequence[Column]) -> list[str]:
    """Notes on columns whose values no feature tells as they are; the rows are gone over once."""
    columns = [column for column in columns if column.kind != "image"]
    kinds = frame.collect_schema()
    asks = [pl.len().alias("rows")]
    for i, column in enumerate(columns):
        value = pl.col(column.name)
        gone = value.is_null() | value.is_nan() if kinds[column.name].is_float() else value.is_null()
        asks.append(gone.sum().alias(f"gaps {i}"))
        if column.kind == "category":
            text = value.cast(pl.String)
            new = text.is_not_null() & ~text.is_in(list(column.categories))
            asks += [new.sum().alias(f"new {i}"), text.filter(new).first().alias(f"such {i}")]
        if column.kind == "number":
            number = value.cast(pl.Float64, strict=False)
            far = ((number - column.mean).abs() > FAR * column.scale) & number.is_not_nan()
            asks += [far.sum().alias(f"far {i}"), number.filter(far).first().alias(f"such {i}")]
    found = frame.select(asks).collect(engine="streaming").row(0, named=True)
    rows, gone, strange, distant = found["rows"], [], [], []
    for i, column in enumerate(columns):
        gaps, new, far = (found.get(f"{what} {i}", 0) for what in ("gaps", "new", "far"))
        if gaps and not column.flag:
            what = f"column {column.name!r} is missing in {gaps:,} of {rows:,} rows, training had none"
            gone.append(f"{what}; {_taken_for(column)}")
        if new and (new == rows or not has_other(column)):
            what = f"column {column.name!r} has texts that training had not in {new:,} of {rows:,} rows"
            strange.append(f"{what}, such as {_beside(found[f'such {i}'], column)}; {_taken_for(column)}")
        if far > rows / FAR**2:
            what = f"column {column.name!r} is far from training's in {far:,} of {rows:,} rows"
            told = f"mean {column.mean:.4g}, deviation {column.scale:.4g}"
            distant.append(f"{what}, such as {found[f'such {i}']:.4g} ({told}); is its unit the same?")
    return [
        *folded(gone, "with gaps that training had not"),
        *folded(strange, "with texts that training had not"),
        *folded(distant, "that are far from training's"),
    ]


def _taken_for(column: Column) -> str:
    if column.kind == "category":
        return "they count as 'other'" if has_other(column) else "they count as the mean of its categories"
    return "they count as the " + ("more frequent value" if column.kind == "boolean" else "median")


def _beside(value: str, column: Column) -> str:
    """The text, and one of training that differs from it by case and space alone."""
    twins = (each for each in column.categories if each.strip().lower() == value.strip().lower())
    twin = next(twins, None)
    return repr(value) if twin is None else f"{value!r} (it had {twin!r})"

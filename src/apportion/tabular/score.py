"""From a model and a table of new rows to the same table with predictions."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from apportion._device import resolve_device
from apportion.bags.arrays import as_floats
from apportion.errors import DataError
from apportion.evaluate import predict_log_proba_on
from apportion.models import Model
from apportion.tables.asking import SHOWN, told
from apportion.tables.columns import Column
from apportion.tables.dialect import dialect_of, is_csv
from apportion.tables.looks import check_points
from apportion.tables.pictures import at_once, instances_of
from apportion.tables.reading import BATCH, batches, open_table, pl, plainly
from apportion.tables.transforms import read_as
from apportion.tabular.told import columns_of, missing_of, name_spoilt
from apportion.tabular.unlike import unlike


def score_table(
    model: Model,
    table: Path,
    missing: tuple[str, ...] = (),
    *,
    typed: bool = False,
    notes: list[str] | None = None,
    shares: np.ndarray | None = None,
    device: str = "auto",
) -> pl.LazyFrame:
    """The table with a column for the predicted class and one for the probability of each.

    What a CSV holds stays as it was written, but for decimal commas in numbers that the model takes. `typed`
    is for files that have types: columns that the model takes for numbers, dates or truth values become
    such, and all others stay texts, as 007 is not 7. Gaps, categories and numbers unlike training's are
    noted. `shares` are the probabilities, where they are known already.
    """
    columns, texts = columns_of(model), tuple(dict.fromkeys((*missing_of(model), *missing)))
    with plainly(f"{table} cannot be read"):
        frame = _pointed(open_table(table, texts=None, missing=texts), table, columns)
        notes = [] if notes is None else notes
        scored = _scored_table(model, frame, table, notes, shares, texts, device)
        notes += unlike(frame, columns)
        if not is_csv(table):
            return pl.concat([frame, scored.lazy()], how="horizontal")
        given = _pointed(open_table(table, texts=None), table, columns) if texts else frame
        if typed:
            given = given.with_columns(_typed(frame, column) for column in columns)
        return pl.concat([given, scored.lazy()], how="horizontal")


def _pointed(frame: pl.LazyFrame, table: Path, columns: Sequence[Column]) -> pl.LazyFrame:
    """The numbers that the model takes with decimal points, where the CSV has commas in them."""
    if not is_csv(table) or not dialect_of(table).decimal_comma:
        return frame
    there = frame.collect_schema().names()
    names = [column.name for column in columns if column.kind == "number" and column.name in there]
    number = r"^(\s*[+-]?\d*),(\d*([eE][+-]?\d+)?\s*)$"  # what is none is told of as it was written
    return frame.with_columns(pl.col(name).str.replace(number, "${1}.${2}") for name in names)


def _typed(frame: pl.LazyFrame, column: Column) -> pl.Series:
    """A column of texts as what the model takes it for; whole numbers where all are."""
    values = read_as(frame.select(column.name).collect()[column.name], column.kind)
    if (
        column.kind == "number"
        and bool((values == values.round()).all())
        and bool((values.abs() < 1 << 53).all())
    ):
        return values.cast(pl.Int64)
    return values


def _scored_table(
    model: Model, frame: pl.LazyFrame, table: Path, notes: list[str], known: np.ndarray | None,
    missing: Sequence[str], device: str,
) -> pl.DataFrame:  # fmt: skip
    """The columns that are added."""
    there = frame.collect_schema().names()
    names = [column.name for column in columns_of(model)]
    added = ["predicted", *(f"p({c})" for c in model.classes)]
    problems = [
        f"{table.name} has no column {name!r}, which the model takes" for name in names if name not in there
    ]
    problems += [f"{table.name} has a column {name!r} already; rename it" for name in added if name in there]
    numbers = [column.name for column in columns_of(model) if column.kind == "number"]
    check_points(table, numbers, problems, notes, missing=missing)
    shares = [] if known is None else [known]
    if known is None and not problems:
        most = at_once(columns_of(model), BATCH)
        shares = [_scored(model, part, problems, table, device) for part in _parts(frame, names, most)]
    if problems:
        lines = "".join(f"\n  {problem}" for problem in problems)
        raise DataError(f"{table.name} cannot be scored; nothing was written{lines}")
    values = np.concatenate(shares) if shares else np.zeros((0, len(model.classes)), np.float32)
    classes = pl.Series("predicted", list(model.classes))
    predicted = classes.gather(values.argmax(1)) if len(values) else classes.clear()
    return pl.DataFrame([predicted, *(pl.Series(n, values[:, i]) for i, n in enumerate(added[1:]))])


def _parts(frame: pl.LazyFrame, names: list[str], most: int) -> Iterator[tuple[int, pl.DataFrame]]:
    at = 0
    for part in batches(frame, names):
        for rows in part.iter_slices(most):
            yield at, rows
            at += rows.height


def _scored(
    model: Model, part: tuple[int, pl.DataFrame], problems: list[str], table: Path, device: str
) -> np.ndarray:
    """Probabilities (n, k) of some rows; values that no transform can use are added to the problems."""
    at, rows = part
    columns = columns_of(model)
    name_spoilt(columns, rows, at, table.name, problems)
    ready = not problems or columns[0].kind == "image"  # of which all that cannot be read are named
    instances = instances_of(columns, rows, table, at, problems) if ready else np.zeros(0)
    if problems:
        return np.zeros((rows.height, len(model.classes)), np.float32)
    x = torch.from_numpy(instances)
    shares = predict_log_proba_on(resolve_device(device, x), model.network, x, as_floats).exp().numpy()
    bad = np.flatnonzero(np.isnan(shares).any(1))
    if len(bad):
        cases = (f"{table.name}, row {at + i + 1}, has no probabilities" for i in bad[:SHOWN].tolist())
        problems.append(told(cases, len(bad), "a number in it, or in the model, is too large"))
    return shares

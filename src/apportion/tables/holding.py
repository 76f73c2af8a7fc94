"""From checked tables to bags: features are written once, straight to the place of their row."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from apportion.bags import Bags
from apportion.tables.asking import Asked, Found
from apportion.tables.columns import Column
from apportion.tables.reading import batches, of_table, open_table, pl
from apportion.tables.transforms import features_of, fit_column

SLICE = 1 << 14  # rows whose features are made at once: they stay in the processor's cache


Divide = Callable[[Bags], Sequence[Bags]]  # the bags that are learnt from, then others


def hold(
    asked: Asked, found: Found, columns: tuple[Column, ...] | None = None
) -> tuple[Bags, tuple[Column, ...]]:
    """The bags of the table, with the transforms that were fitted on its rows, unless some are given."""
    (bags,), columns = hold_parts(asked, found, lambda bags: [bags], columns)
    return bags, columns


@of_table
def hold_parts(
    asked: Asked, found: Found, divide: Divide, columns: tuple[Column, ...] | None = None
) -> tuple[list[Bags], tuple[Column, ...]]:
    """The table's bags in parts, with transforms that were fitted on the rows of the first, unless given.

    The bags are divided while they have no features, so that these are made in one pass and held once; one
    column and one batch of rows are in memory beside them.
    """
    texts = (asked.bag, asked.given, *asked.categorical)  # as the check has read it: types are remembered
    frame = open_table(asked.table, texts=texts, missing=asked.missing)
    order = torch.from_numpy(_order(frame, asked.bag, found.names, int(found.sizes.sum())))
    shares, sizes = torch.from_numpy(found.shares).float(), torch.from_numpy(found.sizes)
    parts = divide(Bags(torch.empty(len(order), 0), sizes, shares, order, found.names.to_list()))
    if columns is None:
        learnt = np.zeros(len(order), bool)
        learnt[parts[0].source.numpy()] = True
        series = ((frame.select(name).collect()[name], kind) for name, kind in found.kinds.items())
        columns = tuple(fit_column(c if learnt.all() else c.filter(learnt), kind) for c, kind in series)
    return _with_features(frame, columns, parts), columns


def _with_features(frame: pl.LazyFrame, columns: Sequence[Column], parts: Sequence[Bags]) -> list[Bags]:
    whole = parts[0].source if len(parts) == 1 else torch.cat([part.source for part in parts])
    source = whole.numpy()
    place = np.empty(len(source), np.int32 if len(source) < 2**31 else np.int64)
    place[source] = np.arange(len(source), dtype=place.dtype)
    x = np.empty((len(source), sum(len(column.features) for column in columns)), np.float32)
    at = 0
    for part in batches(frame, [column.name for column in columns]):
        for rows in part.iter_slices(SLICE):
            x[place[at : at + rows.height]] = features_of(columns, rows)
            at += rows.height
    own = torch.from_numpy(x).split([len(part.source) for part in parts])
    return [replace(part, x=each) for part, each in zip(parts, own, strict=True)]


def _order(frame: pl.LazyFrame, bag: str, names: pl.Series, n: int) -> np.ndarray:
    """The rows in the order of the bags (int64)."""
    codes = pl.DataFrame({bag: names, "code": pl.int_range(len(names), dtype=pl.Int32, eager=True)})
    number = np.empty(n, np.int32)
    at = 0
    for part in batches(frame, [bag]):
        part = part.with_columns(pl.col(bag).cast(names.dtype))
        joined = part.join(codes, on=bag, how="left", maintain_order="left")["code"]
        number[at : at + part.height] = joined.to_numpy()
        at += part.height
    return np.argsort(number, kind="stable")

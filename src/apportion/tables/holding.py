"""From checked tables to bags: features are written once, straight to the place of their row."""

import numpy as np
import torch

from apportion.bags import Bags
from apportion.tables.asking import Asked, Found
from apportion.tables.columns import Column
from apportion.tables.reading import BATCH, batches, of_table, open_table, pl
from apportion.tables.transforms import features_of, fit_column


@of_table
def hold(
    asked: Asked, found: Found, columns: tuple[Column, ...] | None = None
) -> tuple[Bags, tuple[Column, ...]]:
    """The bags of the table, with the transforms that were fitted on its rows, unless some are given.

    One column and one batch of rows are in memory beside the features, which are sorted by bag in the same
    pass that makes them.
    """
    frame = open_table(asked.table, texts=(asked.bag, *asked.categorical), missing=asked.missing)
    if columns is None:
        kinds = found.kinds.items()
        columns = tuple(fit_column(frame.select(name).collect()[name], kind) for name, kind in kinds)
    order, place = _order(frame, asked.bag, found.names, int(found.sizes.sum()))
    x = np.empty((len(place), sum(len(column.features) for column in columns)), np.float32)
    at = 0
    for part in batches(frame, [column.name for column in columns]):
        for rows in part.iter_slices(BATCH):
            x[place[at : at + rows.height]] = features_of(columns, rows)
            at += rows.height
    shares, sizes = torch.from_numpy(found.shares).float(), torch.from_numpy(found.sizes)
    return Bags(torch.from_numpy(x), sizes, shares, torch.from_numpy(order), found.names.to_list()), columns


def _order(frame: pl.LazyFrame, bag: str, names: pl.Series, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows in the order of the bags (int64), and the place of each row in that order (int32 or int64)."""
    codes = pl.DataFrame({bag: names, "code": pl.int_range(len(names), dtype=pl.Int32, eager=True)})
    number = np.empty(n, np.int32)
    at = 0
    for part in batches(frame, [bag]):
        part = part.with_columns(pl.col(bag).cast(names.dtype))
        joined = part.join(codes, on=bag, how="left", maintain_order="left")["code"]
        number[at : at + part.height] = joined.to_numpy()
        at += part.height
    order = np.argsort(number, kind="stable")
    del number
    place = np.empty(n, np.int32 if n < 2**31 else np.int64)
    place[order] = np.arange(n, dtype=place.dtype)
    return order, place

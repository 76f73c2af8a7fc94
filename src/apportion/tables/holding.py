"""From checked tables to bags: features are written once, straight to the place of their row."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from apportion.bags.bags import Bags
from apportion.tables.asking import Asked, Found
from apportion.tables.checking import refuse
from apportion.tables.columns import Column
from apportion.tables.pictures import at_once, instances_of, shape_of
from apportion.tables.reading import batches, open_table, pl, plainly
from apportion.tables.transforms import fit_column

SLICE = 1 << 14  # rows whose features are made at once: they stay in the processor's cache


Divide = Callable[[list[Bags]], Sequence[Bags]]  # of each grouping; the bags to learn from, then others


def hold(
    asked: Asked, found: Found, columns: tuple[Column, ...] | None = None
) -> tuple[Bags, tuple[Column, ...]]:
    """The bags of the table, with the transforms that were fitted on its rows, unless some are given."""
    (bags,), columns = hold_parts([asked], [found], lambda groupings: groupings, columns)
    return bags, columns


def hold_parts(
    asked: Sequence[Asked], found: Sequence[Found], divide: Divide, columns: tuple[Column, ...] | None = None
) -> tuple[list[Bags], tuple[Column, ...]]:
    """The table's bags in parts, with transforms that were fitted on the rows of the first, unless given.

    There is a question and an answer for each grouping of the rows. The bags are divided while they have no
    features, so that these are made in one pass and, of one grouping, held once; one column and one batch of
    rows are in memory beside them.
    """
    with plainly(f"{asked[0].table} cannot be read"):
        # as the check has read it: types are remembered
        frame = open_table(asked[0].table, texts=asked[0].texts, missing=asked[0].missing)
        parts = divide([_bags(frame, each.bag, known) for each, known in zip(asked, found, strict=True)])
        if columns is None and found[0].image is not None:
            columns = (found[0].image,)
        if columns is None:
            learned = np.zeros(int(found[0].sizes.sum()), bool)
            learned[parts[0].source.numpy()] = True
            series = ((frame.select(name).collect()[name], kind) for name, kind in found[0].kinds.items())
            columns = tuple(fit_column(c if learned.all() else c.filter(learned), kind) for c, kind in series)
        return _with_features(frame, columns, parts, int(found[0].sizes.sum()), asked[0].table), columns


def _bags(frame: pl.LazyFrame, bag: str, found: Found) -> Bags:
    """Of one grouping, without features."""
    order = torch.from_numpy(_order(frame, bag, found.names, int(found.sizes.sum())))
    shares, sizes = torch.from_numpy(found.shares).float(), torch.from_numpy(found.sizes)
    return Bags(torch.empty(len(order), 0), sizes, shares, order, found.names.to_list())


def _with_features(
    frame: pl.LazyFrame, columns: Sequence[Column], parts: Sequence[Bags], n: int, table: Path
) -> list[Bags]:
    """The parts with the features of their rows, which are written once to their places if each of the n rows
    has one, or copied from the table's order."""
    whole = parts[0].source if len(parts) == 1 else torch.cat([part.source for part in parts])
    once = bool((torch.bincount(whole, minlength=n) == 1).all())
    x = _features(frame, columns, (whole if once else torch.arange(n)).numpy(), table)
    own = x.split([len(part.source) for part in parts]) if once else [x[part.source] for part in parts]
    return [replace(part, x=each) for part, each in zip(parts, own, strict=True)]


def _features(frame: pl.LazyFrame, columns: Sequence[Column], order: np.ndarray, table: Path) -> torch.Tensor:
    """Of all rows of the table, in this order of theirs."""
    place = np.empty(len(order), np.int32 if len(order) < 2**31 else np.int64)
    place[order] = np.arange(len(order), dtype=place.dtype)
    shape, kind = shape_of(columns)
    x = np.empty((len(order), *shape), kind)
    at, problems = 0, list[str]()
    for part in batches(frame, [column.name for column in columns]):
        for rows in part.iter_slices(at_once(columns, SLICE)):
            x[place[at : at + rows.height]] = instances_of(columns, rows, table, at, problems)
            at += rows.height
    refuse(Found(problems))
    return torch.from_numpy(x)


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

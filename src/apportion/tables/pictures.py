"""Images that a table names, a file a row: of what shape they are, and what becomes of its rows."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from apportion.tables.asking import Asked, Found, told
from apportion.tables.columns import SIDES, Column
from apportion.tables.picture_files import Look, Unread, each, look, pixels
from apportion.tables.reading import batches, of_table, open_table, pl
from apportion.tables.transforms import features_of

HELD = 1 << 28  # bytes of images that are read at once
NAMED = 10  # columns that are left out


def shape_of(columns: Sequence[Column]) -> tuple[tuple[int, ...], type]:
    """What an instance is: the bytes of an image, or a row of features."""
    if columns[0].kind == "image":
        return columns[0].shape, np.uint8
    return (sum(len(column.features) for column in columns),), np.float32


def at_once(columns: Sequence[Column], most: int) -> int:
    """Rows whose instances are made at once: the most that there may be, of large images fewer."""
    if columns[0].kind != "image":
        return most
    return max(1, min(most, HELD // math.prod(columns[0].shape)))


def instances_of(
    columns: Sequence[Column], rows: pl.DataFrame, table: Path, at: int, problems: list[str]
) -> np.ndarray:
    """Of some rows, before which `at` others came; rows whose image cannot be read, which are black, are
    added to the problems."""
    if columns[0].kind != "image":
        return features_of(columns, rows)
    column = columns[0]
    names = rows[column.name].cast(pl.String).to_list()
    images = np.zeros((len(names), *column.shape), np.uint8)

    def read(i: int) -> None:
        images[i] = pixels(table.parent, column.shape, column.flag, names[i])

    _name(table, each(read, range(len(names))), at, problems)
    return images


def check_pictures(asked: Asked, frame: pl.LazyFrame, problems: list[str], notes: list[str]) -> Column | None:
    """How files become images of one shape, by the heads of the files; what is wrong joins the problems."""
    schema = frame.collect_schema()
    if asked.image not in schema:
        return None  # told of with all others
    names = frame.select(pl.col(asked.image).cast(pl.String)).collect()[asked.image].to_list()
    seen = each(partial(look, asked.table.parent), names)
    looks = [one for one in seen if isinstance(one, Look)]
    _name(asked.table, seen if asked.pixels or not looks else map(_alike(looks[0]), seen), 0, problems)
    if not looks:
        return None
    gray = sum(one.gray for one in looks)
    if 0 < gray < len(looks):
        notes.append(f"{gray:,} of {len(looks):,} images are gray; they are taken in color, as the others")
    size = (asked.pixels, asked.pixels) if asked.pixels else looks[0][1:]
    shape = (1 if gray == len(looks) else 3, *size)
    if min(size) < SIDES[0]:
        what = f"images of {size[0]} × {size[1]} pixels are too small to be learned from"
        problems.append(f"{what}: pass --pixels {SIDES[0]}, or more, to enlarge them")
    held = f"{len(names) * np.prod(shape, dtype=np.int64) / 1e6:,.1f} MB in memory"
    notes.append(f"images of {shape[1]} × {shape[2]} pixels, {('gray', 'in color')[shape[0] > 1]}, {held}")
    used = {asked.bag, *asked.beside, asked.given, asked.image, *asked.shares, *asked.drop, ""}
    if rest := [name for name in schema if name not in used]:
        named = ", ".join(rest[:NAMED]) + " …" * (len(rest) > NAMED)
        what = "is" if len(rest) == 1 else "are"
        notes.append(f"images alone are learned from, no other column: {named} {what} left out")
    return Column(asked.image, "image", flag=bool(asked.pixels), shape=shape)


@of_table
def unreadable(asked: Asked, found: Found) -> Found:
    """Every image is read once, where there are any; those that cannot be are the problems."""
    at, problems = 0, list[str]()
    if found.image is None:
        return found
    frame = open_table(asked.table, texts=asked.texts, missing=asked.missing)
    for part in batches(frame, [asked.image]):
        for rows in part.iter_slices(at_once([found.image], part.height)):
            instances_of([found.image], rows, asked.table, at, problems)
            at += rows.height
    return replace(found, problems=problems)


def _alike(first: Look) -> Any:
    """A function that takes an image of another size than the first for one that cannot be used."""
    side = min(max(SIDES[0], min(first[1:])), SIDES[1])
    remedy = f"give all one size, or pass --pixels {side} to resize them"

    def alike(one: Look | Unread) -> Look | Unread:
        if isinstance(one, Unread) or one[1:] == first[1:]:
            return one
        other = f"of {one.height} × {one.width} pixels, others of {first.height} × {first.width}"
        return Unread(f"names an image {other}", remedy)

    return alike


def _name(table: Path, found: Iterable[Any], at: int, problems: list[str]) -> None:
    """Rows without an image; those that one remedy is for stand together."""
    cases = defaultdict[str, list[str]](list)
    for i, one in enumerate(found):
        if isinstance(one, Unread):
            cases[one.remedy].append(f"{table.name}, row {at + i + 1}, {one.why}")
    problems += [told(rows, len(rows), remedy) for remedy, rows in cases.items()]

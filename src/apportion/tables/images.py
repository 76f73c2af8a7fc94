"""Images that a column of a table names, one file per row.

Files may be a stranger's: seven formats are read and no others, since some formats start programs, and an
image may have at most `MAX_PIXELS` pixels. Names are relative to the folder of the table.
"""

import math
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import polars as pl

from apportion._untrusted import name_list, printable
from apportion.tables.spec import CheckReport, TableSpec

FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "GIF", "WEBP", "PPM")
GRAY_MODES = ("1", "L", "LA")
COLOR_MODES = ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
ROTATED = (5, 6, 7, 8)  # EXIF orientations whose rows are columns
SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".webp", ".ppm")
MIN_SIDE, MAX_SIDE = 8, 4096  # pixels to which images may be resized
MAX_PIXELS = 89_478_485  # of a file; from here on Pillow warns, too
MAX_BYTES = 1 << 28  # of images that are read at once
THREADS = min(8, os.cpu_count() or 1)  # Pillow decodes without holding Python's lock
BROKEN = (
    OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, OverflowError, MemoryError,
    struct.error, zlib.error, Warning,
)  # fmt: skip

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class ImageColumn:
    """How the files that a column names become images of one shape."""

    name: str
    shape: tuple[int, int, int]  # channels (1 or 3), height, width
    resize: bool = False


class ImageHeader(NamedTuple):
    """What the head of a file says."""

    gray: bool
    height: int
    width: int


class ImageProblem(Exception):
    """Why a row has no usable image, and what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def check_images(spec: TableSpec, frame: pl.LazyFrame, report: CheckReport) -> ImageColumn | None:
    """How the files become images of one shape, found from their heads. Problems join the report."""
    if spec.image is None:
        raise ValueError("no column of images")
    folder = spec.table.parent
    names = frame.select(pl.col(spec.image).cast(pl.String)).collect()[spec.image].to_list()
    headers = _in_parallel(lambda name: read_header(folder, name), names)
    readable = [header for header in headers if isinstance(header, ImageHeader)]
    if readable and spec.pixels is None:
        headers = [_check_size(header, readable[0]) for header in headers]
    _report(spec.table, headers, 0, report)
    if not readable:
        return None
    n_gray = sum(header.gray for header in readable)
    channels = 1 if n_gray == len(readable) else 3
    height, width = readable[0].height, readable[0].width
    if spec.pixels is not None:
        height = width = spec.pixels
    if min(height, width) < MIN_SIDE:
        what = f"images of {height} × {width} pixels are too small to learn from"
        report.add_message("image size", what, f"pass --pixels {MIN_SIDE}, or more, to enlarge them")
    if 0 < n_gray < len(readable):
        report.notes.append(f"{n_gray:,} of {len(readable):,} images are gray and are read as color images")
    megabytes = len(names) * channels * height * width / 1e6
    color = "gray" if channels == 1 else "color"
    report.notes.append(
        f"{len(names):,} {color} images of {height} × {width} pixels, {megabytes:,.1f} MB in memory"
    )
    unused = [
        name for name in frame.collect_schema() if name and name not in (*spec.used_columns, *spec.drop)
    ]
    if unused:
        report.notes.append(f"only the images are used as features; not used: {name_list(unused)}")
    return ImageColumn(spec.image, (channels, height, width), spec.pixels is not None)


def read_images(
    column: ImageColumn, table: Path, names: Sequence[str | None], *, first_row: int = 0
) -> np.ndarray:
    """Images (n, channels, height, width) of bytes, upright, without transparency.

    Raises a DataError that lists the rows whose file cannot be read; `first_row` rows came before these.
    """
    report = CheckReport()
    images = np.zeros((len(names), *column.shape), np.uint8)

    def read(i: int) -> None:
        images[i] = read_image(table.parent, column, names[i])

    _report(table, _in_parallel(read, range(len(names))), first_row, report)
    report.raise_problems()
    return images


def read_all_images(column: ImageColumn, table: Path, frame: pl.LazyFrame) -> Iterator[np.ndarray]:
    """The images of all rows, a part at a time."""
    names = frame.select(pl.col(column.name).cast(pl.String)).collect().to_series().to_list()
    step = max(1, MAX_BYTES // math.prod(column.shape))
    for start in range(0, len(names), step):
        yield read_images(column, table, names[start : start + step], first_row=start)


def read_header(folder: Path, name: str | None) -> ImageHeader:
    with _open_image(folder, name) as image:
        rotated = image.getexif().get(0x0112) in ROTATED
        if rotated and image.format == "TIFF":
            image.load()  # rotates these, and in some versions of Pillow their size before
            rotated = False
        width, height = image.size
        if rotated:
            width, height = height, width
        return ImageHeader(image.mode in GRAY_MODES, height, width)


def read_image(folder: Path, column: ImageColumn, name: str | None) -> np.ndarray:
    """Bytes of shape (channels, height, width)."""
    from PIL import Image, ImageOps

    channels, height, width = column.shape
    with _open_image(folder, name) as file:
        image = ImageOps.exif_transpose(file)
        image.info.pop("transparency", None)  # Pillow would warn about it if there is a palette
        image = image.convert("L" if channels == 1 else "RGB")
        if image.size != (width, height) and not column.resize:
            what = f"names {name!r} of {image.height} × {image.width} pixels, not {height} × {width}"
            raise ImageProblem(what, "give images of the size that was learned from")
        image = image.resize((width, height), Image.Resampling.BILINEAR)
        return np.asarray(image).reshape(height, width, channels).transpose(2, 0, 1)


@contextmanager
def _open_image(folder: Path, name: str | None) -> Iterator[Any]:
    """An image of Pillow. What goes wrong until it is closed is an ImageProblem."""
    from PIL import Image

    if not name:
        raise ImageProblem("names no file", "name one, or leave the row out")
    path = folder / name
    try:
        if not path.is_file():  # OSError if the name is too long, or its folder cannot be read
            hint = f"names are relative to the folder of the table, {folder.resolve()}"
            raise ImageProblem(f"names {name!r}, which is not a file", hint)
        with Image.open(path, formats=FORMATS) as image:
            _check_image(image, name)
            yield image
    except (*BROKEN, Image.DecompressionBombError) as problem:
        lines = str(problem).splitlines() or [type(problem).__name__]
        reason = printable(lines[0].replace(str(path), "the file"))
        hint = f"write it again as one of {', '.join(FORMATS)}, or leave the row out"
        raise ImageProblem(f"names {name!r}, which cannot be read: {reason}", hint) from None


def _check_image(image: Any, name: str) -> None:
    if image.mode not in (*GRAY_MODES, *COLOR_MODES):
        what = f"names {name!r}, whose pixels are of type {image.mode}"
        raise ImageProblem(what, "write images with 8 bits per channel, gray or in color")
    if image.width * image.height > MAX_PIXELS:
        what = f"names {name!r} of {image.height:,} × {image.width:,} pixels"
        raise ImageProblem(what, f"make it smaller; at most {MAX_PIXELS:,} pixels are read")
    n_frames = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)  # a camera's file has a preview
    if n_frames > 1:
        raise ImageProblem(
            f"names {name!r}, which has {n_frames} pictures", "give every picture its own file and row"
        )


def _check_size(header: ImageHeader | ImageProblem, first: ImageHeader) -> ImageHeader | ImageProblem:
    """A problem if an image has another size than the first."""
    if isinstance(header, ImageProblem) or header[1:] == first[1:]:
        return header
    side = min(max(MIN_SIDE, min(first.height, first.width)), MAX_SIDE)
    what = f"{header.height} × {header.width} pixels, others {first.height} × {first.width}"
    return ImageProblem(f"names an image of {what}", f"give all the same size, or pass --pixels {side}")


def _in_parallel(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result | ImageProblem]:
    """The result for every item, or its problem."""

    def attempt(item: Item) -> Result | ImageProblem:
        try:
            return work(item)
        except ImageProblem as problem:
            return problem

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(attempt, items))


def _report(table: Path, results: Sequence[Any], first_row: int, report: CheckReport) -> None:
    for i, result in enumerate(results):
        if isinstance(result, ImageProblem):
            row = first_row + i + 1
            report.add_message("image", f"{table.name}, row {row}, {result.message}", result.hint)

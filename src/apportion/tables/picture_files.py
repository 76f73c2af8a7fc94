"""Files of images, which may be a stranger's: what their heads say, and their bytes."""

import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "GIF", "WEBP", "PPM")  # no other is tried: some start programs
GREY, COLOUR = ("1", "L", "LA"), ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")  # modes of PIL
TURNED = (5, 6, 7, 8)  # orientations by which a camera's rows are columns
THREADS = min(8, os.cpu_count() or 1)  # PIL decodes without the interpreter's lock
BROKEN = (
    OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, OverflowError, MemoryError,
    struct.error, zlib.error, Warning,
)  # fmt: skip
LARGEST = 89_478_485  # pixels, from which on PIL warns: a small file may claim many

S = TypeVar("S")
T = TypeVar("T")


class Look(NamedTuple):
    """What the head of a file says."""

    gray: bool
    height: int
    width: int


class Unread(NamedTuple):
    """Why a row has no image, and what to do."""

    why: str
    remedy: str


class UnreadError(Exception):
    """Carries an Unread."""


def each(work: Callable[[S], T], items: Sequence[S]) -> list[T | Unread]:
    """What the work gives for every item, by several threads."""

    def tried(item: S) -> T | Unread:
        try:
            return work(item)
        except UnreadError as problem:
            return problem.args[0]

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(tried, items))


def look(folder: Path, name: str | None) -> Look:
    with _opened(folder, name) as image:
        turned = image.getexif().get(0x0112) in TURNED
        if turned and image.format == "TIFF":
            image.load()  # which turns these, and by some versions of PIL their size before
            turned = False
        width, height = image.size[::-1] if turned else image.size
        return Look(image.mode in GREY, height, width)


def pixels(folder: Path, shape: tuple[int, ...], resize: bool, name: str | None) -> np.ndarray:
    """Bytes (channels, height, width), upright; transparency is left out."""
    from PIL import Image, ImageOps

    channels, height, width = shape
    with _opened(folder, name) as file:
        image = ImageOps.exif_transpose(file)
        image.info.pop("transparency", None)  # of which PIL would warn where there is a palette
        image = image.convert("L" if channels == 1 else "RGB")
        if image.size != (width, height) and not resize:
            what = f"names {name!r}, of {image.height} × {image.width} pixels, not {height} × {width}"
            raise UnreadError(Unread(what, "give images of the size that was learned from"))
        image = image.resize((width, height), Image.Resampling.BILINEAR)  # the same, if it has that size
        return np.asarray(image).reshape(height, width, channels).transpose(2, 0, 1)


@contextmanager
def _opened(folder: Path, name: str | None) -> Iterator[Any]:
    """An image of PIL; what goes wrong until it is closed is told as the file's fault."""
    from PIL import Image

    if not name:
        raise UnreadError(Unread("names no file", "name one, or leave the row out"))
    path = folder / name
    try:
        if not path.is_file():  # an error where a name is too long, or its folder is not open to all
            remedy = f"names are looked for from the table's folder, {folder.resolve()}"
            raise UnreadError(Unread(f"names {name!r}, which is no file", remedy))
        with Image.open(path, formats=FORMATS) as image:
            if image.mode not in (*GREY, *COLOUR):
                what = f"names {name!r}, whose pixels are of type {image.mode}"
                raise UnreadError(Unread(what, "write images with 8 bits a channel, gray or in color"))
            if image.width * image.height > LARGEST:
                what = f"names {name!r}, of {image.height:,} × {image.width:,} pixels"
                raise UnreadError(Unread(what, f"make it smaller; {LARGEST:,} are the most"))
            frames = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)  # a camera's has a preview
            if frames > 1:
                what = f"names {name!r}, which has {frames} pictures in it"
                raise UnreadError(Unread(what, "give every picture a file and a row"))
            yield image
    except (*BROKEN, Image.DecompressionBombError) as problem:
        why = (str(problem).splitlines() or [type(problem).__name__])[0].replace(str(path), "the file")
        known = f"write it anew ({', '.join(FORMATS)} are known), or leave the row out"
        raise UnreadError(Unread(f"names {name!r}, which cannot be read: {why}", known)) from None

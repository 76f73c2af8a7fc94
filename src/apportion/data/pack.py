"""Packs of image sets: a manifest, and zips of lossless WebP strips (color) or xz (gray images, labels).

A strip is one image under the other. The manifest `<set>.json` names the zips and, for each array, its shape,
codec, parts and sha256 sum; what it says is believed only where it agrees with what is known of the set.
"""

import hashlib
import io
import json
import os
import tempfile
import zipfile
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from apportion.data.archives import BROKEN, read_file, read_zip, unxz
from apportion.data.copies import Arrays
from apportion.data.images import in_order, verified
from apportion.data.sets import ImageSet
from apportion.errors import DataError


def import_pack(spec: ImageSet, pack_dir: Path, folder: Path) -> Path:
    """The folder into which a pack's arrays were written, in the order in which they will be read."""
    arrays = verified(spec, in_order(spec, read_pack(spec, pack_dir)), pack_dir / f"{spec.name}.json")
    target = folder / spec.name
    # train_images is the last, since its presence is what announces a copy
    for key in sorted(arrays, key=lambda key: key == "train_images"):
        content = io.BytesIO()
        np.save(content, arrays[key], allow_pickle=False)
        write_whole(target / f"{key}.npy", content.getbuffer())
    return target


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Writes a file so that it is there whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as stream:
            try:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
                os.chmod(stream.name, 0o644)  # a folder of data may be shared
                os.replace(stream.name, path)
            except BaseException:
                os.unlink(stream.name)
                raise
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error}") from None


def read_pack(spec: ImageSet, pack_dir: Path) -> Arrays:
    """The four arrays of a pack, each with the sum that its manifest states."""
    path = pack_dir / f"{spec.name}.json"
    try:
        manifest = json.loads(read_file(path, 1 << 20))
        holder = _holder([pack_dir / _plain(chunk) for chunk in manifest["chunks"]])
        arrays: Arrays = {}
        for part, count in spec.counts.items():
            for key, shape in ((f"{part}_images", (count, *spec.shape)), (f"{part}_labels", (count,))):
                arrays[key] = _array(manifest["arrays"][key], shape, holder, f"{key} of {path}")
    except (*BROKEN, TypeError, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is not the manifest of a pack: {error!r}") from None
    return {key: array.astype(np.int64) if key.endswith("labels") else array for key, array in arrays.items()}


def _plain(name: Any) -> str:
    """A file's name that cannot lead out of its folder."""
    if not isinstance(name, str) or name in ("", ".", "..") or any(sign in name for sign in "/\\:\0"):
        raise DataError(f"a pack may not name the file {name!r}")
    return name


def _holder(chunks: list[Path]) -> dict[str, Path]:
    holder: dict[str, Path] = {}
    for chunk in chunks:
        try:
            with zipfile.ZipFile(chunk) as archive:
                holder |= dict.fromkeys(archive.namelist(), chunk)
        except FileNotFoundError:
            raise DataError(f"{chunk} is missing; all files of a pack must lie in one folder") from None
        except BROKEN as error:
            raise DataError(f"{chunk} cannot be read: {error}") from None
    return holder


def _array(entry: dict[str, Any], shape: tuple[int, ...], holder: dict[str, Path], what: str) -> np.ndarray:
    size = prod(shape)
    if tuple(entry["shape"]) != shape or entry["codec"] not in ("xz", "webp"):
        raise DataError(f"{what} should be {shape} in xz or webp, not {entry['shape']} in {entry['codec']}")
    pixels = bytearray()
    for part in entry["parts"]:
        data = read_zip(holder[part], part, size + (1 << 16))
        left = size - len(pixels)
        pixels += unxz(data, left, part) if entry["codec"] == "xz" else _strip(data, shape[1:], left, part)
    got = hashlib.sha256(pixels).hexdigest()
    if len(pixels) != size or got != entry["sha256"]:
        raise DataError(f"{what} is damaged: it has sha256 {got}, expected {entry['sha256']}")
    return np.frombuffer(pixels, np.uint8).reshape(shape)


def _strip(data: bytes, shape: tuple[int, ...], left: int, what: str) -> bytes:
    """The pixels of a lossless WebP strip; its size is read from the header before anything is decoded."""
    try:
        from PIL import Image
    except ImportError:
        raise DataError("packs of color images need Pillow: pip install 'apportion[pack]'") from None
    sizes = int.from_bytes(data[21:25], "little")  # VP8L: 14 bits of width less one, then of height less one
    width, height = (sizes & 0x3FFF) + 1, (sizes >> 14 & 0x3FFF) + 1
    lossless = data[:4] == b"RIFF" and data[8:16] == b"WEBPVP8L" and data[20:21] == b"\x2f"
    if not lossless or shape[1:] != (width, 3) or height % shape[0] or width * height * 3 > left:
        raise DataError(f"{what} is not a strip of lossless WebP, or holds too many images")
    try:
        with Image.open(io.BytesIO(data), formats=["WEBP"]) as image:
            return np.asarray(image.convert("RGB")).tobytes()
    except (*BROKEN, SyntaxError) as error:
        raise DataError(f"{what} cannot be decoded: {error}") from None

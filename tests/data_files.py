"""Writers of tiny data sets in the published formats."""

import gzip
import hashlib
import io
import json
import lzma
import struct
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from apportion.data.copies import Arrays
from apportion.data.images import in_order
from apportion.data.sets import ImageSet


def tiny(spec: ImageSet, seed: int = 0, n_classes: int = 5) -> tuple[ImageSet, Arrays]:
    """A set of 20 + 10 random images like the real one, with its own checksums."""
    rng = np.random.default_rng(seed)
    arrays: Arrays = {}
    counts = {"train": 20, "test": 10}
    for part, count in counts.items():
        arrays[f"{part}_images"] = rng.integers(0, 256, (count, *spec.shape), np.uint8)
        arrays[f"{part}_labels"] = rng.permutation(np.arange(count) % n_classes)
    spec = replace(spec, counts=counts, classes=spec.classes[:n_classes], downloads=())
    sums = {
        key: hashlib.sha256(array.astype(np.uint8).tobytes()).hexdigest()
        for key, array in in_order(spec, arrays).items()
    }
    return replace(spec, sums=sums), arrays


def planes(images: np.ndarray) -> np.ndarray:
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def cifar_bin(images: np.ndarray, labels: np.ndarray, coarse: bool = False) -> bytes:
    columns = [np.full((len(labels), int(coarse)), 7), labels[:, None], planes(images)]
    return np.concatenate(columns, axis=1).astype(np.uint8).tobytes()


def _text(value: bytes) -> bytes:
    return b"U" + bytes([len(value)]) + value


def _list(items: list[bytes]) -> bytes:
    return b"](" + b"".join(items) + b"e"


def cifar_py(images: np.ndarray, labels: np.ndarray, key: bytes = b"labels") -> bytes:
    """A batch as Python 2's cPickle wrote it: protocol 2, texts that are bytes, an array by its state."""
    count, raw = len(images), planes(images).tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x05cnumpy\nndarray\nq\x06K\x00\x85U\x01bq\x07\x87R(K\x01"
        + (b"K" + bytes([count]) + b"M" + struct.pack("<H", 3072) + b"\x86")
        + b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        + (b"T" + struct.pack("<i", len(raw)) + raw + b"tb")
    )
    names = _list([_text(b"an_image_%d.png" % i) + b"r" + struct.pack("<I", 300 + i) for i in range(count)])
    return (
        (b"\x80\x02}q\x01(" + _text(b"batch_label") + _text(b"training batch 1 of 5") + _text(key))
        + (_list([b"K" + bytes([label]) for label in labels]) + _text(b"data") + array)
        + (_text(b"filenames") + names + b"u.")
    )


def cifar_files(arrays: Arrays, python: bool, hundred: bool) -> dict[str, bytes]:
    """The files of one of the four official archives."""
    top = "cifar-100-" if hundred else "cifar-10-batches-"
    top += ("python" if python else "binary") if hundred else ("py" if python else "bin")
    ending = "" if python else ".bin"
    parts = {"train": arrays["train_images"], "test": arrays["test_images"]}
    files = {}
    for part, images in parts.items():
        labels = arrays[f"{part}_labels"]
        names = [part] if hundred else ["test_batch"]
        if part == "train" and not hundred:
            names = [f"data_batch_{i}" for i in range(1, 6)]
        for name, some, few in zip(
            names, np.split(images, len(names)), np.split(labels, len(names)), strict=True
        ):
            content = (
                cifar_py(some, few, b"fine_labels" if hundred else b"labels")
                if python
                else cifar_bin(some, few, coarse=hundred)
            )
            files[f"{top}/{name}{ending}"] = content
    return files


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def write_folder(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def idx_bytes(array: np.ndarray) -> bytes:
    return (
        bytes((0, 0, 8, array.ndim))
        + np.array(array.shape, ">u4").tobytes()
        + array.astype(np.uint8).tobytes()
    )


def idx_files(arrays: Arrays, packed: bool) -> dict[str, bytes]:
    files = {}
    for part, prefix in (("train", "train"), ("test", "t10k")):
        files[f"{prefix}-images-idx3-ubyte"] = idx_bytes(arrays[f"{part}_images"][..., 0])
        files[f"{prefix}-labels-idx1-ubyte"] = idx_bytes(arrays[f"{part}_labels"])
    return {f"{name}.gz": gzip.compress(data) for name, data in files.items()} if packed else files


def npz_bytes(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.savez_compressed(content, array)
    return content.getvalue()


def npy_bytes(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    return content.getvalue()


def webp(images: np.ndarray) -> bytes:
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(images.reshape(-1, *images.shape[2:])).save(content, "WEBP", lossless=True)
    return content.getvalue()


def write_pack(folder: Path, name: str, arrays: Arrays, per_strip: int = 8) -> dict:
    """A pack of two zips, color images in strips of WebP, all else in xz; its manifest."""
    parts: dict[str, bytes] = {}
    manifest: dict = {"arrays": {}, "chunks": [f"{name}_a.zip", f"{name}_b.zip"]}
    for key, array in arrays.items():
        data, color = array.astype(np.uint8), array.shape[-1] == 3
        if color:
            strips = range(0, len(data), per_strip)
            own = {f"{key}_{i:05}.webp": webp(data[i : i + per_strip]) for i in strips}
        else:
            half = data.nbytes // 2
            halves = data.tobytes()[:half], data.tobytes()[half:]
            own = {f"{key}_{i}.xz": lzma.compress(part) for i, part in enumerate(halves)}
        parts |= own
        manifest["arrays"][key] = {
            "shape": list(data.shape),
            "dtype": "uint8",
            "sha256": hashlib.sha256(data.tobytes()).hexdigest(),
            "parts": list(own),
            "codec": "webp" if color else "xz",
        }
    folder.mkdir(parents=True, exist_ok=True)
    for offset, chunk in enumerate(manifest["chunks"]):
        with zipfile.ZipFile(folder / chunk, "w") as archive:
            for part in list(parts)[offset::2]:
                archive.writestr(part, parts[part])
    (folder / f"{name}.json").write_text(json.dumps(manifest))
    return manifest

"""The copies of an image set that a user may have: what lies where, and how it is read."""

from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path

import numpy as np

from apportion.data.archives import check_sum, read_file, read_tar
from apportion.data.formats import HEADER_BYTES, cifar_rows, idx, npy_file, npz
from apportion.data.pickles import cifar_pickle
from apportion.data.sets import ImageSet

# {train,test}_images (n, height, width, channels) and {train,test}_labels (n,)
Arrays = dict[str, np.ndarray]
Reader = Callable[[ImageSet, Path], Arrays]
_KINDS = ("images", "labels")


def find(spec: ImageSet, folder: Path) -> tuple[Path, Reader] | None:
    """The first copy of a set in the folder, by a file that gives it away, and what reads it."""
    for marker, reader in _COPIES[spec.name]:
        if (folder / marker).is_file():
            return folder / marker, reader
    return None


def _imported(spec: ImageSet, marker: Path) -> Arrays:
    images, labels = (
        {f"{part}_{kind}": npy_file(marker.with_name(f"{part}_{kind}.npy")) for part in spec.counts}
        for kind in _KINDS
    )
    return images | {key: array.astype(np.int64) for key, array in labels.items()}


def _idx_files(spec: ImageSet, marker: Path) -> Arrays:
    published = {item.file: item.sha256 for item in spec.downloads if not spec.sums}
    arrays: Arrays = {}
    for (part, count), prefix in zip(spec.counts.items(), ("train", "t10k"), strict=True):
        for kind, shape in (("images-idx3", (count, *spec.shape[:2])), ("labels-idx1", (count,))):
            path = marker.with_name(f"{prefix}-{kind}-ubyte{marker.suffix}")
            check_sum(path, published.get(path.name))
            arrays[f"{part}_{kind[:6]}"] = idx(read_file(path, prod(shape) + HEADER_BYTES), shape, str(path))
    return _grey(arrays)


def _npz_files(spec: ImageSet, marker: Path) -> Arrays:
    limit = prod(spec.shape) * max(spec.counts.values())
    return _grey(
        {
            f"{part}_{kind}": npz(marker.with_name(f"kmnist-{part}-{file}.npz"), limit)
            for part in spec.counts
            for kind, file in zip(_KINDS, ("imgs", "labels"), strict=True)
        }
    )


def _grey(arrays: Arrays) -> Arrays:
    images = {key: array[..., None] for key, array in arrays.items() if key.endswith("images")}
    return images | {key: array.astype(np.int64) for key, array in arrays.items() if key.endswith("labels")}


def _cifar(
    spec: ImageSet,
    place: Path,
    *,
    files: dict[str, tuple[str, ...]],
    row_bytes: int,  # at most
    decode: Callable[[bytes, int, str], tuple[np.ndarray, np.ndarray]],
) -> Arrays:
    rows = {name: spec.counts[part] // len(names) for part, names in files.items() for name in names}
    limits = {name: count * row_bytes + HEADER_BYTES for name, count in rows.items()}
    if place.suffix == ".gz":
        content = read_tar(place, limits)
    else:
        content = {name: read_file(place.with_name(name), limit) for name, limit in limits.items()}
    arrays: Arrays = {}
    for part, names in files.items():
        pairs = [decode(content.pop(name), rows[name], f"{name} of {place}") for name in names]
        images, labels = zip(*pairs, strict=True)
        arrays |= {f"{part}_images": np.concatenate(images), f"{part}_labels": np.concatenate(labels)}
    return arrays


_FIVE = tuple(f"data_batch_{number}" for number in range(1, 6))
_BINARY_10 = partial(
    _cifar,
    files={"train": tuple(f"{name}.bin" for name in _FIVE), "test": ("test_batch.bin",)},
    row_bytes=3073,
    decode=partial(cifar_rows, n_labels=1),
)
_BINARY_100 = partial(
    _cifar,
    files={"train": ("train.bin",), "test": ("test.bin",)},
    row_bytes=3074,
    decode=partial(cifar_rows, n_labels=2),
)
_PYTHON_10 = partial(
    _cifar,
    files={"train": _FIVE, "test": ("test_batch",)},
    row_bytes=3200,  # 3,105 in the published files: pixels, a label, the name of a file
    decode=partial(cifar_pickle, label_key="labels"),
)
_PYTHON_100 = partial(
    _cifar,
    files={"train": ("train",), "test": ("test",)},
    row_bytes=3200,
    decode=partial(cifar_pickle, label_key="fine_labels"),
)


def _copies(name: str, *copies: tuple[str, Reader], other: str) -> tuple[tuple[str, Reader], ...]:
    """Imported arrays first, they are the fastest to read; others in the set's own folder or in another."""
    places = ((f"{place}{file}", reader) for file, reader in copies for place in (f"{name}/", other))
    return ((f"{name}/train_images.npy", _imported), *places)


_IDX = (("train-images-idx3-ubyte.gz", _idx_files), ("train-images-idx3-ubyte", _idx_files))
_COPIES = {
    "cifar10": _copies(
        "cifar10",
        ("cifar-10-batches-bin/data_batch_1.bin", _BINARY_10),
        ("cifar-10-binary.tar.gz", _BINARY_10),
        ("cifar-10-batches-py/data_batch_1", _PYTHON_10),
        ("cifar-10-python.tar.gz", _PYTHON_10),
        other="",
    ),
    "cifar100": _copies(
        "cifar100",
        ("cifar-100-binary/train.bin", _BINARY_100),
        ("cifar-100-binary.tar.gz", _BINARY_100),
        ("cifar-100-python/train", _PYTHON_100),
        ("cifar-100-python.tar.gz", _PYTHON_100),
        other="",
    ),
    # other: torchvision's folders; these three have files of the same names, so a common folder will not do
    "mnist": _copies("mnist", *_IDX, other="MNIST/raw/"),
    "fashion_mnist": _copies("fashion_mnist", *_IDX, other="FashionMNIST/raw/"),
    "kmnist": _copies("kmnist", *_IDX, ("kmnist-train-imgs.npz", _npz_files), other="KMNIST/raw/"),
}

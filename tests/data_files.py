"""Writers of tiny data sets in the published formats."""

import gzip
import hashlib
import io
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from apportion.datasets.images import Arrays, ImageSet, sort_rows


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
        for key, array in sort_rows(spec, arrays).items()
    }
    return replace(spec, sums=sums), arrays


def planes(images: np.ndarray) -> np.ndarray:
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def cifar_bin(images: np.ndarray, labels: np.ndarray, coarse: bool = False) -> bytes:
    columns = [np.full((len(labels), int(coarse)), 7), labels[:, None], planes(images)]
    return np.concatenate(columns, axis=1).astype(np.uint8).tobytes()


def cifar_files(arrays: Arrays, name: str) -> dict[str, bytes]:
    """The files of the binary version of CIFAR, by their place in the archive."""
    if name == "cifar100":
        return {
            f"cifar-100-binary/{part}.bin": cifar_bin(
                arrays[f"{part}_images"], arrays[f"{part}_labels"], coarse=True
            )
            for part in ("train", "test")
        }
    files = {"test_batch": (arrays["test_images"], arrays["test_labels"])}
    batches = zip(np.split(arrays["train_images"], 5), np.split(arrays["train_labels"], 5), strict=True)
    files |= {f"data_batch_{i}": batch for i, batch in enumerate(batches, 1)}
    return {f"cifar-10-batches-bin/{file}.bin": cifar_bin(*pair) for file, pair in files.items()}


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


def npy_bytes(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    return content.getvalue()

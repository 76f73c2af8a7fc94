"""The real image sets, from whatever copy is at hand: imported arrays, official archives, or their folders.

Whatever the source, the arrays must have the known checksums, so that two people with one seed have the same
bags. Where the content has no known sum (Fashion-MNIST, KMNIST), the published .gz files must have theirs.
"""

import hashlib
import os
from pathlib import Path

import numpy as np
import torch

from apportion.data.copies import Arrays, find
from apportion.data.instances import Instances
from apportion.data.sets import CIFAR10, CIFAR100, FASHION_MNIST, KMNIST, MNIST, ImageSet
from apportion.errors import DataError


def default_folder() -> Path:
    """Where data lies unless told otherwise: $APPORTION_DATA, or the user's cache."""
    if named := os.environ.get("APPORTION_DATA"):
        return Path(named)
    return cache_folder()


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "apportion"


def cifar10(folder: Path | None = None) -> Instances:
    """50,000 + 10,000 color images of ten classes, in the published order (Krizhevsky, 2009)."""
    return load(CIFAR10, folder)


def cifar100(folder: Path | None = None) -> Instances:
    """50,000 + 10,000 color images of a hundred classes, in canonical order (Krizhevsky, 2009)."""
    return load(CIFAR100, folder)


def mnist(folder: Path | None = None) -> Instances:
    """60,000 + 10,000 handwritten digits (LeCun, Cortes and Burges)."""
    return load(MNIST, folder)


def fashion_mnist(folder: Path | None = None) -> Instances:
    """60,000 + 10,000 articles of clothing (Xiao, Rasul and Vollgraf, 2017)."""
    return load(FASHION_MNIST, folder)


def kmnist(folder: Path | None = None) -> Instances:
    """60,000 + 10,000 cursive Japanese characters (Clanuwat et al., 2018)."""
    return load(KMNIST, folder)


def load(spec: ImageSet, folder: Path | None) -> Instances:
    """The set from the first copy found in the folder; a damaged copy is an error, not passed over."""
    folder = folder or default_folder()
    found = find(spec, folder)
    if found is None:
        raise DataError(f"no copy of {spec.name} in {folder}; {remedy(spec, folder)}")
    place, reader = found
    try:
        arrays = verified(spec, in_order(spec, reader(spec, place)), place)
    except DataError as error:
        raise DataError(f"{error}; {remedy(spec, folder)}") from None
    # require: what was read from bytes may not be written to, and torch wants to be able to
    tensors = {
        key: torch.from_numpy(np.require(array, requirements=["C", "W"])) for key, array in arrays.items()
    }
    x, test_x = (tensors[key].permute(0, 3, 1, 2) for key in ("train_images", "test_images"))  # channels last
    y, test_y = tensors["train_labels"], tensors["test_labels"]
    return Instances(spec.name, x, y, test_x, test_y, spec.classes, spec.mean, spec.std)


def remedy(spec: ImageSet, folder: Path) -> str:
    """What to do when a copy is missing or damaged: the files, their checksums, where they are published."""
    files = "\n".join(f"  {item.file}  sha256 {item.sha256}  {item.urls[0]}" for item in spec.downloads)
    return (
        f"`apportion data fetch {spec.name} --data {folder}` fetches it, `apportion data import` takes it "
        f"from a pack, or put it into {folder / spec.name} yourself:\n{files}"
    )


def in_order(spec: ImageSet, arrays: Arrays) -> Arrays:
    """The arrays, rows sorted by the hash of their pixels (equal images by label) if the set asks for it."""
    if not spec.ordered:
        return arrays
    ordered = dict(arrays)
    for part in spec.counts:
        images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
        digests = b"".join(hashlib.sha256(image).digest() for image in images)
        words = np.frombuffer(digests, ">u8").reshape(-1, 4)
        order = np.lexsort((labels, *words.T[::-1]))
        if not np.array_equal(order, np.arange(len(order))):  # a copy of 150 MB is spared where it can be
            ordered[f"{part}_images"], ordered[f"{part}_labels"] = images[order], labels[order]
    return ordered


def verified(spec: ImageSet, arrays: Arrays, place: Path) -> Arrays:
    """The arrays, once their shapes, labels and checksums are those of the set."""
    for part, count in spec.counts.items():
        images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
        if images.shape != (count, *spec.shape) or images.dtype != np.uint8 or labels.shape != (count,):
            raise DataError(
                f"{place}: the {part} part is not {count} images of {spec.shape} bytes with labels"
            )
        if labels.min() < 0 or labels.max() >= len(spec.classes):
            raise DataError(f"{place}: a label of the {part} part is not one of {len(spec.classes)} classes")
        if not spec.sums and np.ptp(np.bincount(labels, minlength=len(spec.classes))):
            raise DataError(f"{place}: not all classes of the {part} part have the same size, as published")
        for key, array in ((f"{part}_images", images), (f"{part}_labels", labels.astype(np.uint8))):
            got, expected = hashlib.sha256(array.data).hexdigest(), spec.sums.get(key)
            if expected and got != expected:
                raise DataError(f"{place} is damaged: its {key} have sha256 {got}, expected {expected}")
    return arrays

"""Instances as people have them become tensors that networks take, or an error that names the row."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apportion.errors import DataError


def as_instances(x: Any) -> Tensor:
    """Instances as a tensor: tables and all other numbers become float32, images keep their bytes."""
    if not isinstance(x, Tensor):
        array = np.asarray(unmasked(x), order="C")
        if any(step < 0 for step in array.strides):  # C's order leaves those of one entry as they are
            array = array.copy()
        if array.dtype.kind not in "biuf":
            array = _numbers(array)
        elif array.dtype.itemsize > 8 or array.dtype.byteorder not in "=|":
            array = array.astype(np.float32)  # numpy's types that torch does not have
        x = _shared(array) if isinstance(x, np.memmap) else torch.from_numpy(_writeable(array))
    if x.ndim < 2:
        raise DataError(f"instances have shape {tuple(x.shape)}; pass a row each, such as x.reshape(-1, 1)")
    if x.dtype == torch.uint8 and x.ndim > 2:
        return x
    x = x.float()
    if not bool(x.sum().isfinite()):  # a sum alone may overflow: then every value is looked at
        for i in (~x.flatten(1).isfinite().all(1)).nonzero().flatten()[:1].tolist():
            value = x[i].flatten()[~x[i].flatten().isfinite()][0]
            raise DataError(f"instance {i} has the value {value:g}; fill it in, or drop the instance")
    return x


def library_of(values: Any) -> str:
    """Whose they are: pandas and polars are known by name, since neither need be there."""
    return type(values).__module__.split(".")[0]


def unmasked(x: Any) -> Any:
    """The same; numpy's masked values, of which nothing is left in an array, are refused."""
    if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
        i = int(np.argwhere(np.ma.getmaskarray(x))[0][0])
        raise DataError(f"row {i} has a masked value; fill it in, such as by x.filled(0), or drop the row")
    return x


def is_missing(value: Any) -> bool:
    """None, NaN, and pandas' NA, of which it is not known whether it is itself."""
    same = value == value  # noqa: PLR0124
    return value is None or not isinstance(same, bool | np.bool_) or not same


def check_classes(names: Sequence[Any]) -> None:
    """Refuse columns without a name, and names of several types, which have no common order."""
    for name in (name for name in names if isinstance(name, tuple) or is_missing(name)):
        raise DataError(f"a class is named {name!r}; give every column a name, and one alone")
    kinds = {np.asarray(name).dtype.kind for name in names}
    if len({"n" if kind in "iuf" else kind for kind in kinds}) > 1:
        raise DataError(
            f"the classes {list(names)} are of several types; write all alike, such as by map(str)"
        )


def as_floats(x: Tensor) -> Tensor:
    """What a network takes, batch by batch: bytes of images about nought and of about unit size."""
    return centered(x) if x.dtype == torch.uint8 else x.float()


def centered(x: Tensor) -> Tensor:
    """Pixels from 0 to 255 as floats from -2 to 2: the same for all data, so that no model has to keep it."""
    return x.float().sub(127.5).div(63.75)


def _writeable(array: np.ndarray) -> np.ndarray:
    return array if array.flags.writeable else array.copy()


def _shared(array: np.ndarray) -> Tensor:
    """A tensor on the memory of a mapped file, read when it is used; it is not written to, as torch warns."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


def _numbers(array: np.ndarray) -> np.ndarray:
    """Objects that are all numbers, as numbers; else an error that names the first that is none."""
    if array.dtype.kind == "O":
        try:
            return array.astype(np.float32)
        except (TypeError, ValueError):
            pass
    for place, value in np.ndenumerate(array):
        try:
            float(value)
        except (TypeError, ValueError):
            remedy = "encode texts and dates as numbers, such as with scikit-learn's OneHotEncoder"
            what = f"instance {place[0]} has the value {value!r}, which is no number"
            raise DataError(f"{what}; {remedy}") from None
    raise DataError(f"instances have values of type {array.dtype}; pass numbers, such as x.astype(float)")


def as_labels(y: Any, n: int, n_classes: int) -> Tensor:
    """Labels (n,) int64 from whole numbers of any type, checked to be classes."""
    labels = y if isinstance(y, Tensor) else torch.from_numpy(np.array(y))
    if labels.ndim != 1:
        raise DataError(f"labels have shape {tuple(labels.shape)}; pass one label an instance")
    if len(labels) != n:
        raise DataError(f"there are {n} instances but {len(labels)} labels; pass one label an instance")
    if n_classes < 2:
        raise DataError("one class leaves nothing to learn; n_classes must be at least two")
    for i in (labels != labels.long()).nonzero().flatten()[:1].tolist():
        raise DataError(f"instance {i} has label {labels[i].item()}; labels are whole numbers from 0")
    labels = labels.long()
    for i in ((labels < 0) | (labels >= n_classes)).nonzero().flatten()[:1].tolist():
        known = f"with n_classes={n_classes} labels are 0 to {n_classes - 1}"
        raise DataError(f"instance {i} has label {int(labels[i])}; {known}")
    return labels

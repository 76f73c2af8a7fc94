"""Instances as people have them become tensors that networks take, or an error that names the row."""

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor


class BagError(ValueError):
    """Bags that cannot be used; the message names the bag or the row, the value and the remedy."""


def as_instances(x: Any) -> Tensor:
    """Instances as a tensor: tables and all other numbers become float32, images keep their bytes."""
    if not isinstance(x, Tensor):
        array = np.asarray(x, order="C")
        if array.dtype.kind not in "biuf":
            array = _numbers(array)
        elif array.dtype.itemsize > 8 or array.dtype.byteorder not in "=|":
            array = array.astype(np.float32)  # numpy's types that torch does not have
        x = _shared(array) if isinstance(x, np.memmap) else torch.from_numpy(_writeable(array))
    if x.ndim < 2:
        raise BagError(f"instances have shape {tuple(x.shape)}; pass a row each, such as x.reshape(-1, 1)")
    if x.dtype == torch.uint8 and x.ndim > 2:
        return x
    x = x.float()
    if not bool(x.sum().isfinite()):  # a sum alone may overflow: then every value is looked at
        for i in (~x.flatten(1).isfinite().all(1)).nonzero().flatten()[:1].tolist():
            value = x[i].flatten()[~x[i].flatten().isfinite()][0]
            raise BagError(f"instance {i} has the value {value:g}; fill it in, or drop the instance")
    return x


def as_floats(x: Tensor) -> Tensor:
    """What a network takes, batch by batch: bytes of images about nought and of about unit size."""
    return centred(x) if x.dtype == torch.uint8 else x.float()


def centred(x: Tensor) -> Tensor:
    """Pixels from 0 to 255 as floats from -2 to 2: the same for all data, so that no model has to keep it."""
    return x.float().sub(127.5).div(63.75)


def numbers_of(values: Any, who: str) -> np.ndarray:
    """Numbers of a table of bags, float64, or an error that names the first that is none."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        pass
    for value in np.ravel(np.asarray(values, dtype=object)).tolist():
        try:
            float(value)
        except (TypeError, ValueError):
            remedy = "write shares as 0.31; bags are named by keys or by the index, table.set_index(...)"
            raise BagError(f"{who} has {value!r} where a number should be; {remedy}") from None
    raise BagError(f"{who} has rows of different lengths; give one number for each class")


def _writeable(array: np.ndarray) -> np.ndarray:
    return array if array.flags.writeable else array.copy()


def _shared(array: np.ndarray) -> Tensor:
    """A tensor on the memory of a mapped file, which is not read before it is used; instances are not
    written to, and torch need not warn of it."""
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
            raise BagError(
                f"instance {place[0]} has the value {value!r}, which is no number; {remedy}"
            ) from None
    raise BagError(f"instances have values of type {array.dtype}; pass numbers, such as x.astype(float)")


def as_labels(y: Any, n: int, n_classes: int) -> Tensor:
    """Labels (n,) int64 from whole numbers of any type, checked to be classes."""
    labels = y if isinstance(y, Tensor) else torch.from_numpy(np.array(y))
    if labels.ndim != 1:
        raise BagError(f"labels have shape {tuple(labels.shape)}; pass one label an instance")
    if len(labels) != n:
        raise BagError(f"there are {n} instances but {len(labels)} labels; pass one label an instance")
    if n_classes < 2:
        raise BagError("one class leaves nothing to learn; n_classes must be at least two")
    for i in (labels != labels.long()).nonzero().flatten()[:1].tolist():
        raise BagError(f"instance {i} has label {labels[i].item()}; labels are whole numbers from 0")
    labels = labels.long()
    for i in ((labels < 0) | (labels >= n_classes)).nonzero().flatten()[:1].tolist():
        known = f"with n_classes={n_classes} labels are 0 to {n_classes - 1}"
        raise BagError(f"instance {i} has label {int(labels[i])}; {known}")
    return labels

"""Instances that are not what a network takes, told before any training."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apportion.errors import DataError
from apportion.intake.pictures import stacked
from apportion.networks import NETWORKS

CHANNELS = (1, 3, 4)  # gray, color, color and transparency


def is_images(x: Tensor) -> bool:
    """Bytes (n, channels, height, width); all else is rows of values."""
    return x.ndim == 4 and x.dtype == torch.uint8


def misfits(x: Tensor, backbone: Any) -> Iterator[str]:
    """Why instances are not what the network takes, each with its remedy."""
    wanted = "images are (n, channels, height, width)"
    convolves = isinstance(backbone, str) and backbone in NETWORKS and backbone != "mlp"
    square_last = x.ndim == 4 and x.shape[1] == x.shape[2] > x.shape[3] > 0  # n x n pixels of few channels
    if is_images(x) and x.shape[1] not in CHANNELS and (x.shape[3] in CHANNELS or square_last):
        yield f", their channels last, but {wanted}; pass numpy.moveaxis(numpy.asarray(X), 3, 1)"
    if x.ndim > 2 and backbone == "mlp":
        yield ", but an mlp takes rows of values; pass X.reshape(len(X), -1), or name another backbone"
    if x.ndim == 3 and (convolves or backbone == "auto"):
        yield f", but {wanted}; pass X[:, None] where they are gray, or a backbone of your own"
    if x.ndim != 4 and convolves:
        yield f", but {wanted} for the backbone {backbone}; name another, such as mlp for rows of values"
    if x.ndim > 4 and x.dtype == torch.uint8 and backbone == "auto":
        yield f", but {wanted}; pass X.reshape(-1, *X.shape[-3:]) where each is an image, with a bag for each"
    if x.ndim > 2 and not is_images(x) and backbone == "auto":
        yield (
            " and are no bytes; pass images as bytes (n, channels, height, width): X.astype(numpy.uint8) of "
            "pixels from 0 to 255, (X >> 8).astype(numpy.uint8) of those of 16 bits, "
            "(255 * X).round().astype(numpy.uint8) of those from 0 to 1; or name a backbone"
        )


def check_alike(x: Tensor, shape: tuple[int, ...], bytes_: bool) -> None:
    """Refuse instances that are not such as those of `fit`: bytes are centered and floats are not."""
    if tuple(x.shape[1:]) != shape:
        raise ValueError(f"X has instances of shape {tuple(x.shape[1:])}, fit had {shape}")
    if bytes_ and x.dtype != torch.uint8:
        raise ValueError("X has floats, fit had bytes; pass pixels from 0 to 255 as numpy.uint8")
    if x.dtype == torch.uint8 and not bytes_:
        raise ValueError("X has bytes, fit had floats; pass floats, scaled as those of fit were")


def as_fitted(estimator: Any, x: Any) -> Any:
    """What a fitted network is asked about; images of another layout are refused with what to pass."""
    x, shape = stacked(x), estimator.instance_shape_
    found: tuple[int, ...] = tuple(getattr(x, "shape", ()))
    if len(shape) == 3 and found and found[1:] != shape:
        if found in (shape, shape[1:]):
            raise DataError(
                f"X is one image of shape {found}; pass X[{', '.join(['None'] * (4 - len(found)))}]"
            )
        remedies: dict[tuple[int, ...], str] = {
            (*shape[1:], shape[0]): "; pass numpy.moveaxis(numpy.asarray(X), 3, 1)"
        }
        remedies |= {shape[1:]: "; pass X[:, None]"} if shape[0] == 1 else {}
        raise DataError(f"X has instances of shape {found[1:]}, fit had {shape}{remedies.get(found[1:], '')}")
    if estimator.bytes_ and isinstance(x, np.ndarray) and x.dtype.kind in "iu" and x.dtype != np.uint8:
        bits = "(X >> 8)" if x.size and x.max() > 255 else "X"  # of 16 bits
        raise DataError(f"X has numbers of type {x.dtype}, fit had bytes; pass {bits}.astype(numpy.uint8)")
    return x

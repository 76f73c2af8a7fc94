"""What a data set is: labeled instances with a training and a test part, before bags hide the labels."""

from dataclasses import dataclass

import torch
from torch import Tensor

from apportion.errors import DataError


@dataclass(frozen=True)
class Instances:
    name: str
    x: Tensor  # (N, ...) float32, or uint8 images (N, channels, height, width)
    y: Tensor  # (N,) int64
    test_x: Tensor
    test_y: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...] = ()  # of each channel, in [0, 1]; empty if x needs no scaling
    std: tuple[float, ...] = ()

    @property
    def n_classes(self) -> int:
        return len(self.classes)


def check_instances(name: str, data: Instances) -> Instances:
    """The data set, after checking that its parts fit together; errors name the data set and the part."""
    if not isinstance(data, Instances):
        raise DataError(
            f"the data set {name!r} is {type(data).__name__}; return apportion.datasets.Instances"
        )
    for part, x, y in (("", data.x, data.y), ("test_", data.test_x, data.test_y)):
        for field, value in ((f"{part}x", x), (f"{part}y", y)):
            if not isinstance(value, Tensor):
                raise DataError(f"{field} of {name!r} is {type(value).__name__}; pass a tensor")
        if x.dtype not in (torch.float32, torch.uint8):
            raise DataError(f"{part}x of {name!r} is {x.dtype}; pass float32, or images as uint8")
        if y.ndim != 1 or len(x) != len(y) or x.shape[1:] != data.x.shape[1:]:
            shapes = f"{tuple(x.shape)} and {tuple(y.shape)}"
            raise DataError(
                f"{part}x and {part}y of {name!r} have shapes {shapes}; pass one label per instance"
            )
        if not len(x):
            raise DataError(f"{part}x of {name!r} has no row; every run is evaluated on a test part")
        if not bool(x.isfinite().all()):
            raise DataError(f"{part}x of {name!r} has numbers that are not finite; fill them in")
        if y.dtype != torch.int64 or (len(y) and not 0 <= int(y.min()) <= int(y.max()) < data.n_classes):
            raise DataError(
                f"{part}y of {name!r} must be int64 from 0 to {data.n_classes - 1}, one per class name"
            )
    if len(set(data.classes)) != data.n_classes:
        raise DataError(f"two classes of {name!r} have the same name: {', '.join(map(str, data.classes))}")
    if data.x.dtype == torch.uint8 and not data.mean:
        raise DataError(f"{name!r} has images as bytes; give mean and std of each channel, in [0, 1]")
    channels = data.x.shape[1] if data.x.ndim == 4 else 0
    if data.mean and not len(data.mean) == len(data.std) == channels:
        raise DataError(
            f"x of {name!r} has shape {tuple(data.x.shape)}, with {len(data.mean)} means and {len(data.std)} "
            "standard deviations; images must be (n, channels, height, width), with one of each per channel"
        )
    return data

"""What a data set is: labeled instances with a training and a test part, before bags hide the labels."""

from dataclasses import dataclass

from torch import Tensor


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

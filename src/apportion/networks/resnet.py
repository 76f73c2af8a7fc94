"""A network's answer to an image and to its mirror image at once.

Residual networks of the field's newer tables.

ResNet-9, small and fast.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn


class FlipAveraged(nn.Module):
    """Features at test time: the mean of an image's and its mirror image's, at twice the cost.

    The head is linear, so that it answers with the mean of both images' logits.
    """

    def __init__(self, features: nn.Module) -> None:
        super().__init__()
        self.features = features

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return self.features(x)
        return (self.features(x) + self.features(x.flip(3))) / 2


class Residual(nn.Module):
    """Two 3×3 convolutions around a shortcut; `before`: norm and activation come before each (WRN)."""

    def __init__(
        self, width: int, following: int, stride: int, before: bool, slope: float, dropout: float
    ) -> None:
        super().__init__()
        self.before, self.slope = before, slope
        self.norm1 = nn.BatchNorm2d(width if before else following)
        self.conv1 = nn.Conv2d(width, following, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(following)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(following, following, 3, padding=1, bias=False)
        same = stride == 1 and width == following
        self.shortcut = nn.Identity() if same else nn.Conv2d(width, following, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.before:
            y = F.leaky_relu(self.norm1(x), self.slope)
            y = self.dropout(F.leaky_relu(self.norm2(self.conv1(y)), self.slope))
            return self.shortcut(x) + self.conv2(y)
        y = self.dropout(F.leaky_relu(self.norm1(self.conv1(x)), self.slope))
        return F.leaky_relu(self.norm2(self.conv2(y)) + self.shortcut(x), self.slope)


def wrn_28_2(shape: Sequence[int], n_classes: int, dropout: float = 0.0, slope: float = 0.1) -> nn.Sequential:
    """Wide ResNet 28-2, the usual network of the field's newer tables."""
    layers: list[nn.Module] = [nn.Conv2d(shape[0], 16, 3, padding=1, bias=False)]
    width = 16
    for following, stride in ((32, 1), (64, 2), (128, 2)):
        for i in range(4):
            layers.append(Residual(width, following, stride if i == 0 else 1, True, slope, dropout))
            width = following
    layers += [nn.BatchNorm2d(128), nn.LeakyReLU(slope), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(nn.Sequential(*layers), nn.Linear(128, n_classes))


def resnet18(shape: Sequence[int], n_classes: int, dropout: float = 0.0) -> nn.Sequential:
    """ResNet-18 for 32×32 images: a 3×3 stem and no first pooling."""
    stem = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False)
    layers: list[nn.Module] = [stem, nn.BatchNorm2d(64), nn.ReLU()]
    width = 64
    for following, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for step in (stride, 1):
            layers.append(Residual(width, following, step, False, 0.0, dropout))
            width = following
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(nn.Sequential(*layers), nn.Linear(512, n_classes))


class Maxima(nn.Module):
    """An eighth of each channel's maximum: all of it makes first logits so large that SGD loses epochs."""

    def forward(self, x: Tensor) -> Tensor:
        return x.amax((2, 3)) / 8


class Shortcut(nn.Sequential):
    """What comes in is added to what the layers make of it."""

    def forward(self, input: Tensor) -> Tensor:
        return input + super().forward(input)


def resnet9(
    shape: Sequence[int],
    n_classes: int,
    width: int = 64,
    dropout: float = 0.0,
    slope: float = 0.1,
    test_time_flip: bool = False,
) -> nn.Sequential:
    """ResNet-9, known from races to 94 % (Page, 2018): half the arithmetic of the 13 layers.

    Pooling comes before the norm, which then costs a quarter, and whose statistics are those of the maxima.
    `test_time_flip` averages the features of an image and its mirror image at test time.
    """

    def conv(before: int, after: int, pooled: bool) -> nn.Sequential:
        pool = [nn.MaxPool2d(2)] if pooled else []
        layer = nn.Conv2d(before, after, 3, padding=1, bias=False)
        return nn.Sequential(layer, *pool, nn.BatchNorm2d(after), nn.LeakyReLU(slope))

    def twice(same: int) -> nn.Module:
        return Shortcut(conv(same, same, False), conv(same, same, False))

    if min(shape[1:]) < 8:
        raise ValueError(f"images of {shape[1]} x {shape[2]} are too small for ResNet-9; enlarge to 8 x 8")
    features = nn.Sequential(
        conv(shape[0], width, False),
        conv(width, 2 * width, True), twice(2 * width),
        conv(2 * width, 4 * width, True),
        conv(4 * width, 8 * width, True), twice(8 * width),
        Maxima(), nn.Dropout(dropout),
    )  # fmt: skip
    return nn.Sequential(
        FlipAveraged(features) if test_time_flip else features, nn.Linear(8 * width, n_classes)
    )

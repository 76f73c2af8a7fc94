"""Residual networks for small images: ResNet-9, ResNet-18 and Wide ResNet 28-2."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from apportion.errors import DataError
from apportion.networks.flip import FlipAveraged
from apportion.networks.fused_norm import FusedSequential, norm_leaky_relu

# --- ResNet-9


def resnet9(
    shape: Sequence[int],
    n_classes: int,
    width: int = 64,
    dropout: float = 0.0,
    slope: float = 0.1,
    test_time_flip: bool = False,
) -> nn.Sequential:
    """ResNet-9 of the speed-training contests [1]_: half the arithmetic of conv13, images from 8 x 8 pixels.

    Pooling comes before the norm, which then costs a quarter. `test_time_flip` averages the features of an
    image and its mirror image in evaluation mode.

    References
    ----------
    .. [1] Page, "How to train your ResNet", 2018.
    """
    height, image_width = shape[1:]
    if min(height, image_width) < 8:
        what = f"images of {height} x {image_width} are too small for resnet9"
        raise DataError(f"{what}; enlarge them to 8 x 8")

    def conv(channels: int, filters: int, pool: bool) -> nn.Module:
        convolution = nn.Conv2d(channels, filters, 3, padding=1, bias=False)
        pooling = [nn.MaxPool2d(2)] if pool else []
        return FusedSequential(convolution, *pooling, nn.BatchNorm2d(filters), nn.LeakyReLU(slope))

    def residual(channels: int) -> nn.Module:
        return Residual(conv(channels, channels, False), conv(channels, channels, False))

    features = nn.Sequential(
        conv(shape[0], width, False),
        conv(width, 2 * width, True), residual(2 * width),
        conv(2 * width, 4 * width, True),
        conv(4 * width, 8 * width, True), residual(8 * width),
        ScaledMaxPool(), nn.Dropout(dropout),
    )  # fmt: skip
    return nn.Sequential(
        FlipAveraged(features) if test_time_flip else features, nn.Linear(8 * width, n_classes)
    )


class Residual(nn.Sequential):
    """Layers whose output is added to their input."""

    def forward(self, input: Tensor) -> Tensor:
        return input + super().forward(input)


class ScaledMaxPool(nn.Module):
    """An eighth of the maximum of each channel: the whole maximum would make the first logits so large that
    SGD loses epochs."""

    def forward(self, x: Tensor) -> Tensor:
        return x.amax((2, 3)) / 8


# --- ResNet-18 and Wide ResNet


def resnet18(shape: Sequence[int], n_classes: int, dropout: float = 0.0) -> nn.Sequential:
    """ResNet-18 for images of 32 x 32 pixels: a 3x3 convolution first, and no pooling after it [1]_.

    References
    ----------
    .. [1] He et al., "Deep residual learning for image recognition", CVPR 2016.
    """
    stem = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False)
    layers: list[nn.Module] = [stem, nn.BatchNorm2d(64), nn.ReLU()]
    width = 64
    for next_width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for block_stride in (stride, 1):
            layers.append(
                ResidualBlock(width, next_width, block_stride, norm_first=False, slope=0.0, dropout=dropout)
            )
            width = next_width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(FusedSequential(*layers), nn.Linear(512, n_classes))


def wrn_28_2(shape: Sequence[int], n_classes: int, dropout: float = 0.0, slope: float = 0.1) -> nn.Sequential:
    """Wide ResNet 28-2, the usual network of semi-supervised learning since 2018 [1]_.

    References
    ----------
    .. [1] Zagoruyko & Komodakis, "Wide residual networks", BMVC 2016.
    """
    layers: list[nn.Module] = [nn.Conv2d(shape[0], 16, 3, padding=1, bias=False)]
    width = 16
    for next_width, stride in ((32, 1), (64, 2), (128, 2)):
        for i in range(4):
            block_stride = stride if i == 0 else 1
            layers.append(
                ResidualBlock(width, next_width, block_stride, norm_first=True, slope=slope, dropout=dropout)
            )
            width = next_width
    layers += [nn.BatchNorm2d(128), nn.LeakyReLU(slope), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(FusedSequential(*layers), nn.Linear(128, n_classes))


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut. With `norm_first`, norm and activation come first."""

    def __init__(
        self, width: int, next_width: int, stride: int, *, norm_first: bool, slope: float, dropout: float
    ) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.slope = slope
        self.norm1 = nn.BatchNorm2d(width if norm_first else next_width)
        self.conv1 = nn.Conv2d(width, next_width, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(next_width)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(next_width, next_width, 3, padding=1, bias=False)
        if stride == 1 and width == next_width:
            self.shortcut: nn.Module = nn.Identity()
        else:
            self.shortcut = nn.Conv2d(width, next_width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.norm_first:
            y = norm_leaky_relu(self.norm1, x, self.slope)
            y = self.dropout(norm_leaky_relu(self.norm2, self.conv1(y), self.slope))
            return self.shortcut(x) + self.conv2(y)
        y = self.dropout(norm_leaky_relu(self.norm1, self.conv1(x), self.slope))
        return F.leaky_relu(self.norm2(self.conv2(y)) + self.shortcut(x), self.slope)

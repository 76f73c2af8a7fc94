"""Networks: every backbone is nn.Sequential(features, head), (n, ...) -> logits (n, k)."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def mlp(
    shape: Sequence[int], n_classes: int, widths: Sequence[int] = (128, 128, 128), dropout: float = 0.0
) -> nn.Sequential:
    """Dense layers with ReLU. Two moons: three hidden layers; the MNIST family: MNIST_WIDTHS."""
    layers: list[nn.Module] = [nn.Flatten()]
    width = torch.Size(shape).numel()
    for following in widths:
        layers += [nn.Linear(width, following), nn.ReLU(), nn.Dropout(dropout)]
        width = following
    return nn.Sequential(nn.Sequential(*layers), nn.Linear(width, n_classes))


MNIST_WIDTHS = (1000, 500, 250, 250, 250)  # the paper's appendix


def conv13(
    shape: Sequence[int],
    n_classes: int,
    dropout: float = 0.5,
    norm: bool = True,
    slope: float = 0.1,
    last_padding: int = 0,
) -> nn.Sequential:
    """The paper's 13 layers: nine convolutions, three poolings, one dense layer.

    P10: the paper names neither batch-norm nor the padding of the last 3×3 convolution nor LeakyReLU's
    slope; the defaults are those of the network that this table comes from in semi-supervised learning.
    """

    if min(shape[1:]) // 4 + 2 * last_padding < 3:
        size = f"{shape[1]} x {shape[2]}"
        raise ValueError(f"images of {size} are too small for the 13 layers; enlarge them to 12 x 12")

    def conv(before: int, after: int, size: int, padding: int) -> list[nn.Module]:
        normed = [nn.BatchNorm2d(after)] if norm else []
        return [nn.Conv2d(before, after, size, padding=padding, bias=not norm), *normed, nn.LeakyReLU(slope)]

    features = nn.Sequential(
        *conv(shape[0], 128, 3, 1), *conv(128, 128, 3, 1), *conv(128, 128, 3, 1),
        nn.MaxPool2d(2), nn.Dropout(dropout),
        *conv(128, 256, 3, 1), *conv(256, 256, 3, 1), *conv(256, 256, 3, 1),
        nn.MaxPool2d(2), nn.Dropout(dropout),
        *conv(256, 512, 3, last_padding), *conv(512, 256, 1, 0), *conv(256, 128, 1, 0),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    return nn.Sequential(features, nn.Linear(128, n_classes))


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
    shape: Sequence[int], n_classes: int, width: int = 64, dropout: float = 0.0, slope: float = 0.1
) -> nn.Sequential:
    """ResNet-9, known from races to 94 % (Page, 2018): half the arithmetic of the 13 layers.

    Pooling comes before the norm, which then costs a quarter, and whose statistics are those of the maxima.
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
    return nn.Sequential(features, nn.Linear(8 * width, n_classes))


BACKBONES = {"mlp": mlp, "conv13": conv13, "wrn-28-2": wrn_28_2, "resnet18": resnet18, "resnet9": resnet9}

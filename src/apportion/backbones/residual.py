"""Residual networks of the field's newer tables."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn


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

"""ResNet-9, small and fast."""

from collections.abc import Sequence

from torch import Tensor, nn

from apportion.backbones.both_ways import BothWays


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
    both_ways: bool = False,
) -> nn.Sequential:
    """ResNet-9, known from races to 94 % (Page, 2018): half the arithmetic of the 13 layers.

    Pooling comes before the norm, which then costs a quarter, and whose statistics are those of the maxima.
    `both_ways`: at test time mirror images are asked, too; for images whose mirror image is of their class.
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
    return nn.Sequential(BothWays(features) if both_ways else features, nn.Linear(8 * width, n_classes))

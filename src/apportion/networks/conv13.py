"""The 13 layers of the paper."""

from collections.abc import Sequence

from torch import nn

from apportion.networks.resnet import FlipAveraged


def conv13(
    shape: Sequence[int],
    n_classes: int,
    dropout: float = 0.5,
    norm: bool = True,
    slope: float = 0.1,
    last_padding: int = 0,
    test_time_flip: bool = False,
) -> nn.Sequential:
    """The paper's 13 layers: nine convolutions, three poolings, one dense layer.

    P10: the paper names neither batch-norm nor the padding of the last 3×3 convolution nor LeakyReLU's
    slope; the defaults are those of the network that this table comes from in semi-supervised learning.
    `test_time_flip`: at test time mirror images are asked, too, which the paper does not.
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
    return nn.Sequential(FlipAveraged(features) if test_time_flip else features, nn.Linear(128, n_classes))

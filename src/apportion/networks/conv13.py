"""The 13-layer convolutional network of the paper."""

from collections.abc import Sequence

from torch import nn

from apportion.errors import DataError
from apportion.networks.flip import FlipAveraged
from apportion.networks.fused_norm import FusedSequential


def conv13(
    shape: Sequence[int],
    n_classes: int,
    dropout: float = 0.5,
    norm: bool = True,
    slope: float = 0.1,
    last_padding: int = 0,
    test_time_flip: bool = False,
) -> nn.Sequential:
    """Nine convolutions, three poolings and a linear layer, for images of at least 12 x 12 pixels.

    The paper specifies neither batch normalization (`norm`) nor the padding of its last 3x3 convolution nor
    the slope of LeakyReLU; the defaults are those of the network in semi-supervised learning that its table
    was taken from (docs/paper.md, P10). `test_time_flip` averages the features of an image and its mirror
    image in evaluation mode, which the paper does not.
    """
    height, width = shape[1:]
    if min(height, width) // 4 + 2 * last_padding < 3:
        raise DataError(f"images of {height} x {width} are too small for conv13; enlarge them to 12 x 12")

    def conv(channels: int, filters: int, size: int, padding: int) -> list[nn.Module]:
        convolution = nn.Conv2d(channels, filters, size, padding=padding, bias=not norm)
        normalization = [nn.BatchNorm2d(filters)] if norm else []
        return [convolution, *normalization, nn.LeakyReLU(slope)]

    features = FusedSequential(
        *conv(shape[0], 128, 3, 1), *conv(128, 128, 3, 1), *conv(128, 128, 3, 1),
        nn.MaxPool2d(2), nn.Dropout(dropout),
        *conv(128, 256, 3, 1), *conv(256, 256, 3, 1), *conv(256, 256, 3, 1),
        nn.MaxPool2d(2), nn.Dropout(dropout),
        *conv(256, 512, 3, last_padding), *conv(512, 256, 1, 0), *conv(256, 128, 1, 0),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    return nn.Sequential(FlipAveraged(features) if test_time_flip else features, nn.Linear(128, n_classes))

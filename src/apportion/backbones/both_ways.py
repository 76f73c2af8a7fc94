"""A network's answer to an image and to its mirror image at once."""

from torch import Tensor, nn


class BothWays(nn.Module):
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

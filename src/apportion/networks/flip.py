"""Features averaged over an image and its mirror image.

Networks do this only with `test_time_flip=True`, an option of `conv13` and `resnet9` that is off by default.
The recipes of the two-views tables switch it on.
"""

from torch import Tensor, nn


class FlipAveraged(nn.Module):
    """In evaluation mode, the mean of the features of an image and of its mirror image, at twice the cost.

    With a linear head this is the mean of both logits. In training mode it is the plain features.
    """

    def __init__(self, features: nn.Module) -> None:
        super().__init__()
        self.features = features

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return self.features(x)
        return (self.features(x) + self.features(x.flip(3))) / 2

"""Dense layers."""

from collections.abc import Sequence

import torch
from torch import nn


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

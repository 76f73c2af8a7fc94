"""Multilayer perceptron, for tables and small images."""

from collections.abc import Sequence

import torch
from torch import nn

MNIST_WIDTHS = (1000, 500, 250, 250, 250)  # of the paper's network for MNIST and its relatives (appendix)


def mlp(
    shape: Sequence[int], n_classes: int, widths: Sequence[int] = (128, 128, 128), dropout: float = 0.0
) -> nn.Sequential:
    """Linear layers of these widths, each followed by ReLU and dropout."""
    layers: list[nn.Module] = [nn.Flatten()]
    width = torch.Size(shape).numel()
    for next_width in widths:
        layers += [nn.Linear(width, next_width), nn.ReLU(), nn.Dropout(dropout)]
        width = next_width
    return nn.Sequential(nn.Sequential(*layers), nn.Linear(width, n_classes))

"""Networks that learn beside a classifier: LLP-GAN's generator, and where two views are contrasted."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def generator(shape: Sequence[int], noise: int = 100) -> nn.Module:
    """The GAN's second player: dense for points, transposed convolutions for images (LLP-GAN's own)."""
    if len(shape) == 1:
        hidden = [nn.Linear(noise, 128), RowNorm(128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()]
        return nn.Sequential(*hidden, nn.Linear(128, shape[0]))
    widths = (512, 256, 128) if shape[1] % 8 == 0 else (256, 128)  # 32 = 4·2³, 28 = 7·2²
    start = [math.ceil(side / 2 ** len(widths)) for side in shape[1:]]
    layers: list[nn.Module] = [
        nn.Linear(noise, widths[0] * math.prod(start), bias=False),
        nn.Unflatten(1, (widths[0], *start)),
        RowNorm(widths[0]),
        nn.LeakyReLU(0.2),
    ]
    for width, following in zip(widths, widths[1:], strict=False):
        layers.append(nn.ConvTranspose2d(width, following, 5, 2, padding=2, output_padding=1, bias=False))
        layers += [nn.BatchNorm2d(following), nn.LeakyReLU(0.2)]
    layers += [nn.ConvTranspose2d(widths[-1], shape[0], 5, 2, padding=2, output_padding=1), Stretch()]
    return nn.Sequential(*layers, Cut(shape[1], shape[2]))


def projector(width: int) -> nn.Module:
    """From features to the 128 values in which two views are contrasted."""
    return nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 128))


def contrast(one: Tensor, other: Tensor, temperature: float) -> Tensor:
    """InfoNCE in both directions: of all instances in the batch, which is the other view of this one?"""
    one, other = F.normalize(one.float(), dim=1), F.normalize(other.float(), dim=1)
    alike = one @ other.T / temperature
    same = torch.arange(len(one), device=one.device)
    return (F.cross_entropy(alike, same) + F.cross_entropy(alike.T, same)) / 2


class RowNorm(nn.modules.batchnorm._BatchNorm):
    """Batch-norm that also trains on one value a channel, which has no variance: by its running statistics.
    So has a row alone, and an image alone that begins as one pixel."""

    def _check_input_dim(self, input: Tensor) -> None:  # rows and images alike
        pass

    def forward(self, input: Tensor) -> Tensor:
        if input.numel() > self.num_features or not self.training:
            return super().forward(input)
        return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


class Cut(nn.Module):
    """Images of no more than this height and width: doubling does not end at every size."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.height, self.width = height, width

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, : self.height, : self.width]


class Stretch(nn.Module):
    """tanh, stretched to the range of pixels after scaling to zero mean and unit variance, about ±2."""

    def forward(self, x: Tensor) -> Tensor:
        return 2.0 * torch.tanh(x)

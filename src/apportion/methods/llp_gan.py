"""LLP-GAN: the classifier also tells real instances from generated ones.

    L_D = w · proportion loss + mean softplus(-lse(f(real))) + mean softplus(lse(f(fake)))
    L_G = ‖ mean features(real) - mean features(fake) ‖²

The discriminator has k + 1 classes. The logit of the class "generated" is fixed at zero, so the classifier's
k logits suffice: an instance is real with probability sigmoid(lse), lse = log Σ_c exp f_c(x). The generator
has an optimizer of its own: Adam, at the rate in `defaults`.

Liu et al., "Learning from label proportions with generative adversarial networks", NeurIPS 2019.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from apportion.bags.bags import BagBatch
from apportion.losses import proportion_loss
from apportion.methods.protocol import LossTerms, frozen, frozen_batch_norm
from apportion.methods.setup import Setup
from apportion.networks.fused_norm import FusedSequential


class LLPGAN:
    """A classifier, nn.Sequential(features, head), and a generator of instances from `noise` numbers each.

    `weight` is the weight of the proportion loss, `adversarial` that of the real and fake terms. For Adam
    only their ratio matters; for SGD and Muon their scale matters, too.
    """

    title = "LLP-GAN"
    # Muon's step keeps the length of the gradient: weights of 1 and 0.01 instead of 100 and 1 with Adam
    image_options: ClassVar = {"adversarial": 0.01}

    def __init__(
        self,
        classifier: nn.Module,
        generator: nn.Module,
        noise: int = 100,
        weight: float = 1.0,
        adversarial: float = 1.0,
    ) -> None:
        if not isinstance(classifier, nn.Sequential) or len(classifier) != 2:
            raise TypeError(
                "llp_gan matches the features before the last layer; pass nn.Sequential(features, head), or "
                "nn.Sequential(network, nn.Identity()) to match the logits"
            )
        self.classifier: nn.Module = classifier
        self.features = classifier[0]
        self.generator = generator
        self.noise = noise
        self.weight = weight
        self.adversarial = adversarial
        self.mean: Callable[[Tensor], Tensor] = mean_of_rows  # replaced where there are several processes

    @classmethod
    def build(cls, classifier: nn.Module, setup: Setup, noise: int = 100, **options: float) -> Self:
        """With a generator of instances."""
        generator = setup.to_device(make_generator(setup.bags.x.shape[1:], noise))
        return cls(classifier, generator, noise, **options)

    def networks(self) -> list[nn.Module]:
        return [self.classifier, self.generator]

    def losses(self, batch: BagBatch, progress: float) -> Iterator[LossTerms]:
        noise = torch.rand(len(batch.x), self.noise, device=batch.x.device) * 2 - 1
        generated = self.generator(noise)
        logits = self.classifier(batch.x)
        # the running statistics, which are used in evaluation mode, must be those of real instances
        with frozen_batch_norm(self.classifier):
            fake_logits = self.classifier(generated.detach())
        yield {
            "proportion": self.weight
            * proportion_loss(logits, batch.sizes, batch.proportions, batch.undrawn),
            "real": self.adversarial * F.softplus(-logits.float().logsumexp(1)).mean(),
            "fake": self.adversarial * F.softplus(fake_logits.float().logsumexp(1)).mean(),
        }
        with frozen_batch_norm(self.classifier):
            with torch.no_grad():
                real = self.mean(self.features(batch.x).flatten(1).float())
            with frozen(self.classifier):  # until the generator has taken its step
                fake = self.mean(self.features(generated).flatten(1).float())
                yield {"matching": (real - fake).square().mean()}


def mean_of_rows(values: Tensor) -> Tensor:
    """The mean (d,) of values (n, d)."""
    return values.mean(0)


def make_generator(shape: Sequence[int], noise: int = 100) -> nn.Module:
    """A generator of instances of this shape: dense layers for rows, transposed convolutions for images."""
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
    last = nn.ConvTranspose2d(widths[-1], shape[0], 5, 2, padding=2, output_padding=1)
    return FusedSequential(*layers, last, ScaledTanh(), Crop(shape[1], shape[2]))


class RowNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalization that falls back to its running statistics for one value per channel.

    A single value has no variance. A batch of one row has one value per channel, and so has one image that
    starts as a single pixel.
    """

    def _check_input_dim(self, input: Tensor) -> None:  # rows and images alike
        pass

    def forward(self, input: Tensor) -> Tensor:
        if input.numel() > self.num_features or not self.training:
            return super().forward(input)
        return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


class ScaledTanh(nn.Module):
    """tanh, scaled to the range of normalized pixels, about ±2."""

    def forward(self, x: Tensor) -> Tensor:
        return 2.0 * torch.tanh(x)


class Crop(nn.Module):
    """Cuts images to this height and width, since repeated doubling does not give every size."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.height = height
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, : self.height, : self.width]

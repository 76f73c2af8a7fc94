"""LLP-VAT (Tsai & Lin, 2020): DLLP, and predictions that do not change under the worst small perturbation."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from apportion.bags.bags import BagBatch
from apportion.losses import divergence, proportion_loss
from apportion.methods.protocol import LossTerms, frozen, frozen_batch_norm


def scaled(direction: Tensor, radius: float) -> Tensor:
    """Each instance's direction, stretched to a root-mean-square of `radius` over its values."""
    flat = direction.flatten(1)
    length = flat.norm(dim=1, keepdim=True).clamp_min(1e-12)
    return (flat * (radius * math.sqrt(flat.shape[1]) / length)).view_as(direction)


def ramp_up(progress: float, length: float) -> float:
    """exp(-5 (1 - t)²) with t the share of the ramp that is done."""
    return math.exp(-5.0 * (1.0 - min(1.0, progress / length)) ** 2)


class LLPVAT:
    """`radius` and `probe` are root-mean-square changes of an input value, so that they mean the same for
    points and images: 0.108 is the authors' 6.0 over the 3,072 values of a CIFAR image. Their probe of 1e-6
    is below what float32 resolves around one, let alone bfloat16 (P17): 0.02 is not.
    """

    def __init__(
        self,
        classifier: nn.Module,
        weight: float = 0.05,
        radius: float = 0.108,
        probe: float = 0.02,
        ramp: float = 0.4,
    ) -> None:
        self.classifier = classifier
        self.weight = weight
        self.radius = radius
        self.probe = probe
        self.ramp = ramp

    def networks(self) -> list[nn.Module]:
        return [self.classifier]

    def losses(self, batch: BagBatch, progress: float) -> Iterator[LossTerms]:
        logits = self.classifier(batch.x)
        with frozen_batch_norm(self.classifier):
            moved = self.classifier(batch.x + self.attack(batch.x, logits))
        yield {
            "proportion": proportion_loss(logits, batch.sizes, batch.proportions, batch.left),
            "consistency": self.weight * ramp_up(progress, self.ramp) * divergence(logits, moved),
        }

    def attack(self, x: Tensor, logits: Tensor) -> Tensor:
        """The perturbation that changes predictions most, by one power iteration from a random direction."""
        direction = scaled(torch.randn_like(x), self.probe).requires_grad_()
        with frozen(self.classifier):
            moved = self.classifier(x + direction)
            (gradient,) = torch.autograd.grad(divergence(logits, moved), direction)
        return scaled(gradient, self.radius)

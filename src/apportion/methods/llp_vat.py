"""LLP-VAT: the proportion loss, and predictions that hardly change under the worst small perturbation.

    L = proportion loss + w r(t) · 1/N Σ_j KL( f(x_j) ‖ f(x_j + a_j) ),   a_j: the adversarial perturbation

r(t) ramps up over the first part of training. Tsai & Lin, "Learning from label proportions with
consistency regularization", ACML 2020; virtual adversarial training: Miyato et al., 2018.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from apportion.bags.bags import BagBatch
from apportion.losses import kl_divergence, proportion_loss
from apportion.methods.protocol import LossTerms, frozen, frozen_batch_norm


class LLPVAT:
    """The proportion loss and, with `weight`, the consistency under adversarial perturbations.

    `radius` is the size of a perturbation and `probe` that of the step that finds its direction. Both are
    root mean square changes per input value, so they are comparable for rows and images. The authors' radius
    of 6.0 over the 3,072 values of a CIFAR image is 0.108. Their probe of 1e-6 is below the resolution of
    float32 around one, let alone bfloat16 (P17 in docs/paper.md). The weight ramps up over the fraction
    `ramp` of training.
    """

    title = "LLP-VAT"

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
            perturbed = self.classifier(batch.x + self.perturbation(batch.x, logits))
        weight = self.weight * ramp_up(progress, self.ramp)
        yield {
            "proportion": proportion_loss(logits, batch.sizes, batch.proportions, batch.undrawn),
            "consistency": weight * kl_divergence(logits, perturbed),
        }

    def perturbation(self, x: Tensor, logits: Tensor) -> Tensor:
        """The change of `x` that moves predictions most, by one power iteration from a random direction."""
        direction = rescale(torch.randn_like(x), self.probe).requires_grad_()
        with frozen(self.classifier):
            perturbed = self.classifier(x + direction)
            (gradient,) = torch.autograd.grad(kl_divergence(logits, perturbed), direction)
        return rescale(gradient, self.radius)


def rescale(direction: Tensor, radius: float) -> Tensor:
    """Each instance's direction, scaled to a root mean square of `radius`."""
    flat = direction.flatten(1)
    length = flat.norm(dim=1, keepdim=True).clamp_min(1e-12)
    return (flat * (radius * math.sqrt(flat.shape[1]) / length)).view_as(direction)


def ramp_up(progress: float, length: float) -> float:
    """exp(-5 (1 - t)²), where t is the fraction of the ramp that is done."""
    return math.exp(-5.0 * (1.0 - min(1.0, progress / length)) ** 2)

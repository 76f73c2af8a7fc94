"""EasyLLP: an unbiased estimate of the loss of every instance from the proportions of its bag.

    L = 1/N Σ_j Σ_c w_jc · CE(c, f(x_j)),   w_jc = n (p_c - π_c) + π_c

for row j of a bag of n rows with proportions p; π are the proportions of all rows. If bags are random, the
expectation of w given a row is one-hot at its class, so the expectation of L is the loss with true labels.
The weights of a row sum to one, but they are of either sign and of size √n: L has no lower bound, and a
network that can tell bags apart lowers it forever (docs/methods/easy-llp.md).

Busa-Fekete, Choi, Dick, Gentile & Muñoz Medina, "Easy learning from label proportions", NeurIPS 2023.
"""

from collections.abc import Iterator
from typing import Self

import torch
from torch import Tensor, nn

from apportion.bags.bags import BagBatch
from apportion.losses import cross_entropy
from apportion.methods.protocol import LossTerms
from apportion.methods.setup import Setup, bag_sizes_before_drawing


class EasyLLP:
    """The debiased cross-entropy. `prior` (k,) are the class proportions of all rows."""

    title = "EasyLLP"
    mean_terms = ("debiased",)

    def __init__(self, classifier: nn.Module, prior: Tensor) -> None:
        self.classifier = classifier
        self.prior = prior

    @classmethod
    def build(cls, classifier: nn.Module, setup: Setup) -> Self:
        """With the class proportions of all rows."""
        return cls(classifier, setup.bags.overall.float().to(setup.bags.x.device))

    def networks(self) -> list[nn.Module]:
        return [self.classifier]

    def losses(self, batch: BagBatch, progress: float) -> Iterator[LossTerms]:
        logits = self.classifier(batch.x)
        weights = debiased_weights(batch.proportions, batch.sizes, self.prior, batch.undrawn)
        per_row = torch.repeat_interleave(weights, batch.sizes, 0, output_size=len(logits))
        yield {"debiased": cross_entropy(logits, per_row).mean()}


def debiased_weights(proportions: Tensor, sizes: Tensor, prior: Tensor, undrawn: float = 0.0) -> Tensor:
    """The weight of each class for every row of a bag, (b, k), of either sign; each bag's sum to one."""
    n = bag_sizes_before_drawing(sizes, undrawn).to(proportions.dtype).unsqueeze(1)
    return n * (proportions - prior) + prior

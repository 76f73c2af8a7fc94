"""ROT (Dulac-Arnold et al., 2019): train on relaxed transport labels of each batch, beside the bag loss."""

from collections.abc import Iterator

from torch import nn

from apportion.bags.bags import BagBatch
from apportion.losses import cross_entropy, proportion_loss
from apportion.methods.protocol import LossTerms
from apportion.pseudo_labels import SoftLabels


class ROT:
    """`alpha` is the bag loss's weight, the rest is the labels'; `relax` is the KL weight."""

    def __init__(
        self, classifier: nn.Module, alpha: float = 0.6, reg: float = 1.0, relax: float = 1.0
    ) -> None:
        self.classifier = classifier
        self.alpha = alpha
        self.label = SoftLabels(reg, relax)

    def networks(self) -> list[nn.Module]:
        return [self.classifier]

    def losses(self, batch: BagBatch, progress: float) -> Iterator[LossTerms]:
        logits = self.classifier(batch.x)
        log_probs = logits.detach().float().log_softmax(1)
        labels = self.label(log_probs, batch.sizes, batch.proportions)
        yield {
            "proportion": self.alpha * proportion_loss(logits, batch.sizes, batch.proportions, batch.left),
            "labels": (1 - self.alpha) * cross_entropy(logits, labels).mean(),
        }

"""ROT: train on labels from relaxed transport of each batch, in addition to the proportion loss.

    L = α · proportion loss + (1 - α) · 1/N Σ_j CE(q_j, f(x_j)),   q: entropic transport, proportions relaxed

Dulac-Arnold, Zeghidour, Cuturi, Beyer & Vert, "Deep multi-class learning from label proportions", 2019.
"""

from collections.abc import Iterator

from torch import nn

from apportion.bags.bags import BagBatch
from apportion.losses import cross_entropy, proportion_loss
from apportion.methods.protocol import LossTerms
from apportion.pseudo_labels import SoftLabels


class ROT:
    """Proportion loss of weight `alpha`, and cross-entropy to soft labels of weight 1 - `alpha`.

    `reg` is the entropy's weight 1/λ, `precision` the weight of KL(class masses ‖ proportions).
    """

    title = "ROT"

    def __init__(
        self, classifier: nn.Module, alpha: float = 0.6, reg: float = 1.0, precision: float = 1.0
    ) -> None:
        self.classifier = classifier
        self.alpha = alpha
        self.label = SoftLabels(reg, precision=precision)

    def networks(self) -> list[nn.Module]:
        return [self.classifier]

    def losses(self, batch: BagBatch, progress: float) -> Iterator[LossTerms]:
        logits = self.classifier(batch.x)
        log_probs = logits.detach().float().log_softmax(1)
        labels = self.label(log_probs, batch.sizes, batch.proportions)
        yield {
            "proportion": self.alpha * proportion_loss(logits, batch.sizes, batch.proportions, batch.undrawn),
            "labels": (1 - self.alpha) * cross_entropy(logits, labels).mean(),
        }

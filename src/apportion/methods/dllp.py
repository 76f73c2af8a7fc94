"""DLLP: match the mean prediction of each bag to its proportions.

    L = - 1/N  Σ_bags n_i  Σ_c  p_ic log( 1/n_i Σ_{x in bag i} f_c(x) )

Ardehaly & Culotta, "Co-training for demographic classification using deep learning from label proportions",
2017. They minimize the KL divergence, which differs by the entropy of the proportions, a constant.
"""

from collections.abc import Iterator
from typing import Self

from torch import nn

from apportion.bags.bags import BagBatch, RowBatch
from apportion.losses import proportion_loss
from apportion.methods.prediction_memory import PredictionMemory
from apportion.methods.protocol import LossTerms
from apportion.methods.setup import Setup


class DLLP:
    """The proportion loss alone. With bags of one row it is supervised learning, an upper bound.

    Without a `memory`, batches hold whole bags. With one, they hold rows from all bags, for bags that are too
    large for a batch.
    """

    title = "DLLP"
    batches = ("bag", "row")
    weights = True

    def __init__(self, classifier: nn.Module, memory: PredictionMemory | None = None) -> None:
        self.classifier = classifier
        self.memory = memory

    @classmethod
    def build(cls, classifier: nn.Module, setup: Setup) -> Self:
        """With a memory, for batches of rows."""
        if setup.by == "bag":
            return cls(classifier)
        return cls(classifier, PredictionMemory(setup.bags, False, setup.graph_part))

    def networks(self) -> list[nn.Module]:
        if self.memory is None:
            return [self.classifier]
        return [nn.ModuleList([self.classifier, self.memory])]  # checkpoints include the memory

    def losses(self, batch: BagBatch | RowBatch, progress: float) -> Iterator[LossTerms]:
        logits = self.classifier(batch.x)
        if isinstance(batch, BagBatch):
            loss = proportion_loss(logits, batch.sizes, batch.proportions, batch.undrawn, batch.weight)
            yield {"proportion": loss}
            return
        if self.memory is None:
            raise TypeError("batches of rows need the predictions of whole bags; pass a PredictionMemory")
        yield {"proportion": self.memory.loss(logits, batch.row)}
        self.memory.update(logits, batch.row)

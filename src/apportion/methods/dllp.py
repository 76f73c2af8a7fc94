"""DLLP (Ardehaly & Culotta, 2017): match the mean prediction of a bag to its proportions.

DLLP on batches of rows from all bags, which is how large bags are learned.
"""

from collections.abc import Iterator

from torch import nn

from apportion.bags.bags import BagBatch
from apportion.losses import proportion_loss
from apportion.methods.prediction_memory import PredictionMemory
from apportion.methods.protocol import LossTerms


class DLLP:
    """On bags of one instance this is supervised learning, the upper bound of every table."""

    def __init__(self, classifier: nn.Module) -> None:
        self.classifier = classifier

    def networks(self) -> list[nn.Module]:
        return [self.classifier]

    def losses(self, batch: BagBatch, progress: float) -> Iterator[LossTerms]:
        logits = self.classifier(batch.x)
        yield {"proportion": proportion_loss(logits, batch.sizes, batch.proportions, batch.left)}


class RowDLLP:
    """Batches are those of `scattered(bags)`; the means of whole bags are remembered."""

    def __init__(self, classifier: nn.Module, remembered: PredictionMemory) -> None:
        self.classifier = classifier
        self.remembered = remembered
        self.player = nn.ModuleList([classifier, remembered])  # what is remembered is saved

    def networks(self) -> list[nn.Module]:
        return [self.player]

    def losses(self, batch: BagBatch, progress: float) -> Iterator[LossTerms]:
        logits = self.classifier(batch.x)
        yield {"proportion": self.remembered.loss(logits, batch.row)}
        self.remembered.remember(logits, batch.row)

"""DLLP (Ardehaly & Culotta, 2017): match the mean prediction of a bag to its proportions."""

from collections.abc import Iterator

from torch import nn

from apportion.bags import BagBatch
from apportion.learner import Terms
from apportion.losses import proportion_loss


class DLLP:
    """On bags of one instance this is supervised learning, the upper bound of every table."""

    def __init__(self, classifier: nn.Module) -> None:
        self.classifier = classifier

    def players(self) -> list[nn.Module]:
        return [self.classifier]

    def steps(self, batch: BagBatch, progress: float) -> Iterator[Terms]:
        logits = self.classifier(batch.x)
        yield {"proportion": proportion_loss(logits, batch.sizes, batch.proportions, batch.left)}

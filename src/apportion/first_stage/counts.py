"""Counts: the likelihood of every bag's counts, where DLLP has a cross-entropy of its proportions.

Both want the mean prediction of a bag to be its proportions. This one also knows how far off it should be:
a bag of sure predictions has little room, and rare classes less than common ones, so that no bag is fitted
better than chance allows and none worse.
"""

from collections.abc import Iterator

from torch import nn

from apportion.bags import BagBatch
from apportion.learner import Terms
from apportion.likelihood import count_loss


class Counts:
    def __init__(self, classifier: nn.Module) -> None:
        self.classifier = classifier

    def players(self) -> list[nn.Module]:
        return [self.classifier]

    def steps(self, batch: BagBatch, progress: float) -> Iterator[Terms]:
        logits = self.classifier(batch.x)
        yield {"counts": count_loss(logits, batch.sizes, batch.proportions, batch.left)}

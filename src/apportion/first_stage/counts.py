"""Counts: the likelihood of every bag's counts, where DLLP has a cross-entropy of its proportions.

DLLP takes every row for a draw from the mean prediction of its bag. Here each row has its own: a bag of sure
predictions has little room, and one of vague ones much, so that no bag is fitted better than chance allows.
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

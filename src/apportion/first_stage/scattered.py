"""DLLP on batches of rows from all bags, which is how large bags are learnt."""

from collections.abc import Iterator

from torch import nn

from apportion.bags import BagBatch
from apportion.learner import Terms
from apportion.remembered import Remembered


class ScatteredDLLP:
    """Batches are those of `scattered(bags)`; the means of whole bags are remembered."""

    def __init__(self, classifier: nn.Module, remembered: Remembered) -> None:
        self.classifier = classifier
        self.remembered = remembered
        self.player = nn.ModuleList([classifier, remembered])  # what is remembered is saved

    def players(self) -> list[nn.Module]:
        return [self.player]

    def steps(self, batch: BagBatch, progress: float) -> Iterator[Terms]:
        logits = self.classifier(batch.x)
        yield {"proportion": self.remembered.loss(logits, batch.row)}
        self.remembered.remember(logits, batch.row)

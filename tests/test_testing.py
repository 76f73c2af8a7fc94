"""check_method: every method passes it, and each rule catches a method that breaks it."""

from collections.abc import Iterator
from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import nn

from apportion.losses import proportion_loss
from apportion.methods import DLLP, METHODS, ROT
from apportion.methods.protocol import LossTerms
from apportion.testing import check_method


@pytest.mark.parametrize("name", METHODS)
def test_every_method_passes(name):
    state = torch.get_rng_state()
    check_method(METHODS[name])
    assert torch.equal(torch.get_rng_state(), state)


def test_functions_and_partials_that_make_a_method_pass():
    check_method(partial(ROT, alpha=0.9))
    check_method(lambda classifier: DLLP(classifier))


class NotANumber(DLLP):
    def losses(self, batch, progress: float) -> Iterator[LossTerms]:
        for terms in super().losses(batch, progress):
            yield terms | {"extra": terms["proportion"] * float("nan")}


class PerRow(DLLP):
    def losses(self, batch, progress: float) -> Iterator[LossTerms]:
        yield {"rows": self.classifier(batch.x).square().sum(1)}


class TooManyNetworks(DLLP):
    def networks(self) -> list[nn.Module]:
        return [self.classifier, nn.Linear(1, 1)]


class Detached(DLLP):
    def losses(self, batch, progress: float) -> Iterator[LossTerms]:
        for terms in super().losses(batch, progress):
            yield {name: term.detach() + 0 * self.classifier(batch.x).sum() for name, term in terms.items()}


class EqualBagsOnly(DLLP):
    def losses(self, batch, progress: float) -> Iterator[LossTerms]:
        logits = self.classifier(batch.x)
        width = len(logits) / len(batch.sizes)
        scale = 1.0 if width == int(width) and bool((batch.sizes == int(width)).all()) else float("inf")
        yield {"proportion": scale * proportion_loss(logits, batch.sizes, batch.proportions)}


class OwnRandomness(DLLP):
    calls = 0

    def losses(self, batch, progress: float) -> Iterator[LossTerms]:
        OwnRandomness.calls += 1
        for terms in super().losses(batch, progress):
            yield {name: term * (1 + OwnRandomness.calls / 100) for name, term in terms.items()}


class IgnoresTheSeed(DLLP):
    def losses(self, batch, progress: float) -> Iterator[LossTerms]:
        yield {"size": sum(p.square().sum() for p in self.classifier.parameters())}


class ForgetsItsState(DLLP):
    """Its weight grows from step to step, but is in no module."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__(classifier)
        self.steps = 0

    def losses(self, batch, progress: float) -> Iterator[LossTerms]:
        self.steps += 1
        for terms in super().losses(batch, progress):
            noise = self.steps * sum(p.square().sum() for p in self.classifier.parameters())
            yield terms | {"decay": 0.01 * noise}


class WrongSign(DLLP):
    def losses(self, batch, progress: float) -> Iterator[LossTerms]:
        for terms in super().losses(batch, progress):
            yield {name: -term for name, term in terms.items()}


class OtherClassifier(DLLP):
    """It trains a copy of the network that it predicts with."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__(deepcopy(classifier))
        self.trained = self.classifier
        self.classifier = classifier

    def networks(self) -> list[nn.Module]:
        return [self.trained]

    def losses(self, batch, progress: float) -> Iterator[LossTerms]:
        yield {"copy": proportion_loss(self.trained(batch.x), batch.sizes, batch.proportions)}


class SeveralBags(DLLP):
    def losses(self, batch, progress: float) -> Iterator[LossTerms]:
        others = torch.tensor(len(batch.sizes) - 1.0)
        for terms in super().losses(batch, progress):
            yield terms | {"spread": 0 * terms["proportion"] / others}


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (NotANumber, "'extra' is nan"), (PerRow, "shape"), (TooManyNetworks, "1 dicts for 2 networks"),
        (Detached, "no weight of network 0"), (EqualBagsOnly, "."), (OwnRandomness, "the same seed"),
        (IgnoresTheSeed, "different seeds"), (ForgetsItsState, "resumed"), (WrongSign, "well separated"),
        (OtherClassifier, "well separated"), (SeveralBags, "is nan"),
    ],
)  # fmt: skip
def test_a_method_that_breaks_a_rule_is_caught(broken, message):
    with pytest.raises((AssertionError, ArithmeticError), match=message):
        check_method(broken)

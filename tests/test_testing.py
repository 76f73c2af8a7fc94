"""check_method: every method passes it, and each rule catches a method that breaks it."""

from collections.abc import Iterator
from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import nn

from apportion.bags.bags import bag_means
from apportion.errors import SettingsError
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

    batches = ("bag",)

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

    batches = ("bag",)
    weights = False

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


class BagsOnly:
    """It has none of what its class says."""

    batches = ("bag", "row")

    def __init__(self, classifier: nn.Module) -> None:
        self.classifier = classifier

    def networks(self) -> list[nn.Module]:
        return [self.classifier]

    def losses(self, batch, progress: float) -> Iterator[LossTerms]:
        yield {"proportion": proportion_loss(self.classifier(batch.x), batch.sizes, batch.proportions)}


class OneOfTwoClasses(BagsOnly):
    """A sigmoid on the second class: right for two classes only."""

    batches = ("bag",)

    def losses(self, batch, progress: float) -> Iterator[LossTerms]:
        shares = bag_means(self.classifier(batch.x)[:, 1:2].sigmoid(), batch.sizes)[:, 0]
        yield {"squared": (shares - batch.proportions[:, 1]).square().mean()}


class NoWeights(BagsOnly):
    batches = ("bag",)
    weights = True


class NoSuchMean(BagsOnly):
    batches = ("bag",)
    mean_terms = ("nonexistent",)


class EqualSizes(BagsOnly):
    batches = ("bag",)

    def losses(self, batch, progress: float) -> Iterator[LossTerms]:
        p = self.classifier(batch.x).softmax(1)
        yield {"squared": (p.reshape(len(batch.sizes), -1, p.shape[1]).mean(1) - batch.proportions).norm()}


class LogOfZero(BagsOnly):
    batches = ("bag",)

    def losses(self, batch, progress: float) -> Iterator[LossTerms]:
        p = bag_means(self.classifier(batch.x).softmax(1), batch.sizes)
        yield {"kl": (batch.proportions * (batch.proportions / p).log()).sum(1).mean()}


class BufferOnClassifier(BagsOnly):
    batches = ("bag",)

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__(classifier)
        classifier.register_buffer("mean", torch.zeros(()))


class LateBuffer(BagsOnly):
    batches = ("bag",)

    def losses(self, batch, progress: float) -> Iterator[LossTerms]:
        self.classifier.register_buffer("mean", torch.zeros(()))
        yield from super().losses(batch, progress)


class StateAsNetwork(BagsOnly):
    batches = ("bag",)

    def networks(self) -> list[nn.Module]:
        return [self.classifier, nn.BatchNorm1d(2, affine=False)]


class OneModule(BagsOnly):
    batches = ("bag",)

    def networks(self) -> list[nn.Module]:
        return self.classifier


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (OneOfTwoClasses, "three well separated"), (NoWeights, "take batch.weight into account"),
        (NoSuchMean, "mean_terms has 'nonexistent'"), (LogOfZero, "'kl' is nan for .*log\\(0\\)"),
        (BufferOnClassifier, "mean, but it is saved"), (LateBuffer, "added buffers"),
        (StateAsNetwork, "network 1 of the method StateAsNetwork"), (OneModule, "returned a module"),
        (NotANumber, "'extra' is nan"), (PerRow, "shape"), (TooManyNetworks, "1 dicts for 2 networks"),
        (Detached, "no weight of network 0"), (EqualBagsOnly, "."), (OwnRandomness, "the same seed"),
        (IgnoresTheSeed, "different seeds"), (ForgetsItsState, "resumed"), (WrongSign, "well separated"),
        (OtherClassifier, "well separated"), (SeveralBags, "is nan"),
    ],
)  # fmt: skip
def test_a_method_that_breaks_a_rule_is_caught(broken, message):
    with pytest.raises((AssertionError, ArithmeticError, SettingsError, ValueError), match=message):
        check_method(broken)


@pytest.mark.parametrize(
    ("broken", "note"),
    [(EqualSizes, "while checking bags of any sizes"), (BagsOnly, "while checking batches of rows")],
)
def test_an_error_of_the_method_says_what_was_checked(broken, note):
    with pytest.raises((RuntimeError, AttributeError)) as error:
        check_method(broken)
    assert note in error.value.__notes__

"""The training loop: what it optimizes, logs, refuses, and leaves alone."""

import math
import random
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest
import torch
from conftest import ONE_VIEW, learner_of, moon_bags, network, ragged, same_bits, steady, trained, weights_of
from torch import nn

from apportion._random import derive_seed, reseed
from apportion.bags.bags import BagBatch
from apportion.errors import TrainingError
from apportion.losses import proportion_loss
from apportion.methods import DLLP
from apportion.methods.protocol import LossTerms
from apportion.optim import make_optimizer
from apportion.training import train


class Turns:
    """A learner with these loss terms for each of its networks in turn."""

    def __init__(self, *turns: dict[str, float]) -> None:
        self.classifier = network()
        self.turns = turns
        self.seen: list[tuple[BagBatch, float]] = []

    def networks(self) -> list[nn.Module]:
        return [self.classifier]

    def losses(self, batch: BagBatch, progress: float) -> Iterator[LossTerms]:
        self.seen.append((batch, progress))
        for turn in self.turns:
            loss = self.classifier(batch.x.float()).square().mean()
            yield {name: loss * value for name, value in turn.items()}


def test_a_method_that_yields_too_few_dicts_of_terms_fails_on_its_first_batch():
    learner = Turns()
    with pytest.raises(ValueError, match="yields 0 dicts for 1 networks"):
        trained(learner, moon_bags()[0], 1)
    assert len(learner.seen) == 1


def test_a_method_that_yields_too_many_dicts_of_terms_fails_on_its_first_batch():
    learner = Turns({"a": 1.0}, {"b": 1.0})
    with pytest.raises(ValueError, match="yields more than 1 dicts for 1 networks"):
        trained(learner, moon_bags()[0], 1)
    assert len(learner.seen) == 1


class Returned(DLLP):
    def losses(self, batch: BagBatch, progress: float) -> Iterator[LossTerms]:
        return {"a": self.classifier(batch.x).mean()}  # type: ignore


class Yielded(DLLP):
    """Yields something else than a dict of tensors."""

    value: object = None

    def losses(self, batch: BagBatch, progress: float) -> Iterator[LossTerms]:
        yield self.value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.zeros(()), "yielded a Tensor; yield a dict"),
        (None, "yielded None"),
        ({}, "network 0 of Yielded has no terms"),
        ({"weight": 0.5}, "the term 'weight' of Yielded is a float; yield a tensor"),
    ],
)
def test_what_is_no_dict_of_tensors_is_named(value, words):
    learner = Yielded(network())
    learner.value = value
    with pytest.raises((TypeError, ValueError), match=words):
        trained(learner, moon_bags()[0], 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"optimizers": None}, "optimizers is one PlainAdam"),
        ({"optimizers": []}, "0 optimizers for 1 networks"),
        ({"schedule": 0.1}, "schedule is 0.1"),
        ({"learner": Returned}, "losses of Returned must yield dicts .* it returned a dict"),
    ],
)
def test_arguments_that_cannot_be_trained_with_are_refused(change, words):
    learner = change.get("learner", DLLP)(network())
    optimizer = make_optimizer(learner.classifier, "adam", 1e-3)
    optimizers = change.get("optimizers", [optimizer])
    given = {"epochs": 1, "seed": 0, "stage": "first", "schedule": change.get("schedule", steady)}
    with pytest.raises((TypeError, ValueError), match=words):
        next(train(learner, moon_bags()[0], optimizer if optimizers is None else optimizers, **given))


def test_the_loss_is_the_sum_of_the_terms_and_the_log_holds_the_mean_of_each():
    bags = moon_bags(120, 20)[0]
    learner, classifier = Turns({"a": 1.0, "b": 0.5}), network()
    epochs = trained(learner, bags, 2, batch_size=40)
    optimizer = make_optimizer(classifier, "adam", 1e-3)
    for epoch in epochs:
        losses = []
        for batch in bags.batches(40, reseed(0, "first", epoch.number)):
            optimizer.zero_grad()
            loss = classifier(batch.x).square().mean()
            (1.5 * loss).backward()
            optimizer.step()
            losses.append(loss.item())
        assert len(losses) == 3
        expected = {"a": sum(losses) / 3, "b": 0.5 * sum(losses) / 3}
        assert epoch.terms == pytest.approx(expected, rel=1e-4)
    torch.testing.assert_close(weights_of(learner.classifier), weights_of(classifier))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_term_that_is_not_finite_stops_the_run_and_names_epoch_and_term(value):
    learner = Turns({"good": 1.0, "bad": 1.0})
    epochs = train(
        learner, moon_bags()[0], [make_optimizer(learner.classifier, "sgd", 1e-3)],
        epochs=5, schedule=steady, seed=0, stage="first",
    )  # fmt: skip
    assert next(epochs).number == 1
    learner.turns = ({"good": 1.0, "bad": value},)
    with pytest.raises(TrainingError, match=r"'bad' is (nan|inf) in epoch 2"):
        next(epochs)


def test_epochs_are_numbered_from_one_and_go_on_after_those_that_are_done():
    bags = moon_bags()[0]
    assert [epoch.number for epoch in trained(DLLP(network()), bags, 3)] == [1, 2, 3]
    assert [epoch.number for epoch in trained(DLLP(network()), bags, 5, done=3)] == [4, 5]
    assert trained(DLLP(network()), bags, 3, done=3) == []


@pytest.mark.parametrize("name", ONE_VIEW)
def test_training_in_two_parts_gives_the_bits_of_training_in_one(name):
    bags, ends = moon_bags()[0], []
    for parts in ((4,), (1, 3), (3, 1)):
        learner, done, log = learner_of(name, network()), 0, []
        optimizers = [make_optimizer(p, "adam", 1e-3) for p in learner.networks()]
        for part in parts:
            epochs = train(
                learner, bags, optimizers, epochs=4, schedule=lambda progress: 1 - progress, seed=0,
                stage="first", batch_size=64, done=done,
            )  # fmt: skip
            log += [(epoch.number, epoch.terms) for epoch in islice(epochs, part)]
            done += part
        ends.append((weights_of(*learner.networks()), log))
    for weights, log in ends[1:]:
        assert same_bits(weights, ends[0][0])
        assert log == ends[0][1]


def test_the_rate_follows_the_schedule_from_batch_to_batch():
    bags, learner = ragged((10,) * 4), Turns({"a": 1.0})
    learner.classifier = network(3)
    optimizer = make_optimizer(learner.classifier, "sgd", 0.5, weight_decay=0.1)
    rates = []

    class Watching(Turns):
        def losses(self, batch: BagBatch, progress: float) -> Iterator[LossTerms]:
            rates.append((progress, optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"]))
            yield from Turns.losses(self, batch, progress)

    watching = Watching({"a": 1e-3})
    watching.classifier = learner.classifier
    trained(watching, bags, 2, optimizers=[optimizer], schedule=lambda p: 1 - p, batch_size=20)
    assert rates == [(p, 0.5 * (1 - p), 0.5 * (1 - p)) for p in (0.0, 0.25, 0.5, 0.75)]


def test_progress_goes_evenly_to_the_end_of_an_epoch_of_bags_that_are_larger_than_a_batch():
    learner, asked = Turns({"a": 1e-3}), []

    def rate(progress: float) -> float:
        asked.append(progress)
        return steady(progress)

    trained(learner, ragged((100, 10, 50)), 2, schedule=rate, batch_size=10)
    assert asked == pytest.approx([i / 6 for i in range(6)])
    assert [progress for _, progress in learner.seen] == asked


def test_augmentation_is_what_the_learner_sees_and_the_bags_stay_as_they_were():
    bags, learner = moon_bags()[0], Turns({"a": 1.0})
    before = bags.x.clone()
    trained(learner, bags, 1, augment=lambda x: x + 100)
    assert all((batch.x > 50).all() for batch, _ in learner.seen)
    assert torch.equal(bags.x, before)


def test_networks_are_in_training_mode_in_every_epoch_whatever_the_caller_did_between():
    learner = DLLP(network())
    epochs = train(
        learner, moon_bags()[0], [make_optimizer(learner.classifier, "adam", 1e-3)],
        epochs=2, schedule=steady, seed=0, stage="first",
    )  # fmt: skip
    modes = []
    learner.classifier.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    for _ in epochs:
        learner.classifier.eval()
    assert len(modes) == 2
    assert all(modes)


def test_training_does_not_depend_on_the_callers_random_state_and_leaves_other_generators_alone():
    bags, ends, own = moon_bags()[0], [], torch.Generator().manual_seed(5)
    before = own.get_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    for state in (1, 2):
        learner = learner_of("llp_vat", network())
        torch.manual_seed(state)
        trained(learner, bags, 2)
        ends.append(weights_of(learner.classifier))
    assert same_bits(*ends)
    assert torch.equal(own.get_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002
    assert random.getstate() == before[2]


def test_after_an_epoch_torchs_generator_is_where_the_epochs_key_and_its_draws_leave_it():
    trained(DLLP(network()), moon_bags()[0], 2)
    state = torch.get_rng_state()
    torch.manual_seed(derive_seed(0, "first", 2))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_network_of_vectors_alone_can_be_trained():
    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.shift

    learner, bags = DLLP(Shift()), moon_bags()[0]
    before = proportion_loss(bags.x, bags.sizes, bags.proportions)
    assert trained(learner, bags, 20)[-1].terms["proportion"] < before

"""From words to functions: every name is known before data is read, every option reaches its place."""

import math

import pytest
import torch
from conftest import network
from torch import nn

from apportion.backbones import BACKBONES
from apportion.building import (
    BAGGINGS,
    LABELS,
    build_labeller,
    build_learner,
    build_loss,
    build_network,
    build_optimizers,
    build_rate,
    check,
)
from apportion.data import SOURCES
from apportion.first_stage import METHODS
from apportion.labelling import hard_labels, soft_labels
from apportion.losses import cross_entropy, symmetric_cross_entropy
from apportion.randomness import stream
from apportion.recipes import First, Network, Recipe, RecipeError, Second, changed
from apportion.schedules import SCHEDULES

NAMES = {
    "data.name": SOURCES,
    "data.bagging": BAGGINGS,
    "network.name": BACKBONES,
    "first.method": METHODS,
    "first.optimizer": ("adam", "sgd"),
    "first.schedule": SCHEDULES,
    "second.labels": LABELS,
    "second.loss": ("ce", "sce", "sce-mnist", "sce-cifar10", "sce-cifar100", "sce-eq9"),
    "second.student": ("new", "teacher"),
    "second.weighting": ("instance", "bag"),
    "second.optimizer": ("adam", "sgd"),
    "second.schedule": SCHEDULES,
    "second.network.name": BACKBONES,
    "augment": ("none", "crop+flip"),
}


@pytest.mark.parametrize("path", NAMES)
def test_a_name_that_does_not_exist_is_refused_with_those_that_do(path):
    known = NAMES[path]
    for name in known:
        check(changed(Recipe(second=Second()), {path: name}))
    with pytest.raises(RecipeError) as refusal:
        check(changed(Recipe(second=Second()), {path: "nonsense"}))
    assert str(refusal.value) == f"{path} is 'nonsense'; there are {', '.join(known)}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"network.options.width": "3"}, "no setting 'network.options.width'; there are widths, dropout"),
        ({"first.options.weight": "3"}, "no setting 'first.options.weight'; there are none"),
        ({"first.options.generator": "3", "first.method": "gan"}, "generator'; there are noise, weight"),
        ({"first.options.epsilon": "1", "first.method": "vat"}, "there are weight, radius, probe, ramp"),
        ({"first.options.lambda": "1", "first.method": "rot"}, "there are alpha, reg, relax"),
        ({"second.network.options.norms": "1"}, "no setting 'second.network.options.norms'; there are wid"),
    ],
)
def test_an_option_that_its_maker_does_not_take_is_refused_with_those_it_does(settings, message):
    with pytest.raises(RecipeError, match=message):
        check(changed(Recipe(), settings))


def test_a_network_is_built_with_its_options():
    built = build_network(Network("mlp", {"widths": (5, 7), "dropout": 0.25}), (3,), 4)
    assert [m.out_features for m in built.modules() if isinstance(m, nn.Linear)] == [5, 7, 4]
    assert {m.p for m in built.modules() if isinstance(m, nn.Dropout)} == {0.25}


@pytest.mark.parametrize("name", METHODS)
def test_a_learner_is_built_around_the_classifier_with_its_options(name):
    options = {"dllp": {}, "vat": {"radius": 0.5}, "gan": {"noise": 3}, "rot": {"alpha": 0.1}}[name]
    classifier = network()
    learner = build_learner(First(name, options=options), classifier, (2,), lambda n: n)
    assert isinstance(learner, METHODS[name])
    assert learner.classifier is classifier
    assert all(getattr(learner, option) == value for option, value in options.items())


def test_the_gans_generator_is_placed_and_takes_as_much_noise_as_is_drawn():
    placed = []
    learner = build_learner(
        First("gan", options={"noise": 3}), network(), (2,), lambda n: placed.append(n) or n
    )
    assert learner.players() == [learner.classifier, *placed]
    assert placed[0](torch.rand(4, 3, generator=stream(0))).shape == (4, 2)


def test_each_player_gets_an_optimiser_of_its_own_and_the_generators_is_adam_with_half_momentum():
    first = First(optimizer="sgd", rate=0.5, decay=0.1, momentum=0.7, generator_rate=0.25)
    own, other = build_optimizers([network(), network()], first)
    assert isinstance(own, torch.optim.SGD)
    assert {g["peak"] for g in own.param_groups} == {0.5}
    assert own.param_groups[0]["weight_decay"] == 0.1
    assert isinstance(other, torch.optim.Adam)
    assert {(g["peak"], g["betas"]) for g in other.param_groups} == {(0.25, (0.5, 0.999))}
    (student,) = build_optimizers([network()], Second(rate=0.125))
    assert {g["peak"] for g in student.param_groups} == {0.125}


def test_the_rate_knows_the_number_of_epochs():
    rate = build_rate(First(epochs=400, schedule="halving"))
    assert [rate(p) for p in (0.0, 0.25, 0.5, 0.75)] == [1.0, 0.5, 0.25, 0.125]


def test_labellers_and_losses_take_the_recipes_numbers():
    generator = stream(0)
    log_probs = torch.randn(6, 3, generator=generator).log_softmax(1)
    sizes, shares = torch.tensor([6]), torch.tensor([[0.5, 0.25, 0.25]])
    assert build_labeller(Second()) is hard_labels
    for relax in (None, 2.0):
        got = build_labeller(Second(labels="soft", reg=0.5, relax=relax))(log_probs, sizes, shares)
        expected = soft_labels(log_probs, sizes, shares, 0.5, math.inf if relax is None else relax)
        assert torch.equal(got, expected)
    labels = torch.rand(6, 3, generator=generator).softmax(1)
    assert build_loss(Second()) is cross_entropy
    loss = build_loss(Second(loss="sce", alpha=0.3, beta=0.6, log_zero=-4.0))
    assert torch.equal(loss(log_probs, labels), symmetric_cross_entropy(log_probs, labels, 0.3, 0.6, -4.0))

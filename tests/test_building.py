"""From words to functions: every name is known before data is read, every option reaches its place."""

import inspect
import math

import pytest
import torch
from conftest import ONE_VIEW, network, ragged
from torch import nn

from apportion._random import stream
from apportion.augment import AUGMENTATIONS, PAIRS
from apportion.bags.simulate import BAG_KINDS
from apportion.datasets import DATASETS
from apportion.errors import SettingsError
from apportion.losses import cross_entropy, symmetric_cross_entropy
from apportion.methods import METHODS
from apportion.networks import NETWORKS
from apportion.optim import SCHEDULES
from apportion.pseudo_labels import hard_labels, soft_labels
from apportion.recipes import Data, First, Network, Recipe, Second, changed
from apportion.recipes.building import (
    build_labeler,
    build_learner,
    build_loss,
    build_network,
    build_optimizers,
    build_schedule,
)
from apportion.recipes.checks import LABELS, check
from apportion.recipes.ranges import OPTIONS, RANGES, numbers

NAMES = {
    "data.name": DATASETS,
    "data.bagging": BAG_KINDS,
    "network.name": NETWORKS,
    "first.method": METHODS,
    "first.optimizer": ("adam", "sgd", "muon"),
    "first.schedule": SCHEDULES,
    "second.labels": LABELS,
    "second.loss": ("ce", "sce", "sce-mnist", "sce-cifar10", "sce-cifar100", "sce-eq9"),
    "second.student": ("new", "teacher"),
    "second.weighting": ("instance", "bag"),
    "second.optimizer": ("adam", "sgd", "muon"),
    "second.schedule": SCHEDULES,
    "second.network.name": NETWORKS,
    "augment": AUGMENTATIONS,
    "second.augment": AUGMENTATIONS,
}


WHOLE = Recipe(data=Data("cifar10"), second=Second())  # images, so that all networks will do


@pytest.mark.parametrize("path", NAMES)
def test_a_name_that_does_not_exist_is_refused_with_those_that_do(path):
    known = NAMES[path]
    for name in known:
        if name not in ("two_views", *PAIRS):  # which go together
            check(changed(WHOLE, {path: name}))
    with pytest.raises(SettingsError) as refusal:
        check(changed(WHOLE, {path: "nonsense"}))
    assert str(refusal.value) == f"{path} is 'nonsense'; there are {', '.join(known)}"


@pytest.mark.parametrize("views", PAIRS)
def test_both_pairs_of_views_go_with_two_views_and_with_points(views):
    check(changed(Recipe(), {"first.method": "two_views", "augment": views}))
    check(changed(WHOLE, {"first.method": "two_views", "augment": views, "second.augment": "crop"}))
    with pytest.raises(SettingsError, match="a second stage learns from one view"):
        check(changed(WHOLE, {"first.method": "two_views", "augment": views}))
    with pytest.raises(SettingsError, match="go together: set both or neither"):
        check(changed(WHOLE, {"augment": views, "second.augment": "crop"}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"network.options.width": "3"}, "no setting 'network.options.width'; there are widths, dropout"),
        ({"first.options.weight": "3"}, "no setting 'first.options.weight'; there are none"),
        ({"first.options.generator": "3", "first.method": "llp_gan"}, "generator'; there are noise, weight"),
        ({"first.options.epsilon": "1", "first.method": "llp_vat"}, "there are weight, radius, probe, ramp"),
        ({"first.options.lambda": "1", "first.method": "rot"}, "there are alpha, reg, relax"),
        ({"second.network.options.norms": "1"}, "no setting 'second.network.options.norms'; there are wid"),
    ],
)
def test_an_option_that_its_maker_does_not_take_is_refused_with_those_it_does(settings, message):
    with pytest.raises(SettingsError, match=message):
        check(changed(Recipe(), settings))


# --- numbers


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data.bag_size=0", "data.bag_size is 0; it must be at least 1"),
        ("data.held_out=1.0", "data.held_out is 1.0; it must be at least 0 and less than 1"),
        ("data.held_out=-0.1", "data.held_out is -0.1; it must be at least 0 and less than 1"),
        ("first.epochs=0", "first.epochs is 0; it must be at least 1"),
        ("second.epochs=-1", "second.epochs is -1; it must be at least 1"),
        ("first.rate=NaN", "first.rate is nan; it must be at least 0 and finite"),
        ("second.rate=Infinity", "second.rate is inf; it must be at least 0 and finite"),
        ("first.decay=-1", "first.decay is -1.0; it must be at least 0 and finite"),
        ("first.momentum=1", "first.momentum is 1.0; it must be at least 0 and less than 1"),
        ("first.generator_rate=-1", "first.generator_rate is -1.0; it must be at least 0"),
        ("second.reg=0", "second.reg is 0.0; it must be more than 0 and finite"),
        ("second.relax=0", "second.relax is 0.0; it must be more than 0 and finite"),
        ("second.alpha=-1", "second.alpha is -1.0; it must be at least 0"),
        ("second.beta=-1", "second.beta is -1.0; it must be at least 0"),
        ("second.log_zero=0", "second.log_zero is 0.0; it must be less than 0"),
        ("second.log_zero=-Infinity", "second.log_zero is -inf; it must be less than 0"),
        ("second.mixup=-1", "second.mixup is -1.0; it must be at least 0 and finite"),
        ("second.memory=0", "second.memory is 0; it must be at least 1"),
        ("second.running=1", "second.running is 1.0; it must be at least 0 and less than 1"),
        ("second.hold=-1", "second.hold is -1; it must be at least 0"),
        ("second.stop=-1", "second.stop is -1.0; it must be at least 0 and finite"),
        ("batch_size=0", "batch_size is 0; it must be at least 1"),
        ("seed=-1", "seed is -1; it must be at least 0 and less than 4.29497e+09"),
        (f"seed=1{'0' * 400}", "it must be at least 0 and less than 4.29497e+09"),
        ("network.options.widths=[8,0]", "network.options.widths is 0; it must be at least 1"),
        ("network.options.dropout=1", "network.options.dropout is 1; it must be at least 0 and less than 1"),
        ("network.options.dropout=much", "network.options.dropout is much; it must be such as 0.0"),
        ("network.options.widths=8", "network.options.widths is 8; it must be such as"),
        ("network.options.widths=[[8]]", "it must be such as"),
    ],
    ids=lambda value: value[:24],
)
def test_a_number_out_of_its_range_is_refused_with_the_range(setting, message):
    name, _, text = setting.partition("=")
    with pytest.raises(SettingsError) as refusal:
        check(changed(Recipe(second=Second()), {name: text}))
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("method", "option", "bad"),
    [
        ("llp_vat", "ramp", 0),
        ("llp_vat", "radius", 0.0),
        ("llp_vat", "probe", -1.0),
        ("llp_vat", "weight", -1.0),
        ("llp_gan", "noise", 0),
        ("llp_gan", "noise", 1.5),
        ("rot", "alpha", 1.1),
        ("rot", "reg", 0.0),
        ("rot", "relax", True),
    ],
)
def test_an_option_out_of_its_range_or_of_another_type_is_refused(method, option, bad):
    check(Recipe(first=First(method)))
    with pytest.raises(SettingsError, match=f"first.options.{option} is {bad}; it must be"):
        check(Recipe(first=First(method, options={option: bad})))


def test_every_number_of_a_recipe_and_of_the_options_has_its_range():
    whole = Recipe(first=First(clip=1.0), second=Second(relax=1.0, stop=1.0))
    assert {path for path, _ in numbers(whole, "")} == set(RANGES)
    for maker, given in [(m, 2) for m in NETWORKS.values()] + [(m, 1) for m in METHODS.values()]:
        for option in list(inspect.signature(maker).parameters.values())[given:]:
            built = option.default in (inspect.Parameter.empty, None)
            assert option.name in OPTIONS or isinstance(option.default, bool) or built


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (Recipe(augment="crop+flip"), "augment is 'crop.flip', but moons has no images: set it to none"),
        (Recipe(network=Network("conv13")), "network.name is 'conv13', which takes images, but moons has"),
        (
            Recipe(second=Second(network=Network("resnet18"))),
            "second.network.name is 'resnet18', which",
        ),
        (Recipe(second=Second(augment="strong")), "second.augment is 'strong', but moons has no images"),
        (
            Recipe(Data("mnist"), first=First("two_views")),
            "first.method is 'two_views' and augment is 'none'; .* go together: set both or neither",
        ),
        (Recipe(Data("mnist"), augment="weak+strong"), "first.method is 'dllp' and augment is 'weak.strong'"),
        (
            Recipe(Data("mnist"), first=First("two_views"), augment="weak+strong", second=Second()),
            "a second stage learns from one view; set second.augment to one, not to weak",
        ),
        (
            Recipe(second=Second(student="teacher", network=Network("mlp", {"widths": (8,)}))),
            "second.student is 'teacher', whose network goes on: leave second.network out",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(recipe, message):
    with pytest.raises(SettingsError, match=message):
        check(recipe)


def test_rots_proportions_may_be_met_exactly():
    check(changed(Recipe(first=First("rot")), {"first.options.relax": "Infinity"}))
    with pytest.raises(SettingsError, match="first.options.relax is 0; it must be more than 0$"):
        check(Recipe(first=First("rot", options={"relax": 0})))


def test_a_teacher_that_goes_on_may_name_its_own_network():
    check(Recipe(second=Second(student="teacher", network=Network())))


def test_sgd_without_momentum_is_plain():
    optimizer = build_optimizers([network()], First(optimizer="sgd", momentum=0.0))[0]
    assert {(g["momentum"], g["nesterov"]) for g in optimizer.param_groups} == {(0.0, False)}
    with_momentum = build_optimizers([network()], First(optimizer="sgd"))[0]
    assert {(g["momentum"], g["nesterov"]) for g in with_momentum.param_groups} == {(0.9, True)}


# --- what is built


def test_a_network_is_built_with_its_options():
    built = build_network(Network("mlp", {"widths": (5, 7), "dropout": 0.25}), (3,), 4)
    assert [m.out_features for m in built.modules() if isinstance(m, nn.Linear)] == [5, 7, 4]
    assert {m.p for m in built.modules() if isinstance(m, nn.Dropout)} == {0.25}


@pytest.mark.parametrize("name", ONE_VIEW)
def test_a_learner_is_built_around_the_classifier_with_its_options(name):
    options = {"dllp": {}, "llp_vat": {"radius": 0.5}, "llp_gan": {"noise": 3}, "rot": {"alpha": 0.1}}.get(
        name, {}
    )
    classifier = network()
    learner = build_learner(First(name, options=options), classifier, ragged())
    assert isinstance(learner, METHODS[name])
    assert learner.classifier is classifier
    assert all(getattr(learner, option) == value for option, value in options.items())


def test_the_gans_generator_is_placed_and_takes_as_much_noise_as_is_drawn():
    to_device = []
    learner = build_learner(
        First("llp_gan", options={"noise": 3}), network(), ragged(), lambda n: to_device.append(n) or n
    )
    assert learner.networks() == [learner.classifier, *to_device]
    assert to_device[0](torch.rand(4, 3, generator=stream(0))).shape == (4, 2)


def test_each_player_gets_an_optimiser_of_its_own_and_the_generators_is_adam_with_half_momentum():
    first = First(optimizer="sgd", rate=0.5, decay=0.1, momentum=0.7, generator_rate=0.25)
    own, other = build_optimizers([network(), network()], first)
    assert isinstance(own, torch.optim.SGD)
    assert {g["peak_lr"] for g in own.param_groups} == {0.5}
    assert own.param_groups[0]["weight_decay"] == 0.1
    assert isinstance(other, torch.optim.Adam)
    assert {(g["peak_lr"], g["betas"]) for g in other.param_groups} == {(0.25, (0.5, 0.999))}
    (student,) = build_optimizers([network()], Second(rate=0.125))
    assert {g["peak_lr"] for g in student.param_groups} == {0.125}


def test_the_rate_knows_the_number_of_epochs():
    rate = build_schedule(First(epochs=400, schedule="halving"))
    assert [rate(p) for p in (0.0, 0.25, 0.5, 0.75)] == [1.0, 0.5, 0.25, 0.125]


def test_labellers_and_losses_take_the_recipes_numbers():
    generator = stream(0)
    log_probs = torch.randn(6, 3, generator=generator).log_softmax(1)
    sizes, shares = torch.tensor([6]), torch.tensor([[0.5, 0.25, 0.25]])
    assert build_labeler(Second()) is hard_labels
    for relax in (None, 2.0):
        got = build_labeler(Second(labels="soft", reg=0.5, relax=relax))(log_probs, sizes, shares)
        expected = soft_labels(log_probs, sizes, shares, 0.5, math.inf if relax is None else relax)
        assert torch.equal(got, expected)
    labels = torch.rand(6, 3, generator=generator).softmax(1)
    assert build_loss(Second()) is cross_entropy
    loss = build_loss(Second(loss="sce", alpha=0.3, beta=0.6, log_zero=-4.0))
    assert torch.equal(loss(log_probs, labels), symmetric_cross_entropy(log_probs, labels, 0.3, 0.6, -4.0))

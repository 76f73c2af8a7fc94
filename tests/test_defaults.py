"""Defaults: what "auto" and None mean, by kind of data and by the bags."""

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from conftest import ragged
from sklearn.metrics import roc_auc_score
from torch import nn

from apportion import ProportionClassifier
from apportion._random import stream
from apportion.bags.bags import Bags
from apportion.bags.simulate import make_bags
from apportion.defaults import (
    TRAINING_SETTINGS,
    check_settings,
    default_batch_size,
    default_by,
    default_ema,
    default_epochs,
    default_method_options,
    default_mixup,
    default_model,
    default_optimization,
    default_pairs,
    default_student_epochs,
    default_student_optimization,
    default_view,
    default_warmup_epochs,
    generator_learning_rate,
    informative_rows,
    kind_of_data,
    muon_learning_rate,
    resolve_auto,
    suits_muon,
    usual_bag_size,
)
from apportion.errors import SettingsError
from apportion.evaluate import predict_log_proba
from apportion.experiments.recipes import RECIPES
from apportion.methods.new_network import initial_proportions, set_initial_bias
from apportion.networks import NETWORKS, conv13, mlp, resnet9, resnet18, wrn_28_2
from apportion.optim import flat_then_linear, make_optimizers, one_cycle, ramp_cosine
from apportion.pipeline import fit_two_stages
from apportion.pseudo_labels import hard_labels

KINDS = ("table", "images", "cpu_images")
CPU, GPU = torch.device("cpu"), torch.device("cuda")


def own_network(shape: Sequence[int], n_classes: int) -> nn.Sequential:
    """A user's network for images, in which a norm follows the convolution."""
    body = nn.Sequential(
        nn.Conv2d(shape[0], 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
    )  # fmt: skip
    return nn.Sequential(body, nn.Linear(8, n_classes))


def image_bags(n: int = 64, size: int = 32, k: int = 3) -> Bags:
    generator = stream(0, "images")
    x = torch.randint(0, 256, (n, 1, 8, 8), generator=generator, dtype=torch.uint8)
    return make_bags(x, torch.randint(k, (n,), generator=generator), size, k, generator)[0]


def equal_bags(size: int, n: int, k: int = 10) -> Bags:
    """Bags of one size, without features."""
    m = n // size
    proportions = torch.rand(m, k, generator=stream(0, size)) + 0.05
    proportions /= proportions.sum(1, keepdim=True)
    return Bags(
        torch.empty(m * size, 0), torch.full((m,), size), proportions, torch.arange(m * size), range(m)
    )


# --- by kind of data


def test_only_bytes_of_four_dimensions_are_images():
    image = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    assert (kind_of_data(image, CPU), kind_of_data(image, GPU)) == ("cpu_images", "images")
    for other in (image.float(), image[0], torch.zeros(1, 8)):
        assert kind_of_data(other, GPU) == "table"


@pytest.mark.parametrize(
    ("kind", "model", "method", "pseudo_labels"),
    [("table", "average", "dllp", "soft"), ("images", "resnet9", "two_views", None),
     ("cpu_images", "resnet9 of width 8", "two_views", None)],
)  # fmt: skip
def test_auto_is_resolved_by_the_kind_of_data_and_named_settings_stay(kind, model, method, pseudo_labels):
    x = torch.zeros(1, 8) if kind == "table" else torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    device = GPU if kind == "images" else CPU
    unset = dict.fromkeys(TRAINING_SETTINGS)
    auto = {"model": "auto", "method": "auto", "pseudo_labels": "auto", "reg": 1.0} | unset
    found = resolve_auto(auto, x, device)
    if isinstance(found["model"], partial):
        assert (found["model"].func, found["model"].keywords) == (resnet9, {"width": 8})
    else:
        assert found["model"] == model
    assert (found["method"], found["pseudo_labels"], found["reg"]) == (method, pseudo_labels, 1.0)
    named = {"model": own_network, "method": "rot", "pseudo_labels": "hard", "reg": 0.1} | unset
    assert resolve_auto(named, x, device) == named
    if kind == "table":
        for setting in ({"epochs": 3}, {"method": "rot"}, {"pseudo_labels": None}):
            assert resolve_auto(auto | setting, x, device)["model"] == "mlp"
        solved = resolve_auto(auto | {"model": "trees"}, x, device)
        assert (solved["method"], solved["pseudo_labels"]) == (None, None)


def test_the_numbers_of_each_kind():
    """Pinned: a change moves everybody's results."""
    assert [default_mixup(kind) for kind in KINDS] == [0.0, 1.0, 1.0]
    assert [default_ema(kind) for kind in KINDS] == [0.0, 0.9, 0.9]
    assert [default_warmup_epochs(kind, 41) for kind in KINDS] == [25, 6, 6]
    assert [generator_learning_rate(kind) for kind in KINDS] == [3e-4, 3e-5, 3e-5]
    assert [default_method_options(kind, "llp_gan") for kind in KINDS] == [{}, *[{"adversarial": 0.01}] * 2]
    assert not any(default_method_options(kind, "llp_vat") for kind in KINDS)
    small = equal_bags(16, 1600)
    assert [default_batch_size(kind, small, "row") for kind in KINDS] == [256, 512, 256]


def test_images_are_trained_as_in_the_published_recipes():
    for size in (16, 32, 64, 128, 256):
        recipe = RECIPES[f"beyond-resnet9/two_views/{size}"]
        bags = equal_bags(size, 50_000)
        by = "row" if recipe.first.batches == "row" else "bag"
        assert default_by("images", "two_views", bags, None) == by
        assert default_batch_size("images", bags, by) == recipe.batch_size
        assert default_epochs("images", bags, None, by) == pytest.approx(recipe.first.epochs, rel=0.15)
    recipe = RECIPES["beyond-mnist/two_views/128"]
    bags = equal_bags(128, 60_000)
    assert default_epochs("cpu_images", bags, None, "bag") == recipe.first.epochs + 1  # a last, smaller batch
    assert default_batch_size("cpu_images", bags, "bag") == recipe.batch_size


# --- optimizers


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("muon", [True, False])
def test_optimizers_are_those_of_the_published_recipes(kind, muon):
    dllp = default_optimization(kind, "dllp", muon, 100, 1.0)
    views = default_optimization(kind, "two_views", muon, 100, 1.0)
    student = default_student_optimization(kind, muon, 100)
    if kind == "table":
        assert (dllp.optimizer, dllp.learning_rate, dllp.schedule) == ("adam", 2e-3, one_cycle)
        assert (student.optimizer, student.learning_rate, student.schedule) == ("adam", 1e-3, one_cycle)
        assert views == dllp
        return
    views_group, table = ("beyond-resnet9-muon", "table1") if muon else ("beyond-resnet9", "table1-earlier")
    stages = [
        RECIPES[f"{views_group}/two_views/16"].first,
        RECIPES[f"{table}/dllp/16"].first,
        RECIPES[f"{table}/dllp+plot/16"].second,
    ]
    schedules = {"ramp_cosine": ramp_cosine, "one_cycle": one_cycle, "flat_then_linear": flat_then_linear}
    for found, stage in zip((views, dllp, student), stages, strict=True):
        assert found.optimizer == stage.optimizer
        assert found.learning_rate == stage.learning_rate
        assert found.schedule is schedules[stage.schedule]
        assert found.weight_decay == stage.weight_decay
        assert found.clip == getattr(stage, "clip", None)
        assert found.momentum == stage.momentum == 0.9


def test_muons_rate_falls_with_steps_and_for_the_bag_loss_alone_with_the_size_of_bags():
    def rate(method: str, steps: float, size: float) -> float:
        return default_optimization("images", method, True, steps, size).learning_rate

    assert muon_learning_rate(0) == muon_learning_rate(4900) == 0.05 > muon_learning_rate(5000)
    assert muon_learning_rate(40_000) == muon_learning_rate(10_000) / 2
    assert [rate("dllp", 100, size) for size in (1, 16, 64, 256)] == [0.05, 0.05, 0.025, 0.0125]
    assert rate("two_views", 100, 256) == 0.05
    assert rate("dllp", 1e6, 16) == rate("two_views", 1e6, 16) == muon_learning_rate(1e6)
    assert default_student_optimization("images", True, 8000).learning_rate == muon_learning_rate(8000)
    for size in (32, 64, 256):
        recipe = RECIPES[f"beyond-resnet9-muon/two_views/{size}"]
        steps = recipe.first.epochs * 50_000 / recipe.batch_size
        assert recipe.first.learning_rate == pytest.approx(muon_learning_rate(steps), rel=1 / 3)


@pytest.mark.parametrize(
    ("make_network", "suits"),
    [
        (resnet9, True), (partial(resnet9, width=8), True), (conv13, True),
        (partial(conv13, norm=False), False),  # nothing makes the length of its filters irrelevant
        (resnet18, False), (wrn_28_2, False),  # nor that of their shortcuts
        (mlp, False),
        (own_network, False),  # it may have been trained before
    ],
)  # fmt: skip
def test_muon_trains_built_in_networks_in_which_a_norm_follows_every_convolution(make_network, suits):
    assert suits_muon(make_network, make_network((3, 16, 16), 2)) == suits


def test_a_generator_is_trained_by_adam_at_its_own_rate():
    networks = [mlp((2,), 2), mlp((2,), 2)]
    settings = default_optimization("table", "llp_gan", False, 100, 16.0)
    optimizer, generator = make_optimizers(networks, settings, adam_learning_rate=3e-5)
    assert optimizer.defaults["lr"] == 2e-3
    assert (generator.defaults["lr"], generator.defaults["betas"]) == (3e-5, (0.5, 0.999))


@pytest.mark.parametrize(
    ("model", "rates"),
    [(partial(resnet9, width=2), (0.2 / 32**0.5, 0.05)), (own_network, (1e-3, 0.1))],
    ids=["built in", "own"],
)
def test_learning_rates_of_both_stages_are_by_default_those_of_the_bags_or_as_passed(model, rates):
    for passed, expected in ((None, rates), (0.03, (0.03, 0.03))):
        states = fit_two_stages(
            image_bags(), model, label=hard_labels, epochs=1, student_epochs=1,
            learning_rate=passed, student_learning_rate=passed,
        )  # fmt: skip
        found = {state.stage: state.optimizers[0].defaults["lr"] for state in states}
        assert found == {"first": pytest.approx(expected[0]), "second": pytest.approx(expected[1])}


def test_bags_without_proportions_do_not_influence_the_first_stage():
    proportions = torch.tensor([[0.5, 0.3, 0.2], [math.nan] * 3, [0.2, 0.3, 0.5]])
    bags = Bags(image_bags(128, 8).x, torch.tensor([32, 64, 32]), proportions, torch.arange(128), "abc")
    with closing(fit_two_stages(bags, partial(resnet9, width=2), label=None, epochs=1)) as states:
        assert next(states).optimizers[0].defaults["lr"] == pytest.approx(0.2 / 32**0.5)


# --- batches


def test_batches_of_tables_hold_the_largest_bag_up_to_4096_rows():
    for sizes, size in (((3, 4), 256), ((300, 4), 300), ((5000, 4), 4096)):
        bags = ragged(sizes, k=2)
        same = replace(bags, proportions=torch.full((2, 2), 0.5))
        assert default_batch_size("table", same, "bag") == size
        assert default_by("table", "dllp", bags, None) == "bag"
    assert default_by("table", "two_views", ragged((5000, 5000), k=2), 16) == "bag"


def test_batches_of_tables_hold_as_many_random_bags_as_tell_something():
    """√(n k / 18) bags of n rows and k classes."""
    generator = stream(1)
    for size, k in ((16, 2), (256, 2), (256, 10)):
        y = torch.randint(k, (256_000,), generator=generator)
        bags, _ = make_bags(torch.zeros(256_000, 1), y, size, k, generator)
        assert informative_rows(bags) == pytest.approx(size * math.sqrt(size * k / 18), rel=0.1)
    y = torch.randint(100, (256_000,), generator=generator)
    many, _ = make_bags(torch.zeros(256_000, 1), y, 4000, 100, generator)
    assert informative_rows(many) == 8192
    pure = replace(ragged((256,) * 4, k=2), proportions=torch.eye(2).repeat(2, 1))
    assert informative_rows(pure) < 256  # such bags say as much as labels
    assert informative_rows(replace(pure, proportions=torch.full((4, 2), 0.5))) == 0
    unknown = replace(
        pure, proportions=torch.tensor([[1.0, 0.0], [0.0, 1.0], [math.nan] * 2, [math.nan] * 2])
    )
    assert default_batch_size("table", unknown, "bag") == 256


def test_images_in_large_bags_are_trained_on_rows():
    for kind, size, by in (
        ("images", 128, "bag"), ("images", 129, "row"), ("cpu_images", 128, "bag"),
        ("cpu_images", 129, "row"), ("table", 1024, "bag"),
    ):  # fmt: skip
        bags = equal_bags(size, 40 * size)
        assert default_by(kind, "two_views", bags, None) == default_by(kind, "dllp", bags, None) == by
        assert default_by(kind, "llp_vat", bags, None) == "bag"  # needs whole bags
    assert default_by("images", "two_views", equal_bags(1024, 8192), 4096) == "bag"  # four to a batch


def test_the_usual_size_of_bags_is_that_of_a_rows_bag_and_a_bag_is_never_trained_in_part():
    def by(*sizes: int) -> str:
        return default_by("images", "two_views", ragged(sizes, k=2), None)

    assert usual_bag_size(ragged((3, 1), k=2)) == 2.5
    assert by(*[1024] * 4, *[1] * 400) == "row"  # the mean bag has 11 rows, but a row's bag 933
    assert by(*[16] * 400, 200) == "bag"
    assert by(*[16] * 40_000, 5000) == "row"
    bags = ragged([16] * 400 + [5000], k=2)
    unknown = torch.where(bags.sizes.unsqueeze(1) == 5000, math.nan, bags.proportions)
    assert default_by("images", "dllp", replace(bags, proportions=unknown), None) == "bag"


# --- epochs


@pytest.mark.parametrize(
    ("n_classes", "rows", "epochs"),
    [
        (2, 2560, 100), (10, 25600, 10), (2, 256_000, 5),
        (11, 25600, 11), (15, 25600, 15), (100, 25600, 20),  # not 100: rows were seen often enough
        (100, 2560, 100),  # they are anyway
        (30, 256_000, 5), (100, 256_000, 10),
    ],
)  # fmt: skip
def test_tables_of_many_classes_are_learned_for_more_steps_up_to_twenty_epochs(n_classes, rows, epochs):
    bags = equal_bags(16, rows, n_classes)
    assert default_epochs("table", bags, 256, "bag") == epochs
    if n_classes % 2 == 0:  # the student: half the steps, for half as many classes
        half = equal_bags(16, rows, max(2, n_classes // 2))
        assert default_student_epochs("table", half, 512, "bag") == epochs


def test_bags_with_unknown_proportions_shorten_the_first_stage_of_tables_only():
    bags = equal_bags(64, 2560)
    known = torch.arange(40) < 10
    some = replace(bags, proportions=torch.where(known.unsqueeze(1), bags.proportions, math.nan))
    assert default_epochs("table", some, 256, "bag") == default_epochs("table", some.known(), 256, "bag") / 2
    assert default_epochs("images", some, 256, "bag") == default_epochs("images", some.known(), 256, "bag")


def test_a_few_large_bags_do_not_lengthen_the_first_stage_of_tables_unless_the_batch_size_is_passed():
    same = [0.5, 0.5]  # bags that all say the same need no larger batch
    tail = ragged((2000, *(20,) * 400), k=2)
    tail = replace(tail, proportions=torch.tensor([same] * 401))
    assert default_batch_size("table", tail, "bag") == 2000
    rows = math.ceil(2 * usual_bag_size(tail))
    assert rows == 832
    assert default_epochs("table", tail, None, "bag") == math.ceil(1000 / math.ceil((832 + 8000) / 832))
    assert default_epochs("table", tail, 2000, "bag") == 200
    even = replace(ragged((2000,) * 5, k=2), proportions=torch.tensor([same] * 5))
    assert default_epochs("table", even, None, "bag") == 200
    assert default_epochs("images", tail, None, "bag") == default_epochs("images", tail, 2000, "bag")


def test_epochs_on_rows_count_all_rows_of_large_bags():
    bags = equal_bags(1024, 4096)
    steps = 250 * 1024**0.5
    assert default_epochs("cpu_images", bags, 64, "row") == math.ceil(steps / 64)
    assert default_student_epochs("cpu_images", bags, 64, "row") == math.ceil(8000 / 64)
    assert default_epochs("cpu_images", bags, 64, "bag") == 400  # four steps an epoch; the most


# --- initialization and views


def test_first_predictions_are_the_overall_proportions_if_a_class_is_rare():
    torch.manual_seed(0)
    network, x = mlp((2,), 3), torch.randn(500, 2)
    before = predict_log_proba(network, x)
    set_initial_bias(network, torch.tensor([0.6, 0.33, 0.07]))
    assert torch.equal(predict_log_proba(network, x), before)  # none has less than 0.2 / 3
    slightly = mlp((2,), 3)
    before = predict_log_proba(slightly, x)
    set_initial_bias(slightly, torch.tensor([0.6, 0.34, 0.06]))
    assert not torch.equal(predict_log_proba(slightly, x), before)
    proportions = torch.tensor([0.9, 0.099, 0.001])
    set_initial_bias(network, proportions)
    torch.testing.assert_close(predict_log_proba(network, x).exp().mean(0), proportions, rtol=0.3, atol=0.0)
    for other in (nn.Linear(2, 3, bias=False), nn.Sequential(nn.Linear(2, 3), nn.Tanh())):
        before = other(x)
        set_initial_bias(other, proportions)
        assert torch.equal(other(x), before)  # there is no last bias


def test_no_class_starts_at_zero():
    bags = replace(ragged((1, 3, 12)), proportions=torch.tensor([[1.0, 0.0, 0.0]] * 3))
    assert initial_proportions(bags).tolist() == [1.0, 0.5 / 16, 0.5 / 16]


def test_a_class_of_one_row_in_two_hundred_is_found():
    """From equal proportions the network unlearns the rare class everywhere, and ranks it last: AUC 0.1."""
    random = np.random.default_rng(20)
    town, x = random.integers(0, 200, 20000), random.normal(size=(20000, 4)).astype("float32")
    rare = (x[:, 0] + 0.3 * random.normal(size=20000) > 2.8).astype(int)
    table = {name: [1 - rare[town == name].mean(), rare[town == name].mean()] for name in range(200)}
    model = ProportionClassifier("mlp", random_state=20).fit(x, bags=town, proportions=table)
    assert roc_auc_score(rare, model.predict_proba(x)[:, 1]) > 0.95


def test_training_sees_rows_as_they_are_and_images_flipped_unless_flips_are_off():
    rows = torch.randn(5, 3, generator=stream(0))
    assert torch.equal(default_view("table", True)(rows), rows)
    assert default_pairs("table", True)(rows).shape == (5, 2, 3)
    ramp = torch.arange(16, dtype=torch.uint8).view(1, 1, 1, 16).expand(200, 1, 16, 16).contiguous()
    for kind in ("images", "cpu_images"):
        for make_view in (default_view, default_pairs):
            for flip in (True, False):
                seen = make_view(kind, flip)(ramp)
                weak = seen[:, 0] if make_view is default_pairs else seen
                assert weak.shape == ramp.shape
                middle = weak[:, 0, 8]
                falls = (middle[:, 8] < middle[:, 7]).any()
                assert bool(falls) == flip


# --- settings


SETTINGS = {
    "model": "mlp", "method": "dllp", "pseudo_labels": "soft", "reg": 1.0, "epochs": None,
    "student_epochs": 0, "learning_rate": None, "student_learning_rate": 0.1, "batch_size": 1,
    "horizontal_flip": np.bool_(True),
}  # fmt: skip


def test_settings_in_range_are_accepted():
    check_settings(SETTINGS)
    for name in NETWORKS:
        check_settings(SETTINGS | {"model": name})
    check_settings(SETTINGS | {"model": own_network, "pseudo_labels": None, "epochs": np.int64(3)})
    assert callable(default_model("cpu_images"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", "transformer"), ("model", nn.Linear(2, 2)), ("method", "plot"), ("method", ["dllp"]),
        ("pseudo_labels", "auto"), ("reg", 0.0), ("reg", None), ("reg", math.nan), ("epochs", 0),
        ("epochs", 2.5), ("epochs", True), ("student_epochs", -1), ("learning_rate", 0.0),
        ("student_learning_rate", "fast"), ("learning_rate", math.inf), ("batch_size", 0),
        ("horizontal_flip", "no"), ("horizontal_flip", 1),
    ],
)  # fmt: skip
def test_other_settings_are_refused_by_name(name, value):
    with pytest.raises(SettingsError, match=f"^{name} is"):
        check_settings(SETTINGS | {name: value})

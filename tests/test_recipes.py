"""Recipes: JSON and back, settings by path, and what is refused before any data is read."""

import inspect
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from apportion.augment import AUGMENTATIONS, PAIRS
from apportion.bags.simulate import BAG_KINDS
from apportion.datasets import DATASETS
from apportion.errors import SettingsError
from apportion.experiments.recipe import (
    LOSSES,
    OPTION_RANGES,
    RANGES,
    Data,
    FirstStage,
    Network,
    Recipe,
    SecondStage,
    change_recipe,
    check_recipe,
    from_json,
    numbers_of,
    to_json,
)
from apportion.experiments.recipes import RECIPES
from apportion.experiments.run_folder import all_runs, differences, read_recipe
from apportion.losses import SCE_WEIGHTS
from apportion.methods import METHODS, option_defaults
from apportion.methods.plot import prediction_change
from apportion.networks import NETWORKS
from apportion.optim import OPTIMIZERS, SCHEDULES
from apportion.pseudo_labels import PSEUDO_LABELS

RESULTS = Path(__file__).parents[1] / "results"
IMAGES = Recipe(data=Data("cifar10"), second=SecondStage())  # with images every network works


def refused(recipe: Recipe, **settings: str) -> str:
    """The message with which changed settings are refused."""
    changes = {name.replace("__", "."): text for name, text in settings.items()}
    with pytest.raises(SettingsError) as error:
        check_recipe(change_recipe(recipe, changes))
    return str(error.value)


# --- JSON and settings


def test_every_named_recipe_is_valid_and_survives_json():
    for name, recipe in RECIPES.items():
        check_recipe(recipe)
        assert from_json(to_json(recipe)) == recipe
        group, method, size = name.split("/")
        assert int(size) == recipe.data.bag_size, name
        always_two_stages = group.startswith(("table3", "figure4"))
        assert (recipe.second is not None) == ("+plot" in method or always_two_stages), name
        if method.split("+")[0] in METHODS:
            assert recipe.first.method == method.split("+")[0], name


def group(name: str) -> dict[str, Recipe]:
    return {key.partition("/")[2]: recipe for key, recipe in RECIPES.items() if key.startswith(f"{name}/")}


def test_only_groups_and_rows_that_say_so_use_mixup():
    for name, recipe in RECIPES.items():
        if name.startswith(("table", "figure4", "studies")) and recipe.second is not None:
            has_mixup = "mixup" in name or ("-earlier/" in name and not name.startswith("table3"))
            assert recipe.second.mixup == (1.0 if has_mixup else 0.0), name


@pytest.mark.parametrize("table", ["table1", "table2"])
def test_mixup_is_all_that_sets_students_under_both_rules_apart(table):
    students = {name: recipe for name, recipe in group(table).items() if "+plot" in name}
    assert len(students) == 13  # three methods, four bag sizes, and supervised
    for name, recipe in group(f"{table}-mixup").items():
        assert replace(recipe, second=replace(recipe.second, mixup=0.0)) == students.pop(name)
    assert not students


def test_tables_1_and_2_have_one_setting():
    stages = {"first": set(), "second": set()}
    for table in ("table1", "table2"):
        for recipe in group(table).values():
            stage = recipe.stage
            kind = "first" if recipe.second is None else "second"
            rate, epochs = stage.learning_rate, stage.epochs
            stages[kind].add((recipe.data.bag_size, rate, epochs))
            assert (stage.optimizer, stage.weight_decay, stage.schedule) == ("muon", 5e-4, "ramp_cosine")
            assert recipe.network == Network("conv13", {"dropout": 0.2})
            assert recipe.first.clip == (0.2 if recipe.first.method == "llp_gan" else None)
    assert sorted(stages["first"]) == [
        (1, 0.05, 30), (16, 0.05, 40), (32, 0.03, 60), (64, 0.02, 80), (128, 0.02, 120),
    ]  # fmt: skip
    assert sorted(stages["second"]) == [
        (1, 0.05, 50),
        (16, 0.05, 50),
        (32, 0.05, 55),
        (64, 0.05, 60),
        (128, 0.05, 80),
    ]


def test_the_ablation_and_figure_4_change_what_their_names_say():
    hard = RECIPES["table1/dllp+plot/64"]
    changes = {
        "table3/ce/64": {"labels": "predicted"},
        "table3/sce/64": {"labels": "predicted", "loss": "sce"},
        "table3/sce+ot/64": {"loss": "sce"},
        "table3/sce+ot+mixup/64": {"loss": "sce", "mixup": 1.0},
        "figure4/soft-1/64": {"labels": "soft", "reg": 1.0},
        "figure4/soft-10/64": {"labels": "soft", "reg": 0.1},
    }
    for name, change in changes.items():
        assert RECIPES[name] == replace(hard, second=replace(hard.second, **change))
    assert set(group("table3")) == {"ce/64", "sce/64", "sce+ot/64", "sce+ot+mixup/64"}
    assert hard.second.loss == "ce"
    assert hard.second.labels == "hard"


def test_the_papers_setting_has_both_readings_and_both_weights_of_sce():
    found = group("table1-paper")
    for size in (64, 128):
        for ending, loss in (("", "sce"), ("-eq9", "sce-eq9")):
            continued, new = (found[f"dllp+{student}{ending}/{size}"] for student in ("plot", "plot-new"))
            assert (continued.second.student, new.second.student) == ("teacher", "new")
            assert continued.second.loss == new.second.loss == loss
    assert (SecondStage().alpha, SecondStage().beta) == SCE_WEIGHTS["cifar10"]
    for recipe in found.values():
        stage = recipe.stage
        assert (stage.optimizer, stage.learning_rate, stage.momentum) == ("adam", 1e-4, 0.5)
        assert stage.schedule == "halving"
        assert recipe.network.options["dropout"] == 0.5


def test_algorithm_2_stops_at_its_delta():
    recipe = RECIPES["studies/dllp+plot-algorithm2/64"]
    assert (recipe.second.labels, recipe.second.memory, recipe.second.ema) == ("soft", 1, 0.0)
    certain = torch.full((50_000, 10), -torch.inf)
    certain[:, 0] = 0.0
    sizes = torch.tensor([64] * 781 + [16])
    moved = certain.clone()
    moved[:1000] = certain[:1000].flip(1)  # 2 % change to another class
    assert prediction_change(moved, certain, sizes) == pytest.approx(recipe.second.stop, rel=0.1)
    assert recipe.second.stop < prediction_change(certain, None, sizes) / 4


def test_settings_are_changed_by_path_and_read_as_json():
    changes = {
        "second.mixup": "1",
        "second.labels": "soft",
        "second.precision": "2.5",
        "second.network.options.dropout": "0.5",
        "network.options.widths": "[8, 8]",
        "seed": "7",
    }
    recipe = change_recipe(Recipe(second=SecondStage()), changes)
    network = Network(options={"dropout": 0.5})
    second = SecondStage(mixup=1.0, labels="soft", precision=2.5, network=network)
    assert recipe == Recipe(network=Network(options={"widths": (8, 8)}), second=second, seed=7)
    assert isinstance(recipe.second.mixup, float)
    assert change_recipe(recipe, {"second": "null"}).second is None
    assert recipe.second is not None  # a change leaves the original alone


def test_a_students_network_starts_from_that_of_the_first_stage():
    recipe = Recipe(network=Network("conv13", {"dropout": 0.5, "slope": 0.2}), second=SecondStage())
    changed = change_recipe(recipe, {"second.network.options.dropout": "0.25"})
    assert changed.second.network == Network("conv13", {"dropout": 0.25, "slope": 0.2})
    assert changed.stage_network == changed.second.network
    assert recipe.stage_network == recipe.network


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("second.mixupp", "0.4"),
        ("sed", "1"),
        ("data.bagsize", "8"),
        ("frist.epochs", "8"),
        ("second.network.nam", "mlp"),
        ("data.network.x", "1"),
        ("seed.x", "1"),
        ("first.epochs", "3.5"),
        ("first.epochs", "true"),
        ("first.epochs", "null"),
        ("first.learning_rate", "fast"),
        ("second.stop", "soon"),
        ("data", "3"),
        ("network.options", "3"),
    ],
)
def test_unknown_settings_and_wrong_types_are_refused(path, text):
    with pytest.raises(SettingsError, match=path.split(".")[0]):
        change_recipe(Recipe(), {path: text})


def test_a_second_stage_is_added_by_name_only():
    with pytest.raises(SettingsError, match=r"digits/dllp/16 has no second stage.*second\.epochs"):
        change_recipe(Recipe(), {"second.epochs": "2"}, "digits/dllp/16")
    added = change_recipe(Recipe(), {"second": "{}", "second.epochs": "2"})
    assert added.second == SecondStage(epochs=2)


@pytest.mark.parametrize("text", ["[1, 2]", '{"bags": {}}', "{", "[" * 100_000, '{"seed": "\\ud800"}'])
def test_text_that_is_not_a_recipe_is_refused(text):
    with pytest.raises(SettingsError):
        from_json(text)


def test_missing_settings_take_their_defaults():
    assert from_json("{}") == Recipe()
    assert from_json('{"first": {"epochs": 3}}') == replace(Recipe(), first=FirstStage(epochs=3))


def test_committed_results_were_made_with_the_recipe_of_their_name():
    folders = all_runs(RESULTS)
    assert len(folders) > 150
    for folder in folders:
        *_, group, method, size, seed = folder.parts
        recipe = replace(RECIPES[f"{group}/{method}/{size}"], seed=int(seed.removeprefix("seed=")))
        assert not differences(read_recipe(folder), json.loads(to_json(recipe)))


# --- names

NAMES = {
    "data.name": DATASETS,
    "data.bagging": BAG_KINDS,
    "network.name": NETWORKS,
    "first.method": METHODS,
    "first.optimizer": OPTIMIZERS,
    "first.schedule": SCHEDULES,
    "first.batches": ("bag", "row"),
    "second.labels": PSEUDO_LABELS,
    "second.loss": LOSSES,
    "second.student": ("new", "teacher"),
    "second.weighting": ("instance", "bag"),
    "second.optimizer": OPTIMIZERS,
    "second.schedule": SCHEDULES,
    "second.network.name": NETWORKS,
    "augment": AUGMENTATIONS,
    "second.augment": AUGMENTATIONS,
}


@pytest.mark.parametrize("path", NAMES)
def test_known_names_are_accepted_and_unknown_ones_are_refused_with_the_known(path):
    for name in NAMES[path]:
        if name not in ("two_views", *PAIRS):  # these need each other
            recipe = IMAGES
            if path == "data.name" and name not in ("cifar10", "mnist"):
                recipe = replace(IMAGES, network=Network("mlp"))
            check_recipe(change_recipe(recipe, {path: name}))
    message = refused(IMAGES, **{path.replace(".", "__"): "nonsense"})
    assert path in message
    assert all(name in message for name in NAMES[path])


def test_an_option_must_be_a_parameter_of_its_network_or_method():
    assert "widths" in refused(Recipe(), network__options__width="3")
    assert "network.options.width" in refused(Recipe(), network__options__width="3")
    refused(Recipe(), first__options__weight="3")  # dllp has none
    for method, option in (("llp_gan", "generator"), ("llp_vat", "epsilon"), ("rot", "lambda")):
        recipe = Recipe(first=FirstStage(method))
        assert f"first.options.{option}" in refused(recipe, **{f"first__options__{option}": "3"})


# --- numbers


@pytest.mark.parametrize(
    ("path", "bad"),
    [
        ("data.bag_size", "0"),
        ("data.validation_fraction", "1.0"),
        ("data.validation_fraction", "-0.1"),
        ("first.epochs", "0"),
        ("second.epochs", "-1"),
        ("first.learning_rate", "NaN"),
        ("second.learning_rate", "Infinity"),
        ("first.weight_decay", "-1"),
        ("first.momentum", "1"),
        ("first.generator_learning_rate", "-1"),
        ("first.clip", "0"),
        ("second.reg", "0"),
        ("second.precision", "0"),
        ("second.alpha", "-1"),
        ("second.beta", "-1"),
        ("second.log_zero", "0"),
        ("second.log_zero", "-Infinity"),
        ("second.mixup", "-1"),
        ("second.memory", "0"),
        ("second.ema", "1"),
        ("second.warmup_epochs", "-1"),
        ("second.stop", "-1"),
        ("batch_size", "0"),
        ("seed", "-1"),
        ("seed", "1" + "0" * 400),
        ("network.options.widths", "[8, 0]"),
        ("network.options.widths", "8"),
        ("network.options.widths", "[[8]]"),
        ("network.options.dropout", "1"),
        ("network.options.dropout", "much"),
    ],
    ids=lambda value: value[:24],
)
def test_a_number_out_of_range_is_refused_by_name(path, bad):
    assert path in refused(Recipe(second=SecondStage()), **{path.replace(".", "__"): bad})


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
        ("rot", "precision", 0),
        ("rot", "precision", True),
    ],
)
def test_an_option_of_a_method_out_of_range_or_of_another_type_is_refused(method, option, bad):
    check_recipe(Recipe(first=FirstStage(method)))
    with pytest.raises(SettingsError, match=f"first.options.{option}"):
        check_recipe(Recipe(first=FirstStage(method, options={option: bad})))


def test_infinite_relaxation_meets_the_proportions_exactly():
    check_recipe(change_recipe(Recipe(first=FirstStage("rot")), {"first.options.precision": "Infinity"}))


def test_every_number_and_every_option_has_a_range():
    recipe = Recipe(first=FirstStage(clip=1.0), second=SecondStage(precision=1.0, stop=1.0))
    assert {path for path, _ in numbers_of(recipe)} == set(RANGES)
    options = [default for method in METHODS for default in option_defaults(method).items()]
    for make in NETWORKS.values():
        parameters = list(inspect.signature(make).parameters.values())[2:]
        options += [(each.name, each.default) for each in parameters]
    for name, default in options:
        if isinstance(default, int | float | tuple) and not isinstance(default, bool):
            assert name in OPTION_RANGES


# --- combinations

PAIR = "weak+strong"


@pytest.mark.parametrize(
    ("recipe", "setting"),
    [
        (Recipe(augment="crop+flip"), "augment"),
        (Recipe(network=Network("conv13")), "network.name"),
        (Recipe(second=SecondStage(network=Network("resnet18"))), "second.network.name"),
        (Recipe(second=SecondStage(augment="strong")), "second.augment"),
        (Recipe(Data("mnist"), first=FirstStage("two_views")), "augment"),
        (Recipe(Data("mnist"), augment=PAIR), "first.method"),
        (Recipe(first=FirstStage("two_views"), augment=PAIR, second=SecondStage()), "second.augment"),
        (Recipe(first=FirstStage("rot", batches="row")), "first.batches"),
        (
            Recipe(second=SecondStage(student="teacher", network=Network("mlp", {"widths": (8,)}))),
            "second.network",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(recipe, setting):
    with pytest.raises(SettingsError, match=setting.replace(".", r"\.")):
        check_recipe(recipe)


@pytest.mark.parametrize("pair", PAIRS)
def test_pairs_of_views_go_with_two_views_on_points_and_images(pair):
    check_recipe(Recipe(first=FirstStage("two_views"), augment=pair))
    check_recipe(
        replace(IMAGES, first=FirstStage("two_views"), augment=pair, second=SecondStage(augment="crop"))
    )


def test_a_teacher_that_is_trained_on_may_name_its_own_network():
    check_recipe(Recipe(second=SecondStage(student="teacher", network=Network())))


def test_recipes_are_values():
    assert asdict(Recipe()) == asdict(from_json("{}"))
    with pytest.raises(AttributeError):
        Recipe().seed = 2  # type: ignore[misc]

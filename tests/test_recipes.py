"""Recipes: frozen, plain, written and read without loss; unknown settings list the known ones."""

import json
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from pathlib import Path

import pytest

from apportion import runs
from apportion.errors import SettingsError
from apportion.experiment.stages import FOLDERS
from apportion.grid import RECIPES
from apportion.recipes import Data, First, Network, Recipe, Second, changed, from_json, to_json
from apportion.recipes.checks import check


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_written_and_read_without_loss_and_passes_the_check(name):
    recipe = RECIPES[name]
    check(recipe)
    assert from_json(to_json(recipe)) == recipe
    assert to_json(from_json(to_json(recipe))) == to_json(recipe)


@pytest.mark.parametrize("name", RECIPES)
def test_every_name_says_group_method_and_bag_size(name):
    _, method, size = name.split("/")
    recipe = RECIPES[name]
    assert recipe.data.bag_size == int(size)
    assert ("plot" in method) <= (recipe.second is not None)
    first = FOLDERS.get(recipe.first.method, recipe.first.method)
    assert first in (*method.split("+"), "dllp")


def test_a_written_recipe_holds_every_setting():
    def names(kind: type) -> set[str]:
        return {f.name for f in fields(kind)}

    values = json.loads(to_json(Recipe(second=Second(network=Network()))))
    assert set(values) == names(Recipe)
    for part, kind in {"data": Data, "network": Network, "first": First, "second": Second}.items():
        assert set(values[part]) == names(kind)
    assert set(values["second"]["network"]) == names(Network)


def test_a_recipe_is_frozen_through_and_through():
    recipe = Recipe(second=Second())
    for part in (recipe, *(getattr(recipe, f.name) for f in fields(recipe))):
        if is_dataclass(part):
            with pytest.raises(FrozenInstanceError):
                setattr(part, fields(part)[0].name, None)


def test_settings_are_changed_by_path_and_read_as_json_where_possible():
    recipe = changed(
        Recipe(),
        {
            "second.mixup": "1",
            "second.labels": "soft",
            "second.relax": "2.5",
            "second.network.options.dropout": "0.5",
            "network.options.widths": "[8, 8]",
            "seed": "7",
        },
    )
    second = Second(mixup=1.0, labels="soft", relax=2.5, network=Network(options={"dropout": 0.5}))
    assert recipe == Recipe(network=Network(options={"widths": (8, 8)}), second=second, seed=7)
    assert isinstance(recipe.second.mixup, float)


def test_a_students_network_is_the_first_stages_with_what_is_changed():
    recipe = Recipe(network=Network("conv13", {"dropout": 0.5, "slope": 0.2}), second=Second())
    student = changed(recipe, {"second.network.options.dropout": "0.25"}).second.network
    assert student == Network("conv13", {"dropout": 0.25, "slope": 0.2})


def test_a_stage_can_be_taken_out_and_a_change_leaves_the_original_alone():
    both = Recipe(second=Second())
    assert changed(both, {"second": "null"}) == Recipe()
    changed(both, {"network.options.dropout": "0.5"})
    assert both == Recipe(second=Second())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"second.mixupp": "0.4"}, r"no setting 'second.mixupp'; second has epochs, labels, reg.*augment$"),
        ({"sed": "1"}, r"no setting 'sed'; a recipe has data, network, first, second"),
        ({"data.bagsize": "8"}, r"no setting 'data.bagsize'; data has name, bag_size, bagging, held_out"),
        ({"frist.epochs": "8"}, r"no settings 'frist'; there are data, network, first"),
        (
            {"second.network.nam": '"mlp"'},
            r"no setting 'second.network.nam'; second.network has name, options",
        ),
        ({"data.network.x": "1"}, r"no setting 'data.network'; data has name"),
        ({"seed.x": "1"}, r"no settings 'seed'; there are data"),
        ({"first.epochs": "3.5"}, r"the setting 'first.epochs' is 3.5; it must be int"),
        ({"first.epochs": "true"}, r"the setting 'first.epochs' is True; it must be int"),
        ({"first.rate": "fast"}, r"the setting 'first.rate' is 'fast'; it must be float"),
        ({"second.stop": "soon"}, r"the setting 'second.stop' is 'soon'; it must be float or nothing"),
        ({"first.epochs": "null"}, r"the setting 'first.epochs' is None; it must be int"),
        ({"data": "3"}, r"data must be a table of settings, not 3"),
        ({"network.options": "3"}, r"the setting 'network.options' is 3; it must be"),
    ],
)
def test_a_setting_that_does_not_exist_or_fit_is_refused_with_what_does(settings, message):
    with pytest.raises(SettingsError, match=message):
        changed(Recipe(), settings)


def test_a_file_that_is_no_recipe_is_refused():
    with pytest.raises(SettingsError, match="a recipe must be a table of settings, not"):
        from_json("[1, 2]")
    with pytest.raises(SettingsError, match="no setting 'bags'"):
        from_json('{"bags": {}}')


def test_missing_settings_take_their_defaults():
    assert from_json("{}") == Recipe()
    assert from_json('{"first": {"epochs": 3}}') == replace(Recipe(), first=First(epochs=3))


RESULTS = Path(__file__).parents[1] / "results"


@pytest.mark.parametrize("group", sorted(folder.name for folder in RESULTS.iterdir() if folder.is_dir()))
def test_what_was_run_is_what_the_recipe_of_its_name_says(group):
    folders = list(runs.all_runs(RESULTS / group))
    assert folders
    for folder in folders:
        *_, method, size, seed = folder.parts
        recipe = replace(RECIPES[f"{group}/{method}/{size}"], seed=int(seed.removeprefix("seed=")))
        assert not runs.differences(runs.read_recipe(folder), json.loads(to_json(recipe)))

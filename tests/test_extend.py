"""Parts from outside: the pages on them run as printed, and what they register works in runs and reports."""

import io
import json
import math
import os
import re
import runpy
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from typer.testing import CliRunner

from apportion.cli.app import app
from apportion.datasets import Instances, load_dataset, register_dataset
from apportion.datasets.catalog import OTHERS
from apportion.errors import DataError, SettingsError
from apportion.experiments.extensions import check_name, import_modules, read_recipes
from apportion.experiments.recipe import Data, FirstStage, Recipe, SecondStage, check_recipe, to_json
from apportion.experiments.recipes import RECIPES
from apportion.experiments.run_folder import read_recipe, read_where
from apportion.methods import METHODS
from apportion.report.page import run_command

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r'^```(?:python title="(.+?)")?\n(.*?)^```', re.DOTALL | re.MULTILINE)


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    """The working directory of a user. What is registered from it is forgotten afterwards."""
    tables = [METHODS, OTHERS]
    before = [dict(table) for table in tables]
    modules = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def run_line(line: str) -> str:
    """The output of a command line, in this process: starting one takes longer than most of them."""
    words, _, target = line.partition(" > ")
    program, *arguments = shlex.split(words)
    if program == "apportion":
        done = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        output = done.stdout
    else:
        with redirect_stdout(io.StringIO()) as printed:
            if arguments[0] == "-c":
                exec(arguments[1], {})  # noqa: S102
            else:
                runpy.run_path(arguments[0], run_name="__main__")
        output = printed.getvalue()
    if target:
        Path(target).write_text(output)
    return output


def run_alone(line: str) -> None:
    """Run a command line of `apportion` in a process of its own."""
    command = [sys.executable, "-m", "apportion", *shlex.split(line)[1:]]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", ["new-method.md", "new-dataset.md"])
def test_the_page_runs_as_printed(page, empty_folder):
    printed = {}
    for name, text in BLOCK.findall((ROOT / "docs" / "extend" / page).read_text("utf-8")):
        if name:
            Path(name).write_text(text)
            continue
        for line in text.splitlines():
            printed[line] = run_line(line)
    html = Path("report.html").read_text("utf-8")
    if page == "new-method.md":
        assert printed["python check.py"] == "passed\n"
        assert all(float(line) > 0.8 for line in printed["python digits.py"].split())
        assert "squared error" in html
        table = Path("report.md").read_text("utf-8").split("## trial")[1]
        assert table.index("| DLLP |") < table.index("| squared error |") < table.index("| run |")
        return
    assert "tumors-cluster" in html
    folder = Path("runs/tumors-cluster/dllp/16/seed=1")
    result = json.loads((folder / "result.json").read_text())
    assert result["test_accuracy"]["last"] > 85
    # the command on the report page repeats the run
    command = run_command("tumors-cluster/dllp/16", read_recipe(folder), read_where(folder))
    run_alone(f"{command} --out again")
    again = Path("again/tumors-cluster/dllp/16/seed=1")
    assert read_recipe(again) == read_recipe(folder)
    assert (again / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


# --- recipes in files


def test_a_file_holds_what_show_prints(tmp_path):
    path = tmp_path / "mine.json"
    for recipe, name in (
        (Recipe(), "mine/dllp/50"),
        (Recipe(first=FirstStage("rot"), second=SecondStage(precision=math.inf)), "mine/rot+plot/50"),
    ):
        path.write_text(to_json(recipe))
        assert read_recipes(path) == {name: recipe}
    group = {name: json.loads(to_json(recipe)) for name, recipe in RECIPES.items() if "smoke/" in name}
    path.write_text(json.dumps(group))
    assert read_recipes(path) == {name: RECIPES[name] for name in group}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "[" * 100_000,
        '{"data": 1}',
        '{"../../etc/x": {}}',
        '{"a/b": {}}',
        '{"a/b/c": {"nonsense": 1}}',
        '"x"',
    ],
)
def test_a_bad_file_of_recipes_is_refused(tmp_path, text):
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(SettingsError):
        read_recipes(path)


@pytest.mark.parametrize("name", ["", "a", "a/b", "a/b/c/d", "../b/c", "a/../c", "/a/b", "a b/c/d", "a/b/.c"])
def test_names_that_are_no_folders_of_runs_are_refused(name):
    with pytest.raises(SettingsError):
        check_name(name)
    assert check_name("a-b/dllp+plot/64") == "a-b/dllp+plot/64"


@pytest.mark.parametrize("name", ["no_such_module", "os; rm", "../x", "json.no_such_part"])
def test_modules_that_are_not_there_are_refused(name):
    with pytest.raises(SettingsError):
        import_modules([name])


def test_an_error_within_a_module_is_shown_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "needs_another.py").write_text("import no_such_module_at_all\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        import_modules(["needs_another"])


# --- data sets


def test_a_registered_data_set_is_checked_when_it_is_loaded(monkeypatch):
    import torch

    monkeypatch.setattr("apportion.datasets.catalog.OTHERS", {})
    good = load_dataset("moons")
    register_dataset("own", lambda seed: good)
    assert load_dataset("own") is good
    check_recipe(Recipe(data=Data("own", 50)))
    for change in (
        {"y": good.y.float()}, {"x": good.x.double()}, {"test_y": good.test_y[:3]}, {"y": good.y + 1},
        {"test_x": good.test_x[:, :1]}, {"x": good.x.numpy()},
    ):  # fmt: skip
        values = {name: getattr(good, name) for name in ("x", "y", "test_x", "test_y")} | change
        register_dataset("bad", lambda seed, values=values: Instances("bad", **values, classes=("a", "b")))
        with pytest.raises(DataError, match="bad"):
            load_dataset("bad")
    images = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
    labels = torch.zeros(4, dtype=torch.int64)
    register_dataset("images", lambda seed: Instances("images", images, labels, images, labels, ("a", "b")))
    with pytest.raises(DataError, match="mean"):
        load_dataset("images")
    with pytest.raises(SettingsError):
        register_dataset("moons", lambda seed: good)

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
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from apportion.cli.app import app
from apportion.cli.experiments import change_recipes
from apportion.datasets import Instances, load_dataset, register_dataset
from apportion.datasets.catalog import OTHERS
from apportion.errors import ApportionWarning, DataError, RunError, SettingsError
from apportion.experiments.extensions import check_name, import_modules, read_recipes
from apportion.experiments.recipe import (
    Data,
    FirstStage,
    Recipe,
    SecondStage,
    check_recipe,
    from_json,
    to_json,
)
from apportion.experiments.recipes import RECIPES
from apportion.experiments.run import run, run_with_teacher
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
    if page == "new-dataset.md":  # whose last commands use the method of the other page
        method = (ROOT / "docs" / "extend" / "new-method.md").read_text("utf-8")
        Path("squared.py").write_text(dict(BLOCK.findall(method))["squared.py"])
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
        rows = ("| DLLP |", "| squared error |", "| squared error (squared-1) |", "| run |")
        assert sorted(rows, key=table.index) == list(rows)
        return
    assert "tumors-cluster" in html
    assert Path("runs/both/squared/16/seed=2/result.json").exists()
    folder = Path("runs/tumors-cluster/dllp/16/seed=1")
    result = json.loads((folder / "result.json").read_text())
    assert result["test_accuracy"]["last"] > 85
    # the command on the report page repeats the run
    command = run_command("tumors-cluster/dllp/16", read_recipe(folder), read_where(folder))
    run_alone(f"{command} --out again")
    again = Path("again/tumors-cluster/dllp/16/seed=1")
    assert read_recipe(again) == read_recipe(folder)
    assert (again / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


# --- a module that changes

MINE = """
from apportion.errors import SettingsError
from apportion.losses import proportion_loss
from apportion.methods import register_method
from factor import FACTOR

class Mine:
    title = "my method"

    def __init__(self, classifier, start=0.5):
        self.classifier = classifier
        if not 0 <= start < 1:
            raise SettingsError(f"start is {start}; it must be in [0, 1)")

    def networks(self):
        return [self.classifier]

    def losses(self, batch, progress):
        yield {"bags": FACTOR * proportion_loss(self.classifier(batch.x), batch.sizes, batch.proportions)}

register_method("mine", Mine)
"""
RUN = "apportion run figure2/dllp/50 --set first.method=mine --import mine --name t/mine/50 --device cpu"


def write_module(name: str, text: str) -> None:
    """Write a module, to be imported as by a new process."""
    Path(f"{name}.py").write_text(text)
    for each in (name, "mine"):
        sys.modules.pop(each, None)


def test_runs_of_another_state_of_a_module_are_reported(empty_folder):
    write_module("factor", "FACTOR = 1\n")
    write_module("mine", MINE)
    short = f"{RUN} --set first.epochs=1 --seeds"
    run_line(f"{short} 1-2")
    (checksum,) = read_where(Path("runs/t/mine/50/seed=1"))["imports"].values()
    Path("unrelated.py").write_text("")
    write_module("mine", MINE)
    assert import_modules(["mine"]) == {"mine": checksum}
    assert run_line(f"{short} 1").split("seed=1: ")[1].strip() == "finished before, skipped"
    write_module("factor", "FACTOR = 2  # mine.py imports it\n")
    again = " ".join(run_line(f"{short} 1,3").split())
    assert "seed=1: finished before with another mine.py, skipped" in again
    assert "finished before with another mine.py" in run_line(f"{short} 1 --jobs 2")
    run_line("apportion report runs --md report.md --html report.html")
    assert "`t/mine/50`‡ |" in Path("report.md").read_text("utf-8")
    assert "t/mine/50‡" in Path("report.html").read_text("utf-8")


def test_a_run_does_not_resume_with_another_state_of_a_module(empty_folder):
    write_module("factor", "FACTOR = 1\n")
    write_module("mine", MINE)
    recipe = Recipe(first=FirstStage("mine", epochs=3))
    lines = run(recipe, Path("run"), device="cpu", imports=["mine"])
    next(lines)
    next(lines)
    lines.close()
    write_module("factor", "FACTOR = 2  # another one\n")
    with pytest.raises(RunError, match=r"imports\.mine: "):
        list(run(recipe, Path("run"), device="cpu", imports=["mine"]))
    assert len(list(run(recipe, Path("run"), device="cpu", imports=["mine"], force=True))) == 1


def test_a_second_stage_warns_of_a_first_stage_by_another_state_of_a_module(empty_folder):
    write_module("factor", "FACTOR = 1\n")
    write_module("mine", MINE)
    run_line(f"{RUN} --set first.epochs=1")
    write_module("factor", "FACTOR = 2  # another one\n")
    recipe = Recipe(first=FirstStage("mine", epochs=1), second=SecondStage(epochs=1))
    recipe = replace(recipe, network=RECIPES["figure2/dllp/50"].network, batch_size=100)
    first = read_recipe(Path("runs/t/mine/50/seed=1"))
    recipe = from_json(json.dumps(first | {"second": json.loads(to_json(recipe))["second"]}))
    with pytest.warns(ApportionWarning, match=r"another mine\.py"):
        list(run_with_teacher(recipe, Path("runs"), "t/mine+plot/50", device="cpu", imports=["mine"]))


def test_a_start_that_failed_leaves_the_folder_to_another_recipe(empty_folder):
    write_module("factor", "FACTOR = 1\n")
    write_module("mine", MINE)
    short = f"{RUN} --set first.epochs=1"
    with pytest.raises(SettingsError, match="start is 3"):
        run_line(f"{short} --set first.options.start=3.0")
    run_line(short)
    folder = Path("runs/t/mine/50/seed=1")
    assert read_recipe(folder)["first"]["options"] == {}
    with pytest.raises(RunError, match=r"start: default in the folder, 0\.1 requested"):
        run_line(f"{short} --set first.options.start=0.1")


def test_show_checks_options_of_imported_methods(empty_folder):
    write_module("factor", "FACTOR = 1\n")
    write_module("mine", MINE)
    show = "apportion show figure2/dllp/50 --import mine --set first.method=mine --set first.options"
    assert json.loads(run_line(f"{show}.start=0.1"))["first"]["options"] == {"start": 0.1}
    with pytest.raises(SettingsError, match="strat"):
        run_line(f"{show}.strat=0.1")


def test_a_report_says_which_modules_have_the_titles(empty_folder):
    write_module("factor", "FACTOR = 1\n")
    write_module("mine", MINE)
    run_line(f"{RUN} --set first.epochs=1")
    assert "--import" not in run_line("apportion report runs --md report.md --import mine")
    assert "| my method |" in Path("report.md").read_text("utf-8")
    del METHODS["mine"]
    assert "pass --import mine for the titles" in run_line("apportion report runs --md report.md")
    assert "| mine |" in Path("report.md").read_text("utf-8")


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


def test_a_recipe_of_a_file_is_named_after_its_changed_settings(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(to_json(RECIPES["digits/dllp/16"]))
    changes = {"first.method": "rot", "data.bag_size": "32", "second": "{}"}
    assert list(change_recipes(str(path), changes)) == ["mine/rot+plot/32"]
    path.write_text(json.dumps({"a/b/16": json.loads(to_json(RECIPES["digits/dllp/16"]))}))
    assert list(change_recipes(str(path), changes)) == ["a/b/16"]


def test_a_second_stage_cannot_be_named_like_its_first_stage(tmp_path):
    recipe = replace(RECIPES["digits/dllp+plot/16"])
    with pytest.raises(RunError, match=r"mine/dllp\+plot/16"):
        list(run_with_teacher(recipe, tmp_path, "mine/dllp/16", device="cpu"))
    assert list(tmp_path.iterdir()) == []


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


@pytest.mark.parametrize("name", ["no_such_module", "os; rm", "../x", "json.no_such_part", "json.py"])
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
        {"test_x": good.test_x[:, :1]}, {"x": good.x.numpy()}, {"y": good.y.unsqueeze(1)},
        {"test_x": good.test_x[:0], "test_y": good.test_y[:0]}, {"x": good.x / 0},
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
    by_row = torch.zeros(4, 8, 8, 3, dtype=torch.uint8)
    colors = {"mean": (0.5,) * 3, "std": (0.2,) * 3}
    register_dataset(
        "images", lambda seed: Instances("i", by_row, labels, by_row, labels, ("a", "b"), **colors)
    )
    with pytest.raises(DataError, match=r"\(n, channels, height, width\)"):
        load_dataset("images")
    register_dataset("twins", lambda seed: replace(good, classes=("a", "a")))
    with pytest.raises(DataError, match="same name: a, a"):
        load_dataset("twins")
    register_dataset("partial", lambda seed: Instances(name="partial", x=good.x, y=good.y))
    with pytest.raises(DataError, match="'partial' is not complete.*test_x"):
        load_dataset("partial")
    with pytest.raises(SettingsError):
        register_dataset("moons", lambda seed: good)
    with pytest.raises(SettingsError, match=r"seedless\(seed\)"):
        register_dataset("seedless", lambda: good)
    with pytest.raises(DataError):
        load_dataset("seedless")
    with pytest.raises(SettingsError) as error:
        register_dataset("instances", good)
    assert len(str(error.value)) < 200

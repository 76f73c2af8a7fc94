"""Commands for experiments: list, show, run, report, figure, demo and data."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from run_folders import write_run
from test_datasets import item, serving
from typer.testing import CliRunner

from apportion.cli.app import app
from apportion.cli.experiments import find_recipes, parse_seeds, parse_settings
from apportion.datasets import DOWNLOADS, catalog
from apportion.errors import ApportionError
from apportion.experiments import recipes
from apportion.experiments.recipe import FirstStage, Recipe, change_recipe, changed_name, from_json
from apportion.experiments.recipes import RECIPES
from apportion.experiments.run_folder import is_in_use, read_checkpoint, read_log

QUICK = ["--set", "first.epochs=1", "--set", "second.epochs=1", "--device", "cpu"]
QUICK_GROUP = "smoke,first.epochs=1,second.epochs=1"


def output(*arguments: object) -> str:
    """The output of a command that must succeed."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def refusal(*arguments: object) -> str:
    """The message of a command that must fail with an error of ours, or with that of a wrong option."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if isinstance(result.exception, ApportionError):
        return str(result.exception)
    assert result.exit_code == 2, result.output
    return " ".join(result.output.split())


# --- recipes


def test_list_show_and_run_agree_on_what_a_group_is():
    assert [line.split()[0] for line in output("list").splitlines()] == list(RECIPES)
    listed = [line.split()[0] for line in output("list", "table1").splitlines()]
    assert listed == list(find_recipes("table1"))
    assert all(name.startswith("table1/") for name in listed)
    shown = json.loads(output("show", "table1", "--set", "first.epochs=7"))
    assert list(shown) == listed
    changed = change_recipe(RECIPES[listed[0]], {"first.epochs": "7"})
    assert from_json(json.dumps(shown[listed[0]])) == changed


def test_show_prints_a_recipe_with_all_its_settings():
    name = "figure2/dllp+plot/50"
    assert from_json(output("show", name)) == RECIPES[name]
    assert len(json.loads(output("show", name))["second"]) > 10
    settings = ["--set", "second.mixup=0.4", "--set", "network.options.widths=[8,8]"]
    changed = change_recipe(RECIPES[name], {"second.mixup": "0.4", "network.options.widths": "[8,8]"})
    assert from_json(output("show", name, *settings)) == changed


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("1", [1]), ("1-3", [1, 2, 3]), ("1,2,5", [1, 2, 5]), ("7,1-2", [7, 1, 2]), ("0", [0])],
)
def test_seeds_are_numbers_ranges_and_lists(text, seeds):
    assert parse_seeds(text) == seeds


def test_a_value_may_contain_an_equals_sign():
    assert parse_settings(["a.b=c=d", "e=1"]) == {"a.b": "c=d", "e": "1"}
    assert parse_settings(None) == {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "smoke/nonsense"), "smoke/nonsense"),
        (("show", "nonsense"), "table1"),
        (("list", "nonsense"), "table1"),
        (("run", "smoke/dllp/50", "--seeds", "one"), "one"),
        (("run", "smoke/dllp/50", "--seeds", "3-1"), "3-1"),
        (("run", "smoke/dllp/50", "--set", "first.epochs"), "first.epochs"),
        (("run", "smoke/dllp/50", "--set", "first.method=svm"), "count_likelihood"),
        (("run", "smoke/dllp/50", "--set", "first.options.x=1"), "first.options.x"),
        (("run", "smoke/dllp+plot-hard/50", "--set", "second.mixupp=0.4"), "second.mixupp"),
        (("report", "nowhere", "--md", "x.md"), "nowhere"),
        (("report", "."), "--html"),
        (("report", ".", "--md", "x.md"), "no finished run"),
        (("figure", "curves", ".", "--out", "x.svg"), "no finished run"),
        (("figure", "curves", ".", "--out", "x.doc"), ".svg"),
        (("data", "fetch", "cifar11"), "cifar10"),
    ],
)
def test_mistakes_are_refused_and_leave_nothing_behind(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert words in refusal(*arguments)
    assert list(tmp_path.iterdir()) == []


# --- run


def test_run_trains_both_stages_and_then_skips_them(tmp_path):
    command = ("run", "smoke/dllp+plot-hard/50", "--seeds", "3", "--out", tmp_path, *QUICK)
    first = output(*command)
    assert f"{QUICK_GROUP}/dllp/50/seed=3: epoch 1 of 1, test" in first
    assert f"{QUICK_GROUP}/dllp+plot-hard/50/seed=3: epoch 1 of 1, test" in first
    assert (tmp_path / f"{QUICK_GROUP}/dllp+plot-hard/50/seed=3/result.json").exists()
    again = " ".join(output(*command).split())
    assert again == f"{QUICK_GROUP}/dllp+plot-hard/50/seed=3: finished before, skipped"


def test_runs_with_changed_settings_never_land_in_the_named_group(tmp_path):
    output("run", "smoke/dllp/50", "--out", tmp_path, "--set", "first.epochs=1", "--device", "cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["smoke,first.epochs=1"]
    hostile = {"second.mixup": "../../x", "first.options": "{" + "9" * 300 + "}"}
    name = changed_name("smoke/dllp/50", hostile)
    assert name.startswith("smoke,second.mixup=.._.._x,")
    assert name.endswith("/dllp/50")
    assert name.count("/") == 2
    assert len(name) < 200
    assert changed_name("smoke/dllp/50", hostile | {"first.options": "{" + "9" * 301 + "}"}) != name


def test_run_takes_a_group_and_several_seeds(tmp_path, monkeypatch):
    tiny = replace(RECIPES["smoke/dllp/50"], first=FirstStage(epochs=1))
    other = replace(tiny, first=FirstStage("rot", epochs=1))
    monkeypatch.setattr(recipes, "RECIPES", {"g/a/50": tiny, "g/b/50": other})
    output("run", "g", "--seeds", "1,2", "--out", tmp_path, "--device", "cpu")
    found = sorted(str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("result.json"))
    assert found == ["g/a/50/seed=1", "g/a/50/seed=2", "g/b/50/seed=1", "g/b/50/seed=2"]


def test_changed_recipes_do_not_run_in_a_named_group(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    change = ("--set", "first.epochs=1")
    (tmp_path / "smoke.json").write_text(output("show", "smoke/dllp/50", *change))
    several = json.dumps({"smoke/dllp/50": json.loads((tmp_path / "smoke.json").read_text())})
    (tmp_path / "several.json").write_text(several)
    for command in (
        ("smoke/dllp/50", *change, "--name", "smoke/dllp/50"),
        ("smoke/dllp/50", *change, "--name", "smoke/mine/50"),
        ("smoke/dllp/50", "--name", "table1/dllp/50"),
        ("smoke.json",),
        ("several.json",),
    ):
        assert "without changes" in refusal("run", *command, "--device", "cpu")
        assert not (tmp_path / "runs").exists()
    output("run", "smoke/dllp/50", *change, "--device", "cpu")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["smoke,first.epochs=1"]
    (tmp_path / "several.json").write_text(output("show", "smoke/dllp/50"))
    several = json.dumps({"smoke/dllp/50": json.loads((tmp_path / "several.json").read_text())})
    (tmp_path / "several.json").write_text(several)
    output("run", "several.json", "--device", "cpu", "--seeds", "2")
    assert (tmp_path / "runs/smoke/dllp/50/seed=2/result.json").exists()


def test_tensorboard_gets_every_number_of_the_log(tmp_path):
    pytest.importorskip("tensorboardX", reason="apportion[tensorboard] is not installed")
    command = ["run", "smoke/dllp+plot-hard/50", "--out", tmp_path, "--tensorboard", "--device", "cpu"]
    output(*command, "--set", "first.epochs=2", "--set", "second.epochs=2")
    folder = tmp_path / "smoke,first.epochs=2,second.epochs=2/dllp+plot-hard/50/seed=1"
    (events,) = folder.glob("events.out.tfevents.*")
    content = events.read_bytes()
    for name in ("test_accuracy", "terms/labels", "label_accuracy/mean", "seconds/train"):
        assert content.count(name.encode()) == len(read_log(folder)) == 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_a_run_at_once_and_keeps_its_last_epoch(tmp_path, number, code):
    long = ["--set", "first.epochs=100000", "--set", "batch_size=50"]
    command = ["run", "smoke/dllp/50", "--out", str(tmp_path), "--device", "cpu", *long]
    process = subprocess.Popen(
        [sys.executable, "-m", "apportion", *command], stderr=subprocess.PIPE, text=True
    )
    folder = tmp_path / "smoke,first.epochs=100000,batch_size=50/dllp/50/seed=1"
    log = folder / "log.jsonl"
    for _ in range(2400):
        if log.exists() and log.read_bytes().count(b"\n") > 1:
            break
        time.sleep(0.05)
    process.send_signal(number)
    sent = time.monotonic()
    message = process.communicate(timeout=60)[1]
    assert time.monotonic() - sent < 15  # of 100,000 epochs; most of it is the end of a process
    assert process.returncode == code
    assert message.startswith("apportion: stopped; the same command")
    epoch = read_checkpoint(folder)["epoch"]
    lines = log.read_bytes().count(b"\n")
    assert lines - 1 <= epoch <= lines
    assert not is_in_use(folder)
    assert not list(folder.glob("*partial*"))


def test_a_diverging_run_names_epoch_and_term(tmp_path):
    settings = ["--set", "first.learning_rate=1e30", "--set", "first.optimizer=sgd", "--device", "cpu"]
    message = refusal("run", "smoke/dllp/50", "--out", tmp_path, *settings)
    assert "epoch 1" in message
    assert "proportion" in message


# --- report, figure, demo


def test_a_report_and_a_figure_are_written_where_they_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(Path("runs"), "g/dllp/16", epochs=2)
    assert output("report", "runs", "--md", "out/runs.md") == "out/runs.md\n"
    assert "`g/dllp/16`" in Path("out/runs.md").read_text()
    page = Path("out/page.html")
    assert output("report", "runs", "--html", page) == f"{page}, {page.stat().st_size / 1e6:.2f} MB\n"
    assert output("figure", "curves", "runs", "--cell", "g", "--out", "curves.svg") == "curves.svg\n"
    assert "no finished run" in refusal("figure", "curves", "runs", "--cell", "h", "--out", "x.svg")
    assert sorted(path.name for path in Path().iterdir()) == ["curves.svg", "out", "runs"]


@pytest.mark.parametrize(
    "words", [("report", "runs", "--md"), ("report", "runs", "--html"), ("demo", "--out")]
)
def test_a_place_that_cannot_be_written_is_refused_before_any_work(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    write_run(Path("runs"), "g/dllp/16")
    Path("file").write_text("mine")
    assert "file" in refusal(*words, "file/x")
    Path("link").symlink_to("file")
    if words[0] == "report":
        assert "link" in refusal(*words, "link")
    assert Path("file").read_text() == "mine"
    assert sorted(path.name for path in Path().iterdir()) == ["file", "link", "runs"]


def test_the_demo_prints_tables_and_draws_figures(tmp_path, monkeypatch):
    def shorten(recipes: dict[str, Recipe]) -> dict[str, Recipe]:
        one = {"first.epochs": "1"}
        two = {"first.epochs": "1", "second.epochs": "1"}
        return {
            name: change_recipe(recipe, two if recipe.second else one) for name, recipe in recipes.items()
        }

    monkeypatch.setattr(recipes, "FIGURE_2", shorten(recipes.FIGURE_2))
    monkeypatch.setattr(recipes, "FIGURE_2_EARLY", shorten(recipes.FIGURE_2_EARLY))
    text = output("demo", "--out", tmp_path)
    for method in ("DLLP", "DLLP + PLOT", "LLP-GAN", "LLP-GAN + PLOT"):
        assert text.count(f"\n{method:18}") == 2
    for name in ("figure2.png", "figure2.svg", "figure2-early.png", "figure2-early.svg"):
        assert (tmp_path / name).stat().st_size > 10_000
        assert str(tmp_path / name) in text


# --- data sets


def test_data_sets_are_fetched_and_listed(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    lines = output("data", "list", "--data", tmp_path).splitlines()
    assert [line.split()[0] for line in lines] == list(DOWNLOADS)
    assert all("apportion data fetch" in line for line in lines)
    with serving() as server:
        file = replace(item(server, "/good"), file="train-images-idx3-ubyte.gz")
        monkeypatch.setitem(catalog.DOWNLOADS, "mnist", (file,))
        assert str(tmp_path / "mnist") in output("data", "fetch", "mnist", "--data", tmp_path)
    line = next(
        line for line in output("data", "list", "--data", tmp_path).splitlines() if line.startswith("mnist")
    )
    assert str(tmp_path / "mnist" / "train-images-idx3-ubyte.gz") in line
    assert os.listdir(tmp_path) == ["mnist"]

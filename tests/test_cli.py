"""The command line: what it prints, what it refuses with which exit code, and what it does not import."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from apportion import grid
from apportion.cli import REFUSED, STOPPED, TERMINATED, after_stop, app, main
from apportion.cli.naming import find, seeds, settings
from apportion.cli.progress import Progress
from apportion.grid import RECIPES
from apportion.recipes import First, Recipe, changed, from_json
from apportion.runs.checkpoints import unpack

QUICK = ["--set", "first.epochs=1", "--set", "second.epochs=1", "--device", "cpu"]


def said(*arguments: object) -> str:
    """The output of a command that must succeed."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def refused(monkeypatch, capsys, *arguments: object) -> tuple[int, str]:
    """Exit code and message of a command that must fail, as a shell would see them."""
    monkeypatch.setattr(sys, "argv", ["apportion", *(str(a) for a in arguments)])
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # pytest keeps its own Ctrl-C
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code, capsys.readouterr().err


def test_list_names_every_recipe_on_a_line_of_its_own():
    lines = said("list").splitlines()
    assert [line.split()[0] for line in lines] == list(RECIPES)
    assert "moons, bags of 50: dllp for 3 epochs, then soft labels for 3" in said(
        "list", "smoke/dllp+plot-soft"
    )
    assert all(line.startswith("smoke/") for line in said("list", "smoke").splitlines())


def test_a_group_is_the_same_to_list_show_and_run():
    listed = [line.split()[0] for line in said("list", "table1").splitlines()]
    assert listed == list(find("table1"))
    assert "table1-paper/dllp/16" in RECIPES
    assert not any(name.startswith("table1-paper") for name in listed)
    shown = json.loads(said("show", "table1", "--set", "first.epochs=7"))
    assert list(shown) == listed
    name = listed[0]
    assert from_json(json.dumps(shown[name])) == changed(RECIPES[name], {"first.epochs": "7"})


def test_the_last_line_of_a_stage_that_stops_early_is_printed(capsys):
    with Progress() as progress:
        for name, last in (("teacher", 3), ("student", 2)):
            for epoch in range(1, last + 1):
                progress.show_epoch(name, 9, {"epoch": epoch, "test_accuracy": 50.0, "terms": {"bags": 0.5}})
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "teacher: epoch 1 of 9, test 50.00 %, bags 0.5",
        "teacher: epoch 3 of 9, test 50.00 %, bags 0.5",
        "student: epoch 2 of 9, test 50.00 %, bags 0.5",
    ]


def test_show_prints_the_recipe_with_its_defaults_and_its_changes():
    name = "figure2/dllp+plot/50"
    assert from_json(said("show", name)) == RECIPES[name]
    shown = from_json(
        said("show", name, "--set", "second.mixup=0.4", "--set", "network.options.widths=[8,8]")
    )
    assert shown == changed(RECIPES[name], {"second.mixup": "0.4", "network.options.widths": "[8,8]"})
    assert len(json.loads(said("show", name))["second"]) > 10


def test_run_trains_and_says_how_far_it_is_and_then_skips_what_is_finished(tmp_path):
    command = ("run", "smoke/dllp+plot-hard/50", "--seeds", "3", "--out", tmp_path, *QUICK)
    first = said(*command)
    assert "smoke/dllp/50/seed=3: epoch 1 of 1, test" in first
    assert "smoke/dllp+plot-hard/50/seed=3: epoch 1 of 1, test" in first
    assert (tmp_path / "smoke/dllp+plot-hard/50/seed=3/result.json").exists()
    again = " ".join(said(*command).split())  # rich may break the line
    assert again == "smoke/dllp+plot-hard/50/seed=3: finished before, skipped"


def test_run_takes_a_group_and_several_seeds(tmp_path, monkeypatch):
    tiny = replace(RECIPES["smoke/dllp/50"], first=First(epochs=1))
    monkeypatch.setattr(
        grid, "RECIPES", {"g/a/50": tiny, "g/b/50": replace(tiny, first=First("rot", epochs=1))}
    )
    said("run", "g", "--seeds", "1,2", "--out", tmp_path, "--device", "cpu")
    found = sorted(str(p.parent.relative_to(tmp_path)) for p in tmp_path.rglob("result.json"))
    assert found == ["g/a/50/seed=1", "g/a/50/seed=2", "g/b/50/seed=1", "g/b/50/seed=2"]


def test_a_misspelt_setting_is_refused_with_the_known_ones(tmp_path, monkeypatch, capsys):
    code, message = refused(
        monkeypatch,
        capsys,
        "run",
        "smoke/dllp+plot-hard/50",
        "--set",
        "second.mixupp=0.4",
        "--out",
        tmp_path / "r",
    )
    assert code == REFUSED == 2
    assert message.startswith("apportion: no setting 'second.mixupp'; second has epochs, labels, reg")
    assert len(message.splitlines()) == 1
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "smoke/nonsense"), "no recipe or group 'smoke/nonsense'"),
        (("show", "nonsense"), "groups are"),
        (("list", "nonsense"), "no recipe or group 'nonsense'; groups are "),
        (("run", "smoke/dllp/50", "--seeds", "one"), "'one' is not a list of seeds"),
        (
            ("run", "smoke/dllp/50", "--set", "first.epochs"),
            "'first.epochs' is not of the form setting=value",
        ),
        (("run", "smoke/dllp/50", "--set", "first.method=svm"), "first.method is 'svm'; there are dllp, vat"),
        (
            ("run", "smoke/dllp/50", "--set", "first.options.x=1"),
            "no setting 'first.options.x'; there are none",
        ),
        (("nonsense",), "No such command"),
        (("run", "smoke/dllp/50", "--nonsense"), "No such option"),
    ],
)
def test_what_a_user_can_mend_is_refused_with_exit_code_2(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, text = refused(monkeypatch, capsys, *arguments)
    assert code == 2
    assert message in " ".join(text.split())
    assert "Traceback" not in text
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_recipe_is_refused_with_the_settings_that_differ(tmp_path, monkeypatch, capsys):
    command = ("run", "smoke/dllp/50", "--out", tmp_path, "--device", "cpu", "--set")
    said(*command, "first.epochs=1")
    code, message = refused(monkeypatch, capsys, *command, "first.epochs=2")
    assert code == 2
    assert "first.epochs: 1 there, 2 asked for" in message


def train_until_told(tmp_path, *settings: str) -> subprocess.Popen:
    """A training of many short steps that has finished some epochs."""
    long = ["--set", "first.epochs=100000", "--set", "batch_size=50", *settings]
    command = ["run", "smoke/dllp/50", "--out", str(tmp_path), "--device", "cpu", *long]
    training = subprocess.Popen(
        [sys.executable, "-m", "apportion", *command], stderr=subprocess.PIPE, text=True
    )
    log = tmp_path / "smoke/dllp/50/seed=1/log.jsonl"
    for _ in range(2400):
        if log.exists() and log.read_bytes().count(b"\n") > 1:
            return training
        time.sleep(0.05)
    training.kill()
    raise AssertionError(training.communicate()[1])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, STOPPED), (signal.SIGTERM, TERMINATED)])
def test_a_signal_stops_a_training_at_once_with_a_code_of_its_own_and_its_last_epoch_is_kept(
    tmp_path, number, code
):
    assert (STOPPED, TERMINATED) == (130, 143)
    training = train_until_told(tmp_path)
    training.send_signal(number)
    sent = time.monotonic()
    message = training.communicate(timeout=60)[1]
    assert time.monotonic() - sent < 15  # of 100,000 epochs; most of it is the end of a process
    assert training.returncode == code
    assert message == "apportion: stopped; the same command goes on from the last checkpoint\n"
    folder = tmp_path / "smoke/dllp/50/seed=1"
    kept = unpack((folder / "last.safetensors").read_bytes(), "it")["epoch"]
    lines = (folder / "log.jsonl").read_bytes().count(b"\n")
    assert lines - 1 <= kept <= lines
    assert not {path.name for path in folder.iterdir()} & {"lock", "last.safetensors.new", "result.json"}


def test_a_signal_stops_a_fit_with_a_message_that_is_true_of_it_and_nothing_is_left(tmp_path):
    pytest.importorskip("polars")
    rows = "".join(f"{i % 10},{i * 7 % 11},0.{i % 10},0.{10 - i % 10}\n" for i in range(1, 200) if i % 10)
    (tmp_path / "it.csv").write_text("bag,n,no,yes\n" + rows)
    words = ["fit", "it.csv", "--bag", "bag", "--shares", "no,yes", "--out", "model"]
    fit = subprocess.Popen(
        [sys.executable, "-m", "apportion", *words, "--first-epochs", "100000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert fit.stdout is not None
    said = next((line for line in fit.stdout if line.startswith("first stage, epoch 1 of ")), "")
    fit.send_signal(signal.SIGINT)
    message = fit.communicate(timeout=60)[1]
    assert said
    assert fit.returncode == STOPPED
    kept = "nothing unfinished is kept, and the same command starts from the beginning"
    assert message == f"apportion: stopped; {kept}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["it.csv"]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("run smoke/dllp/50", "goes on from the last checkpoint"),
        ("fit it.csv", "starts from the beginning"),
        ("predict model it.csv", "starts from the beginning"),
        ("check it.csv", "starts from the beginning"),
        ("data fetch mnist", "fetches the others"),
        ("--help", "starts from the beginning"),
    ],
)
def test_what_follows_a_stop_depends_on_the_command(words, what):
    assert after_stop(words.split()).endswith(f"the same command {what}")


def test_an_error_of_ours_keeps_its_traceback(monkeypatch):
    def broken() -> None:
        raise ValueError("a bug")

    monkeypatch.setattr("apportion.cli.app", broken)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(ValueError, match="a bug"):
        main()


def test_a_diverged_run_is_refused_in_a_line_that_names_epoch_and_term(tmp_path, monkeypatch, capsys):
    code, message = refused(
        monkeypatch, capsys, "run", "smoke/dllp/50", "--out", tmp_path, "--device", "cpu",
        "--set", "first.rate=1e30", "--set", "first.optimizer=sgd",
    )  # fmt: skip
    assert code == 2
    assert "'proportion' is nan in epoch 1 of the first stage" in message


@pytest.mark.parametrize("method", ["rot", "counts"])
def test_a_run_that_diverges_before_transport_is_refused_in_a_line(tmp_path, monkeypatch, capsys, method):
    code, message = refused(
        monkeypatch, capsys, "run", f"smoke/{method}/50", "--out", tmp_path, "--device", "cpu",
        "--set", "first.rate=1e30", "--set", "first.optimizer=sgd",
    )  # fmt: skip
    assert code == 2
    assert "if the network has diverged, lower the rate" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", [1]), ("1-3", [1, 2, 3]), ("1,2,5", [1, 2, 5]), ("7,1-2", [7, 1, 2]), ("0", [0])],
)
def test_seeds_are_numbers_ranges_and_lists(text, expected):
    assert seeds(text) == expected


def test_a_setting_may_hold_an_equals_sign():
    assert settings(["a.b=c=d", "e=1"]) == {"a.b": "c=d", "e": "1"}
    assert settings(None) == {}


@pytest.mark.parametrize("arguments", [("--help",), ("run", "--help"), ("data", "--help")])
def test_help_imports_no_torch_and_nothing_else_that_is_heavy(arguments):
    code = (
        "import sys\nfrom apportion.cli import app\n"
        f"try:\n    app({list(arguments)!r})\nexcept SystemExit as end:\n    assert end.code in (0, None)\n"
        "heavy = {'torch', 'numpy', 'sklearn', 'scipy', 'matplotlib', 'numba', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_python_m_apportion_is_the_same_command():
    done = subprocess.run(
        [sys.executable, "-m", "apportion", "--help"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert "list" in done.stdout


def test_the_demo_prints_a_table_and_draws_a_figure(tmp_path, monkeypatch):
    def short(recipes: dict[str, Recipe]) -> dict[str, Recipe]:
        settings = {"first.epochs": "1"}
        return {
            name: changed(r, settings | ({"second.epochs": "1"} if r.second else {}))
            for name, r in recipes.items()
        }

    monkeypatch.setattr(grid, "FIGURE_2", short(grid.FIGURE_2))
    monkeypatch.setattr(grid, "FIGURE_2_EARLY", short(grid.FIGURE_2_EARLY))
    text = said("demo", "--out", tmp_path)
    for method in ("DLLP", "DLLP + PLOT", "LLP-GAN", "LLP-GAN + PLOT"):
        assert text.count(f"\n{method:18}") == 2
    for name in ("figure2.png", "figure2.svg", "figure2-early.png", "figure2-early.svg"):
        assert (tmp_path / name).stat().st_size > 10_000
        assert str(tmp_path / name) in text


@pytest.fixture
def towns(tmp_path, monkeypatch) -> Callable[..., list[str]]:
    """Tables of ten towns of eight people, of whom some are given as left or right; in `without` towns nobody
    was counted. The words that name them."""
    monkeypatch.chdir(tmp_path)

    def written(*without: int) -> list[str]:
        random = np.random.default_rng(0)
        along = random.normal(size=80)
        label = np.where(along > 0, "right", "left")
        rows = [f"{i % 10},{a},{label[i] if i % 9 == 0 else ''}" for i, a in enumerate(along)]
        (tmp_path / "people.csv").write_text("\n".join(["town,along,known", *rows]) + "\n")
        counts = [[sum(label[t::10] == side) for side in ("left", "right")] for t in range(10)]
        lines = [f"{t}," if t in without else f"{t},{a},{b}" for t, (a, b) in enumerate(counts)]
        lines = [f"{line}," if line.endswith(",") else line for line in lines]
        (tmp_path / "counts.csv").write_text("\n".join(["town,left,right", *lines]) + "\n")
        return ["people.csv", "--bag", "town", "--counts", "counts.csv"]

    return written


SHORT = ["--first-epochs", "2", "--second-stage", "none"]


def test_a_card_says_that_held_out_bags_are_too_few(towns):
    words = [*towns(), "--drop", "known", "--held-out", ".2", "--out", "model", *SHORT]
    assert "bag correlation, held-out bags: – (2 bags are too few to tell it)" in said("fit", *words)
    card = Path("model/README.md").read_text()
    assert "| bag correlation, held-out bags | – (2 bags are too few to tell it) |" in card
    assert "the same shares" not in card


def test_held_out_bags_leave_some_with_numbers_to_learn_from(towns, monkeypatch, capsys):
    words = ["--drop", "known", "--unlabeled", "--held-out", ".2", "--out", "model", *SHORT]
    code, message = refused(monkeypatch, capsys, "fit", *towns(*range(3, 10)), *words)
    assert code == REFUSED
    assert "holds out 2 of 3 bags with known proportions" in message
    said("fit", *towns(*range(4, 10)), *words)
    assert json.loads(Path("model/config.json").read_text())["data"]["held-out bags"] == 2


def test_a_diagnosis_says_what_its_networks_lack_and_what_noise_takes_from_its_figures(towns):
    words = towns(1, 2)
    given = ["--unlabeled", "--given", "known", "--out", "given", *SHORT]
    said("fit", *words, *given)
    judge = CliRunner().invoke(app, ["diagnose", "given", *words, "--unlabeled", "--folds", "2"])
    lacking = "the 2 bags that have no proportions and the labels that were given"
    assert f"trained alike on other bags, but without {lacking}: the model itself is not" in judge.output
    words = towns()
    said("fit", *words, "--drop", "known", "--out", "plain", *SHORT)
    judge = CliRunner().invoke(app, ["diagnose", "plain", *words, "--folds", "2"])
    assert "trained alike on other bags\n" in judge.output
    judge = CliRunner().invoke(app, ["diagnose", "plain", *words, "--folds", "2", "--noise", "1"])
    assert "(once their noise is taken off, which tells nothing of chance)" in judge.output


def test_the_version_is_one_line():
    import apportion

    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"{apportion.__version__}\n")

"""The command line: what it prints, what it refuses with which exit code, and what it does not import."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from apportion.cli import REFUSED, STOPPED, after_stop, app, main
from apportion.cli.progress import Progress


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


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("run", "smoke/dllp/50", "--nonsense"),
        ("run", "smoke/dllp/50", "--set", "first.method=svm"),
    ],
)
def test_mistakes_have_exit_code_2_and_no_traceback(tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    code, text = refused(monkeypatch, capsys, *arguments)
    assert code == 2
    assert "Traceback" not in text
    assert list(tmp_path.iterdir()) == []


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


@pytest.mark.parametrize("method", ["rot", "count_likelihood"])
def test_a_run_that_diverges_before_transport_is_a_short_error(tmp_path, monkeypatch, capsys, method):
    code, message = refused(
        monkeypatch, capsys, "run", f"smoke/{method}/50", "--out", tmp_path, "--device", "cpu",
        "--set", "first.learning_rate=1e30", "--set", "first.optimizer=sgd",
    )  # fmt: skip
    assert code == 2
    assert len(message.splitlines()) == 1


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

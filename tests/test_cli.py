"""The command line: what it prints, what it refuses with which exit code, and what it does not import."""

import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from apportion.cli.app import app, main, what_is_kept
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


def test_what_is_kept_after_a_stop_depends_on_the_command():
    assert "checkpoint" in what_is_kept(["run", "smoke/dllp/50"])
    assert "downloads the others" in what_is_kept(["data", "fetch", "mnist"])
    assert what_is_kept(["fit", "it.csv"]) == what_is_kept(["--help"]) == "nothing was written"


def test_an_error_of_ours_keeps_its_traceback(monkeypatch):
    def broken() -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(sys.modules["apportion.cli.app"], "app", broken)
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
        "import sys\nfrom apportion.cli.app import app\n"
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


def test_the_version_is_one_line():
    import apportion

    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"{apportion.__version__}\n")

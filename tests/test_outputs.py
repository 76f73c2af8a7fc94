"""What commands write for users: asked about before any work, whole or not at all, on nobody's file."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from apportion.cli import app
from apportion.errors import ApportionError

ABOUT = "--bag", "town", "--shares", "no,yes"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    pytest.importorskip("polars")
    monkeypatch.chdir(tmp_path)
    shares = {0: "0,1", 1: "0.25,0.75", 2: "0.5,0.5", 3: "1,0"}
    rows = (f"{i % 4},{i},{i * i % 7},{shares[i % 4]}" for i in range(40))
    Path("people.csv").write_text("\n".join(("town,a,b,no,yes", *rows)))
    return tmp_path


def told(*words: str) -> str:
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, ApportionError), (result.output, result.exception)
    assert "epoch" not in result.output  # before any work
    return str(result.exception)


def fitted(out: str) -> None:
    words = ("fit", "people.csv", *ABOUT, "--out", out, "--first-epochs", "1", "--second-stage", "none")
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0


def test_a_place_that_cannot_be_written_is_refused_before_any_work(folder):
    fitted("model")
    before = sorted(path.name for path in folder.rglob("*"))
    for words in (
        ("fit", "people.csv", *ABOUT, "--out"),
        ("predict", "model", "people.csv", "--out"),
        ("export", "model", "--onnx"),
        ("diagnose", "model", "people.csv", *ABOUT, "--bags-out"),
    ):
        assert "people.csv/x.csv" in told(*words, "people.csv/x.csv")
    assert sorted(path.name for path in folder.rglob("*")) == before


def test_a_table_and_an_export_leave_a_neighbor_of_the_name_new_alone(folder):
    fitted("model")
    Path("scored.csv.new").write_text("mine")
    result = CliRunner().invoke(app, ["predict", "model", "people.csv", "--out", "scored.csv"])
    assert result.exit_code == 0, result.exception
    assert Path("scored.csv.new").read_text() == "mine"
    assert sorted(path.name for path in folder.iterdir()) == [
        "model", "people.csv", "scored.csv", "scored.csv.new",
    ]  # fmt: skip

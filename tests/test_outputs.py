"""What commands write for users: asked about before any work, whole or not at all, on nobody's file."""

import errno
import os
from contextlib import suppress
from pathlib import Path

import pytest
from test_report import make_run
from typer.testing import CliRunner

from apportion.cli import app
from apportion.errors import RunError
from apportion.runs.files import check_place, whole_file, writing

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
    assert isinstance(result.exception, RunError), (result.output, result.exception)
    assert "epoch" not in result.output  # before any work
    return str(result.exception)


def fitted(out: str) -> None:
    words = ("fit", "people.csv", *ABOUT, "--out", out, "--first-epochs", "1", "--second-stage", "none")
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0


def test_a_place_that_cannot_be_written_is_refused_before_any_work(folder):
    fitted("model")
    make_run(folder / "runs", "digits/dllp/16", 1, 90.0)
    before = sorted(path.name for path in folder.rglob("*"))
    for words in (
        ("fit", "people.csv", *ABOUT, "--out"),
        ("predict", "model", "people.csv", "--out"),
        ("export", "model", "--onnx"),
        ("diagnose", "model", "people.csv", *ABOUT, "--bags-out"),
        ("report", "runs", "--md"),
        ("report", "runs", "--html"),
        ("figure", "curves", "runs", "--out"),
        ("demo", "--out"),
    ):
        out = "people.csv/x.png" if words[0] == "figure" else "people.csv/x.csv"
        told_of = f"{out} cannot be written: Not a directory; mend that, or name another place"
        assert told(*words, out) == told_of
    assert sorted(path.name for path in folder.rglob("*")) == before


def test_a_folder_is_no_place_for_a_file_and_a_long_name_is_none_at_all(tmp_path):
    (tmp_path / "it.csv").mkdir()
    with pytest.raises(RunError, match="it.csv cannot be written: it is a folder; mend that, or name"):
        check_place(tmp_path / "it.csv")
    check_place(tmp_path / "it.csv", folder=True)
    check_place(tmp_path / "new" / "newer" / "it.csv")
    with pytest.raises(RunError, match="cannot be written: File name too long"):
        check_place(tmp_path / ("x" * 300))
    assert [path.name for path in tmp_path.iterdir()] == ["it.csv"]


def test_a_file_is_whole_or_as_it_was_and_nothing_lies_beside_it(tmp_path):
    path, other = tmp_path / "it.txt", tmp_path / "it.txt.new"
    other.write_text("mine")
    with whole_file(path) as beside:
        beside.write_text("one")
    with suppress(KeyError), whole_file(path) as beside:
        beside.write_text("two")
        raise KeyError
    assert (path.read_text(), other.read_text()) == ("one", "mine")
    assert len(list(tmp_path.iterdir())) == 2
    assert path.stat().st_mode == other.stat().st_mode


@pytest.mark.parametrize(
    ("number", "said"),
    [(errno.ENOSPC, "the disk is full; make room, and"), (errno.EACCES, "Permission denied; mend that, and")],
)
def test_only_a_full_disk_asks_for_room(tmp_path, number, said):
    match = f"{said} the same command goes on from the last checkpoint"
    with pytest.raises(RunError, match=match), writing(tmp_path):
        raise OSError(number, os.strerror(number))


def test_a_table_and_an_export_leave_a_neighbor_of_the_name_new_alone(folder):
    fitted("model")
    Path("scored.csv.new").write_text("mine")
    result = CliRunner().invoke(app, ["predict", "model", "people.csv", "--out", "scored.csv"])
    assert result.exit_code == 0, result.exception
    assert Path("scored.csv.new").read_text() == "mine"
    assert sorted(path.name for path in folder.iterdir()) == [
        "model", "people.csv", "scored.csv", "scored.csv.new",
    ]  # fmt: skip

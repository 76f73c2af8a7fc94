"""Runs as they go, and figures of them."""

import json
import signal
import subprocess
import sys
import threading

import pytest
from pages import line_of, write_run
from typer.testing import CliRunner

from apportion.cli import app
from apportion.errors import RunError
from apportion.report.live import status, statuses
from apportion.runs import InUse
from apportion.runs.locks import in_use, locked


def unfinished(root, seed, epochs_done):
    folder = write_run(root, "g/dllp/16", seed, epochs=10)
    (folder / "result.json").unlink()
    lines = [json.dumps(line_of(epoch, 50.0)) + "\n" for epoch in range(1, epochs_done + 1)]
    (folder / "log.jsonl").write_text("".join(lines) + '{"epoch": 99, "te')  # a line that is being written
    return folder


def test_a_running_run_tells_how_far_it_is_and_how_long_it_will_take(tmp_path):
    folder = unfinished(tmp_path, 1, 4)
    with locked(folder):
        found = status(folder, "x")
    assert (found.state, found.epoch, found.epochs) == ("running", 4, 10)
    assert found.left == pytest.approx(6 * 0.13)


def test_states_are_told_apart_and_running_ones_come_first(tmp_path):
    write_run(tmp_path, "g/dllp/16", 1, epochs=2)
    unfinished(tmp_path, 2, 3)
    (write_run(tmp_path, "g/dllp/16", 4, epochs=2) / "recipe.json").write_text("{")
    with locked(unfinished(tmp_path, 3, 0)):
        found = [(each.state, each.name) for each in statuses(tmp_path)]
    assert [state for state, _ in found] == ["running", "stopped", "damaged", "finished"]
    assert found[0][1] == "g/dllp/16/seed=3"


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs a POSIX system")
def test_a_killed_run_is_stopped_though_its_lock_lies_there_and_looking_disturbs_no_owner(tmp_path):
    folder = unfinished(tmp_path, 1, 4)
    hold = "import pathlib, sys, time; from apportion.runs.locks import locked\n"
    hold += "with locked(pathlib.Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    owner = subprocess.Popen([sys.executable, "-c", hold, folder], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "held\n"
    assert [status(folder, "x").state for _ in range(3)] == ["running"] * 3
    with pytest.raises(InUse), locked(folder):  # still the owner's
        pass
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    assert (folder / "lock").exists()
    assert status(folder, "x").state == "stopped"
    with locked(folder):
        assert status(folder, "x").state == "running"


def test_who_begins_in_the_moment_of_a_look_is_not_refused(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    with (tmp_path / "lock").open("w") as look:  # as `in_use` does, but slowly
        fcntl.flock(look, fcntl.LOCK_SH)
        threading.Timer(0.03, look.close).start()
        with locked(tmp_path):
            assert in_use(tmp_path)
    assert not in_use(tmp_path)


def test_watch_prints_a_table_once_where_there_is_no_terminal(tmp_path):
    unfinished(tmp_path, 1, 4)
    write_run(tmp_path, "[red]group/dllp/16", 2, epochs=2)
    done = CliRunner().invoke(app, ["watch", str(tmp_path)], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    assert "4/10" in done.output
    assert "[red]group/dllp/16/seed=2" in done.output
    assert "1 of 2 runs finished" in done.output


def test_names_are_whole_where_there_is_no_terminal(tmp_path, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    name = "a-group-with-a-long-name/a-method-with-a-long-name+plot/128"
    write_run(tmp_path, name, 1, epochs=2)
    (line,) = [
        line
        for line in CliRunner().invoke(app, ["watch", str(tmp_path)]).output.splitlines()
        if "a-group" in line
    ]
    assert f"{name}/seed=1" in line


# --- figures


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
@pytest.mark.parametrize("kind", ["curves", "labels", "confusion"])
def test_a_figure_is_a_file_of_its_kind_and_the_same_bytes_again(tmp_path, kind, ending):
    write_run(tmp_path, "g/dllp+plot/16", 1, epochs=3, plot=True)
    write_run(tmp_path, "g/dllp+plot/16", 2, epochs=3, plot=True)
    paths = [tmp_path / f"{name}.{ending}" for name in ("a", "b")]
    for path in paths:
        done = CliRunner().invoke(app, ["figure", kind, str(tmp_path), "--out", str(path)])
        assert done.exit_code == 0, done.output
    one, other = (path.read_bytes() for path in paths)
    assert one == other
    assert one[:5] in (b"\x89PNG\r", b"<?xml", b"%PDF-")


def test_a_quantity_that_no_run_has_is_refused_with_those_there_are(tmp_path):
    write_run(tmp_path, "g/dllp/16", 1, epochs=3)
    call = ["figure", "curves", str(tmp_path), "--out", str(tmp_path / "a.png"), "--quantity", "nonsense"]
    with pytest.raises(RunError, match=r"no run has a quantity 'nonsense'; there are label_accuracy.labels"):
        CliRunner().invoke(app, call, catch_exceptions=False)


def test_a_figure_of_runs_that_are_not_there_is_refused(tmp_path):
    write_run(tmp_path, "g/dllp/16", 1, epochs=3)
    for call in (["curves", "--cell", "other"], ["soft"]):
        with pytest.raises(RunError, match="see apportion list"):
            CliRunner().invoke(
                app,
                ["figure", call[0], str(tmp_path), "--out", str(tmp_path / "a.png"), *call[1:]],
                catch_exceptions=False,
            )


# --- TensorBoard


def test_tensorboards_scalars_are_those_of_the_log(tmp_path):
    from tensorboardX.proto.event_pb2 import Event

    call = ["run", "smoke/dllp/50", "--out", str(tmp_path), "--device", "cpu", "--tensorboard"]
    assert CliRunner().invoke(app, call).exit_code == 0
    folder = tmp_path / "smoke/dllp/50/seed=1"
    (events,) = folder.glob("events.out.tfevents.*")
    told, content, place = {}, events.read_bytes(), 0
    while place < len(content):
        length = int.from_bytes(content[place : place + 8], "little")
        event = Event.FromString(content[place + 12 : place + 12 + length])
        told |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
        place += 12 + length + 4
    for line in map(json.loads, (folder / "log.jsonl").read_text().splitlines()):
        assert told["test_accuracy", line["epoch"]] == pytest.approx(line["test_accuracy"], rel=1e-5)
        assert told["terms/proportion", line["epoch"]] == pytest.approx(line["terms"]["proportion"], rel=1e-5)


def test_in_a_narrow_terminal_names_go_on_in_the_next_line_and_are_not_cut(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    for size in (16, 128):
        write_run(tmp_path, f"digits/two-views+plot/{size}", 1, epochs=2)
    text = CliRunner().invoke(app, ["watch", str(tmp_path), "--once"]).output
    cells = [line.split("│")[1].strip() for line in text.splitlines() if line.count("│") > 3]
    assert "…" not in text
    assert all(f"digits/two-views+plot/{size}/seed=1" in "".join(cells) for size in (16, 128))

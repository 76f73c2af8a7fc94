"""A run is a folder: what is in it says how far it is, and no crash leaves half of a file."""

import errno
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import network, same_bits
from hypothesis import given
from hypothesis import strategies as st
from run_folders import result_of

from apportion import _writing
from apportion._random import stream
from apportion.checkpoints import check_state, copy_state, pack_state, unpack_state
from apportion.errors import ApportionWarning, RunError
from apportion.experiments import run_folder as folders
from apportion.experiments.run_folder import (
    append_log,
    check_same_recipe,
    check_teacher_data,
    finish_run,
    format_json,
    is_finished,
    is_in_use,
    open_run,
    read_checkpoint,
    read_log,
    read_log_probs,
    read_recipe,
    read_result,
    read_weights,
    read_where,
    start_run,
    write_checkpoint,
)
from apportion.optim import make_optimizer

RECIPE = json.dumps({"seed": 1, "first": {"epochs": 3, "learning_rate": 0.1}})
WHERE = {"apportion": "1", "torch": "2", "exact": False, "data": "abc", "started": "now", "commit": "c"}


def line(epoch: int) -> dict:
    return {"epoch": epoch, "test_accuracy": 50.0}


def state(epoch: int) -> dict:
    return {"epoch": epoch, "networks": [{"w": torch.ones(2) * epoch}], "optimizers": []}


@pytest.fixture
def begun(tmp_path) -> Path:
    """A run with a checkpoint of its first epoch."""
    start_run(tmp_path, RECIPE, WHERE)
    append_log(tmp_path, line(1))
    write_checkpoint(tmp_path, state(1))
    return tmp_path


# --- starting and resuming


def test_a_new_run_starts_with_its_recipe_and_where_it_ran(tmp_path):
    assert start_run(tmp_path, RECIPE, WHERE) is None
    assert read_recipe(tmp_path) == json.loads(RECIPE)
    assert read_where(tmp_path) == WHERE
    assert not is_finished(tmp_path)


def test_a_run_resumes_from_its_checkpoint_and_drops_the_lines_of_later_epochs(begun):
    append_log(begun, line(2))
    write_checkpoint(begun, state(2))
    append_log(begun, line(3))
    with (begun / "log.jsonl").open("a") as file:
        file.write('{"epoch": 4, "ter')  # cut short by a crash
    resumed = start_run(begun, json.dumps(json.loads(RECIPE), indent=4), WHERE)
    assert resumed["epoch"] == 2
    assert torch.equal(resumed["networks"][0]["w"], torch.full((2,), 2.0))
    assert read_log(begun) == [line(1), line(2)]


def test_a_run_without_a_checkpoint_starts_again_on_whatever_is_here(tmp_path):
    start_run(tmp_path, RECIPE, WHERE)
    append_log(tmp_path, line(1))
    with pytest.warns(ApportionWarning, match="it starts over"):
        assert start_run(tmp_path, RECIPE, WHERE | {"torch": "9"}) is None
    assert not (tmp_path / "log.jsonl").exists()
    assert read_where(tmp_path)["torch"] == "9"


def test_a_log_with_fewer_lines_than_the_checkpoint_has_epochs_is_refused(begun):
    (begun / "log.jsonl").write_text("")
    with pytest.raises(RunError):
        start_run(begun, RECIPE, WHERE)


def test_another_recipe_is_refused_with_the_settings_that_differ_or_forced_and_recorded(begun):
    other = json.dumps({"seed": 1, "first": {"epochs": 5, "learning_rate": 0.1}, "second": {"mixup": 1.0}})
    with pytest.raises(RunError) as error:
        start_run(begun, other, WHERE)
    assert "first.epochs: 3" in str(error.value)
    assert "second.mixup: none" in str(error.value)
    assert "learning_rate" not in str(error.value)
    assert read_recipe(begun) == json.loads(RECIPE)
    assert start_run(begun, other, WHERE, force=True)["epoch"] == 1
    assert len(read_where(begun)["resumed"][0]["forced"]) == 2
    assert read_recipe(begun) == json.loads(other)


@pytest.mark.parametrize(
    ("name", "value"), [("apportion", "9"), ("torch", "9"), ("exact", True), ("data", "other")]
)
def test_a_change_of_version_or_data_is_refused_or_forced_and_recorded(begun, name, value):
    before = {path.name: path.read_bytes() for path in begun.iterdir()}
    with pytest.raises(RunError, match=f"  {name}: "):
        start_run(begun, RECIPE, WHERE | {name: value})
    assert {path.name: path.read_bytes() for path in begun.iterdir()} == before
    assert start_run(begun, RECIPE, WHERE | {name: value}, force=True)["epoch"] == 1
    where = read_where(begun)
    assert where[name] == WHERE[name]
    assert where["resumed"][0][name] == value
    assert name in where["resumed"][0]["forced"][0]


def test_another_time_or_commit_is_only_recorded(begun):
    start_run(begun, RECIPE, WHERE | {"started": "later", "commit": "d"})
    start_run(begun, RECIPE, WHERE | {"started": "last"})
    resumed = [{"started": "later", "commit": "d", "epoch": 1}, {"started": "last", "epoch": 1}]
    assert read_where(begun) == WHERE | {"resumed": resumed}


def test_force_does_not_change_a_finished_run(begun):
    finish_run(begun, result_of(90.0), {"w": torch.zeros(1)}, torch.zeros(1, 2))
    with pytest.raises(RunError):
        check_same_recipe(begun, json.dumps({"seed": 2}), force=True)


def test_a_teacher_must_have_been_trained_on_the_same_data(tmp_path):
    check_teacher_data(tmp_path, "any")  # no where.json
    where = {"data": "old", "resumed": [{"epoch": 1}, {"data": "new", "epoch": 2}, {"epoch": 3}]}
    for content, data in ((where, "new"), ({"data": "old"}, "old"), ({"torch": "2"}, "any")):
        (tmp_path / "where.json").write_text(json.dumps(content))
        check_teacher_data(tmp_path, data)
    (tmp_path / "where.json").write_text(json.dumps(where))
    with pytest.raises(RunError, match="new, not old"):
        check_teacher_data(tmp_path, "old")


# --- finishing


def test_the_result_is_written_last_and_the_checkpoint_is_then_removed(begun, monkeypatch):
    log_probs = torch.randn(5, 3, generator=stream(0)).log_softmax(1)
    weights = {"w": torch.arange(6.0).view(2, 3).T}
    result = result_of(90.0)
    files_before_result = []
    write = folders.write_text

    def spy(path: Path, text: str) -> None:
        files_before_result.extend(file.name for file in begun.iterdir())
        write(path, text)

    monkeypatch.setattr(folders, "write_text", spy)
    finish_run(begun, result, weights, log_probs)
    assert {"model.safetensors", "log_probs.npy", "last.safetensors"} <= set(files_before_result)
    assert "result.json" not in files_before_result
    assert is_finished(begun)
    assert not (begun / "last.safetensors").exists()
    assert read_result(begun) == result
    assert torch.equal(read_weights(begun)["w"], weights["w"])
    torch.testing.assert_close(read_log_probs(begun), log_probs, rtol=2e-3, atol=2e-3)


def test_predictions_that_underflow_are_still_usable(tmp_path):
    sure = torch.tensor([[0.0, -1e9], [-200.0, -1e-9]])
    finish_run(tmp_path, {}, {"w": torch.zeros(1)}, sure)
    assert read_log_probs(tmp_path).argmax(1).tolist() == [0, 1]
    assert not read_log_probs(tmp_path).isnan().any()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_formatting_changes_no_value(values):
    assert json.loads(format_json(values)) == values


def test_a_confusion_matrix_has_a_line_per_class():
    lines = format_json({"confusion": [[3, 0], [1, 2.5e-30]], "text": "[\n1,\n2]"}).splitlines()
    assert lines[1:5] == [' "confusion": [', "  [3, 0],", "  [1, 2.5e-30]", " ],"]


# --- crashes


def test_a_crash_or_a_full_disk_while_a_checkpoint_is_written_leaves_the_old_one(begun, monkeypatch):
    def killed(_: int) -> None:
        raise KeyboardInterrupt

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for fault, error in ((killed, KeyboardInterrupt), (full, RunError)):
        with monkeypatch.context() as patch:
            patch.setattr(_writing.os, "fsync", fault)
            with pytest.raises(error):
                write_checkpoint(begun, state(2))
    assert read_checkpoint(begun)["epoch"] == 1
    assert {path.name for path in begun.iterdir()} == {
        "recipe.json", "where.json", "log.jsonl", "last.safetensors",
    }  # fmt: skip


def test_files_of_a_killed_process_are_cleared_away(begun):
    for name in ("last.safetensors", "result.json"):
        (begun / f"{name}.apportion-partial").write_bytes(b"half")
    start_run(begun, RECIPE, WHERE)
    assert not list(begun.glob("*partial*"))


def test_the_log_is_synced_before_the_checkpoint_that_counts_its_lines(tmp_path, monkeypatch):
    append_log(tmp_path, line(1))
    log = (tmp_path / "log.jsonl").stat().st_ino
    synced = []

    def fsync(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino == log, (tmp_path / "last.safetensors").exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_checkpoint(tmp_path, state(1))
    assert synced[0] == (True, False)
    assert len(synced) == 3  # the log, the checkpoint, the folder


# --- one process per folder

HOLD = "import sys, time; from pathlib import Path; from apportion.experiments.run_folder import open_run\n"
HOLD += "with open_run(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"


def test_a_second_process_is_refused_and_the_lock_of_a_killed_one_does_not_count(tmp_path):
    owner = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout.readline() == "held\n"
        assert is_in_use(tmp_path)
        with pytest.raises(RunError), open_run(tmp_path):
            pytest.fail("two processes held one folder")
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
    assert not is_in_use(tmp_path)
    with open_run(tmp_path):
        assert is_in_use(tmp_path)
    assert not (tmp_path / "lock").exists()


def test_a_lock_that_is_a_link_or_a_pipe_is_refused_and_the_users_file_is_left_alone(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("my thesis")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "lock").symlink_to(precious)
    with pytest.raises(RunError), open_run(folder):
        pass
    assert precious.read_text() == "my thesis"
    (folder / "lock").unlink()
    os.mkfifo(folder / "lock")
    with pytest.raises(RunError), open_run(folder):
        pass
    with pytest.raises(RunError):
        is_in_use(folder)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("recipe.json", read_recipe),
        ("where.json", read_where),
        ("log.jsonl", read_log),
        ("result.json", read_result),
        ("model.safetensors", read_weights),
        ("log_probs.npy", read_log_probs),
        ("last.safetensors", read_checkpoint),
    ],
)
def test_a_pipe_a_missing_file_or_nonsense_is_an_error_and_never_blocks(tmp_path, name, read):
    with pytest.raises(RunError, match=name):
        read(tmp_path)
    os.mkfifo(tmp_path / name)
    with pytest.raises(RunError, match=name):
        read(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).write_bytes(b"\x00nonsense")
    with pytest.raises(RunError, match=name):
        read(tmp_path)


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e101", "1e999", "9" * 400, '"90"', "null", "true"])
def test_numbers_of_a_result_are_finite_and_not_huge(tmp_path, value):
    text = json.dumps(result_of(123.5)).replace("124.5", value, 1)
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(RunError):
        read_result(tmp_path)


@pytest.mark.parametrize("matrix", [[[1, 2], [3]], [[1, 2]], [[-1]], {"full": 1}, [["x"]]])
def test_a_confusion_matrix_must_be_a_square_of_counts(tmp_path, matrix):
    (tmp_path / "result.json").write_text(json.dumps(result_of(90.0, confusion=matrix)))
    with pytest.raises(RunError):
        read_result(tmp_path)


# --- checkpoints


def full_state() -> tuple[dict, torch.nn.Module, torch.optim.Optimizer]:
    net = network()
    optimizer = make_optimizer(net, "adam", 1e-3)
    net(torch.ones(3, 2)).sum().backward()
    optimizer.step()
    table = torch.rand(6, 2, generator=stream(0))
    full = {
        "stage": "second",
        "epoch": 1,
        "networks": [net.state_dict()],
        "optimizers": [optimizer.state_dict()],
        "labels": [table, table + 1],
        "ema": table,
        "previous": None,
    }
    return full, net, optimizer


def test_a_state_is_the_same_after_it_was_packed():
    packed, _, optimizer = full_state()
    packed["more"] = {
        "pair": (1, 2.5),
        "none": None,
        "yes": True,
        3: "three",
        "half": torch.ones(2).bfloat16(),
        "infinite": -math.inf,
    }
    packed["image"] = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    found = unpack_state(pack_state(packed), "state", error=RunError)
    assert torch.equal(found["image"], packed["image"])
    assert found["image"].stride() == packed["image"].stride()
    assert found["more"] | {"half": 0} == packed["more"] | {"half": 0}
    assert found["more"]["half"].dtype == torch.bfloat16
    assert list(found["networks"][0]) == list(packed["networks"][0])
    assert same_bits(found["networks"][0].values(), packed["networks"][0].values())
    assert found["optimizers"][0]["param_groups"] == optimizer.state_dict()["param_groups"]
    for one, other in zip(found["optimizers"][0]["state"].values(), optimizer.state.values(), strict=True):
        assert one.keys() == other.keys()
        assert same_bits(one.values(), other.values())
    assert same_bits([*found["labels"], found["ema"]], [*packed["labels"], packed["ema"]])


def test_a_copied_state_does_not_change_as_training_goes_on():
    original, net, optimizer = full_state()
    copied = copy_state(original)
    before = pack_state(copied)
    net(torch.ones(3, 2)).sum().backward()
    optimizer.step()
    assert pack_state(copied) == before
    assert pack_state(original) != before


def test_a_state_of_other_networks_optimizers_or_labels_is_refused():
    good, net, optimizer = full_state()
    shape = torch.Size((6, 2))
    check_state(good, [net], [optimizer], shape, error=RunError)
    saved = good["optimizers"][0]
    text = {**saved, "param_groups": [{**group, "lr": "fast"} for group in saved["param_groups"]]}
    short = {**saved, "state": {**saved["state"], 0: {"step": torch.ones(()), "exp_avg": torch.ones(3)}}}
    for change in (
        {"networks": []},
        {"networks": [{"w": torch.ones(2)}]},
        {"networks": [3]},
        {"optimizers": [text]},
        {"optimizers": [short]},
        {"labels": [torch.ones(5, 2)]},
        {"labels": None},
        {"ema": torch.ones(6, 2, dtype=torch.int64)},
        {"previous": torch.ones(1)},
    ):
        with pytest.raises(RunError):
            check_state(good | change, [net], [optimizer], shape, error=RunError)

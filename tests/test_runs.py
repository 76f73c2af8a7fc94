"""A run is a folder: what is there says how far it is, and a crash leaves nothing half-written."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import network, same_bits
from hypothesis import given
from hypothesis import strategies as st

from apportion import runs
from apportion._random import stream
from apportion.optim import make_optimizer
from apportion.runs import files, locks
from apportion.runs.checkpoints import check_fit, held, pack, unpack
from apportion.runs.layout import by_lines

RESULT = {
    "test_accuracy": {"last": 90.0, "oracle": 91.0, "oracle_epoch": 1},
    "epochs": 1,
    "train": {"proportion_error": 1.0, "entropy": 0.5, "label_accuracy": {"exact": 90.0}},
    "seconds": {"train": 1.0},
}
RECIPE = json.dumps({"seed": 1, "first": {"epochs": 3, "rate": 0.1}})


def line(epoch: int) -> dict:
    return {"epoch": epoch, "test_accuracy": 50.0}


def state(epoch: int) -> dict:
    return {"epoch": epoch, "networks": [{"w": torch.ones(2) * epoch}], "optimizers": []}


@pytest.fixture(autouse=True)
def folder_is_there(tmp_path):
    """`start` is for a folder that `opened` made."""
    (tmp_path / "a/b").mkdir(parents=True)
    for name in ("b/x/seed=2", "a/y/seed=1", "b/x/seed=1"):
        (tmp_path / name).mkdir(parents=True)


def test_a_new_run_starts_with_its_recipe_and_where_it_ran(tmp_path):
    assert runs.start(tmp_path / "a" / "b", RECIPE, {"torch": "x"}) is None
    assert (tmp_path / "a" / "b" / "recipe.json").read_text() == RECIPE
    assert json.loads((tmp_path / "a" / "b" / "where.json").read_text()) == {"torch": "x"}
    assert not runs.finished(tmp_path / "a" / "b")


def test_a_run_goes_on_from_its_checkpoint_and_forgets_the_lines_of_later_epochs(tmp_path):
    runs.start(tmp_path, RECIPE, {})
    for epoch in (1, 2, 3):
        runs.append(tmp_path, line(epoch))
        if epoch == 2:
            runs.checkpoint(tmp_path, state(2))
    found = runs.start(tmp_path, RECIPE, {})
    assert found is not None
    assert found["epoch"] == 2
    assert torch.equal(found["networks"][0]["w"], torch.full((2,), 2.0))
    assert runs.read_log(tmp_path) == [line(1), line(2)]


def test_a_run_without_a_checkpoint_starts_its_log_anew(tmp_path):
    runs.start(tmp_path, RECIPE, {})
    runs.append(tmp_path, line(1))
    assert runs.start(tmp_path, RECIPE, {}) is None
    runs.append(tmp_path, line(1))
    assert len(runs.read_log(tmp_path)) == 1


def test_a_line_cut_short_by_a_crash_is_of_an_epoch_that_runs_again(tmp_path):
    runs.start(tmp_path, RECIPE, {})
    runs.append(tmp_path, line(1))
    runs.checkpoint(tmp_path, state(1))
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"epoch": 2, "ter')
    runs.start(tmp_path, RECIPE, {})
    assert runs.read_log(tmp_path) == [line(1)]


def test_a_crash_while_a_checkpoint_is_written_leaves_the_old_one(tmp_path, monkeypatch):
    runs.start(tmp_path, RECIPE, {})
    runs.append(tmp_path, line(1))
    runs.checkpoint(tmp_path, state(1))

    def cut_short(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "sync", cut_short)
    with pytest.raises(KeyboardInterrupt):
        runs.checkpoint(tmp_path, state(2))
    monkeypatch.undo()
    assert runs.start(tmp_path, RECIPE, {})["epoch"] == 1


def test_a_folder_of_another_recipe_is_refused_with_the_settings_that_differ(tmp_path):
    runs.start(tmp_path, RECIPE, {})
    other = json.dumps({"seed": 1, "first": {"epochs": 5, "rate": 0.1}, "second": {"mixup": 1.0}})
    with pytest.raises(runs.RunError) as refusal:
        runs.start(tmp_path, other, {})
    text = str(refusal.value)
    assert text.startswith(f"{tmp_path} holds a run of another recipe; use another folder:")
    assert "first.epochs: 3 there, 5 asked for" in text
    assert "second.mixup: None there, 1.0 asked for" in text
    assert "rate" not in text
    assert (tmp_path / "recipe.json").read_text() == RECIPE


def test_the_same_recipe_written_otherwise_is_the_same(tmp_path):
    runs.start(tmp_path, RECIPE, {})
    assert runs.start(tmp_path, json.dumps(json.loads(RECIPE), indent=4), {}) is None


def test_the_result_is_written_last_and_the_checkpoint_is_then_gone(tmp_path, monkeypatch):
    runs.start(tmp_path, RECIPE, {})
    runs.checkpoint(tmp_path, state(1))
    log_probs = torch.randn(5, 3, generator=stream(0)).log_softmax(1)
    there = []
    plain = runs.write
    monkeypatch.setattr(
        runs,
        "write",
        lambda path, text: (there.extend(p.name for p in tmp_path.iterdir()), plain(path, text)),
    )
    weights = {"w": torch.arange(6.0).view(2, 3).T}
    runs.finish(tmp_path, RESULT, weights, log_probs)
    assert {"model.safetensors", "log_probs.npy", "last.safetensors"} <= set(there)
    assert runs.finished(tmp_path)
    assert not (tmp_path / "last.safetensors").exists()
    assert runs.read_result(tmp_path) == RESULT
    assert torch.equal(runs.read_weights(tmp_path)["w"], weights["w"])
    torch.testing.assert_close(runs.read_log_probs(tmp_path), log_probs, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(runs.read_log_probs(tmp_path).exp().sum(1), torch.ones(5))


def test_predictions_that_underflow_are_kept_as_usable_numbers(tmp_path):
    runs.start(tmp_path, RECIPE, {})
    sure = torch.tensor([[0.0, -1e9], [-200.0, -1e-9]])
    runs.finish(tmp_path, {}, {"w": torch.zeros(1)}, sure)
    assert torch.equal(runs.read_log_probs(tmp_path).argmax(1), torch.tensor([0, 1]))
    assert not runs.read_log_probs(tmp_path).isnan().any()


def test_what_is_missing_is_said_with_the_remedy(tmp_path):
    with pytest.raises(runs.RunError, match=r"log_probs.npy is missing; run the first stage of .* again"):
        runs.read_log_probs(tmp_path)
    with pytest.raises(runs.RunError, match=r"model.safetensors is missing.*run the first stage again"):
        runs.read_weights(tmp_path)


def test_all_runs_are_found_in_a_fixed_order(tmp_path):
    for name in ("b/x/seed=2", "a/y/seed=1", "b/x/seed=1"):
        runs.start(tmp_path / name, RECIPE, {})
    found = [str(path.relative_to(tmp_path)) for path in runs.all_runs(tmp_path)]
    assert found == ["a/y/seed=1", "b/x/seed=1", "b/x/seed=2"]


# --- going on


def begun(folder: Path, where: dict) -> None:
    runs.start(folder, RECIPE, where)
    runs.append(folder, line(1))
    runs.checkpoint(folder, state(1))


WHERE = {"apportion": "1", "torch": "2", "exact": False, "data": "abc", "started": "now", "commit": "c"}


@pytest.mark.parametrize(
    ("name", "value"), [("apportion", "9"), ("torch", "9"), ("exact", True), ("data", "other")]
)
def test_a_run_that_began_otherwise_is_refused_with_the_difference_and_force_is_recorded(
    tmp_path, name, value
):
    begun(tmp_path, WHERE)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.*")}
    with pytest.raises(runs.RunError) as refusal:
        runs.start(tmp_path, RECIPE, WHERE | {name: value})
    difference = f"  {name}: {WHERE[name]!r} there, {value!r} asked for"
    assert f"{tmp_path} holds a run that began otherwise and is at epoch 1" in str(refusal.value)
    assert str(refusal.value).splitlines()[1:] == [difference]
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.*")} == before
    assert runs.start(tmp_path, RECIPE, WHERE | {name: value}, force=True)["epoch"] == 1
    noted = runs.read_where(tmp_path)
    assert noted[name] == WHERE[name]
    assert noted["resumed"] == [{name: value, "epoch": 1, "forced": [difference]}]


def test_another_place_time_or_commit_is_no_hindrance_and_is_noted(tmp_path):
    begun(tmp_path, WHERE)
    assert runs.start(tmp_path, RECIPE, WHERE | {"started": "later", "commit": "d"})["epoch"] == 1
    assert runs.start(tmp_path, RECIPE, WHERE | {"started": "last"})["epoch"] == 1
    resumed = [{"started": "later", "commit": "d", "epoch": 1}, {"started": "last", "epoch": 1}]
    assert runs.read_where(tmp_path) == WHERE | {"resumed": resumed}


def test_a_changed_recipe_goes_on_by_force_alone_and_this_is_recorded(tmp_path):
    begun(tmp_path, WHERE)
    other = json.dumps({"seed": 1, "first": {"epochs": 5, "rate": 0.1}})
    with pytest.raises(runs.RunError, match="of another recipe"):
        runs.start(tmp_path, other, WHERE)
    assert runs.start(tmp_path, other, WHERE, force=True)["epoch"] == 1
    assert runs.read_where(tmp_path)["resumed"][0]["forced"] == ["  first.epochs: 3 there, 5 asked for"]
    assert json.loads((tmp_path / "recipe.json").read_text()) == json.loads(other)


def test_no_force_changes_the_recipe_of_a_finished_run(tmp_path):
    begun(tmp_path, WHERE)
    runs.finish(tmp_path, RESULT, {"w": torch.zeros(1)}, torch.zeros(1, 2))
    with pytest.raises(runs.RunError, match="of another recipe"):
        runs.refuse_other(tmp_path, json.dumps({"seed": 2}), force=True)


def test_a_run_without_a_checkpoint_starts_anew_on_whatever_is_here(tmp_path):
    runs.start(tmp_path, RECIPE, WHERE)
    assert runs.start(tmp_path, RECIPE, WHERE | {"torch": "9"}) is None
    assert runs.read_where(tmp_path) == WHERE | {"torch": "9"}


def test_a_log_shorter_than_its_checkpoint_is_refused(tmp_path):
    begun(tmp_path, WHERE)
    (tmp_path / "log.jsonl").write_text("")
    with pytest.raises(runs.RunError, match="fewer lines than the checkpoint has epochs; delete the folder"):
        runs.start(tmp_path, RECIPE, WHERE)


def test_what_a_killed_process_left_half_written_is_cleared_away(tmp_path):
    begun(tmp_path, WHERE)
    (tmp_path / "last.safetensors.new").write_bytes(b"half")
    runs.start(tmp_path, RECIPE, WHERE)
    assert not list(tmp_path.glob("*.new"))


# --- the state that is kept


def everywhere(epoch: int = 1) -> tuple[dict, torch.nn.Module, torch.optim.Optimizer]:
    net = network()
    optimizer = make_optimizer(net, "adam", 1e-3, weight_decay=0.1)
    net(torch.ones(3, 2)).sum().backward()
    optimizer.step()
    table = torch.rand(6, 2, generator=stream(0))
    players = {"networks": [net.state_dict()], "optimizers": [optimizer.state_dict()]}
    rest = {"labels": [table, table + 1], "ema": table, "previous": None}
    return {"stage": "second", "epoch": epoch} | players | rest, net, optimizer


def test_a_state_is_the_same_after_it_was_packed():
    packed, net, optimizer = everywhere()
    packed["more"] = {
        "pair": (1, 2.5),
        "none": None,
        "yes": True,
        3: "three",
        "half": torch.ones(2).bfloat16(),
    }
    packed["image"] = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    found = unpack(pack(packed), "it")
    assert torch.equal(found["image"], packed["image"])
    assert found["image"].stride() == packed["image"].stride()
    assert found["more"] | {"half": 0} == packed["more"] | {"half": 0}
    assert found["more"]["half"].dtype == torch.bfloat16
    assert same_bits(found["networks"][0].values(), packed["networks"][0].values())
    assert list(found["networks"][0]) == list(packed["networks"][0])
    assert found["optimizers"][0]["param_groups"] == optimizer.state_dict()["param_groups"]
    for one, other in zip(found["optimizers"][0]["state"].values(), optimizer.state.values(), strict=True):
        assert one.keys() == other.keys()
        assert same_bits(one.values(), other.values())
    assert same_bits(found["labels"] + [found["ema"]], packed["labels"] + [packed["ema"]])


def test_a_state_that_is_held_does_not_change_as_training_goes_on():
    original, net, optimizer = everywhere()
    kept = held(original)
    before = pack(kept)
    net(torch.ones(3, 2)).sum().backward()
    optimizer.step()
    assert pack(kept) == before
    assert pack(original) != before


def test_a_state_that_fits_is_taken_and_one_of_other_networks_or_labels_is_refused():
    packed, net, optimizer = everywhere()
    check_fit(packed, [net], [optimizer], torch.Size((6, 2)))
    check_fit(None, [net], [optimizer], torch.Size((6, 2)))
    wrong = packed["optimizers"][0]["param_groups"]
    text = [{**packed["optimizers"][0], "param_groups": [{**group, "lr": "fast"} for group in wrong]}]
    short = {**packed["optimizers"][0]["state"], 0: {"step": torch.ones(()), "exp_avg": torch.ones(3)}}
    for change in (
        {"networks": []},
        {"networks": [{"w": torch.ones(2)}]},
        {"networks": [3]},
        {"optimizers": text},
        {"optimizers": [{**packed["optimizers"][0], "state": short}]},
        {"labels": [torch.ones(5, 2)]},
        {"labels": None},
        {"ema": torch.ones(6, 2, dtype=torch.int64)},
        {"previous": torch.ones(1)},
    ):
        with pytest.raises(runs.RunError, match="(?s)does not fit the recipe .*; delete it"):
            check_fit(packed | change, [net], [optimizer], torch.Size((6, 2)))


# --- one process a folder

HOLD = "import sys, time; from pathlib import Path; from apportion.runs.locks import locked\n"
HOLD += "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"


def test_a_second_process_is_refused_and_the_lock_of_a_killed_one_is_no_hindrance(tmp_path):
    owner = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout.readline() == "held\n"
        refused = pytest.raises(runs.RunError, match=f"is in use by process {owner.pid} on .*; wait for it")
        with refused, runs.opened(tmp_path):
            pytest.fail("two processes held one folder")
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
    assert (tmp_path / "lock").exists()
    with runs.opened(tmp_path):
        assert f"process {os.getpid()} on" in (tmp_path / "lock").read_text()
    assert not (tmp_path / "lock").exists()


def test_one_folder_is_not_opened_twice_by_one_process_either(tmp_path):
    with runs.opened(tmp_path), pytest.raises(runs.RunError, match="is in use"), runs.opened(tmp_path):
        pass


def test_a_lock_whose_name_another_took_before_it_was_held_is_not_that_folders(tmp_path, monkeypatch):
    path, flock, others = tmp_path / "lock", locks.fcntl.flock, []

    def late(file, how):
        if not others:  # its owner ends, and another begins
            path.unlink()
            others.append(path.open("w"))
            flock(others[0], how)
        flock(file, how)

    monkeypatch.setattr(locks.fcntl, "flock", late)
    with pytest.raises(locks.InUse, match="is in use by another process"), locks.locked(tmp_path):
        pytest.fail("two held one folder")
    others[0].close()
    with locks.locked(tmp_path):
        assert locks.in_use(tmp_path)


# --- a full disk


def test_a_full_disk_is_named_and_leaves_the_old_file_and_no_part_of_the_new(tmp_path, monkeypatch):
    begun(tmp_path, WHERE)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "sync", full)
    with pytest.raises(runs.RunError, match="cannot be written: the disk is full; make room"):
        files.write_whole(tmp_path / "last.safetensors", pack(state(2)))
    assert unpack((tmp_path / "last.safetensors").read_bytes(), "it")["epoch"] == 1
    assert not list(tmp_path.glob("*.new"))


def test_a_confusion_has_a_line_a_class():
    lines = by_lines({"confusion": [[3, 0], [1, 2.5e-30]], "said": "[\n1,\n2]", "none": []}).splitlines()
    assert lines == ["{", ' "confusion": [', "  [3, 0],", "  [1, 2.5e-30]", " ],", *lines[5:]]
    assert lines[5:] == [r' "said": "[\n1,\n2]",', ' "none": []', "}"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_the_layout_changes_no_value(values):
    assert json.loads(by_lines(values)) == values


def test_the_log_is_on_the_disk_before_the_checkpoint_that_counts_its_lines(tmp_path, monkeypatch):
    import os

    from apportion import runs

    runs.append(tmp_path, {"epoch": 1})
    log, seen = (tmp_path / "log.jsonl").stat().st_ino, []

    def sync(descriptor):
        seen.append((os.fstat(descriptor).st_ino == log, (tmp_path / "last.safetensors").exists()))

    monkeypatch.setattr(runs, "sync", sync)
    runs.checkpoint(tmp_path, {"epoch": 1})
    assert seen == [(True, False)]

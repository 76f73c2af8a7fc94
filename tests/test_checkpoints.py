"""Fits that are interrupted and continue: to the same bits, from a folder that is theirs."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from sklearn.linear_model import LogisticRegression

from apportion import ProportionClassifier
from apportion.bags.bags import Bags
from apportion.checkpoints import (
    FILE,
    Checkpointer,
    checksum,
    describe_parameter,
    open_checkpoint,
    pack_state,
    read_state,
)
from apportion.errors import ApportionWarning, CheckpointError, ModelError
from apportion.methods import boosted_trees
from apportion.methods.boosted_trees import boost
from apportion.networks.trees import trees_as_tensors, trees_from_tensors

RNG = np.random.default_rng(0)
X = RNG.normal(size=(640, 3)).astype(np.float32)
BAG = np.arange(640) % 32
SHARES = np.stack([np.bincount(BAG, each, 32) / 20 for each in (X[:, 0] <= 0.2, X[:, 0] > 0.2)], 1)
DATA: dict[str, Any] = {"bags": BAG, "proportions": SHARES}
QUICK = {"epochs": 2, "student_epochs": 2, "random_state": 0}


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch):
    """Short boosting, in which scores of held-out bags still decide."""
    for name, value in (("MIN_ROUNDS", 10), ("PATIENCE", 20), ("MAX_ROUNDS", 40)):
        monkeypatch.setattr(boosted_trees, name, value)
    monkeypatch.setattr(boosted_trees.boost, "__kwdefaults__", boost.__kwdefaults__ | {"rounds": 40})


def interrupted(classifier: ProportionClassifier, folder: Path, states: int, **changes: Any) -> None:
    """A fit that is left after so many states."""
    with closing(classifier.iter_fit(X, **DATA | changes, checkpoint=folder)) as fit:
        for _ in range(states):
            next(fit)


def what_is_fitted(classifier: ProportionClassifier) -> list[Any]:
    history = [{name: entry[name] for name in entry if name != "seconds"} for entry in classifier.history_]
    weights = [value.tolist() for value in classifier.model_.state_dict().values()]
    parts = classifier.transduction_.tolist(), classifier.selection_, classifier.best_epoch_
    return [
        weights, history, *parts, classifier.optimizers_, classifier.temperature_, classifier.bag_scores_,
        classifier.predict_proba(X).tolist(),
    ]  # fmt: skip


FITS = {
    "average": ("average", {}),
    "linear": ("linear", {"epochs": None, "student_epochs": None}),
    "student of scikit-learn": (LogisticRegression(), {"epochs": None, "student_epochs": None}),
    "selected": ("mlp", {"validation_fraction": 0.3, "select_by": "likelihood", "calibrate": True}),
    "generator": ("mlp", {"method": "llp_gan", "pseudo_labels": "hard"}),
    "teacher alone": ("mlp", {"method": "llp_vat", "student_epochs": 0}),
}


@pytest.mark.parametrize("name", FITS)
def test_a_fit_interrupted_anywhere_continues_to_the_same_bits(name, tmp_path):
    model, settings = FITS[name]

    def new() -> ProportionClassifier:
        return ProportionClassifier(model, **QUICK | settings)

    whole = new().fit(X, **DATA)
    stages = [entry["stage"] for entry in whole.history_]
    n = len(stages)
    # the first and the last state of every kind of step, and one in the middle of the trees
    changes = {(stages[i - 1], stages[i]): i for i in range(1, n) if stages[i] != stages[i - 1]}
    ends = {1, n - 1, n, n // 2, *changes.values()}
    for states in sorted(ends | {first + 1 for first in changes.values() if first < n}):
        interrupted(new(), tmp_path / "checkpoint", states)
        assert sorted(os.listdir(tmp_path / "checkpoint")) == [FILE]
        again = new()
        left = list(again.iter_fit(X, **DATA, checkpoint=tmp_path / "checkpoint"))
        assert len(left) == max(1, n - states)  # nothing is done twice but the last step, which is not saved
        assert what_is_fitted(again) == what_is_fitted(whole)
        assert not os.listdir(tmp_path)


def test_a_fit_may_be_interrupted_again_and_again(tmp_path):
    whole = ProportionClassifier("average", **QUICK).fit(X, **DATA)
    for _ in range(-(-len(whole.history_) // 7)):
        with closing(
            ProportionClassifier("average", **QUICK).iter_fit(X, **DATA, checkpoint=tmp_path / "c")
        ) as fit:
            for _, _ in zip(range(7), fit, strict=False):
                pass
    again = ProportionClassifier("average", **QUICK).fit(X, **DATA, checkpoint=tmp_path / "c")
    assert what_is_fitted(again) == what_is_fitted(whole)


def test_without_a_random_state_the_seed_of_the_interrupted_fit_is_used(tmp_path):
    settings = QUICK | {"random_state": None}
    interrupted(ProportionClassifier("mlp", **settings), tmp_path / "c", 2)
    seed = read_state(tmp_path / "c" / FILE, error=CheckpointError)["seed"]
    again = ProportionClassifier("mlp", **settings).fit(X, **DATA, checkpoint=tmp_path / "c")
    whole = ProportionClassifier("mlp", **settings | {"random_state": seed}).fit(X, **DATA)
    assert what_is_fitted(again) == what_is_fitted(whole)


@pytest.mark.parametrize("rounds", [10, 30, 40])
def test_trees_are_added_to_those_of_an_earlier_round(rounds):
    bags = Bags(
        torch.from_numpy(X[BAG.argsort(kind="stable")]),
        torch.full((32,), 20),
        torch.from_numpy(SHARES).float(),
        torch.arange(640),
        range(32),
    )
    known, held_out = bags.select(torch.arange(24)), bags.select(torch.arange(24, 32))
    all_rounds = list(boost(known, held_out, rounds=40, seed=3))
    saved = trees_as_tensors(next(each for each in all_rounds if each.number == rounds).trees[:rounds])
    rest = list(boost(known, held_out, rounds=40, seed=3, resume=trees_from_tensors(saved, 3, 2)))
    assert [each.number for each in rest] == [each.number for each in all_rounds if each.number > rounds]
    for one, other in zip(rest, all_rounds[len(all_rounds) - len(rest) :], strict=True):
        assert (one.loss, one.score, one.best, one.best_score) == (
            other.loss,
            other.score,
            other.best,
            other.best_score,
        )
        weights = [list(each.classifier.state_dict().values()) for each in (one, other)]
        assert all(map(torch.equal, *weights))


# --- whose checkpoint it is

CHANGES: dict[str, tuple[dict, dict, str]] = {
    "a parameter": ({"epochs": 3}, {}, "epochs: 2 in the folder, 3 requested"),
    "the seed": ({"random_state": 1}, {}, "random_state: 0 in the folder, 1 requested"),
    "no seed": ({"random_state": None}, {}, "random_state: 0 in the folder, None requested"),
    "proportions": ({}, {"proportions": SHARES[:, ::-1]}, "proportions: "),
    "bags": ({}, {"bags": np.roll(BAG, 1)}, "rows of the bags: "),
    "weights": ({}, {"sample_weight": np.full(640, 2.0)}, "weight: None in the folder"),
    "known labels": ({}, {"known_labels": {0: 1}}, "known labels: "),
    "held-out bags": ({"validation_fraction": 0.2}, {}, "sizes of the bags: "),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_checkpoint_of_another_fit_is_refused_with_what_differs(name, tmp_path):
    settings, data, message = CHANGES[name]
    interrupted(ProportionClassifier("mlp", **QUICK), tmp_path / "c", 1)
    before = (tmp_path / "c" / FILE).read_bytes()
    with pytest.raises(CheckpointError, match="another fit; name another folder, or delete it") as caught:
        ProportionClassifier("mlp", **QUICK | settings).fit(X, **DATA | data, checkpoint=tmp_path / "c")
    assert message in str(caught.value)
    assert (tmp_path / "c" / FILE).read_bytes() == before


def test_a_checkpoint_of_other_rows_or_another_version_is_refused(tmp_path, monkeypatch):
    interrupted(ProportionClassifier("mlp", **QUICK), tmp_path / "c", 1)
    other = X.copy()
    other[5, 1] += 1
    with pytest.raises(CheckpointError, match="values of the features: "):
        ProportionClassifier("mlp", **QUICK).fit(other, **DATA, checkpoint=tmp_path / "c")
    monkeypatch.setattr("apportion.estimator.source_checksum", lambda: "others")
    with pytest.raises(CheckpointError, match="sources: '.*' in the folder, 'others' requested"):
        ProportionClassifier("mlp", **QUICK).fit(X, **DATA, checkpoint=tmp_path / "c")


def test_what_changes_nothing_may_change(tmp_path):
    interrupted(ProportionClassifier("mlp", **QUICK), tmp_path / "c", 1)
    ProportionClassifier("mlp", **QUICK, verbose=1).fit(X, **DATA, checkpoint=tmp_path / "c")


def test_parameters_are_described_alike_in_every_process():
    described = describe_parameter(LogisticRegression(C=3))
    assert "LogisticRegression" in described
    assert "'C': 3" in described
    assert " at 0x" not in describe_parameter(object())
    assert describe_parameter(checksum) == "apportion.checkpoints.checksum"


def test_a_checksum_depends_on_numbers_shapes_and_types():
    x = torch.arange(6.0)
    sums = [x, x + 1, x.reshape(2, 3), x.int(), x.bfloat16()]
    assert len({checksum([each]) for each in sums}) == len(sums)
    assert checksum([x.reshape(2, 3).T.contiguous().T]) == checksum([x.reshape(2, 3)])
    assert checksum([None]) is None


# --- hostile and broken folders


def test_other_folders_and_files_are_left_alone(tmp_path):
    def refused(folder: Path, message: str) -> None:
        with pytest.raises(CheckpointError, match=message), open_checkpoint(folder):
            pass

    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.tex").write_text("x")
    refused(tmp_path / "full", "has other files")
    assert os.listdir(tmp_path / "full") == ["thesis.tex"]
    (tmp_path / "file").write_text("x")
    refused(tmp_path / "file", "is not a folder")
    if hasattr(os, "mkfifo"):
        (tmp_path / "link").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
        refused(tmp_path / "link", "symbolic link")
        os.mkfifo(tmp_path / "pipe")
        refused(tmp_path / "pipe", "is not a folder")
        for name, make in (
            ("target", os.mkfifo),
            ("linked", lambda path: path.symlink_to(tmp_path / "file")),
        ):
            (tmp_path / name).mkdir()
            make(tmp_path / name / FILE)
            refused(tmp_path / name, "not a regular file|symbolic link")
    assert (tmp_path / "file").read_text() == "x"


def test_a_second_process_waits_its_turn(tmp_path):
    with (
        open_checkpoint(tmp_path / "c"),
        pytest.raises(CheckpointError, match="in use by another process"),
        open_checkpoint(tmp_path / "c"),
    ):
        pass
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"networks": []}, {"networks": [{"a": torch.ones(2)}]}, {"optimizers": [3]}, {"stage": 5},
        {"history": [1]}, {"selector": {}}, {"finished": []}, {"epoch": "1"}, {"format": 7}, {"seed": None},
    ],
)  # fmt: skip
def test_a_damaged_checkpoint_is_an_error_that_says_what_to_do(change, tmp_path):
    interrupted(ProportionClassifier("mlp", **QUICK), tmp_path / "c", 1)
    path = tmp_path / "c" / FILE
    path.write_bytes(pack_state(read_state(path, error=CheckpointError) | change))
    with pytest.raises(CheckpointError, match="delete it"):
        ProportionClassifier("mlp", **QUICK).fit(X, **DATA, checkpoint=tmp_path / "c")


def test_a_checkpoint_that_does_not_say_which_epoch_is_best_is_an_error(tmp_path):
    settings = QUICK | {"validation_fraction": 0.3, "select_by": "likelihood"}
    interrupted(ProportionClassifier("mlp", **settings), tmp_path / "c", 1)
    path = tmp_path / "c" / FILE
    path.write_bytes(pack_state(read_state(path, error=CheckpointError) | {"selector": None}))
    with pytest.raises(CheckpointError, match="delete it"):
        ProportionClassifier("mlp", **settings).fit(X, **DATA, checkpoint=tmp_path / "c")


def test_damaged_results_of_finished_steps_are_errors(tmp_path):
    interrupted(ProportionClassifier("average", **QUICK), tmp_path / "c", 60)
    path = tmp_path / "c" / FILE
    good = read_state(path, error=CheckpointError)
    assert len(good["finished"]) > 4
    for step, result in good["finished"].items():
        changes = [{name: 3.5 if isinstance(value, list | dict) else [3.5]} for name, value in result.items()]
        for change in ({}, *changes):
            damaged = result | change if change else 7
            path.write_bytes(pack_state(good | {"finished": good["finished"] | {step: damaged}}))
            with pytest.raises(CheckpointError, match="delete it"):
                ProportionClassifier("average", **QUICK).fit(X, **DATA, checkpoint=tmp_path / "c")


def test_trees_that_lead_out_of_their_arrays_are_refused(tmp_path):
    interrupted(ProportionClassifier("trees", random_state=0), tmp_path / "c", 2)
    path = tmp_path / "c" / FILE
    good = read_state(path, error=CheckpointError)
    feature, threshold, child, value, gain = good["trees"][0]
    for tree in (
        (feature + 10**6, threshold, child, value, gain),
        (feature, threshold, child + 10**6, value, gain),
        (feature, threshold, child, value[:1], gain),
        (feature[:0], threshold[:0], child[:0], value, gain[:0]),
        (feature.long(), threshold, child, value, gain),
        (feature, threshold),
    ):
        path.write_bytes(pack_state(good | {"trees": [tree, *good["trees"][1:]]}))
        with pytest.raises(CheckpointError, match="trees are damaged"):
            ProportionClassifier("trees", random_state=0).fit(X, **DATA, checkpoint=tmp_path / "c")


# --- when it is saved


def test_states_are_saved_now_and_then_and_saving_takes_little_time(monkeypatch):
    now = 0.0
    saved = []
    monkeypatch.setattr(time, "monotonic", lambda: now)
    keeper = Checkpointer(saved.append)
    keeper.cost = 1.0  # of a slow disk: once in 50 seconds is enough
    for second in range(1, 101):
        now = float(second)
        keeper.keep({"networks": [], "optimizers": [], "epoch": second})
    assert [state["epoch"] for state in saved] == [51, 72, 93]  # and then it was fast


WORDS = ["fit", "rows.parquet", "--bag", "bag", "--proportions", "shares.csv", "--model", "mlp"]
WORDS += ["--epochs", "9", "--student-epochs", "9", "--checkpoint", "kept"]


def write_tables(folder: Path) -> None:
    """The table and the shares of WORDS."""
    pl = pytest.importorskip("polars")
    names = {f"x{i}": X[:, i] for i in range(3)}
    pl.DataFrame({"bag": BAG, **names}).write_parquet(folder / "rows.parquet")
    table = {"bag": np.arange(32), "no": SHARES[:, 0], "yes": SHARES[:, 1]}
    pl.DataFrame(table).write_csv(folder / "shares.csv")


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
@pytest.mark.parametrize("seconds", [-1.0, 20.0], ids=["some epochs kept", "nothing kept"])
def test_a_command_killed_after_its_model_is_saved_finishes_when_it_is_repeated(
    seconds, tmp_path, monkeypatch
):
    testing = pytest.importorskip("typer.testing")
    from apportion.cli.app import app

    write_tables(tmp_path)
    monkeypatch.chdir(tmp_path)
    code = f"import os; from apportion import checkpoints; checkpoints.CHECKPOINT_SECONDS = {seconds}\n"
    code += "checkpoints.FitCheckpoint.remove = lambda self: os.kill(os.getpid(), 9)\n"
    code += "from apportion.__main__ import main; main()"
    words = [*WORDS, "--out", "model"]
    killed = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, timeout=300)
    assert killed.returncode == -signal.SIGKILL
    kept, model = Path("kept"), Path("model")
    assert (kept / FILE).exists() == (seconds < 0)
    saved = {path.name: path.read_bytes() for path in model.iterdir()}
    shutil.copytree(kept, "kept as it was")
    assert testing.CliRunner().invoke(app, words).exit_code == 0
    assert saved == {path.name: path.read_bytes() for path in model.iterdir()}
    assert not kept.exists()
    occupied = testing.CliRunner().invoke(app, words)  # a fit that has not begun has saved no model
    assert isinstance(occupied.exception, ModelError)

    shutil.copytree("kept as it was", kept)
    others = {name: value + 1 for name, value in load_file(model / "model.safetensors").items()}
    save_file(others, model / "model.safetensors")  # somebody else's model, in the same place
    with pytest.warns(ApportionWarning, match="not empty"):
        nearby = testing.CliRunner().invoke(app, words)
    assert nearby.exit_code == 0
    assert (tmp_path / "model-2/model.safetensors").read_bytes() == saved["model.safetensors"]
    found = load_file(model / "model.safetensors")
    assert all(np.array_equal(found[name], value) for name, value in others.items())
    assert not kept.exists()


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_a_killed_command_continues_and_ends_with_the_same_model(tmp_path):
    pl = pytest.importorskip("polars")
    pytest.importorskip("typer")
    write_tables(tmp_path)
    code = "import sys; from apportion import checkpoints; checkpoints.CHECKPOINT_SECONDS = -1.0\n"
    code += "from apportion.__main__ import main; main()"

    def start(out: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-c", code, *WORDS, "--out", out],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
        )

    frame = pl.read_parquet(tmp_path / "rows.parquet")
    whole = ProportionClassifier("mlp", epochs=9, student_epochs=9, random_state=0)
    whole.fit(frame, bags="bag", proportions=pl.read_csv(tmp_path / "shares.csv"))
    killed = start("model")
    while not (tmp_path / "kept" / FILE).exists():
        time.sleep(0.01)

    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    again = start("model")
    output = again.communicate(timeout=300)[0]
    assert again.returncode == 0
    assert "continues from kept" in output
    weights = load_file(tmp_path / "model/model.safetensors")
    assert all(np.array_equal(weights[name], value) for name, value in whole.model_.state_dict().items())
    assert json.loads((tmp_path / "model/model.json").read_text())["fit"]["epoch"] == 9
    assert not (tmp_path / "kept").exists()

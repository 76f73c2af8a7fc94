"""Runs from recipes to folders: pinned losses, what is measured, resuming to the same bits, honesty."""

import hashlib
import math
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import ONE_VIEW, same_bits
from torch.optim.optimizer import register_optimizer_step_pre_hook

from apportion import checkpoints
from apportion._random import stream
from apportion.bags.simulate import BAG_KINDS, make_bags
from apportion.datasets import SYNTHETIC, Instances
from apportion.errors import ApportionWarning, RunError, SettingsError, TrainingError
from apportion.evaluate import accuracy, predict_log_proba
from apportion.experiments import data as tasks
from apportion.experiments import provenance
from apportion.experiments import run as runs
from apportion.experiments import run_folder as folders
from apportion.experiments import sample as samples
from apportion.experiments.data import load_run_data
from apportion.experiments.provenance import describe_where, source_checksum
from apportion.experiments.recipe import Data, FirstStage, Network, Recipe, SecondStage, change_recipe
from apportion.experiments.recipes import RECIPES
from apportion.experiments.run import (
    find_run,
    first_stage_name,
    folder_of_run,
    run,
    run_with_teacher,
    summarize,
)
from apportion.experiments.run_folder import (
    is_finished,
    read_checkpoint,
    read_log,
    read_log_probs,
    read_result,
    read_weights,
    read_where,
)
from apportion.experiments.sample import read_sample
from apportion.methods.plot import PLOT, bag_weights
from apportion.pseudo_labels import PSEUDO_LABELS, SoftLabels, argmax_labels, hard_labels, soft_labels
from apportion.report.tables import collect, provenance_marks
from apportion.transport import entropic_plan

CPU = torch.device("cpu")
SMOKE = {name: replace(recipe, seed=0) for name, recipe in RECIPES.items() if name.startswith("smoke/")}
TINY = Recipe(
    data=Data("digits", 64),
    network=Network("mlp", {"widths": (16,)}),
    first=FirstStage(epochs=4),
    batch_size=256,
)
TINY_SECOND = replace(
    TINY, second=SecondStage(epochs=4, warmup_epochs=1, mixup=1.0, ema=0.5, weighting="bag")
)
SOFT = replace(TINY, second=SecondStage(epochs=3, warmup_epochs=2, labels="soft"))

# The losses of the three epochs of every smoke recipe at seed 0. A change must be in the changelog.
PINNED = {
    "smoke/dllp/50": {"proportion": [0.69322, 0.692245, 0.691647]},
    "smoke/llp_vat/50": {
        "proportion": [0.69322, 0.692245, 0.691648],
        "consistency": [1.53e-07, 1.947e-06, 3.213e-06],
    },
    "smoke/llp_gan/50": {
        "proportion": [0.693019, 0.693751, 0.693678],
        "real": [0.427312, 0.619094, 0.604175],
        "fake": [1.02718, 0.710889, 0.652165],
        "matching": [0.00139576, 0.00392502, 0.0126871],
    },
    "smoke/rot/50": {"proportion": [0.415931, 0.415351, 0.414991], "labels": [0.277083, 0.276406, 0.276044]},
    "smoke/count_likelihood/50": {"counts": [0.0637745, 0.0628049, 0.0622124]},
    "smoke/llp_mm/50": {"moments": [1.38551, 1.38113, 1.37844]},
    "smoke/easy_llp/50": {"debiased": [0.700045, 0.659656, 0.630243]},
    "smoke/mixbag/50": {
        "proportion": [0.346521, 0.346213, 0.345961],
        "mixed": [0.0430503, 0.104399, 0.051945],
    },
    "smoke/mean_map/50": {
        "logistic": [0.995529, 0.955604, 0.932191],
        "l2": [0.00457528, 0.00430416, 0.00415667],
    },
    "smoke/two_views/50": {
        "proportion": [4.88761, 3.49575, 2.10986],
        "labels": [3.13052e-05, 3.14148e-05, 3.19384e-05],
        "contrast": [2.9223, 0.362161],  # none in the second half
    },
    "smoke/dllp+plot-hard/50": {"labels": [0.562493, 0.262306, 0.13815]},
    "smoke/dllp+plot-sce-mixup/50": {"labels": [2.54858, 1.31399, 0.547928]},
    "smoke/dllp+plot-soft/50": {"labels": [0.634032, 0.461343, 0.366544]},
    "smoke/dllp+plot-predicted/50": {"labels": [0.690852, 0.690512, 0.690474]},
}


def run_all(recipe: Recipe, folder: Path, teacher: Path | None = None, **settings) -> list[dict]:
    return list(run(recipe, folder, teacher=teacher, device="cpu", **settings))


def run_named(recipe: Recipe, root: Path, name: str) -> Path:
    """Run a named recipe, and its first stage if needed; its folder."""
    for _ in run_with_teacher(recipe, root, name, device="cpu"):
        pass
    return folder_of_run(root, name, recipe)


def run_until(recipe: Recipe, folder: Path, epochs: int, teacher: Path | None = None) -> None:
    """Start or resume a run, and leave it after so many epochs."""
    lines = run(recipe, folder, teacher=teacher, device="cpu")
    for _ in range(epochs):
        next(lines, None)
    lines.close()


@pytest.fixture(scope="module")
def smoke(tmp_path_factory) -> Path:
    """A folder with all smoke runs at seed 0."""
    root = tmp_path_factory.mktemp("smoke")
    for name, recipe in SMOKE.items():
        run_named(recipe, root, name)
    return root


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    run_all(TINY, folder)
    return folder


@pytest.fixture(scope="module")
def task():
    return load_run_data(TINY, CPU)


# --- what a run writes


@pytest.mark.parametrize("name", SMOKE)
def test_losses_are_as_pinned(smoke, name):
    log = read_log(smoke / name / "seed=0")
    losses = {
        term: [line["terms"][term] for line in log if term in line["terms"]] for term in log[0]["terms"]
    }
    expected = {term: pytest.approx(values, rel=1e-4, abs=1e-7) for term, values in PINNED[name].items()}
    assert losses == expected
    files = {path.name for path in (smoke / name / "seed=0").iterdir()}
    assert files == {
        "recipe.json", "where.json", "log.jsonl", "result.json", "model.safetensors", "log_probs.npy",
        "sample.npz",
    }  # fmt: skip


def test_every_smoke_recipe_is_pinned():
    assert set(PINNED) == set(SMOKE)


def test_a_result_agrees_with_the_log_and_the_weights(smoke):
    name = "smoke/dllp+plot-hard/50"
    folder = smoke / name / "seed=0"
    curve = [line["test_accuracy"] for line in read_log(folder)]
    result = read_result(folder)
    assert result["test_accuracy"]["last"] == curve[-1]
    assert result["test_accuracy"]["oracle"] == max(curve)
    assert curve[result["test_accuracy"]["oracle_epoch"] - 1] == max(curve)
    task = load_run_data(SMOKE[name], CPU)
    network = runs.build_network(SMOKE[name].network, (2,), 2)
    network.load_state_dict(read_weights(folder))
    correct = (network(task.data.test_x).argmax(1) == task.data.test_y).float().mean().item()
    assert result["test_accuracy"]["last"] == pytest.approx(100 * correct, abs=1e-3)
    assert result["train"]["errors"] == int((network(task.bags.x).argmax(1) != task.hidden).sum())
    expected = network(task.bags.x).log_softmax(1).detach()
    torch.testing.assert_close(read_log_probs(folder), expected, rtol=1e-2, atol=1e-2)
    for line in read_log(folder):
        assert line["label_accuracy"]["labels"] >= line["label_accuracy"]["predicted"]


def test_the_headline_is_the_last_epoch_and_the_best_one_is_only_an_oracle(task):
    log = [{"test_accuracy": a, "seconds": {"train": 1.0}} for a in (50.0, 90.0, 80.0)]
    log_probs = torch.zeros(len(task.bags.x), 10).log_softmax(1)
    result = summarize(log, task, log_probs, torch.zeros(len(task.data.test_x), 10))
    assert result["test_accuracy"] == {"last": 80.0, "oracle": 90.0, "oracle_epoch": 2}
    assert result["epochs"] == 3
    assert result["seconds"] == {"train": 3.0}


def test_the_epoch_that_validation_bags_choose_has_the_lowest_error(task):
    pairs = ((50.0, 9.0), (60.0, 7.0), (80.0, 8.0))
    log = [{"test_accuracy": a, "validation_error": e, "seconds": {"train": 1.0}} for a, e in pairs]
    log_probs = torch.zeros(len(task.bags.x), 10).log_softmax(1)
    result = summarize(log, task, log_probs, torch.zeros(len(task.data.test_x), 10))
    assert result["test_accuracy"]["validation"] == 60.0
    assert result["test_accuracy"]["validation_epoch"] == 2


def test_a_result_has_the_accuracy_of_four_kinds_of_labels(task):
    vague = torch.randn(len(task.bags.x), 10, generator=stream(3)) + F.one_hot(task.hidden, 10)
    log_probs = vague.log_softmax(1)
    log = [{"test_accuracy": 1.0, "seconds": {"train": 1.0}}]
    result = summarize(log, task, log_probs, torch.zeros(len(task.data.test_x), 10))
    given = log_probs, task.bags.sizes, task.bags.proportions
    expected = {
        "argmax": argmax_labels(*given),
        "exact": hard_labels(*given),
        "entropic": soft_labels(*given, reg=1.0),
        "relaxed": soft_labels(*given, reg=1.0, precision=1.0),
    }
    found = result["train"]["label_accuracy"]
    assert found == {
        name: pytest.approx(100 * accuracy(labels, task.hidden), abs=1e-3)
        for name, labels in expected.items()
    }
    assert len(set(found.values())) == 4


def spy_on_states(monkeypatch, look) -> list:
    """What `look` returns for the state of every epoch that made labels."""
    seen = []
    evaluate = runs.evaluate_epoch

    def spy(state, *rest):
        if state.log_probs is not None:
            seen.append(look(state))
        return evaluate(state, *rest)

    monkeypatch.setattr(runs, "evaluate_epoch", spy)
    return seen


def test_a_line_has_the_accuracy_of_predictions_labels_and_their_mean(tmp_path, task, teacher, monkeypatch):
    def look(state):
        kinds = {
            "predicted": predict_log_proba(state.learner.classifier, task.bags.x),
            "labels": state.labels.rounds[-1],
            "mean": state.labels.mean,
        }
        return {
            name: pytest.approx(100 * accuracy(each, task.hidden), abs=1e-3) for name, each in kinds.items()
        }

    seen = spy_on_states(monkeypatch, look)
    recipe = replace(TINY, second=SecondStage(epochs=3, warmup_epochs=2))
    log = run_all(recipe, tmp_path, teacher)
    assert "label_accuracy" not in log[0]
    found = [{name: line["label_accuracy"][name] for name in seen[0]} for line in log[1:]]
    assert found == seen
    assert len(set(found[-1].values())) == 3
    for line in log[1:]:  # hard labels meet the proportions exactly
        assert line["label_gap"] == pytest.approx(0.0, abs=1e-6)
        assert "plan_error" not in line


MOVING_AVERAGE = replace(TINY, second=SecondStage(epochs=9, warmup_epochs=2, ema=0.9, memory=2, mixup=1.0))


@pytest.mark.parametrize("labels", PSEUDO_LABELS)
def test_figure_3_is_made_of_the_predictions_of_each_epoch_whatever_the_student_learns(
    tmp_path, task, teacher, monkeypatch, labels
):
    """TD, TD_OT and TD_OT_5: without transport, with transport, and the mean of the last five."""
    predictions = spy_on_states(
        monkeypatch, lambda state: predict_log_proba(state.learner.classifier, task.bags.x)
    )
    recipe = replace(MOVING_AVERAGE, second=replace(MOVING_AVERAGE.second, labels=labels))
    found = [line["label_accuracy"] for line in run_all(recipe, tmp_path, teacher)[1:]]
    assert len(found) == len(predictions) == 8
    rounds = [hard_labels(each, task.bags.sizes, task.bags.proportions) for each in predictions]
    means = [torch.stack(rounds[max(0, i - 4) : i + 1]).mean(0) for i in range(8)]
    for name, kinds in (("predicted", predictions), ("fresh_labels", rounds), ("fresh_mean", means)):
        right = [100 * accuracy(each, task.hidden) for each in kinds]
        assert [each[name] for each in found] == pytest.approx(right, abs=1e-3)
    names = ["predicted", "fresh_labels", "fresh_mean", *(["labels"] if labels == "hard" else [])]
    assert len({found[-2][name] for name in names}) == len(names)  # in the last epoch there is no average


def test_a_student_that_learns_labels_of_each_epochs_predictions_costs_no_second_transport(
    tmp_path, teacher, monkeypatch
):
    calls = []
    monkeypatch.setattr(runs, "hard_labels", lambda *given: calls.append(1) or hard_labels(*given))
    for name, ema, expected in (("without", 0.0, 1), ("with", 0.5, 5)):  # one of them is for the result
        recipe = replace(TINY, second=SecondStage(epochs=4, warmup_epochs=1, ema=ema))
        log = run_all(recipe, tmp_path / name, teacher)
        assert len(calls) == expected
        same = [line["label_accuracy"]["fresh_labels"] == line["label_accuracy"]["labels"] for line in log]
        assert all(same) == (ema == 0)
        calls.clear()


@pytest.mark.parametrize(
    "change",
    [
        lambda rounds: None,
        lambda rounds: [rounds[0].float()],
        lambda rounds: [rounds[0][:-1]],
        lambda rounds: [rounds[0] + 10],
        lambda rounds: [rounds[0] - 10],
    ],
)
def test_a_checkpoint_with_rounds_of_other_data_is_refused(tmp_path, teacher, change):
    run_until(MOVING_AVERAGE, tmp_path, 4, teacher)
    state = read_checkpoint(tmp_path)
    folders.write_checkpoint(tmp_path, state | {"fresh_labels": change(state["fresh_labels"])})
    with pytest.raises(RunError, match="checkpoint"):
        run_all(MOVING_AVERAGE, tmp_path, teacher)
    folders.write_checkpoint(tmp_path, state)
    assert len(run_all(MOVING_AVERAGE, tmp_path, teacher)) == 5


@pytest.mark.parametrize("precision", [None, 1.0])
def test_soft_labels_log_how_far_their_plans_are_from_converged(
    tmp_path, task, teacher, monkeypatch, precision
):
    def look(state):
        given = state.ema, task.bags.sizes, task.bags.proportions
        return float(entropic_plan(*given, reg=0.1, precision=precision or math.inf).error.max())

    seen = spy_on_states(monkeypatch, look)
    log = run_all(replace(SOFT, second=replace(SOFT.second, precision=precision)), tmp_path / "good", teacher)
    assert [line["plan_error"] for line in log[1:]] == seen
    assert all(0 < error < 1e-6 for error in seen)
    monkeypatch.setattr("apportion.pseudo_labels.entropic_plan", partial(entropic_plan, max_iterations=1))
    log = run_all(SOFT, tmp_path / "bad", teacher)
    assert log[-1]["plan_error"] > 1e-4


def test_rot_logs_the_largest_error_of_its_batches(tmp_path, monkeypatch):
    errors = []
    plain = SoftLabels.__call__

    def call(self, log_probs, sizes, proportions):
        errors.append(float(entropic_plan(log_probs, sizes, proportions, reg=1.0, precision=1.0).error.max()))
        return plain(self, log_probs, sizes, proportions)

    monkeypatch.setattr(SoftLabels, "__call__", call)
    log = run_all(replace(TINY, first=FirstStage("rot", epochs=2)), tmp_path)
    half = len(errors) // 2
    assert half > 2
    assert [line["plan_error"] for line in log] == [max(errors[:half]), max(errors[half:])]


def test_where_names_version_sources_and_device(tmp_path):
    where = describe_where(CPU, exact=True)
    assert where["sources"] == source_checksum()
    assert where["torch"] == torch.__version__
    assert where["exact"] is True
    run_all(replace(TINY, first=FirstStage(epochs=1)), tmp_path)
    assert read_where(tmp_path)["processes"] == 1


# --- data in bags


def test_bags_depend_on_data_size_and_seed_only():
    base = RECIPES["digits/dllp/16"]
    source = load_run_data(base, CPU).bags.source
    others = [
        RECIPES["digits/llp_gan+plot/16"],
        RECIPES["digits/rot/16"],
        replace(base, network=Network("mlp", {"widths": (8,)}), batch_size=8),
    ]
    assert all(torch.equal(load_run_data(other, CPU).bags.source, source) for other in others)
    assert not torch.equal(load_run_data(replace(base, seed=2), CPU).bags.source, source)


def test_validation_bags_are_not_trained_on(tmp_path):
    recipe = replace(TINY, data=replace(TINY.data, validation_fraction=0.25))
    task = load_run_data(recipe, CPU)
    assert not set(task.validation.source.tolist()) & set(task.bags.source.tolist())
    assert len(task.validation.source) + len(task.bags.source) == len(task.data.x)
    assert torch.equal(task.hidden, task.data.y[task.bags.source])
    log = run_all(recipe, tmp_path)
    chosen = min(log, key=lambda line: line["validation_error"])
    assert read_result(tmp_path)["test_accuracy"]["validation"] == chosen["test_accuracy"]


@pytest.mark.parametrize("bagging", ["dirichlet", "cluster", "kmeans"])
def test_other_baggings_run(tmp_path, bagging):
    recipe = replace(TINY, data=replace(TINY.data, bagging=bagging), first=FirstStage(epochs=1))
    assert len(run_all(recipe, tmp_path)) == 1


# --- finished runs and first stages


def test_a_finished_run_is_skipped_and_not_run_over(smoke):
    name = "smoke/dllp+plot-hard/50"
    folder = smoke / name / "seed=0"
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}
    assert list(run_with_teacher(SMOKE[name], smoke, name, device="cpu")) == [(folder, 3, None)]
    with pytest.raises(RunError):
        next(run(SMOKE["smoke/dllp/50"], smoke / "smoke/dllp/50/seed=0"))
    with pytest.raises(RunError, match=r"first\.epochs"):
        run_named(change_recipe(SMOKE[name], {"first.epochs": "9"}), smoke, name)
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()} == before


def test_a_first_stage_is_trained_once_and_reused(tmp_path):
    used = []
    for name in ("g/dllp+plot/64", "g/dllp+soft/64", "h/dllp+plot/64"):
        for folder, _, _ in run_with_teacher(TINY_SECOND, tmp_path, name, device="cpu"):
            used.append(str(folder.relative_to(tmp_path).parent))
    expected = ["g/dllp/64", "g/dllp+plot/64", "g/dllp+soft/64", "h/dllp+plot/64"]
    assert used == [name for name in expected for _ in range(4)]
    assert find_run(tmp_path, TINY, ["log_probs.npy"]) == tmp_path / "g/dllp/64/seed=1"
    assert find_run(tmp_path, replace(TINY, first=FirstStage(epochs=5)), ["log_probs.npy"]) is None
    assert find_run(tmp_path, replace(TINY, seed=2), ["log_probs.npy"]) is None


def test_every_named_second_stage_finds_its_first_by_name():
    """Under another group's name if it has none of its own: first stages of tables are trained once."""
    others = {}
    for name, recipe in RECIPES.items():
        if recipe.second is not None:
            found = first_stage_name(name, replace(recipe, seed=7))
            assert RECIPES[found] == replace(recipe, second=None), name
            if found.split("/")[0] != name.split("/")[0]:
                others.setdefault(found.split("/")[0], set()).add(name.split("/")[0])
    assert others["table1"] == {"table1-mixup", "table3", "figure4", "studies"}
    assert others["table2"] == {"table2-mixup", "figure4-cifar100"}
    assert (
        first_stage_name("table1/supervised+plot/1", RECIPES["table1/supervised+plot/1"])
        == "table1/supervised/1"
    )


def test_a_shared_first_stage_is_found_or_trained_under_its_own_name(tmp_path, monkeypatch):
    for mixup, group in ((0.0, "table"), (1.0, "table-mixup")):
        second = replace(TINY_SECOND.second, mixup=mixup)
        monkeypatch.setitem(RECIPES, f"{group}/dllp+plot/64", replace(TINY_SECOND, second=second))
    monkeypatch.setitem(RECIPES, "table/dllp/64", TINY)
    used = []
    for name in ("table-mixup/dllp+plot/64", "table/dllp+plot/64", "table,second.mixup=0.4/dllp+plot/64"):
        recipe = replace(RECIPES.get(name, TINY_SECOND), seed=2)
        for folder, _, _ in run_with_teacher(recipe, tmp_path, name, device="cpu"):
            used.append(folder.relative_to(tmp_path).as_posix())
    assert list(dict.fromkeys(used)) == [
        "table/dllp/64/seed=2",
        "table-mixup/dllp+plot/64/seed=2",
        "table/dllp+plot/64/seed=2",
        "table,second.mixup=0.4/dllp+plot/64/seed=2",
    ]
    # where no first stage can be reused, a changed recipe keeps its own out of the named group
    assert first_stage_name("table,x=1/dllp+plot/64", TINY_SECOND) == "table,x=1/dllp/64"


def test_an_unfinished_first_stage_is_finished_first(tmp_path):
    run_until(TINY, tmp_path / "g/dllp/64/seed=1", 1)
    lines = run_with_teacher(TINY_SECOND, tmp_path, "g/dllp+plot/64", device="cpu")
    assert [line["stage"] for _, _, line in lines] == ["first"] * 3 + ["second"] * 4


@pytest.mark.parametrize(("student", "missing"), [("new", "log_probs.npy"), ("teacher", "model.safetensors")])
def test_a_first_stage_that_cannot_teach_is_trained_again_next_to_it(tmp_path, student, missing):
    kept = run_named(TINY, tmp_path, "g/dllp/64")
    (kept / missing).unlink()
    before = {path.name: path.read_bytes() for path in kept.iterdir()}
    recipe = replace(TINY, second=SecondStage(epochs=1, student=student))
    with pytest.warns(ApportionWarning, match=missing):
        lines = list(run_with_teacher(recipe, tmp_path, "g/dllp+plot/64", device="cpu"))
    assert [folder.name for folder, *_ in lines] == ["again-seed=1"] * 4 + ["seed=1"]
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before
    assert len(collect(tmp_path)["g/dllp/64"].folders) == 1
    lines = run_with_teacher(recipe, tmp_path, "g/dllp+other/64", device="cpu")
    assert [folder.name for folder, *_ in lines] == ["seed=1"]
    # reports say that this student had another teacher than the one they count
    assert read_where(tmp_path / "g/dllp+plot/64/seed=1")["teacher"]["run"] == "again-seed=1"
    assert provenance_marks(collect(tmp_path), "g")["g/dllp+plot/64"] == "§"
    # a later session, in which the repeated run was kept without its predictions, too
    (kept.with_name("again-seed=1") / missing).unlink()
    with pytest.warns(ApportionWarning, match=missing):
        lines = list(run_with_teacher(recipe, tmp_path, "g/dllp+third/64", device="cpu"))
    assert [folder.name for folder, *_ in lines] == ["again2-seed=1"] * 4 + ["seed=1"]


def changed_data(data: Instances) -> Instances:
    x = data.x.clone()
    x[0, 0] += 1e-3
    return replace(data, x=x)


def test_a_first_stage_of_other_data_bags_recipe_or_network_does_not_teach(tmp_path, teacher, monkeypatch):
    digits = SYNTHETIC["digits"]
    with monkeypatch.context() as patch:
        patch.setitem(SYNTHETIC, "digits", lambda seed: changed_data(digits(seed)))
        with pytest.raises(RunError):
            run_all(TINY_SECOND, tmp_path / "run", teacher)
    with monkeypatch.context() as patch:
        patch.setitem(BAG_KINDS, "random", lambda x, y, size, generator: np.arange(len(x)) // size)
        with pytest.raises(RunError):
            run_all(TINY_SECOND, tmp_path / "run", teacher)
    with pytest.raises(RunError):
        run_all(TINY_SECOND, tmp_path / "run")  # no teacher at all
    assert not (tmp_path / "run").exists()
    old = tmp_path / "old"
    shutil.copytree(teacher, old)
    (old / "where.json").write_text("{}")  # without a checksum of its data
    halved = replace(TINY_SECOND, data=replace(TINY.data, validation_fraction=0.5))
    with pytest.raises(RunError):
        run_all(halved, tmp_path / "halved", old)
    other = replace(TINY, network=Network("mlp", {"widths": (8,)}), second=SecondStage(student="teacher"))
    with pytest.raises(RunError):
        run_all(other, tmp_path / "network", teacher)
    root = tmp_path / "root"
    run_named(replace(TINY, first=FirstStage(epochs=1)), root, "g/dllp/64")
    with pytest.raises(RunError, match=r"first\.epochs: 1"):
        run_named(TINY_SECOND, root, "g/dllp+plot/64")


@pytest.mark.parametrize(("student", "same"), [("teacher", True), ("new", False)])
def test_a_student_starts_from_the_teachers_weights_or_from_its_own(tmp_path, teacher, student, same):
    second = SecondStage(epochs=1, student=student, learning_rate=0.0)
    run_all(replace(TINY, second=second), tmp_path, teacher)
    assert same_bits(read_weights(tmp_path).values(), read_weights(teacher).values()) == same


# --- refused before anything is read or written


def test_a_bad_recipe_is_refused_before_data_is_read_or_a_folder_made(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "load_run_data", lambda *_: pytest.fail("data was read"))
    for settings in ({"first.method": "x"}, {"first.epochs": "0"}, {"first.options.x": "1"}):
        with pytest.raises(SettingsError):
            run_all(change_recipe(TINY, settings), tmp_path / "run")
    monkeypatch.undo()
    with pytest.raises(SettingsError, match="validation_fraction"):
        run_all(replace(TINY, data=replace(TINY.data, validation_fraction=0.99)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_settings_that_need_one_process_are_refused_with_several(tmp_path, monkeypatch):
    group = SimpleNamespace(size=2, rank=0)
    monkeypatch.setattr(runs, "process_group", lambda place: group)
    for settings in ({"first.clip": "1.0"}, {"first.batches": "row"}):
        with pytest.raises(RunError, match=next(iter(settings)).replace(".", r"\.")):
            run_all(change_recipe(TINY, settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# --- what reaches the stages, and torch's global settings


def test_every_setting_of_a_second_stage_reaches_it(tmp_path, teacher, monkeypatch):
    given = {}

    def spy(*_, **settings):
        given.update(settings)
        return iter(())

    monkeypatch.setattr(runs.pipeline, "second_stage", spy)
    second = SecondStage(
        epochs=9,
        memory=3,
        ema=0.25,
        warmup_epochs=7,
        mixup=0.5,
        stop=0.1,
        schedule="cosine",
        loss="sce",
        beta=0.5,
    )
    with pytest.raises(RunError):  # no epoch was trained
        run_all(replace(TINY, second=second), tmp_path, teacher)
    names = (
        "epochs",
        "memory",
        "ema",
        "warmup_epochs",
        "mixup",
        "stop",
        "seed",
        "batch_size",
        "by",
        "weights",
    )
    assert [given[name] for name in names] == [9, 3, 0.25, 7, 0.5, 0.1, 1, 256, "bag", None]
    assert given["schedule"](0.25) == pytest.approx(0.5 + 0.5 * math.cos(math.pi / 4))
    assert given["loss"].keywords["beta"] == 0.5


@pytest.mark.parametrize("method", ["dllp", "two_views"])
def test_both_stages_learn_from_batches_of_rows_of_all_bags(tmp_path, monkeypatch, method):
    augment = "weak+strong" if method == "two_views" else "none"
    recipe = replace(
        TINY,
        data=Data("digits", 400),
        first=FirstStage(method, epochs=2, batches="row"),
        second=SecondStage(epochs=1, warmup_epochs=1, weighting="bag", augment="none"),
        augment=augment,
    )
    seen = []
    losses = PLOT.losses

    def spy(self, batch, progress):
        seen.append((batch.row, self.weights))
        return losses(self, batch, progress)

    monkeypatch.setattr(PLOT, "losses", spy)
    lines = list(run_with_teacher(recipe, tmp_path, f"digits/{method}+plot/400", device="cpu"))
    assert [line["stage"] for _, _, line in lines] == ["first", "first", "second"]
    bags = load_run_data(recipe, CPU).bags
    rows = torch.cat([row for row, _ in seen])
    assert torch.equal(rows.sort().values, torch.arange(len(bags.x)))  # every row once per epoch
    assert torch.equal(seen[0][1], bag_weights(bags.sizes, len(bags.x)))


def test_optimizers_and_networks_follow_the_recipe():
    first = FirstStage(
        optimizer="sgd", learning_rate=0.5, weight_decay=0.1, momentum=0.7, generator_learning_rate=0.25
    )
    networks = [
        runs.build_network(Network("mlp", {"widths": (5,), "dropout": 0.25}), (3,), 4) for _ in range(2)
    ]
    assert {m.p for m in networks[0].modules() if isinstance(m, torch.nn.Dropout)} == {0.25}
    own, other = runs.build_optimizers(networks, first)
    assert isinstance(own, torch.optim.SGD)
    assert {group["peak_lr"] for group in own.param_groups} == {0.5}
    assert own.param_groups[0]["weight_decay"] == 0.1
    assert isinstance(other, torch.optim.Adam)
    assert {(group["peak_lr"], group["betas"]) for group in other.param_groups} == {(0.25, (0.5, 0.999))}
    schedule = runs.build_schedule(FirstStage(epochs=400, schedule="halving"))
    assert [schedule(progress) for progress in (0.0, 0.25, 0.5, 0.75)] == [1.0, 0.5, 0.25, 0.125]


def test_exact_runs_are_the_same_to_the_bit_and_say_so(tmp_path, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    recipe = replace(TINY, first=FirstStage("llp_gan", epochs=2))
    for name in ("one", "other"):
        run_all(recipe, tmp_path / name, exact=True)
    assert same_run(tmp_path / "one", tmp_path / "other")
    assert read_where(tmp_path / "one")["exact"] is True


@pytest.mark.parametrize("exact", [True, False])
def test_torchs_settings_are_restored_when_a_run_ends_or_is_left(tmp_path, monkeypatch, exact):
    def flags() -> tuple[bool, bool]:
        return torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark

    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = flags()
    torch.use_deterministic_algorithms(not exact)
    torch.backends.cudnn.benchmark = exact
    try:
        run_all(TINY, tmp_path / "whole", exact=exact)
        assert flags() == (not exact, exact)
        part = run(TINY, tmp_path / "part", device="cpu", exact=exact)
        next(part)
        assert flags() == (exact, not exact)
        part.close()
        assert flags() == (not exact, exact)
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]


# --- resuming to the same bits


def without_seconds(value):
    if isinstance(value, dict):
        return {name: without_seconds(part) for name, part in value.items() if name != "seconds"}
    return value


def sample_bits(folder: Path) -> str:
    """A checksum of the sample without its times."""
    sample = read_sample(folder)
    sample.info |= {"seconds": {}, "timed": {}}
    return hashlib.sha256(sample.to_bytes()).hexdigest()


def same_run(one: Path, other: Path) -> bool:
    """Whether two finished runs are the same to the bit, except for times."""
    logs = [[without_seconds(line) for line in read_log(folder)] for folder in (one, other)]
    results = [without_seconds(read_result(folder)) for folder in (one, other)]
    return (
        logs[0] == logs[1]
        and results[0] == results[1]
        and same_bits(read_weights(one).values(), read_weights(other).values())
        and torch.equal(read_log_probs(one), read_log_probs(other))
        and sample_bits(one) == sample_bits(other)
    )


STAGES = {
    "first": TINY,
    "gan": replace(TINY, first=FirstStage("llp_gan", epochs=4)),
    "second": TINY_SECOND,
    "moving average": MOVING_AVERAGE,
    "algorithm 2": replace(TINY, second=SecondStage(epochs=9, warmup_epochs=1, labels="soft", stop=0.0065)),
}


@pytest.mark.parametrize("name", STAGES)
def test_an_interrupted_run_ends_as_one_that_was_not(tmp_path, teacher, monkeypatch, name):
    recipe = STAGES[name]
    own_teacher = teacher if recipe.second else None
    whole = tmp_path / "whole"
    n_epochs = len(run_all(recipe, whole, own_teacher))
    if name == "algorithm 2":
        assert 2 < n_epochs < 9  # it stops by itself
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", -1.0)
    for interruptions in ((1,), (3,), (2, 1), (n_epochs - 1,), (n_epochs,)):
        parts = tmp_path / str(interruptions)
        for epochs in interruptions:
            if not is_finished(parts):
                run_until(recipe, parts, epochs, own_teacher)
        if not is_finished(parts):
            run_all(recipe, parts, own_teacher)
        assert same_run(whole, parts), interruptions


def test_a_run_left_between_checkpoints_saves_its_last_epoch(tmp_path, monkeypatch):
    run_until(TINY, tmp_path, 2)
    assert read_checkpoint(tmp_path)["epoch"] == 2
    assert [line["epoch"] for line in run_all(TINY, tmp_path)] == [3, 4]
    assert len(read_log(tmp_path)) == 4


def test_checkpoints_are_written_by_the_clock(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(folders, "write_checkpoint", lambda folder, state: written.append(state["epoch"]))
    run_all(TINY, tmp_path / "a")
    assert written == []
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", -1.0)
    run_all(TINY, tmp_path / "b")
    assert written == [1, 2, 3]


def test_a_run_without_a_checkpoint_starts_again(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "write_checkpoint", lambda *_: None)
    run_until(TINY, tmp_path, 1)
    with pytest.warns(ApportionWarning, match="the log of 1 epochs, but no checkpoint"):
        assert [line["epoch"] for line in run_all(TINY, tmp_path)] == [1, 2, 3, 4]
    assert len(read_log(tmp_path)) == 4


def test_a_run_stopped_within_an_epoch_resumes_from_the_one_before(tmp_path):
    """The weights at that moment are half an epoch further than those that are saved."""
    recipe = replace(TINY, first=FirstStage(epochs=5))
    run_all(recipe, tmp_path / "whole")
    steps = []

    def interrupt(*_: object) -> None:
        steps.append(None)
        if len(steps) == 15:  # there are six per epoch
            raise KeyboardInterrupt

    hook = register_optimizer_step_pre_hook(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_all(recipe, tmp_path / "cut")
    finally:
        hook.remove()
    assert read_checkpoint(tmp_path / "cut")["epoch"] == 2
    assert [line["epoch"] for line in run_all(recipe, tmp_path / "cut")] == [3, 4, 5]
    assert same_run(tmp_path / "whole", tmp_path / "cut")


def test_a_diverging_run_keeps_its_last_good_epoch(tmp_path, monkeypatch):
    evaluate = runs.evaluate_epoch
    epochs = []

    def poison(state, *rest):
        line = evaluate(state, *rest)
        epochs.append(state.epoch.number)
        if len(epochs) == 2:  # the third epoch starts from this
            next(state.learner.classifier.parameters()).data.fill_(math.nan)
        return line

    monkeypatch.setattr(runs, "evaluate_epoch", poison)
    with pytest.raises(TrainingError, match="epoch 3"):
        run_all(TINY, tmp_path)
    assert read_checkpoint(tmp_path)["epoch"] == 2
    assert len(read_log(tmp_path)) == 2


def test_other_data_under_the_same_name_is_refused_on_resuming(tmp_path, monkeypatch):
    run_until(TINY, tmp_path, 1)
    digits = SYNTHETIC["digits"]
    monkeypatch.setitem(SYNTHETIC, "digits", lambda seed: changed_data(digits(seed)))
    with pytest.raises(RunError, match="  data: "):
        run_all(TINY, tmp_path)
    assert len(run_all(TINY, tmp_path, force=True)) == 3
    assert "data" in read_where(tmp_path)["resumed"][-1]["forced"][0]


KILL = Path(__file__).parents[1] / "benchmarks/kill.py"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="trainings are forked")
@pytest.mark.parametrize("how", [("moments", "--times", "2", "--epochs", "3"), ("writes", "--step", "13")])
def test_a_killed_training_resumes_to_the_same_bits(how):
    done = subprocess.run([sys.executable, KILL, *how], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("all the same\n")


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=1m", "small", folder]
    if mount is None or subprocess.run(command, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("only root can mount a small tmpfs")
    try:
        yield folder
    finally:
        subprocess.run([shutil.which("umount") or "umount", folder], check=True)


def test_a_full_disk_stops_a_run_and_leaves_its_last_checkpoint(small_disk, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", -1.0)
    run_all(TINY, tmp_path / "whole")
    folder = small_disk / "run"
    filler = small_disk / "filler"
    lines = run(TINY, folder, device="cpu")
    next(lines)
    next(lines)
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    with pytest.raises(RunError, match="the disk is full"):
        list(lines)
    assert read_checkpoint(folder)["epoch"] == 2
    assert not list(folder.glob("*partial*"))
    filler.unlink()
    assert [line["epoch"] for line in run_all(TINY, folder)] == [3, 4]
    assert same_run(tmp_path / "whole", folder)


# --- samples


def test_a_sample_shows_labels_that_meet_the_known_proportions(smoke):
    recipe = SMOKE["smoke/dllp+plot-hard/50"]
    task = load_run_data(recipe, CPU)
    sample = read_sample(smoke / "smoke/dllp+plot-hard/50/seed=0")
    assert sample.shown.tolist() == sample.size.tolist() == [50] * 12
    assert task.data.y[sample.source].tolist() == sample.truth.tolist()
    assert sample.epoch.tolist() == [1, 2, 3]
    for labels in sample.labels:
        shares = 100 * labels.reshape(12, 50).mean(1)
        np.testing.assert_allclose(np.stack([100 - shares, shares], 1), sample.known, atol=0.01)
    first = read_sample(smoke / "smoke/rot/50/seed=0")  # bags are the same in every run of a seed
    assert np.array_equal(first.source, sample.source)
    assert first.labels is None
    assert set(sample.info["timed"]) == {"share", "predict", "augment"}


def test_the_last_epoch_of_a_sample_is_what_the_network_predicts(smoke):
    name = "smoke/rot/50"
    folder = smoke / name / "seed=0"
    task = load_run_data(SMOKE[name], CPU)
    sample = read_sample(folder)
    batch = task.bags.take(samples.choose_bags(task.bags.sizes, 0))
    log_probs = read_log_probs(folder)[batch.row].view(12, 50, 2)
    shares = 100 * log_probs.exp().mean(1)
    np.testing.assert_allclose(sample.predicted_share[-1], shares, atol=1)
    assert (sample.predicted[-1] == log_probs.argmax(2).flatten().numpy()).mean() > 0.99  # half precision
    network = runs.build_network(SMOKE[name].network, (2,), 2)
    network.load_state_dict(read_weights(folder))
    with torch.no_grad():
        points = network(samples.grid_points(sample.info["low"], sample.info["high"])).softmax(1)
    np.testing.assert_allclose(sample.regions[-1].ravel(), 100 * points[:, 1], atol=0.51)


@pytest.mark.parametrize("epochs", [1, 2, 19, 20, 21, 100, 1000])
def test_epochs_of_a_sample_are_spread_from_the_first_to_the_last(epochs):
    kept = sorted(samples.spread_epochs(epochs))
    assert len(kept) == min(epochs, 20)
    assert (kept[0], kept[-1]) == (1, epochs)
    gaps = np.diff(kept)
    assert not len(gaps) or gaps.max() - gaps.min() <= 1


def test_the_last_epoch_of_a_run_that_stops_early_is_in_its_sample(tmp_path, teacher):
    recipe = replace(TINY, second=SecondStage(epochs=100, warmup_epochs=3, stop=1e9))
    run_all(recipe, tmp_path, teacher)
    assert read_sample(tmp_path).epoch.tolist() == [1, 3]


def test_a_sample_of_large_bags_and_many_classes_stays_small(tmp_path):
    k, size = 100, 3000
    generator = stream(0, "large")
    x = torch.randn(12_000, 1, generator=generator)
    y = torch.randint(0, k, (12_000,), generator=generator)
    names = tuple(f"class {i}" for i in range(k))
    data = Instances("random", x, y, x[:200], y[:200], names)
    bags, hidden = make_bags(x, y, size, k, stream(0, "bags"))
    task = tasks.RunData(data, bags, hidden, None, lambda x: x, lambda x: x, CPU)
    recipe = Recipe(second=SecondStage(epochs=100), batch_size=1024)
    writer = samples.SampleWriter(tmp_path, recipe, task)
    network = torch.nn.Linear(1, k)
    for number in range(1, 101):
        log_probs = torch.randn(len(x), k, generator=generator).log_softmax(1)
        labels = SimpleNamespace(rounds=[log_probs.exp()])
        state = SimpleNamespace(
            epoch=SimpleNamespace(number=number),
            last=number == 100,
            log_probs=log_probs,
            labels=labels,
            learner=SimpleNamespace(classifier=network),
        )
        if number in samples.spread_epochs(100):
            writer.add(state)
    writer.finish(state, log_probs[:200], {"train": 1.0, "label": 1.0, "evaluate": 1.0})
    sample = read_sample(tmp_path)
    assert (len(sample.size), len(sample.epoch), sample.shown.tolist()) == (1, 20, [64])
    assert sample.bag_classes.shape == (1, 10)
    assert (np.diff(sample.known) <= 0).all()  # the largest first
    assert (tmp_path / "sample.npz").stat().st_size < 20_000


@pytest.mark.parametrize(
    "change",
    [
        {"shown": np.array([10**9])},
        {"shown": np.array([-1] * 12)},
        {"source": np.array([10**6] * 192)},
        {"truth": np.full(192, 200, np.uint8)},
        {"predicted": np.zeros((3, 7), np.uint8)},
        {"known": np.full((12, 2), np.nan)},
        {"bag_classes": np.full((12, 2), 9)},
        {"regions": np.zeros((3, 2, 2), np.uint8)},
        {"calibration": np.zeros((10, 2))},
        {"extra": np.zeros(3)},
        {"info": np.frombuffer(b'{"classes": 1}', np.uint8)},
        {"info": np.zeros(0, np.uint8)},
        {"epoch": np.zeros((2, 2), np.int32)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_sample_that_no_run_writes_is_refused(tmp_path, smoke, change):
    with np.load(smoke / "smoke/rot/50/seed=0/sample.npz") as file:
        arrays = dict(file)
    np.savez_compressed(tmp_path / "sample.npz", **(arrays | change))
    with pytest.raises(RunError):
        read_sample(tmp_path)


# --- honesty


@pytest.mark.parametrize("name", [*ONE_VIEW, *PSEUDO_LABELS])
def test_hidden_labels_reach_the_numbers_of_a_run_but_not_its_weights(tmp_path, teacher, monkeypatch, name):
    def make_wrong_bags(*given, **named):
        bags, hidden = make_bags(*given, **named)
        return bags, (hidden + 1) % 10

    own_teacher = None
    recipe = replace(TINY, first=FirstStage(name, epochs=2)) if name in ONE_VIEW else TINY
    if name in PSEUDO_LABELS:
        recipe = replace(TINY, second=SecondStage(epochs=2, warmup_epochs=1, labels=name, mixup=1.0))
        own_teacher = teacher
    true, false = tmp_path / "true", tmp_path / "false"
    run_all(recipe, true, own_teacher)
    monkeypatch.setattr(tasks, "make_bags", make_wrong_bags)
    run_all(recipe, false, own_teacher)
    assert same_bits(read_weights(true).values(), read_weights(false).values())
    assert torch.equal(read_log_probs(true), read_log_probs(false))
    assert [line["terms"] for line in read_log(true)] == [line["terms"] for line in read_log(false)]
    assert read_result(true)["train"]["errors"] != read_result(false)["train"]["errors"]


# --- accuracy


def accuracies(
    root: Path, names: list[str], seeds: range, change=lambda recipe: recipe
) -> dict[str, list[float]]:
    """Test accuracy of the last epoch in percent, by recipe and seed."""
    found = {}
    for name in names:
        recipes = [change(replace(RECIPES[name], seed=seed)) for seed in seeds]
        results = [read_result(run_named(recipe, root, name)) for recipe in recipes]
        found[name] = [result["test_accuracy"]["last"] for result in results]
    return found


MOONS = [f"figure2/{method}{plot}/50" for method in ("dllp", "llp_gan") for plot in ("", "+plot")]
DIGITS = [
    f"digits/{method}{plot}/16" for method in ("dllp", "llp_vat", "llp_gan", "rot") for plot in ("", "+plot")
]


def test_two_moons_are_learned_by_both_stages(tmp_path):
    found = accuracies(tmp_path, MOONS[:2], range(1, 2))
    assert found["figure2/dllp+plot/50"][0] >= 99.5
    assert found["figure2/dllp+plot/50"][0] >= found["figure2/dllp/50"][0] - 0.3


def test_digits_are_learned_in_half_of_the_epochs_and_are_not_worse_after_plot(tmp_path):
    def shorten(recipe: Recipe) -> Recipe:
        second = recipe.second and replace(recipe.second, epochs=15)
        return replace(recipe, first=replace(recipe.first, epochs=50), second=second)

    found = accuracies(tmp_path, DIGITS[:2], range(1, 2), shorten)
    assert found["digits/dllp/16"][0] >= 90
    assert found["digits/dllp+plot/16"][0] >= found["digits/dllp/16"][0] - 0.5


@pytest.mark.slow
def test_two_moons_of_five_seeds(tmp_path):
    found = accuracies(tmp_path, MOONS, range(1, 6))
    for method, bar in (("dllp", 99.5), ("llp_gan", 99.0)):
        alone, both = found[f"figure2/{method}/50"], found[f"figure2/{method}+plot/50"]
        assert np.mean(both) >= bar, found
        assert all(b >= a - 0.3 for a, b in zip(alone, both, strict=True)), found


@pytest.mark.slow
def test_digits_of_three_seeds(tmp_path):
    found = accuracies(tmp_path, [*DIGITS, "digits/supervised/1"], range(1, 4))
    assert np.mean(found["digits/supervised/1"]) >= 95
    for name in DIGITS[::2]:
        assert np.mean(found[name]) >= 90, found
        assert np.mean(found[name.replace("/16", "+plot/16")]) >= np.mean(found[name]) - 0.5, found


# --- on a GPU

IMAGES = Recipe(
    data=Data("cifar10", 16),
    network=Network("conv13", {"dropout": 0.2}),
    first=FirstStage(epochs=3),
    batch_size=256,
    augment="crop+flip",
)


@pytest.mark.gpu
def test_exact_runs_on_a_gpu_are_the_same_to_the_bit_interrupted_or_not(tmp_path, monkeypatch):
    generator = stream(0, "images")
    x = torch.randint(0, 256, (1280, 3, 32, 32), generator=generator, dtype=torch.uint8)
    y = torch.randint(0, 10, (1280,), generator=generator)
    names = tuple("0123456789")
    data = Instances("cifar10", x[:1024], y[:1024], x[1024:], y[1024:], names, (0.5,) * 3, (0.25,) * 3)
    monkeypatch.setattr(tasks, "load_dataset", lambda *_: data)
    second = SecondStage(epochs=3, warmup_epochs=1, labels="soft", mixup=1.0)
    for recipe, name in ((IMAGES, "first"), (replace(IMAGES, second=second), "second")):
        own_teacher = None if name == "first" else tmp_path / "first-one"
        for way in ("one", "two", "parts"):
            folder = tmp_path / f"{name}-{way}"
            if way == "parts":
                part = run(recipe, folder, teacher=own_teacher, device="cuda", exact=True)
                next(part)
                part.close()
            list(run(recipe, folder, teacher=own_teacher, device="cuda", exact=True))
        weights = [read_weights(tmp_path / f"{name}-{way}") for way in ("one", "two", "parts")]
        for other in weights[1:]:
            assert same_bits(weights[0].values(), other.values())


def test_the_environment_names_the_commit_only_where_git_does_not(monkeypatch):
    monkeypatch.setattr(provenance, "_git_commit", lambda: "abc+changes")
    monkeypatch.setenv("APPORTION_COMMIT", "abc")
    assert describe_where(CPU, exact=False)["commit"] == "abc+changes"
    monkeypatch.undo()
    monkeypatch.delenv("APPORTION_COMMIT", raising=False)
    monkeypatch.setattr(provenance.shutil, "which", lambda name: None)
    assert describe_where(CPU, exact=False)["commit"] is None
    monkeypatch.setenv("APPORTION_COMMIT", "abc")
    assert describe_where(CPU, exact=False)["commit"] == "abc"


def test_the_checksum_of_sources_follows_what_trains_and_nothing_else(tmp_path):
    def checksum() -> str:
        source_checksum.cache_clear()
        return source_checksum(tmp_path)

    for name in ("losses.py", "cli/app.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("a\n")
    before = checksum()
    (tmp_path / "cli/app.py").write_text("b\n")
    (tmp_path / "losses.py").write_bytes(b"a\r\n")  # as git checks files out on Windows
    assert checksum() == before
    (tmp_path / "losses.py").write_text("b\n")
    assert checksum() != before
    source_checksum.cache_clear()

"""What a run writes down: every column against the labels that it is of."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from apportion._random import stream
from apportion.evaluate import accuracy, predict_log_proba
from apportion.experiment import run as experiment
from apportion.experiment.measure import summary
from apportion.experiment.run import run
from apportion.experiment.task import load_task
from apportion.pseudo_labels import SoftLabels, argmax_labels, hard_labels, soft_labels
from apportion.recipes import Data, First, Network, Recipe, Second
from apportion.transport import entropic_plan

FIRST = Recipe(
    data=Data("digits", 64),
    network=Network("mlp", {"widths": (16,)}),
    first=First(epochs=2),
    batch_size=256,
)
SECOND = replace(FIRST, second=Second(epochs=3, hold=2))
SOFT = replace(FIRST, second=Second(epochs=3, hold=2, labels="soft"))


@pytest.fixture(scope="module")
def task():
    return load_task(FIRST, torch.device("cpu"))


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher")
    list(run(FIRST, folder, device="cpu"))
    return folder


def percent(labels, hidden):
    return pytest.approx(100 * accuracy(labels, hidden), abs=1e-3)


def watched(monkeypatch, look):
    """What `look` says of every epoch_state after a relabeling."""
    seen, plain = [], experiment.evaluated

    def evaluated(epoch_state, *rest):
        if epoch_state.log_probs is not None:
            seen.append(look(epoch_state))
        return plain(epoch_state, *rest)

    monkeypatch.setattr(experiment, "evaluated", evaluated)
    return seen


def test_a_result_has_the_accuracies_of_four_kinds_of_labels_of_the_predictions(task):
    vague = torch.randn(len(task.bags.x), 10, generator=stream(3)) + F.one_hot(task.hidden, 10)
    log_probs, line = vague.log_softmax(1), {"test_accuracy": 1.0, "seconds": {"train": 1.0}}
    got = summary([line], task, log_probs, torch.zeros(len(task.data.test_x), 10))["train"]["label_accuracy"]
    sizes, shares = task.bags.sizes, task.bags.proportions
    expected = {
        "argmax": argmax_labels(log_probs, sizes, shares),
        "exact": hard_labels(log_probs, sizes, shares),
        "entropic_plan": soft_labels(log_probs, sizes, shares, reg=1.0),
        "relaxed": soft_labels(log_probs, sizes, shares, reg=1.0, relax=1.0),
    }
    assert got == {name: percent(labels, task.hidden) for name, labels in expected.items()}
    assert len(set(got.values())) == 4  # on vague predictions they differ


def test_the_epoch_that_held_out_bags_choose_is_counted_from_one(task):
    pairs = ((50.0, 9.0), (60.0, 7.0), (80.0, 8.0))
    log = [{"test_accuracy": a, "held_out_error": e, "seconds": {"train": 1.0}} for a, e in pairs]
    even = torch.zeros(len(task.bags.x), 10).log_softmax(1)
    found = summary(log, task, even, torch.zeros(len(task.data.test_x), 10))["test_accuracy"]
    assert found == {"last": 80.0, "oracle": 80.0, "oracle_epoch": 3, "held_out": 60.0, "held_out_epoch": 2}


def test_a_line_has_the_accuracies_of_predictions_labels_and_their_mean(tmp_path, task, teacher, monkeypatch):
    def look(epoch_state):
        predicted = predict_log_proba(epoch_state.learner.classifier, task.bags.x)
        kinds = {
            "predicted": predicted,
            "labels": epoch_state.labels.rounds[-1],
            "mean": epoch_state.labels.mean,
        }
        return {name: percent(labels, task.hidden) for name, labels in kinds.items()}

    seen = watched(monkeypatch, look)
    log = list(run(SECOND, tmp_path, teacher=teacher, device="cpu"))
    assert "label_accuracy" not in log[0]
    assert [line["label_accuracy"] for line in log[1:]] == seen
    assert len(set(log[-1]["label_accuracy"].values())) == 3


# --- how far plans are from converged


@pytest.mark.parametrize("relax", [None, 1.0])
def test_a_relabeling_with_soft_labels_logs_its_plans_error(tmp_path, task, teacher, monkeypatch, relax):
    def look(epoch_state):
        given = (epoch_state.ema, task.bags.sizes, task.bags.proportions)
        return float(entropic_plan(*given, reg=0.1, precision=relax or math.inf).error.max())

    seen = watched(monkeypatch, look)
    recipe = replace(SOFT, second=replace(SOFT.second, relax=relax))
    log = list(run(recipe, tmp_path, teacher=teacher, device="cpu"))
    assert "plan_error" not in log[0]
    assert [line["plan_error"] for line in log[1:]] == seen
    assert all(0 < error < 1e-6 for error in seen)


def test_rot_logs_the_worst_error_of_its_batches(tmp_path, monkeypatch):
    errors, plain = [], SoftLabels.__call__

    def call(self, log_probs, sizes, proportions):
        errors.append(float(entropic_plan(log_probs, sizes, proportions, reg=1.0, precision=1.0).error.max()))
        return plain(self, log_probs, sizes, proportions)

    monkeypatch.setattr(SoftLabels, "__call__", call)
    log = list(run(replace(FIRST, first=First("rot", epochs=2)), tmp_path, device="cpu"))
    half = len(errors) // 2
    assert half > 2
    assert [line["plan_error"] for line in log] == [max(errors[:half]), max(errors[half:])]


def test_a_plan_that_did_not_converge_is_seen_in_the_log(tmp_path, teacher, monkeypatch):
    monkeypatch.setattr("apportion.pseudo_labels.entropic_plan", partial(entropic_plan, max_iterations=1))
    log = list(run(SOFT, tmp_path, teacher=teacher, device="cpu"))
    assert log[-1]["plan_error"] > 1e-4


def test_stages_without_soft_labels_log_no_plan(tmp_path, teacher):
    for recipe, of in ((FIRST, None), (SECOND, teacher)):
        lines = run(recipe, tmp_path / str(of is None), teacher=of, device="cpu")
        assert all("plan_error" not in line for line in lines)

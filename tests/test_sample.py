"""What a run keeps to be looked at: small, repeatable, resumable, and honest about hidden labels."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import shuffled_inside
from hypothesis import given
from hypothesis import strategies as st

from apportion import runs
from apportion._random import stream
from apportion.bags.simulate import make_bags
from apportion.datasets import Instances
from apportion.evaluate import calibration
from apportion.experiment import run as experiment
from apportion.experiment import sample
from apportion.experiment.run import run
from apportion.experiment.sample import strangers
from apportion.experiment.sample.packing import bits_for, pack, unpack
from apportion.experiment.sample.pieces import grid_points, regions, sparse
from apportion.experiment.task import Task, load_task
from apportion.grid import RECIPES
from apportion.methods.plot import PLOT, LabelHistory
from apportion.pipeline import EpochState
from apportion.recipes import Data, First, Network, Recipe, Second
from apportion.training import Epoch

CPU = torch.device("cpu")
TINY = Recipe(network=Network("mlp", {"widths": (8,)}), first=First(epochs=30))
SECOND = replace(TINY, second=Second(epochs=25, hold=5))
TIMES = ("seconds", "timed")


def finished(recipe, folder, teacher=None):
    for _ in run(recipe, folder, teacher=teacher, device="cpu"):
        pass
    return sample.read(folder)


def untimed(kept):
    return {name: value for name, value in kept.items() if name not in TIMES}


@pytest.fixture(scope="module")
def moons(tmp_path_factory):
    """The samples of both stages on two moons, and their folders."""
    root = tmp_path_factory.mktemp("sample")
    first = finished(TINY, root / "first")
    return root, first, finished(SECOND, root / "second", root / "first")


def random_task(k: int, size: int, n: int = 50_000, test: int = 10_000) -> Task:
    """Instances without meaning in bags of one size: the worst case, since everything differs."""
    generator = stream(0, "task", k, size)
    x, y = torch.zeros(n, 1), torch.randint(k, (n,), generator=generator)
    names = tuple(f"class {i} of many" for i in range(k))
    test_y = torch.randint(k, (test,), generator=generator)
    data = Instances("random", x, y, torch.zeros(test, 1), test_y, names)
    bags, hidden = make_bags(x, y, size, k, generator)
    return Task(data, bags, hidden, None, lambda x: x, lambda x: x, CPU)


def moment_of(task: Task, number: int, classifier: torch.nn.Module) -> EpochState:
    """An epoch of a second stage whose predictions and labels are random."""
    n, k = len(task.bags.x), task.data.n_classes
    generator = stream(number, "epoch_state")
    log_probs = torch.randn(n, k, generator=generator).mul(5).log_softmax(1)
    labels = torch.nn.functional.one_hot(torch.randint(k, (n,), generator=generator), k).float()
    plot = PLOT(classifier, LabelHistory(labels), lambda a, b: a.sum(1))
    return EpochState("second", Epoch(number, 100, {}, 0.0), plot, [], number == 100, log_probs, plot.labels)


# --- packing


@given(st.integers(1, 17).flatmap(lambda b: st.tuples(st.just(b), st.lists(st.integers(0, 2**b - 1)))))
def test_what_is_packed_comes_back(case):
    bits, values = case
    assert unpack(pack(np.array(values, dtype=np.int64), bits), bits, len(values)).tolist() == values


@pytest.mark.parametrize(("n", "bits"), [(1, 1), (2, 1), (3, 2), (10, 4), (16, 4), (17, 5), (100, 7)])
def test_bits_tell_that_many_values_apart(n, bits):
    assert bits_for(n) == bits


# --- size


@pytest.mark.parametrize(("k", "size"), [(2, 128), (10, 16), (10, 128), (12, 128), (100, 16), (100, 128)])
def test_a_sample_of_random_labels_over_all_its_epochs_stays_below_its_limit(tmp_path, k, size):
    task, recipe = random_task(k, size), Recipe(second=Second(epochs=100), batch_size=1024)
    classifier = torch.nn.Linear(1, k)
    sample.begin(tmp_path, recipe, task, 0)
    for number in range(1, 101):
        if number in sample.spread_epochs(100):
            last = moment_of(task, number, classifier)
            sample.add(tmp_path, recipe, task, last)
    test = torch.randn(len(task.data.test_y), k, generator=stream(0, "test")).log_softmax(1)
    sample.finish(tmp_path, recipe, task, last, test, {"train": 100.0, "label": 10.0, "evaluate": 1.0})
    kept = sample.read(tmp_path)
    assert (tmp_path / "sample.json").stat().st_size <= 20_000
    assert [len(kept["epochs"]), len(kept["bags"])] == [20, 12]
    shares = unpack(kept["epochs"][-1]["shares"], 7, sum(len(bag["classes"]) for bag in kept["bags"]))
    assert 0 < shares.sum() <= 12 * 106  # rounded to whole per cents


def test_a_strangers_sample_may_be_as_large_as_our_own_and_no_larger():
    assert sample.BAGS == strangers.BAGS
    assert sample.BITS // bits_for(2) == strangers.SHOWN


def test_what_is_too_large_loses_epochs_but_not_the_last(tmp_path, monkeypatch):
    monkeypatch.setattr(sample, "LIMIT", 6000)
    kept = finished(TINY, tmp_path)
    assert (tmp_path / "sample.json").stat().st_size <= 6000
    assert 1 < len(kept["epochs"]) < 20
    assert kept["epochs"][-1]["epoch"] == 30


@pytest.mark.parametrize(("limit", "before"), [(7000, 22), (5000, 9)])
def test_a_run_killed_between_its_sample_and_its_result_ends_with_the_same_sample(
    tmp_path, monkeypatch, limit, before
):
    monkeypatch.setattr(sample, "LIMIT", limit)
    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", -1.0)
    whole, keep = finished(TINY, tmp_path / "whole"), runs.Keeper.keep
    # the last checkpoint is that of an epoch of some time ago; the kill comes after the sample is finished
    monkeypatch.setattr(
        runs.Keeper, "keep", lambda keeper, state: keep(keeper, state) if state["epoch"] < before else None
    )
    with monkeypatch.context() as killed:
        killed.setattr(runs, "finish", lambda *parts: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            finished(TINY, tmp_path / "killed")
    assert untimed(sample.read(tmp_path / "killed")) == untimed(whole)
    assert untimed(finished(TINY, tmp_path / "killed")) == untimed(whole)
    assert len(whole["epochs"]) == {7000: 5, 5000: 3}[limit]  # every fourth of 20, every eighth


@pytest.mark.parametrize("epochs", [1, 2, 19, 20, 21, 100, 1000])
def test_epochs_are_spread_with_the_first_and_the_last(epochs):
    kept = sorted(sample.spread_epochs(epochs))
    assert len(kept) == min(epochs, 20)
    assert (kept[0], kept[-1]) == (1, epochs)
    gaps = np.diff(kept)
    assert not len(gaps) or gaps.max() - gaps.min() <= 1


# --- content


def test_labels_meet_the_known_shares_and_sources_lead_to_the_instances(moons):
    _, _, kept = moons
    task = load_task(SECOND, CPU)
    n = sum(kept["shown"])
    assert kept["shown"] == [bag["size"] for bag in kept["bags"]] == [50] * 12
    source = unpack(kept["source"], bits_for(kept["instances"]), n)
    assert task.data.y[source].tolist() == unpack(kept["evaluation"]["truth"], 1, n).tolist()
    for line in kept["epochs"]:
        labels = unpack(line["labels"], 1, n).reshape(12, 50)
        shares = 100 * np.stack([1 - labels.mean(1), labels.mean(1)], 1)
        np.testing.assert_allclose(shares, [bag["known"] for bag in kept["bags"]], atol=0.01)


def test_the_last_epoch_is_what_the_finished_network_predicts(moons):
    root, *both = moons
    task = load_task(TINY, CPU)
    for kept, name in zip(both, ("first", "second"), strict=True):
        log_probs = runs.read_log_probs(root / name)
        _, batch, _ = sample.chosen(TINY, task)
        mine = log_probs[batch.row].view(12, 50, 2)
        line = kept["epochs"][-1]
        shares = unpack(line["shares"], 7, 24).reshape(12, 2)
        np.testing.assert_allclose(shares, 100 * mine.exp().mean(1), atol=1)
        predicted = unpack(line["predicted"], 1, 600)
        assert (predicted == mine.argmax(2).flatten().numpy()).mean() > 0.99  # kept in half precision
        network = experiment.build_network(TINY.network, (2,), 2)
        network.load_state_dict(runs.read_weights(root / name))
        with torch.no_grad():
            assert line["grid"] == regions(network(grid_points(kept["grid"])).log_softmax(1))


def test_both_stages_of_a_seed_show_the_same_bags_and_another_seed_shows_others(moons):
    _, first, second = moons
    for name in ("bags", "source", "evaluation"):
        assert {**first, "evaluation": first["evaluation"]["truth"]}[name] == (
            {**second, "evaluation": second["evaluation"]["truth"]}[name]
        )
    task = load_task(TINY, CPU)
    other = replace(TINY, seed=2)
    assert sample.chosen(other, task)[0].tolist() != sample.chosen(TINY, task)[0].tolist()


def test_few_large_bags_are_kept_where_a_dozen_would_cost_too_much():
    task = random_task(2, 3000, n=50_000)
    which, batch, shown = sample.chosen(TINY, task)
    assert (len(which), len(batch.x), int(shown.sum())) == (1, 3000, 112)


def test_where_the_time_went_is_kept(moons):
    for kept in moons[1:]:
        assert set(kept["seconds"]) == {"train", "label", "evaluate"}
        assert set(kept["timed"]) == {"share", "predict", "augment"}


def test_a_confusion_matrix_of_many_classes_keeps_its_diagonal_and_its_largest_others():
    matrix = torch.diag(torch.arange(20)) + 0
    matrix[3, 7], matrix[5, 2] = 4, 9
    kept = sparse(matrix)
    assert kept["pairs"] == [[5, 2, 9], [3, 7, 4]]
    assert kept["right"] == list(range(20))
    assert kept["of"] == matrix.sum(1).tolist()


def test_calibration_counts_each_instance_in_the_bin_of_its_confidence():
    log_probs = torch.tensor([[0.95, 0.05], [0.99, 0.01], [0.45, 0.55], [0.0, 1.0]]).log()
    bins = calibration(log_probs, torch.tensor([0, 1, 1, 1]))
    assert bins[5] == [1, pytest.approx(0.55), 1.0]
    assert bins[9] == [3, pytest.approx((0.95 + 0.99 + 1) / 3, abs=1e-4), pytest.approx(2 / 3, abs=1e-4)]
    assert sum(n for n, _, _ in bins) == 4


# --- resuming, repeating, honesty


@pytest.mark.parametrize("name", ["first", "second"])
def test_a_run_that_was_killed_ends_with_the_sample_of_one_that_was_not(moons, tmp_path, monkeypatch, name):
    root, *both = moons
    recipe, whole = {"first": (TINY, both[0]), "second": (SECOND, both[1])}[name]
    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", -1.0)
    lines = run(recipe, tmp_path, teacher=root / "first", device="cpu")
    for _ in range(12):
        next(lines)
    lines.close()
    kept = sample.read(tmp_path)
    assert kept["epochs"][-1]["epoch"] == 12
    assert untimed(finished(recipe, tmp_path, root / "first")) == untimed(whole)


def test_epochs_after_the_checkpoint_are_cut_off_since_they_will_run_again(moons, tmp_path):
    task, kept = load_task(TINY, CPU), moons[1]
    runs.write(tmp_path / "sample.json", json.dumps(kept))
    sample.begin(tmp_path, TINY, task, 6)
    again = sample.read(tmp_path)
    assert again["epochs"] == [line for line in kept["epochs"] if line["epoch"] <= 6]
    assert {6, 7} <= {line["epoch"] for line in kept["epochs"]}
    assert "seconds" not in again
    sample.begin(tmp_path, replace(TINY, seed=2), load_task(replace(TINY, seed=2), CPU), 8)
    assert sample.read(tmp_path)["epochs"] == []  # of other bags


def test_the_last_epoch_of_a_run_that_stops_early_is_kept(moons, tmp_path):
    recipe = replace(TINY, second=Second(epochs=100, hold=3, stop=1e9))
    kept = finished(recipe, tmp_path, moons[0] / "first")
    assert [line["epoch"] for line in kept["epochs"]] == [1, 3]


def test_a_run_without_a_checkpoint_starts_its_sample_anew(moons, tmp_path):
    lines = run(TINY, tmp_path, device="cpu")
    next(lines)
    lines.close()
    assert untimed(finished(TINY, tmp_path)) == untimed(moons[1])


def test_hidden_and_test_labels_enter_evaluation_only(moons, tmp_path, monkeypatch):
    def shuffled(recipe, device, folder=None):
        task = load_task(recipe, device, folder)
        data = replace(task.data, test_y=1 - task.data.test_y)
        return replace(task, data=data, hidden=shuffled_inside(task.hidden, task.bags.sizes))

    teacher = tmp_path / "first"
    shutil.copytree(moons[0] / "first", teacher)
    (teacher / "where.json").unlink()  # else it would be refused: the sum of its data has the test labels
    monkeypatch.setattr(experiment, "load_task", shuffled)
    kept, honest = finished(SECOND, tmp_path / "second", teacher), moons[2]
    for part in ("truth", "confusion", "calibration"):
        assert kept["evaluation"].pop(part) != honest["evaluation"][part]
    assert untimed(kept) | {"evaluation": {}} == untimed(honest) | {"evaluation": {}}


def test_a_run_of_named_classes_keeps_them(tmp_path):
    recipe = replace(RECIPES["digits/dllp/16"], first=First(epochs=1), data=Data("digits", 16))
    kept = finished(recipe, tmp_path)
    assert kept["classes"] == list("0123456789")
    assert "grid" not in kept
    result = runs.read_result(tmp_path)
    assert kept["evaluation"]["confusion"] == {"full": result["confusion"]}

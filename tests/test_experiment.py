"""Runs from recipes to folders: pinned losses, resuming to the bit, one first stage for many second ones."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ONE_VIEW, same_bits

from apportion import runs
from apportion.bags.simulate import BAG_KINDS, make_bags
from apportion.datasets import SYNTHETIC
from apportion.errors import RunError, SettingsError, TrainingError
from apportion.experiment import run as experiment
from apportion.experiment.run import check_one_process_settings, run
from apportion.experiment.stages import find_run, run_with_teacher
from apportion.experiment.task import load_task
from apportion.grid import RECIPES
from apportion.recipes import Data, First, Network, Recipe, Second, changed
from apportion.recipes.checks import LABELS
from apportion.report.collect import collect
from apportion.runs.checkpoints import unpack

SMOKE = {name: replace(recipe, seed=0) for name, recipe in RECIPES.items() if name.startswith("smoke/")}
TINY = Recipe(
    data=Data("digits", 64),
    network=Network("mlp", {"widths": (16,)}),
    first=First(epochs=4),
    batch_size=256,
)
TINY_SECOND = replace(TINY, second=Second(epochs=4, hold=1, mixup=1.0, running=0.5, weighting="bag"))
CPU = torch.device("cpu")

# The losses of the first three epochs of every smoke recipe at seed 0. Changing one is allowed, and must be
# said in the changelog.
PINNED = {
    "smoke/dllp/50": {"proportion": [0.69322, 0.692245, 0.691647]},
    "smoke/vat/50": {
        "proportion": [0.69322, 0.692245, 0.691648],
        "consistency": [1.53e-07, 1.947e-06, 3.213e-06],
    },
    "smoke/gan/50": {
        "proportion": [0.693019, 0.693751, 0.693678],
        "real": [0.427312, 0.619094, 0.604175],
        "fake": [1.02718, 0.710889, 0.652165],
        "matching": [0.00139576, 0.00392502, 0.0126871],
    },
    "smoke/rot/50": {"proportion": [0.415931, 0.415351, 0.414991], "labels": [0.277083, 0.276406, 0.276044]},
    "smoke/counts/50": {"counts": [0.0637745, 0.0628049, 0.0622124]},
    "smoke/two-views/50": {
        "proportion": [4.88761, 3.49575, 2.10986],
        "labels": [3.13052e-05, 3.14148e-05, 3.19384e-05],
        "contrast": [2.9223, 0.362161],  # none in the second half
    },
    "smoke/dllp+plot-hard/50": {"labels": [0.562493, 0.262306, 0.13815]},
    "smoke/dllp+plot-sce-mixup/50": {"labels": [2.54858, 1.31399, 0.547928]},
    "smoke/dllp+plot-soft/50": {"labels": [0.634032, 0.461343, 0.366544]},
    "smoke/dllp+plot-predicted/50": {"labels": [0.690852, 0.690512, 0.690474]},
}


def done(recipe: Recipe, root: Path, name: str) -> Path:
    """Run a named recipe, and its first stage where that is missing; its folder."""
    for _ in run_with_teacher(recipe, root, name, device="cpu"):
        pass
    return root / name / f"seed={recipe.seed}"


def all_of(recipe: Recipe, folder: Path, teacher: Path | None = None) -> list[dict]:
    return list(run(recipe, folder, teacher=teacher, device="cpu"))


@pytest.fixture(scope="module")
def smoke(tmp_path_factory) -> Path:
    """A folder with all smoke runs at seed 0."""
    root = tmp_path_factory.mktemp("smoke")
    for name, recipe in SMOKE.items():
        done(recipe, root, name)
    return root


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    all_of(TINY, folder)
    return folder


# --- what a run writes


@pytest.mark.parametrize("name", SMOKE)
def test_the_first_losses_of_a_smoke_recipe_are_as_pinned(smoke, name):
    log = runs.read_log(smoke / name / "seed=0")
    losses = {
        term: [line["terms"][term] for line in log if term in line["terms"]] for term in log[0]["terms"]
    }
    assert losses == {
        term: pytest.approx(values, rel=1e-4, abs=1e-7) for term, values in PINNED[name].items()
    }


def test_every_smoke_recipe_is_pinned():
    assert set(PINNED) == set(SMOKE)


@pytest.mark.parametrize("name", SMOKE)
def test_a_finished_run_is_a_folder_with_all_that_was_promised(smoke, name):
    folder = smoke / name / "seed=0"
    there = {path.name for path in folder.iterdir()}
    promised = {"recipe.json", "where.json", "log.jsonl", "result.json", "model.safetensors", "log_probs.npy"}
    assert promised <= there
    assert not there & {"last.safetensors", "last.safetensors.new", "result.json.new", "lock"}
    assert len(runs.read_log(folder)) == 3


def test_a_result_agrees_with_its_log_and_with_its_weights(smoke):
    folder, recipe = smoke / "smoke/dllp+plot-hard/50/seed=0", SMOKE["smoke/dllp+plot-hard/50"]
    log, result = runs.read_log(folder), runs.read_result(folder)
    curve = [line["test_accuracy"] for line in log]
    assert result["test_accuracy"]["last"] == curve[-1]
    assert result["test_accuracy"]["oracle"] == max(curve)
    assert curve[result["test_accuracy"]["oracle_epoch"] - 1] == max(curve)
    task = load_task(recipe, CPU)
    network = experiment.build_network(recipe.network, (2,), 2)
    network.load_state_dict(runs.read_weights(folder))
    right = (network(task.data.test_x).argmax(1) == task.data.test_y).float().mean().item()
    assert result["test_accuracy"]["last"] == pytest.approx(100 * right, abs=1e-3)
    wrong = int((network(task.bags.x).argmax(1) != task.hidden).sum())
    assert result["train"]["errors"] == wrong
    torch.testing.assert_close(
        runs.read_log_probs(folder), network(task.bags.x).log_softmax(1).detach(), rtol=1e-2, atol=1e-2
    )


def test_exact_labels_meet_the_proportions_in_every_line(smoke):
    for line in runs.read_log(smoke / "smoke/dllp+plot-hard/50/seed=0"):
        assert line["max_proportion_gap"] == pytest.approx(0.0, abs=1e-6)
        assert line["label_accuracy"]["labels"] >= line["label_accuracy"]["predicted"]


# --- bags


def test_bags_are_the_same_for_every_method_and_network_and_differ_from_seed_to_seed():
    base = RECIPES["digits/dllp/16"]
    others = [RECIPES["digits/gan+plot/16"], RECIPES["digits/rot/16"]]
    others.append(replace(base, network=Network("mlp", {"widths": (8,)}), batch_size=8))
    source = load_task(base, CPU).bags.source
    assert all(torch.equal(load_task(other, CPU).bags.source, source) for other in others)
    assert not torch.equal(load_task(replace(base, seed=2), CPU).bags.source, source)


def test_held_out_bags_are_apart_and_the_hidden_labels_follow_the_bags_that_are_left(tmp_path):
    recipe = replace(TINY, data=replace(TINY.data, held_out=0.25))
    task = load_task(recipe, CPU)
    assert task.held_out is not None
    assert not set(task.held_out.source.tolist()) & set(task.bags.source.tolist())
    assert len(task.held_out.source) + len(task.bags.source) == len(task.data.x)
    assert torch.equal(task.hidden, task.data.y[task.bags.source])
    log = all_of(recipe, tmp_path)
    chosen = min(log, key=lambda line: line["held_out_error"])
    assert runs.read_result(tmp_path)["test_accuracy"]["held_out"] == chosen["test_accuracy"]


@pytest.mark.parametrize("bagging", ["dirichlet", "cluster"])
def test_other_baggings_run(tmp_path, bagging):
    recipe = replace(TINY, data=replace(TINY.data, bagging=bagging), first=First(epochs=1))
    assert len(all_of(recipe, tmp_path)) == 1


# --- skipping, reusing, refusing


def test_a_finished_run_is_skipped_and_left_as_it_is(smoke):
    name = "smoke/dllp+plot-hard/50"
    folder = smoke / name / "seed=0"
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}
    again = list(run_with_teacher(SMOKE[name], smoke, name, device="cpu"))
    assert again == [(folder, 3, None)]
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()} == before


def test_a_finished_run_is_not_run_over(smoke):
    folder = smoke / "smoke/dllp/50/seed=0"
    before = (folder / "log.jsonl").read_bytes()
    with pytest.raises(runs.RunError, match="holds a finished run; delete it to run it again"):
        next(run(replace(RECIPES["smoke/dllp/50"], seed=0), folder))
    assert (folder / "log.jsonl").read_bytes() == before


def test_the_first_stage_is_trained_once_and_reused(tmp_path):
    lines = []
    for name in ("g/dllp+plot/64", "g/dllp+soft/64", "h/dllp+plot/64"):
        for folder, _, _ in run_with_teacher(TINY_SECOND, tmp_path, name, device="cpu"):
            lines.append(str(folder.relative_to(tmp_path).parent))
    assert (
        lines == ["g/dllp/64"] * 4 + ["g/dllp+plot/64"] * 4 + ["g/dllp+soft/64"] * 4 + ["h/dllp+plot/64"] * 4
    )
    assert find_run(tmp_path, TINY, ["log_probs.npy"]) == tmp_path / "g/dllp/64/seed=1"


def test_another_first_stage_is_not_taken_for_the_recipes_own(tmp_path):
    done(TINY, tmp_path, "g/dllp/64")
    assert find_run(tmp_path, replace(TINY, first=First(epochs=5)), ["log_probs.npy"]) is None
    assert find_run(tmp_path, replace(TINY, seed=2), ["log_probs.npy"]) is None


def test_an_unfinished_first_stage_is_finished_before_its_second(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", -1.0)
    first_lines = run(TINY, tmp_path / "g/dllp/64/seed=1", device="cpu")
    next(first_lines)
    first_lines.close()
    stages = [
        line["stage"]
        for _, _, line in run_with_teacher(TINY_SECOND, tmp_path, "g/dllp+plot/64", device="cpu")
    ]
    assert stages == ["first"] * 3 + ["second"] * 4


@pytest.mark.parametrize(("student", "missing"), [("new", "log_probs.npy"), ("teacher", "model.safetensors")])
def test_a_first_stage_kept_without_what_teaches_is_left_alone_and_trained_again_beside(
    tmp_path, caplog, student, missing
):
    kept = done(TINY, tmp_path, "g/dllp/64")
    (kept / missing).unlink()
    before = {path.name: path.read_bytes() for path in kept.iterdir()}
    recipe = replace(TINY, second=Second(epochs=1, student=student))
    started = run_with_teacher(recipe, tmp_path, "g/dllp+plot/64", device="cpu")
    assert [folder.name for folder, *_ in started] == ["again-seed=1"] * 4 + ["seed=1"]
    assert f"{kept} is finished but was kept without {missing}; its first stage" in caplog.text
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before
    assert set(collect(tmp_path)) == {"g/dllp/64", "g/dllp+plot/64"}
    assert len(collect(tmp_path)["g/dllp/64"].folders) == 1
    caplog.clear()
    started = run_with_teacher(recipe, tmp_path, "g/dllp+other/64", device="cpu")
    assert [folder.name for folder, *_ in started] == ["seed=1"]  # by the teacher that was trained again
    assert not caplog.text


def test_a_finished_first_stage_of_another_recipe_does_not_teach(tmp_path):
    done(replace(TINY, first=First(epochs=1)), tmp_path, "g/dllp/64")
    with pytest.raises(runs.RunError, match="first.epochs: 1 there, 4 asked for"):
        done(TINY_SECOND, tmp_path, "g/dllp+plot/64")


def test_predictions_of_other_data_do_not_teach(tmp_path, teacher):
    recipe, old = replace(TINY_SECOND, data=replace(TINY.data, held_out=0.5)), tmp_path / "old"
    shutil.copytree(teacher, old)
    (old / "where.json").write_text("{}")  # without a sum of its data
    with pytest.raises(runs.RunError, match="has predictions of other data; run its first stage again"):
        all_of(recipe, tmp_path / "run", old)


def test_predictions_of_as_many_other_rows_or_bags_do_not_teach(tmp_path, teacher, monkeypatch):
    real = SYNTHETIC["digits"]
    monkeypatch.setitem(SYNTHETIC, "digits", lambda seed: changed_data(real(seed)))
    words = "has predictions of other data, or of other bags, .* move it away, and run its first stage again"
    with pytest.raises(runs.RunError, match=words):
        all_of(TINY_SECOND, tmp_path / "data", teacher)
    monkeypatch.undo()
    monkeypatch.setitem(BAG_KINDS, "random", lambda x, y, size, generator: np.arange(len(x)) // size)
    with pytest.raises(runs.RunError, match=words):
        all_of(TINY_SECOND, tmp_path / "bags", teacher)
    assert list(tmp_path.iterdir()) == []


def test_a_teacher_that_went_on_with_other_data_is_of_these_and_one_without_a_sum_is_believed(tmp_path):
    where = {"data": "old", "resumed": [{"epoch": 1}, {"data": "new", "epoch": 2}, {"epoch": 3}]}
    runs.refuse_other_data(tmp_path, "any")
    for told, data in ((where, "new"), ({"data": "old"}, "old"), ({"torch": "2"}, "any")):
        (tmp_path / "where.json").write_text(json.dumps(told))
        runs.refuse_other_data(tmp_path, data)
    (tmp_path / "where.json").write_text(json.dumps(where))
    with pytest.raises(runs.RunError, match=r"other bags, than are here \(new, old\)"):
        runs.refuse_other_data(tmp_path, "old")


def test_weights_of_another_network_do_not_go_on(tmp_path, teacher):
    recipe = replace(TINY, network=Network("mlp", {"widths": (8,)}), second=Second(student="teacher"))
    with pytest.raises(runs.RunError, match="the weights of .* are not of this network"):
        all_of(recipe, tmp_path, teacher)


def test_other_data_under_the_same_name_is_not_gone_on_with(tmp_path, monkeypatch):
    part = run(TINY, tmp_path, device="cpu")
    next(part)
    part.close()
    plain = SYNTHETIC["digits"]
    monkeypatch.setitem(SYNTHETIC, "digits", lambda seed: replace(plain(seed), name="d"))
    assert next(run(TINY, tmp_path, device="cpu"))["epoch"] == 2
    monkeypatch.setitem(SYNTHETIC, "digits", lambda seed: changed_data(plain(seed)))
    with pytest.raises(runs.RunError, match=r"began otherwise .* epoch 2; .*\n  data: '\w{16}' there"):
        next(run(TINY, tmp_path, device="cpu"))
    assert len(list(run(TINY, tmp_path, device="cpu", force=True))) == 2
    assert "data" in runs.read_where(tmp_path)["resumed"][-1]["forced"][0]


def changed_data(data):
    x = data.x.clone()
    x[0, 0] += 1e-3
    return replace(data, x=x)


def test_a_folder_of_another_recipe_is_refused_whether_finished_or_not(tmp_path):
    done(TINY, tmp_path, "g/dllp/64")
    other = replace(TINY, first=First(epochs=1))
    with pytest.raises(runs.RunError, match=r"first.epochs: 4 there, 1 asked for"):
        done(other, tmp_path, "g/dllp/64")
    (tmp_path / "g/dllp/64/seed=1/result.json").unlink()
    with pytest.raises(runs.RunError, match=r"first.epochs: 4 there, 1 asked for"):
        done(other, tmp_path, "g/dllp/64")


def test_a_recipe_is_checked_before_data_is_read_or_a_folder_made(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "load_task", lambda *_: pytest.fail("data was read"))
    for settings in ({"first.method": "x"}, {"second.network.name": "x"}, {"first.options.x": "1"}):
        with pytest.raises(ValueError, match="there are"):
            all_of(changed(TINY, settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_second_stage_without_its_first_is_refused(tmp_path):
    with pytest.raises(runs.RunError, match="needs the run of its first stage; pass its folder as teacher"):
        all_of(TINY_SECOND, tmp_path)


def test_a_stage_without_epochs_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="first.epochs is 0; it must be at least 1"):
        all_of(replace(TINY, first=First(epochs=0)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_held_out_bags_that_leave_none_to_learn_from_are_refused(tmp_path):
    with pytest.raises(SettingsError, match="data.held_out is 0.99; of 22 bags it leaves none"):
        all_of(replace(TINY, data=replace(TINY.data, held_out=0.99)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_student_that_continues_starts_from_the_teachers_weights(tmp_path, teacher):
    second = Second(epochs=1, student="teacher", rate=0.0)
    all_of(replace(TINY, second=second), tmp_path, teacher)
    assert same_bits(runs.read_weights(tmp_path).values(), runs.read_weights(teacher).values())


def test_a_new_student_starts_from_weights_of_its_own(tmp_path, teacher):
    all_of(replace(TINY, second=Second(epochs=1, rate=0.0)), tmp_path, teacher)
    assert not same_bits(runs.read_weights(tmp_path).values(), runs.read_weights(teacher).values())


def test_deterministic_algorithms_are_on_when_asked_for_and_this_is_written_down(tmp_path):
    lines = run(replace(TINY, first=First(epochs=1)), tmp_path, device="cpu", exact=True)
    try:
        next(lines)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert json.loads((tmp_path / "where.json").read_text())["exact"] is True


@pytest.mark.parametrize("exact", [True, False])
def test_what_a_run_sets_in_torch_is_put_back_when_it_ends_or_is_left(tmp_path, monkeypatch, exact):
    def flags() -> tuple[bool, bool]:
        return torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark

    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # put back after the test
    before = flags()
    torch.use_deterministic_algorithms(not exact)
    torch.backends.cudnn.benchmark = exact
    try:
        list(run(TINY, tmp_path / "whole", device="cpu", exact=exact))
        assert flags() == (not exact, exact)
        part = run(TINY, tmp_path / "part", device="cpu", exact=exact)
        next(part)
        assert flags() == (exact, not exact)
        part.close()
        assert flags() == (not exact, exact)
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]


def test_two_exact_runs_are_the_same_to_the_bit(tmp_path, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    for name in ("one", "other"):
        list(run(replace(TINY, first=First("llp_gan", epochs=2)), tmp_path / name, device="cpu", exact=True))
    one, other = everything(tmp_path / "one"), everything(tmp_path / "other")
    assert one[:2] == other[:2]
    assert same_bits([*one[2].values(), one[3]], [*other[2].values(), other[3]])


def test_every_setting_of_a_second_stage_reaches_it(tmp_path, teacher, monkeypatch):
    given = {}

    def spy(*_, **named):
        given.update(named)
        return iter(())

    monkeypatch.setattr(experiment.pipeline, "second_stage", spy)
    second = Second(epochs=9, memory=3, running=0.25, hold=7, mixup=0.5, stop=0.1, schedule="cosine")
    with pytest.raises(runs.RunError, match="no epoch is left to train"):
        all_of(replace(TINY, second=second), tmp_path, teacher)
    plain = ("epochs", "memory", "ema", "warmup_epochs", "mixup", "stop", "seed", "batch_size")
    assert [given[name] for name in plain] == [9, 3, 0.25, 7, 0.5, 0.1, 1, 256]
    assert given["schedule"](0.25) == pytest.approx(0.5 + 0.5 * math.cos(math.pi / 4))
    assert given["weights"] is None


def test_a_run_keeps_the_last_good_epoch_when_a_term_is_no_longer_finite(tmp_path, monkeypatch):
    plain, called = experiment.evaluated, []

    def poisoned(epoch_state, *rest):
        line = plain(epoch_state, *rest)
        called.append(epoch_state.epoch.number)
        if len(called) == 2:  # what training does in the third epoch starts from this
            next(epoch_state.learner.classifier.parameters()).data.fill_(math.nan)
        return line

    monkeypatch.setattr(experiment, "evaluated", poisoned)
    with pytest.raises(TrainingError, match="'proportion' is nan in epoch 3"):
        all_of(TINY, tmp_path)
    kept = unpack((tmp_path / "last.safetensors").read_bytes(), "it")
    assert kept["epoch"] == 2
    assert len(runs.read_log(tmp_path)) == 2


# --- resuming


def without_clock(value):
    """A log line or a result, less what a clock says."""
    if isinstance(value, dict):
        return {name: without_clock(part) for name, part in value.items() if name != "seconds"}
    return value


def everything(folder: Path):
    log = [without_clock(line) for line in runs.read_log(folder)]
    return (
        log,
        without_clock(runs.read_result(folder)),
        runs.read_weights(folder),
        runs.read_log_probs(folder),
    )


STAGES = {
    "first": TINY,
    "llp_gan": replace(TINY, first=First("llp_gan", epochs=4)),
    "second": TINY_SECOND,
    "algorithm 2": replace(TINY, second=Second(epochs=9, hold=1, labels="soft", stop=0.0065)),
}


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("interruptions", [(1,), (3,), (2, 1), (4,)], ids=str)
def test_an_interrupted_run_ends_with_the_same_weights_log_and_result(
    tmp_path, teacher, monkeypatch, name, interruptions
):
    recipe = STAGES[name]
    from_teacher = teacher if recipe.second else None
    all_of(recipe, tmp_path / "whole", from_teacher)
    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", -1.0)
    for lines in interruptions:
        part = run(recipe, tmp_path / "parts", teacher=from_teacher, device="cpu")
        for _ in range(lines):
            next(part, None)
        part.close()
    if not runs.finished(tmp_path / "parts"):  # algorithm 2 may have stopped before it could be interrupted
        all_of(recipe, tmp_path / "parts", from_teacher)
    whole, parts = everything(tmp_path / "whole"), everything(tmp_path / "parts")
    assert whole[:2] == parts[:2]
    assert same_bits(whole[2].values(), parts[2].values())
    assert torch.equal(whole[3], parts[3])


def test_algorithm_2_of_the_test_above_stops_before_its_last_epoch(tmp_path, teacher):
    assert 2 < len(all_of(STAGES["algorithm 2"], tmp_path, teacher)) < 9


def test_a_run_stopped_between_checkpoints_leaves_the_one_of_its_last_epoch(tmp_path):
    part = run(TINY, tmp_path, device="cpu")
    next(part), next(part)
    assert not (tmp_path / "last.safetensors").exists()
    part.close()
    assert [line["epoch"] for line in all_of(TINY, tmp_path)] == [3, 4]
    assert len(runs.read_log(tmp_path)) == 4


def test_a_run_killed_before_its_first_checkpoint_starts_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "checkpoint", lambda *_: None)
    part = run(TINY, tmp_path, device="cpu")
    next(part)
    part.close()
    assert [line["epoch"] for line in all_of(TINY, tmp_path)] == [1, 2, 3, 4]
    assert len(runs.read_log(tmp_path)) == 4


def test_the_number_of_checkpoints_is_limited_by_the_clock(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(runs, "checkpoint", lambda folder, state: written.append(state["epoch"]))
    all_of(TINY, tmp_path / "a")
    assert written == []
    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", -1.0)
    all_of(TINY, tmp_path / "b")
    assert written == [1, 2, 3]


def test_a_clipped_gradient_is_refused_with_several_processes_before_anything_is_written(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(
        "apportion.experiment.run.process_group", lambda place: SimpleNamespace(size=2, rank=0)
    )
    with pytest.raises(RunError):
        all_of(replace(TINY, first=replace(TINY.first, clip=1.0)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_student_of_several_processes_may_have_a_teacher_whose_gradient_was_clipped():
    clipped = replace(TINY.first, clip=1.0)
    check_one_process_settings(replace(TINY, first=clipped, second=Second()))
    with pytest.raises(RunError):
        check_one_process_settings(replace(TINY, first=clipped))
    with pytest.raises(RunError):
        check_one_process_settings(
            replace(TINY, first=replace(clipped, batches="scattered"), second=Second())
        )


# --- honesty


@pytest.mark.parametrize("name", [*ONE_VIEW, *LABELS])
def test_hidden_labels_reach_the_numbers_of_a_run_and_not_its_weights(tmp_path, teacher, monkeypatch, name):
    def with_wrong_labels(*given, **named):
        bags, hidden = make_bags(*given, **named)
        return bags, (hidden + 1) % 10

    if name in ONE_VIEW:
        recipe, of = replace(TINY, first=First(name, epochs=2)), None
    else:
        recipe, of = replace(TINY, second=Second(epochs=2, hold=1, labels=name, mixup=1.0)), teacher
    all_of(recipe, tmp_path / "true", of)
    monkeypatch.setattr("apportion.experiment.task.make_bags", with_wrong_labels)
    all_of(recipe, tmp_path / "false", of)
    true, false = everything(tmp_path / "true"), everything(tmp_path / "false")
    assert same_bits(true[2].values(), false[2].values())
    assert torch.equal(true[3], false[3])
    assert [line["terms"] for line in true[0]] == [line["terms"] for line in false[0]]
    assert true[1]["train"]["errors"] != false[1]["train"]["errors"]


# --- the bars


def shares(
    root: Path, names: list[str], seeds: range, change=lambda recipe: recipe
) -> dict[str, list[float]]:
    """Accuracy of the last epoch on test instances, in per cent: a list over seeds for every recipe."""
    found = {}
    for name in names:
        folders = [done(change(replace(RECIPES[name], seed=seed)), root, name) for seed in seeds]
        found[name] = [runs.read_result(folder)["test_accuracy"]["last"] for folder in folders]
    return found


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


MOONS = [f"figure2/{method}{plot}/50" for method in ("dllp", "llp_gan") for plot in ("", "+plot")]
DIGITS = [
    f"digits/{method}{plot}/16" for method in ("dllp", "llp_vat", "llp_gan", "rot") for plot in ("", "+plot")
]


def test_two_moons_are_told_apart_by_both_stages(tmp_path):
    found = shares(tmp_path, MOONS[:2], range(1, 2))
    assert found["figure2/dllp+plot/50"][0] >= 99.5
    assert found["figure2/dllp+plot/50"][0] >= found["figure2/dllp/50"][0] - 0.3


def test_digits_are_read_after_half_of_the_epochs_and_not_worse_after_plot(tmp_path):
    def short(recipe: Recipe) -> Recipe:
        second = recipe.second and replace(recipe.second, epochs=15)
        return replace(recipe, first=replace(recipe.first, epochs=50), second=second)

    found = shares(tmp_path, DIGITS[:2], range(1, 2), short)
    assert found["digits/dllp/16"][0] >= 90
    assert found["digits/dllp+plot/16"][0] >= found["digits/dllp/16"][0] - 0.5


@pytest.mark.slow
def test_two_moons_of_five_seeds(tmp_path):
    found = shares(tmp_path, MOONS, range(1, 6))
    for method, bar in (("dllp", 99.5), ("llp_gan", 99.0)):
        alone, both = found[f"figure2/{method}/50"], found[f"figure2/{method}+plot/50"]
        assert mean(both) >= bar, found
        assert all(b >= a - 0.3 for a, b in zip(alone, both, strict=True)), found


@pytest.mark.slow
def test_digits_of_three_seeds(tmp_path):
    found = shares(tmp_path, [*DIGITS, "digits/supervised/1"], range(1, 4))
    assert mean(found["digits/supervised/1"]) >= 95
    for name in DIGITS[::2]:
        both = mean(found[name.replace("/16", "+plot/16")])
        assert mean(found[name]) >= 90, found
        assert both >= mean(found[name]) - 0.5, found

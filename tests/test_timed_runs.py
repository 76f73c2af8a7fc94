"""Runs within a time limit: what would not end in time, and nothing else, is stopped or resumed later."""

import sys
from pathlib import Path

import pytest

from apportion.errors import SettingsError
from apportion.experiments.run_folder import is_finished, read_log, read_recipe

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def timed_runs(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import timed_runs

    yield timed_runs
    sys.modules.pop("timed_runs")


def test_a_run_is_stopped_once_its_epochs_turn_out_too_slow(timed_runs):
    with pytest.raises(timed_runs.TooSlow, match="100 epochs are to come, 200 s; 150 s are left"):
        timed_runs.check_in_time([60.0] + [2.0] * 10, 100, 150.0)


@pytest.mark.parametrize(
    ("spent", "to_come", "left"),
    [
        ([60.0] * 9, 100, 150.0),  # the first epochs compile, and are not typical
        ([2.0] * 20, 70, 150.0),
        ([2.0] * 20, 0, -3.0),  # it has ended, if late
    ],
)
def test_other_runs_are_not_stopped(timed_runs, spent, to_come, left):
    timed_runs.check_in_time(spent, to_come, left)


@pytest.fixture
def session(timed_runs, tmp_path, monkeypatch, capsys):
    """The exit code of a session of so many seconds, and what it prints."""

    def run(seconds: float, *words: str, resume: bool = True, grace: float = 0) -> tuple[int, str]:
        given = ["--device", "cpu", "--out", str(tmp_path), "--seconds", str(seconds), "--grace", str(grace)]
        monkeypatch.setattr(sys, "argv", ["timed_runs.py", *given, *["--resume"][:resume], *words])
        return timed_runs.main(), capsys.readouterr().out

    return run


def test_a_run_is_resumed_in_the_next_session_whatever_it_needs(timed_runs, session, tmp_path, monkeypatch):
    name = "figure2/dllp/50"
    monkeypatch.setattr(timed_runs, "LEAST", 4)
    code, printed = session(5, f"{name}@1=900")  # less than what an end wants
    assert code == 3
    assert "to be resumed after epoch 1\n" in printed

    code, printed = session(600, f"{name}@1=900")
    assert code == 0
    assert is_finished(tmp_path / name / "seed=1")
    epochs = [line["epoch"] for line in read_log(tmp_path / name / "seed=1")]
    assert epochs == list(range(1, timed_runs.RECIPES[name].first.epochs + 1))


def test_a_run_may_end_in_the_grace_period_but_no_second_stage_starts_in_it(
    timed_runs, session, tmp_path, monkeypatch
):
    monkeypatch.setattr(timed_runs, "LEAST", 4)
    code, printed = session(5, "figure2/dllp/50@1=900", grace=600)
    assert code == 0
    assert is_finished(tmp_path / "figure2/dllp/50" / "seed=1")
    code, printed = session(5, "figure2/llp_gan+plot/50@1=900", grace=600)
    assert code == 3
    assert "figure2/llp_gan/50/seed=1: the time is up; to be resumed after epoch 1\n" in printed


@pytest.mark.parametrize(("to_come", "ends"), [(20, True), (21, False)])
def test_it_ends_soon_if_its_epochs_and_ten_seconds_are_left(timed_runs, to_come, ends):
    assert timed_runs.ends_soon([60.0] + [2.0] * 10, to_come, 50.0) == ends


def test_a_run_that_does_not_start_is_reported_and_leaves_nothing(session, tmp_path):
    for seconds, resume in ((20, True), (20, False)):
        code, printed = session(seconds, "figure2/dllp/50@1=21", resume=resume)
        assert code == 1
        assert printed.startswith("figure2/dllp/50, seed 1: skipped, it needs")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("left", [9.0, 13.9])
def test_the_time_is_up_before_another_two_epochs_and_a_checkpoint_would_be(timed_runs, left):
    assert timed_runs.is_over([60.0] + [2.0] * 10, left)
    assert not timed_runs.is_over([60.0] + [2.0] * 10, 14.1)


def test_no_second_stage_starts_when_the_time_is_up(timed_runs, session, monkeypatch):
    epochs = timed_runs.RECIPES["figure2/dllp+plot/50"].first.epochs
    monkeypatch.setattr(timed_runs, "is_over", lambda spent, left: len(spent) == epochs)
    code, printed = session(600, "figure2/dllp+plot/50@1")
    assert code == 3
    assert f"to be resumed after epoch {epochs}\n" in printed
    assert "+plot/50/seed=1 epoch" not in printed


def test_a_trial_changes_a_setting_of_all_its_runs(timed_runs, session, tmp_path):
    name = "figure2/dllp/50"
    code, _ = session(600, f"{name}@1", "--set", "first.epochs=2", "--set", "data.validation_fraction=0.2")
    assert code == 0
    group = "figure2,first.epochs=2,data.validation_fraction=0.2"
    recipe = read_recipe(tmp_path / group / "dllp/50/seed=1")
    assert (recipe["first"]["epochs"], recipe["data"]["validation_fraction"], recipe["seed"]) == (2, 0.2, 1)
    with pytest.raises(SettingsError):
        session(600, f"{name}@2", "--set", "first.epoch=2")

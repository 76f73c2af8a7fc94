"""A lease gives up a run that would not end in time, and no other; or goes on with it in the next."""

import sys
from pathlib import Path

import pytest

from apportion.errors import SettingsError
from apportion.experiments.run_folder import is_finished, read_log, read_recipe

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def lease(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import lease

    yield lease
    sys.modules.pop("lease")


def test_a_run_is_given_up_once_its_epochs_are_seen_to_be_too_slow(lease):
    with pytest.raises(lease.TooSlow, match="100 epochs are to come, 200 s; 150 s are left"):
        lease.refuse_slow([60.0] + [2.0] * 10, 100, 150.0)


@pytest.mark.parametrize(
    ("spent", "to_come", "left"),
    [
        ([60.0] * 9, 100, 150.0),  # the first epochs compile, and are not typical
        ([2.0] * 20, 70, 150.0),
        ([2.0] * 20, 0, -3.0),  # it has ended, if late
    ],
)
def test_others_go_on(lease, spent, to_come, left):
    lease.refuse_slow(spent, to_come, left)


@pytest.fixture
def lent(lease, tmp_path, monkeypatch, capsys):
    """What a lease of so many seconds ends with, and what it prints."""

    def run(seconds: float, *words: str, go_on: bool = True, grace: float = 0) -> tuple[int, str]:
        given = ["--device", "cpu", "--out", str(tmp_path), "--seconds", str(seconds), "--grace", str(grace)]
        monkeypatch.setattr(sys, "argv", ["lease.py", *given, *["--go-on"][:go_on], *words])
        return lease.main(), capsys.readouterr().out

    return run


def test_a_run_goes_on_in_the_next_lease_whatever_it_needs(lease, lent, tmp_path, monkeypatch):
    name = "figure2/dllp/50"
    monkeypatch.setattr(lease, "LEAST", 4)
    code, said = lent(5, f"{name}@1=900")  # less than what an end wants
    assert code == 3
    assert "it goes on after epoch 1\n" in said

    code, said = lent(600, f"{name}@1=900")
    assert code == 0
    assert is_finished(tmp_path / name / "seed=1")
    epochs = [line["epoch"] for line in read_log(tmp_path / name / "seed=1")]
    assert epochs == list(range(1, lease.RECIPES[name].first.epochs + 1))


def test_a_run_that_can_end_in_the_grace_does_and_a_second_stage_is_not_begun_in_it(
    lease, lent, tmp_path, monkeypatch
):
    monkeypatch.setattr(lease, "LEAST", 4)
    code, said = lent(5, "figure2/dllp/50@1=900", grace=600)
    assert code == 0
    assert is_finished(tmp_path / "figure2/dllp/50" / "seed=1")
    code, said = lent(5, "figure2/llp_gan+plot/50@1=900", grace=600)
    assert code == 3
    assert "figure2/llp_gan/50/seed=1: the time is over; it goes on after epoch 1\n" in said


@pytest.mark.parametrize(("to_come", "ends"), [(20, True), (21, False)])
def test_it_ends_soon_if_its_epochs_and_ten_seconds_are_left(lease, to_come, ends):
    assert lease.ends_soon([60.0] + [2.0] * 10, to_come, 50.0) == ends


def test_what_is_not_begun_is_told_and_leaves_nothing(lent, tmp_path):
    for seconds, go_on in ((20, True), (20, False)):
        code, said = lent(seconds, "figure2/dllp/50@1=21", go_on=go_on)
        assert code == 1
        assert said.startswith("figure2/dllp/50, seed 1: skipped, it needs")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("left", [9.0, 13.9])
def test_the_time_is_over_before_another_two_epochs_and_a_checkpoint_would_be(lease, left):
    assert lease.is_over([60.0] + [2.0] * 10, left)
    assert not lease.is_over([60.0] + [2.0] * 10, 14.1)


def test_a_second_stage_is_not_begun_when_the_time_is_over(lease, lent, monkeypatch):
    epochs = lease.RECIPES["figure2/dllp+plot/50"].first.epochs
    monkeypatch.setattr(lease, "is_over", lambda spent, left: len(spent) == epochs)
    code, said = lent(600, "figure2/dllp+plot/50@1")
    assert code == 3
    assert f"it goes on after epoch {epochs}\n" in said
    assert "+plot/50/seed=1 epoch" not in said


def test_a_trial_changes_a_setting_of_all_its_runs(lease, lent, tmp_path):
    name = "figure2/dllp/50"
    code, _ = lent(600, f"{name}@1", "--set", "first.epochs=2", "--set", "data.validation_fraction=0.2")
    assert code == 0
    recipe = read_recipe(tmp_path / name / "seed=1")
    assert (recipe["first"]["epochs"], recipe["data"]["validation_fraction"], recipe["seed"]) == (2, 0.2, 1)
    with pytest.raises(SettingsError):
        lent(600, f"{name}@2", "--set", "first.epoch=2")
    with pytest.raises(SystemExit):
        lent(600, f"{name}@2", "--set", "first.epochs=2", "--out", "results")

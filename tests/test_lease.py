"""A lease gives up a run that would not end in time, and no other; or goes on with it in the next."""

import sys
from pathlib import Path

import pytest

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


def test_a_run_goes_on_in_the_next_lease(lease, tmp_path, monkeypatch, capsys):
    name = "figure2/dllp/50"
    words = ["lease.py", "--go-on", "--device", "cpu", "--out", str(tmp_path), f"{name}@1"]

    monkeypatch.setattr(sys, "argv", [*words, "--seconds", "5"])  # less than what an end wants
    assert lease.main() == 3
    assert "it goes on after epoch 1" in capsys.readouterr().out

    monkeypatch.setattr(sys, "argv", [*words, "--seconds", "600"])
    assert lease.main() == 0
    epochs = [line["epoch"] for line in lease.runs.read_log(tmp_path / name / "seed=1")]
    assert epochs == list(range(1, lease.RECIPES[name].first.epochs + 1))

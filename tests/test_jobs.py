"""Many runs at once: each teacher once and first, the same files as plain runs, and workers that die."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from apportion import jobs, runs
from apportion.cli import app
from apportion.grid import RECIPES
from apportion.jobs import Job, JobError, do, first_jobs, run_all
from apportion.jobs.engines import cluster
from apportion.recipes import First, RecipeError, Second
from apportion.runs.locks import locked

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
GIVEN = {"device": "cpu", "data": None, "exact": False, "force": False}
TINY = replace(RECIPES["smoke/dllp/50"], first=First(epochs=1))
HARD, SOFT = Second(epochs=1, hold=1), Second(epochs=1, hold=1, labels="soft")
CELLS = [
    ("g/dllp+hard/50", replace(TINY, second=HARD)),
    ("g/dllp+soft/50", replace(TINY, second=SOFT)),
    ("g/rot/50", replace(TINY, first=First("rot", epochs=1))),
]


def in_turn(given_jobs):
    """The plainest engine: one run after the other, in this process."""
    return (do(job, GIVEN) for job in given_jobs)


def names(root: Path, done: list) -> list[str]:
    return [str(each.job.folder.relative_to(root)) for each in done]


# --- which runs, in which order


def test_a_teacher_of_two_is_one_job_and_comes_before_them(tmp_path):
    done = list(run_all(CELLS, tmp_path, in_turn))
    assert names(tmp_path, done) == [
        "g/rot/50/seed=1",
        "g/dllp/50/seed=1",
        "g/dllp+hard/50/seed=1",
        "g/dllp+soft/50/seed=1",
    ]
    assert all(each.problem is None and each.seconds > 0 for each in done)


def test_a_teacher_that_is_asked_for_by_another_name_is_not_trained_again(tmp_path):
    cells = [("g/plain/50", TINY), *CELLS]
    assert [job.folder.parent.parent.name for job in first_jobs(cells, tmp_path, False)] == ["plain", "rot"]
    done = list(run_all(cells, tmp_path, in_turn))
    assert done[-1].job.teacher == tmp_path / "g/plain/50/seed=1"


def test_what_is_finished_is_handed_to_nobody(tmp_path):
    list(run_all(CELLS, tmp_path, in_turn))
    handed = []
    done = list(run_all(CELLS, tmp_path, lambda given_jobs: handed.extend(given_jobs) or []))
    assert handed == []
    assert sorted(names(tmp_path, done)) == [
        "g/dllp+hard/50/seed=1", "g/dllp+soft/50/seed=1", "g/rot/50/seed=1",
    ]  # fmt: skip
    assert all(each.seconds == 0 for each in done)


def test_a_run_that_fails_stops_its_students_and_nobody_else(tmp_path):
    wild = replace(TINY, first=First("vat", epochs=1, rate=1e30))
    cells = [("g/wild+plot/50", replace(wild, second=HARD)), *CELLS]
    done = list(run_all(cells, tmp_path, in_turn))
    problems = {name: each.problem for name, each in zip(names(tmp_path, done), done, strict=True)}
    assert "lower the rate" in problems.pop("g/vat/50/seed=1")
    assert "is not finished" in problems.pop("g/wild+plot/50/seed=1")
    assert set(problems.values()) == {None}
    assert len(problems) == 4


def test_two_teachers_for_one_folder_are_refused_before_any_run(tmp_path):
    other = replace(TINY, first=First(epochs=2), second=HARD)
    with pytest.raises(JobError, match="would hold two first stages"):
        list(run_all([("g/other/50", other), *CELLS], tmp_path, in_turn))
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_that_cannot_be_is_refused_before_any_run(tmp_path):
    with pytest.raises(RecipeError, match="first.method"):
        list(run_all([*CELLS, ("g/x/50", replace(TINY, first=First("x")))], tmp_path, in_turn))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_recipe_is_refused_before_any_run(tmp_path):
    list(run_all(CELLS[2:], tmp_path, in_turn))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(runs.RunError, match=r"first\.method"):
        list(run_all([("g/rot/50", TINY), *CELLS[:2]], tmp_path, in_turn))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_that_nobody_sees_is_told(tmp_path):
    done = list(run_all(CELLS[2:], tmp_path, lambda given_jobs: [jobs.Done(job, 1.0) for job in given_jobs]))
    assert "a file system that all workers share" in (done[0].problem or "")


# --- one folder, several processes


def test_a_run_that_another_process_makes_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "WAIT_SECONDS", 0.01)
    job, waited = Job(TINY, tmp_path / "run"), threading.Event()
    job.folder.mkdir()
    ended = []
    with locked(job.folder):
        thread = threading.Thread(target=lambda: (waited.set(), ended.append(do(job, GIVEN))))
        thread.start()
        waited.wait()
        time.sleep(0.3)
        assert not ended
    thread.join()
    assert ended[0].problem is None
    assert runs.finished(job.folder)


# --- engines


def result_of(folder: Path) -> dict:
    result = runs.read_result(folder)
    return {name: value for name, value in result.items() if name != "seconds"}


def test_jobs_of_the_command_line_end_as_plain_runs_do(tmp_path):
    quick = ["--set", "first.epochs=1", "--device", "cpu", "--seeds", "1,2"]
    for root, more in (("plain", []), ("two", ["--jobs", "2"])):
        said = CliRunner().invoke(app, ["run", "smoke/rot/50", "--out", str(tmp_path / root), *quick, *more])
        assert said.exit_code == 0, said.output
    assert "1: smoke/rot/50/seed=" in said.output
    assert "2: smoke/rot/50/seed=" in said.output
    for seed in (1, 2):
        one, other = (tmp_path / root / f"smoke/rot/50/seed={seed}" for root in ("plain", "two"))
        assert result_of(one) == result_of(other)


def test_a_scheduler_that_is_not_there_is_named():
    pytest.importorskip("distributed", reason="apportion[dask] is not installed")
    with pytest.raises(JobError, match="no Dask scheduler answers at nowhere"), cluster("nowhere", GIVEN):
        pass


@pytest.mark.slow  # it has been seen to wait for good on a busy machine
def test_a_cluster_that_loses_a_worker_loses_no_run(tmp_path, monkeypatch, capsys):
    pytest.importorskip("distributed", reason="apportion[dask] is not installed")
    monkeypatch.syspath_prepend(BENCHMARKS)
    import cluster as benchmark
    from kill import contents

    grid = benchmark.cells(seeds=2, epochs=4)[:8]
    assert benchmark.attacked(grid, tmp_path / "cluster", tmp_path), capsys.readouterr().out
    assert all(each.problem is None for each in run_all(grid, tmp_path / "plain", in_turn))
    assert contents(tmp_path / "cluster") == contents(tmp_path / "plain")

"""Many runs at once: each teacher once and first, the same files as plain runs, and workers that die."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from apportion import jobs, runs
from apportion.cli import app
from apportion.errors import RunError, SettingsError
from apportion.grid import RECIPES
from apportion.jobs import Job, do, first_jobs, run_all, stopping, waiting
from apportion.jobs.engines import cluster
from apportion.jobs.stopping import signals_ask
from apportion.recipes import First, Second
from apportion.runs.checkpoints import unpack
from apportion.runs.locks import in_use, locked

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


@pytest.mark.parametrize(
    ("student", "kept"),
    [(HARD, {"model.safetensors"}), (Second(epochs=1, student="teacher"), {"log_probs.npy"})],
)
def test_a_first_stage_that_cannot_teach_is_trained_again_though_it_is_asked_for_too(tmp_path, student, kept):
    list(run_all([("g/dllp/50", TINY)], tmp_path, in_turn))
    folder = tmp_path / "g/dllp/50/seed=1"
    for name in {"log_probs.npy", "model.safetensors"} - kept:
        (folder / name).unlink()
    cells = [("g/dllp/50", TINY), ("g/dllp+hard/50", replace(TINY, second=student))]
    done = list(run_all(cells, tmp_path, in_turn))
    assert [each.problem for each in done] == [None] * 3
    assert names(tmp_path, done) == [
        "g/dllp/50/seed=1", "g/dllp/50/again-seed=1", "g/dllp+hard/50/seed=1",
    ]  # fmt: skip


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
    wild = replace(TINY, first=First("llp_vat", epochs=1, rate=1e30))
    cells = [("g/wild+plot/50", replace(wild, second=HARD)), *CELLS]
    done = list(run_all(cells, tmp_path, in_turn))
    problems = {name: each.problem for name, each in zip(names(tmp_path, done), done, strict=True)}
    assert "lower the rate" in problems.pop("g/vat/50/seed=1")
    assert "is not finished" in problems.pop("g/wild+plot/50/seed=1")
    assert set(problems.values()) == {None}
    assert len(problems) == 4


def test_two_teachers_for_one_folder_are_refused_before_any_run(tmp_path):
    other = replace(TINY, first=First(epochs=2), second=HARD)
    with pytest.raises(RunError, match="would hold two first stages"):
        list(run_all([("g/other/50", other), *CELLS], tmp_path, in_turn))
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_that_cannot_be_is_refused_before_any_run(tmp_path):
    with pytest.raises(SettingsError, match="first.method"):
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
    job, waited, asked, real = Job(TINY, tmp_path / "run"), threading.Event(), [], jobs.run
    monkeypatch.setattr(jobs, "run", lambda *words, **more: asked.append(words) or real(*words, **more))
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
    assert len(asked) == 2  # every time reads the data


def test_an_owner_that_writes_nothing_is_not_waited_for_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(waiting, "QUIET_SECONDS", 0.2)
    job = Job(TINY, tmp_path / "run")
    job.folder.mkdir()
    with locked(job.folder):  # by a process that is suspended, say
        found = do(job, GIVEN).problem or ""
    assert f"is in use by process {os.getpid()}" in found
    assert "nothing has been written there for 0 minutes" in found


def test_an_owner_that_writes_is_waited_for_and_slow_epochs_are_given_time(tmp_path, monkeypatch):
    monkeypatch.setattr(waiting, "QUIET_SECONDS", 0.05)
    patience = waiting.Patience(tmp_path)
    (tmp_path / "log.jsonl").write_text("")
    assert not patience.ends()
    time.sleep(0.1)
    assert patience.ends()
    (tmp_path / "log.jsonl").write_text('{"epoch": 1, "test_accuracy": 1.0, "seconds": {"train": 100}}\n')
    assert not patience.ends()
    time.sleep(0.1)
    assert not patience.ends()
    assert patience.limit() == 500
    (tmp_path / "log.jsonl").unlink()
    tmp_path.rmdir()  # by hand, while its owner is at it
    assert not patience.ends()


# --- asked to stop


def test_a_run_that_is_asked_to_stop_does_so_at_its_next_step_and_keeps_its_last_epoch(tmp_path, monkeypatch):
    monkeypatch.setattr("apportion.jobs.stopping.LOOK_SECONDS", -1.0)
    steps = []

    def asked():
        steps.append(None)
        return len(steps) == 8  # 1: at the start; an epoch is 2 steps, and a look after it

    job = Job(replace(TINY, first=First(epochs=100), batch_size=1024), tmp_path / "run")
    done = do(job, GIVEN, asked=asked)
    assert (done.stopped, done.problem) == (True, "stopped")
    assert len(steps) == 8
    assert unpack((job.folder / "last.safetensors").read_bytes(), "it")["epoch"] == 2
    assert not in_use(job.folder)
    goes_on = do(replace(job, recipe=replace(job.recipe, first=First(epochs=4))), GIVEN | {"force": True})
    assert goes_on.problem is None
    assert [line["epoch"] for line in runs.read_log(job.folder)] == [1, 2, 3, 4]


def test_a_run_whose_end_and_stop_meet_is_finished(tmp_path):
    job = Job(TINY, tmp_path / "run")
    done = do(job, GIVEN, asked=lambda: (job.folder / "log.jsonl").exists() and runs.finished(job.folder))
    assert (done.stopped, done.problem) == (False, None)


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


def begun(root: Path, words: list[str]) -> subprocess.Popen:
    """Two trainings of many short steps that have done some epochs, in a group of processes of their own."""
    long = ["--seeds", "1,2", "--set", "first.epochs=100000", "--set", "batch_size=50"]
    command = ["run", "smoke/dllp/50", "--out", str(root), "--device", "cpu", *long, *words]
    training = subprocess.Popen(
        [sys.executable, "-m", "apportion", *command],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    logs = [root / f"smoke/dllp/50/seed={seed}/log.jsonl" for seed in (1, 2)]
    for _ in range(1200):
        if all(log.exists() and log.read_bytes().count(b"\n") > 1 for log in logs):
            return training
        time.sleep(0.05)
    os.killpg(training.pid, signal.SIGKILL)
    raise AssertionError(training.communicate()[1])


def check_stopped(root: Path) -> None:
    """Both trainings have left the checkpoint of their last whole epoch, and hold nothing."""
    for folder in (root / f"smoke/dllp/50/seed={seed}" for seed in (1, 2)):
        kept = unpack((folder / "last.safetensors").read_bytes(), "it")["epoch"]
        lines = (folder / "log.jsonl").read_bytes().count(b"\n")
        assert lines - 1 <= kept <= lines
        assert not {path.name for path in folder.iterdir()} & {"lock", "last.safetensors.new", "result.json"}


@pytest.mark.skipif(sys.platform == "win32", reason="groups of processes are POSIX's")
@pytest.mark.parametrize(
    ("number", "code"),
    [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143)],
)
def test_a_signal_to_all_stops_all_jobs_with_the_code_of_a_plain_run(tmp_path, number, code):
    training = begun(tmp_path, ["--jobs", "2"])
    os.killpg(training.pid, number)  # as a terminal's Ctrl-C does
    sent = time.monotonic()
    message = training.communicate(timeout=60)[1]
    assert time.monotonic() - sent < 15
    assert training.returncode == code
    assert message == "apportion: stopped; the same command goes on from the last checkpoint\n"
    check_stopped(tmp_path)
    nobody_is_left(training.pid)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="groups of processes are POSIX's")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_jobs_whose_command_alone_is_stopped_or_killed_stop_too(tmp_path, number):
    training = begun(tmp_path, ["--jobs", "2"])
    training.send_signal(number)
    training.communicate(timeout=60)
    nobody_is_left(training.pid)
    check_stopped(tmp_path)


def nobody_is_left(group: int) -> None:
    for _ in range(200):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError(group)


def test_a_signal_waits_for_the_body_and_a_second_one_does_not(tmp_path):
    stop = tmp_path / "stop"
    usual = signal.getsignal(signal.SIGTERM)
    seen = []
    signal.signal(signal.SIGTERM, lambda number, frame: seen.append(stop.exists()))
    try:
        with signals_ask(stop):
            signal.raise_signal(signal.SIGTERM)
            assert (seen, stop.exists()) == ([], True)
            signal.raise_signal(signal.SIGTERM)
            assert seen == [True]
        assert seen == [True, True]
        with signals_ask(tmp_path / "other"):
            pass
        assert seen == [True, True]
    finally:
        signal.signal(signal.SIGTERM, usual)


def test_a_scheduler_that_is_not_there_is_named():
    pytest.importorskip("distributed", reason="apportion[dask] is not installed")
    with pytest.raises(RunError, match="no Dask scheduler answers at nowhere"), cluster("nowhere", GIVEN):
        pass


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory):
    """A Dask cluster over loopback: its address and its workers; the last test that has it kills one."""
    pytest.importorskip("distributed", reason="apportion[dask] is not installed")
    if sys.platform == "win32":
        pytest.skip("signals are POSIX's")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        import cluster as benchmark

        with benchmark.loopback(tmp_path_factory.mktemp("dask"), 2) as (address, workers):
            yield benchmark, address, workers


def test_a_command_that_is_stopped_cancels_its_runs_on_the_cluster(tmp_path, two_workers):
    _, address, workers = two_workers
    training = begun(tmp_path, ["--scheduler", address])
    folders = [tmp_path / f"smoke/dllp/50/seed={seed}" for seed in (1, 2)]
    assert all(in_use(folder) for folder in folders)
    training.send_signal(signal.SIGINT)
    message = training.communicate(timeout=60)[1]
    assert training.returncode == 130
    assert message.endswith("apportion: stopped; the same command goes on from the last checkpoint\n")
    for _ in range(300):
        if not any(in_use(folder) for folder in folders):
            break
        time.sleep(0.05)
    check_stopped(tmp_path)
    assert all(worker.poll() is None for worker in workers)  # they are there for others


def test_a_cluster_that_loses_a_worker_loses_no_run(tmp_path, two_workers, capsys):
    benchmark, address, workers = two_workers
    from kill import contents

    grid = benchmark.cells(seeds=1, epochs=10)[:4]  # half of them are made before the others can begin
    assert benchmark.attacked(grid, tmp_path / "cluster", address, workers), capsys.readouterr().out
    assert all(each.problem is None for each in run_all(grid, tmp_path / "plain", in_turn))
    assert contents(tmp_path / "cluster") == contents(tmp_path / "plain")


def test_only_steps_of_the_thread_that_asks_are_stopped(monkeypatch):
    monkeypatch.setattr(stopping, "LOOK_SECONDS", -1.0)
    optimizer, raised = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0), []

    def other():
        try:
            optimizer.step()
        except stopping.Stop as stop:
            raised.append(stop)

    with stopping.stop_when(lambda: True):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        with pytest.raises(stopping.Stop):
            optimizer.step()
    assert not raised


def test_runs_that_were_asked_to_stop_are_not_told_of(monkeypatch, tmp_path):
    from apportion.jobs import Done, Job, engines

    job = Job(None, tmp_path)
    ended = [Done(job, 1.0), Done(job, 1.0, "stopped", stopped=True)]

    class Pool:
        def __init__(self, **_):
            pass

        def __call__(self, calls):
            return iter(ended)

    monkeypatch.setattr(engines, "Parallel", Pool)
    assert list(engines._made(iter(()), 2, tmp_path / "stop")) == ended[:1]


def test_a_job_that_another_process_ends_meanwhile_is_told_of(tmp_path):
    cells = [(f"g/{name}/50", replace(TINY, seed=seed)) for seed, name in enumerate("abc")]
    folders = [tmp_path / name / f"seed={seed}" for seed, (name, _) in enumerate(cells)]
    list(run_all(cells[1:2], tmp_path, in_turn))
    told = []
    for done in run_all(cells, tmp_path, in_turn):
        if not told:
            do(Job(cells[0][1], folders[0]), {})
        told.append(done.job.folder)
    assert sorted(told) == folders

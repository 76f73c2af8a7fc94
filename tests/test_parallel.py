"""Many runs at once: each first stage once and first, the same files as plain runs, and workers that die."""

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

from apportion.cli.app import app
from apportion.errors import RunError, SettingsError
from apportion.experiments import parallel
from apportion.experiments.parallel import (
    Job,
    JobResult,
    StopRequest,
    dask_cluster,
    first_stage_jobs,
    quiet_limit,
    run_all,
    run_job,
    signals_create,
    stop_when,
)
from apportion.experiments.recipe import FirstStage, SecondStage
from apportion.experiments.recipes import RECIPES
from apportion.experiments.run_folder import (
    is_finished,
    is_in_use,
    open_run,
    read_checkpoint,
    read_log,
    read_result,
)

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SETTINGS = {"device": "cpu", "data": None, "exact": False, "force": False}
TINY = replace(RECIPES["smoke/dllp/50"], first=FirstStage(epochs=1))
LONG_GROUP = "smoke,first.epochs=100000,batch_size=50"
HARD = SecondStage(epochs=1, warmup_epochs=1)
SOFT = replace(HARD, labels="soft")
GRID = [
    ("g/dllp+hard/50", replace(TINY, second=HARD)),
    ("g/dllp+soft/50", replace(TINY, second=SOFT)),
    ("g/rot/50", replace(TINY, first=FirstStage("rot", epochs=1))),
]


def one_by_one(jobs):
    """The simplest engine: one run after the other, in this process."""
    return (run_job(job, SETTINGS) for job in jobs)


def names(root: Path, results: list[JobResult]) -> list[str]:
    return [str(result.job.folder.relative_to(root)) for result in results]


# --- which runs, in which order


def test_a_first_stage_of_two_students_is_one_job_and_comes_before_them(tmp_path):
    results = list(run_all(GRID, tmp_path, one_by_one))
    assert names(tmp_path, results) == [
        "g/rot/50/seed=1", "g/dllp/50/seed=1", "g/dllp+hard/50/seed=1", "g/dllp+soft/50/seed=1",
    ]  # fmt: skip
    assert all(result.problem is None and result.seconds > 0 for result in results)
    handed = []
    again = list(run_all(GRID, tmp_path, lambda jobs: handed.extend(jobs) or []))
    assert handed == []  # everything is finished
    assert len(again) == 3
    assert all(result.seconds == 0 for result in again)


def test_a_first_stage_that_is_requested_by_another_name_is_not_trained_again(tmp_path):
    recipes = [("g/plain/50", TINY), *GRID]
    folders = [job.folder.parent.parent.name for job in first_stage_jobs(recipes, tmp_path)]
    assert folders == ["plain", "rot"]
    results = list(run_all(recipes, tmp_path, one_by_one))
    assert results[-1].job.teacher == tmp_path / "g/plain/50/seed=1"


@pytest.mark.parametrize(
    ("student", "kept"),
    [(HARD, {"model.safetensors"}), (SecondStage(epochs=1, student="teacher"), {"log_probs.npy"})],
)
@pytest.mark.filterwarnings("ignore::apportion.errors.ApportionWarning")
def test_a_first_stage_that_cannot_teach_is_trained_again(tmp_path, student, kept):
    list(run_all([("g/dllp/50", TINY)], tmp_path, one_by_one))
    folder = tmp_path / "g/dllp/50/seed=1"
    for name in {"log_probs.npy", "model.safetensors"} - kept:
        (folder / name).unlink()
    recipes = [("g/dllp/50", TINY), ("g/dllp+hard/50", replace(TINY, second=student))]
    results = list(run_all(recipes, tmp_path, one_by_one))
    assert [result.problem for result in results] == [None] * 3
    assert names(tmp_path, results)[1:] == ["g/dllp/50/again-seed=1", "g/dllp+hard/50/seed=1"]


def test_a_run_that_fails_stops_its_students_and_no_other(tmp_path):
    wild = replace(TINY, first=FirstStage("llp_vat", epochs=1, learning_rate=1e30))
    recipes = [("g/wild+plot/50", replace(wild, second=HARD)), *GRID]
    results = list(run_all(recipes, tmp_path, one_by_one))
    problems = {name: result.problem for name, result in zip(names(tmp_path, results), results, strict=True)}
    assert problems.pop("g/llp_vat/50/seed=1")
    assert "not finished" in problems.pop("g/wild+plot/50/seed=1")
    assert set(problems.values()) == {None}
    assert len(problems) == 4


def test_bad_grids_are_refused_before_any_run(tmp_path):
    other = replace(TINY, first=FirstStage(epochs=2), second=HARD)
    with pytest.raises(RunError):  # two first stages for one folder
        list(run_all([("g/other/50", other), *GRID], tmp_path, one_by_one))
    with pytest.raises(SettingsError):
        list(run_all([*GRID, ("g/x/50", replace(TINY, first=FirstStage("x")))], tmp_path, one_by_one))
    assert list(tmp_path.iterdir()) == []
    list(run_all(GRID[2:], tmp_path, one_by_one))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RunError, match=r"first\.method"):  # the folder of another recipe
        list(run_all([("g/rot/50", TINY), *GRID[:2]], tmp_path, one_by_one))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_on_a_file_system_that_is_not_shared_is_a_problem(tmp_path):
    results = list(run_all(GRID[2:], tmp_path, lambda jobs: [JobResult(job, 1.0) for job in jobs]))
    assert "share" in results[0].problem


def test_a_job_that_another_process_finishes_meanwhile_is_reported_once(tmp_path):
    recipes = [(f"g/{name}/50", replace(TINY, seed=seed)) for seed, name in enumerate("abc")]
    folders = [tmp_path / name / f"seed={seed}" for seed, (name, _) in enumerate(recipes)]
    list(run_all(recipes[1:2], tmp_path, one_by_one))
    reported = []
    for result in run_all(recipes, tmp_path, one_by_one):
        if not reported:
            run_job(Job(recipes[0][1], folders[0]), {})
        reported.append(result.job.folder)
    assert sorted(reported) == folders


# --- several processes and one folder


def test_a_run_that_another_process_makes_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "WAIT_SECONDS", 0.01)
    job = Job(TINY, tmp_path / "run")
    calls = []
    plain = parallel.run
    monkeypatch.setattr(
        parallel, "run", lambda *args, **settings: calls.append(args) or plain(*args, **settings)
    )
    results = []
    started = threading.Event()
    with open_run(job.folder):
        thread = threading.Thread(target=lambda: (started.set(), results.append(run_job(job, SETTINGS))))
        thread.start()
        started.wait()
        time.sleep(0.3)
        assert not results
    thread.join()
    assert results[0].problem is None
    assert is_finished(job.folder)
    assert len(calls) == 2  # each call reads the data


def test_an_owner_that_writes_nothing_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(parallel, "QUIET_SECONDS", 0.2)
    job = Job(TINY, tmp_path / "run")
    with open_run(job.folder):  # by a process that is suspended, say
        assert "nothing has been written" in run_job(job, SETTINGS).problem


def test_slow_epochs_are_given_time(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "QUIET_SECONDS", 0.05)
    assert quiet_limit(tmp_path) == 0.05
    (tmp_path / "log.jsonl").write_text('{"epoch": 1, "test_accuracy": 1.0, "seconds": {"train": 100}}\n')
    assert quiet_limit(tmp_path) == 500
    (tmp_path / "log.jsonl").write_text('{"epoch": 1, "test')  # being written
    assert quiet_limit(tmp_path) == 0.05


# --- stopping


def test_a_run_that_is_told_to_stop_does_so_at_its_next_step_and_keeps_its_last_epoch(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "STOP_CHECK_SECONDS", -1.0)
    checks = []

    def should_stop() -> bool:
        checks.append(None)
        return len(checks) == 8  # one at the start; an epoch has two steps and a check after it

    job = Job(replace(TINY, first=FirstStage(epochs=100), batch_size=1024), tmp_path / "run")
    result = run_job(job, SETTINGS, should_stop=should_stop)
    assert result.stopped
    assert len(checks) == 8
    assert read_checkpoint(job.folder)["epoch"] == 2
    assert not is_in_use(job.folder)
    shorter = replace(job, recipe=replace(job.recipe, first=FirstStage(epochs=4)))
    assert run_job(shorter, SETTINGS | {"force": True}).problem is None
    assert [line["epoch"] for line in read_log(job.folder)] == [1, 2, 3, 4]


def test_a_run_that_is_finished_when_it_is_told_to_stop_is_finished(tmp_path):
    job = Job(TINY, tmp_path / "run")
    result = run_job(job, SETTINGS, should_stop=lambda: is_finished(job.folder))
    assert (result.stopped, result.problem) == (False, None)


def test_only_steps_of_the_own_thread_are_stopped(monkeypatch):
    monkeypatch.setattr(parallel, "STOP_CHECK_SECONDS", -1.0)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    raised = []

    def step_in_another_thread():
        try:
            optimizer.step()
        except StopRequest as stop:
            raised.append(stop)

    with stop_when(lambda: True):
        thread = threading.Thread(target=step_in_another_thread)
        thread.start()
        thread.join()
        with pytest.raises(StopRequest):
            optimizer.step()
    assert not raised


def test_a_signal_waits_for_the_body_and_a_second_one_does_not(tmp_path):
    stop_file = tmp_path / "stop"
    seen = []
    usual = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda number, frame: seen.append(stop_file.exists()))
    try:
        with signals_create(stop_file):
            signal.raise_signal(signal.SIGTERM)
            assert (seen, stop_file.exists()) == ([], True)
            signal.raise_signal(signal.SIGTERM)
            assert seen == [True]
        assert seen == [True, True]
        with signals_create(tmp_path / "other"):
            pass
        assert seen == [True, True]
    finally:
        signal.signal(signal.SIGTERM, usual)


# --- processes of this machine


def test_parallel_runs_end_as_plain_runs_do(tmp_path):
    quick = ["--set", "first.epochs=1", "--device", "cpu", "--seeds", "1,2"]
    for root, more in (("plain", []), ("two", ["--jobs", "2"])):
        done = CliRunner().invoke(app, ["run", "smoke/rot/50", "--out", str(tmp_path / root), *quick, *more])
        assert done.exit_code == 0, done.output
    assert "1: smoke,first.epochs=1/rot/50/seed=" in done.output
    assert "2: smoke,first.epochs=1/rot/50/seed=" in done.output
    for seed in (1, 2):
        one, other = (
            read_result(tmp_path / root / f"smoke,first.epochs=1/rot/50/seed={seed}")
            for root in ("plain", "two")
        )
        assert one | {"seconds": 0} == other | {"seconds": 0}


def start_two_runs(root: Path, options: list[str]) -> subprocess.Popen:
    """Two runs of many short steps that have finished some epochs, in a process group of their own."""
    long = ["--seeds", "1,2", "--set", "first.epochs=100000", "--set", "batch_size=50"]
    command = ["run", "smoke/dllp/50", "--out", str(root), "--device", "cpu", *long, *options]
    process = subprocess.Popen(
        [sys.executable, "-m", "apportion", *command],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    logs = [root / f"{LONG_GROUP}/dllp/50/seed={seed}/log.jsonl" for seed in (1, 2)]
    for _ in range(1200):
        if all(log.exists() and log.read_bytes().count(b"\n") > 1 for log in logs):
            return process
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    raise AssertionError(process.communicate()[1])


def check_stopped(root: Path) -> None:
    """Both runs have left the checkpoint of their last whole epoch, and hold nothing."""
    for seed in (1, 2):
        folder = root / f"{LONG_GROUP}/dllp/50/seed={seed}"
        epoch = read_checkpoint(folder)["epoch"]
        lines = (folder / "log.jsonl").read_bytes().count(b"\n")
        assert lines - 1 <= epoch <= lines
        assert not is_in_use(folder)
        assert not list(folder.glob("*partial*"))
        assert not is_finished(folder)


def wait_until_gone(group: int) -> None:
    for _ in range(200):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError(f"processes of group {group} are left")


@pytest.mark.skipif(sys.platform == "win32", reason="process groups are POSIX")
@pytest.mark.parametrize(
    ("number", "code"),
    [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143)],
)
def test_a_signal_to_the_group_stops_all_runs(tmp_path, number, code):
    process = start_two_runs(tmp_path, ["--jobs", "2"])
    os.killpg(process.pid, number)  # as Ctrl-C in a terminal does
    sent = time.monotonic()
    message = process.communicate(timeout=60)[1]
    assert time.monotonic() - sent < 15
    assert process.returncode == code
    assert message.startswith("apportion: stopped; ")
    check_stopped(tmp_path)
    wait_until_gone(process.pid)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="process groups are POSIX")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_runs_stop_if_only_their_parent_is_stopped_or_killed(tmp_path, number):
    process = start_two_runs(tmp_path, ["--jobs", "2"])
    process.send_signal(number)
    process.communicate(timeout=60)
    wait_until_gone(process.pid)
    check_stopped(tmp_path)


# --- a Dask cluster


def test_a_scheduler_that_is_not_there_is_an_error():
    pytest.importorskip("distributed", reason="apportion[dask] is not installed")
    with pytest.raises(RunError, match="nowhere"), dask_cluster("nowhere", SETTINGS):
        pass


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory):
    """A Dask cluster on this machine: its address and its workers. The last test that uses it kills one."""
    pytest.importorskip("distributed", reason="apportion[dask] is not installed")
    if sys.platform == "win32":
        pytest.skip("signals are POSIX")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        import cluster as benchmark

        with benchmark.loopback(tmp_path_factory.mktemp("dask"), 2) as (address, workers):
            yield benchmark, address, workers


def test_a_command_that_is_stopped_cancels_its_runs_on_the_cluster(tmp_path, two_workers):
    _, address, workers = two_workers
    process = start_two_runs(tmp_path, ["--scheduler", address])
    folders = [tmp_path / f"{LONG_GROUP}/dllp/50/seed={seed}" for seed in (1, 2)]
    assert all(is_in_use(folder) for folder in folders)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    for _ in range(300):
        if not any(is_in_use(folder) for folder in folders):
            break
        time.sleep(0.05)
    check_stopped(tmp_path)
    assert all(worker.poll() is None for worker in workers)  # they go on for others


def test_a_cluster_that_loses_a_worker_loses_no_run(tmp_path, two_workers, capsys):
    benchmark, address, workers = two_workers
    from kill import contents

    grid = benchmark.cells(seeds=1, epochs=10)[:4]  # half of them come before the others
    assert benchmark.attacked(grid, tmp_path / "cluster", address, workers), capsys.readouterr().out
    assert all(result.problem is None for result in run_all(grid, tmp_path / "plain", one_by_one))
    assert contents(tmp_path / "cluster") == contents(tmp_path / "plain")

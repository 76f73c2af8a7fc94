"""Many runs at once: in processes of this machine (joblib), or on the workers of a Dask cluster.

First stages come before the second stages that start from them, and each of them is trained once. Runs that
are told to stop do so at their next step and leave the checkpoint of their last whole epoch.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import torch
from joblib import Parallel, cpu_count, delayed, parallel_config
from joblib.externals.loky.process_executor import TerminatedWorkerError
from torch.optim.optimizer import register_optimizer_step_pre_hook

from apportion._device import find_device
from apportion.errors import RunError
from apportion.experiments.recipe import Recipe, check_recipe, to_json
from apportion.experiments.run import can_teach, folder_of_run, run, teacher_folder
from apportion.experiments.run_folder import check_same_recipe, is_finished, is_in_use, read_log

NamedRecipe = tuple[str, Recipe]  # such as ("table1/dllp+plot/64", recipe)
Settings = dict[str, Any]  # device, data, exact, force and imports, as `run` takes them


@dataclass(frozen=True)
class Job:
    """One run of one stage."""

    recipe: Recipe
    folder: Path
    teacher: Path | None = None


@dataclass(frozen=True)
class JobResult:
    """How a job ended: the seconds it took here (0 if it was finished before), or what went wrong."""

    job: Job
    seconds: float = 0.0
    problem: str | None = None
    stopped: bool = False


Engine = Callable[[Sequence[Job]], Iterable[JobResult]]


# --- which runs, in which order


def run_all(
    recipes: Sequence[NamedRecipe], root: Path, engine: Engine, force: bool = False
) -> Iterator[JobResult]:
    """Run named recipes below `root`: first stages, each once, then the second stages that need them."""
    yield from _run_unfinished(first_stage_jobs(recipes, root, force), engine)
    jobs = []
    for name, recipe in recipes:
        if recipe.second is None:
            continue
        folder = folder_of_run(root, name, recipe)
        teacher = None if is_finished(folder) else teacher_folder(recipe, root, name)
        job = Job(recipe, folder, teacher)
        if teacher is not None and not is_finished(teacher):
            yield JobResult(job, problem=f"its first stage in {teacher} is not finished")
        else:
            jobs.append(job)
    yield from _run_unfinished(jobs, engine)


def first_stage_jobs(recipes: Sequence[NamedRecipe], root: Path, force: bool = False) -> list[Job]:
    """The first stages that are requested, and those that second stages need; one job per recipe."""
    jobs: dict[Path, Job] = {}
    for name, recipe in recipes:
        check_recipe(recipe)
        folder = folder_of_run(root, name, recipe)
        check_same_recipe(folder, to_json(recipe), force)
        if recipe.second is None:
            jobs[folder] = Job(recipe, folder)
    folders = {to_json(job.recipe): job.folder for job in jobs.values()}
    for name, recipe in recipes:
        if recipe.second is None or is_finished(folder_of_run(root, name, recipe)):
            continue
        first = replace(recipe, second=None)
        known = folders.get(to_json(first))
        if known is not None and (not is_finished(known) or can_teach(known, recipe)):
            continue
        folder = teacher_folder(recipe, root, name)
        if folder in jobs:
            raise RunError(f"{folder} would hold two different first stages; run {name} with another --out")
        folders[to_json(first)] = folder
        jobs[folder] = Job(first, folder)
    return list(jobs.values())


def _run_unfinished(jobs: Sequence[Job], engine: Engine) -> Iterator[JobResult]:
    """Only unfinished jobs go to the engine, and a job that ended well must have left a finished run."""
    finished = {job.folder for job in jobs if is_finished(job.folder)}  # other processes may finish more
    for job in jobs:
        if job.folder in finished:
            yield JobResult(job)
    for result in engine([job for job in jobs if job.folder not in finished]):
        if result.problem is None and not is_finished(result.job.folder):
            problem = (
                f"{result.job.folder} was trained where this machine cannot see it; put --out on a file "
                "system that all workers share"
            )
            yield replace(result, problem=problem)
        else:
            yield result


# --- one job in this process

WAIT_SECONDS = 2.0  # between looks at a folder in which another process trains
QUIET_SECONDS = (
    1800.0  # such a process is given up on if it has written nothing for so long; a first epoch is slow
)
QUIET_EPOCHS = 5  # or for so many times its longest epoch
_TORCH = threading.Lock()  # torch has one random state per process, so threads take turns


def run_job(
    job: Job,
    settings: Settings,
    threads: int | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> JobResult:
    """Make one run in this process. If another process is making it, wait until it is finished."""
    started = time.monotonic()
    with _TORCH, stop_when(should_stop) as check_stop:
        if threads is not None:
            torch.set_num_threads(threads)
        try:
            while not is_finished(job.folder):
                check_stop()
                try:
                    lines: Any = run(job.recipe, job.folder, teacher=job.teacher, **settings)
                    with closing(lines):
                        for _ in lines:
                            check_stop()
                except (ValueError, RuntimeError, ArithmeticError, OSError) as problem:
                    if not is_in_use(job.folder):
                        if is_finished(job.folder):  # by another process, just now
                            break
                        return JobResult(job, time.monotonic() - started, str(problem))
                    if not _wait_for_owner(job.folder, check_stop):
                        problem_text = f"{problem}; nothing has been written there for too long"
                        return JobResult(job, time.monotonic() - started, problem_text)
        except StopRequest:
            if not is_finished(job.folder):
                return JobResult(job, time.monotonic() - started, "stopped", stopped=True)
        return JobResult(job, time.monotonic() - started)


def _wait_for_owner(folder: Path, check_stop: Callable[[], None]) -> bool:
    """Wait while another process trains in the folder. False if it writes nothing for too long.

    The owner may be suspended, and would block those who wait for it forever.
    """
    stamp = _last_write(folder)
    since = time.monotonic()
    while is_in_use(folder):
        check_stop()
        now = _last_write(folder)
        if now != stamp:  # compared with itself: the clock of a file server may be wrong
            stamp = now
            since = time.monotonic()
        if time.monotonic() - since > quiet_limit(folder):
            return False
        time.sleep(WAIT_SECONDS)
    return True


def quiet_limit(folder: Path) -> float:
    """Seconds without a write after which the owner of a folder is given up on."""
    longest = 0.0
    with suppress(RunError, KeyError):  # no log yet, or a line that is being written
        longest = max((sum(line["seconds"].values()) for line in read_log(folder)), default=0.0)
    return max(QUIET_SECONDS, QUIET_EPOCHS * longest)


def _last_write(folder: Path) -> float:
    with suppress(OSError):  # a file, or the folder, is gone in between
        return max((path.stat().st_mtime for path in folder.iterdir()), default=0.0)
    return 0.0


# --- stopping

STOP_CHECK_SECONDS = 0.1  # a check may cost as much as a small step
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest(BaseException):
    """A run was told to stop. Not an Exception, so that nothing mistakes it for a failed run."""


@contextmanager
def stop_when(should_stop: Callable[[], bool]) -> Iterator[Callable[[], None]]:
    """Raise StopRequest before an optimizer step of this thread, or on a call, once `should_stop()`."""
    thread = threading.get_ident()
    last = time.monotonic()

    def check_stop() -> None:
        if should_stop():
            raise StopRequest

    def before_step(*_: object) -> None:
        nonlocal last
        if threading.get_ident() == thread and time.monotonic() - last > STOP_CHECK_SECONDS:
            last = time.monotonic()
            check_stop()

    handle = register_optimizer_step_pre_hook(before_step)
    try:
        yield check_stop
    finally:
        handle.remove()


@contextmanager
def signals_create(stop_file: Path) -> Iterator[None]:
    """SIGINT and SIGTERM create a file, and have their usual effect once the body has ended.

    A second signal has its effect at once. Outside the main thread signals are left alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    usual = {number: signal.getsignal(number) or signal.SIG_DFL for number in SIGNALS}

    def restore() -> None:
        for number, handler in usual.items():
            signal.signal(number, handler)

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)
        restore()
        stop_file.touch()

    for number in SIGNALS:
        signal.signal(number, handle)
    try:
        yield
    finally:
        restore()
        if received:
            signal.raise_signal(received[0])


# --- processes of this machine

# Ctrl-C reaches the whole process group, but the workers must hear of it from their parent
_IGNORE_SIGNALS: dict[str, Any] = {}
if sys.platform != "win32":
    _IGNORE_SIGNALS = {"initializer": signal.pthread_sigmask, "initargs": (signal.SIG_BLOCK, SIGNALS)}


def local_processes(count: int, settings: Settings) -> Engine:
    """An engine of `count` processes, which share the cores of this machine and take its GPUs in turn."""
    devices = [settings["device"]]
    if find_device(settings["device"]).type == "cuda" and ":" not in settings["device"]:
        devices = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    threads = max(1, cpu_count() // count)

    def engine(jobs: Sequence[Job]) -> Iterator[JobResult]:
        if count == 1:
            for job in jobs:
                yield run_job(job, settings | {"device": devices[0]}, threads)
            return
        with TemporaryDirectory(prefix="apportion-") as folder:
            stop_file = Path(folder) / "stop"
            calls = (
                delayed(_run_in_worker)(
                    job, settings | {"device": devices[i % len(devices)]}, threads, stop_file, os.getpid()
                )
                for i, job in enumerate(jobs)
                if not stop_file.exists()
            )
            with signals_create(stop_file):
                yield from _collect(calls, count, stop_file)

    return engine


def _run_in_worker(job: Job, settings: Settings, threads: int, stop_file: Path, parent: int) -> JobResult:
    """Make a run in a worker process, until the stop file exists or the parent is gone."""
    result = run_job(job, settings, threads, partial(_parent_stopped, stop_file, parent))
    if os.getppid() != parent:
        os._exit(1)  # it would wait for work that nobody can send
    return result


def _parent_stopped(stop_file: Path, parent: int) -> bool:
    return stop_file.exists() or os.getppid() != parent


def _collect(calls: Iterator[Any], count: int, stop_file: Path) -> Iterator[JobResult]:
    """Results as they arrive. When the caller ends early, running jobs are told to stop and waited for."""
    with parallel_config("loky", **_IGNORE_SIGNALS):
        parallel: Any = Parallel(n_jobs=count, return_as="generator_unordered", batch_size=1)
    try:
        results = parallel(calls)
        try:
            for result in results:
                if not result.stopped:
                    yield result
        finally:
            stop_file.touch()
            for _ in results:
                pass
    except TerminatedWorkerError:
        raise RunError(
            "a worker process was killed, most often because memory ran out; use fewer --jobs. The same "
            "command resumes from the last checkpoints"
        ) from None


# --- a Dask cluster


@contextmanager
def dask_cluster(address: str, settings: Settings) -> Iterator[Engine]:
    """An engine of the workers of a Dask scheduler. If the caller ends early, runs are canceled and stop.

    On a cluster with GPUs every run needs one unit of a worker's resource GPU.
    """
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise RunError("--scheduler needs Dask; pip install 'apportion[dask]'") from None
    try:
        client = Client(address, timeout=10)
    except (OSError, ValueError) as problem:
        raise RunError(f"no Dask scheduler answers at {address}: {problem}") from None
    with client:
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        has_gpus = any("GPU" in worker["resources"] for worker in workers)
        on_gpu = settings["device"].startswith("cuda") or (settings["device"] == "auto" and has_gpus)

        def engine(jobs: Sequence[Job]) -> Iterator[JobResult]:
            resources = {"GPU": 1} if on_gpu else None
            futures = {
                client.submit(_run_on_dask, job, settings, pure=False, resources=resources): job
                for job in jobs
            }
            try:
                for future in as_completed(futures):
                    problem = future.exception()  # for example, too many workers died with this job
                    if problem is None:
                        yield future.result()
                    else:
                        yield JobResult(futures[future], problem=str(problem))
            except BaseException:
                client.cancel(list(futures))
                raise

        yield engine


def _run_on_dask(job: Job, settings: Settings) -> JobResult:
    """Make a run in a thread of a Dask worker, until it is canceled or the worker closes."""
    from distributed import Reschedule, Status, get_worker

    worker: Any = get_worker()
    key = worker.get_current_task()

    def should_stop() -> bool:
        task = worker.state.tasks.get(key)
        if task is None or task.state == "cancelled":
            return True
        return worker.status in (Status.closing, Status.closed)

    result = run_job(job, settings, should_stop=should_stop)
    if result.stopped:
        raise Reschedule  # nobody hears of this if the run was canceled
    return result

"""Where runs are made: processes of this machine by joblib, or the workers of a Dask scheduler."""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from joblib import Parallel, cpu_count, delayed, parallel_config
from joblib.externals.loky.process_executor import TerminatedWorkerError

from apportion._device import find_device
from apportion.errors import RunError
from apportion.jobs import Done, Engine, Job, do
from apportion.jobs.stopping import SIGNALS, alone, signals_ask, told_or_alone

# Ctrl-C, and what is sent to a whole group, reach the processes too: they are to hear of it from this one
DEAF: dict[str, Any] = {}
if sys.platform != "win32":
    DEAF = {"initializer": signal.pthread_sigmask, "initargs": (signal.SIG_BLOCK, SIGNALS)}


def processes(count: int, given: dict[str, Any]) -> Engine:
    """`count` processes of this machine, which share its cores, and its GPUs in turn.

    What ends the asking early, Ctrl-C and SIGTERM included, stops the runs at their next step.
    """
    if find_device(given["device"]).type == "cuda" and ":" not in given["device"]:
        devices = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    else:
        devices = [given["device"]]
    threads = max(1, cpu_count() // count)

    def engine(jobs: Sequence[Job]) -> Iterator[Done]:
        if count == 1:
            yield from (do(job, given | {"device": devices[0]}, threads) for job in jobs)
            return
        with TemporaryDirectory(prefix="apportion-") as folder:
            stop = Path(folder) / "stop"
            calls = (
                delayed(in_pool)(
                    job, given | {"device": devices[i % len(devices)]}, threads, stop, os.getpid()
                )
                for i, job in enumerate(jobs)
                if not stop.exists()
            )
            with signals_ask(stop):
                yield from _made(calls, count, stop)

    return engine


def in_pool(job: Job, given: dict[str, Any], threads: int, stop: Path, parent: int) -> Done:
    """Make a run in a process of the pool, until it is told to stop or its parent is gone."""
    done = do(job, given, threads, partial(told_or_alone, stop, parent))
    if alone(parent):
        os._exit(1)  # else it would wait for work that nobody can bring
    return done


def _made(calls: Iterator[Any], count: int, stop: Path) -> Iterator[Done]:
    with parallel_config("loky", **DEAF):
        parallel: Any = Parallel(n_jobs=count, return_as="generator_unordered", batch_size=1)
    try:
        results = parallel(calls)
        try:
            for done in results:
                if not done.stopped:
                    yield done
        finally:
            stop.touch()
            for _ in results:  # those who are at it end, each with its checkpoint
                pass
    except TerminatedWorkerError:
        remedy = "use fewer --jobs; the same command goes on from the last checkpoints"
        raise RunError(f"a process was killed, most often for want of memory: {remedy}") from None


@contextmanager
def cluster(address: str, given: dict[str, Any]) -> Iterator[Engine]:
    """The workers of a Dask scheduler; where runs are on GPUs, each asks for one of a worker's GPU.

    What ends the asking early cancels the runs, which stop at their next step.
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
        offers = [worker["resources"] for worker in client.scheduler_info(n_workers=-1)["workers"].values()]
        on_gpu = given["device"].startswith("cuda") or (
            given["device"] == "auto" and any("GPU" in offer for offer in offers)
        )

        def engine(jobs: Sequence[Job]) -> Iterator[Done]:
            wanted = {"GPU": 1} if on_gpu else None
            futures = {
                client.submit(on_worker, job, given, pure=False, resources=wanted): job for job in jobs
            }
            try:
                for future in as_completed(futures):
                    problem = future.exception()  # such as too many workers that died of it
                    yield future.result() if problem is None else Done(futures[future], problem=f"{problem}")
            except BaseException:
                client.cancel(list(futures))
                raise

        yield engine


def on_worker(job: Job, given: dict[str, Any]) -> Done:
    """Make a run in a thread of a Dask worker, until the run is canceled or the worker closes."""
    from distributed import Reschedule, Status, get_worker

    worker: Any = get_worker()
    key = worker.get_current_task()

    def asked() -> bool:
        task = worker.state.tasks.get(key)
        return task is None or task.state == "cancelled" or worker.status in (Status.closing, Status.closed)

    done = do(job, given, asked=asked)
    if done.stopped:
        raise Reschedule  # of a canceled run nobody hears it
    return done

"""Where runs are made: processes of this machine by joblib, or the workers of a Dask scheduler."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from joblib import Parallel, cpu_count, delayed
from joblib.externals.loky.process_executor import TerminatedWorkerError

from apportion.jobs import Done, Engine, Job, JobError, do
from apportion.speed import pick_device


def processes(count: int, given: dict[str, Any]) -> Engine:
    """`count` processes of this machine, which share its cores, and its GPUs in turn."""
    if pick_device(given["device"]).type == "cuda" and ":" not in given["device"]:
        devices = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    else:
        devices = [given["device"]]
    threads = max(1, cpu_count() // count)

    def engine(jobs: Sequence[Job]) -> Iterator[Done]:
        calls = (
            delayed(do)(job, given | {"device": devices[i % len(devices)]}, threads)
            for i, job in enumerate(jobs)
        )
        parallel: Any = Parallel(n_jobs=count, return_as="generator_unordered", batch_size=1)
        try:
            yield from parallel(calls)
        except TerminatedWorkerError:
            remedy = "use fewer --jobs; the same command goes on from the last checkpoints"
            raise JobError(f"a process was killed, most often for want of memory: {remedy}") from None

    return engine


@contextmanager
def cluster(address: str, given: dict[str, Any]) -> Iterator[Engine]:
    """The workers of a Dask scheduler; where runs are on GPUs, each asks for one of a worker's GPU."""
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise JobError("--scheduler needs Dask; pip install 'apportion[dask]'") from None
    try:
        client = Client(address, timeout=10)
    except (OSError, ValueError) as problem:
        raise JobError(f"no Dask scheduler answers at {address}: {problem}") from None
    with client:
        offers = [worker["resources"] for worker in client.scheduler_info(n_workers=-1)["workers"].values()]
        on_gpu = given["device"].startswith("cuda") or (
            given["device"] == "auto" and any("GPU" in offer for offer in offers)
        )

        def engine(jobs: Sequence[Job]) -> Iterator[Done]:
            wanted = {"GPU": 1} if on_gpu else None
            futures = {client.submit(do, job, given, pure=False, resources=wanted): job for job in jobs}
            for future in as_completed(futures):
                problem = future.exception()  # such as too many workers that died of it
                yield future.result() if problem is None else Done(futures[future], problem=f"{problem}")

        yield engine

"""Many runs at once, a line for each that has ended."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from apportion import runs
from apportion.cli.scalars import Scalars
from apportion.errors import RunError
from apportion.jobs import Cell, Done, run_all
from apportion.jobs.engines import cluster, processes


def run_together(
    cells: list[Cell], out: Path, jobs: int, scheduler: str | None, tensorboard: bool, given: dict[str, Any]
) -> None:
    """Make the runs, and say at the end which of them could not be made."""
    out = out.resolve()  # workers have folders of their own
    if given["data"] is not None:
        given = given | {"data": given["data"].resolve()}
    failed = 0
    made = nullcontext(processes(jobs, given)) if scheduler is None else cluster(scheduler, given)
    with Scalars(tensorboard) as scalars, made as engine:
        for number, done in enumerate(run_all(cells, out, engine, given["force"]), 1):
            print(f"{number}: {done.job.folder.relative_to(out)}: {told(done)}", flush=True)
            failed += done.problem is not None
            if tensorboard and done.problem is None and done.seconds:
                for line in runs.read_log(done.job.folder):
                    scalars.show(done.job.folder, line)
    if failed:
        raise RunError(f"{failed} runs could not be made, for the reasons above; the others are finished")


def told(done: Done) -> str:
    if done.problem is not None:
        return f"failed: {done.problem}"
    accuracy = runs.read_result(done.job.folder)["test_accuracy"]["last"]
    return f"test {accuracy:.2f} %, " + (f"{done.seconds:.1f} s" if done.seconds else "finished before")

"""Many runs at once, on an engine of `engines`: teachers before their students, and each teacher once."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from apportion import runs
from apportion.errors import RunError
from apportion.experiment.run import run
from apportion.experiment.stages import files_needed, teacher_folder
from apportion.jobs.stopping import Asked, Stop, stop_when
from apportion.jobs.waiting import Patience
from apportion.recipes import Recipe, to_json
from apportion.recipes.checks import check
from apportion.runs.locks import in_use

WAIT_SECONDS = 2.0  # between looks at a folder that another process is training in
_TURN = threading.Lock()  # torch's random numbers are one a process: runs on threads of one take turns


@dataclass(frozen=True)
class Job:
    """One run of one stage."""

    recipe: Recipe
    folder: Path
    teacher: Path | None = None


@dataclass(frozen=True)
class Done:
    """A job that has ended: how long it took here, 0 where it was finished before, or what was wrong."""

    job: Job
    seconds: float = 0.0
    problem: str | None = None
    stopped: bool = False  # it was asked to


Cell = tuple[str, Recipe]  # a recipe with its name, such as table1/dllp+plot/64
Engine = Callable[[Sequence[Job]], Iterable[Done]]


def run_all(cells: Sequence[Cell], root: Path, engine: Engine, force: bool = False) -> Iterator[Done]:
    """Run named recipes below `root`: first stages, each of them once, then the second stages they teach."""
    yield from _handed(first_jobs(cells, root, force), engine)
    seconds = []
    for name, recipe in cells:
        if recipe.second is not None:
            folder = root / name / f"seed={recipe.seed}"
            teacher = None if runs.finished(folder) else teacher_folder(recipe, root, name)
            job = Job(recipe, folder, teacher)
            if teacher is not None and not runs.finished(teacher):
                yield Done(job, problem=f"its first stage in {teacher} is not finished")
            else:
                seconds.append(job)
    yield from _handed(seconds, engine)


def first_jobs(cells: Sequence[Cell], root: Path, force: bool) -> list[Job]:
    """The first stages that are asked for, and those that second stages need; one job a recipe."""
    jobs: dict[str, Job] = {}
    for name, recipe in cells:
        check(recipe)
        folder = root / name / f"seed={recipe.seed}"
        runs.refuse_other(folder, to_json(recipe), force)
        if recipe.second is None:
            jobs[str(folder)] = Job(recipe, folder)
    known = {to_json(job.recipe): job.folder for job in jobs.values()}
    for name, recipe in cells:
        first = replace(recipe, second=None)
        if recipe.second is None or runs.finished(root / name / f"seed={recipe.seed}"):
            continue
        if not _will_teach(known.get(to_json(first)), recipe):
            folder = known[to_json(first)] = teacher_folder(recipe, root, name)
            if str(folder) in jobs:
                raise RunError(f"{folder} would hold two first stages; run {name} with another --out")
            jobs[str(folder)] = Job(first, folder)
    return list(jobs.values())


def _will_teach(folder: Path | None, recipe: Recipe) -> bool:
    """Whether a first stage has what this second one starts from, or will have it when it is finished."""
    if folder is None or not runs.finished(folder):
        return folder is not None
    return all((folder / file).exists() for file in files_needed(recipe))


def _handed(jobs: Sequence[Job], engine: Engine) -> Iterator[Done]:
    """What is finished is not handed on; what is said to be done must be there."""
    before = {job.folder for job in jobs if runs.finished(job.folder)}  # asked once: others may finish some
    yield from (Done(job) for job in jobs if job.folder in before)
    for done in engine([job for job in jobs if job.folder not in before]):
        if done.problem is None and not runs.finished(done.job.folder):
            what = f"{done.job.folder} was trained where this machine cannot see it"
            yield replace(done, problem=f"{what}; put --out on a file system that all workers share")
        else:
            yield done


def do(job: Job, given: dict[str, Any], threads: int | None = None, asked: Asked = lambda: False) -> Done:
    """Make one run in this process; where another process is making it, wait for that. Once `asked` to stop
    it leaves the checkpoint of the last whole epoch."""
    with _TURN, stop_when(asked) as look:
        if threads is not None:
            torch.set_num_threads(threads)
        started, patience = time.monotonic(), Patience(job.folder)
        try:
            while not runs.finished(job.folder):
                look()
                try:
                    lines: Any = run(job.recipe, job.folder, teacher=job.teacher, **given)
                    with closing(lines):
                        for _ in lines:
                            look()
                except runs.InUse as problem:
                    while in_use(job.folder):  # looked at without reading the data again
                        look()
                        if patience.ends():
                            return Done(job, time.monotonic() - started, f"{problem}; {patience}")
                        time.sleep(WAIT_SECONDS)
                except (ValueError, RuntimeError, ArithmeticError, OSError) as problem:
                    if not runs.finished(job.folder):  # else by another process, in this moment
                        return Done(job, time.monotonic() - started, f"{problem}")
        except Stop:
            if not runs.finished(job.folder):
                return Done(job, time.monotonic() - started, "stopped", stopped=True)
        return Done(job, time.monotonic() - started)

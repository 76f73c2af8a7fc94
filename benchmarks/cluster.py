"""A Dask scheduler and two workers over loopback, one of which is killed half-way through a grid.

    python benchmarks/cluster.py

Twenty cells of digits are handed to the cluster. After half of them a worker is killed (SIGKILL) in the
middle of a run. Then all cells must be there, none made twice to its end, and all files must be those of
twenty plain runs, to the bit, but for clocks. Needs a POSIX system and apportion[dask].
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import torch
from kill import contents

from apportion.experiments.parallel import NamedRecipe, dask_cluster, run_all, run_job
from apportion.experiments.recipe import change_recipe
from apportion.experiments.recipes import RECIPES

NAMES = ("digits/dllp/16", "digits/dllp+plot/16", "digits/rot/16", "digits/rot+plot/16", "digits/llp_vat/16")
GIVEN = {"device": "cpu", "data": None, "exact": False, "force": False}


def cells(seeds: int, epochs: int) -> list[NamedRecipe]:
    settings = {"first.epochs": str(epochs)}
    made = []
    for seed in range(1, seeds + 1):
        for name in NAMES:
            more = {"second.epochs": str(epochs)} if "plot" in name else {}
            made.append((name, replace(change_recipe(RECIPES[name], settings | more), seed=seed)))
    return made


def started(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """A Dask process without a dashboard, whose words go to a file."""
    command = [sys.executable, "-m", "dask", *words]
    with (folder / f"{words[0]}.log").open("ab") as log:
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=env)


class Ends:
    """Looks at a root for results, and counts how often each was written: a new file has a new number."""

    def __init__(self, root: Path) -> None:
        self.root, self.seen, self.over = root, {}, threading.Event()
        self.thread = threading.Thread(target=self._look)
        self.thread.start()

    def _look(self) -> None:
        while not self.over.wait(0.01):
            self.look()

    def look(self) -> None:
        for path in self.root.rglob("result.json"):
            self.seen.setdefault(path, set()).add((path.stat().st_ino, path.stat().st_mtime_ns))

    def counts(self) -> list[int]:
        self.over.set()
        self.thread.join()
        self.look()
        return [len(files) for files in self.seen.values()]


class Attack:
    """Kills the first worker that is in the middle of a run, once so many cells are finished.

    A worker is suspended before it is looked at, so that it cannot finish its run in between. This has a
    thread of its own: were the runs to wait for it, the last one under way could be another worker's.
    """

    def __init__(self, workers: list[subprocess.Popen[bytes]], root: Path, after: int) -> None:
        self.workers, self.root, self.after, self.killed = workers, root, after, ""
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._look)
        self.thread.start()

    def _look(self) -> None:
        while not self.over.wait(0.005) and not self.killed:
            if len(list(self.root.rglob("result.json"))) >= self.after:
                for worker in self.workers:
                    self._try(worker)

    def _try(self, worker: subprocess.Popen[bytes]) -> None:
        if self.killed or not self._run_of(worker):
            return
        worker.send_signal(signal.SIGSTOP)
        if folder := self._run_of(worker):
            worker.send_signal(signal.SIGKILL)
            worker.wait()
            self.killed = str(folder.relative_to(self.root))
            print(f"killed a worker that was making {self.killed}", flush=True)
        else:
            worker.send_signal(signal.SIGCONT)

    def _run_of(self, worker: subprocess.Popen[bytes]) -> Path | None:
        """The run that a worker is in the middle of: it holds the lock, and has written an epoch or more."""
        for lock in self.root.rglob("lock"):
            with suppress(FileNotFoundError):
                begun = (lock.parent / "log.jsonl").exists() and not (lock.parent / "result.json").exists()
                if begun and is_open(lock, worker.pid):
                    return lock.parent
        return None

    def end(self) -> str:
        self.over.set()
        self.thread.join()
        return self.killed


@contextmanager
def loopback(folder: Path, workers: int) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """The address of a scheduler, and its workers."""
    told = folder / "scheduler.json"  # it takes a port of its own: a free one may be gone when it comes
    words = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(told))
    there = [started(folder, "scheduler", *words)]
    try:
        address = address_in(told, there[0])
        words = ("worker", address, "--nthreads", "1", "--no-nanny", "--no-dashboard", "--name")
        there += [started(folder, *words, str(i)) for i in range(workers)]
        yield address, there[1:]
    finally:
        for process in there:
            process.terminate()
            process.wait()


def is_open(path: Path, pid: int) -> bool:
    """Whether a process has the file open. Linux only."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if descriptor.readlink() == path.resolve():
                return True
    return False


def address_in(told: Path, scheduler: subprocess.Popen[bytes], seconds: float = 60) -> str:
    """Where a scheduler listens, once it has written it down."""
    until = time.monotonic() + seconds
    while scheduler.poll() is None and time.monotonic() < until:
        with suppress(FileNotFoundError, json.JSONDecodeError):
            return json.loads(told.read_text())["address"]
        time.sleep(0.05)
    raise RuntimeError(f"no scheduler: {(told.parent / 'scheduler.log').read_text()}")


def attacked(
    grid: list[NamedRecipe], root: Path, address: str, workers: list[subprocess.Popen[bytes]]
) -> bool:
    """Run the grid on a cluster that loses a worker; whether nothing was lost and nothing made twice."""
    ends, attack, killed = Ends(root), Attack(workers, root, len(grid) // 2), ""
    try:
        with dask_cluster(address, GIVEN) as engine:
            for done, each in enumerate(run_all(grid, root, engine), 1):
                print(f"{done}: {each.job.folder.relative_to(root)}: {each.problem or 'made'}", flush=True)
    finally:
        counts, killed = ends.counts(), attack.end()
    print(f"{len(counts)} of {len(grid)} cells finished, each {sorted(set(counts))} times")
    return len(counts) == len(grid) and set(counts) == {1} and bool(killed)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    grid = cells(options.seeds, options.epochs)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with loopback(folder, 2) as (address, workers):
            fine = attacked(grid, folder / "cluster", address, workers)
        for _ in run_all(grid, folder / "plain", lambda jobs: (run_job(job, GIVEN) for job in jobs)):
            pass
        same = contents(folder / "cluster") == contents(folder / "plain")
    print("the files are those of plain runs" if same else "the files DIFFER from those of plain runs")
    return 0 if fine and same else 1


if __name__ == "__main__":
    sys.exit(main())

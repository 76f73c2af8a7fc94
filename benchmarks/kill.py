"""Kill trainings and compare what they end with to the same training left alone, to the bit.

    python benchmarks/kill.py moments --times 20     SIGKILL at random moments of a training of both stages
    python benchmarks/kill.py writes                 SIGKILL before and in the middle of its writes
    python benchmarks/kill.py many --runs 1000       1,000 runs in one folder, ten of them killed
    python benchmarks/kill.py fits --times 20        SIGKILL at random moments of `fit --checkpoint`, until
                                                     the fit is done; a checkpoint after every epoch, or with
                                                     --shipped as often as users have them

All need a POSIX system. Trainings are forked from this process, which has imported and compiled everything
in a training of its own, so that a killed one costs no start.
"""

import argparse
import json
import os
import random
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from apportion import checkpoints
from apportion.cli.app import app
from apportion.experiments.recipe import change_recipe
from apportion.experiments.recipes import RECIPES
from apportion.experiments.run import run_with_teacher
from apportion.experiments.sample import read_sample
from apportion.report.tables import collect

NAME = "digits/rot+plot/16"
CLOCKS = {"seconds", "timed"}  # times differ from run to run
APART = {"where.json", "lock", "last.safetensors"}  # a kill just after the result leaves the last two


# --- one training in a process of its own


def train(root: Path, epochs: int) -> None:
    """Both stages, with a checkpoint after every epoch; the second has all that a checkpoint can hold."""
    checkpoints.CHECKPOINT_SECONDS = -1.0
    settings = {"first.epochs": str(epochs), "second.epochs": str(epochs), "second.labels": "soft"}
    more = {"second.warmup_epochs": "2", "second.ema": "0.5", "second.stop": "0", "second.mixup": "0.4"}
    recipe = replace(change_recipe(RECIPES[NAME], settings | more), seed=1)
    for _ in run_with_teacher(recipe, root, NAME, device="cpu"):
        pass


def forked(work: Callable[[], None]) -> int:
    """The number of a process that does the work and nothing after it."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
        os._exit(0)
    except BaseException:  # noqa: BLE001
        sys.excepthook(*sys.exc_info())
        os._exit(1)


def left_alone(root: Path, epochs: int) -> float:
    """The seconds that a training takes which nobody disturbs."""
    started = time.monotonic()
    if os.waitpid(forked(lambda: train(root, epochs)), 0)[1]:
        raise SystemExit("a training that nobody disturbed has failed")
    return time.monotonic() - started


def without_clocks(value: object) -> object:
    if isinstance(value, dict):
        return {name: without_clocks(part) for name, part in value.items() if name not in CLOCKS}
    return [without_clocks(part) for part in value] if isinstance(value, list) else value


def contents(root: Path) -> dict[str, object]:
    """All that a training leaves, less its clocks, where it ran, and what is of no use after the end."""
    found: dict[str, object] = {}
    for path in sorted(path for path in root.rglob("*") if path.is_file() and path.name not in APART):
        name = str(path.relative_to(root))
        if path.suffix == ".json":
            found[name] = without_clocks(json.loads(path.read_text()))
        elif path.suffix == ".jsonl":
            found[name] = [without_clocks(json.loads(line)) for line in path.read_text().splitlines()]
        elif path.suffix == ".npz":
            sample = vars(read_sample(path.parent))
            arrays = {key: value.tolist() for key, value in sample.items() if isinstance(value, np.ndarray)}
            found[name] = arrays | {"info": without_clocks(sample["info"])}
        else:
            found[name] = path.read_bytes()
    return found


def same_in_the_end(root: Path, epochs: int, expected: dict[str, object]) -> bool:
    """Go on with a killed training; whether it ends as the one that was left alone."""
    left_alone(root, epochs)
    got = contents(root)
    for name in sorted(got.keys() ^ expected.keys()):
        print(f"  {name} is there {'in vain' if name in got else 'no more'}")
    for name in sorted(n for n in got.keys() & expected.keys() if got[n] != expected[n]):
        print(f"  {name} differs")
    return got == expected


# --- at random moments


def moments(folder: Path, times: int, epochs: int, seed: int) -> bool:
    draw = random.Random(seed)  # noqa: S311
    whole = left_alone(folder / "whole", epochs)
    expected, same = contents(folder / "whole"), 0
    tried = 0
    while tried < times:
        at = draw.uniform(0, whole)
        root = folder / f"{at}"
        pid = forked(lambda root=root: train(root, epochs))
        time.sleep(at)
        os.kill(pid, signal.SIGKILL)
        if os.waitpid(pid, 0)[1] != signal.SIGKILL:
            whole = at  # it was done before, on a machine that is less busy now
            continue
        done = sum(len(log.read_bytes().splitlines()) for log in root.rglob("log.jsonl"))
        same, tried = same + same_in_the_end(root, epochs, expected), tried + 1
        print(f"killed after {at:.2f} seconds with {done} of {2 * epochs} epochs in the log: "
              f"{same} of {tried} the same", flush=True)  # fmt: skip
    return same == times


# --- at every write


FSYNC = os.fsync


class Counter:
    """Counts what a process does to files below a root, and kills it before the last of them."""

    def __init__(self, root: Path, last: int | None) -> None:
        self.root, self.last, self.count = str(root), last, 0

    def hear(self, event: str, arguments: tuple) -> None:
        if event in ("open", "os.mkdir", "os.rename", "os.remove") and str(arguments[0]).startswith(
            self.root
        ):
            self.act(lambda: None)

    def act(self, before: Callable[[], None]) -> None:
        self.count += 1
        if self.count == self.last:
            before()
            os.kill(os.getpid(), signal.SIGKILL)


def cut_and_die(counter: Counter, descriptor: int) -> None:
    """In place of a sync: half of the file is written when the process dies."""
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        counter.act(lambda: os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2))
    FSYNC(descriptor)


def watched(root: Path, epochs: int, last: int | None, halves: bool) -> int:
    """Train until file operation (or sync) number `last`; the number of operations where it came through."""

    def work() -> None:
        counter = Counter(root, last)
        if halves:
            os.fsync = lambda descriptor: cut_and_die(counter, descriptor)
        else:
            sys.addaudithook(counter.hear)
        train(root, epochs)
        (root.parent / "count").write_text(str(counter.count))

    os.waitpid(forked(work), 0)
    return int((root.parent / "count").read_text()) if last is None else 0


def writes(folder: Path, epochs: int, step: int) -> bool:
    left_alone(folder / "whole", epochs)
    expected, good = contents(folder / "whole"), True
    for halves in (False, True):
        count = watched(folder / f"count {halves}", epochs, None, halves)
        tried = range(1, count + 1, step)
        same = 0
        for last in tried:
            root = folder / f"{halves} {last}"
            watched(root, epochs, last, halves)
            same += same_in_the_end(root, epochs, expected)
        where = "in the middle of a write" if halves else "before an operation on a file"
        print(f"killed {where}: {same} of {len(tried)} the same (every {step}. of {count})", flush=True)
        good &= same == len(tried)
    return good


# --- fits of a table


def write_people(folder: Path, rows: int) -> None:
    """A table of numbers and categories in bags of 20, and the shares of their classes."""
    draw = np.random.default_rng(0)
    bag = np.arange(rows) // 20
    x = draw.normal(size=(rows, 6))
    town = draw.choice(["Bern", "Graz", "Oslo"], rows)
    score = x[:, 0] * x[:, 1] + (town == "Bern") + np.repeat(draw.normal(size=rows // 20), 20)
    yes = np.bincount(bag, score + 0.5 * draw.normal(size=rows) > 0.5) / 20
    with (folder / "people.csv").open("w") as file:  # not by polars, whose threads do not survive a fork
        file.write("bag,town,a,b,c,d,e,f\n")
        file.writelines(
            f"b{i},{name},{','.join(map(repr, row))}\n"
            for i, name, row in zip(bag, town, x.tolist(), strict=True)
        )
    with (folder / "shares.csv").open("w") as file:
        file.write("bag,no,yes\n")
        file.writelines(f"b{i},{1 - share},{share}\n" for i, share in enumerate(yes))


def fit(data: Path, root: Path, shipped: bool, settings: Sequence[str]) -> None:
    if not shipped:
        checkpoints.CHECKPOINT_SECONDS = -1.0
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    words = ["fit", data / "people.csv", "--bag", "bag", "--proportions", data / "shares.csv", *settings]
    words += ["--out", root / "model", "--checkpoint", root / "checkpoint"]
    app([str(word) for word in words], standalone_mode=False)


def model_of(root: Path) -> dict[str, object]:
    """The files of a model, less the seconds that its epochs took."""
    found: dict[str, object] = {path.name: path.read_bytes() for path in (root / "model").iterdir()}
    return found | {"model.json": without_clocks(json.loads((root / "model/model.json").read_text()))}


def fits(folder: Path, times: int, seed: int, rows: int, shipped: bool, settings: Sequence[str]) -> bool:
    draw = random.Random(seed)  # noqa: S311
    write_people(folder, rows)

    def begin(root: Path) -> int:
        return forked(lambda: fit(folder, root, shipped, settings))

    started = time.monotonic()
    if os.waitpid(begin(folder / "whole"), 0)[1]:
        raise SystemExit("a fit that nobody disturbed has failed")
    whole = time.monotonic() - started
    expected, same = model_of(folder / "whole"), 0
    tried = 0
    while tried < times:
        root = folder / f"{tried} {whole}"
        kills = resumed = 0
        while not (root / "model").exists():
            resumed += (root / "checkpoint/checkpoint.safetensors").exists()
            started = time.monotonic()
            pid = begin(root)
            end = started + draw.uniform(0, 0.5 * whole)
            ended, status = 0, 0
            while not ended and time.monotonic() < end:
                time.sleep(0.005)
                ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                os.kill(pid, signal.SIGKILL)
                status = os.waitpid(pid, 0)[1]
                kills += status == signal.SIGKILL
            if status not in (0, signal.SIGKILL):
                raise SystemExit(f"a fit has failed after {kills} kills")
        if not kills:
            whole = time.monotonic() - started  # it was done before, on a machine that is less busy now
            continue
        same, tried = same + (model_of(root) == expected), tried + 1
        print(f"{kills} kills, {resumed} times continued: {same} of {tried} the same", flush=True)
    print(f"the fit takes {whole:.1f} seconds undisturbed")
    return same == times


# --- many runs in one folder


def many(folder: Path, n: int, killed: int, epochs: int, seed: int) -> bool:
    draw, root = random.Random(seed), folder / "runs"  # noqa: S311
    name = f"smoke,first.epochs={epochs}/dllp/50"
    cell = root / name
    settings = ["--set", f"first.epochs={epochs}", "--device", "cpu", "--out", str(root)]

    def command(first: int) -> list[str]:
        return [
            sys.executable,
            "-m",
            "apportion",
            "run",
            "smoke/dllp/50",
            "--seeds",
            f"{first}-{n}",
            *settings,
        ]

    def finished(i: int) -> bool:
        return (cell / f"seed={i}/result.json").exists()

    started, first = time.monotonic(), 1
    for victim in sorted(draw.sample(range(1, n), killed)):
        process = subprocess.Popen(command(first), stdout=subprocess.DEVNULL)
        while not (cell / f"seed={victim}/recipe.json").exists():
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.02 * epochs))
        process.kill()
        process.wait()
        first = 1 + next(i for i in range(first, n + 2) if not finished(i))  # the killed run is left as it is
    subprocess.run(command(first), stdout=subprocess.DEVNULL, check=True)
    before = {i: (cell / f"seed={i}/result.json").stat().st_mtime_ns for i in range(1, n + 1) if finished(i)}
    print(f"{n} runs, {killed} processes killed, {n - len(before)} runs left unfinished: "
          f"{time.monotonic() - started:.0f} seconds", flush=True)  # fmt: skip
    said = subprocess.run(command(1), stdout=subprocess.PIPE, text=True, check=True).stdout
    skipped = " ".join(said.split()).count("finished before, skipped")
    after = {i: (cell / f"seed={i}/result.json").stat().st_mtime_ns for i in range(1, n + 1) if finished(i)}
    twice = [i for i in before if before[i] != after.get(i)]
    report = [sys.executable, "-m", "apportion", "report", str(root), "--md", str(folder / "report.md")]
    subprocess.run(report, check=True, stdout=subprocess.DEVNULL)
    read = collect(root)[name]
    print(f"after one more command: {len(after)} finished, {skipped} skipped, {len(twice)} ran twice to the "
          f"end, {len(read.folders)} read by the report", flush=True)  # fmt: skip
    return len(after) == len(read.folders) == n and skipped == len(before) and not twice


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("moments", "writes", "many", "fits"))
    parser.add_argument("--times", type=int, default=20, help="moments: how many")
    parser.add_argument("--step", type=int, default=1, help="writes: every one, every second, ...")
    parser.add_argument("--runs", type=int, default=1000, help="many: how many")
    parser.add_argument("--killed", type=int, default=10, help="many: how many of them")
    parser.add_argument("--epochs", type=int, help="of a stage: 8, 2 and 60 unless told")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=1500, help="fits: of the table")
    parser.add_argument(
        "--shipped", action="store_true", help="fits: checkpoints as often as users have them"
    )
    given, settings = parser.parse_known_args()
    if settings and given.what != "fits":
        parser.error(f"unknown: {' '.join(settings)}; only fits passes options on, to `apportion fit`")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if given.what in ("moments", "writes"):
            train(Path(folder) / "first", 2)
        if given.what == "moments":
            good = moments(Path(folder), given.times, given.epochs or 8, given.seed)
        elif given.what == "fits":
            good = fits(Path(folder), given.times, given.seed, given.rows, given.shipped, settings)
        elif given.what == "writes":
            good = writes(Path(folder), given.epochs or 2, given.step)
        else:
            good = many(Path(folder), given.runs, given.killed, given.epochs or 60, given.seed)
    print("all the same" if good else "NOT THE SAME")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()

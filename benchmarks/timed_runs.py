"""Make runs one after the other within a time limit, such as on a GPU that is lent for a while.

    python benchmarks/timed_runs.py --seconds 560 --data DIR --out results \
        table1/dllp+plot/16@2=95 beyond-conv13/two_views/64@2=230

Each word is RECIPE@SEED=SECONDS. A run starts only if so many seconds are left, and is stopped as soon as its
epochs turn out too slow to end in time.

With --resume a run trains until the time is up, whatever it needs, and the same words continue it in the next
session on that machine. A run that can end within --grace seconds after the limit does.

--set changes a setting of all runs; these go to groups of their own. Missing first stages are trained. If a
run fails, the error is printed and the next one starts.

Reports need the files of a finished run except its weights and predictions, so
`tar --exclude='*.safetensors' --exclude='*.npy'` makes small archives. Later second stages need
`log_probs.npy` of their first stage, and `model.safetensors` if the teacher itself is trained on. A run that
is to be resumed elsewhere needs all of its folder: without `last.safetensors` it starts over, with a warning.

On a GPU the commit must be known, from git or from $APPORTION_COMMIT in a copy without its history.

The exit code is 0 if all runs ended, 1 if some did not start, 2 if one failed, 3 if one is to be resumed.
"""

import argparse
import statistics
import sys
import time
import traceback
from collections import defaultdict
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from apportion._device import find_device
from apportion.cli.experiments import parse_settings
from apportion.experiments.provenance import describe_where
from apportion.experiments.recipe import Recipe, change_recipe, changed_name
from apportion.experiments.recipes import RECIPES
from apportion.experiments.run import run_with_teacher
from apportion.experiments.run_folder import read_result

SHOWN = 10  # epochs between printed lines; also as many as it takes to know how long an epoch is
LEAST = 30  # seconds in which a run learns anything, compilation included


def parse_word(word: str) -> tuple[str, int, float]:
    """The recipe's name, the seed and the seconds needed."""
    rest, _, needed = word.partition("=")
    name, _, seed = rest.partition("@")
    if name not in RECIPES:
        raise SystemExit(f"{word}: no recipe '{name}'; `apportion list` prints them")
    return name, int(seed or 1), float(needed or 0)


def describe_epoch(line: dict[str, Any], epochs: int) -> str:
    labels = line.get("label_accuracy", {}).get("labels")
    right = "" if labels is None else f", labels {labels:.2f} % right"
    seconds = sum(line["seconds"].values())
    return f"epoch {line['epoch']} of {epochs}: test {line['test_accuracy']:.2f} %{right}, {seconds:.2f} s"


class TooSlow(RuntimeError):
    """A stage that would not end in time."""


def check_in_time(spent: list[float], to_come: int, left: float) -> None:
    """Raise TooSlow if a stage would not end in time. `spent` are the seconds of its epochs so far."""
    needed = to_come * statistics.median(spent[-SHOWN:])
    if to_come and len(spent) > SHOWN and needed > left:  # the first epochs compile
        raise TooSlow(f"{to_come} epochs are to come, {needed:.0f} s; {left:.0f} s are left")


def is_over(spent: list[float], left: float) -> bool:
    """Whether there is no time for another epoch and the checkpoint after it."""
    return left < 10 + 2 * statistics.median(spent[-SHOWN:])


def ends_soon(spent: list[float], to_come: int, left: float) -> bool:
    """Whether all epochs, and the summary after them, would end in the seconds that are left."""
    return 10 + to_come * statistics.median(spent[-SHOWN:]) <= left


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--grace", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("words", nargs="+", metavar="NAME@SEED=SECONDS")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    device = find_device(options.device)
    if device.type == "cuda" and describe_where(device, exact=False)["commit"] is None:
        raise SystemExit("the commit is not known here; set APPORTION_COMMIT to it")
    changes = parse_settings(options.set)
    runs = []
    for word in options.words:
        name, seed, needed = parse_word(word)
        recipe = replace(change_recipe(RECIPES[name], changes), seed=seed)
        runs.append((changed_name(name, changes), recipe, LEAST if options.resume else needed))
    code = 0
    for name, recipe, needed in runs:
        started = time.monotonic()
        left = end - started
        if left < needed:
            print(
                f"{name}, seed {recipe.seed}: skipped, it needs {needed:.0f} s of {left:.0f} s left",
                flush=True,
            )
            code = max(code, 1)
            continue
        try:
            if train_in_time(name, recipe, end, options):
                accuracy = read_result(options.out / name / f"seed={recipe.seed}")["test_accuracy"]
                print(name, recipe.seed, accuracy, f"{time.monotonic() - started:.0f} s", flush=True)
            else:
                code = code if code == 2 else 3
        except Exception:  # noqa: BLE001  it is printed, and the next run starts
            traceback.print_exc()
            code = max(code, 2)
    return code


def train_in_time(name: str, recipe: Recipe, end: float, options: argparse.Namespace) -> bool:
    """Train both stages as far as there is time. Returns whether they have ended."""
    last = options.out / name / f"seed={recipe.seed}"
    spent = defaultdict[Path, list[float]](list)
    stages = run_with_teacher(recipe, options.out, name, device=options.device, data=options.data)
    with closing(stages):  # which leaves a checkpoint
        for folder, epochs, line in stages:
            if line is None:
                continue
            spent[folder].append(sum(line["seconds"].values()))
            to_come = epochs - line["epoch"]
            left = end - time.monotonic()
            if line["epoch"] % SHOWN == 0 or line["epoch"] in (1, epochs):
                print(folder, describe_epoch(line, epochs), flush=True)
            if not options.resume:
                check_in_time(spent[folder], to_come, left)
            elif is_over(spent[folder], left) and (to_come or folder != last):
                if folder == last and ends_soon(spent[folder], to_come, left + options.grace):
                    continue
                print(f"{folder}: the time is up; to be resumed after epoch {line['epoch']}", flush=True)
                return False
    return True


if __name__ == "__main__":
    sys.exit(main())

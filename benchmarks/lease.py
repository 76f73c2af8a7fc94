"""Runs one after the other on a device that is lent for a while: none is begun that would not end in time.

    python benchmarks/lease.py --seconds 560 --data DIR --out results \\
        table1/dllp+plot/16@2=95 beyond-conv13/two_views/64@2=230

A word is a recipe, a seed and the seconds that it needs: so many must be left, or it is skipped. One whose
epochs turn out too slow to end in time is given up as soon as that is seen. With --go-on runs train until the
time is over, whatever they need, and the same words go on with them in the next lease of that machine; one
that can end in the --grace does, since a machine may be gone before its next call. What
--set changes is changed in all of them, for a trial, which wants an --out of its own. First stages are made
where they are missing. A run that fails is told, and the next one begins. Predictions are kept, for second
stages at another time; `tar --exclude='*.safetensors' --exclude='*.npy'` leaves them out.
It ends with 0 where all runs have, 1 where some were not begun, 2 where one failed, 3 where one is to go on.
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

from apportion.cli.experiments import parse_settings
from apportion.experiments.recipe import Recipe, change_recipe
from apportion.experiments.recipes import RECIPES
from apportion.experiments.run import run_with_teacher
from apportion.experiments.run_folder import read_result

SHOWN = 10  # epochs between lines, and before one is thought to be typical
LEAST = 30  # seconds in which a run learns anything, after it has compiled


def asked(word: str) -> tuple[str, int, float]:
    """The recipe's name, the seed and the seconds needed."""
    rest, _, needed = word.partition("=")
    name, _, seed = rest.partition("@")
    if name not in RECIPES:
        raise SystemExit(f"{word}: no recipe '{name}'; `apportion list` prints them")
    return name, int(seed or 1), float(needed or 0)


def told(line: dict[str, Any], epochs: int) -> str:
    labels = line.get("label_accuracy", {}).get("labels")
    right = "" if labels is None else f", labels {labels:.2f} % right"
    spent = sum(line["seconds"].values())
    return f"epoch {line['epoch']} of {epochs}: test {line['test_accuracy']:.2f} %{right}, {spent:.2f} s"


class TooSlow(RuntimeError):
    """A stage that would not end in time."""


def refuse_slow(spent: list[float], to_come: int, left: float) -> None:
    """`spent` are the seconds of this stage's epochs so far; the first ones compile."""
    needed = to_come * statistics.median(spent[-SHOWN:])
    if to_come and len(spent) > SHOWN and needed > left:
        raise TooSlow(f"{to_come} epochs are to come, {needed:.0f} s; {left:.0f} s are left")


def is_over(spent: list[float], left: float) -> bool:
    """Whether the time does not do for another epoch, and for the checkpoint after it."""
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
    parser.add_argument("--go-on", action="store_true")
    parser.add_argument("--grace", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("words", nargs="+", metavar="NAME@SEED=SECONDS")
    given = parser.parse_args()
    if given.set and given.out == Path("results"):
        parser.error("--set makes trials: name an --out for them, so that no result is taken for another's")
    end, worst = time.monotonic() + given.seconds, 0
    words = [asked(word) for word in given.words]
    recipes = {name: change_recipe(RECIPES[name], parse_settings(given.set)) for name, _, _ in words}
    for name, seed, needed in words:
        begun, folder = time.monotonic(), given.out / name / f"seed={seed}"
        left = end - begun
        needed = LEAST if given.go_on else needed
        if left < needed:
            print(f"{name}, seed {seed}: skipped, it needs {needed:.0f} s of {left:.0f} s left", flush=True)
            worst = max(worst, 1)
            continue
        try:
            if trained(name, replace(recipes[name], seed=seed), end, given):
                accuracy = read_result(folder)["test_accuracy"]
                print(name, seed, accuracy, f"{time.monotonic() - begun:.0f} s", flush=True)
            else:
                worst = 3
        except Exception:  # noqa: BLE001  told below; the lease goes on
            traceback.print_exc()
            worst = max(worst, 2)
    return worst


def trained(name: str, recipe: Recipe, end: float, given: argparse.Namespace) -> bool:
    """Train both stages, as far as there is time; whether they have ended."""
    spent, last = defaultdict[Path, list[float]](list), given.out / name / f"seed={recipe.seed}"
    stages = run_with_teacher(recipe, given.out, name, device=given.device, data=given.data)
    with closing(stages):  # which leaves a checkpoint
        for folder, epochs, line in stages:
            if line is None:
                continue
            spent[folder].append(sum(line["seconds"].values()))
            to_come, left = epochs - line["epoch"], end - time.monotonic()
            if line["epoch"] % SHOWN == 0 or line["epoch"] in (1, epochs):
                print(folder, told(line, epochs), flush=True)
            if not given.go_on:
                refuse_slow(spent[folder], to_come, left)
            elif is_over(spent[folder], left) and (to_come or folder != last):
                if folder == last and ends_soon(spent[folder], to_come, left + given.grace):
                    continue
                print(f"{folder}: the time is over; it goes on after epoch {line['epoch']}", flush=True)
                return False
    return True


if __name__ == "__main__":
    sys.exit(main())

"""How many files does a reader open who follows a call through the package?

    python benchmarks/walk.py [BASE] [--list] [--only NAME]

Three calls are traced: a fit of the estimator on arrays, `apportion fit` and `apportion run`. Each function
of the package is counted once, where it is first called; lambdas and comprehensions count, and what runs
while a module is imported does not. A hop is a change of file from one first call to the next. For scale,
scikit-learn's MLPClassifier.fit is traced in the same way. With BASE, the sources of that commit are traced
too. --list prints the files in the order in which they are first opened.
"""

import argparse
import io
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import replace
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from types import CodeType, FrameType

# imports the libraries, and sets the number of threads before it does
from same_weights import REPOSITORY, Api, checked_out, rows, run_command, write_people  # isort: skip

import numpy as np
import sklearn
import torch
from sklearn.neural_network import MLPClassifier


def fit_estimator(api: Api) -> Callable[[], object]:
    problem = rows()
    bags = np.arange(len(problem.x)) // 10
    table = replace(problem, bags=bags).shares()
    return lambda: api.package.ProportionClassifier().fit(problem.x, bags=bags, proportions=table)


def fit_command(api: Api) -> Callable[[], object]:
    write_people(Path())
    bags = ("--bag", "town", "--proportions", "town_shares.csv")
    return lambda: run_command("fit", "people.parquet", *bags, "--out", "model")


def run_recipe(api: Api) -> Callable[[], object]:
    name = api.recipe("digits/dllp+plot/16")
    settings = api.recipe_settings(name, epochs=3, student_epochs=3)
    words = [word for setting in settings for word in ("--set", setting)]
    return lambda: run_command("run", name, "--out", "runs", *words)


WALKS = {
    "ProportionClassifier().fit(X, bags=, proportions=)": fit_estimator,
    "apportion fit people.parquet": fit_command,
    "apportion run digits/dllp+plot/16": run_recipe,
}
SCALE = "scikit-learn: MLPClassifier().fit(X, y)"


@contextmanager
def first_calls(package: Path) -> Iterator[list[str]]:
    """The file of each function below a folder that is called, in the order of the first calls."""
    files: list[str] = []
    seen: set[CodeType] = set()
    below = f"{package}{os.sep}"

    def look(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event != "call" or code in seen or not code.co_filename.startswith(below):
            return
        if code.co_name != "<module>" and not is_imported(frame):
            seen.add(code)
            files.append(code.co_filename.removeprefix(below))

    sys.setprofile(look)
    try:
        yield files
    finally:
        sys.setprofile(None)


def is_imported(frame: FrameType | None) -> bool:
    """Whether a frame runs because a module is being imported."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def walk(name: str, tree: Path) -> list[str]:
    """The files of one walk in the order of the first calls of their functions, each as often as there are
    such functions; in a process of its own."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    problem = rows()
    with tempfile.TemporaryDirectory() as folder, redirect_stderr(io.StringIO()):
        os.chdir(folder)
        if name == SCALE:
            package = Path(sklearn.__file__).parent
            call: Callable[[], object] = lambda: MLPClassifier(max_iter=5).fit(problem.x, problem.y)  # noqa: E731
        else:
            source = tree / "src"
            package = source / "apportion"
            sys.path.insert(0, str(source))
            api = Api()
            if package not in Path(str(api.package.__file__)).parents:
                raise RuntimeError(f"apportion was imported from {api.package.__file__}, not from {source}")
            call = WALKS[name](api)
        with first_calls(package) as files:
            call()
    return files


def report(name: str, tree: Path, show: bool) -> bool:
    """Print how long a walk is; False if it fails."""
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        try:
            files = pool.submit(walk, name, tree).result()
        except Exception as problem:  # noqa: BLE001
            print(f"  failed  {name}: {type(problem).__name__}: {problem}", flush=True)
            return False
    hops = sum(one != other for one, other in pairwise(files))
    opened = list(dict.fromkeys(files))
    print(f"{hops:4} hops, {len(opened):3} files, {len(files):4} functions  {name}", flush=True)
    for file in opened if show else ():
        print(f"    {file}")
    return True


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", nargs="?", metavar="BASE")
    parser.add_argument("--list", action="store_true", help="print the files of each walk")
    parser.add_argument("--only", default="", metavar="NAME", help="walks whose names contain NAME")
    arguments = parser.parse_args()
    done = True
    with checked_out(arguments.base) if arguments.base else nullcontext() as base:
        for what, tree in ((arguments.base, base), ("the working tree", REPOSITORY)):
            if tree is None:
                continue
            print(f"{what}:")
            for name in WALKS:
                if arguments.only in name:
                    done &= report(name, tree, arguments.list)
    print("for scale:")
    done &= report(SCALE, REPOSITORY, arguments.list)
    sys.exit(int(not done))


if __name__ == "__main__":
    main()

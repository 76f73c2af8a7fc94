"""Both stages of a named recipe, each in its own folder: a second stage finds its first, or trains it."""

import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from apportion import runs
from apportion.experiment.run import run
from apportion.recipes import Recipe, to_json
from apportion.recipes.checks import check

# the folders of methods whose recipes have a shorter name
FOLDERS = {
    "llp_vat": "vat",
    "llp_gan": "gan",
    "count_likelihood": "counts",
    "two_views": "two-views",
}


def run_with_teacher(
    recipe: Recipe,
    root: Path,
    name: str,
    *,
    device: str = "auto",
    data: Path | None = None,
    exact: bool = False,
    force: bool = False,
) -> Iterator[tuple[Path, int, dict[str, Any] | None]]:
    """Run a named recipe below `root`, and before it its first stage unless some run there is of that very
    recipe.

    Yields (folder, epochs, line of its log), with None for the line where the run had been finished before.
    """
    check(recipe)
    folder = root / name / f"seed={recipe.seed}"
    epochs = recipe.first.epochs if recipe.second is None else recipe.second.epochs
    if runs.finished(folder):
        runs.refuse_other(folder, to_json(recipe))
        yield folder, epochs, None
        return
    given: dict[str, Any] = {"device": device, "data": data, "exact": exact, "force": force}
    teacher = None
    if recipe.second is not None:
        first = replace(recipe, second=None)
        teacher = teacher_folder(recipe, root, name)
        if not runs.finished(teacher):
            for line in run(first, teacher, **given):
                yield teacher, first.first.epochs, line
    for line in run(recipe, folder, teacher=teacher, **given):
        yield folder, epochs, line


def teacher_folder(recipe: Recipe, root: Path, name: str) -> Path:
    """Where the first stage of a recipe is, or is to be trained.

    A finished run that was kept without its predictions or weights (as those under results/ are) cannot
    teach. It is left as it is, and its first stage is trained again beside it, in a folder that no report
    counts.
    """
    group, _, size = name.split("/")
    first, needed = replace(recipe, second=None), files_needed(recipe)
    found = find_run(root, first, needed)
    usual = (
        root / group / FOLDERS.get(recipe.first.method, recipe.first.method) / size / f"seed={recipe.seed}"
    )
    if found is not None or not runs.finished(usual):
        return found or usual
    runs.refuse_other(usual, to_json(first))
    again = usual.with_name(f"again-{usual.name}")
    missing = ", ".join(file for file in needed if not (usual / file).exists())
    if not runs.finished(again):
        logging.getLogger("apportion").warning(
            "%s is finished but was kept without %s; its first stage is trained again in %s",
            usual, missing, again.name,
        )  # fmt: skip
    return again


def files_needed(recipe: Recipe) -> list[str]:
    """What a second stage starts from: predictions of its first, and the weights of one that goes on."""
    goes_on = recipe.second is not None and recipe.second.student == "teacher"
    return ["log_probs.npy", "model.safetensors"] if goes_on else ["log_probs.npy"]


def find_run(root: Path, recipe: Recipe, needed: list[str]) -> Path | None:
    """A finished run of this very recipe below the root, with the files that a second stage starts from."""
    wanted = json.loads(to_json(recipe))
    for folder in runs.all_runs(root):
        if runs.finished(folder) and all((folder / file).exists() for file in needed):
            with suppress(runs.RunError):  # a damaged folder is nobody's teacher
                if not runs.differences(runs.read_recipe(folder), wanted):
                    return folder
    return None

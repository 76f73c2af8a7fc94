"""What experiments take from outside the package: modules that register parts, and recipes in files."""

import json
import re
import sys
from collections.abc import Iterable
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path

from apportion._untrusted import printable, read_bytes
from apportion.errors import SettingsError
from apportion.experiments.provenance import MODULE, module_checksum
from apportion.experiments.recipe import Recipe, from_json
from apportion.experiments.recipes import RECIPES

RECIPE_LIMIT = 1 << 22  # bytes of a file of recipes
NAME = re.compile(r"[\w+-][\w.,=+-]*/[\w+-][\w.+-]*/[\w+-][\w.+-]*")  # GROUP/METHOD/SIZE


def import_modules(names: Iterable[str]) -> dict[str, str]:
    """Import modules that register methods, networks and data sets, also from the working directory.

    This executes them, so their names come from the user, never from a file. Returns their checksums.
    """
    checksums = {}
    for name in names:
        if not MODULE.fullmatch(name):
            raise SettingsError(
                f"'{printable(name)}' is not the name of a module; pass one such as my_module"
            )
        if name.endswith(".py"):
            raise SettingsError(f"'{name}' is a file; pass the name of its module, --import {name[:-3]}")
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.insert(0, here)
        try:
            checksums[name] = module_checksum(import_module(name))
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # a module that this one imports
            raise SettingsError(
                f"there is no module '{name}'; run the command in the folder of {name}.py, or put it on "
                "PYTHONPATH"
            ) from None
    return checksums


def read_recipes(path: Path) -> dict[str, Recipe]:
    """The recipes of a file that `apportion show` printed: one, or an object with one per name.

    A single recipe is named after the file, its method and its bag size.
    """
    text = read_bytes(path, RECIPE_LIMIT, error=SettingsError, follow_symlinks=True)
    try:
        values = json.loads(text)  # unlike in other files, numbers may be infinite, such as a precision
    except (ValueError, RecursionError) as problem:
        raise SettingsError(f"{path} is not valid JSON: {printable(problem)}") from None
    if not isinstance(values, dict):
        raise SettingsError(f"{path} holds no recipe; pass a file that `apportion show` printed")
    if values and set(values) <= {each.name for each in fields(Recipe)}:
        recipe = from_json(json.dumps(values))
        return {check_name(default_name(path, recipe)): recipe}
    return {check_name(name): from_json(json.dumps(value)) for name, value in values.items()}


def default_name(path: Path, recipe: Recipe) -> str:
    student = "" if recipe.second is None else "+plot"
    return f"{path.stem}/{recipe.first.method}{student}/{recipe.data.bag_size}"


def check_name(name: str) -> str:
    """The name of a recipe, after checking that it is fit for a folder: GROUP/METHOD/SIZE."""
    if not NAME.fullmatch(name):
        raise SettingsError(
            f"'{printable(name)}' does not name a recipe; pass a name of the form GROUP/METHOD/SIZE, such as "
            "mine/dllp/64"
        )
    return name


def check_group(name: str, recipe: Recipe) -> None:
    """Refuse a run of another recipe in a group of named ones, whose runs are reported together."""
    group = name.split("/")[0]
    own = RECIPES.get(name)
    if own is not None and replace(recipe, seed=own.seed) == own:
        return
    if any(known.startswith(f"{group}/") for known in RECIPES):
        raise SettingsError(
            f"{printable(name)} would be a run in the group {group}, which is for the recipes of `apportion "
            f"list {group}` without changes; choose another group with --name, or rename the file"
        )

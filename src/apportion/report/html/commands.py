"""The command that repeats a run."""

import json
import shlex
from typing import Any

from apportion.grid import RECIPES
from apportion.recipes import to_json


def command_of(name: str, recipe: dict[str, Any]) -> str:
    """`apportion run …` with every setting that is not the named recipe's own.

    A cell of another name, such as one of a user's own folders, starts from a recipe of two moons.
    """
    base = name if name in RECIPES else "figure2/dllp/50"
    own = _flat(json.loads(to_json(RECIPES[base])))
    settings = {path: value for path, value in _flat(recipe).items() if own.get(path, ...) != value}
    seed = settings.pop("seed", recipe.get("seed", 1))
    words = ["apportion", "run", base, "--seeds", str(seed)]
    for path, value in settings.items():
        words += ["--set", f"{path}={value if isinstance(value, str) else json.dumps(value)}"]
    return shlex.join(words)


def _flat(values: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Settings by their path; options stay tables, since they are set as a whole."""
    out: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict) and name != "options":
            out |= _flat(value, f"{path}{name}.")
        else:
            out[f"{path}{name}"] = value
    return out

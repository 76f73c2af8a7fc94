"""How runs are getting on, from their folders: what `apportion watch` shows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apportion import runs
from apportion.runs.files import check_shape, parsed, read_bytes
from apportion.runs.locks import in_use
from apportion.runs.reading import LINE

RECENT = 5  # epochs whose mean time tells how long the rest will take


@dataclass(frozen=True)
class Status:
    name: str
    state: str  # running, stopped, finished or damaged
    epoch: int = 0
    epochs: int = 0
    line: dict[str, Any] | None = None  # the last of the log
    left: float | None = None  # seconds, while it runs


def statuses(root: Path) -> list[Status]:
    """Every run below the root: running ones first, finished ones last."""
    found = [status(folder, folder.relative_to(root).as_posix()) for folder in runs.all_runs(root)]
    order = ("running", "stopped", "damaged", "finished")
    return sorted(found, key=lambda each: (order.index(each.state), each.name))


def status(folder: Path, name: str) -> Status:
    """A run's status; a folder that cannot be read is damaged, and the others are still shown."""
    try:
        recipe = runs.read_recipe(folder)
        stage: Any = recipe.get("second") or recipe.get("first")
        check_shape(stage, {"epochs": int}, str(folder / "recipe.json"))
        log = whole_lines(folder / "log.jsonl")
    except runs.RunError:
        return Status(name, "damaged")
    line, epochs = log[-1] if log else None, stage["epochs"]
    epoch = line["epoch"] if line else 0
    spent = [sum(each.get("seconds", {}).values()) for each in log[-RECENT:]]
    if runs.finished(folder):
        return Status(name, "finished", epoch, epochs, line)
    if not in_use(folder):
        return Status(name, "stopped", epoch, epochs, line)
    left = (epochs - epoch) * sum(spent) / len(spent) if spent else None
    return Status(name, "running", epoch, epochs, line, left)


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a log that may be growing: one that has no end yet is left out."""
    if not path.exists():
        return []
    lines = read_bytes(path).splitlines(keepends=True)
    return [
        parsed(line, LINE, f"{path}, line {i}") for i, line in enumerate(lines, 1) if line.endswith(b"\n")
    ]

"""A run is a folder: recipe, log, checkpoint; the result is written last, so its existence means done."""

import io
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save
from torch import Tensor

from apportion.errors import RunError
from apportion.runs.checkpoints import check_fit, held, pack, unpack
from apportion.runs.files import read_bytes, sync, write_whole, writing
from apportion.runs.layout import by_lines
from apportion.runs.locks import InUse, locked
from apportion.runs.reading import (
    WEIGHTS_LIMIT,
    all_runs,
    differences,
    finished,
    load_weights,
    read_log,
    read_log_probs,
    read_recipe,
    read_result,
    read_weights,
    read_where,
    refuse_other_data,
)

__all__ = [
    "InUse", "Keeper", "RunError", "all_runs", "append", "check_fit", "checkpoint", "differences",
    "finish", "finished", "load_weights", "opened", "read_log", "read_log_probs", "read_recipe",
    "read_result", "read_weights", "read_where", "refuse_other", "refuse_other_data", "start", "write",
]  # fmt: skip

CHECKPOINT_SECONDS = 20.0  # a checkpoint at most this often: what a SIGKILL costs
KEPT = ("apportion", "torch", "exact", "data", "processes")  # of where.json: what may not change on the way


class Keeper:
    """The state after the last epoch: in memory always, on the disk at most every CHECKPOINT_SECONDS."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state: dict[str, Any] | None = None
        self.saved = time.monotonic()

    def keep(self, state: dict[str, Any]) -> None:
        self.state = held(state)
        if time.monotonic() - self.saved > CHECKPOINT_SECONDS:
            self.save()

    def save(self) -> None:
        """Write the state that is not on the disk yet, if there is one."""
        if self.state is not None:
            checkpoint(self.folder, self.state)
            self.state, self.saved = None, time.monotonic()


@contextmanager
def opened(folder: Path) -> Iterator[Keeper]:
    """A run's folder, for this process alone; what ends the run early leaves the last epoch's checkpoint."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        keeper = Keeper(folder)
        try:
            yield keeper
        except BaseException:
            # a full disk, a broken device: the reason of the stop is what counts
            with suppress(RuntimeError):
                keeper.save()
            raise


def start(folder: Path, recipe: str, where: dict[str, Any], force: bool = False) -> dict[str, Any] | None:
    """The checkpoint of an opened folder, None where it is new. What differs is refused, or recorded."""
    changes = refuse_other(folder, recipe, force)
    for left in folder.glob("*.new"):  # by a process that was killed
        left.unlink()
    path = folder / "last.safetensors"
    if not path.exists():
        (folder / "log.jsonl").unlink(missing_ok=True)
        write(folder / "recipe.json", recipe)
        write(folder / "where.json", json.dumps(where, indent=1))
        return None
    state, before = unpack(read_bytes(path, WEIGHTS_LIMIT), str(path)), read_where(folder)
    names = [name for name in KEPT if name in before and name in where]
    changes += differences({n: before[n] for n in names}, {n: where[n] for n in names})
    if changes and not force:
        what = f"{folder} holds a run that began otherwise and is at epoch {state['epoch']}"
        raise RunError(f"{what}; use another folder, or --force, which is recorded:\n" + "\n".join(changes))
    lines = read_bytes(folder / "log.jsonl").splitlines(keepends=True)
    if len(lines) < state["epoch"]:
        raise RunError(f"{folder}: the log has fewer lines than the checkpoint has epochs; delete the folder")
    # later lines are of epochs that will run again
    write_whole(folder / "log.jsonl", b"".join(lines[: state["epoch"]]))
    again = {name: value for name, value in where.items() if before.get(name) != value}
    again |= {"epoch": state["epoch"]} | ({"forced": changes} if changes else {})
    before["resumed"] = [*before.get("resumed", []), again]
    write(folder / "where.json", json.dumps(before, indent=1))
    write(folder / "recipe.json", recipe)
    return state


def refuse_other(folder: Path, recipe: str, force: bool = False) -> list[str]:
    """Refuse a folder that holds a run of another recipe, with the settings that differ; or return them."""
    if not (folder / "recipe.json").exists():
        return []
    changes = differences(read_recipe(folder), json.loads(recipe))
    if changes and not (force and not finished(folder)):
        raise RunError(f"{folder} holds a run of another recipe; use another folder:\n" + "\n".join(changes))
    return changes


def append(folder: Path, line: dict[str, Any]) -> None:
    path = folder / "log.jsonl"
    with writing(path), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """The log is on the disk before a checkpoint that counts its lines."""
    path = folder / "log.jsonl"
    with writing(path), path.open("ab") as file:
        sync(file.fileno())
    write_whole(folder / "last.safetensors", pack(state))


def finish(folder: Path, result: dict[str, Any], weights: dict[str, Tensor], log_probs: Tensor) -> None:
    """Keep the weights, and the log-probabilities that a second stage starts from; the result comes last."""
    kept = {name: w.detach().cpu().contiguous() for name, w in weights.items()}
    write_whole(folder / "model.safetensors", save(kept))
    table = io.BytesIO()
    np.save(table, log_probs.half().cpu().numpy())
    write_whole(folder / "log_probs.npy", table.getvalue())
    write(folder / "result.json", by_lines(result))
    (folder / "last.safetensors").unlink(missing_ok=True)


def write(path: Path, text: str) -> None:
    write_whole(path, text.encode())

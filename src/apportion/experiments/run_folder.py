"""A run is a folder: recipe.json, where.json, log.jsonl, a checkpoint, and finally weights and result.json.

The result is written last: if it exists, the run is finished. Every other file is written whole or not at
all, and the log is on the disk before the checkpoint that counts its lines. A run that was killed at any
moment therefore resumes to the same bits. Run folders may come from strangers: what is read is checked, and
nothing in it is executed. (`run` skips a finished run of the same recipe.)
"""

import hashlib
import io
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from apportion._untrusted import (
    NUMBER,
    WEIGHTS_LIMIT,
    parse_json,
    parse_tensors,
    printable,
    read_bytes,
    read_json,
    read_npy,
    read_tensors,
)
from apportion._writing import atomic_write, explain_write_errors, is_locked, open_lock
from apportion.checkpoints import Checkpointer, differences, read_state, write_state
from apportion.errors import ApportionWarning, RunError
from apportion.experiments.provenance import imported_modules

# parts of where.json that must not change when a run resumes
PINNED = ("apportion", "sources", "imports", "torch", "exact", "data", "processes")
RESUME_HINT = "the same command resumes from the last checkpoint"
LOG_LIMIT = 1 << 25  # bytes; the log of ten thousand epochs has 4 million

RESULT_SCHEMA = {
    "test_accuracy": {"last": NUMBER, "oracle": NUMBER},
    "epochs": int,
    "train": {"proportion_error": NUMBER, "entropy": NUMBER, "label_accuracy": {"*": NUMBER}},
    "seconds": {"*": NUMBER},
    "confusion?": [[int]],
}
LINE_SCHEMA = {
    "epoch": int,
    "test_accuracy": NUMBER,
    "terms?": {"*": NUMBER},
    "seconds?": {"*": NUMBER},
    "label_accuracy?": {"*": NUMBER},
}


# --- reading


def all_runs(root: Path) -> list[Path]:
    """Every folder below the root that holds a run, sorted."""
    return [path.parent for path in sorted(root.rglob("recipe.json"))]


def is_finished(folder: Path) -> bool:
    return (folder / "result.json").exists()


def is_in_use(folder: Path) -> bool:
    """Whether a living process is training in the folder."""
    return is_locked(folder / "lock", error=RunError)


def read_recipe(folder: Path) -> dict[str, Any]:
    return read_json(folder / "recipe.json", {}, error=RunError)


def read_where(folder: Path) -> dict[str, Any]:
    """Version, commit, device and time of a run."""
    return read_json(folder / "where.json", {}, error=RunError)


def read_result(folder: Path) -> dict[str, Any]:
    path = folder / "result.json"
    result = read_json(path, RESULT_SCHEMA, error=RunError)
    matrix = result.get("confusion", [])
    if any(len(row) != len(matrix) or min(row) < 0 for row in matrix):
        raise RunError(f"{path} is damaged: its confusion matrix is not a square of counts")
    return result


def read_log(folder: Path) -> list[dict[str, Any]]:
    path = folder / "log.jsonl"
    lines = []
    for i, line in enumerate(read_bytes(path, LOG_LIMIT, error=RunError).splitlines(), 1):
        lines.append(parse_json(line, f"line {i} of {path}", LINE_SCHEMA, error=RunError))
    return lines


def read_log_probs(folder: Path) -> Tensor:
    """Predictions of all training instances in the order of their bags, (N, k) float32."""
    path = folder / "log_probs.npy"
    table = read_npy(path, error=RunError)
    if table.ndim != 2 or table.dtype.kind != "f" or not table.size:
        raise RunError(f"{path} does not hold a table of predictions; run the first stage again")
    log_probs = torch.from_numpy(table.astype(np.float32))
    if not bool((log_probs < torch.inf).all()):
        raise RunError(f"{path} holds predictions that are NaN; run the first stage again")
    return log_probs.log_softmax(1)


def read_weights(folder: Path) -> dict[str, Tensor]:
    path = folder / "model.safetensors"
    return parse_tensors(read_bytes(path, WEIGHTS_LIMIT, error=RunError), str(path), error=RunError)[0]


def load_weights(folder: Path, network: nn.Module) -> None:
    """Load the weights of a finished run into a network of the same architecture."""
    expected = network.state_dict()
    network.load_state_dict(read_tensors(folder / "model.safetensors", expected, error=RunError))


def check_same_recipe(folder: Path, recipe: str, force: bool = False) -> list[str]:
    """Raise if the folder holds a run of another recipe; with `force` return the differences instead.

    Without a checkpoint there is nothing to keep, such as after an option that the method refused: then any
    recipe may take the folder, unless a process is training there.
    """
    if not (folder / "recipe.json").exists():
        return []
    if not is_finished(folder) and not (folder / "last.safetensors").exists() and not is_in_use(folder):
        return []
    changes = differences(read_recipe(folder), json.loads(recipe))
    if changes and (is_finished(folder) or not force):
        raise RunError(f"{folder} holds a run of another recipe; use another folder:\n" + "\n".join(changes))
    return changes


def check_not_finished(folder: Path) -> None:
    if is_finished(folder):
        raise RunError(f"{folder} holds a finished run; delete it to run it again, or use another folder")


def check_teacher_data(teacher: Path, data: str) -> None:
    """Raise if a first stage was trained on other data or bags. Old runs have no checksum to compare."""
    if not (teacher / "where.json").exists():
        return
    schema = {"data?": str, "resumed?": [{"data?": str}]}
    where = read_json(teacher / "where.json", schema, error=RunError)
    sums = [each["data"] for each in (where, *where.get("resumed", [])) if "data" in each]
    if sums and sums[-1] != data:
        raise RunError(
            f"{teacher} was trained on other data or other bags ({printable(sums[-1])}, not {data}); move it "
            "away and run its first stage again"
        )


def describe_teacher(teacher: Path) -> dict[str, str]:
    """Which run a second stage starts from: the name of its folder, and a checksum of its predictions."""
    predictions = np.ascontiguousarray(read_npy(teacher / "log_probs.npy", error=RunError))
    return {"run": teacher.name, "predictions": hashlib.sha256(predictions.data).hexdigest()[:16]}


def was_taught_by_a_repeated_run(folder: Path) -> bool:
    """Whether the first stage of a run was trained again for it: not the one that reports count."""
    teacher = read_where(folder).get("teacher")
    return isinstance(teacher, dict) and str(teacher.get("run", "")).startswith("again")


def changed_modules(folder: Path, checksums: Mapping[str, str]) -> list[str]:
    """The imported modules, given by their checksums, that have changed since this run was made."""
    if not checksums or not (folder / "where.json").exists():
        return []
    before = imported_modules(read_where(folder))
    return [name for name, checksum in checksums.items() if before.get(name, checksum) != checksum]


# --- writing


@contextmanager
def open_run(folder: Path) -> Iterator[Checkpointer]:
    """Hold a run folder, for this process alone. Whatever ends the body early, the last epoch is saved."""
    with explain_write_errors(folder, error=RunError, hint=RESUME_HINT):
        folder.mkdir(parents=True, exist_ok=True)
    with open_lock(folder / "lock", error=RunError):
        checkpointer = Checkpointer(partial(write_checkpoint, folder))
        try:
            yield checkpointer
        except BaseException:
            with suppress(RuntimeError):  # a full disk, a broken device: the first reason is what matters
                checkpointer.save()
            raise


def start_run(folder: Path, recipe: str, where: dict[str, Any], force: bool = False) -> dict[str, Any] | None:
    """Prepare an open folder. Returns the checkpoint to resume from, or None for a new run.

    A change of recipe, data, modules or version is refused, or with `force` recorded in where.json.
    """
    for path in folder.glob("*.apportion-partial"):  # of a process that was killed
        path.unlink()
    if not (folder / "last.safetensors").exists():
        lost = len(read_log(folder)) if (folder / "log.jsonl").exists() else 0
        if lost:
            what = f"{folder} has the log of {lost} epochs, but no checkpoint (last.safetensors)"
            warnings.warn(f"{what}: it starts over", ApportionWarning, stacklevel=2)
        (folder / "log.jsonl").unlink(missing_ok=True)
        write_text(folder / "recipe.json", recipe)
        write_text(folder / "where.json", json.dumps(where, indent=1))
        return None
    changes = check_same_recipe(folder, recipe, force)
    state = read_checkpoint(folder)
    before = read_where(folder)
    pinned = [name for name in PINNED if name in before and name in where]
    changes += differences({name: before[name] for name in pinned}, {name: where[name] for name in pinned})
    if changes and not force:
        raise RunError(
            f"{folder} holds a run that started differently and is at epoch {state['epoch']}; use another "
            "folder, or --force, which is recorded:\n" + "\n".join(changes)
        )
    _cut_log(folder, state["epoch"])
    resumed: dict[str, Any] = {name: value for name, value in where.items() if before.get(name) != value}
    resumed["epoch"] = state["epoch"]
    if changes:
        resumed["forced"] = changes
    before["resumed"] = [*before.get("resumed", []), resumed]
    write_text(folder / "where.json", json.dumps(before, indent=1))
    write_text(folder / "recipe.json", recipe)
    return state


def _cut_log(folder: Path, epochs: int) -> None:
    """Drop the lines of epochs that will run again."""
    path = folder / "log.jsonl"
    lines = read_bytes(path, LOG_LIMIT, error=RunError).splitlines(keepends=True)
    if len(lines) < epochs:
        raise RunError(f"{path} has fewer lines than the checkpoint has epochs; delete the folder")
    atomic_write(path, b"".join(lines[:epochs]), error=RunError, hint=RESUME_HINT)


def append_log(folder: Path, line: dict[str, Any]) -> None:
    path = folder / "log.jsonl"
    with (
        explain_write_errors(path, error=RunError, hint=RESUME_HINT),
        path.open("a", encoding="utf-8") as file,
    ):
        file.write(json.dumps(line) + "\n")


def write_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    path = folder / "log.jsonl"
    with explain_write_errors(path, error=RunError, hint=RESUME_HINT), path.open("ab") as file:
        os.fsync(file.fileno())  # the log first: its lines must not be fewer than the epochs of a checkpoint
    write_state(folder / "last.safetensors", state, error=RunError, hint=RESUME_HINT)


def finish_run(folder: Path, result: dict[str, Any], weights: dict[str, Tensor], log_probs: Tensor) -> None:
    """Write the weights, the predictions that a second stage starts from, and at last the result."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in weights.items()}
    atomic_write(folder / "model.safetensors", save(tensors), error=RunError, hint=RESUME_HINT)
    table = io.BytesIO()
    np.save(table, log_probs.half().cpu().numpy())
    atomic_write(folder / "log_probs.npy", table.getvalue(), error=RunError, hint=RESUME_HINT)
    write_text(folder / "result.json", format_json(result))
    (folder / "last.safetensors").unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    atomic_write(path, text.encode(), error=RunError, hint=RESUME_HINT)


_NUMBERS = re.compile(r"\[\n[-+.\deE,\s]+\]")  # a list of numbers over several lines


def format_json(values: Any) -> str:
    """Indented JSON with each list of numbers on one line: a confusion matrix has one line per class."""
    text = json.dumps(values, indent=1)
    return _NUMBERS.sub(lambda match: f"[{' '.join(match[0][1:-1].split())}]", text)


def read_checkpoint(folder: Path) -> dict[str, Any]:
    path = folder / "last.safetensors"
    state = read_state(path, error=RunError)
    if type(state.get("epoch")) is not int or state["epoch"] < 1:
        raise RunError(f"{path} is not a checkpoint: its epoch is {printable(repr(state.get('epoch')))}")
    return state

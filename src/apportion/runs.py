"""A run is a folder: recipe, log, checkpoint; the result is written last, so its existence means done."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor


class RunError(RuntimeError):
    """A run folder that cannot be used; the message says why and what to do."""


def start(folder: Path, recipe: str, where: dict[str, Any]) -> dict[str, Any] | None:
    """The checkpoint of a run's folder, None where it is new. A folder of another recipe is refused."""
    refuse_other(folder, recipe)
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "recipe.json", recipe)
    write(folder / "where.json", json.dumps(where, indent=1))
    if not (folder / "last.pt").exists():
        (folder / "log.jsonl").unlink(missing_ok=True)
        return None
    state = torch.load(folder / "last.pt", weights_only=True, map_location="cpu")
    lines = (folder / "log.jsonl").read_text("utf-8").splitlines(keepends=True)
    # later lines are of epochs that will run again
    write(folder / "log.jsonl", "".join(lines[: state["epoch"]]))
    return state


def refuse_other(folder: Path, recipe: str) -> None:
    """Refuse a folder that holds a run of another recipe, with the settings that differ."""
    known = folder / "recipe.json"
    if known.exists() and json.loads(known.read_text("utf-8")) != json.loads(recipe):
        difference = _difference(known.read_text("utf-8"), recipe)
        raise RunError(f"{folder} holds a run of another recipe; use another folder:\n{difference}")


def append(folder: Path, line: dict[str, Any]) -> None:
    with (folder / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Written beside, synced, then renamed: a crash leaves the old checkpoint or the new, never a part."""
    beside = folder / "last.pt.new"
    with beside.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(folder / "last.pt")


def finish(folder: Path, result: dict[str, Any], weights: dict[str, Tensor], log_probs: Tensor) -> None:
    """Keep the weights, and the log-probabilities that a second stage starts from; the result comes last."""
    kept = {name: w.detach().cpu().contiguous() for name, w in weights.items()}
    save_file(kept, folder / "model.safetensors")
    np.save(folder / "log_probs.npy", log_probs.half().cpu().numpy())
    write(folder / "result.json", json.dumps(result, indent=1))
    (folder / "last.pt").unlink(missing_ok=True)


def finished(folder: Path) -> bool:
    return (folder / "result.json").exists()


def read_result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text("utf-8"))


def read_where(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "where.json").read_text("utf-8"))


def read_log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text("utf-8").splitlines()]


def read_log_probs(folder: Path) -> Tensor:
    """The teacher's predictions in the order of its bags, (N, k) float32."""
    path = folder / "log_probs.npy"
    if not path.exists():
        raise RunError(
            f"{path} is missing; run the first stage of {folder} again to start a second stage from it"
        )
    return torch.from_numpy(np.load(path, allow_pickle=False)).float().log_softmax(1)


def read_weights(folder: Path) -> dict[str, Tensor]:
    path = folder / "model.safetensors"
    if not path.exists():
        raise RunError(f"{path} is missing; only its predictions were kept: run the first stage again")
    return load_file(path)


def all_runs(root: Path) -> Iterator[Path]:
    """Every folder below the root that holds a run, in a fixed order."""
    return (path.parent for path in sorted(root.rglob("recipe.json")))


def write(path: Path, text: str) -> None:
    beside = path.with_name(path.name + ".new")
    beside.write_text(text, "utf-8")
    beside.replace(path)


def _difference(old: str, new: str) -> str:
    flat_old, flat_new = _flat(json.loads(old)), _flat(json.loads(new))
    names = [n for n in {**flat_old, **flat_new} if flat_old.get(n) != flat_new.get(n)]
    return "\n".join(f"  {n}: {flat_old.get(n)!r} there, {flat_new.get(n)!r} asked for" for n in names)


def _flat(values: dict[str, Any], path: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in values.items():
        out |= _flat(value, f"{path}{name}.") if isinstance(value, dict) else {f"{path}{name}": value}
    return out

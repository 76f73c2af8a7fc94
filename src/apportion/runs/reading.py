"""What is read from a run's folder, which may be a stranger's: values of a known shape, or a RunError."""

import re
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from apportion.errors import RunError
from apportion.runs.files import NUMBER, parsed, read_bytes, read_json

WEIGHTS_LIMIT = 1 << 36  # bytes
RESULT = {
    "test_accuracy": {"last": NUMBER, "oracle": NUMBER},
    "epochs": int,
    "train": {"proportion_error": NUMBER, "entropy": NUMBER, "label_accuracy": {...: NUMBER}},
    "seconds": {...: NUMBER},
    ("confusion",): [[int]],
}
_PARTS = {("terms",): {...: NUMBER}, ("seconds",): {...: NUMBER}, ("label_accuracy",): {...: NUMBER}}
LINE = {"epoch": int, "test_accuracy": NUMBER, **_PARTS}
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '<(f[248])', 'fortran_order': False, "
    rb"'shape': \((\d{1,12}), (\d{1,9})\), \} *\n",
    re.DOTALL,
)


def finished(folder: Path) -> bool:
    return (folder / "result.json").exists()


def read_result(folder: Path) -> dict[str, Any]:
    path = folder / "result.json"
    result = read_json(path, RESULT)
    matrix = result.get("confusion", [])
    if any(len(row) != len(matrix) or min(row) < 0 for row in matrix):
        raise RunError(f"{path} is damaged: its confusion matrix is not as wide as it is high, or below zero")
    return result


def read_where(folder: Path) -> dict[str, Any]:
    return read_json(folder / "where.json", {})


def read_recipe(folder: Path) -> dict[str, Any]:
    """The values of its recipe, as they stand in the file."""
    return read_json(folder / "recipe.json", {})


def read_log(folder: Path) -> list[dict[str, Any]]:
    path = folder / "log.jsonl"
    lines = read_bytes(path).splitlines()
    return [parsed(line, LINE, f"{path}, line {i}") for i, line in enumerate(lines, 1)]


def read_log_probs(folder: Path) -> Tensor:
    """The teacher's predictions in the order of its bags, (N, k) float32."""
    path = folder / "log_probs.npy"
    if not path.exists():
        raise RunError(
            f"{path} is missing; run the first stage of {folder} again to start a second stage from it"
        )
    content = read_bytes(path, WEIGHTS_LIMIT)
    # by a pattern: the header of a .npy file is a Python literal
    header = _HEADER.match(content)
    shape = (int(header[2]), int(header[3])) if header else (0, 0)
    if header is None or len(content) - header.end() != prod(shape) * int(header[1][1:]):
        raise RunError(f"{path} is not a table of predictions, or is cut short; run its first stage again")
    table = np.frombuffer(content, f"<{header[1].decode()}", offset=header.end()).reshape(shape)
    scores = torch.from_numpy(table.astype(np.float32))
    if not scores.numel() or not bool((scores < torch.inf).all()):
        raise RunError(f"{path} holds no predictions, or NaN among them; run its first stage again")
    return scores.log_softmax(1)


def refuse_other_data(teacher: Path | None, data: str) -> None:
    """Refuse a teacher of other data or bags, which its predictions would fit in number alone; one that was
    kept without a sum of its data is believed."""
    if teacher is None or not (teacher / "where.json").exists():
        return
    told = read_json(teacher / "where.json", {("data",): str, ("resumed",): [{("data",): str}]})
    sums = [each["data"] for each in (told, *told.get("resumed", [])) if "data" in each]
    if sums and sums[-1] != data:
        what = f"{teacher} has predictions of other data, or of other bags, than are here"
        raise RunError(f"{what} ({sums[-1]}, {data}); move it away, and run its first stage again")


def read_weights(folder: Path) -> dict[str, Tensor]:
    path = folder / "model.safetensors"
    if not path.exists():
        raise RunError(f"{path} is missing; only its predictions were kept: run the first stage again")
    try:
        return dict(sorted(load(read_bytes(path, WEIGHTS_LIMIT)).items()))  # load's own order changes
    except (SafetensorError, RuntimeError, ValueError, TypeError, KeyError) as problem:
        raise RunError(f"{path} cannot be read: {problem}; run the first stage again") from None


def load_weights(folder: Path, network: nn.Module) -> None:
    """Put a run's weights into a network, which must be of the same kind."""
    try:
        network.load_state_dict(read_weights(folder))
    except RuntimeError as problem:
        raise RunError(f"the weights of {folder} are not of this network: {problem}") from None


def all_runs(root: Path) -> Iterator[Path]:
    """Every folder below the root that holds a run, in a fixed order."""
    return (path.parent for path in sorted(root.rglob("recipe.json")))


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """A line for every setting that is not the same in both."""
    one, other = _flat(old), _flat(new)
    names = [n for n in {**one, **other} if one.get(n) != other.get(n)]
    return [f"  {n}: {one.get(n)!r} there, {other.get(n)!r} asked for" for n in names]


def _flat(values: dict[str, Any], path: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in values.items():
        out |= _flat(value, f"{path}{name}.") if isinstance(value, dict) else {f"{path}{name}": value}
    return out

"""The state of training on the disk, so that a process that was killed continues to the same bits.

Runs of experiments (`experiments.run_folder`) and fits of the estimator save the state after an epoch now
and then: tensors as safetensors, everything else as JSON in the header of that file, written whole or not at
all. A fit has a folder for it, which may come from strangers: what is read is checked, and nothing in it is
executed.
"""

import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim import Optimizer

from apportion._untrusted import WEIGHTS_LIMIT, name_list, parse_json, parse_tensors, printable, read_bytes
from apportion._writing import atomic_write, explain_write_errors, open_lock
from apportion.errors import ApportionError, CheckpointError

CHECKPOINT_SECONDS = 20.0  # between checkpoints: what a SIGKILL costs at most
STEP_SECONDS = 1.0  # the same where a step of a fit is finished, which is worth more
COSTLY = 0.02  # of the time at most is spent on saving


class Checkpointer:
    """Keeps the state after the last epoch: in memory always, on the disk now and then.

    `write` writes a state to the disk.
    """

    def __init__(self, write: Callable[[dict[str, Any]], None]) -> None:
        self.write = write
        self.state: dict[str, Any] | None = None
        self.saved = time.monotonic()
        self.cost = 0.0  # seconds of the last save

    def keep(self, state: dict[str, Any], pause: float | None = None) -> None:
        """Keep a state, and save it if `pause` seconds went by since the last save.

        By default CHECKPOINT_SECONDS; more if saving takes long.
        """
        self.state = copy_state(state)
        pause = CHECKPOINT_SECONDS if pause is None else pause
        if pause > 0:
            pause = max(pause, self.cost / COSTLY)
        if time.monotonic() - self.saved > pause:
            self.save()

    def save(self) -> None:
        """Write the latest state unless it is on the disk."""
        if self.state is not None:
            started = time.monotonic()
            self.write(self.state)
            self.state = None
            self.saved = time.monotonic()
            self.cost = self.saved - started


# --- states as bytes


def copy_state(state: dict[str, Any]) -> dict[str, Any]:
    """The state with copies of what training changes in place: networks and optimizers."""
    return state | {name: _copy(state[name]) for name in ("networks", "optimizers")}


def _copy(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {name: _copy(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_copy(part) for part in value]
    return value


def pack_state(state: dict[str, Any]) -> bytes:
    """A state of dicts, lists, tuples, numbers, strings and tensors as the bytes of a safetensors file."""
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(_pack(state, tensors, {}))
    return save(tensors, {"state": tree})


def write_state(path: Path, state: dict[str, Any], *, error: type[ApportionError], hint: str) -> None:
    """Write a packed state to a file, whole or not at all."""
    atomic_write(path, pack_state(state), error=error, hint=hint)


def _pack(value: Any, tensors: dict[str, Tensor], names: dict[int, str]) -> Any:
    """The value as JSON; tensors are collected under names, each tensor once."""
    if isinstance(value, Tensor):
        name = names.setdefault(id(value), str(len(names)))
        if name not in tensors:
            tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        channels_last = value.ndim == 4 and not value.is_contiguous()
        return {"tensor": name, "channels_last": channels_last}
    if isinstance(value, dict):
        return {"keys": list(value), "values": [_pack(part, tensors, names) for part in value.values()]}
    if isinstance(value, tuple):
        return {"tuple": [_pack(part, tensors, names) for part in value]}
    if isinstance(value, list):
        return [_pack(part, tensors, names) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}  # JSON has no such numbers
    return value


# what damaged states raise; RecursionError is a RuntimeError
DAMAGED = (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError)


def read_state(path: Path, *, error: type[ApportionError]) -> dict[str, Any]:
    return unpack_state(read_bytes(path, WEIGHTS_LIMIT, error=error), str(path), error=error)


def unpack_state(data: bytes, name: str, *, error: type[ApportionError]) -> dict[str, Any]:
    """The state that was packed."""
    try:
        tensors, metadata = parse_tensors(data, name, error=error)
        state = _unpack(parse_json(metadata["state"], name, error=error), tensors)
        if not isinstance(state, dict):
            raise TypeError("it holds no state")
    except DAMAGED as problem:
        raise error(f"{name} is not a checkpoint ({printable(problem)}); delete it to start over") from None
    return state


def _unpack(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpack(part, tensors) for part in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        tensor = tensors[value["tensor"]]
        return tensor.to(memory_format=torch.channels_last) if value["channels_last"] else tensor
    if "float" in value:
        return float(value["float"])
    if "tuple" in value:
        return tuple(_unpack(part, tensors) for part in value["tuple"])
    values = [_unpack(part, tensors) for part in value["values"]]
    return dict(zip(value["keys"], values, strict=True))


def check_state(
    state: dict[str, Any],
    networks: Sequence[nn.Module],
    optimizers: Sequence[Optimizer],
    labels_shape: Sequence[int] | None = None,
    *,
    error: type[ApportionError],
) -> None:
    """Raise unless a state fits the networks, the optimizers and the shape of a second stage's labels."""
    try:
        for network, saved in zip(networks, state["networks"], strict=True):
            network.load_state_dict(saved)
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            _check_optimizer(optimizer, saved)
        if labels_shape is not None:
            tables = [*state["labels"], state["ema"]]
            if state["previous"] is not None:
                tables.append(state["previous"])
            if any(table.shape != tuple(labels_shape) or not table.is_floating_point() for table in tables):
                raise ValueError(f"its labels are not of shape {tuple(labels_shape)}")
    except DAMAGED as problem:
        raise error(
            f"the checkpoint is of another network ({printable(problem)}); delete it to start over"
        ) from None


def _check_optimizer(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Settings must have the types of this optimizer, and its buffers the shapes of the weights."""
    for own, other in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        for name in own.keys() - {"params"}:
            if type(own[name]) is not type(other[name]):
                raise ValueError(f"the optimizer's {name} is {other[name]!r}")
    optimizer.load_state_dict(saved)
    for weights, buffers in optimizer.state.items():
        for value in buffers.values():
            if isinstance(value, Tensor) and value.ndim and value.shape != weights.shape:
                raise ValueError("the optimizer's buffers belong to other weights")


def load_weights(module: nn.Module, weights: Any, *, error: type[ApportionError]) -> nn.Module:
    """The module with saved weights, in evaluation mode."""
    try:
        module.load_state_dict(weights)
    except DAMAGED as problem:
        raise error(
            f"the checkpoint holds another model ({printable(problem)}); delete it to start over"
        ) from None
    return module.eval()


def check_table(value: Any, shape: Sequence[int], *, error: type[ApportionError]) -> Tensor:
    """A saved table of numbers, after checking that it has this shape."""
    if not isinstance(value, Tensor) or value.shape != tuple(shape) or not value.is_floating_point():
        raise error(f"the checkpoint holds no table of shape {tuple(shape)}; delete it to start over")
    return value


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """One line for every setting that differs."""
    old = _flatten(old)
    new = _flatten(new)
    return [
        f"  {printable(name)}: {_shown(old, name)} in the folder, {_shown(new, name)} requested"
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]


def _shown(settings: Mapping[str, Any], name: str) -> str:
    """A setting for people. An option that is missing has its default."""
    if name not in settings:
        return "default" if ".options." in name else "none"
    return printable(repr(settings[name]))


def _flatten(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{path}{name}.")
        else:
            flat[f"{path}{name}"] = value
    return flat


# --- what a fit is recognized by


def checksum(tables: Sequence[Tensor | None]) -> str | None:
    """Of the numbers of tensors, 16 hexadecimal digits; None if there are none."""
    if all(table is None for table in tables):
        return None
    total = hashlib.blake2b(digest_size=8)
    for table in tables:
        if table is None:
            continue
        total.update(f"{table.dtype} {tuple(table.shape)}".encode())
        for some in table.split(1 << 16):  # rows may be mapped from the disk
            total.update(some.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()


def describe_parameter(value: Any) -> Any:
    """A plain value as it is, anything else in words that are the same in every process."""
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, partial):
        described = [describe_parameter(each) for each in (value.func, *value.args)]
        return f"partial of {described} with {describe_parameter(value.keywords)}"
    if isinstance(value, Mapping):
        return str({name: describe_parameter(each) for name, each in value.items()})
    if hasattr(value, "get_params") and not isinstance(value, type):
        return f"{describe_parameter(type(value))} {describe_parameter(value.get_params())}"
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


# --- the folder of a fit

FILE = "checkpoint.safetensors"
PLACE = "saved-to"  # the file that says where the model is about to be saved
PLACE_LIMIT = 1 << 16  # bytes
FORMAT = 1  # of the folder of a fit; others are refused
HINT = "name another folder for the checkpoint"


def check_fit_state(state: Mapping[str, Any]) -> None:
    """Raise one of DAMAGED unless the plain values of a saved state have the types that they should."""
    selector = state["selector"]
    kinds: list[tuple[Any, type]] = [
        (state["stage"], str),
        (state["step"], str),
        (state["epoch"], int),
        (state["finished"], dict),
        (state["described_optimizers"], dict),
        (state["history"], list),
        *((line, dict) for line in state["history"]),
    ]
    if selector is not None:
        kinds += [(selector["stage"], str), (selector["epoch"], int), (selector["best_score"], float)]
    for value, kind in kinds:
        if type(value) is not kind:
            raise TypeError(f"{printable(repr(value), 40)} must be of type {kind.__name__}")


class FitCheckpoint:
    """The folder in which a fit saves its state, see `open_checkpoint`.

    Attributes
    ----------
    saved : dict or None
        What an earlier process saved.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / FILE
        self.saved: dict[str, Any] | None = None
        self._about: dict[str, Any] = {}
        self._checkpointer = Checkpointer(self._write)
        self._steps: frozenset[str] = frozenset()
        if self.path.exists() or self.path.is_symlink():
            self.saved = read_state(self.path, error=CheckpointError)
            if self.saved.get("format") != FORMAT or type(self.saved.get("seed")) is not int:
                raise CheckpointError(f"{self.path} has another format; delete it to start over")

    @property
    def seed(self) -> int | None:
        """The seed of the fit that was interrupted."""
        return None if self.saved is None else self.saved["seed"]

    def start(self, identity: Mapping[str, Any], seed: int) -> dict[str, Any] | None:
        """The state from which a fit continues; None for a new one.

        `identity` is what decides the result besides the seed. If the folder has a fit of another identity,
        the error says what differs.
        """
        self._about = {"format": FORMAT, "identity": dict(identity), "seed": seed}
        if self.saved is None:
            return None
        old = self.saved.get("identity")
        changes = differences(old if isinstance(old, dict) else {}, identity)
        if changes:
            hint = "name another folder, or delete it to start over"
            raise CheckpointError(
                f"{self.folder} is a checkpoint of another fit; {hint}:\n" + "\n".join(changes)
            )
        try:
            check_fit_state(self.saved)
        except DAMAGED as problem:
            reason = f"{self.path} is damaged ({printable(problem)})"
            raise CheckpointError(f"{reason}; delete it to start over") from None
        self._steps = frozenset(self.saved["finished"])
        return self.saved

    def keep(self, state: dict[str, Any]) -> None:
        """Keep the state of a fit after an epoch. It is on the disk soon, or when the fit is interrupted."""
        steps = frozenset(state["finished"])
        pause = None if steps == self._steps else min(STEP_SECONDS, CHECKPOINT_SECONDS)
        self._checkpointer.keep(state, pause)
        if self._checkpointer.state is None:
            self._steps = steps

    def save(self) -> None:
        self._checkpointer.save()

    def note_place(self, place: Path) -> None:
        """Note where the fitted model is about to be saved, see `noted_place`."""
        content = str(place.absolute()).encode("utf-8", "surrogateescape")
        atomic_write(self.folder / PLACE, content, error=CheckpointError, hint=HINT)

    def remove(self) -> None:
        """Remove the checkpoint, since the fit is finished."""
        self._checkpointer.state = None
        with explain_write_errors(self.path, error=CheckpointError, hint="delete it"):
            self.path.unlink(missing_ok=True)
            (self.folder / PLACE).unlink(missing_ok=True)

    def _write(self, state: dict[str, Any]) -> None:
        write_state(self.path, self._about | state, error=CheckpointError, hint=HINT)


def noted_place(folder: Path) -> Path | None:
    """Where an earlier process was about to save the model of this checkpoint; None if it never was.

    If it died before the checkpoint was removed, the model is there, and is no obstacle to the same fit.
    """
    try:
        content = read_bytes(folder / PLACE, PLACE_LIMIT, error=CheckpointError)
    except (CheckpointError, OSError):
        return None
    return Path(content.decode("utf-8", "surrogateescape"))


@contextmanager
def open_checkpoint(folder: str | Path) -> Iterator[FitCheckpoint]:
    """Hold the folder of a fit's checkpoint, for this process alone.

    It is new, empty, or has a checkpoint. Whatever ends the body early, the state after the last epoch is
    saved; a folder that is empty at the end is removed.
    """
    folder = Path(folder)
    if folder.is_symlink():
        raise CheckpointError(f"{folder} is a symbolic link; name the folder itself")
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder; {HINT}")
    with explain_write_errors(folder, error=CheckpointError, hint=HINT):
        folder.mkdir(parents=True, exist_ok=True)
        ours = (FILE, PLACE, "lock", *(f"{name}.apportion-partial" for name in (FILE, PLACE)))
        others = sorted(path.name for path in folder.iterdir() if path.name not in ours)
    if others:
        raise CheckpointError(f"{folder} has other files ({name_list(others, 3)}); {HINT}")
    try:
        with open_lock(folder / "lock", error=CheckpointError):
            checkpoint = FitCheckpoint(folder)
            try:
                yield checkpoint
            except BaseException:
                with suppress(RuntimeError):  # a full disk, a broken device: the first reason is what matters
                    checkpoint.save()
                raise
    finally:
        with suppress(OSError):  # it is not empty, unless the fit is finished or has not begun
            folder.rmdir()

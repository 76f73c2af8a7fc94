"""Checkpoints without pickle: tensors by safetensors, all else as JSON in its header.

A state is what `EpochState.state()` returns: dicts, lists, tuples, numbers, strings and tensors. What is read
back is checked against the networks that it is for, since a checkpoint may come from anyone.
"""

import json
from collections.abc import Sequence
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.optim import Optimizer

from apportion.errors import RunError

_BROKEN = (SafetensorError, RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError)


def held(state: dict[str, Any]) -> dict[str, Any]:
    """The state, with copies of what training will change in place: the networks and their optimizers."""
    return state | {name: _copied(state[name]) for name in ("networks", "optimizers")}


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {name: _copied(part) for name, part in value.items()}
    return [_copied(part) for part in value] if isinstance(value, list) else value


def pack(state: dict[str, Any]) -> bytes:
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(_plain(state, tensors, {}))
    return save(tensors, {"state": tree})


def _plain(value: Any, tensors: dict[str, Tensor], names: dict[int, str]) -> Any:
    """The value as JSON can say it; tensors are put aside under a name, the same one only once."""
    if isinstance(value, Tensor):
        name = names.setdefault(id(value), str(len(names)))
        if name not in tensors:
            tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        last = value.ndim == 4 and not value.is_contiguous()
        return {"tensor": name, "channels_last": last}
    if isinstance(value, dict):
        return {"dict": [[key, _plain(part, tensors, names)] for key, part in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_plain(part, tensors, names) for part in value]}
    return [_plain(part, tensors, names) for part in value] if isinstance(value, list) else value


def unpack(data: bytes, what: str) -> dict[str, Any]:
    """The state that was packed; anything else is an error, and nothing in it is executed."""
    try:
        tensors = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        state = _restored(json.loads(header["__metadata__"]["state"]), tensors)
        if type(state["epoch"]) is not int or state["epoch"] < 1:
            raise ValueError(f"its epoch is {state['epoch']!r}")
    except _BROKEN as problem:  # RecursionError is a RuntimeError
        raise RunError(f"{what} is not a checkpoint ({problem}); delete it to start the run anew") from None
    return state


def _restored(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_restored(part, tensors) for part in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        tensor = tensors[value["tensor"]]
        return tensor.to(memory_format=torch.channels_last) if value["channels_last"] else tensor
    if "tuple" in value:
        return tuple(_restored(part, tensors) for part in value["tuple"])
    return {key: _restored(part, tensors) for key, part in value["dict"]}


def check_fit(
    state: dict[str, Any] | None,
    players: Sequence[nn.Module],
    optimizers: Sequence[Optimizer],
    labels: torch.Size | None,
) -> None:
    """Refuse a state that is not of these networks, these optimizers and labels of this shape."""
    if state is None:
        return
    try:
        for player, saved in zip(players, state["networks"], strict=True):
            player.load_state_dict(saved)
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            _check_optimizer(optimizer, saved)
        tables = [] if labels is None else [*state["labels"], state["ema"]]
        tables += [] if labels is None or state["previous"] is None else [state["previous"]]
        if any(table.shape != labels or not table.is_floating_point() for table in tables):
            raise ValueError(f"its labels are not of the shape {tuple(labels or ())}")
    except _BROKEN as problem:
        remedy = "delete it to start the run anew"
        raise RunError(f"the checkpoint does not fit the recipe ({problem}); {remedy}") from None


def _check_optimizer(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Its settings are of the types that this optimizer has, its memory of the shapes of the weights."""
    for own, other in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        for name in own.keys() - {"params"}:
            if type(own[name]) is not type(other[name]):
                raise ValueError(f"the optimizer's {name} is {other[name]!r}")
    optimizer.load_state_dict(saved)
    for weights, memory in optimizer.state.items():
        for value in memory.values():
            if isinstance(value, Tensor) and value.ndim and value.shape != weights.shape:
                raise ValueError("the optimizer's memory is of other weights")

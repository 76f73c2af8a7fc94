"""How a model is read: all that a file says is checked before it is used, and nothing of it is executed."""

import inspect
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file
from torch import nn

import apportion
from apportion._device import channels_last
from apportion.errors import DataError, ModelError
from apportion.models.facts import facts_of
from apportion.models.model import FORMAT, KEYS, Model
from apportion.networks import NETWORKS
from apportion.tables.columns import Column, from_values, is_text

_LIMIT = 1 << 26  # bytes of JSON
_DEEPEST = 1000  # layers
_WIDEST = 64  # pixels beside an image


def load_model(folder: Path) -> Model:
    """The model in a folder, or an error that says what in it is not known."""
    values = _read(folder / "config.json")
    name, shape, classes = values["backbone"], values["shape"], values["classes"]
    if not isinstance(name, str) or name not in NETWORKS:
        raise ModelError(f"{folder} has the network {name!r}; there are {', '.join(NETWORKS)}")
    if not isinstance(shape, list) or not shape or any(type(n) is not int or n < 1 for n in shape):
        raise ModelError(f"{folder} has instances of shape {shape!r}; a shape is a list of whole numbers")
    if not _are_classes(classes):
        raise ModelError(f"{folder} has the classes {classes!r}; these are two texts or numbers at least")
    try:
        columns = None if values["columns"] is None else from_values(values["columns"])
    except DataError as problem:
        raise ModelError(f"{folder} cannot be read: {problem}") from None
    if columns is not None and _made(columns) != shape:
        raise ModelError(f"{folder} has columns that do not make instances of shape {shape}")
    names = values["feature_names"]
    if names is not None and not (isinstance(names, list) and all(isinstance(n, str) for n in names)):
        raise ModelError(f"{folder} has the feature names {names!r}; these are a list of texts, or null")
    try:
        facts = facts_of(values["facts"])
    except ValueError as problem:
        raise ModelError(f"{folder} has {problem}") from None
    if columns is not None and facts.bytes != (columns[0].kind == "image"):
        raise ModelError(f"{folder} does not say of its columns alike whether they are images")
    options = _options(folder, name, values["options"])
    network = _network(folder, name, tuple(shape), len(classes), options)
    names = None if names is None else tuple(names)
    about = (values[part] for part in ("settings", "data", "quality"))
    return Model(network, name, tuple(shape), tuple(classes), options, columns, names, facts, *about)


def _made(columns: tuple[Column, ...]) -> list[int]:
    """The shape of the instances: of an image, which stands alone, its own; of nothing that can be, none."""
    if any(column.kind == "image" for column in columns):
        return list(columns[0].shape) if len(columns) == 1 else []
    return [sum(len(column.features) for column in columns)]


def _are_classes(classes: Any) -> bool:
    """Two at least, each once, all of one type: texts, truth values, or numbers of 64 bits."""
    if not isinstance(classes, list) or len(classes) < 2 or len({type(c) for c in classes}) > 1:
        return False
    fit: dict[type, Callable[[Any], bool]] = {
        str: is_text, bool: lambda c: True, float: math.isfinite, int: lambda c: -(1 << 63) <= c < 1 << 63,
    }  # fmt: skip
    known = fit.get(type(classes[0]))
    return known is not None and all(map(known, classes)) and len(set(classes)) == len(classes)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ModelError(f"{path.parent} holds no model: there is no {path.name}")
    if path.stat().st_size > _LIMIT:
        raise ModelError(f"{path} is larger than any model's; it is not read")
    try:
        values = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as problem:
        raise ModelError(f"{path} is no JSON: {problem}") from None
    if not isinstance(values, dict):
        raise ModelError(f"{path} is no table of settings")
    if values.get("format") != FORMAT:
        version = f"this is apportion {apportion.__version__}, which reads format {FORMAT}"
        raise ModelError(f"{path} is of format {values.get('format')!r}; {version}")
    for key in KEYS:
        if key not in values:
            raise ModelError(f"{path} lacks the key {key!r}")
    for key in (key for key in values if key not in KEYS):
        raise ModelError(f"{path} has a key {key!r} that is not known; there are {', '.join(KEYS)}")
    for key in ("facts", "settings", "data", "quality"):
        if not isinstance(values[key], dict):
            raise ModelError(f"{path} has no table in {key!r}")
    return values


def _options(folder: Path, name: str, options: Any) -> dict[str, Any]:
    known = list(inspect.signature(NETWORKS[name]).parameters)[2:]
    if not isinstance(options, dict) or not set(options) <= set(known):
        raise ModelError(f"{folder} has the options {options!r}; {name} has {', '.join(known)}")
    for key in (key for key, value in options.items() if isinstance(value, list) and len(value) > _DEEPEST):
        what = f"more than {_DEEPEST} values for {key}"
        raise ModelError(f"{folder} describes a network that cannot be built: {what}")
    slope, padding = options.get("slope", 0.0), options.get("last_padding", 0)  # which no weight tells of
    if type(slope) not in (int, float) or not abs(slope) < 1e9:
        raise ModelError(f"{folder} has the slope {slope!r}; it is a number")
    if type(padding) is not int or not 0 <= padding <= _WIDEST:
        raise ModelError(f"{folder} has a last padding of {padding!r}; it is a whole number up to {_WIDEST}")
    return options


def _network(
    folder: Path, name: str, shape: tuple[int, ...], n_classes: int, options: dict[str, Any]
) -> nn.Module:
    path = folder / "model.safetensors"
    try:
        with torch.device("meta"):  # nothing is allocated for sizes that a file claims
            network = NETWORKS[name](shape, n_classes, **options)
        weights = load_file(path)
    except (OSError, safetensors.SafetensorError) as problem:
        raise ModelError(f"{path} cannot be read: {problem}") from None
    except (TypeError, ValueError, RuntimeError, IndexError) as problem:
        raise ModelError(f"{folder} describes a network that cannot be built: {problem}") from None
    expected, found = (
        {key: (tuple(value.shape), value.dtype) for key, value in state.items()}
        for state in (network.state_dict(), weights)
    )
    for key in sorted({*expected, *found}):
        if expected.get(key) != found.get(key):
            what = f"it has {key} of {found.get(key)}, the network has {expected.get(key)}"
            raise ModelError(f"{path} does not fit its config.json: {what}")
    for key in (key for key, value in weights.items() if not value.isfinite().all()):
        raise ModelError(f"{path} has numbers in {key} that are not finite")
    network.load_state_dict(weights, assign=True)
    channels_last(network)
    return network.eval()

"""A model and how it is written."""

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

import apportion
from apportion._untrusted import explain_write_errors
from apportion.errors import ModelError
from apportion.models.card import card
from apportion.models.facts import Facts
from apportion.networks import NETWORKS
from apportion.tables.columns import Column, to_values

FORMAT = 2  # 1: no facts, which stood among the words of the card
KEYS = (
    "format", "apportion", "torch", "backbone", "options", "shape", "classes", "columns", "feature_names",
    "facts", "settings", "data", "quality",
)  # fmt: skip


@dataclass(frozen=True)
class Model:
    network: nn.Module  # on the CPU, in evaluation mode
    backbone: str  # a name of NETWORKS
    shape: tuple[int, ...]  # of an instance
    classes: tuple[Any, ...]  # texts, numbers or truth values
    options: Mapping[str, Any] = field(default_factory=dict)  # of the backbone
    columns: tuple[Column, ...] | None = None  # how rows of a table become instances
    feature_names: tuple[str, ...] | None = None  # of a data frame that was fitted
    facts: Facts = Facts()
    settings: Mapping[str, Any] = field(default_factory=dict)  # what training was told
    # for people, in their words:
    data: Mapping[str, Any] = field(default_factory=dict)  # what it was trained on
    quality: Mapping[str, Any] = field(default_factory=dict)  # how predicted and known shares agree


def save_model(model: Model, folder: Path) -> None:
    """Write the folder beside its place, then move it there; a folder that is there already is refused."""
    refuse_taken(folder)
    if model.backbone not in NETWORKS:
        known = ", ".join(NETWORKS)
        raise ModelError(
            f"the backbone {model.backbone!r} has no name that a file could give; there are {known}"
        )
    values = {
        "format": FORMAT,
        "apportion": apportion.__version__,
        "torch": str(torch.__version__),
        "backbone": model.backbone,
        "options": dict(model.options),
        "shape": list(model.shape),
        "classes": list(model.classes),
        "columns": None if model.columns is None else to_values(model.columns),
        "feature_names": None if model.feature_names is None else list(model.feature_names),
        "facts": asdict(model.facts),
        **{part: dict(getattr(model, part)) for part in ("settings", "data", "quality")},
    }
    try:
        text = json.dumps(values, indent=1, allow_nan=False)
    except (TypeError, ValueError) as problem:
        raise ModelError(f"classes and settings must be texts, numbers or truth values: {problem}") from None
    with explain_write_errors(folder, error=ModelError):
        _write(model, folder, text, card(values))


def _write(model: Model, folder: Path, text: str, about: str) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))  # a name that nobody has
    beside.chmod(0o755)
    try:
        weights = {name: w.detach().cpu().contiguous() for name, w in model.network.state_dict().items()}
        (beside / "model.safetensors").write_bytes(save(weights))
        (beside / "config.json").write_text(text, "utf-8")
        (beside / "README.md").write_text(about, "utf-8")
        beside.replace(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def refuse_taken(folder: Path) -> None:
    """A model is written once: what stands in its place is not overwritten."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ModelError(f"{folder} is there already; name another folder, or remove it")


def named(backbone: Any) -> tuple[str, dict[str, Any]]:
    """The name of a backbone of this package, and its options; one without a name is an error."""
    made, options = backbone, {}
    if isinstance(backbone, partial) and not backbone.args:
        made, options = backbone.func, dict(backbone.keywords)
    name = next((known for known, own in NETWORKS.items() if made is own or made == known), None)
    if name is None:
        remedy = "torch.save classifier_.state_dict(), or use functools.partial of a backbone of apportion"
        raise ModelError(f"the backbone {backbone!r} has no name that a file could give; {remedy}")
    return name, options

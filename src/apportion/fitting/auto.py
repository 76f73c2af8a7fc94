"""What is left at "auto" follows the kind of the instances."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from apportion.defaults import resolve_auto
from apportion.errors import DataError
from apportion.fitting.shapes import misfits


def told(settings: Mapping[str, Any], x: Tensor, device: torch.device) -> dict[str, Any]:
    """The settings with what goes with these instances in place of every "auto"."""
    for problem in misfits(x, settings["backbone"]):
        raise DataError(f"instances have shape {tuple(x.shape[1:])}{problem}")
    asked = {"model": settings["backbone"], "method": settings["first_stage"], "pseudo_labels": "auto"}
    found = resolve_auto(asked, x, device)
    soft = found["pseudo_labels"] is not None
    words = {
        "first_stage": found["method"], "second_stage": "plot" if soft else None,
        "backbone": found["model"], "labels": "soft" if soft else "hard",
    }  # fmt: skip
    return dict(settings) | {name: word for name, word in words.items() if settings[name] == "auto"}

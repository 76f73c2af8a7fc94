"""What is left at "auto" follows the kind of the instances."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from apportion.errors import DataError
from apportion.fitting.kinds import CPU_IMAGES, IMAGES, ROWS, Kind
from apportion.fitting.shapes import is_images, misfits


def kind_of(x: Tensor, device: torch.device) -> Kind:
    if not is_images(x):
        return ROWS
    return CPU_IMAGES if device.type == "cpu" else IMAGES


def told(settings: Mapping[str, Any], x: Tensor, device: torch.device) -> dict[str, Any]:
    """The settings with what goes with these instances in place of every "auto"."""
    for problem in misfits(x, settings["backbone"]):
        raise DataError(f"instances have shape {tuple(x.shape[1:])}{problem}")
    words = kind_of(x, device).words
    return dict(settings) | {name: word for name, word in words.items() if settings[name] == "auto"}

"""The old names of the estimator's settings, in the words of `pipeline.fit_two_stages`."""

import math
from collections.abc import Iterator
from typing import Any

from apportion.bags.bags import Bags
from apportion.defaults import MakeNetwork, check_settings
from apportion.errors import SettingsError
from apportion.intake.weights import Relax, with_precision
from apportion.networks import NETWORKS
from apportion.pipeline import EpochState, fit_two_stages
from apportion.pseudo_labels import Labeler, make_labeler

NAMES = {
    "first_epochs": "epochs", "second_epochs": "student_epochs", "rate": "learning_rate",
    "second_rate": "student_learning_rate", "batch_size": "batch_size", "mirror": "horizontal_flip",
}  # fmt: skip


def stage_settings(
    *, first_stage: str, second_stage: str | None, backbone: Any, labels: str, reg: float, **others: Any
) -> dict[str, Any]:
    if second_stage not in ("plot", None):
        raise SettingsError(f"second_stage is {second_stage!r}; there are plot, None")
    renamed = {new: others.get(old, old == "mirror" or None) for old, new in NAMES.items()}
    pseudo_labels = None if second_stage is None else labels
    words = {"model": backbone, "method": first_stage, "pseudo_labels": pseudo_labels, "reg": reg}
    check_settings({**words, **renamed})
    made = backbone if callable(backbone) else NETWORKS[backbone]
    label = None if second_stage is None else make_labeler(labels, reg)
    return {"backbone": made, "method": first_stage, "label": label, **others}


def two_stages(
    bags: Bags, backbone: MakeNetwork, *, method: str = "dllp", label: Labeler | None, seed: int = 0,
    relax: Relax = math.inf, **others: Any,
) -> Iterator[EpochState]:  # fmt: skip
    renamed = {NAMES[old]: value for old, value in others.items()}
    bags = with_precision(bags, relax)
    return fit_two_stages(bags, backbone, method=method, label=label, seed=seed, **renamed)


def forget(estimator: Any) -> None:
    """Take away what an earlier fit found: one that is interrupted leaves no model, not half of two."""
    for name in [name for name in vars(estimator) if name.endswith("_") and not name.startswith("_")]:
        delattr(estimator, name)

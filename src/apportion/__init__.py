"""apportion: learn to label individuals when only the shares of whole groups are known.

The public names, imported when first used, so that the command line starts quickly. Functions that share
their name with a module are in it: apportion.training.train; the two stages are in apportion.pipeline.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING
from typing import Any as _Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from apportion.bags.bags import BagBatch, Bags
    from apportion.bags.simulate import make_bags
    from apportion.conditioning import meet
    from apportion.errors import DataError
    from apportion.estimators import ProportionClassifier
    from apportion.evaluate import accuracy, predict, proportion_error
    from apportion.intake.forms import expand_proportions
    from apportion.intake.grouping import build_bags
    from apportion.intake.manifest import load_manifest, save_manifest
    from apportion.methods import DLLP, LLPGAN, LLPVAT, ROT, CountLikelihood, TwoViews
    from apportion.methods.plot import PLOT, LabelHistory
    from apportion.optim import make_optimizer
    from apportion.pipeline import EpochState
    from apportion.pseudo_labels import argmax_labels, hard_labels, predicted_labels, soft_labels
    from apportion.saving import load, save
    from apportion.selection.diagnosis import Diagnosis, diagnose
    from apportion.selection.scores import BagCorrelation, BagScore
    from apportion.transport import Plan, assign, assign_with_duals, entropic_plan, round_to_counts

_HOMES = {
    "bags.simulate": ("make_bags",),
    "bags.bags": ("BagBatch", "Bags"),
    "selection.diagnosis": ("Diagnosis", "diagnose"),
    "estimators": ("ProportionClassifier",),
    "evaluate": ("accuracy", "predict", "proportion_error"),
    "methods": ("DLLP", "CountLikelihood", "LLPGAN", "LLPVAT", "ROT", "TwoViews"),
    "intake.forms": ("expand_proportions",),
    "intake.grouping": ("DataError", "build_bags"),
    "pseudo_labels": ("argmax_labels", "hard_labels", "predicted_labels", "soft_labels"),
    "intake.manifest": ("load_manifest", "save_manifest"),
    "conditioning": ("meet",),
    "optim": ("make_optimizer",),
    "pipeline": ("EpochState",),
    "saving": ("load", "save"),
    "selection.scores": ("BagCorrelation", "BagScore"),
    "methods.plot": ("PLOT", "LabelHistory"),
    "transport": ("Plan", "assign", "assign_with_duals", "entropic_plan", "round_to_counts"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
__all__ = [
    "BagBatch",
    "BagCorrelation",
    "DataError",
    "BagScore",
    "Bags",
    "CountLikelihood",
    "DLLP",
    "Diagnosis",
    "LLPGAN",
    "LLPVAT",
    "LabelHistory",
    "EpochState",
    "PLOT",
    "Plan",
    "ProportionClassifier",
    "ROT",
    "TwoViews",
    "accuracy",
    "argmax_labels",
    "assign",
    "assign_with_duals",
    "diagnose",
    "entropic_plan",
    "expand_proportions",
    "build_bags",
    "hard_labels",
    "load",
    "load_manifest",
    "make_bags",
    "make_optimizer",
    "meet",
    "predict",
    "predicted_labels",
    "proportion_error",
    "save",
    "save_manifest",
    "soft_labels",
    "round_to_counts",
]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> _Any:
    if name not in _HOME:
        raise AttributeError(f"module 'apportion' has no attribute '{name}'")
    return getattr(_import_module(f"apportion.{_HOME[name]}"), name)

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
    from apportion.estimators import ProportionClassifier
    from apportion.evaluate import accuracy, predict, proportion_error
    from apportion.intake.forms import expand
    from apportion.intake.grouping import BagError, group_bags
    from apportion.intake.manifest import load_manifest, save_manifest
    from apportion.judging.diagnosis import Diagnosis, diagnose
    from apportion.judging.scoring import BagCorrelation, BagScore
    from apportion.methods import DLLP, LLPGAN, LLPVAT, ROT, Counts, TwoViews
    from apportion.methods.plot import PLOT, Memory
    from apportion.optim import make_optimizer
    from apportion.pipeline import Moment
    from apportion.pseudo_labels import argmax_labels, hard_labels, predicted_labels, soft_labels
    from apportion.saving import load, save
    from apportion.transport import Plan, assign, certified, entropic, whole_counts

_HOMES = {
    "bags.simulate": ("make_bags",),
    "bags.bags": ("BagBatch", "Bags"),
    "judging.diagnosis": ("Diagnosis", "diagnose"),
    "estimators": ("ProportionClassifier",),
    "evaluate": ("accuracy", "predict", "proportion_error"),
    "methods": ("DLLP", "Counts", "LLPGAN", "LLPVAT", "ROT", "TwoViews"),
    "intake.forms": ("expand",),
    "intake.grouping": ("BagError", "group_bags"),
    "pseudo_labels": ("argmax_labels", "hard_labels", "predicted_labels", "soft_labels"),
    "intake.manifest": ("load_manifest", "save_manifest"),
    "conditioning": ("meet",),
    "optim": ("make_optimizer",),
    "pipeline": ("Moment",),
    "saving": ("load", "save"),
    "judging.scoring": ("BagCorrelation", "BagScore"),
    "methods.plot": ("PLOT", "Memory"),
    "transport": ("Plan", "assign", "certified", "entropic", "whole_counts"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
__all__ = [
    "BagBatch",
    "BagCorrelation",
    "BagError",
    "BagScore",
    "Bags",
    "Counts",
    "DLLP",
    "Diagnosis",
    "LLPGAN",
    "LLPVAT",
    "Memory",
    "Moment",
    "PLOT",
    "Plan",
    "ProportionClassifier",
    "ROT",
    "TwoViews",
    "accuracy",
    "argmax_labels",
    "assign",
    "certified",
    "diagnose",
    "entropic",
    "expand",
    "group_bags",
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
    "whole_counts",
]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> _Any:
    if name not in _HOME:
        raise AttributeError(f"module 'apportion' has no attribute '{name}'")
    return getattr(_import_module(f"apportion.{_HOME[name]}"), name)

"""apportion: learn to label individuals when only the proportions of whole groups are known.

The names below are imported when they are first used, so that `import apportion` is quick. Further functions
are in the modules: methods in `apportion.methods`, optimal transport in `apportion.transport`, labels for a
second stage in `apportion.pseudo_labels`, the two stages in `apportion.pipeline`.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING
from typing import Any as _Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from apportion.bags.bags import Bags
    from apportion.bags.build import build_bags, expand_proportions
    from apportion.bags.proportions import Proportions
    from apportion.bags.simulate import make_bags
    from apportion.conditioning import condition_on_proportions
    from apportion.encoding import TableEncoder
    from apportion.errors import ApportionError, ApportionWarning
    from apportion.estimator import ProportionClassifier
    from apportion.saving import load, save
    from apportion.selection.diagnosis import diagnose, diagnose_predictions
    from apportion.selection.scores import BagCorrelation, BagScore
    from apportion.tabulation import tabulate

_HOME = {
    "ProportionClassifier": "estimator",
    "Proportions": "bags.proportions",
    "Bags": "bags.bags",
    "build_bags": "bags.build",
    "make_bags": "bags.simulate",
    "expand_proportions": "bags.build",
    "TableEncoder": "encoding",
    "condition_on_proportions": "conditioning",
    "diagnose": "selection.diagnosis",
    "diagnose_predictions": "selection.diagnosis",
    "tabulate": "tabulation",
    "BagScore": "selection.scores",
    "BagCorrelation": "selection.scores",
    "save": "saving",
    "load": "saving",
    "ApportionError": "errors",
    "ApportionWarning": "errors",
}
__all__ = [
    "ApportionError",
    "ApportionWarning",
    "BagCorrelation",
    "BagScore",
    "Bags",
    "ProportionClassifier",
    "Proportions",
    "TableEncoder",
    "build_bags",
    "condition_on_proportions",
    "diagnose",
    "diagnose_predictions",
    "expand_proportions",
    "load",
    "make_bags",
    "save",
    "tabulate",
]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> _Any:
    if name not in _HOME:
        raise AttributeError(f"module 'apportion' has no attribute '{name}'")
    return getattr(_import_module(f"apportion.{_HOME[name]}"), name)

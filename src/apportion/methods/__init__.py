"""Methods that learn from label proportions, one per file; `protocol` says what a new one must provide."""

from apportion.methods.build import (
    METHODS,
    is_linear,
    make_learner,
    name_of,
    option_defaults,
    register_method,
    takes_pairs,
    takes_rows,
    title_of,
)
from apportion.methods.count_likelihood import CountLikelihood
from apportion.methods.dllp import DLLP
from apportion.methods.easy_llp import EasyLLP
from apportion.methods.llp_gan import LLPGAN
from apportion.methods.llp_mm import LLPMM
from apportion.methods.llp_vat import LLPVAT
from apportion.methods.mean_map import MeanMap
from apportion.methods.mixbag import MixBag
from apportion.methods.rot import ROT
from apportion.methods.setup import Setup
from apportion.methods.two_views import TwoViews

__all__ = [
    "DLLP", "LLPGAN", "LLPMM", "LLPVAT", "METHODS", "ROT", "CountLikelihood", "EasyLLP", "MeanMap", "MixBag",
    "Setup", "TwoViews", "is_linear", "make_learner", "name_of", "option_defaults", "register_method",
    "takes_pairs", "takes_rows", "title_of",
]  # fmt: skip

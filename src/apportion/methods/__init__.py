"""Methods that learn from label proportions, one per file; `protocol` says what a new one must provide."""

from apportion.methods.build import METHODS, ROW_METHODS, make_learner
from apportion.methods.count_likelihood import CountLikelihood
from apportion.methods.dllp import DLLP
from apportion.methods.llp_gan import LLPGAN
from apportion.methods.llp_vat import LLPVAT
from apportion.methods.rot import ROT
from apportion.methods.two_views import TwoViews

__all__ = [
    "DLLP",
    "LLPGAN",
    "LLPVAT",
    "METHODS",
    "ROT",
    "ROW_METHODS",
    "CountLikelihood",
    "TwoViews",
    "make_learner",
]

"""First stages, one method a file."""

from apportion.methods.count_likelihood import CountLikelihood
from apportion.methods.dllp import DLLP
from apportion.methods.llp_gan import LLPGAN
from apportion.methods.llp_vat import LLPVAT
from apportion.methods.rot import ROT
from apportion.methods.two_views import TwoViews

METHODS = {
    "dllp": DLLP,
    "vat": LLPVAT,
    "gan": LLPGAN,
    "rot": ROT,
    "counts": CountLikelihood,
    "two-views": TwoViews,
}
ROW_METHODS = ("dllp", "two-views")  # can learn from batches of rows from all bags

__all__ = [
    "DLLP",
    "CountLikelihood",
    "LLPGAN",
    "LLPVAT",
    "METHODS",
    "ROT",
    "ROW_METHODS",
    "TwoViews",
]

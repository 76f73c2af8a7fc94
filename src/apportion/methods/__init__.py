"""First stages, one method a file."""

from apportion.methods.count_likelihood import Counts
from apportion.methods.dllp import DLLP, ScatteredDLLP
from apportion.methods.llp_gan import LLPGAN
from apportion.methods.llp_vat import LLPVAT
from apportion.methods.rot import ROT
from apportion.methods.two_views import TwoViews

METHODS = {"dllp": DLLP, "vat": LLPVAT, "gan": LLPGAN, "rot": ROT, "counts": Counts, "two-views": TwoViews}
SCATTERED = {"dllp": ScatteredDLLP, "two-views": TwoViews}  # on batches of rows from all bags

__all__ = ["DLLP", "Counts", "LLPGAN", "LLPVAT", "METHODS", "ROT", "SCATTERED", "ScatteredDLLP", "TwoViews"]

"""First stages, one method a file."""

from apportion.first_stage.counts import Counts
from apportion.first_stage.dllp import DLLP
from apportion.first_stage.gan import LLPGAN
from apportion.first_stage.rot import ROT
from apportion.first_stage.scattered import ScatteredDLLP
from apportion.first_stage.two_views import TwoViews
from apportion.first_stage.vat import LLPVAT

METHODS = {"dllp": DLLP, "vat": LLPVAT, "gan": LLPGAN, "rot": ROT, "counts": Counts, "two-views": TwoViews}
SCATTERED = {"dllp": ScatteredDLLP, "two-views": TwoViews}  # on batches of rows from all bags

__all__ = ["DLLP", "Counts", "LLPGAN", "LLPVAT", "METHODS", "ROT", "SCATTERED", "ScatteredDLLP", "TwoViews"]

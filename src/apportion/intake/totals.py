"""Overall shares of several groupings of the same rows, which are to agree."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

APART = 0.01  # by which they may differ before it is told: shares may be rounded


def apart(overall: Mapping[Any, np.ndarray], classes: Sequence[Any], option: str) -> Iterator[str]:
    """What to say of shares (k,) by grouping that cannot all be right; NaN, where some are unknown, says
    nothing."""
    names = [name for name, each in overall.items() if np.isfinite(each).all()]
    if len(names) < 2:
        return
    shares = np.stack([overall[name] for name in names])
    worst = int(np.ptp(shares, axis=0).argmax())
    low, high = int(shares[:, worst].argmin()), int(shares[:, worst].argmax())
    if shares[high, worst] - shares[low, worst] > APART:
        ends = f"{100 * shares[low, worst]:.3g} and {100 * shares[high, worst]:.3g} % of {classes[worst]!r}"
        what = f"the groupings {names[low]!r} and {names[high]!r} have {ends} over all rows"
        yield f"{what}, which cannot both be; {option} is for inexact shares"

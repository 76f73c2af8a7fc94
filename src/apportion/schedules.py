"""Rate schedules: pure functions from progress in [0, 1] to a share of the peak rate."""

import math
from collections.abc import Callable


def flat(progress: float) -> float:
    """Constant for 70 %, then linear to zero: a student that keeps moving keeps improving its labels."""
    return min(1.0, (1.0 - progress) / 0.3)


def cosine(progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def one_cycle(progress: float) -> float:
    """From 1/25 up to the peak during the first 30 %, then down to zero, both along a cosine."""
    if progress < 0.3:
        return 1.0 - 0.96 * cosine(progress / 0.3)
    return cosine((progress - 0.3) / 0.7)


def ramp_cosine(progress: float) -> float:
    """Up to the peak during the first 5 %, then along a cosine to zero."""
    return progress / 0.05 if progress < 0.05 else cosine((progress - 0.05) / 0.95)


def constant(progress: float) -> float:
    return 1.0


def halving(progress: float, epochs: int) -> float:
    """Halved after every 100 epochs: the paper's schedule, which alone must know how many there are."""
    return 0.5 ** math.floor(progress * epochs / 100 + 1e-9)


SCHEDULES: dict[str, Callable[..., float]] = {
    "flat": flat,
    "cosine": cosine,
    "one-cycle": one_cycle,
    "ramp-cosine": ramp_cosine,
    "constant": constant,
    "halving": halving,
}

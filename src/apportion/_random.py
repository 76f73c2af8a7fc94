"""Keys, not states: every use of randomness names its purpose and gets a generator of its own."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import numpy as np
import torch


def key(seed: int, *purpose: object) -> int:
    """A 63-bit seed that depends on the seed and on every word of the purpose."""
    # numpy's integers are read as Python's: their repr is another, and differs between numpy's versions
    words = tuple(int(word) if isinstance(word, np.integer) else word for word in (seed, *purpose))
    digest = hashlib.blake2b(repr(words).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def stream(seed: int, *purpose: object) -> torch.Generator:
    """A CPU generator for one purpose: `stream(1, "bags", 64)` is the same on every machine."""
    return torch.Generator().manual_seed(key(seed, *purpose))


def reseed(seed: int, *purpose: object) -> torch.Generator:
    """Seed torch's own generators, on all devices, for one purpose; the generator returned is apart from
    them.

    Dropout, noise and augmentation draw from torch's generators on their device. Called at the start of
    every epoch, so that resuming needs no saved state.
    """
    number = key(seed, *purpose)
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        torch.manual_seed(number)
    else:
        torch.default_generator.manual_seed(number)  # torch.manual_seed without a device costs a step's time
    return stream(seed, *purpose, "order")


@contextmanager
def preserve_random_state(device: torch.device) -> Iterator[None]:
    """Torch's generators are afterwards as they were, on all devices that seeding reaches."""
    reached = torch.cuda.is_initialized() or device.type == "cuda"  # a GPU not in use is not woken for it
    with torch.random.fork_rng(range(torch.cuda.device_count()) if reached else ()):
        yield


def as_seed(state: Any) -> int:
    """scikit-learn's random_state as a seed; None takes one from the system, not from numpy's generator."""
    from sklearn.utils import check_random_state

    if state is None:
        return int(np.random.default_rng().integers(2**31))
    return int(state) if isinstance(state, Integral) else int(check_random_state(state).randint(2**31 - 1))

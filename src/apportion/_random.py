"""Random streams by purpose: every use of randomness derives its own generator from the seed.

Results do not depend on how many numbers other code has drawn, and resuming needs no saved state.
"""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import numpy as np
import torch

# Torch's global generators belong to the process: a fit in another thread would reseed them in mid-epoch.
_global_generators = threading.RLock()


def derive_seed(seed: int, *purpose: object) -> int:
    """A 63-bit seed that depends on `seed` and on every word of the purpose."""
    # numpy's integers count as Python's: their repr differs between versions of numpy
    words = tuple(int(word) if isinstance(word, np.integer) else word for word in (seed, *purpose))
    digest = hashlib.blake2b(repr(words).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def stream(seed: int, *purpose: object) -> torch.Generator:
    """A CPU generator for one purpose. `stream(1, "bags", 64)` is the same on every machine.

    >>> int(torch.randint(100, (), generator=stream(1, "bags", 64)))
    88
    """
    return torch.Generator().manual_seed(derive_seed(seed, *purpose))


def reseed(seed: int, *purpose: object) -> torch.Generator:
    """Seed torch's global generators, on all devices, for one purpose. Also returns a CPU generator.

    Dropout, noise and augmentation draw from the global generator of their device. The loop calls this before
    every epoch, so that resuming needs no saved state.
    """
    derived = derive_seed(seed, *purpose)
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        torch.manual_seed(derived)
    else:
        # torch.manual_seed takes as long as a training step on a machine without a GPU
        torch.default_generator.manual_seed(derived)
    return stream(seed, *purpose, "order")


@contextmanager
def seeded(seed: int, *purpose: object) -> Iterator[torch.Generator]:
    """`reseed`, and no other thread reseeds until the end: such sections of several fits take turns."""
    with _global_generators:
        yield reseed(seed, *purpose)


@contextmanager
def preserve_random_state(device: torch.device) -> Iterator[None]:
    """Restore torch's global generators afterwards, on the CPU and on the GPUs in use."""
    # a GPU that is not in use is skipped: initializing it would take seconds and memory
    uses_cuda = torch.cuda.is_initialized() or device.type == "cuda"
    gpus = range(torch.cuda.device_count()) if uses_cuda else ()
    fork = torch.random.fork_rng(gpus)
    with _global_generators:
        fork.__enter__()
    try:
        yield
    finally:
        with _global_generators:
            fork.__exit__(None, None, None)


def as_seed(random_state: Any) -> int:
    """scikit-learn's `random_state` as a seed. None draws one from the system, not from numpy's generator."""
    from sklearn.utils import check_random_state

    if random_state is None:
        return int(np.random.default_rng().integers(2**31))
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))

"""Bags in chunks of about equal work, a thread a chunk: bags are independent, so the result is the same."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

SMALL = 1 << 16  # rows below which starting threads costs more than it gains


def bounds(starts: np.ndarray, chunks: int) -> np.ndarray:
    """First bag of every chunk, and the number of bags as last; no chunk is empty."""
    rows = np.linspace(0, starts[-1], chunks + 1)
    return np.unique(np.searchsorted(starts, rows, side="left"))


def in_chunks(work: Callable[[int, int], Any], starts: np.ndarray) -> list[Any]:
    """Results of work(first bag, last bag) over all bags, in order.

    Threads are Python's, as many as torch uses: the compiled work holds no lock, and unlike numba's own pool
    they survive fork and may be started from several threads at once.
    """
    bags, threads = len(starts) - 1, torch.get_num_threads() if starts[-1] >= SMALL else 1
    if threads == 1 or bags < 2:
        return [work(0, bags)] if bags else []
    edges = bounds(starts, 4 * threads)  # several chunks a thread even out bags of unequal difficulty
    parts = list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda part: work(*part), parts))


def announce(kernel: Any, name: str, seconds: int) -> None:
    """Says that a first call compiles, before the wait; later processes find the result in numba's cache.

    By the log, at a level that is shown unless silenced: a warning would read as if something were wrong.
    """
    from numba import config

    if vars(config)["DISABLE_JIT"] or kernel.signatures:
        return
    place = kernel.stats.cache_path
    if place is None or not list(Path(place).glob(f"{name}.solve_bags*.nbi")):
        how = "once" if place else "in every process, unless NUMBA_CACHE_DIR names a folder to keep it in"
        logging.getLogger("apportion").warning(
            "compiling the %s transport solver for this machine, %s: about %d seconds", name, how, seconds
        )

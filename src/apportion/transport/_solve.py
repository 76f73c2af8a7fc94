"""From checked arrays to the compiled kernels and back: chunks of bags, threads, errors that name a bag."""

import math
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apportion.errors import ApportionWarning, DataError
from apportion.transport._inputs import (
    ArrayLike,
    bag_starts,
    check_counts,
    check_prices,
    check_proportions,
    check_scores,
    check_settings,
    damping,
    tensor_like,
)


def solve_exact(
    log_probs: ArrayLike, sizes: ArrayLike, counts: ArrayLike, prices: ArrayLike | None, *, keep_prices: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Classes (N,), prices (m, k) and duality gaps (m,); the last two are empty unless prices are kept."""
    from apportion.transport import _exact as exact  # here, because numba takes half a second to import

    scores = check_scores(log_probs)
    starts = bag_starts(sizes, len(scores))
    table = check_counts(counts, starts, scores.shape[1])
    costs = check_prices(prices, table.shape) if keep_prices else np.empty((0, table.shape[1]))
    classes, gaps = np.empty(len(scores), np.int64), np.empty(len(costs))
    announce_compilation(exact.solve_bags, "exact", seconds=15)

    def work(first: int, last: int) -> tuple[int, int]:
        largest = int(np.diff(starts[first : last + 1]).max())
        memory = exact.allocate(largest, table.shape[1], scores.dtype)
        warm = prices is not None
        failure = exact.solve_bags(scores, starts, table, first, last, costs, warm, classes, memory)
        if failure[1] == exact.OK and keep_prices:
            exact.duality_gaps(scores, starts, table, first, last, costs, classes, gaps)
        return failure

    for bag, status in map_chunks(work, starts):
        if status != exact.OK:
            raise infeasible_bag(bag, status == exact.NOT_A_NUMBER, scores, starts, table)
    return tensor_like(classes, log_probs), tensor_like(costs, log_probs), tensor_like(gaps, log_probs)


def solve_entropic(
    log_probs: ArrayLike,
    sizes: ArrayLike,
    proportions: ArrayLike,
    reg: float,
    precision: float | ArrayLike,
    tol: float,
    max_iterations: int,
) -> tuple[Tensor, Tensor, int]:
    """Mass (N, k), errors (m,) and the iterations of the slowest bag, on the device of log_probs."""
    check_settings(reg, tol, max_iterations)
    if isinstance(log_probs, Tensor) and log_probs.is_cuda:  # MPS has no float64, so the CPU solves for it
        return solve_on_device(log_probs.detach(), sizes, proportions, reg, precision, tol, max_iterations)
    from apportion.transport import _newton as newton

    scores = check_scores(log_probs)
    starts = bag_starts(sizes, len(scores))
    table = check_proportions(proportions, len(starts) - 1, scores.shape[1])
    rho = damping(reg, precision, len(table))
    mass, errors = np.empty_like(scores), np.empty(len(table))
    announce_compilation(newton.solve_bags, "entropic", seconds=15)

    def work(first: int, last: int) -> tuple[int, int, int]:
        memory = newton.allocate(int(np.diff(starts[first : last + 1]).max()), table.shape[1])
        settings = (1 / reg, rho, tol, max_iterations)
        return newton.solve_bags(scores, starts, table, first, last, *settings, mass, errors, memory)

    slowest = 0
    for bag, status, iterations in map_chunks(work, starts):
        slowest = max(slowest, iterations)
        if status != newton.OK:
            raise infeasible_bag(bag, status == newton.NOT_A_NUMBER, scores, starts, table)
    return tensor_like(mass, log_probs), tensor_like(errors, log_probs), slowest


def solve_on_device(
    log_probs: Tensor,
    sizes: ArrayLike,
    proportions: ArrayLike,
    reg: float,
    precision: float | ArrayLike,
    tol: float,
    max_iterations: int,
) -> tuple[Tensor, Tensor, int]:
    """`solve_entropic` with the batched solver, on the device of the tensor."""
    from apportion.transport import _batched as batched

    scores = log_probs if log_probs.dtype == torch.float64 else log_probs.float()
    starts = bag_starts(sizes, len(scores))
    table = check_proportions(proportions, len(starts) - 1, scores.shape[1])
    shares = torch.from_numpy(table).to(scores.device)
    lengths = torch.from_numpy(np.diff(starts))
    bag = torch.repeat_interleave(lengths).to(scores.device)
    not_finite = ~(scores < math.inf).all(1)
    stuck = scores.masked_fill(shares[bag] == 0, -math.inf).amax(1) == -math.inf
    for rows, not_a_number in ((not_finite, True), (stuck, False)):
        if rows.any():
            b = int(bag[rows.nonzero()[0, 0]])
            raise infeasible_bag(b, not_a_number, check_scores(scores), starts, table)
    rho = torch.from_numpy(damping(reg, precision, len(table))).to(scores.device)
    return batched.solve(scores, lengths, shares, 1 / reg, rho, tol, max_iterations)


def infeasible_bag(
    bag: int, not_a_number: bool, scores: np.ndarray, starts: np.ndarray, table: np.ndarray
) -> DataError:
    """Why a bag has no solution, and what to do about it."""
    rows = scores[starts[bag] : starts[bag + 1]]
    if not_a_number:
        row, column = np.argwhere(~(rows < np.inf))[0]
        value = float(rows[row, column])
        what = f"bag {bag} has log_probs of {value} in row {starts[bag] + row}, class {column}"
        hint = "pass finite numbers or minus infinity; if the network has diverged, lower the learning rate"
        return DataError(f"{what}; {hint}", bag=bag, value=value)
    allowed = table[bag] > 0
    stuck = np.flatnonzero((rows[:, allowed] == -np.inf).all(1))
    where = ""
    if stuck.size:
        where = f": row {starts[bag] + stuck[0]} has -inf for every class that the bag has"
    what = f"bag {bag} cannot have {table[bag]} with the classes that its log_probs of -inf leave{where}"
    hint = "if they come from rounding, use log_softmax or clamp log_probs to, say, -1e4"
    return DataError(f"{what}; {hint}", bag=bag)


# --- chunks of bags and threads

THREADED_ROWS = 1 << 16  # below this, starting threads costs more than it gains


def chunk_edges(starts: np.ndarray, n_chunks: int) -> np.ndarray:
    """The first bag of every chunk of about as many rows, and the number of bags as last; none is empty."""
    rows = np.linspace(0, starts[-1], n_chunks + 1)
    return np.unique(np.searchsorted(starts, rows, side="left"))


def map_chunks(work: Callable[[int, int], Any], starts: np.ndarray) -> list[Any]:
    """Results of work(first bag, last bag) for chunks of all bags, in order.

    Bags are independent, so chunks change no result. Threads are Python's, as many as torch uses: compiled
    code releases the lock, and unlike numba's own pool they survive a fork and may be started anywhere.
    """
    n_bags = len(starts) - 1
    threads = torch.get_num_threads() if starts[-1] >= THREADED_ROWS else 1
    if n_bags == 0:
        return []
    if threads == 1 or n_bags == 1:
        return [work(0, n_bags)]
    edges = chunk_edges(starts, 4 * threads)  # several chunks per thread even out bags that take longer
    chunks = list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda chunk: work(*chunk), chunks))


def announce_compilation(kernel: Any, name: str, seconds: int) -> None:
    """Warn before the first call compiles. Later processes find the result in numba's cache."""
    from numba import config

    if vars(config)["DISABLE_JIT"] or kernel.signatures:
        return
    folder = kernel.stats.cache_path
    module = kernel.py_func.__module__.rpartition(".")[2]
    if folder is not None and list(Path(folder).glob(f"{module}.solve_bags*.nbi")):
        return
    how = "once" if folder else "in every process, unless NUMBA_CACHE_DIR names a folder to keep it in"
    message = f"compiling the {name} transport solver for this machine, {how}: about {seconds} seconds"
    warnings.warn(message, ApportionWarning, stacklevel=4)

"""From checked arrays to the compiled kernels and back: chunks, threads, and errors that name the bag.

Bags in chunks of about equal work, a thread a chunk: bags are independent, so the result is the same.

Whole counts of a bag from its proportions.
"""

import logging
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apportion.errors import DataError
from apportion.transport import _inputs as inputs
from apportion.transport._inputs import ArrayLike


def solve_exact(
    log_probs: ArrayLike, sizes: ArrayLike, counts: ArrayLike, prices: ArrayLike | None, *, keep_prices: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Classes (N,), prices (m, k) and duality gaps (m,); the last two are empty unless prices are kept."""
    from apportion.transport import _exact as exact  # here, because numba takes half a second to import

    scores = inputs.scores(log_probs)
    starts = inputs.starts(sizes, len(scores))
    table = inputs.counts(counts, starts, scores.shape[1])
    costs = inputs.prices(prices, table.shape) if keep_prices else np.empty((0, table.shape[1]))
    classes, gaps = np.empty(len(scores), np.int64), np.empty(len(costs))
    announce(exact.solve_bags, "exact", seconds=15)

    def work(first: int, last: int) -> tuple[int, int]:
        most = int(np.diff(starts[first : last + 1]).max())
        memory = exact.scratch(most, table.shape[1], scores.dtype)
        failure = exact.solve_bags(
            scores, starts, table, first, last, costs, prices is not None, classes, memory
        )
        if failure[1] == exact.OK and keep_prices:
            exact.duality_gaps(scores, starts, table, first, last, costs, classes, gaps)
        return failure

    for bag, status in in_chunks(work, starts):
        if status != exact.OK:
            raise DataError(complaint(bag, status == exact.NOT_A_NUMBER, scores, starts, table))
    return inputs.like(classes, log_probs), inputs.like(costs, log_probs), inputs.like(gaps, log_probs)


def solve_entropic(
    log_probs: ArrayLike,
    sizes: ArrayLike,
    proportions: ArrayLike,
    reg: float,
    relax: float | ArrayLike,
    tol: float,
    max_iterations: int,
) -> tuple[Tensor, Tensor, int]:
    """Mass (N, k), errors (m,) and iterations of the slowest bag, on the device of log_probs."""
    inputs.check_settings(reg, tol, max_iterations)
    if isinstance(log_probs, Tensor) and log_probs.is_cuda:  # others (MPS) have no float64
        return solve_on_device(log_probs.detach(), sizes, proportions, reg, relax, tol, max_iterations)
    from apportion.transport import _newton as newton

    scores = inputs.scores(log_probs)
    starts = inputs.starts(sizes, len(scores))
    table = inputs.proportions(proportions, len(starts) - 1, scores.shape[1])
    rho = inputs.looseness(reg, relax, len(table))
    mass, errors = np.empty_like(scores), np.empty(len(table))
    announce(newton.solve_bags, "newton", seconds=15)

    def work(first: int, last: int) -> tuple[int, int, int]:
        memory = newton.scratch(int(np.diff(starts[first : last + 1]).max()), table.shape[1])
        return newton.solve_bags(
            scores,
            starts,
            table,
            first,
            last,
            1 / reg,
            rho,
            tol,
            max_iterations,
            mass,
            errors,
            memory,
        )

    slowest = 0
    for bag, status, steps in in_chunks(work, starts):
        slowest = max(slowest, steps)
        if status != newton.OK:
            raise DataError(complaint(bag, status == newton.NOT_A_NUMBER, scores, starts, table))
    return inputs.like(mass, log_probs), inputs.like(errors, log_probs), slowest


def solve_on_device(
    log_probs: Tensor,
    sizes: ArrayLike,
    proportions: ArrayLike,
    reg: float,
    relax: float | ArrayLike,
    tol: float,
    max_iterations: int,
) -> tuple[Tensor, Tensor, int]:
    """`solve_entropic` by the batched solver, wherever the tensor is."""
    from apportion.transport import _batched as batched

    scores = log_probs if log_probs.dtype == torch.float64 else log_probs.float()
    starts = inputs.starts(sizes, len(scores))
    table = inputs.proportions(proportions, len(starts) - 1, scores.shape[1])
    shares = torch.from_numpy(table).to(scores.device)
    lengths = torch.from_numpy(np.diff(starts))
    bag = torch.repeat_interleave(lengths).to(scores.device)
    bad = ~(scores < math.inf).all(1)
    stuck = scores.masked_fill(shares[bag] == 0, -math.inf).amax(1) == -math.inf
    for rows, not_a_number in ((bad, True), (stuck, False)):
        if rows.any():
            at = int(bag[rows.nonzero()[0, 0]])
            raise DataError(complaint(at, not_a_number, inputs.scores(scores), starts, table))
    rho = torch.from_numpy(inputs.looseness(reg, relax, len(table))).to(scores.device)
    return batched.solve(scores, lengths, shares, 1 / reg, rho, tol, max_iterations)


def complaint(bag: int, not_a_number: bool, scores: np.ndarray, starts: np.ndarray, table: np.ndarray) -> str:
    """What is wrong with a bag that has no solution, and what to do about it."""
    rows, allowed = scores[starts[bag] : starts[bag + 1]], table[bag] > 0
    if not_a_number:
        row, column = np.argwhere(~(rows < np.inf))[0]
        return (
            f"bag {bag} has log_probs of {rows[row, column]} in row {starts[bag] + row}, class {column}; "
            "scores must be finite or minus infinity: if the network has diverged, lower the rate"
        )
    stuck = np.flatnonzero((rows[:, allowed] == -np.inf).all(1))
    where = f": row {starts[bag] + stuck[0]} has -inf for every class that the bag has" if stuck.size else ""
    return (
        f"bag {bag} cannot meet {table[bag]} with the classes that its log_probs of -inf leave{where}; "
        "if these come from rounding, use log_softmax or clamp log_probs to, say, -1e4"
    )


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


def round_to_counts(proportions: ArrayLike, sizes: ArrayLike) -> Tensor:
    """Whole counts (m, k) nearest to proportions x sizes by largest remainder; ties go to the lower class.

    Rows sum to the sizes. Remainders closer than the rounding error of the proportions count as ties.
    """
    shares = inputs.array(proportions)
    accuracy = np.finfo(shares.dtype).eps if shares.dtype.kind == "f" else np.finfo(np.float64).eps
    bag_sizes = np.diff(inputs.starts(sizes, None))[:, None]
    shares = inputs.proportions(shares, len(bag_sizes), None)
    # rounding error of a quota; below 1/k in all, so that what is rounded down never exceeds a large bag
    grid = np.minimum(4 * accuracy * bag_sizes, 0.25 / shares.shape[1])
    quotas = np.round(shares * bag_sizes / grid) * grid
    whole = np.floor(quotas + grid)
    left = bag_sizes - whole.sum(1, keepdims=True)
    # equal remainders may have been rounded to neighbors on the grid: a remainder ties with the next larger
    order = np.argsort(whole - quotas, axis=1, kind="stable")
    falling = np.take_along_axis(quotas - whole, order, 1)
    below = np.diff(falling, axis=1, prepend=falling[:, :1]) < -1.5 * grid
    level = np.empty_like(order)
    np.put_along_axis(level, order, below.cumsum(1), 1)
    rank = np.argsort(level, axis=1, kind="stable").argsort(1, kind="stable")
    return inputs.like((whole + (rank < left)).astype(np.int64), proportions)

"""From checked arrays to the compiled kernels and back: chunks, threads, and errors that name the bag."""

import math

import numpy as np
import torch
from torch import Tensor

from apportion.transport import inputs
from apportion.transport.chunks import announce, in_chunks
from apportion.transport.inputs import ArrayLike


class TransportError(ValueError):
    """A bag for which there are no labels; the message says why."""


def solve_exactly(
    log_probs: ArrayLike, sizes: ArrayLike, counts: ArrayLike, prices: ArrayLike | None, *, keep_prices: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Classes (N,), prices (m, k) and duality gaps (m,); the last two are empty unless prices are kept."""
    from apportion.transport import exact  # here, because numba takes half a second to import

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
            raise TransportError(complaint(bag, status == exact.NOT_A_NUMBER, scores, starts, table))
    return inputs.like(classes, log_probs), inputs.like(costs, log_probs), inputs.like(gaps, log_probs)


def solve_entropically(
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
    from apportion.transport import newton

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
            raise TransportError(complaint(bag, status == newton.NOT_A_NUMBER, scores, starts, table))
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
    """`solve_entropically` by the batched solver, wherever the tensor is."""
    from apportion.transport import batched

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
            raise TransportError(complaint(at, not_a_number, inputs.scores(scores), starts, table))
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

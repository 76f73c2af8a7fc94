"""The solvers: inputs are checked, bags are solved by compiled kernels, and results become tensors.

Bags are solved in chunks, by threads. Errors name the bag.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from apportion.errors import ApportionWarning, DataError, SettingsError

ArrayLike = Tensor | np.ndarray | Sequence


class Plan(NamedTuple):
    """Soft labels of all bags.

    Attributes
    ----------
    mass : Tensor (N, k)
        One distribution over classes per row.
    error : Tensor (m,)
        How far each bag is from a solution, see `entropic_plan`.
    iterations : int
        Iterations of the slowest bag.
    """

    mass: Tensor
    error: Tensor
    iterations: int


class Assignment(NamedTuple):
    """Classes of all rows, with the dual prices that prove them optimal.

    Attributes
    ----------
    classes : Tensor (N,)
        The class of each row.
    prices : Tensor (m, k), float64
        The price of each class in each bag; infinite for classes that the bag has none of.
    gap : Tensor (m,), float64
        Duality gap: the cost minus the lower bound that the prices prove. Zero up to rounding.
    """

    classes: Tensor
    prices: Tensor
    gap: Tensor


# --- the best one-hot labels


def assign(log_probs: ArrayLike, sizes: ArrayLike, counts: ArrayLike) -> Tensor:
    """The most probable labels that have exactly the given counts in every bag.

    Maximizes the sum of ``log_probs[i, classes[i]]`` over the rows of each bag subject to its counts: the
    optimal transport of eq. (6), solved exactly by shortest augmenting paths, in parallel on
    `torch.get_num_threads()` CPU threads.

    Parameters
    ----------
    log_probs : array-like (N, k)
        Log-probabilities, rows sorted by bag. Logits also work: a constant added to a row changes nothing.
        Minus infinity forbids a class.
    sizes : array-like (m,)
        Rows of each bag.
    counts : array-like (m, k)
        Whole numbers that sum to the sizes, see `round_to_counts`.

    Returns
    -------
    Tensor (N,), int64, on the device of `log_probs`

    Examples
    --------
    Two of three rows prefer class 0, but only one can have it.

    >>> assign([[0.0, -5.0], [0.0, -1.0], [-3.0, 0.0]], sizes=[3], counts=[[1, 2]])
    tensor([0, 1, 1])
    """
    return solve_exact(log_probs, sizes, counts, None, keep_prices=False)[0]


def assign_with_duals(
    log_probs: ArrayLike, sizes: ArrayLike, counts: ArrayLike, *, prices: ArrayLike | None = None
) -> Assignment:
    """`assign`, with dual prices that prove the labels optimal.

    Every row has the class with its highest ``log_prob - price`` (complementary slackness). `prices` of an
    earlier call, such as the last epoch's, are a warm start: less work for the same optimum.

    Examples
    --------
    >>> assignment = assign_with_duals([[0.0, -5.0], [0.0, -1.0], [-3.0, 0.0]], [3], [[1, 2]])
    >>> assignment.classes, float(assignment.gap)
    (tensor([0, 1, 1]), 0.0)
    """
    return Assignment(*solve_exact(log_probs, sizes, counts, prices, keep_prices=True))


def solve_exact(
    log_probs: ArrayLike, sizes: ArrayLike, counts: ArrayLike, prices: ArrayLike | None, *, keep_prices: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Classes (N,), prices (m, k) and duality gaps (m,); the last two are empty unless prices are kept."""
    from apportion.transport import _exact as exact  # here, because numba takes half a second to import

    scores = check_scores(log_probs)
    starts = bag_starts(sizes, len(scores))
    table = check_counts(counts, starts, scores.shape[1])
    present = present_classes(table)
    if present is not None:
        rows = np.repeat(np.arange(len(table)), np.diff(starts))
        small = np.take_along_axis(scores, present[rows], 1), np.take_along_axis(table, present, 1)
        warm_start = None if prices is None else np.take_along_axis(as_array(prices), present, 1)
        found, costs, gaps = solve_exact(small[0], sizes, small[1], warm_start, keep_prices=keep_prices)
        classes = np.take_along_axis(present[rows], found.numpy()[:, None], 1)[:, 0]
        full = np.full(table.shape if keep_prices else (0, table.shape[1]), math.inf)
        if keep_prices:
            np.put_along_axis(full, present, costs.numpy(), 1)
        return (
            tensor_like(classes, log_probs),
            tensor_like(full, log_probs),
            tensor_like(gaps.numpy(), log_probs),
        )
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


MANY_CLASSES = 1024  # beyond this, classes that a bag does not have are left out before solvers see them


def present_classes(table: np.ndarray) -> np.ndarray | None:
    """For every bag (m, w) the classes it has, and others up to the largest number; None if that is no help.

    Solvers need memory for k squared numbers. A bag of n rows has at most n of its many classes.
    """
    widest = int((table > 0).sum(1).max(initial=1))
    if table.shape[1] <= MANY_CLASSES or 2 * widest > table.shape[1]:
        return None
    order = np.argsort(table <= 0, axis=1, kind="stable")[:, :widest]
    return np.sort(order, axis=1)


# --- the best labels of weighted rows

START_REG = 0.002  # of the entropic plan whose prices `solve_weighted` starts from
FEW_ROWS = 1000  # rows of a bag that need no such start


def assign_weighted(log_probs: ArrayLike, sizes: ArrayLike, mass: ArrayLike, weight: ArrayLike) -> Tensor:
    """The most probable labels of weighted rows that give every class its mass in every bag.

    As `assign`, for rows that stand for several: a row of weight 3 is three equal rows. Maximizes the sum of
    ``weight[i] * labels[i] @ log_probs[i]`` subject to the masses of the classes. In a bag, at most k - 1
    rows are split between classes; all other labels are one-hot.

    Parameters
    ----------
    log_probs : array-like (N, k)
        Log-probabilities or logits, rows sorted by bag. Minus infinity forbids a class.
    sizes : array-like (m,)
        Rows of each bag.
    mass : array-like (m, k)
        Mass of each class; the masses of a bag sum to the weights of its rows.
    weight : array-like (N,)
        Positive weights of the rows.

    Returns
    -------
    Tensor (N, k), float64, on the device of `log_probs`
        Labels, which sum to one in every row.

    Examples
    --------
    >>> assign_weighted([[0.0, -5.0], [0.0, -1.0], [-3.0, 0.0]], [3], [[3.0, 3.0]], [2.0, 2.0, 2.0])
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000],
            [0.0000, 1.0000]], dtype=torch.float64)
    """
    return solve_weighted(log_probs, sizes, mass, weight, keep_prices=False)[0]


def assign_weighted_with_duals(
    log_probs: ArrayLike, sizes: ArrayLike, mass: ArrayLike, weight: ArrayLike
) -> tuple[Tensor, Tensor]:
    """The labels (N, k) of `assign_weighted`, and dual prices (m, k) that prove them optimal.

    Every row is in classes of its highest ``log_prob - price`` only.

    Examples
    --------
    >>> scores = [[0.0, -5.0], [0.0, -1.0], [-3.0, 0.0]]
    >>> labels, prices = assign_weighted_with_duals(scores, [3], [[3.0, 3.0]], [2.0, 2.0, 2.0])
    >>> prices[0, 0] - prices[0, 1]  # what the split row gains in class 0
    tensor(1., dtype=torch.float64)
    """
    return solve_weighted(log_probs, sizes, mass, weight, keep_prices=True)


def solve_weighted(
    log_probs: ArrayLike, sizes: ArrayLike, mass: ArrayLike, weight: ArrayLike, *, keep_prices: bool
) -> tuple[Tensor, Tensor]:
    """Labels (N, k), and prices (m, k), which are empty unless they are kept."""
    from apportion.transport import _weighted as weighted

    scores = check_scores(log_probs).astype(np.float64)
    starts = bag_starts(sizes, len(scores))
    weights = check_weight(weight, len(scores))
    wanted = check_masses(mass, starts, weights, scores.shape[1])
    start = np.zeros(wanted.shape)
    if np.diff(starts).max(initial=0) > FEW_ROWS:
        # at a small reg a plan is nearly an assignment: at its prices, few rows have to move
        finite = torch.from_numpy(np.maximum(scores, -1e4))
        shares = wanted / wanted.sum(1, keepdims=True)
        potentials = solve_on_device(finite, sizes, shares, START_REG, math.inf, 1e-3, 50, weights)[3]
        start = START_REG * potentials.numpy()
    labels = np.empty_like(scores)
    prices = np.empty(wanted.shape if keep_prices else (0, wanted.shape[1]))
    announce_compilation(weighted.solve_bags, "weighted", seconds=10)

    def work(first: int, last: int) -> tuple[int, int]:
        memory = weighted.allocate(scores.shape[1])
        return weighted.solve_bags(
            scores, starts, weights, wanted, start, first, last, labels, prices, memory
        )

    for bag, status in map_chunks(work, starts):
        if status != weighted.OK:
            raise infeasible_bag(bag, status == weighted.NOT_A_NUMBER, scores, starts, wanted)
    labels /= weights[:, None]
    return tensor_like(labels, log_probs), tensor_like(prices, log_probs)


# --- the best soft labels


def entropic_plan(
    log_probs: ArrayLike,
    sizes: ArrayLike,
    proportions: ArrayLike,
    *,
    reg: float,
    precision: float | ArrayLike = math.inf,
    weight: ArrayLike | None = None,
    tol: float = 1e-6,
    max_iterations: int = 200,
) -> Plan:
    """Soft labels that match the proportions of every bag: entropic optimal transport, eq. (5).

    For each bag of n rows with log-probabilities L, the plan Q (n, k) has rows that sum to one and solves

        minimize  -sum(Q * L) + reg * sum(Q * log Q)   subject to  mean of the rows of Q = proportions.

    The solution is unique. It is found by Newton's method on the k dual potentials.

    Parameters
    ----------
    log_probs : array-like (N, k)
        Log-probabilities or logits, rows sorted by bag.
    sizes : array-like (m,)
        Rows of each bag.
    proportions : array-like (m, k)
        Class proportions of each bag; rows sum to one.
    reg : float
        Weight of the entropy, the 1/λ of the paper. At 1 the plan is nearest to the predictions in KL
        divergence; toward 0 it becomes the exact assignment.
    precision : float or array-like (m,), default=inf
        If finite, the constraint is replaced by ``n * precision * KL(mean of Q | proportions)``: noisy
        proportions are matched only in part (unbalanced transport). Toward 0 they are ignored.
    weight : array-like (N,), optional
        Positive weights of the rows, which multiply their terms in the objective and in the mean. A row of
        weight 3 is three equal rows.
    tol : float, default=1e-6
        The error at which a bag is solved.
    max_iterations : int, default=200
        Newton steps per bag.

    Returns
    -------
    Plan
        Its `error` is the largest difference between a class's mean mass and its target: the proportion, or
        with finite `precision`, ``proportion * exp(-potential * reg / precision)``. A bag that has not
        converged has a large error and raises nothing. CUDA tensors are solved on their device.

    Examples
    --------
    >>> plan = entropic_plan([[0.0, -1.0], [0.0, 0.0]], [2], [[0.5, 0.5]], reg=1.0)
    >>> plan.mass.round(decimals=2)
    tensor([[0.6200, 0.3800],
            [0.3800, 0.6200]], dtype=torch.float64)
    """
    return Plan(*solve_entropic(log_probs, sizes, proportions, reg, precision, tol, max_iterations, weight))


def solve_entropic(
    log_probs: ArrayLike,
    sizes: ArrayLike,
    proportions: ArrayLike,
    reg: float,
    precision: float | ArrayLike,
    tol: float,
    max_iterations: int,
    weight: ArrayLike | None = None,
) -> tuple[Tensor, Tensor, int]:
    """Mass (N, k), errors (m,) and the iterations of the slowest bag, on the device of log_probs."""
    check_settings(reg, tol, max_iterations)
    settings = (reg, precision, tol, max_iterations)
    if isinstance(log_probs, Tensor) and log_probs.is_cuda:  # MPS has no float64, so the CPU solves for it
        return solve_on_device(log_probs.detach(), sizes, proportions, *settings, weight)[:3]
    if weight is not None:
        scores = torch.from_numpy(check_scores(log_probs))
        mass, error, iterations, _ = solve_on_device(scores, sizes, proportions, *settings, weight)
        return tensor_like(mass.numpy(), log_probs), tensor_like(error.numpy(), log_probs), iterations
    from apportion.transport import _newton as newton

    scores = check_scores(log_probs)
    starts = bag_starts(sizes, len(scores))
    table = check_proportions(proportions, len(starts) - 1, scores.shape[1])
    rho = damping(reg, precision, len(table))
    present = present_classes(table) if not rho.any() else None
    if present is not None:
        rows = np.repeat(np.arange(len(table)), np.diff(starts))
        small = np.take_along_axis(scores, present[rows], 1), sizes, np.take_along_axis(table, present, 1)
        found, gaps, iterations = solve_entropic(*small, reg, math.inf, tol, max_iterations)
        mass = np.zeros_like(scores)
        np.put_along_axis(mass, present[rows], found.numpy(), 1)
        return tensor_like(mass, log_probs), tensor_like(gaps.numpy(), log_probs), iterations
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
    weight: ArrayLike | None = None,
) -> tuple[Tensor, Tensor, int, Tensor]:
    """`solve_entropic` with the batched solver, on the device of the tensor; also the potentials (m, k)."""
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
    rows = None if weight is None else torch.from_numpy(check_weight(weight, len(scores))).to(scores.device)
    return batched.solve(scores, lengths, shares, 1 / reg, rho, tol, max_iterations, rows)


# --- errors


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

    if vars(config)["DISABLE_JIT"] or kernel.overloads:
        return
    folder = kernel.stats.cache_path
    module = kernel.py_func.__module__.rpartition(".")[2]
    if folder is not None and list(Path(folder).glob(f"{module}.solve_bags*.nbi")):
        return
    how = "once" if folder else "in every process, unless NUMBA_CACHE_DIR names a folder to keep it in"
    message = f"compiling the {name} transport solver for this machine, {how}: about {seconds} seconds"
    warnings.warn(message, ApportionWarning, stacklevel=4)


# --- checks of arguments: NumPy arrays, tensors or nested lists


def as_array(values: ArrayLike) -> np.ndarray:
    """The values as a NumPy array on the CPU, without a copy where possible."""
    if isinstance(values, Tensor):
        values = values.detach()
        values = (values.float() if values.dtype == torch.bfloat16 else values).cpu().numpy()
    return np.asarray(values)


def tensor_like(values: np.ndarray, original: ArrayLike) -> Tensor:
    """The values as a tensor on the device of the original."""
    tensor = torch.from_numpy(values)
    if not isinstance(original, Tensor):
        return tensor
    if original.device.type == "mps" and tensor.dtype == torch.float64:
        tensor = tensor.float()  # MPS has no float64
    return tensor.to(original.device)


def check_scores(log_probs: ArrayLike) -> np.ndarray:
    """(N, k) contiguous; float64 stays, all else becomes float32. The solvers check for NaN."""
    values = as_array(log_probs)
    if values.ndim != 2 or values.shape[1] == 0:
        raise DataError(f"log_probs has shape {values.shape}; pass (N, k) with k of at least one")
    return np.ascontiguousarray(values, np.float64 if values.dtype == np.float64 else np.float32)


def bag_starts(sizes: ArrayLike, n_rows: int | None) -> np.ndarray:
    """(m + 1,) the first row of every bag, followed by the number of rows."""
    values = as_array(sizes)
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
        raise DataError(f"sizes has shape {values.shape} and type {values.dtype}; pass (m,) whole numbers")
    empty = np.flatnonzero(values < 1)
    if empty.size:
        b = int(empty[0])
        raise DataError(f"bag {b} has size {values[b]}; every bag needs at least one row", bag=b)
    starts = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=starts[1:])
    if n_rows is not None and starts[-1] != n_rows:
        raise DataError(f"sizes sum to {starts[-1]}, but log_probs has {n_rows} rows; pass one size per bag")
    return starts


def check_counts(counts: ArrayLike, starts: np.ndarray, n_classes: int) -> np.ndarray:
    """(m, k) whole counts that sum to the sizes of the bags."""
    values = as_array(counts)
    shape = (len(starts) - 1, n_classes)
    if values.shape != shape:
        raise DataError(f"counts has shape {values.shape}; pass {shape}")
    if values.dtype.kind == "f":
        fractional = np.flatnonzero((values != np.round(values)).any(1))
        if fractional.size:
            b = int(fractional[0])
            what = f"bag {b} has counts {values[b]}, which are not whole"
            raise DataError(f"{what}; round them with round_to_counts", bag=b)
    elif values.size and values.dtype.kind not in "iu":
        raise DataError(f"counts has type {values.dtype}; pass whole numbers")
    result = np.ascontiguousarray(values, np.int64)
    if result.min(initial=0) < 0:
        b = int(np.flatnonzero((result < 0).any(1))[0])
        raise DataError(f"bag {b} has a negative count in {result[b]}; counts are 0 or more", bag=b)
    sizes = np.diff(starts)
    sums = result @ np.ones(n_classes, np.int64)  # several times faster than a sum over short rows
    wrong = np.flatnonzero(sums != sizes)
    if wrong.size:
        b = int(wrong[0])
        what = f"bag {b} has counts that sum to {sums[b]}, but size {sizes[b]}"
        raise DataError(f"{what}; make them with round_to_counts", bag=b)
    return result


def check_weight(weight: ArrayLike, n_rows: int) -> np.ndarray:
    """(N,) float64, positive."""
    values = as_array(weight).astype(np.float64)
    if values.shape != (n_rows,):
        raise DataError(f"weight has shape {values.shape}; pass ({n_rows},), one weight per row")
    bad = np.flatnonzero(~((values > 0) & (values < math.inf)))
    if bad.size:
        value = float(values[bad[0]])
        raise DataError(f"weight is {value} in row {bad[0]}; pass positive numbers", value=value)
    return values


def check_masses(mass: ArrayLike, starts: np.ndarray, weight: np.ndarray, n_classes: int) -> np.ndarray:
    """(m, k) float64 masses that sum to the weights of the bags; rounding is divided out."""
    values = as_array(mass).astype(np.float64)
    shape = (len(starts) - 1, n_classes)
    if values.shape != shape:
        raise DataError(f"mass has shape {values.shape}; pass {shape}")
    total = np.add.reduceat(weight, starts[:-1]) if len(starts) > 1 else np.zeros(0)
    sums = values.sum(1)
    wrong = np.flatnonzero(~((values >= 0).all(1) & (np.abs(sums - total) <= 1e-4 * total)))
    if wrong.size:
        b = int(wrong[0])
        what = f"bag {b} has masses {values[b]}, but rows of weight {total[b]:.6g}"
        raise DataError(f"{what}; pass masses of 0 or more that sum to it", bag=b)
    return values * (total / sums)[:, None]


def check_prices(prices: ArrayLike | None, shape: tuple[int, ...]) -> np.ndarray:
    """(m, k) float64, a copy for the solver to write to; zeros if none are given."""
    values = np.zeros(shape) if prices is None else as_array(prices)
    if values.shape != shape or np.isnan(values).any():
        raise DataError(f"prices has shape {values.shape}; pass {shape} without NaN")
    return np.array(values, np.float64, order="C")


def check_proportions(proportions: ArrayLike, n_bags: int, n_classes: int | None) -> np.ndarray:
    """(m, k) float64 whose rows sum to one; errors of up to 1e-4 are treated as rounding and divided out."""
    values = as_array(proportions)
    fits = values.ndim == 2 and len(values) == n_bags and n_classes in (None, values.shape[1])
    if not fits:
        wanted = f"({n_bags}, {'k' if n_classes is None else n_classes})"
        raise DataError(f"proportions has shape {values.shape}; pass {wanted}")
    result = values.astype(np.float64)
    bad = np.flatnonzero(~((result >= 0) & (result < math.inf)).all(1))
    if bad.size:
        b = int(bad[0])
        raise DataError(f"bag {b} has proportions {values[b]}; each must be finite and 0 or more", bag=b)
    sums = result.sum(1, keepdims=True)
    wrong = np.flatnonzero(np.abs(sums - 1) > 1e-4)
    if wrong.size:
        b = int(wrong[0])
        what = f"bag {b} has proportions that sum to {sums[b, 0]:.6g}, not 1"
        raise DataError(f"{what}; divide them by their sum", bag=b)
    return result / sums


def damping(reg: float, precision: float | ArrayLike, n_bags: int) -> np.ndarray:
    """(m,) reg / precision of each bag: zero where the proportions are matched exactly."""
    if isinstance(precision, Tensor):
        precision = precision.detach().cpu()
    weights = np.asarray(precision, np.float64)
    if weights.ndim and weights.shape != (n_bags,):
        raise DataError(
            f"precision has shape {weights.shape}; pass a number, or one for each of {n_bags} bags"
        )
    bad = np.flatnonzero(~(weights > 0))
    if bad.size:
        of = f" for bag {bad[0]}" if weights.ndim else ""
        raise DataError(f"precision is {weights.ravel()[bad[0]]}{of}; pass a positive number")
    return np.broadcast_to(reg / weights, n_bags).copy()


def check_settings(reg: float, tol: float, max_iterations: int) -> None:
    """Raise `SettingsError` for settings that the solver cannot use."""
    for name, value in (("reg", reg), ("tol", tol), ("max_iterations", max_iterations)):
        if not value > 0:
            raise SettingsError(f"{name} is {value}; pass a positive number")
    if math.isinf(reg):
        raise SettingsError(
            "reg is infinite; pass a finite number, or use the proportions, which are the plan in this limit"
        )

"""Labels that match the class proportions of every bag: optimal transport, exact or entropic.

Each bag is a transport problem of its own. Rows have mass one, classes have the bag's counts, and the cost of
a class for a row is minus its log-probability (eqs. 4 to 6 of the paper). `assign` finds the best one-hot
labels, `entropic_plan` the best soft labels. Both take all bags at once, rows end to end without padding, and
are pure functions of arrays. docs/transport.md explains how the solvers work and what they cost.
"""

import math
from typing import NamedTuple

from torch import Tensor

from apportion.transport._inputs import ArrayLike
from apportion.transport._rounding import round_to_counts
from apportion.transport._solve import solve_entropic, solve_exact

__all__ = ["Assignment", "Plan", "assign", "assign_with_duals", "entropic_plan", "round_to_counts"]


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


def entropic_plan(
    log_probs: ArrayLike,
    sizes: ArrayLike,
    proportions: ArrayLike,
    *,
    reg: float,
    precision: float | ArrayLike = math.inf,
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
    return Plan(*solve_entropic(log_probs, sizes, proportions, reg, precision, tol, max_iterations))

"""Labels that meet the proportions of every bag: optimal transport, exact or entropic.

One problem a bag: instances have mass one each, classes have the bag's counts, the cost is minus the
log-probability (eqs. 4 to 6 of the paper). Everything here is pure: arrays in, tensors out, no padding.
`docs/transport.md` explains how the solvers work and what they cost.
"""

import math
from typing import NamedTuple

from torch import Tensor

from apportion.transport._inputs import ArrayLike
from apportion.transport._solve import round_to_counts, solve_entropic, solve_exact

__all__ = ["Assignment", "Plan", "assign", "assign_with_duals", "entropic_plan", "round_to_counts"]


class Plan(NamedTuple):
    """Soft labels of all bags, how far each bag's labels are from its proportions, and the work it took."""

    mass: Tensor  # (N, k) rows of all bags end to end, each sums to one; no padding
    error: (
        Tensor  # (m,) largest |mean of the bag's rows - proportion| of any class, or entropic_plan's residual
    )
    iterations: int  # of the bag that took most


class Assignment(NamedTuple):
    """Classes with the prices that prove them optimal: see `assign_with_duals`."""

    classes: Tensor  # (N,)
    prices: Tensor  # (m, k) float64; infinite for a class that the bag has none of
    gap: Tensor  # (m,) float64 cost minus the lower bound that the prices give: zero up to rounding


def assign(log_probs: ArrayLike, sizes: ArrayLike, counts: ArrayLike) -> Tensor:
    """The class of every instance (N,): the most probable labeling with exactly `counts` (m, k) in each bag.

    Rows of `log_probs` (N, k) are sorted by bag; they may be logits, since a constant added to a row cancels.
    Minus infinity forbids a class. The work is done on the CPU, by `torch.get_num_threads()` threads.
    """
    return solve_exact(log_probs, sizes, counts, None, keep_prices=False)[0]


def assign_with_duals(
    log_probs: ArrayLike, sizes: ArrayLike, counts: ArrayLike, *, prices: ArrayLike | None = None
) -> Assignment:
    """`assign` with prices that prove it: every instance sits at its highest log-probability - price.

    Prices of an earlier call, say of the last epoch, may be passed in as a start: less work, same optimum.
    """
    return Assignment(*solve_exact(log_probs, sizes, counts, prices, keep_prices=True))


def entropic_plan(
    log_probs: ArrayLike,
    sizes: ArrayLike,
    proportions: ArrayLike,
    *,
    reg: float,
    relax: float | ArrayLike = math.inf,
    tol: float = 1e-6,
    max_iterations: int = 200,
) -> Plan:
    """Soft labels that meet `proportions` (m, k): the unique minimizer of eq. (5), `reg` being its 1/lambda.

    A finite `relax`, of all bags or (m,) of each, replaces the constraint by that weight times
    KL(class masses | proportions); the error is then the largest violation of the optimality condition,
    mass = proportion x exp(-potential reg/relax).
    Non-convergence is returned in `error`, not hidden; CUDA tensors are solved on their device.
    """
    return Plan(*solve_entropic(log_probs, sizes, proportions, reg, relax, tol, max_iterations))

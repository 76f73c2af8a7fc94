"""Labels that match the class proportions of every bag: optimal transport, exact or entropic.

Each bag is a transport problem of its own. Rows have mass one, classes have the bag's counts, and the cost of
a class for a row is minus its log-probability (eqs. 4 to 6 of the paper). `assign` finds the best one-hot
labels, `entropic_plan` the best soft labels. Both take all bags at once, rows end to end without padding, and
are pure functions of arrays. docs/transport.md explains how the solvers work and what they cost.
"""

from apportion.transport.counts import class_masses, round_to_counts
from apportion.transport.solvers import (
    ArrayLike,
    Assignment,
    Plan,
    assign,
    assign_weighted,
    assign_weighted_with_duals,
    assign_with_duals,
    entropic_plan,
)

__all__ = [
    "ArrayLike",
    "Assignment",
    "Plan",
    "assign",
    "assign_weighted",
    "assign_weighted_with_duals",
    "assign_with_duals",
    "class_masses",
    "entropic_plan",
    "round_to_counts",
]

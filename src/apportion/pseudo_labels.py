"""Pseudo-labels: labels of single rows from predictions and the proportions of bags.

A labeler is a function (log_probs (N, k), sizes (m,), proportions (m, k)) -> labels (N, k). It works for one
batch as for the whole training set. Rows are sorted by bag. If they have weights, a labeler also gets
`weight` (N,), and a row of weight 3 is three equal rows.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from apportion._scratch import empty_array
from apportion.bags.bags import Bags, bag_slices, exact_bag_means
from apportion.bags.groupings import class_masses, counted_labels, transduce_groupings
from apportion.transport import assign, assign_weighted, entropic_plan, round_to_counts

Labeler = Callable[..., Tensor]

# 1/λ of soft labels in recipes, whose images need nearly hard labels: λ = 1 loses three points there. The
# estimator has `reg=1.0`: on tables it loses on no measure, and probabilities stay calibrated (docs/log.md).
RECIPE_REG = 0.1


def hard_labels(
    log_probs: Tensor, sizes: Tensor, proportions: Tensor, weight: Tensor | None = None
) -> Tensor:
    """The most probable labels that have exactly the counts of every bag, one-hot, eqs. (4) and (6).

    Counts are the proportions times the sizes, rounded to whole numbers. With weights, at most k - 1 rows of
    a bag are split between classes.
    """
    if weight is not None:
        labels = assign_weighted(log_probs, sizes, class_masses(weight, sizes, proportions), weight)
        return labels.to(log_probs)
    classes = assign(log_probs, sizes, round_to_counts(proportions, sizes))
    return F.one_hot(classes, log_probs.shape[1]).to(log_probs.dtype)


def soft_labels(
    log_probs: Tensor,
    sizes: Tensor,
    proportions: Tensor,
    reg: float = RECIPE_REG,
    precision: float = math.inf,
    weight: Tensor | None = None,
) -> Tensor:
    """Labels by entropic transport, eq. (7): their mean in each bag equals the bag's proportions.

    `reg` is 1/λ. A finite `precision` replaces the constraint by `precision` times a KL divergence, as ROT
    does.
    """
    plan = entropic_plan(log_probs, sizes, proportions, reg=reg, precision=precision, weight=weight)
    return plan.mass.to(log_probs.dtype)


def predicted_labels(
    log_probs: Tensor, sizes: Tensor, proportions: Tensor, weight: Tensor | None = None
) -> Tensor:
    """The predicted probabilities: self-training without transport (ablation, table 3, rows 2 and 3)."""
    return log_probs.detach().softmax(1)


def argmax_labels(
    log_probs: Tensor, sizes: Tensor, proportions: Tensor, weight: Tensor | None = None
) -> Tensor:
    """The most probable class of each row, one-hot: plain self-training."""
    return F.one_hot(log_probs.argmax(1), log_probs.shape[1]).to(log_probs.dtype)


class SoftLabels:
    """`soft_labels` with fixed settings, which also records the errors of the last and of the worst plan.

    Errors stay on the device of the plans, so that recording them does not make the host wait.
    """

    def __init__(self, reg: float, precision: float = math.inf) -> None:
        self.reg = reg
        self.precision = precision
        self.last_error = self.worst_error = torch.zeros((), dtype=torch.float64)

    def __call__(
        self, log_probs: Tensor, sizes: Tensor, proportions: Tensor, weight: Tensor | None = None
    ) -> Tensor:
        plan = entropic_plan(
            log_probs, sizes, proportions, reg=self.reg, precision=self.precision, weight=weight
        )
        self.last_error = plan.error.max()
        self.worst_error = torch.maximum(self.worst_error.to(self.last_error), self.last_error)
        return plan.mass.to(log_probs.dtype)

    def reset_worst_error(self) -> float:
        """Return the worst error since the last reset, and start again from zero."""
        worst = float(self.worst_error)
        self.worst_error = torch.zeros_like(self.worst_error)
        return worst


PSEUDO_LABELS = ("soft", "hard", "predicted", "argmax")


def make_labeler(name: str, reg: float = RECIPE_REG, precision: float = math.inf) -> Labeler:
    """The labeler with this name; `reg` and `precision` are for soft labels."""
    if name == "soft":
        return SoftLabels(reg, precision)
    return {"hard": hard_labels, "predicted": predicted_labels, "argmax": argmax_labels}[name]


def predicted_proportions(log_probs: Tensor, sizes: Tensor, weight: Tensor | None = None) -> Tensor:
    """The mean predicted probabilities of every bag, (m, k), float64 where the device has it."""
    return exact_bag_means(log_probs.exp(), sizes, weight)


def relaxed_proportions(
    log_probs: Tensor,
    sizes: Tensor,
    proportions: Tensor,
    precision: Tensor | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    """The proportions that labels should match, (m, k), where some are unknown or uncertain.

    Exact proportions are kept. Unknown ones (NaN) are replaced by the predicted ones. Where `precision` (m,)
    is finite, the result is a compromise with the predictions: the mean labels of a relaxed transport plan.
    """
    known = proportions.isfinite().all(1, keepdim=True)
    exact = precision is None or bool((precision == math.inf).all())
    if exact and bool(known.all()):
        return proportions
    filled = torch.where(known, proportions, predicted_proportions(log_probs, sizes, weight).to(proportions))
    filled = filled / filled.sum(1, keepdim=True)
    if precision is None or exact:
        return filled
    plan = entropic_plan(log_probs, sizes, filled, reg=1.0, precision=precision, weight=weight)
    return exact_bag_means(plan.mass.to(filled), sizes, weight).to(filled)


def transduce(log_probs: Tensor, bags: Bags) -> np.ndarray:
    """The most probable classes that have the counts of every bag, (N,), in the order of the user's rows.

    `log_probs` are in the order of `bags.x`. With several groupings, the counts of the first are matched
    exactly and those of the others approximately (`bags.groupings`).
    """
    if bags.grouping is not None:
        return transduce_groupings(log_probs, bags)
    classes = empty_array(len(bags.x), np.int64)
    for some, rows in bag_slices(bags.sizes):
        precision = None if bags.precision is None else bags.precision[some]
        weight = None if bags.weight is None else bags.weight[rows]
        proportions = relaxed_proportions(
            log_probs[rows], bags.sizes[some], bags.proportions[some], precision, weight
        )
        part = Bags(
            log_probs[rows],
            bags.sizes[some],
            proportions,
            bags.source[rows],
            bags.ids[some],
            weight=weight,
        )
        classes[part.source] = counted_labels(part.x, part).cpu()
    return classes

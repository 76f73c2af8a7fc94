"""Pseudo-labels: labels of single rows from predictions and the proportions of bags.

A labeler is a function (log_probs (N, k), sizes (m,), proportions (m, k)) -> labels (N, k). It works for one
batch as for the whole training set. Rows are sorted by bag. If they have weights, a labeler also gets
`weight` (N,), and a row of weight 3 is three equal rows.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from apportion._random import stream
from apportion._scratch import empty_array
from apportion.bags.bags import Bags, bag_slices, exact_bag_means
from apportion.bags.groupings import MIN_LOG_PROB, margin_of, precision_of, rake, split_groupings
from apportion.transport import assign, assign_weighted, class_masses, entropic_plan, round_to_counts

Labeler = Callable[..., Tensor]

# 1/λ of soft labels in recipes, whose images need nearly hard labels: λ = 1 loses three points there. The
# estimator has `reg=1.0`: on tables it loses on no measure, and probabilities stay calibrated (docs/log.md).
RECIPE_REG = 0.1
TRANSDUCTION_REG = 1 / 30  # 1/λ of the plan that is rounded to labels: rows are nearly of one class each
TIE_NOISE = 0.1  # nats; breaks ties of rows with equal predictions, which a plan would split between classes


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


# --- labels for the training rows


def transduce(log_probs: Tensor, bags: Bags) -> np.ndarray:
    """The most probable classes that have the counts of every bag, (N,), in the order of the user's rows.

    `log_probs` are in the order of `bags.x`. With several groupings, the counts of the first are matched
    exactly and those of the others approximately.
    """
    if bags.grouping is not None:
        return _transduce_groupings(log_probs, bags)
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


def _transduce_groupings(log_probs: Tensor, bags: Bags) -> np.ndarray:
    """(n,) class codes of the user's rows, for bags of several groupings; `log_probs` follow `bags.x`.

    The counts of the first grouping are matched exactly, those of the others approximately. With three
    classes or three groupings, labels with the exact counts of all are hard to find, and may not exist.
    """
    groupings = split_groupings(bags)
    rows = torch.empty(len(log_probs) // len(groupings), log_probs.shape[1], dtype=torch.float64)
    rows[bags.source] = log_probs.double().cpu()
    # the shares of all bags: exact ones as they are, uncertain ones as a compromise with the predictions
    mass = rake(rows, [margin_of(each) for each in groupings]).mass
    compatible = [
        replace(each, proportions=_compatible_shares(each, mass), precision=None) for each in groupings
    ]
    rows = rows.clamp_min(MIN_LOG_PROB)  # with this λ, a plan can hold no less
    rows += TIE_NOISE * torch.randn(rows.shape, generator=stream(0, "ties"), dtype=rows.dtype)
    mass = rake(rows, [margin_of(each) for each in compatible], reg=TRANSDUCTION_REG).mass
    first = compatible[0]
    scores = mass[first.source].clamp_min(1e-300).log()
    labels = np.empty(len(rows), np.int64)
    labels[first.source] = counted_labels(scores, first)
    return labels


def _compatible_shares(bags: Bags, mass: Tensor) -> Tensor:
    """(m, k) the proportions of exact bags, and the mean soft labels of all others."""
    exact = bags.proportions.isfinite().all(1) & (precision_of(bags) == math.inf)
    means = exact_bag_means(mass[bags.source], bags.sizes, bags.weight)
    return torch.where(exact.unsqueeze(1), bags.proportions.double(), means)


def counted_labels(scores: Tensor, bags: Bags) -> Tensor:
    """(N,) the most probable classes with the counts of every bag, in the order of the bags.

    Of the rows with weights, at most k - 1 in a bag are split between classes; each gets the class of its
    largest part.
    """
    if bags.weight is None:
        return assign(scores, bags.sizes, round_to_counts(bags.proportions, bags.sizes))
    mass = class_masses(bags.weight, bags.sizes, bags.proportions)
    return assign_weighted(scores, bags.sizes, mass, bags.weight).argmax(1)

"""Labelers: (log_probs, sizes, proportions) -> labels (n, k), alike for a batch and for the whole set.

Soft labels that remember how far their plans are from converged, which a run writes into its log.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from apportion.transport import assign, entropic_plan, round_to_counts

Labeler = Callable[[Tensor, Tensor, Tensor], Tensor]


def hard_labels(log_probs: Tensor, sizes: Tensor, proportions: Tensor) -> Tensor:
    """One-hot labels of least cost that meet the whole counts of every bag exactly, eqs. (4) and (6)."""
    classes = assign(log_probs, sizes, round_to_counts(proportions, sizes))
    return F.one_hot(classes, log_probs.shape[1]).to(log_probs.dtype)


def soft_labels(
    log_probs: Tensor, sizes: Tensor, proportions: Tensor, reg: float = 0.1, relax: float = math.inf
) -> Tensor:
    """Entropic transport labels, eq. (7), `reg` = 1/λ; finite `relax` is ROT's weight of the proportions."""
    return entropic_plan(log_probs, sizes, proportions, reg=reg, relax=relax).mass.to(log_probs.dtype)


def predicted_labels(log_probs: Tensor, sizes: Tensor, proportions: Tensor) -> Tensor:
    """The predicted probabilities themselves: no transport, for the ablation (table 3, rows 2 and 3)."""
    return log_probs.detach().softmax(1)


def argmax_labels(log_probs: Tensor, sizes: Tensor, proportions: Tensor) -> Tensor:
    """The most probable class, one-hot: plain self-training, which knows no proportions."""
    return F.one_hot(log_probs.argmax(1), log_probs.shape[1]).to(log_probs.dtype)


class SoftLabels:
    """`soft_labels` as a labeler with a memory: the error of its last plan, and of its worst."""

    def __init__(self, reg: float, relax: float = math.inf) -> None:
        self.reg, self.relax = reg, relax
        self.last = self.worst = torch.zeros((), dtype=torch.float64)

    def __call__(self, log_probs: Tensor, sizes: Tensor, proportions: Tensor) -> Tensor:
        plan = entropic_plan(log_probs, sizes, proportions, reg=self.reg, relax=self.relax)
        self.last = plan.error.max()  # a tensor, for which nobody waits in the middle of an epoch
        self.worst = torch.maximum(self.worst.to(self.last), self.last)
        return plan.mass.to(log_probs.dtype)

    def taken(self) -> float:
        """The worst error since it was last asked for."""
        worst, self.worst = float(self.worst), torch.zeros_like(self.worst)
        return worst

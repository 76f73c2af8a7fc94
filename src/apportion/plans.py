"""Soft labels that remember how far their plans are from converged, which a run writes into its log."""

import math

import torch
from torch import Tensor

from apportion.transport import entropic


class SoftLabels:
    """`soft_labels` as a labeller with a memory: the error of its last plan, and of its worst."""

    def __init__(self, reg: float, relax: float = math.inf) -> None:
        self.reg, self.relax = reg, relax
        self.last = self.worst = torch.zeros((), dtype=torch.float64)

    def __call__(self, log_probs: Tensor, sizes: Tensor, proportions: Tensor) -> Tensor:
        plan = entropic(log_probs, sizes, proportions, reg=self.reg, relax=self.relax)
        self.last = plan.error.max()  # a tensor, for which nobody waits in the middle of an epoch
        self.worst = torch.maximum(self.worst.to(self.last), self.last)
        return plan.mass.to(log_probs.dtype)

    def taken(self) -> float:
        """The worst error since it was last asked for."""
        worst, self.worst = float(self.worst), torch.zeros_like(self.worst)
        return worst

"""Probabilities made true by bags alone: one temperature for all scores, at which counts are likeliest."""

import math
from copy import deepcopy

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from apportion.methods.count_likelihood import count_log_likelihood

RANGE = (0.05, 20.0)  # temperatures that are looked at
PRIOR = 1.0  # deviation of log-temperature that a few bags are weighed against


class Divided(nn.Module):
    """Scores over a temperature, for a network whose last layer is not linear."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, scores: Tensor) -> Tensor:
        return scores / self.temperature


def fitted_temperature(log_probs: Tensor, sizes: Tensor, proportions: Tensor) -> float:
    """The temperature at which the counts of bags that the network has not seen are likeliest.

    Shares alone hardly tell it: the mean of a bag stays much the same. But counts of rows that are sure vary
    less around it than those of vague ones, and by how much they do is known.
    """
    scores = log_probs.double()

    def cost(logarithm: float) -> float:
        cooler = (scores / math.exp(logarithm)).log_softmax(1)
        found = float(count_log_likelihood(cooler, sizes, proportions).sum())
        return (logarithm / PRIOR) ** 2 / 2 - found

    low, high = (math.log(end) for end in RANGE)
    # the cost may have two valleys: the better one is looked into
    starts = torch.linspace(low, high, 25).tolist()
    best = min(range(25), key=lambda i: cost(starts[i]))
    around = starts[max(0, best - 1)], starts[min(24, best + 1)]
    return math.exp(float(minimize_scalar(cost, bounds=around, method="bounded", options={"xatol": 1e-4}).x))


def cooled(network: nn.Module, temperature: float) -> nn.Module:
    """A copy whose scores are divided by the temperature: classes stay, probabilities move.

    The last layer takes it up where it is linear, so that the model is saved and exported as any other.
    """
    network = deepcopy(network)
    if isinstance(network, nn.Sequential) and isinstance(network[-1], nn.Linear):
        with torch.no_grad():
            for values in network[-1].parameters():
                values /= temperature
        return network
    return nn.Sequential(network, Divided(temperature))

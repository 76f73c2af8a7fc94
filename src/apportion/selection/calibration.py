"""Calibration without labels, by the counts of bags that were not learned from.

The temperature at which the counts are most likely, by how much counts differ from predictions compared with
chance, and whether bags with a predicted share of 30 % have 30 % of the class.
"""

import math
from copy import deepcopy
from typing import NamedTuple

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from apportion.bags.bags import Bags, bag_means
from apportion.methods.count_likelihood import CELL_VARIANCE, count_log_likelihood
from apportion.networks.average import rescale

TEMPERATURES = (0.05, 20.0)  # the range that is searched
PRIOR_STD = 1.0  # of the log-temperature around zero; the prior matters if there are few bags
GRID = 25  # points of the first, coarse search


class Temperature(nn.Module):
    """Divides logits by a temperature."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, logits: Tensor) -> Tensor:
        return logits / self.temperature


def fit_temperature(
    log_probs: Tensor, sizes: Tensor, proportions: Tensor, weight: Tensor | None = None
) -> float:
    """The temperature at which the counts of held-out bags are most likely, with a prior around one.

    The mean prediction of a bag hardly depends on the temperature, but the variance of its counts does: it is
    small if predictions are certain and large if they are not, and the known counts show which is right.
    """
    log_probs = log_probs.double()

    def cost(log_temperature: float) -> float:
        scaled = (log_probs / math.exp(log_temperature)).log_softmax(1)
        log_likelihood = float(count_log_likelihood(scaled, sizes, proportions, weight).sum())
        return (log_temperature / PRIOR_STD) ** 2 / 2 - log_likelihood

    # The cost may have two minima: a grid finds the better one, which is then refined.
    low, high = (math.log(end) for end in TEMPERATURES)
    grid = torch.linspace(low, high, GRID).tolist()
    best = min(range(GRID), key=lambda i: cost(grid[i]))
    bounds = grid[max(0, best - 1)], grid[min(GRID - 1, best + 1)]
    solution = minimize_scalar(cost, bounds=bounds, method="bounded", options={"xatol": 1e-4})
    return math.exp(float(solution.x))


def scale_temperature(network: nn.Module, temperature: float) -> nn.Module:
    """A copy of the network whose logits are divided by the temperature. No predicted class changes.

    A linear last layer absorbs the division, so the network is saved and exported like any other.
    """
    network = deepcopy(network)
    if isinstance(network, nn.Sequential) and isinstance(network[-1], nn.Linear):
        with torch.no_grad():
            for weight in network[-1].parameters():
                weight /= temperature
        return network
    if rescale(network, 1 / temperature):
        return network
    return nn.Sequential(network, Temperature(temperature))


def count_residuals(log_probs: Tensor, bags: Bags) -> tuple[Tensor, Tensor]:
    """Known minus predicted counts, and the variance (both (m, k)) that chance gives them.

    By chance: every row has its own class, drawn from its probabilities. A count is a cell of width one.
    """
    probs = log_probs.double().exp()
    n = bags.mass.unsqueeze(1)
    gap = n * (bags.proportions.double() - bag_means(probs, bags.sizes, bags.weight))
    variance = n * bag_means(probs * (1 - probs), bags.sizes, bags.weight) + CELL_VARIANCE
    return gap, variance


class ReliabilityBin(NamedTuple):
    """Bags whose predicted shares of a class are similar."""

    n_bags: int
    predicted: float  # share of their rows
    known: float
    deviation: float  # of `known` by chance


def reliability_bins(
    predicted: Tensor, known: Tensor, variance: Tensor, mass: Tensor, most: int = 10
) -> list[ReliabilityBin]:
    """Bags sorted by the predicted share of one class, in bins of about as many bags each, three or more.

    All arguments are (m,); `variance` is that of the count by chance, `mass` the rows of a bag.
    """
    order = predicted.argsort(stable=True)
    n_bins = max(1, min(most, len(order) // 3))
    bins = []
    for some in order.tensor_split(n_bins):
        n = mass[some].double()
        total = float(n.sum())
        bins.append(
            ReliabilityBin(
                len(some),
                float((n * predicted[some]).sum()) / total,
                float((n * known[some]).sum()) / total,
                math.sqrt(float(variance[some].sum())) / total,
            )
        )
    return bins

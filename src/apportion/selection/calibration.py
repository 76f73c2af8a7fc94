"""Temperature scaling without labels: the most likely temperature given held-out bags."""

import math
from copy import deepcopy

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from apportion.methods.count_likelihood import count_log_likelihood
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

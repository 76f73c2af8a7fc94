"""Mean map: a linear classifier from class means, which are estimated from the means of the bags.

    1. M minimizes Σ_bags n_i ‖ x̄_i - Σ_c p_ic μ_c ‖²                 μ_c: the mean of class c
    2. L = mean_j log Σ_c exp f_c(x_j) - Σ_c π_c f_c(μ_c) + l2/2 ‖W‖²,   f(x) = Wx + b

The logistic loss of a linear classifier depends on labels only through the class means: with the true ones,
L is the loss of logistic regression. Step 1 assumes that rows of a class have the same mean in all bags.

Quadrianto, Smola, Caetano & Le, "Estimating labels from label proportions", JMLR 2009. Patrini, Nock, Rivera
& Caetano, "(Almost) no label no cry", NeurIPS 2014, call Σ_c π_c μ_c the mean operator.
"""

from collections.abc import Iterator
from typing import Self

import torch
from torch import Tensor, nn

from apportion._device import plain_network
from apportion.bags.bags import BagBatch, Bags, RowBatch, bag_slices, exact_bag_means
from apportion.errors import SettingsError
from apportion.methods.protocol import LossTerms
from apportion.methods.setup import Setup


class MeanMap:
    """Logistic regression with estimated class `means` (k, d) in place of labels; `prior` (k,) as in π.

    `l2` is the weight of the squared coefficients: estimated means may lie where no labels could put them,
    and without it the loss may then have no minimum.
    """

    title = "mean map"
    mean_terms = ("logistic", "l2")
    batches = ("bag", "row")
    linear = True

    def __init__(self, classifier: nn.Module, means: Tensor, prior: Tensor, l2: float = 0.01) -> None:
        self.classifier = classifier
        self.weight = linear_layer(classifier).weight
        self.means = means
        self.prior = prior
        self.l2 = l2

    @classmethod
    def build(cls, classifier: nn.Module, setup: Setup, ridge: float = 1e-3, **options: float) -> Self:
        """With the class means that the bags suggest."""
        linear_layer(classifier)
        bags = setup.bags
        means = estimate_class_means(bags, ridge).to(bags.x.device)
        return cls(classifier, means, bags.overall.float().to(bags.x.device), **options)

    def networks(self) -> list[nn.Module]:
        return [self.classifier]

    def losses(self, batch: BagBatch | RowBatch, progress: float) -> Iterator[LossTerms]:
        logits = self.classifier(batch.x).float()
        logits_of_means = self.classifier(self.means.view(-1, *batch.x.shape[1:])).float().diagonal()
        yield {
            "logistic": logits.logsumexp(1).mean() - (self.prior * logits_of_means).sum(),
            "l2": self.l2 / 2 * self.weight.square().sum(),
        }


def linear_layer(classifier: nn.Module) -> nn.Linear:
    """The only layer of a linear classifier; raise SettingsError for any other network."""
    layers = [m for m in plain_network(classifier).modules() if not isinstance(m, nn.Sequential)]
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    others = [layer for layer in layers if not isinstance(layer, nn.Linear | nn.Flatten | nn.Identity)]
    if len(linear) != 1 or others:
        raise SettingsError(
            "mean_map is for linear classifiers, but the network has other layers; pass model='linear'"
        )
    return linear[0]


def estimate_class_means(bags: Bags, ridge: float = 1e-3) -> Tensor:
    """The class means (k, d), float32 on the CPU, by least squares from bag means and proportions.

    `ridge` pulls them toward the mean of all rows: where all bags have similar proportions, little is known
    about the difference of classes. The mean of the class means, weighted by π, is the mean of all rows.
    """
    x = bags.x.flatten(1)
    slices = bag_slices(bags.sizes)  # float64 copies of all rows may not fit
    bag_mean = torch.cat([exact_bag_means(x[rows], bags.sizes[some]).cpu() for some, rows in slices])
    proportions = bags.proportions.cpu().double()
    share = bags.sizes.double() / len(x)
    overall = bags.overall
    weighted = proportions.T * share
    left = weighted @ proportions + ridge * overall.diag()
    right = weighted @ bag_mean + ridge * overall.unsqueeze(1) * (share @ bag_mean)
    # a class without rows has a row of zeros, and its mean does not matter
    return torch.linalg.lstsq(left, right, driver="gelsd").solution.float()

"""Predictions of rows whose bags have known shares, which say more than the predictions alone."""

import math
from typing import Any

import numpy as np
from torch import Tensor

from apportion.bags import Bags
from apportion.intake.mending import believed
from apportion.intake.remedies import MEETING
from apportion.intake.weights import Relax, weights_of
from apportion.judging.diagnosis import predictions_in_bags
from apportion.transport import entropic


def meet(
    probabilities: Any, bags: Any, proportions: Any = None, *, counts: Any = None, classes: Any = None
) -> np.ndarray:
    """Probabilities (N, k) of any classifier, as they are once the shares of every row's bag are known.

    The mean of a bag's rows is then its shares. `bags` is the bag of each row, `classes` are those of the
    columns, such as `model.classes_`; what has names is read by them. A table that names its bags may have
    more of them than there are rows for.
    """
    found = predictions_in_bags(probabilities, bags, proportions, counts, classes, MEETING)
    values = met(found.x.double().clamp_min(1e-38).log(), found).double().numpy()
    rows = np.empty_like(values)
    rows[found.source.numpy()] = values / values.sum(1, keepdims=True)
    return rows


def met(log_probs: Tensor, bags: Bags, relax: Relax = math.inf) -> Tensor:
    """`meet` for log-probabilities in the order of the bags.

    Entropic transport with λ = 1: of all that have a bag's shares, the nearest to the predictions by KL
    divergence. Rows of bags without proportions stay as they are, and of noisy ones, which weigh `relax`,
    what they and the predictions agree on is met.
    """
    shares = believed(log_probs, bags.sizes, bags.proportions, weights_of(bags, relax))
    return entropic(log_probs, bags.sizes, shares, reg=1.0).mass

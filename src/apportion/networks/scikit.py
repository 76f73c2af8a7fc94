"""A fitted scikit-learn classifier as a module, so that it predicts like any network."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

SMALLEST = 1e-7  # probability; a classifier may be certain, and its logarithm must be finite


class ScikitClassifier(nn.Module):
    """Log-probabilities (n, k) of a classifier whose classes are whole numbers below k.

    Parameters
    ----------
    estimator : scikit-learn classifier
        Fitted, with `predict_proba`.
    n_classes : int
        Number of classes k. The estimator may not know all of them.
    """

    def __init__(self, estimator: Any, n_classes: int) -> None:
        super().__init__()
        self.estimator = estimator
        self.n_classes = n_classes

    def forward(self, x: Tensor) -> Tensor:
        probabilities = np.full((len(x), self.n_classes), SMALLEST)
        found = self.estimator.predict_proba(x.cpu().flatten(1).float().numpy())
        probabilities[:, self.estimator.classes_.astype(int)] = np.maximum(found, SMALLEST)
        return torch.from_numpy(probabilities).float().log().to(x.device)

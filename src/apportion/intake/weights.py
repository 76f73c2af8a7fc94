"""What the proportions of a bag weigh against predictions when labels are made; infinite: they are met."""

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from apportion.bags.bags import Bags

Relax = float | Mapping[Hashable, float]  # of all bags, or by the name of each; of others it is infinite


def weights_by(names: Iterable[Hashable], weights: np.ndarray) -> Relax:
    """By the names of bags; where all are infinite, nothing is noisy."""
    finite = np.isfinite(weights).any()
    return dict(zip(names, weights.tolist(), strict=True)) if finite else math.inf


def with_precision(bags: Bags, relax: Relax) -> Bags:
    """The bags with these weights in place of their own."""
    weights = weights_of(bags, relax)
    if isinstance(weights, Tensor):
        return replace(bags, precision=weights)
    return (
        bags
        if weights == math.inf
        else replace(bags, precision=torch.full((len(bags.ids),), weights, dtype=torch.float64))
    )


def weights_of(bags: Bags, relax: Relax) -> float | Tensor:
    """Of these bags, (m,) in their order, or of them all."""
    if not isinstance(relax, Mapping):
        return relax
    return torch.tensor([relax.get(name, math.inf) for name in bags.ids], dtype=torch.float64)

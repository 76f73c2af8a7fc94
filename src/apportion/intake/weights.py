"""What the proportions of a bag weigh against predictions when labels are made; infinite: they are met."""

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from apportion.bags import Bags
from apportion.intake.filling import denoised

Relax = float | Mapping[Hashable, float]  # of all bags, or by the name of each; of others it is infinite


def weights_by(names: Iterable[Hashable], weights: np.ndarray) -> Relax:
    """By the names of bags; where all are infinite, nothing is noisy."""
    finite = np.isfinite(weights).any()
    return dict(zip(names, weights.tolist(), strict=True)) if finite else math.inf


def weights_of(bags: Bags, relax: Relax) -> float | Tensor:
    """Of these bags, (m,) in their order, or of them all."""
    if not isinstance(relax, Mapping):
        return relax
    return torch.tensor([relax.get(name, math.inf) for name in bags.ids], dtype=torch.float64)


def denoised_bags(bags: Bags, noise: float | str | None, *, whole: bool) -> tuple[Bags, Relax]:
    """Bags whose noisy shares are made good, and what they weigh; of `whole` numbers noise is of counts."""
    if not noise:
        return bags, math.inf
    values = bags.proportions.double() * (bags.sizes.unsqueeze(1) if whole else 1)
    known, shares = values.isfinite().all(1), torch.full_like(values, math.nan)
    clean, weights = denoised(values[known].numpy(), bags.sizes[known].numpy(), noise, whole=whole)
    shares[known] = torch.from_numpy(clean)
    names = (bags.ids[i] for i in known.nonzero().flatten().tolist())
    return replace(bags, proportions=shares.float()), weights_by(names, weights)

"""What a table says of its bags, made good: noisy shares, labels that a column gives, several groupings."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from apportion.bags.bags import Bags
from apportion.intake.filling import denoised, foretold
from apportion.intake.given import with_given
from apportion.intake.joining import joined, joined_weights
from apportion.intake.weights import Relax, weights_by
from apportion.tables.asking import Asked, Found
from apportion.tables.labels import given_labels


def together(groupings: Sequence[Bags], asked: Sequence[Asked], found: Sequence[Found]) -> tuple[Bags, Relax]:
    """The bags of all groupings, and what their shares weigh when labels are made."""
    bags, relax = {}, {}
    for grouping, question, known in zip(groupings, asked, found, strict=True):
        clean, relax[question.bag] = mended(grouping, question)
        bags[question.bag] = with_labels(clean, question, known)
    return joined(bags), joined_weights(relax)


def mended(bags: Bags, asked: Asked, log_probs: Tensor | None = None) -> tuple[Bags, Relax]:
    """Bags whose noisy shares are made good, by the predictions of their rows where there are such, and what
    they weigh when labels are made."""
    if not asked.noise:
        return bags, math.inf
    level, whole = asked.noise if asked.noise == "estimate" else float(asked.noise), asked.counts is not None
    values = bags.proportions.double() * (bags.sizes.unsqueeze(1) if whole else 1)
    known, shares = values.isfinite().all(1), torch.full_like(values, math.nan)
    numbers, sizes, told = values[known].numpy(), bags.sizes[known].numpy(), None
    if log_probs is not None:
        rows = known.repeat_interleave(bags.sizes)
        told = foretold(log_probs[rows].exp().numpy(), np.repeat(np.arange(len(sizes)), sizes), sizes)
    clean, weights = denoised(numbers, sizes, level, whole=whole, told=told)
    shares[known] = torch.from_numpy(clean)
    names = (bags.ids[i] for i in known.nonzero().flatten().tolist())
    return replace(bags, proportions=shares.float()), weights_by(names, weights)


def with_labels(bags: Bags, asked: Asked, found: Found) -> Bags:
    """The bags, and those of rows whose class a column of the table gives."""
    given = given_labels(asked)
    return with_given(bags, given, np.array(found.classes), sure=not asked.noise) if given else bags

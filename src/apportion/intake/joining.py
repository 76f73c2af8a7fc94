"""The bags of several groupings as one set, in which a row appears once a grouping.

Learners know no more than that; what needs the groupings themselves finds them by the ids, which are `BagOf`.
"""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from apportion._random import stream
from apportion.bags.bags import Bags, exact_bag_means
from apportion.bags.groupings import MIN_LOG_PROB as LEAST
from apportion.bags.groupings import Margin, rake
from apportion.intake import mending
from apportion.intake.weights import Relax, weights_of
from apportion.pseudo_labels import hard_labels

SHARP = 1 / 30  # of the plan whose rows are taken for one class each; rounding then moves few
TIES = 0.1  # nats by which rows that are alike are set apart, since a plan has them all between the classes


@dataclass(frozen=True)
class BagOf:
    """The id of a bag where there are several groupings."""

    grouping: Hashable
    name: Hashable

    def __repr__(self) -> str:
        return f"{self.name!r} of {self.grouping!r}"


def joined(bags: Mapping[Hashable, Bags]) -> Bags:
    """All of them, grouping after grouping; of one alone they keep their ids."""
    parts = list(bags.values())
    if len(parts) == 1:
        return parts[0]
    ids = [BagOf(name, each) for name, part in bags.items() for each in part.ids]
    x, sizes = torch.cat([part.x for part in parts]), torch.cat([part.sizes for part in parts])
    shares = torch.cat([part.proportions for part in parts])
    none = [torch.zeros(len(part.ids), dtype=torch.bool) for part in parts]
    pure = torch.cat([no if part.pure is None else part.pure for part, no in zip(parts, none, strict=True)])
    return Bags(x, sizes, shares, torch.cat([part.source for part in parts]), ids, pure=pure)


def joined_weights(relax: Mapping[Hashable, Relax]) -> Relax:
    """What noisy shares weigh, by the ids of the joined bags."""
    if len(relax) == 1:
        return next(iter(relax.values()))
    found: dict[Hashable, float] = {
        BagOf(name, each): weight
        for name, weights in relax.items()
        if isinstance(weights, Mapping)
        for each, weight in weights.items()
    }
    return found or math.inf


def groupings_in(bags: Bags) -> list[Bags]:
    """The bags of each grouping, without instances."""
    names = [each.grouping if isinstance(each, BagOf) else None for each in bags.ids]
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    code = torch.tensor([number[name] for name in names])
    bare = replace(bags, x=torch.empty(len(bags.x), 0), proportions=bags.proportions.cpu())
    return [bare.select((code == i).nonzero().flatten()) for i in range(len(number))]


def margin_of(bags: Bags, relax: Relax = math.inf) -> Margin:
    """The bags of one grouping that have proportions; rows are those of the user's data."""
    known, weights = bags.proportions.isfinite().all(1), weights_of(bags, relax)
    weights = weights[known] if isinstance(weights, Tensor) else weights
    rows = bags.source[known[torch.repeat_interleave(bags.sizes)]]
    return Margin(rows, bags.sizes[known], bags.proportions[known].cpu().double(), weights)


def transduced(log_probs: Tensor, bags: Bags, relax: Relax = math.inf) -> np.ndarray:
    """`mending.transduced`. Of several groupings the first has its counts exactly, the others nearly: labels
    that had those of all are hard to find with three classes or three groupings, and need not exist."""
    groupings = groupings_in(bags)
    if len(groupings) == 1:
        return mending.transduced(log_probs, bags, relax)
    rows = torch.empty(len(log_probs) // len(groupings), log_probs.shape[1], dtype=torch.float64)
    rows[bags.source] = log_probs.double().cpu()
    # shares of all bags: those that are known, and what the others and the predictions agree on
    mass = rake(rows, [margin_of(each, relax) for each in groupings]).mass
    agreed = [replace(each, proportions=agreed_shares(each, mass, relax)) for each in groupings]
    rows = rows.clamp_min(LEAST)  # at this λ a plan can hold no less
    rows += TIES * torch.randn(rows.shape, generator=stream(0, "ties"), dtype=rows.dtype)
    mass = rake(rows, [margin_of(each) for each in agreed], reg=SHARP).mass
    first, found = agreed[0], np.empty(len(rows), np.int64)
    labels = hard_labels(mass[first.source].clamp_min(1e-300).log(), first.sizes, first.proportions)
    found[first.source] = labels.argmax(1)
    return found


def agreed_shares(bags: Bags, mass: Tensor, relax: Relax) -> Tensor:
    """(m, k) the proportions of bags that are exact, of others the means of a plan's rows."""
    exact = bags.proportions.isfinite().all(1) & (torch.as_tensor(weights_of(bags, relax)) == math.inf)
    means = exact_bag_means(mass[bags.source], bags.sizes)
    return torch.where(exact.unsqueeze(1), bags.proportions.double(), means)

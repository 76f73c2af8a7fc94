"""How far predicted shares of bags go along with known ones, and how far they would by chance."""

import math
from collections.abc import Iterator
from itertools import islice, permutations

import torch
from torch import Tensor


def bag_weights(proportions: Tensor, sizes: Tensor) -> Tensor:
    """(m,) one over the variance of each bag's shares, 1 on average: what bags differ by for a reason (after
    DerSimonian and Laird, 1986), and what chance adds, the less the larger the bag."""
    known, n = proportions.double(), sizes.double()
    rows, freedom = n.sum(), len(n) - 1
    overall = (n @ known) / rows
    row = float((overall * (1 - overall)).sum())  # the variance of one row's class
    beyond = (n * (known - overall).square().sum(1)).sum() - freedom * row
    reason = (beyond / (rows - n.square().sum() / rows - freedom).clamp_min(1e-12)).clamp(0, row)
    weights = 1 / (reason + (row - reason) / n).clamp_min(1e-12)
    return weights / weights.mean()


def shuffled_correlations(
    predicted: Tensor, known: Tensor, sizes: Tensor, shuffles: int = 999, seed: int = 0
) -> tuple[float, Tensor]:
    """The bag correlation, and the correlations with the known shares shuffled between bags.

    Shares of small bags stray the most, predicted and known ones, so that plain shuffles reach too little:
    what is shuffled is the distance of a bag's shares from all others' in deviations of its own.
    """
    weights = bag_weights(known, sizes).unsqueeze(1)
    both = (weights.sqrt() * (v.double() - (weights * v.double()).mean(0)) for v in (predicted, known))
    predicted, known = (values - values.mean(0) for values in both)
    scale = float(predicted.norm() * known.norm())
    if scale < 1e-9 * len(known):
        return 0.0, torch.zeros(shuffles)
    null = [(predicted * known[order]).sum() for order in other_orders(len(known), shuffles, seed)]
    return float((predicted * known).sum()) / scale, torch.stack(null) / scale


def other_orders(m: int, shuffles: int, seed: int) -> Iterator[Tensor]:
    """So many random orders of m > 1 bags; of bags that have no more, each but their own once."""
    if m < 10 and math.factorial(m) <= shuffles:
        yield from map(torch.tensor, islice(permutations(range(m)), 1, None))
        return
    generator = torch.Generator().manual_seed(seed)
    for _ in range(shuffles):
        yield torch.randperm(m, generator=generator)

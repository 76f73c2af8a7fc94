"""Soft labels that have the shares of several groupings at once: raking (Deming & Stephan, 1940).

Rows may lie in one bag of each of several groupings, say a precinct and an age group. Of all labels that
have every bag's shares, these are the nearest to the predictions by KL divergence: log-probabilities plus a
price for each class of each bag that a row is in. The prices of one grouping, given those of the others, are
`entropic_plan`'s; the groupings take turns until nothing moves.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from apportion.bags.bags import exact_bag_means
from apportion.transport import Plan, entropic_plan

LEAST = -20.0  # log-probability that is believed at least: rows that are surer hardly move, turn after turn
NONE = -300.0  # of a class that no bag has


class Margin(NamedTuple):
    """One grouping of some rows into disjoint bags, with the shares of each."""

    rows: Tensor  # (n,) of the log-probabilities, bag after bag
    sizes: Tensor  # (m,) of the bags, which sum to n
    proportions: Tensor  # (m, k)
    relax: float | Tensor = math.inf  # (m,) or of all: what noisy shares weigh against the rest


def rake(
    log_probs: Tensor, margins: Sequence[Margin], *, reg: float = 1.0, tol: float = 1e-5, most: int = 300
) -> Plan:
    """The plan of all rows (N, k), in double precision on the CPU; rows of no margin stay as predicted.

    With a smaller `reg`, 1/λ, rows are nearly of one class each, and as many of each as the shares say.
    `error` is of the bags of all margins in turn: how far their means are from their shares. It stays large
    where margins contradict each other; the first one is met then. `iterations` are turns of all margins,
    each a Newton solve of every bag: few where groupings cross freely, hundreds where one nearly follows from
    another.
    """
    predicted = log_probs.detach().cpu().double().log_softmax(1).clamp_min(LEAST)
    shifts = [torch.zeros(len(each.rows), predicted.shape[1], dtype=torch.float64) for each in margins]
    mass, turns, moved = (predicted / reg).softmax(1), 0, math.inf
    while moved > tol and turns < most:
        for i in reversed(range(len(margins))):  # the first has the last word
            rows, sizes, shares, relax = margins[i]
            # all but its own, which a relaxed margin would count twice
            scores = priced(predicted, margins, shifts, but=i)[rows]
            plan = entropic_plan(scores, sizes, shares, reg=reg, precision=relax)
            # no infinities: where margins contradict each other, a row would be left without any class
            shifts[i] = (reg * plan.mass.log() - scores).masked_fill_(plan.mass == 0, NONE)
        before, mass = mass, (priced(predicted, margins, shifts) / reg).softmax(1)
        turns, moved = turns + 1, float((mass - before).abs().max()) if len(margins) > 1 else 0.0
    errors = [
        (exact_bag_means(mass[each.rows], each.sizes) - each.proportions).abs().amax(1) for each in margins
    ]
    return Plan(mass, torch.cat(errors), turns)


def priced(predicted: Tensor, margins: Sequence[Margin], shifts: Sequence[Tensor], but: int = -1) -> Tensor:
    """Log-probabilities with what the margins have added to them, up to a constant a row; all `but` one."""
    scores = predicted.clone()
    for i, (margin, shift) in enumerate(zip(margins, shifts, strict=True)):
        if i != but:
            scores[margin.rows] += shift
    return scores

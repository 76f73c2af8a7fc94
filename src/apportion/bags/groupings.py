"""Several groupings of the same rows, such as precincts and age groups: joined bags, and raking.

For learning, the bags of all groupings are one set in which every row appears once per grouping. For labels,
raking (Deming & Stephan, 1940) finds, of all soft labels that have every bag's shares, those nearest to the
predictions by KL divergence: log-probabilities plus a price for each class of each bag that a row is in. The
prices of one grouping, given those of the others, are `entropic_plan`'s. Groupings take turns until nothing
moves.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from apportion.bags.bags import Bags, exact_bag_means
from apportion.transport import Plan, entropic_plan

MIN_LOG_PROB = -20.0  # raking would hardly move rows that are more certain than this
IMPOSSIBLE = -300.0  # price of a class that the bag has none of


def join_groupings(groupings: Mapping[Hashable, Bags]) -> Bags:
    """The bags of all groupings as one set, grouping after grouping. A single grouping stays as it is."""
    parts = list(groupings.values())
    if len(parts) == 1:
        return parts[0]
    return Bags(
        torch.cat([part.x for part in parts]),
        torch.cat([part.sizes for part in parts]),
        torch.cat([part.proportions for part in parts]),
        torch.cat([part.source for part in parts]),
        ids=[bag for part in parts for bag in part.ids],
        grouping=[name for name, part in groupings.items() for _ in part.ids],
        precision=_join_precision(parts),
        pure=_join_pure(parts),
        weight=_join_weight(parts),
    )


def _join_weight(parts: Sequence[Bags]) -> Tensor | None:
    weights = [part.weight for part in parts if part.weight is not None]
    return torch.cat(weights) if weights else None


def _join_precision(parts: Sequence[Bags]) -> Tensor | None:
    if all(part.precision is None for part in parts):
        return None
    return torch.cat([precision_of(part) for part in parts])


def precision_of(bags: Bags) -> Tensor:
    """(m,) the precision of each bag's proportions: infinite where they are exact."""
    if bags.precision is not None:
        return bags.precision
    return torch.full((len(bags.sizes),), math.inf, dtype=torch.float64)


def _join_pure(parts: Sequence[Bags]) -> Tensor | None:
    if all(part.pure is None for part in parts):
        return None
    none = [torch.zeros(len(part.sizes), dtype=torch.bool) for part in parts]
    return torch.cat([no if part.pure is None else part.pure for part, no in zip(parts, none, strict=True)])


def split_groupings(bags: Bags) -> list[Bags]:
    """The bags of each grouping, on the CPU and without features (`x` has no columns)."""
    bare = replace(bags, x=torch.empty(len(bags.x), 0), proportions=bags.proportions.cpu())
    if bags.grouping is None:
        return [bare]
    number = {name: i for i, name in enumerate(dict.fromkeys(bags.grouping))}
    code = torch.tensor([number[name] for name in bags.grouping])
    return [bare.select((code == i).nonzero().flatten()) for i in range(len(number))]


# --- raking


class Margin(NamedTuple):
    """One grouping of some rows into disjoint bags, with the shares of each bag."""

    rows: Tensor  # (n,) row numbers, bag after bag
    sizes: Tensor  # (m,) sizes of the bags, which sum to n
    proportions: Tensor  # (m, k)
    precision: float | Tensor = math.inf  # (m,) or one for all: the weight of noisy shares
    weight: Tensor | None = None  # (n,) the weights of the rows


def margin_of(bags: Bags) -> Margin:
    """The bags of one grouping whose proportions are known; rows are numbered as in the user's data."""
    known = bags.proportions.isfinite().all(1).cpu()
    precision = math.inf if bags.precision is None else bags.precision[known]
    chosen = known[torch.repeat_interleave(bags.sizes)]
    weight = None if bags.weight is None else bags.weight.cpu()[chosen]
    shares = bags.proportions.cpu()[known].double()
    return Margin(bags.source[chosen], bags.sizes[known], shares, precision, weight)


def rake(
    log_probs: Tensor,
    margins: Sequence[Margin],
    *,
    reg: float = 1.0,
    tol: float = 1e-5,
    max_iterations: int = 300,
) -> Plan:
    """Soft labels (N, k) of all rows that have the shares of every margin; float64, on the CPU.

    `reg` is 1/λ: a smaller one makes rows nearly of one class each. Rows of no margin stay as predicted. The
    `error` of the plan is the distance between mean labels and shares, for the bags of all margins in turn.
    Where margins contradict each other it stays large, and only the first margin is matched. One iteration
    solves every bag of every margin by Newton's method. A few are enough where groupings cross freely, and
    hundreds are needed where one grouping nearly determines another.
    """
    predicted = log_probs.detach().cpu().double().log_softmax(1).clamp_min(MIN_LOG_PROB)
    prices = [torch.zeros(len(margin.rows), predicted.shape[1], dtype=torch.float64) for margin in margins]
    mass = (predicted / reg).softmax(1)
    iterations = 0
    moved = math.inf
    while moved > tol and iterations < max_iterations:
        for i in reversed(range(len(margins))):  # the first margin has the last word
            rows, sizes, shares, precision, weight = margins[i]
            # without the margin's own prices, which would count twice if it is relaxed
            scores = add_prices(predicted, margins, prices, skip=i)[rows]
            plan = entropic_plan(scores, sizes, shares, reg=reg, precision=precision, weight=weight)
            # no infinities: contradicting margins would leave a row without any class
            prices[i] = (reg * plan.mass.log() - scores).masked_fill_(plan.mass == 0, IMPOSSIBLE)
        before = mass
        mass = (add_prices(predicted, margins, prices) / reg).softmax(1)
        iterations += 1
        moved = float((mass - before).abs().max()) if len(margins) > 1 else 0.0
    errors = [
        (exact_bag_means(mass[each.rows], each.sizes, each.weight) - each.proportions).abs().amax(1)
        for each in margins
    ]
    return Plan(mass, torch.cat(errors), iterations)


def add_prices(
    predicted: Tensor, margins: Sequence[Margin], prices: Sequence[Tensor], skip: int | None = None
) -> Tensor:
    """Log-probabilities plus the prices of all margins but `skip`, up to a constant per row."""
    scores = predicted.clone()
    for i, (margin, price) in enumerate(zip(margins, prices, strict=True)):
        if i != skip:
            scores[margin.rows] += price
    return scores

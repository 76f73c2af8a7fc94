"""Predictions of rows whose bags have known shares, which say more than the predictions alone."""

import logging
import math
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apportion.bags.bags import Bags
from apportion.bags.predictions import bags_of_predictions
from apportion.bags.raking import rake
from apportion.errors import DataError
from apportion.intake.gaps import refuse_estimate
from apportion.intake.given import refuse_another_order
from apportion.intake.joining import BagOf, margin_of
from apportion.intake.mending import believed
from apportion.intake.remedies import MEETING
from apportion.intake.several import noise_of, refuse_tables, same_classes, tables_of, told_of
from apportion.intake.weights import Relax
from apportion.transport import entropic_plan

TOLD = 0.005  # of a share
ROUNDING = 0.02  # of a share: groupings whose shares are rounded do not quite agree


def meet(
    probabilities: Any, bags: Any, proportions: Any = None, *, counts: Any = None, classes: Any = None,
    noise: Any = None,
) -> np.ndarray:  # fmt: skip
    """Probabilities (N, k) of any classifier, as they are once the shares of every row's bag are known.

    The mean of a bag's rows is then its shares. `bags` is the bag of each row, `classes` are those of the
    columns, such as `model.classes_`; what has names is read by them. A table that names its bags may have
    more of them than there are rows for. `noise` is the deviation of each number's error, of numbers that are
    drawn to what was predicted of their bag as far as noise explains the distance, and then met. With
    {grouping: bags}, {grouping: table} and maybe {grouping: noise} those of all groupings are met at once.
    """
    refuse_another_order(probabilities, bags, "probabilities", counted=False)
    if isinstance(bags, Mapping):
        tables, levels = tables_of(bags, proportions, counts), noise_of(noise, bags)
    else:
        refuse_tables(bags, proportions if counts is None else counts)
        tables = dict[Any, Any]({None: {"proportions": proportions, "counts": counts}})
        bags, levels = dict[Any, Any]({None: bags}), dict[Any, Any]({None: noise})
    groupings, relax, named = dict[Any, Bags](), dict[Any, Relax](), dict[Hashable, list[Any]]()
    for name, table in tables.items():
        with told_of(name):
            refuse_estimate(levels[name], table["counts"])
            known = table["proportions"], table["counts"], classes, MEETING, levels[name]
            groupings[name], there, relax[name] = bags_of_predictions(probabilities, bags[name], *known)
        named |= {} if there is None else {name: list(there)}
    same_classes(named)
    first = next(iter(groupings.values()))
    rows = first.x[first.source.argsort()].double().clamp_min(1e-38).log()
    values = met_together(rows, groupings, relax).numpy()
    return values / values.sum(1, keepdims=True)


def met_together(
    log_probs: Tensor, groupings: Mapping[Any, Bags], relax: Mapping[Any, Relax], option: str = "noise="
) -> Tensor:
    """`met` with the bags of each grouping, for rows (N, k) in the order of the user's data, by raking.

    Noisy shares have been drawn to what was predicted of their bags; those of one grouping are then met, and
    of several they weigh `relax`. Shares that contradict each other are refused, but for those that are
    noisy; of others the first grouping is met, and it is told.
    """
    if len(groupings) == 1:
        (bags,) = groupings.values()
        values = torch.empty_like(log_probs)
        values[bags.source] = met(log_probs[bags.source], bags).to(values)
        return values
    margins = [margin_of(bags, relax[name]) for name, bags in groupings.items()]
    plan = rake(log_probs, margins)
    exact = torch.cat([torch.as_tensor(each.relax).expand(len(each.sizes)) == math.inf for each in margins])
    error = plan.error.masked_fill(~exact, 0.0)
    worst, off = int(error.argmax()), float(error.max())
    if off > TOLD:
        known = [BagOf(name, each) for name, bags in groupings.items() for each in bags.known().ids]
        what = f"bag {known[worst]!r} is {off:.3g} off one of its shares once the others are met"
        if off > ROUNDING:
            remedy = f"mend their shares, pass {option} of those that are inexact, or meet one of them"
            raise DataError(f"{what}: the groupings contradict each other; {remedy}")
        logging.getLogger("apportion").warning("%s: the first grouping is met", what)
    return plan.mass


def met(log_probs: Tensor, bags: Bags) -> Tensor:
    """`meet` for log-probabilities in the order of the bags.

    Entropic transport with λ = 1: of all that have a bag's shares, the nearest to the predictions by KL
    divergence. Rows of bags without proportions stay as they are.
    """
    shares = believed(log_probs, bags.sizes, bags.proportions)
    return entropic_plan(log_probs, bags.sizes, shares, reg=1.0).mass

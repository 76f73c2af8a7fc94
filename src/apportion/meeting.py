"""Predictions of rows whose bags have known shares, which say more than the predictions alone."""

import math
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apportion.bags import Bags
from apportion.intake.instances import BagError
from apportion.intake.joining import BagOf, margin_of
from apportion.intake.mending import believed, known_bags
from apportion.intake.remedies import MEETING
from apportion.intake.several import same_classes, tables_of, told_of
from apportion.intake.weights import Relax, weights_of
from apportion.judging.diagnosis import predictions_in_bags
from apportion.raking import rake
from apportion.transport import entropic

ROUNDING = 0.02  # of a share: groupings whose shares are rounded do not quite agree


def meet(
    probabilities: Any, bags: Any, proportions: Any = None, *, counts: Any = None, classes: Any = None
) -> np.ndarray:
    """Probabilities (N, k) of any classifier, as they are once the shares of every row's bag are known.

    The mean of a bag's rows is then its shares. `bags` is the bag of each row, `classes` are those of the
    columns, such as `model.classes_`; what has names is read by them. A table that names its bags may have
    more of them than there are rows for. With {grouping: bags} and {grouping: table} the shares of all
    groupings are met at once.
    """
    if isinstance(bags, Mapping):
        return met_by_all(probabilities, bags, proportions, counts, classes)
    found, _ = predictions_in_bags(probabilities, bags, proportions, counts, classes, MEETING)
    values = met(found.x.double().clamp_min(1e-38).log(), found).double().numpy()
    rows = np.empty_like(values)
    rows[found.source.numpy()] = values / values.sum(1, keepdims=True)
    return rows


def met_by_all(
    probabilities: Any, bags: Mapping[Hashable, Any], proportions: Any, counts: Any, classes: Any
) -> np.ndarray:
    """`meet` for several groupings."""
    groupings: dict[Hashable, Bags] = {}
    named: dict[Hashable, list[Any]] = {}
    for name, tables in tables_of(bags, proportions, counts).items():
        with told_of(name):
            known = tables["proportions"], tables["counts"], classes
            groupings[name], there = predictions_in_bags(probabilities, bags[name], *known, MEETING)
        named |= {} if there is None else {name: list(there)}
    same_classes(named)
    first = next(iter(groupings.values()))
    predicted = first.x[first.source.argsort()].double().clamp_min(1e-38).log()
    return met_together(predicted, groupings).numpy()


def met_together(
    log_probs: Tensor, groupings: Mapping[Any, Bags], relax: Mapping[Any, Relax] | None = None
) -> Tensor:
    """`met` for several groupings, by raking; rows are in the order of the user's data. Shares that
    contradict each other are refused, but for those that are noisy."""
    margins = [margin_of(bags, (relax or {}).get(name, math.inf)) for name, bags in groupings.items()]
    plan = rake(log_probs, margins)
    exact = torch.cat([torch.as_tensor(each.relax).expand(len(each.sizes)) == math.inf for each in margins])
    for i in (exact & (plan.error > ROUNDING)).nonzero().flatten()[:1].tolist():
        known = (BagOf(name, each) for name, bags in groupings.items() for each in known_bags(bags).ids)
        what = f"bag {list(known)[i]!r} is {plan.error[i]:.3g} off one of its shares once the others are met"
        raise BagError(f"{what}: the groupings contradict each other; mend their shares, or meet one of them")
    return plan.mass


def met(log_probs: Tensor, bags: Bags, relax: Relax = math.inf) -> Tensor:
    """`meet` for log-probabilities in the order of the bags.

    Entropic transport with λ = 1: of all that have a bag's shares, the nearest to the predictions by KL
    divergence. Rows of bags without proportions stay as they are, and of noisy ones, which weigh `relax`,
    what they and the predictions agree on is met.
    """
    shares = believed(log_probs, bags.sizes, bags.proportions, weights_of(bags, relax))
    return entropic(log_probs, bags.sizes, shares, reg=1.0).mass

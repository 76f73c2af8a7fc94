"""Condition predictions on known proportions: the result of a precinct says more about each of its voters.

The conditioned probabilities are the plan of entropic transport with λ = 1. Of all probabilities whose bag
means are the known proportions, they are nearest to the predictions in KL divergence. They also approximate
the probability of each row's class given the counts of its bag. docs/known-proportions.md shows the gain.
"""

import math
import warnings
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apportion.bags.bags import Bags
from apportion.bags.build import BuiltBags, name_grouping, tables_of_groupings
from apportion.bags.groupings import margin_of, rake
from apportion.bags.instances import check_row_order
from apportion.bags.predictions import bags_of_predictions
from apportion.bags.problems import check_same_classes, raise_problem
from apportion.errors import ApportionWarning, DataError
from apportion.transport import entropic_plan

WARNING_GAP = 0.005  # distance from a proportion that cannot be matched together with the other groupings
ERROR_GAP = 0.02  # larger distances are not due to rounding: the groupings contradict each other


def condition_on_proportions(
    probabilities: Any,
    bags: Any,
    proportions: Any,
    *,
    classes: Sequence[Hashable] | None = None,
    weight: Any = None,
) -> np.ndarray:
    """The predicted probabilities of any classifier, given the class proportions of the bags of their rows.

    Parameters
    ----------
    probabilities : array-like (N, k) or data frame
        The predicted probabilities of each row.
    bags : array-like (N,) or dict
        The bag of each row, or `{grouping: bags}` if rows are in bags of several groupings.
    proportions : table, Proportions or dict
        The known proportions of the bags, in any form that `ProportionClassifier.fit` accepts, or
        `{grouping: either}`. The table may have bags without rows. Noisy proportions,
        `Proportions(std=...)`, are first drawn toward the mean prediction of their bag.
    weight : array-like (N,), optional
        Weights of the rows, such as the people behind each. Means over a bag are then weighted.
    classes : sequence, optional
        The classes of the columns of `probabilities`, such as `model.classes_`. Tables and data frames are
        aligned by the names of their columns.

    Returns
    -------
    array (N, k)
        Probabilities whose mean over the rows of each bag is the bag's proportions. Rows of bags without
        known proportions stay as they are.

    Examples
    --------
    >>> import numpy as np
    >>> from apportion import condition_on_proportions
    >>> probabilities = np.array([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]])
    >>> condition_on_proportions(probabilities, ["a", "a", "a"], {"a": [1 / 3, 2 / 3]}).round(2)
    array([[0.72, 0.28],
           [0.22, 0.78],
           [0.07, 0.93]])
    """
    check_row_order(probabilities, bags, "probabilities", counted_index=False)
    if isinstance(bags, Mapping):
        tables: dict[Any, Any] = dict(tables_of_groupings(bags, proportions))
        ids: dict[Any, Any] = dict(bags)
    else:
        tables = {None: proportions}
        ids = {None: bags}
    groupings: dict[Any, BuiltBags] = {}
    for name, table in tables.items():
        try:
            groupings[name] = bags_of_predictions(
                probabilities, ids[name], table, classes, subset=True, weight=weight
            )
        except DataError as error:
            raise error if name is None else name_grouping(error, name) from None
    for problem in check_same_classes({name: each.classes.tolist() for name, each in groupings.items()}):
        raise_problem(problem)
    first = next(iter(groupings.values())).bags
    log_probs = first.x[first.source.argsort()].double().clamp_min(1e-38).log()
    values = condition_groupings(log_probs, {name: each.bags for name, each in groupings.items()}).numpy()
    return values / values.sum(1, keepdims=True)


def condition_groupings(log_probs: Tensor, groupings: Mapping[Any, Bags]) -> Tensor:
    """Conditioned probabilities for log-probabilities (N, k) in the order of the user's rows.

    The proportions of several groupings are matched together, by raking. Noisy proportions are weighted by
    their precision. Exact ones that contradict each other by more than rounding raise `DataError`.
    """
    if len(groupings) == 1:
        (bags,) = groupings.values()
        values = torch.empty_like(log_probs)
        values[bags.source] = condition_bags(log_probs[bags.source], bags).to(values)
        return values
    plan = rake(log_probs, [margin_of(bags) for bags in groupings.values()])
    _check_agreement(plan.error, groupings)
    return plan.mass


def condition_bags(log_probs: Tensor, bags: Bags) -> Tensor:
    """Conditioned probabilities for log-probabilities (N, k) in the order of the bags of one grouping."""
    values = log_probs.exp()
    known = bags.proportions.isfinite().all(1).cpu()
    rows = known.repeat_interleave(bags.sizes).to(log_probs.device)
    if bool(known.any()):
        weight = None if bags.weight is None else bags.weight[rows.to(bags.weight.device)]
        shares = bags.proportions.cpu()[known]
        plan = entropic_plan(log_probs[rows], bags.sizes[known], shares, reg=1.0, weight=weight)
        values[rows] = plan.mass.to(values)
    return values


def _check_agreement(gaps: Tensor, groupings: Mapping[Any, Bags]) -> None:
    """Raise or warn if exact proportions are not matched. `gaps`: one distance per bag with known ones."""
    names: list[tuple[str, Hashable]] = []
    exact: list[bool] = []
    for grouping, bags in groupings.items():
        for i in bags.proportions.isfinite().all(1).nonzero().flatten().tolist():
            names.append((f"bag {bags.ids[i]!r} of grouping {grouping!r}", bags.ids[i]))
            exact.append(bags.precision is None or float(bags.precision[i]) == math.inf)
    gaps = gaps.masked_fill(~torch.tensor(exact), 0.0)
    worst = int(gaps.argmax())
    gap = float(gaps[worst])
    if gap <= WARNING_GAP:
        return
    name, bag = names[worst]
    what = f"{name} is {gap:.3g} off one of its proportions, because the groupings contradict each other"
    hint = "correct them, pass Proportions(..., std=...) for inexact ones, or condition on one grouping"
    if gap > ERROR_GAP:
        raise DataError(f"{what}; {hint}", bag=bag, value=gap)
    what = f"{what}, and only the first grouping is matched exactly"
    warnings.warn(f"{what}; {hint}", ApportionWarning, stacklevel=4)

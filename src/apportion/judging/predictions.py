"""Predictions of rows in bags that have known shares, checked against each other."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from apportion.bags.bags import Bags
from apportion.errors import DataError
from apportion.intake.filling import foretold
from apportion.intake.forms import by_columns
from apportion.intake.given import refuse_another_order
from apportion.intake.grouping import bags_of, table_rows
from apportion.intake.ids import groups_of
from apportion.intake.instances import as_instances
from apportion.intake.mending import mended_shares
from apportion.intake.remedies import JUDGING, Way
from apportion.intake.sound import checked_shares
from apportion.intake.weights import Relax


def predictions_in_bags(
    probabilities: Any, ids: Any, proportions: Any, counts: Any, classes: Any, way: Way = JUDGING,
    noise: float | str | None = None,
) -> tuple[Bags, list[Any] | None, Relax]:  # fmt: skip
    """Bags whose instances are predictions (N, k), the names of their classes, and what noisy shares weigh;
    errors advise `way`."""
    refuse_another_order(probabilities, ids, "probabilities", counted=False)
    probabilities, classes = by_columns(probabilities, classes, "the frame of predictions")
    x, relax, whole = as_instances(probabilities), math.inf, counts is not None
    names, _, sizes = groups = groups_of(ids, len(x))
    rows, there = table_rows(proportions, counts, groups, classes, scaled=noise is None, way=way)
    if classes is None and there is not None and not _ascend(there):  # as those of model.classes_ do
        remedy = "pass classes=, in the order of the predictions' columns (model.classes_)"
        raise DataError(f"the table has the classes {there}, predictions may have another order; {remedy}")
    if noise is not None:
        check_probabilities(x, rows.shape[-1])
        told = foretold(x.double().numpy(), groups[1], sizes)
        rows, relax = mended_shares(rows, sizes, names, noise, there, normalize=False, whole=whole, told=told)
    bags = bags_of(x, groups, checked_shares(rows, groups, False, there, way))
    check_probabilities(bags.x, bags.n_classes)
    return bags, there, relax


def _ascend(names: Sequence[Any]) -> bool:
    """Whether names are in their order; False where they are not of one kind, and have none."""
    try:
        return all(one < other for one, other in pairwise(names))
    except TypeError:
        return False


def check_probabilities(x: Tensor, k: int) -> None:
    """Refuse what are no probabilities (N, k), with what they look like."""
    if x.shape[1:] != (k,):
        raise DataError(f"predictions are of shape {tuple(x.shape)}; pass (rows, {k}), a column a class")
    low, high = (float(end) for end in torch.aminmax(x.double()))
    off = float((x.double().sum(1) - 1).abs().max())
    if low >= 0 and off <= 1e-3:
        return
    remedy = "each row is probabilities of all classes, which sum to one"
    if high <= 0 and float((x.double().exp().sum(1) - 1).abs().max()) <= 1e-3:
        remedy = "these look like log-probabilities: pass numpy.exp of them"
    elif low >= 0 and float((x.double().sum(1) - 100).abs().max()) <= 0.1:
        remedy = "these look like percentages: divide them by 100"
    elif low < 0:
        remedy = "if these are scores, pass their softmax"
    raise DataError(
        f"predictions are from {low:g} to {high:g}, and rows miss a sum of one by {off:g}; {remedy}"
    )

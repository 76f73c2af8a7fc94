"""Predicted probabilities in bags with known proportions: `Bags` whose instances are predictions."""

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


def bags_of_predictions(
    probabilities: Any,
    ids: Any,
    proportions: Any,
    counts: Any,
    classes: Any,
    way: Way = JUDGING,
    noise: float | str | None = None,
) -> tuple[Bags, list[Any] | None, Relax]:
    """Bags whose instances are predictions (N, k), the names of their classes, and what noisy proportions
    weigh against predictions. Noisy proportions are drawn to the mean prediction of their bag.
    """
    refuse_another_order(probabilities, ids, "probabilities", counted=False)
    probabilities, classes = by_columns(probabilities, classes, "the frame of predictions")
    x = as_instances(probabilities)
    groups = groups_of(ids, len(x))
    names, bag_of_row, sizes = groups
    rows, table_classes = table_rows(proportions, counts, groups, classes, scaled=noise is None, way=way)
    if classes is None and table_classes is not None and not _is_sorted(table_classes):
        raise DataError(
            f"the table has the classes {table_classes}, predictions may have another order; pass classes="
            " in the order of the predictions' columns (model.classes_)"
        )
    relax: Relax = math.inf
    if noise is not None:
        check_probabilities(x, rows.shape[-1])
        predicted = foretold(x.double().numpy(), bag_of_row, sizes)
        whole = counts is not None
        rows, relax = mended_shares(
            rows, sizes, names, noise, table_classes, normalize=False, whole=whole, told=predicted
        )
    bags = bags_of(x, groups, checked_shares(rows, groups, False, table_classes, way))
    check_probabilities(bags.x, bags.n_classes)
    return bags, table_classes, relax


def _is_sorted(names: Sequence[Any]) -> bool:
    """Whether names ascend; False if they are of several types and have no order."""
    try:
        return all(one < other for one, other in pairwise(names))
    except TypeError:
        return False


def check_probabilities(x: Tensor, n_classes: int) -> None:
    """Raise `DataError` unless x holds probabilities (N, n_classes); the message says what it looks like."""
    if x.shape[1:] != (n_classes,):
        what = f"predictions have shape {tuple(x.shape)}"
        raise DataError(f"{what}; pass shape ({len(x)}, {n_classes}), one column per class")
    x = x.double()
    low, high = (float(end) for end in torch.aminmax(x))
    off = float((x.sum(1) - 1).abs().max())
    if low >= 0 and off <= 1e-3:
        return
    hint = "each row must hold the probabilities of all classes, which sum to one"
    if high <= 0 and float((x.exp().sum(1) - 1).abs().max()) <= 1e-3:
        hint = "these look like log-probabilities: pass numpy.exp of them"
    elif low >= 0 and float((x.sum(1) - 100).abs().max()) <= 0.1:
        hint = "these look like percentages: divide them by 100"
    elif low < 0:
        hint = "if these are logits, pass their softmax"
    what = f"predictions range from {low:g} to {high:g}, and rows miss a sum of one by up to {off:g}"
    raise DataError(f"{what}; {hint}")

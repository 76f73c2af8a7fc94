"""A diagnosis as lines for people and as columns for tables."""

import math
from typing import Any

import torch

from apportion.bags.bags import Bags
from apportion.models import Model
from apportion.selection.diagnosis import Diagnosis

ANYTHING = 0.9  # an interval of the accuracy as wide as this tells nothing


def report(found: Diagnosis, which: str) -> list[str]:
    """Lines for people."""
    errors, margins = found.bag_errors, found.margins
    worst = torch.quantile(errors, torch.tensor([0.5, 0.95], dtype=errors.dtype)).tolist()
    compared, narrow = _compared(found), float((margins < 0.1).double().mean())
    return [
        *found.reasons,
        f"judged on: {which}",
        f"spread of the bags' shares: {found.spread:.3g} times that of random bags ({compared})",
        f"bag correlation: {found.correlation:.3f}; shuffled shares reach {found.critical_correlation:.3f}, "
        f"p = {found.p_value:.4f}",
        f"accuracy, estimated: {_estimate(found)}; naming the largest class for all: "
        f"{100 * found.largest_class:.1f} %",
        f"share of a bag that is misplaced: {float(errors.mean()):.4f} on average, {worst[0]:.4f} in the "
        f"middle bag, more than {worst[1]:.4f} in one of twenty",
        f"labels by transport agree with the most probable class: {100 * found.agreement:.1f} %",
        f"entropy of predictions: {100 * found.entropy:.1f} % of a uniform one's",
        f"labels by transport with a margin below 0.1 nats: {100 * narrow:.1f} %",
    ]


def _estimate(found: Diagnosis) -> str:
    if math.isnan(found.accuracy) or (
        not found.noisy and found.accuracy_high - found.accuracy_low >= ANYTHING
    ):
        return "cannot be told from these bags"
    ends = f"{100 * found.accuracy_low:.1f} to {100 * found.accuracy_high:.1f} %"
    return f"{100 * found.accuracy:.1f} % ({'no interval: the shares are noisy' if found.noisy else ends})"


def _compared(found: Diagnosis) -> str:
    if found.noisy:
        return "once their noise is taken off, which tells nothing of chance"
    if found.spread > 1 + found.spread_tolerance:
        return "more than chance: they differ for a reason"
    return "as chance makes it" if found.spread >= 1 - found.spread_tolerance else "less than chance"


def by_bag(found: Diagnosis, bags: Bags) -> dict[str, Any]:
    """Columns with a row a bag."""
    return {"bag": list(bags.ids), "rows": bags.sizes.numpy(), "misplaced": found.bag_errors.numpy()}


def by_row(found: Diagnosis, bags: Bags, model: Model) -> dict[str, Any]:
    """Columns with a row an instance, in the order of the table, whose rows count from one."""
    order = bags.source.argsort()
    bag = torch.repeat_interleave(torch.arange(len(bags.ids)), bags.sizes)[order]
    return {
        "row": (bags.source[order] + 1).numpy(),
        "bag": [bags.ids[i] for i in bag.tolist()],
        "class": [model.classes[i] for i in found.classes[order].tolist()],
        "margin": found.margins[order].numpy(),
    }

"""From a model and a table with the shares of its bags to a diagnosis."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from apportion.bags import Bags
from apportion.devices import device_for
from apportion.evaluate import predict
from apportion.fitting import SettingError
from apportion.fitting.crossfit import unseen_log_probs
from apportion.intake.instances import as_floats
from apportion.intake.mending import known_bags
from apportion.intake.weights import Relax
from apportion.judging.diagnosis import Diagnosis, diagnosis_of
from apportion.judging.verdict import LEAST_BAGS
from apportion.models import Model
from apportion.tables.asking import Asked, Found
from apportion.tables.checking import refuse
from apportion.tables.columns import TableError
from apportion.tables.holding import hold_parts
from apportion.tables.reading import open_table
from apportion.tabular.fit import checked
from apportion.tabular.seen import held_out_of, learnt_from
from apportion.tabular.told import columns_of, name_spoilt, settings_of

ANYTHING = 0.9  # an interval of the accuracy as wide as this tells nothing


def bags_for(model: Model, asked: Sequence[Asked], found: Sequence[Found]) -> tuple[Bags, list[Bags]]:
    """The bags of a table as the model sees them, and those of further groupings, without their instances."""
    columns, names, classes = columns_of(model), [str(name) for name in model.classes], found[0].classes
    if sorted(names) != sorted(classes):
        told = f"the table has shares of {', '.join(classes)}, the model knows {', '.join(names)}"
        raise TableError(f"{told}; name the model's classes with --classes")
    places, others, table = [classes.index(name) for name in names], list[Bags](), asked[0]
    frame = open_table(table.table, texts=table.texts, missing=table.missing)
    problems: list[str] = []
    for column in columns:
        name_spoilt([column], frame.select(column.name).collect(), 0, table.table.name, problems)
    refuse(Found(problems))

    def first(groupings: list[Bags]) -> list[Bags]:
        made = [replace(each, proportions=each.proportions[:, places]) for each in groupings]
        others.extend(made[1:])
        return made[:1]

    (bags,), _ = hold_parts(asked, found, first, columns)
    return bags, others


def judged(
    model: Model, bags: Bags, *, folds: int, new: bool, device: str = "auto", relax: Relax = math.inf,
    verbose: bool = False,
) -> tuple[Diagnosis, Bags, str]:  # fmt: skip
    """The diagnosis, the bags it is of, and which these are, in words."""
    noisy, left_out = relax != math.inf, _left_out(model, bags)
    seed = settings_of(model).get("seed", 0)
    held = None if new else held_out_of(model.facts, bags, seed)
    if new and learnt_from(model.facts, bags, seed):
        raise SettingError("these are the bags that the model learnt from, not new ones; leave --new out")
    held, bags = None if held is None else known_bags(held), known_bags(bags)
    if held is not None and len(held.sizes) >= LEAST_BAGS:
        which = f"{len(held.sizes)} bags that were held out when the model was trained"
        return diagnosis_of(_log_probs(model, held), held, noisy=noisy), held, which
    if new:
        which = f"{len(bags.sizes)} bags that are new to the model"
        return diagnosis_of(_log_probs(model, bags), bags, noisy=noisy), bags, which
    if len(bags.sizes) < LEAST_BAGS or float(bags.proportions.std(0).max()) < 1e-6:
        which = f"{len(bags.sizes)} bags that the model has learnt from"  # no network could say more
        return diagnosis_of(_log_probs(model, bags), bags, noisy=noisy), bags, which
    if folds > len(bags.sizes):
        raise SettingError(
            f"--folds is {folds}, but there are {len(bags.sizes)} bags; pass no more than that"
        )
    known = settings_of(model)
    placed = bags.to(device_for(device, bags.x))
    log_probs = unseen_log_probs(placed, checked(known) | {"relax": relax}, folds, seed, verbose)
    which = f"{len(bags.sizes)} bags, each by one of {folds} networks trained alike on other bags{left_out}"
    return diagnosis_of(log_probs, bags, noisy=noisy, crossed=True), bags, which


def _left_out(model: Model, bags: Bags) -> str:
    """What the model may have learnt from and networks that judge in its place have not, in words."""
    gaps = len(bags.sizes) - len(known_bags(bags).sizes)
    parts = [f"the {gaps} bags that have no proportions"] if gaps else []
    parts += ["the labels that were given"] if model.facts.given else []
    parts += ["the bags of its other groupings"] if model.facts.groupings > 1 else []
    return f", but without {' and '.join(parts)}: the model itself is not judged" if parts else ""


def _log_probs(model: Model, bags: Bags) -> Tensor:
    return predict(model.network, bags.x, as_floats)


def report(found: Diagnosis, which: str) -> list[str]:
    """Lines for people."""
    errors, margins = found.errors, found.margins
    worst = torch.quantile(errors, torch.tensor([0.5, 0.95], dtype=errors.dtype)).tolist()
    compared, narrow = _compared(found), float((margins < 0.1).double().mean())
    return [
        *found.words,
        f"judged on: {which}",
        f"spread of the bags' shares: {found.spread:.3g} times that of random bags ({compared})",
        f"bag correlation: {found.correlation:.3f}; shuffled shares reach {found.shuffled:.3f}, "
        f"p = {found.p_value:.4f}",
        f"accuracy, estimated: {_estimate(found)}; naming the largest class for all: "
        f"{100 * found.largest:.1f} %",
        f"share of a bag that is misplaced: {float(errors.mean()):.4f} on average, {worst[0]:.4f} in the "
        f"middle bag, more than {worst[1]:.4f} in one of twenty",
        f"labels by transport agree with the most probable class: {100 * found.agreement:.1f} %",
        f"entropy of predictions: {100 * found.entropy:.1f} % of a uniform one's",
        f"labels by transport with a margin below 0.1 nats: {100 * narrow:.1f} %",
    ]


def _estimate(found: Diagnosis) -> str:
    if math.isnan(found.accuracy) or (not found.noisy and found.high - found.low >= ANYTHING):
        return "cannot be told from these bags"
    ends = f"{100 * found.low:.1f} to {100 * found.high:.1f} %"
    return f"{100 * found.accuracy:.1f} % ({'no interval: the shares are noisy' if found.noisy else ends})"


def _compared(found: Diagnosis) -> str:
    if found.noisy:
        return "once their noise is taken off, which tells nothing of chance"
    if found.spread > 1 + found.chance:
        return "more than chance: they differ for a reason"
    return "as chance makes it" if found.spread >= 1 - found.chance else "less than chance"


def by_bag(found: Diagnosis, bags: Bags) -> dict[str, Any]:
    """Columns with a row a bag."""
    return {"bag": list(bags.ids), "rows": bags.sizes.numpy(), "misplaced": found.errors.numpy()}


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

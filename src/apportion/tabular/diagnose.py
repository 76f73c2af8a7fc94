"""From a model and a table with the shares of its bags to a diagnosis."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from apportion._device import resolve_device
from apportion.bags.arrays import as_floats
from apportion.bags.bags import Bags
from apportion.errors import DataError, SettingsError
from apportion.evaluate import predict_log_proba_on
from apportion.fitting import two_stages
from apportion.intake.weights import Relax
from apportion.models import Model
from apportion.selection.crossfit import out_of_fold_log_proba
from apportion.selection.diagnosis import MIN_BAGS, Diagnosis, diagnose_bags
from apportion.tables.asking import Asked, Found
from apportion.tables.checking import refuse
from apportion.tables.holding import hold_parts
from apportion.tables.reading import open_table
from apportion.tabular.fit import checked
from apportion.tabular.seen import held_out_of, learnt_from
from apportion.tabular.told import columns_of, name_spoilt, settings_of


def bags_for(model: Model, asked: Sequence[Asked], found: Sequence[Found]) -> tuple[Bags, list[Bags]]:
    """The bags of a table as the model sees them, and those of further groupings, without their instances."""
    columns, names, classes = columns_of(model), [str(name) for name in model.classes], found[0].classes
    if sorted(names) != sorted(classes):
        told = f"the table has shares of {', '.join(classes)}, the model knows {', '.join(names)}"
        raise DataError(f"{told}; name the model's classes with --classes")
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
    noisy, at = relax != math.inf, _place(model, bags, device)
    left_out = _left_out(model, bags, at)
    seed = settings_of(model).get("seed", 0)
    held = None if new else held_out_of(model.facts, bags, seed)
    if new and learnt_from(model.facts, bags, seed):
        raise SettingsError("these are the bags that the model learned from, not new ones; leave --new out")
    held, bags = None if held is None else held.known(), bags.known()
    if held is not None and len(held.sizes) >= MIN_BAGS:
        which = f"{len(held.sizes)} bags that were held out when the model was trained"
        return diagnose_bags(_log_probs(model, held, at), held, noisy=noisy), held, which
    if new:
        which = f"{len(bags.sizes)} bags that are new to the model"
        return diagnose_bags(_log_probs(model, bags, at), bags, noisy=noisy), bags, which
    if len(bags.sizes) < MIN_BAGS or float(bags.proportions.std(0).max()) < 1e-6:
        which = f"{len(bags.sizes)} bags that the model has learned from"  # no network could say more
        return diagnose_bags(_log_probs(model, bags, at), bags, noisy=noisy), bags, which
    if folds > len(bags.sizes):
        raise SettingsError(
            f"--folds is {folds}, but there are {len(bags.sizes)} bags; pass no more than that"
        )
    fit = partial(two_stages, **checked(settings_of(model)), relax=relax)
    log_probs = out_of_fold_log_proba(bags.to(at), fit, folds, seed, verbose)
    which = f"{len(bags.sizes)} bags, each by one of {folds} networks trained alike on other bags{left_out}"
    return diagnose_bags(log_probs, bags, noisy=noisy, cross_validated=True), bags, which


def _place(model: Model, bags: Bags, device: str) -> torch.device:
    """Where networks are trained and asked: unless it is named, the CPU for a model of the CPU, since images
    are learned otherwise on a GPU."""
    return resolve_device("cpu" if device == "auto" and model.facts.device == "cpu" else device, bags.x)


def _left_out(model: Model, bags: Bags, at: torch.device) -> str:
    """What the model may have learned from and networks that judge in its place have not, in words."""
    gaps = len(bags.sizes) - len(bags.known().sizes)
    parts = [f"the {gaps} bags that have no proportions"] if gaps else []
    parts += ["the labels that were given"] if model.facts.given else []
    parts += ["the bags of its other groupings"] if model.facts.groupings > 1 else []
    moved = model.facts.bytes and model.facts.device and (model.facts.device == "cpu") != (at.type == "cpu")
    parts += [f"the settings of its device, {model.facts.device}"] if moved else []
    return f", but without {' and '.join(parts)}: the model itself is not judged" if parts else ""


def _log_probs(model: Model, bags: Bags, at: torch.device) -> Tensor:
    return predict_log_proba_on(at, model.network, bags.x, as_floats)

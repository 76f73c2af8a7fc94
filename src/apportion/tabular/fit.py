"""From the bags of a table to a model with its card."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from apportion._device import catch_out_of_memory, resolve_device
from apportion.bags.bags import Bags
from apportion.fitting import stage_settings, two_stages
from apportion.fitting.auto import told
from apportion.intake.weights import Relax
from apportion.models import Facts, Model, named
from apportion.pipeline import EpochState
from apportion.selection.epochs import EpochSelector, check_selection
from apportion.tables.asking import Asked, Found
from apportion.tables.columns import Column
from apportion.tabular.cards import data_of, quality_of
from apportion.tabular.seen import names_of, sums_of

DEFAULTS: Mapping[str, Any] = {
    "first_stage": "dllp",
    "second_stage": "plot",
    "backbone": "mlp",
    "labels": "soft",
    "reg": 1.0,
    "first_epochs": None,
    "second_epochs": None,
    "rate": 2e-3,
    "second_rate": 1e-3,
    "batch_size": None,
    "seed": 0,
    "held_out": 0.0,
    "choose": None,
    "calibrate": False,
}  # as ProportionClassifier has them for rows
BY_KIND = ("first_stage", "second_stage", "backbone", "labels")
OF_IMAGES: Mapping[str, Any] = {
    **DEFAULTS, **dict.fromkeys(BY_KIND, "auto"), "rate": None, "second_rate": None, "mirror": True
}  # fmt: skip


def train_table(
    bags: Bags, device: str, settings: Mapping[str, Any], relax: Relax = math.inf
) -> Iterator[EpochState]:
    """Both stages on the bags of a table, a moment after every epoch."""
    at = resolve_device(device, bags.x)
    with catch_out_of_memory(bags.x, at):
        yield from two_stages(bags.to(at), **checked(settings), relax=relax)


def settled(given: Mapping[str, Any], images: bool, device: str) -> dict[str, Any]:
    """All settings: what was given, and for the rest what goes with rows, or with images on this device."""
    if not images:
        return dict(DEFAULTS) | dict(given)
    image = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    return told(dict(OF_IMAGES) | dict(given), image, resolve_device(device, image))


def checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What both stages are told; words and numbers that cannot be are an error."""
    said = dict(DEFAULTS) | dict(settings)
    check_selection(*(said.pop(name) for name in ("held_out", "choose", "calibrate")))
    return stage_settings(**said)


def model_of(
    chosen: EpochSelector,
    trained: tuple[Bags, Bags | None],
    columns: tuple[Column, ...],
    questions: Sequence[Asked],
    found: Found,
    settings: Mapping[str, Any],
    device: str,
) -> Model:
    """The model of the chosen epoch, with what its card tells."""
    (bags, held), asked, at = trained, questions[0], resolve_device(device, trained[0].x)
    said = dict(DEFAULTS) | dict(settings)
    name, options = named(said["backbone"])
    network, temperature = chosen.best_network(said["calibrate"])
    quality = quality_of(network, bags, "training bags", at)
    quality |= {} if held is None else quality_of(network, held, "held-out bags", at)
    if chosen.select_by is not None:
        quality["chosen epoch"] = f"{chosen.epoch} of the {chosen.stage} stage, by {chosen.select_by}"
    if said["calibrate"]:
        quality["temperature"] = temperature
    facts = Facts(
        len(bags.source.unique()),
        len(bags.sizes),
        sums_of(bags, held, len(questions)),
        0 if held is None else len(held.sizes),
        "" if held is None else names_of(held),
        groupings=len(questions),
        given=bool(asked.given),
        bytes=bool(asked.image),
        second_stage=said["second_stage"] is not None,
        stage=chosen.stage,
        epoch=chosen.epoch,
        first_optimizer=chosen.optimizers.get("first", ""),
        second_optimizer=chosen.optimizers.get("second", ""),
        device=at.type,
        temperature=temperature,
    )
    return Model(
        network,
        name,
        tuple(bags.x.shape[1:]),
        found.classes,
        options,
        columns=columns,
        facts=facts,
        settings=said | {"backbone": name, "missing": list(asked.missing)},
        data=data_of(bags, held, questions, found),
        quality=quality,
    )

"""From the bags of a table to a model with its card."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from apportion.bags import Bags
from apportion.evaluate import bag_correlation, predict, proportion_error
from apportion.fitting import stage_settings, two_stages
from apportion.fitting.auto import told
from apportion.intake.instances import as_floats
from apportion.intake.mending import known_bags
from apportion.intake.weights import Relax
from apportion.judging.choosing import Chosen, check_choice
from apportion.judging.verdict import LEAST_BAGS
from apportion.means import exact_means
from apportion.models import Facts, Model, named
from apportion.pipeline import Moment
from apportion.speed import pick_device
from apportion.tables.asking import Asked, Found
from apportion.tables.columns import Column
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
    "instances_per_batch": None,
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
) -> Iterator[Moment]:
    """Both stages on the bags of a table, a moment after every epoch."""
    return two_stages(bags.to(pick_device(device)), **checked(settings), relax=relax)


def settled(given: Mapping[str, Any], images: bool, device: str) -> dict[str, Any]:
    """All settings: what was given, and for the rest what goes with rows, or with images on this device."""
    if not images:
        return dict(DEFAULTS) | dict(given)
    return told(
        dict(OF_IMAGES) | dict(given), torch.zeros(1, 3, 8, 8, dtype=torch.uint8), pick_device(device)
    )


def checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What both stages are told; words and numbers that cannot be are an error."""
    said = dict(DEFAULTS) | dict(settings)
    check_choice(*(said.pop(name) for name in ("held_out", "choose", "calibrate")))
    return stage_settings(**said)


def model_of(
    chosen: Chosen,
    trained: tuple[Bags, Bags | None],
    columns: tuple[Column, ...],
    questions: Sequence[Asked],
    found: Found,
    settings: Mapping[str, Any],
) -> Model:
    """The model of the chosen epoch, with what its card tells."""
    (bags, held), asked = trained, questions[0]
    said = dict(DEFAULTS) | dict(settings)
    name, options = named(said["backbone"])
    network, temperature = chosen.network(said["calibrate"])
    quality = _quality(network, bags, "training bags")
    if held is not None:
        quality |= _quality(network, held, "held-out bags")
    if chosen.choose is not None:
        quality["chosen epoch"] = f"{chosen.epoch} of the {chosen.stage} stage, by {chosen.choose}"
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
        data=_data(bags, held, questions, found),
        quality=quality,
    )


def _data(bags: Bags, held: Bags | None, questions: Sequence[Asked], found: Found) -> dict[str, Any]:
    """What it learnt from, for people."""
    asked, files = questions[0], [(each.proportions or each.counts or each.table).name for each in questions]
    shares = zip(found.classes, known_bags(bags).overall.tolist(), strict=True)
    data = {
        "table": asked.table.name,
        "rows": len(bags.source.unique()),
        "bags": len(bags.sizes),
        "bags by": ", ".join(each.bag for each in questions),
        "held-out bags": 0 if held is None else len(held.sizes),
        "smallest and largest bag": f"{int(bags.sizes.min())}, {int(bags.sizes.max())}",
        "shares from": ", ".join(files),
        "overall shares": ", ".join(f"{name} {share:.4f}" for name, share in shares),
    }
    unknown = len(bags.sizes) - len(known_bags(bags).sizes)
    data |= {"bags without shares": unknown} if unknown else {}
    taken = {f"noise of {each.bag}": each.noise for each in questions if each.noise}
    taken |= {name: "yes" for name in ("normalise", "fill") if getattr(asked, name)}
    return data | taken | ({"given labels": f"column {asked.given}"} if asked.given else {})


def _quality(network: torch.nn.Module, bags: Bags, which: str) -> dict[str, Any]:
    bags = known_bags(bags)
    x, known = bags.x.cpu(), bags.proportions.cpu()
    log_probs = predict(network, x, as_floats)
    found: Any = f"– ({len(known)} bags are too few to tell it)"  # of two and two classes it is 1 or -1
    if len(known) >= LEAST_BAGS:
        found = bag_correlation(exact_means(log_probs.exp(), bags.sizes), known)  # None: all are alike
    error = proportion_error(log_probs, bags.sizes, known)
    return {f"share of a bag that is misplaced, {which}": error, f"bag correlation, {which}": found}

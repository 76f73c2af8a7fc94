"""What a model was told when it was trained, which may be a stranger's words: checked before it is used."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from apportion.errors import DataError, ModelError, SettingsError
from apportion.models import Model
from apportion.networks import NETWORKS
from apportion.tables.asking import SHOWN, Asked, told
from apportion.tables.columns import Column, is_text
from apportion.tables.reading import open_table, pl
from apportion.tables.transforms import spoilt
from apportion.tabular.fit import DEFAULTS, checked

LONGEST = 100_000  # epochs of a stage that networks are trained alike for
WORDS = ("first_stage", "second_stage", "backbone", "labels", "choose")


def columns_of(model: Model) -> tuple[Column, ...]:
    if model.columns is None:
        raise ModelError("the model takes arrays, not tables; use apportion.load and predict_proba")
    return model.columns


def missing_of(model: Model) -> tuple[str, ...]:
    """The texts of a CSV that meant missing in training."""
    texts = model.settings.get("missing", [])
    if not isinstance(texts, list) or not all(map(is_text, texts)):
        raise ModelError(f"the model's texts for missing values are {texts!r}; these are a list of texts")
    return tuple(texts)


def settings_of(model: Model) -> dict[str, Any]:
    """The settings of both stages; what no training was told is an error."""
    said = {name: model.settings[name] for name in (*DEFAULTS, "mirror") if name in model.settings}
    try:
        for name in (name for name in WORDS if not isinstance(said.get(name), str | None)):
            raise SettingsError(f"{name} is {said[name]!r}, which is no word")
        seed, share = said.get("seed", 0), said.get("held_out", 0.0)
        if type(seed) is not int or not -(1 << 63) <= seed < 1 << 63 or not isinstance(share, int | float):
            raise SettingsError(f"seed and held_out are {seed!r} and {share!r}; these are numbers")
        checked(said)
        for name in ("first_epochs", "second_epochs"):
            if (said.get(name) or 0) > LONGEST:
                raise SettingsError(f"{name} is {said[name]}; more than {LONGEST} are not trained again")
    except (SettingsError, DataError, OverflowError) as problem:
        raise ModelError(f"no network can be trained as the model was: {problem}") from None
    options = {
        key: tuple(value) if isinstance(value, list) else value for key, value in model.options.items()
    }
    return said | ({"backbone": partial(NETWORKS[model.backbone], **options)} if options else {})


def asked_for(model: Model, asked: Asked) -> Asked:
    """The question about a table, which is read as the model's own table was: its columns and no others."""
    columns = {column.name: column for column in columns_of(model)}
    missing = tuple(dict.fromkeys((*missing_of(model), *asked.missing)))
    table = open_table(asked.table, texts=None).collect_schema().names()
    there = [name for name in table if name not in asked.drop]
    lost = [name for name in columns if name not in there]
    if lost:
        what = f"{asked.table.name} has no column {', '.join(map(repr, lost))}, which the model takes"
        raise DataError(f"{what}; it has {', '.join(map(repr, there[:20]))}")
    others = {name for name in table if name not in columns}
    others -= {asked.bag, *asked.beside, asked.given, *asked.shares}
    texts = tuple(name for name, column in columns.items() if column.kind == "category")
    asked = replace(asked, drop=tuple(sorted(others)), categorical=texts, missing=missing)
    for column in (column for column in columns.values() if column.kind == "image"):
        asked = replace(asked, image=column.name, pixels=column.shape[1] if column.flag else 0)
    return asked


def name_spoilt(
    columns: Sequence[Column], rows: pl.DataFrame, at: int, place: str, problems: list[str]
) -> None:
    """Values that are not of the kind that the model takes there, row by row; `at` rows came before these."""
    for column in columns:
        values = rows[column.name]
        bad = spoilt(values, column.kind)
        if len(bad):
            cases = (
                f"{place}, row {at + i + 1}, column {column.name!r}, has {values[i]!r}"
                for i in bad[:SHOWN].tolist()
            )
            problems.append(told(cases, len(bad), f"give a {column.kind}, or leave it empty"))

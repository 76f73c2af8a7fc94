"""The card of a model: what it learned from and how, how well it agrees with the bags, what it is not for."""

import re
from collections.abc import Mapping
from typing import Any

_QUALITY = """\
Of whole bags only: the classes of individuals are not known. A small error shows that the shares are met, not
that individuals are told apart; a correlation near one says more, and neither is a proof.
"""
_PRIVACY = """\
This model gives every individual a class, or the probability of one, that was published only for whole
groups. Such a prediction is a statement about a person that nobody asked that person about, and it can be
wrong: the model has never seen the class of a single individual. Do not take it for a fact about someone, do
not publish it beside names, and ask, before you use it, whether those who published the shares meant to let
individuals be told apart. The weights and the lists of categories come from the training rows; where a
category is rare, its name alone may point at someone.
"""


def card(values: Mapping[str, Any]) -> str:
    """README.md of a model's folder, from what its config.json holds."""
    classes = _plain(", ".join(map(str, values["classes"])))
    title = f"# A classifier of {classes}, learned from the shares of groups"
    return "\n".join(
        [
            title, "",
            f"Made by apportion {values['apportion']} with torch {values['torch']}. `config.json` has all "
            "that is said here and the fitted transforms, `model.safetensors` the weights.", "",
            "## Data", "", *_table(values["data"]), "",
            *_columns(values["columns"]),
            "## Method", "", _method(values), "", *_table(_settings(values)), "",
            "## Quality", "",
            _QUALITY,
            *_table(values["quality"], "cannot be told: all bags have the same shares"), "",
            "## Privacy", "", _PRIVACY,
            "## Use", "", "```", _use(values), "```", "",
        ]
    )  # fmt: skip


def _method(values: Mapping[str, Any]) -> str:
    facts = values["facts"]
    known = facts["first_optimizer"], facts["second_optimizer"]
    by, then = (f" ({_plain(words)})" if words else "" for words in known)
    later = facts["second_stage"] and facts["stage"] != "first"
    after = f", then a new network on labels that meet every bag's shares{then}" if later else ""
    return f"A network `{values['backbone']}` learned the shares of the bags{by}{after}. Settings:"


def _settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """What None means depends on the setting."""
    sized = ("first_epochs", "second_epochs", "batch_size")
    said = dict.fromkeys(sized, "by the sizes of the bags")
    said |= dict.fromkeys(("rate", "second_rate"), "by the kind of instances")
    return {
        name: said.get(name, "none") if value is None else value for name, value in values["settings"].items()
    }


def _columns(columns: list[dict[str, Any]] | None) -> list[str]:
    if columns is None:
        return []
    lines = [f"| {_plain(c['name'])} | {c['kind']} | {_about(c)} |" for c in columns]
    return ["| column | taken as | fitted on the training rows |", "| --- | --- | --- |", *lines, ""]


def _about(column: Mapping[str, Any]) -> str:
    flag = "; has missing values" if column["flag"] else ""
    if column["kind"] == "image":
        resized = "resized to " if column["flag"] else ""
        return f"a file, {resized}{' × '.join(map(str, column['shape'][1:]))} pixels, " + (
            "gray" if column["shape"][0] == 1 else "in color"
        )
    if column["kind"] == "category":
        return f"{len(column['categories'])} categories and 'other'{flag}"
    if column["kind"] == "boolean":
        return f"missing is {'true' if column['fill'] else 'false'}{flag}"
    return f"mean {column['mean']:.6g}, scale {column['scale']:.6g}, missing is {column['fill']:.6g}{flag}"


def _table(values: Mapping[str, Any], nothing: str = "none") -> list[str]:
    if not values:
        return ["Nothing was recorded."]
    lines = [f"| {_plain(name)} | {_plain(_text(value, nothing))} |" for name, value in values.items()]
    return ["| | |", "| --- | --- |", *lines]


def _text(value: Any, nothing: str) -> str:
    if isinstance(value, list):
        return ", ".join(map(repr, value)) or "none"
    return nothing if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _plain(text: Any) -> str:
    """One line that starts no table, no tag and no other thing of Markdown's."""
    return re.sub(r"([|<>`\\])", r"\\\1", " ".join(str(text).split()))


def _use(values: Mapping[str, Any]) -> str:
    if values["columns"] is None:
        return 'apportion.load("this folder").predict_proba(X)'
    return "apportion predict THIS_FOLDER new.parquet --out scored.parquet"

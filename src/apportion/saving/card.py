"""The card of a model: what it learned from and how, how well it fits the bags, and what it is not for."""

import re
from collections.abc import Mapping
from typing import Any

_QUALITY = """\
These figures are about whole bags, since the classes of individuals are not known. A small proportion error
shows that the model reproduces the proportions, not that it tells individuals apart. A bag correlation near
one is stronger evidence. Neither is a proof.
"""
PRIVACY = """\
This model assigns classes, or probabilities of classes, to individuals, although only the proportions of
whole groups were published. Each prediction is a statement about a person who was never asked, and it may be
wrong: the model has never seen the class of a single individual. Do not treat predictions as facts, do not
publish them next to names, and find out before you use them whether those who published the proportions meant
individuals to be told apart. The weights and the lists of categories come from the training data. If a
category is rare, its name alone may point to a person.
"""


def card(values: Mapping[str, Any]) -> str:
    """README.md of a model folder, from what its model.json holds."""
    classes = _plain(", ".join(map(str, values["classes"])))
    made = f"Made by apportion {values['apportion']} with torch {values['torch']}."
    files = "`model.json` holds everything on this card and more, `model.safetensors` the weights."
    about = values["about"]
    rows = {"rows": values["fit"]["rows"]}
    sections = [
        f"# A classifier of {classes}, learned from proportions",
        f"{made} {files}",
        "## Data",
        _table(rows | about["data"]),
        *_columns(values["encoder"]),
        "## Method",
        _method(values),
        _table(_parameters(values["parameters"] | values["fit"]["resolved"])),
        "## Quality",
        _QUALITY.strip(),
        _table(about["quality"], missing="not defined: all bags have the same proportions"),
        _shares(values),
        "## Privacy",
        PRIVACY.strip(),
        "## Use",
        _use(values),
    ]
    return "\n\n".join(sections) + "\n"


def _method(values: Mapping[str, Any]) -> str:
    fit = values["fit"]
    first, second = (
        f" ({_plain(fit['optimizers'][stage])})" if stage in fit["optimizers"] else ""
        for stage in ("first", "second")
    )
    network = f"A model `{values['network']['name']}` learned the proportions of the bags{first}"
    if fit["stage"] == "second":
        network += f". A second one then learned labels that match the proportions of every bag{second}"
    return f"{network}. The parameters of `ProportionClassifier`:"


def _shares(values: Mapping[str, Any]) -> str:
    """Known and predicted shares of the classes, and those that are never predicted."""
    fit = values["fit"]
    lines = ["| class | known share | most probable class of |", "| --- | --- | --- |"]
    for name, known, predicted in zip(
        values["classes"], fit["class_shares"], fit["predicted_shares"], strict=True
    ):
        lines.append(f"| {_plain(name)} | {100 * known:.3g} % | {100 * predicted:.3g} % of the rows |")
    table = "\n".join(lines)
    if not fit["never_predicted"]:
        return table
    sentence = f'{fit["never_predicted"]}. Predictions in the known shares: `decide="shares"`.'
    return f"{table}\n\n{_plain(sentence[0].upper() + sentence[1:])}"


def _parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """What None means depends on the parameter."""
    off = ("pseudo_labels", "select_by")
    return {
        name: ("none" if name in off else "default") if value is None else value
        for name, value in parameters.items()
    }


def _columns(encoder: Mapping[str, Any] | None) -> list[str]:
    """How columns of a table become features."""
    if encoder is None:
        return []
    lines = ["| column | kind | learned from the training rows |", "| --- | --- | --- |"]
    for column in encoder["columns"]:
        lines.append(f"| {_plain(column['name'])} | {column['kind']} | {_learned(column)} |")
    return ["\n".join(lines)]


def _learned(column: Mapping[str, Any]) -> str:
    flag = "; has missing values" if column["indicator"] else ""
    if column["kind"] == "category":
        return f"{len(column['categories'])} categories and 'other'{flag}"
    if column["kind"] == "boolean":
        return f"missing counts as {'true' if column['fill'] else 'false'}{flag}"
    mean, scale, fill = (f"{column[key]:.6g}" for key in ("mean", "scale", "fill"))
    if column["kind"] == "number" and not column["bounded"]:
        return f"0 for {mean}, 1 for {mean} + {scale}, missing counts as {fill}{flag}"
    return f"mean {mean}, standard deviation {scale}, missing counts as {fill}{flag}"


def _table(values: Mapping[str, Any], missing: str = "none") -> str:
    if not values:
        return "Nothing was recorded."
    lines = ["| | |", "| --- | --- |"]
    for name, value in values.items():
        lines.append(f"| {_plain(name)} | {_plain(_text(value, missing))} |")
    return "\n".join(lines)


def _text(value: Any, missing: str) -> str:
    if value is None:
        return missing
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _plain(text: Any) -> str:
    """One line in which nothing starts a table, a tag or other Markdown."""
    return re.sub(r"([|<>`\\*\[\]])", r"\\\1", " ".join(str(text).split()))


def _use(values: Mapping[str, Any]) -> str:
    python = 'apportion.load("this folder").predict_proba(X)'
    lines = ["```python", python, "```"]
    encoder = values["encoder"]
    if (encoder is not None and encoder["named"]) or values["about"]["image"] is not None:
        lines += ["", "```", "apportion predict THIS_FOLDER new.parquet --out scored.parquet", "```"]
    return "\n".join(lines)

"""One self-contained HTML page about a saved model: the answer first, then the evidence.

The numbers are those of the model, of `apportion diagnose` and of `apportion tabulate`. Names of columns,
classes and bags are data: they are escaped, or go into the page as JSON.
"""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from apportion._untrusted import NUMBER, check_json, printable
from apportion.errors import ModelError
from apportion.estimator import ProportionClassifier
from apportion.report.colors import class_colors
from apportion.report.model_evidence import ModelEvidence, PredictedBags
from apportion.report.page import render_page
from apportion.saving.card import PRIVACY
from apportion.selection.calibration import reliability_bins
from apportion.selection.diagnosis import Diagnosis, has_estimate, outward, proportion_errors
from apportion.tables.diagnose import describe_diagnosis
from apportion.tables.importance import MOST_CLASSES, tree_importances, trees_of
from apportion.tables.predict import about_of, columns_of

MOST_POINTS = 6000  # bags times classes in the chart of bags
MOST_CLASSES_SHOWN = 12  # in charts; the most common ones
MOST_GROUPS_DRAWN = 40
MOST_CELLS = 600  # rows of a table by group
MOST_COLUMNS_SHOWN = 40
MOST_HISTORY = 20_000  # numbers of the curves of training
WORST_BAGS = 12
LITTLE = 0.01  # of the largest importance of a column
MUCH_DISPERSION = 1.5  # counts vary so many times as much as chance explains
FAR = 2.0  # standard deviations
FAR_BY_CHANCE = math.erfc(FAR / math.sqrt(2))

_WORD = (str, *NUMBER, bool, None)
_SELECTION = {
    "candidates": {"*": {"weight": NUMBER, "score?": NUMBER, "*": _WORD}},
    "held_out_bags": int,
    "score?": NUMBER,
    "score_of_overall_shares?": NUMBER,
    "temperature": NUMBER,
}
METHODS_IN_WORDS = {
    "average": "the average of a linear model, boosted trees and a network",
    "linear": "a linear model",
    "trees": "boosted trees",
    "mlp": "a network",
}


def model_page(folder: Path, classifier: ProportionClassifier, evidence: ModelEvidence | None = None) -> str:
    """The text of the page: of the model folder alone, or with the evidence of a table."""
    name = printable(folder.resolve().name, 80)
    return render_page("model", name, model_contents(folder, classifier, evidence))


def model_contents(
    folder: Path, classifier: ProportionClassifier, evidence: ModelEvidence | None = None
) -> dict[str, Any]:
    """Everything that the page shows, as JSON values."""
    diagnosis = None if evidence is None else evidence.diagnosis
    contents = {
        "summary": summary(classifier, evidence),
        "verdict": headline(diagnosis),
        "command": None if diagnosis is not None else command_with_table(folder, classifier, evidence),
        "accuracy": None if diagnosis is None else accuracy_contents(diagnosis),
        "classes": class_contents(classifier),
        "colors": class_colors([printable(name, 60) for name in classifier.classes_]),
        "never_predicted": classifier.never_predicted_,
        "tables": [] if evidence is None else table_contents(evidence, unused_columns(classifier, evidence)),
        "with_intervals": evidence is not None and any_interval(evidence),
        "no_support": "" if evidence is None else evidence.no_support,
        "level": 0.9 if evidence is None else evidence.level,
        "diagnosis": None if evidence is None else diagnosis_contents(evidence),
        "bags": None if evidence is None else bags_contents(evidence),
        "calibration": calibration_contents(evidence),
        "importances": importance_contents(classifier, evidence),
        "data": data_contents(classifier),
        "columns": column_contents(classifier),
        "selection": selection_contents(folder, classifier),
        "fit": fit_contents(classifier),
        "history": history_contents(classifier.history_),
        "privacy": " ".join(PRIVACY.split()),
    }
    return _finite(contents)


def _finite(value: Any) -> Any:
    """The value with None for numbers that JSON cannot hold."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- the answer


def summary(classifier: ProportionClassifier, evidence: ModelEvidence | None) -> list[str]:
    """Two or three sentences: what is predicted, learned from what, and what can be known about it."""
    about = about_of(classifier)
    bags = f"{about.bags:,} bags" if about.bags else "bags"
    learned = f"It learned from {classifier.n_rows_:,} rows in {bags}"
    if about.held_out:
        learned += f" ({about.held_out:,} more were held out)"
    labels = (
        "the class of a single row only for a few"
        if about.known_labels
        else "never the class of a single row"
    )
    first = f"This model says which of {class_list(classifier)} {instance_words(classifier)}."
    second = f"{learned}: it was given the class shares of each bag, {labels}."
    return [f"{first} {second}", *accuracy_sentences(classifier, evidence)]


def class_list(classifier: ProportionClassifier) -> str:
    names = [printable(name, 40) for name in classifier.classes_]
    if len(names) > 6:
        return f"{len(names)} classes"
    return f"{', '.join(names[:-1])} and {names[-1]}"


def instance_words(classifier: ProportionClassifier) -> str:
    """What is classified, by what."""
    shape = classifier.instance_shape_
    if len(shape) == 3:
        return f"an image of {shape[1]} × {shape[2]} pixels shows"
    columns = columns_of(classifier)
    if not columns or classifier.encoder_ is None or not classifier.encoder_.named:
        return f"a row belongs to, by {math.prod(shape) if not columns else len(columns)} numbers"
    names = [printable(column.name, 40) for column in columns]
    if len(names) == 1:
        return f"a row belongs to, by the column {names[0]}"
    shown = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
    return f"a row belongs to, by {len(names)} columns ({shown})"


def accuracy_sentences(classifier: ProportionClassifier, evidence: ModelEvidence | None) -> list[str]:
    """What can be known about the accuracy, in the words of the diagnosis."""
    if evidence is None or evidence.diagnosis is None:
        scores = classifier.bag_scores_.get("validation")
        text = "How often it is right cannot be read off its folder; the bags of its table can show more."
        if scores is not None:
            error = 100 * (scores["proportion_error"] or 0.0)
            text = f"For bags that it has not learned from, class shares were {error:.1f} points off. {text}"
        return [text]
    found = evidence.diagnosis
    if not found.supported:
        return [found.reasons[0], accuracy_limits(found)]
    by = ", by copies of the model that were trained on other bags" if found.origin != "held_out" else ""
    error, without = (100 * value for value in proportion_errors(found))
    bags = (
        f"Class shares of bags that were not learned from are predicted better than by chance{by}. In an "
        f"average bag, {error:.1f} % of the rows would have to change class for its predicted shares to be "
        f"right; {without:.1f} % if every bag got the overall shares."
    )
    if not has_estimate(found):
        return [
            bags,
            f"How many single rows are right cannot be seen from these bags. {accuracy_limits(found)}",
        ]
    text = f"Of 100 rows, about {100 * found.accuracy:.0f} are classified correctly"
    if not found.noisy:
        text += f" ({' to '.join(outward(found.accuracy_low, found.accuracy_high, 0))})"
    largest = f"{100 * found.largest_class:.0f} would be if it named the largest class for every row"
    return [bags, f"{text}; {largest}."]


def accuracy_limits(found: Diagnosis) -> str:
    noise = ", up to the noise of the proportions" if found.noisy else ""
    low, high = outward(found.accuracy_min, found.accuracy_max, 0)
    return (
        f"From the known totals alone, it is right for at least {low} and at most {high} of 100 rows{noise}."
    )


def headline(found: Diagnosis | None) -> dict[str, str]:
    """The answer in a few words, and its kind for the style."""
    if found is None:
        return {"kind": "open", "text": "Not judged yet"}
    if found.origin == "training":
        return {"kind": "none", "text": "No answer: no bags that it has not learned from have judged it"}
    if not found.supported:
        return {"kind": "none", "text": "No answer: the bags do not show that it works"}
    error, without = proportion_errors(found)
    errors = f"proportion error {100 * error:.1f} points, {100 * without:.1f} without a model"
    if error >= without:
        return {"kind": "none", "text": f"Not better than the overall shares: {errors}"}
    if not has_estimate(found):
        rows = "for single rows only bounds are known"
        return {"kind": "bags", "text": f"Better than chance for bags: {errors}; {rows}"}
    rows = "its accuracy for single rows can be estimated"
    return {"kind": "rows", "text": f"Better than chance for bags: {errors}; {rows}"}


def accuracy_contents(found: Diagnosis) -> dict[str, Any]:
    """Percentages of correct rows: what is certain, what is estimated, and what to compare with."""
    possible = has_estimate(found)
    return {
        "least": 100 * found.accuracy_min,
        "most": 100 * found.accuracy_max,
        "bounds": " – ".join(outward(found.accuracy_min, found.accuracy_max)),
        "estimate": 100 * found.accuracy if possible else None,
        "low": 100 * found.accuracy_low if possible and not found.noisy else None,
        "high": 100 * found.accuracy_high if possible and not found.noisy else None,
        "largest": 100 * found.largest_class,
        "unrelated": 100 * found.accuracy_if_unrelated,
        "noisy": found.noisy,
    }


def command_with_table(folder: Path, classifier: ProportionClassifier, evidence: ModelEvidence | None) -> str:
    """The command that adds what this page lacks, with the names that the folder tells."""
    data = about_of(classifier).data
    table = printable(data.get("table", "TABLE"))
    bag = printable(data.get("column of bags", "COLUMN"))
    shares = printable(data.get("proportions from", "FILE"))
    if evidence is not None:
        table = printable(evidence.table)
    words = ["apportion", "report", printable(folder), table, "--bag", bag, "--proportions", shares]
    return shlex.join([*words, "--html", "page.html"])


# --- the evidence


def class_contents(classifier: ProportionClassifier) -> list[dict[str, Any]]:
    """Known shares of the classes, and how often each is the most probable one; the most common first."""
    rows = zip(classifier.classes_, classifier.class_shares_, classifier.predicted_shares_, strict=True)
    found = [
        {"name": printable(name), "known": float(known), "predicted": float(predicted)}
        for name, known, predicted in rows
    ]
    return sorted(found, key=lambda row: -row["known"])


def any_interval(evidence: ModelEvidence) -> bool:
    return any(frame["count_low"].is_not_null().any() for frame in evidence.tables)


def table_contents(evidence: ModelEvidence, unused: set[str]) -> list[dict[str, Any]]:
    """The tables by group, with those of their columns that matter little to the model."""
    return [
        group_contents(columns, frame)
        | {"unused": [printable(name, 60) for name in columns if name in unused]}
        for columns, frame in zip(evidence.by, evidence.tables, strict=True)
    ]


def unused_columns(classifier: ProportionClassifier, evidence: ModelEvidence) -> set[str]:
    """Columns whose importance is about zero; none if it was not measured."""
    found = evidence.importances or tree_importances(classifier)
    largest = max((each.value for each in found), default=0.0)
    # an importance by permutation has a range, and a range that includes zero shows nothing
    return {each.column for each in found if each.low <= 0 or each.value < LITTLE * largest}


def group_contents(columns: Sequence[str], frame: pl.DataFrame) -> dict[str, Any]:
    """One table by group; the chart has the largest groups."""
    rows: list[dict[str, Any]] = []
    for line in frame.head(MOST_CELLS).rows(named=True):
        n = line["rows"] or 1
        shares = {f"share_{end}": line[f"count_{end}"] / n for end in ("min", "max")}
        names = ["(missing)" if line[name] is None else printable(line[name], 60) for name in columns]
        figures = {
            name: line[name]
            for name in frame.columns
            if name not in (*columns, "class")
        }  # fmt: skip
        group = {"group": " · ".join(names), "class": printable(line["class"], 60)}
        rows.append(group | figures | shares)
    sizes = {row["group"]: row["rows"] for row in rows}
    drawn = sorted(sizes, key=lambda group: -sizes[group])[:MOST_GROUPS_DRAWN]
    return {
        "by": ", ".join(printable(name, 60) for name in columns),
        "rows": rows,
        "drawn": [group for group in sizes if group in set(drawn)],
        "n_groups": len(sizes),
        "cut": frame.height - len(rows),
    }


def diagnosis_contents(evidence: ModelEvidence) -> dict[str, Any] | None:
    """The diagnosis as `apportion diagnose` prints it: its reasons, then its figures."""
    if evidence.diagnosis is None or evidence.evaluation is None:
        return None
    lines = describe_diagnosis(evidence.diagnosis, evidence.evaluation.judged_on)
    n = len(evidence.diagnosis.reasons)
    return {
        "reasons": lines[:n],
        "figures": [line.split(": ", 1) for line in lines[n:]],
        "judged_on": evidence.evaluation.judged_on,
    }


def bags_contents(evidence: ModelEvidence) -> dict[str, Any] | None:
    """Known and predicted shares of the bags, and those that are furthest from what chance explains."""
    if not evidence.predicted:
        return None
    classes = shown_classes(evidence.classifier)
    n_bags = sum(len(part.bags.sizes) for part in evidence.predicted)
    step = math.ceil(n_bags * len(classes) / MOST_POINTS)
    judged = evidence.predicted[0]
    residuals = judged.gap / judged.variance.sqrt()
    return {
        "classes": [printable(evidence.classifier.classes_[c], 60) for c in classes],
        "n_classes": len(evidence.classifier.classes_),
        "parts": [part_contents(part, classes, step) for part in evidence.predicted],
        "step": step,
        "learned": judged.learned,
        "judged": len(judged.bags.sizes),
        "worst": worst_bags(evidence, judged, residuals),
        "far": float((residuals.abs() > FAR).double().mean()),
        "far_by_chance": FAR_BY_CHANCE,
        "dispersion": dispersion(judged),
        "overdispersed": dispersion(judged) > MUCH_DISPERSION,
        "sizes": [n for part in evidence.predicted for n in people(part)[::step]],
    }


def dispersion(part: PredictedBags) -> float:
    """The variance of the counts of bags over that by chance."""
    return float((part.gap.square() / part.variance).mean())


def people(part: PredictedBags) -> list[int]:
    """The rows of each bag, or the sum of their weights."""
    return part.bags.mass.round().long().tolist()


def shown_classes(classifier: ProportionClassifier) -> list[int]:
    """The most common classes, in their usual order."""
    order = np.argsort(-classifier.class_shares_, kind="stable")[:MOST_CLASSES_SHOWN]
    return sorted(order.tolist())


def part_contents(part: PredictedBags, classes: list[int], step: int) -> dict[str, Any]:
    """Bags as columns of numbers; every `step`-th of them."""
    residuals = part.gap / part.variance.sqrt()

    def shares(values: torch.Tensor) -> list[list[float]]:
        return [[float(f"{value:.5g}") for value in row] for row in values[::step, classes].tolist()]

    return {
        "learned": part.learned,
        "bags": [printable(name, 60) for name in list(part.bags.ids)[::step]],
        "rows": people(part)[::step],
        "known": shares(part.bags.proportions.double()),
        "predicted": shares(part.predicted),
        "residual": shares(residuals),
    }


def worst_bags(evidence: ModelEvidence, part: PredictedBags, residuals: torch.Tensor) -> list[dict[str, Any]]:
    """The bags with the largest residual of a class, in standard deviations that chance explains."""
    worst, codes = residuals.abs().max(1)
    found = []
    for i in worst.argsort(descending=True, stable=True)[:WORST_BAGS].tolist():
        c = int(codes[i])
        n = float(part.bags.mass[i])
        found.append(
            {
                "bag": printable(part.bags.ids[i], 60),
                "rows": round(n),
                "class": printable(evidence.classifier.classes_[c], 60),
                "known": float(part.bags.proportions[i, c]),
                "predicted": float(part.predicted[i, c]),
                "chance": math.sqrt(float(part.variance[i, c])) / n,
                "residual": float(residuals[i, c]),
            }
        )
    return found


def calibration_contents(evidence: ModelEvidence | None) -> dict[str, Any]:
    """Predicted and known shares of bins of bags that were not learned from, or why there are none."""
    if evidence is None or not evidence.predicted:
        return {"why_not": "It takes bags with known class shares that the model has not learned from."}
    judged = evidence.predicted[0]
    if judged.learned:
        return {
            "why_not": "All of these bags may have been learned from, and such bags say nothing about new "
            "ones. Leave --quick out, so that copies of the model predict bags that are new to them; hold "
            "bags out with apportion fit --validation-fraction 0.2; or pass a table of other bags with --new."
        }
    rows = []
    certainty = None
    if evidence.temperature is not None:
        certainty = certainty_words(evidence.temperature, dispersion(judged))
    for c in shown_classes(evidence.classifier):
        known = judged.bags.proportions[:, c].double()
        found = reliability_bins(judged.predicted[:, c], known, judged.variance[:, c], judged.bags.mass)
        name = printable(evidence.classifier.classes_[c], 60)
        for each in found:
            low, high = each.known - FAR * each.deviation, each.known + FAR * each.deviation
            ends = {"low": max(0.0, low), "high": min(1.0, high)}
            values = {"predicted": each.predicted, "known": each.known, "bags": each.n_bags}
            rows.append({"class": name} | values | ends)
    return {
        "why_not": None,
        "rows": rows,
        "temperature": evidence.temperature,
        "certainty": certainty,
    }


def certainty_words(temperature: float, dispersion: float) -> str:
    """What the most likely temperature says, where counts vary so many times as much as by chance."""
    if dispersion > MUCH_DISPERSION:
        return (
            f"no temperature explains these counts, which vary {dispersion:.1f} times as much as by chance. "
            "Bags differ for reasons that the columns do not show, or probabilities are too certain"
        )
    if temperature > 1.1:
        return (
            "probabilities are more certain than the counts of bags bear out, or bags differ for reasons "
            "that the columns do not show"
        )
    if temperature < 0.9:
        return "probabilities could be more certain: counts are closer to the predicted ones than they imply"
    return "probabilities are about as certain as the counts of bags bear out"


def importance_contents(classifier: ProportionClassifier, evidence: ModelEvidence | None) -> dict[str, Any]:
    """How much the model uses each column, which kind of figure this is, or why there is none."""
    kind = "none"
    found = [] if evidence is None else evidence.importances
    if found:
        kind = "permutation"
    else:
        found = tree_importances(classifier)
        if found:
            kind = "trees" if trees_of(classifier.model_) is classifier.model_ else "trees of average"
    why_not = ""
    if kind == "none":
        why_not = "Columns are permuted in a table with bags."
        if not columns_of(classifier):
            why_not = "The model takes no columns of a table."
        elif len(classifier.classes_) > MOST_CLASSES:
            why_not = f"Columns are not permuted for more than {MOST_CLASSES} classes."
    ranked = sorted(found, key=lambda each: -each.value)
    learned = evidence is None or evidence.evaluation is None or evidence.evaluation.origin != "held_out"
    return {
        "kind": kind,
        "why_not": why_not,
        "learned": learned,
        "n_columns": len(ranked),
        "rows": [
            {"column": printable(each.column, 60), "value": each.value, "low": each.low, "high": each.high}
            for each in ranked[:MOST_COLUMNS_SHOWN]
        ],
    }


# --- data and training


def data_contents(classifier: ProportionClassifier) -> list[list[str]]:
    """What the folder tells about the data, line by line."""
    lines = [["rows", f"{classifier.n_rows_:,}"]]
    for name, value in about_of(classifier).data.items():
        lines.append([printable(name, 60), _plain(value)])
    return lines


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else printable(value)


def column_contents(classifier: ProportionClassifier) -> dict[str, Any]:
    """The columns of the model; images have none."""
    columns = columns_of(classifier)
    rows = [[printable(column.name, 60), column.kind, len(column.features)] for column in columns]
    return {"n": len(columns), "rows": rows[:200]}


def selection_contents(folder: Path, classifier: ProportionClassifier) -> dict[str, Any] | None:
    """What held-out bags chose: candidates, their weights and scores."""
    found = classifier.selection_
    if found is None:
        return None
    check_json(found, _SELECTION, f"{folder / 'model.json'}: selection", error=ModelError)
    rows = []
    for name, values in found["candidates"].items():
        settings = {key: value for key, value in values.items() if key not in ("weight", "score")}
        text = ", ".join(f"{printable(key, 40)} {_plain(value)}" for key, value in settings.items())
        named = {"name": printable(name, 60), "settings": text}
        rows.append(named | {"weight": values["weight"], "score": values.get("score")})
    names = ("held_out_bags", "score", "score_of_overall_shares", "temperature")
    return {"candidates": rows} | {name: found.get(name) for name in names}


def fit_contents(classifier: ProportionClassifier) -> list[list[str]]:
    """How the model was trained, line by line."""
    model = classifier.resolved_["model"]
    name = model if isinstance(model, str) else "a network with options"
    stage, epoch = classifier.best_epoch_
    lines = [["model", METHODS_IN_WORDS.get(name, printable(name))]]
    if classifier.resolved_.get("method") is not None:
        lines.append(["method of the teacher", _plain(classifier.resolved_["method"])])
    labels = classifier.resolved_.get("pseudo_labels")
    lines.append(["labels of the student", "no student" if labels is None else _plain(labels)])
    if classifier.selection_ is None:
        lines.append(["weights kept", f"epoch {epoch} of the {printable(stage, 40)} stage"])
    if classifier.select_by is not None:
        lines.append(["epoch chosen by", _plain(classifier.select_by)])
    for stage, text in classifier.optimizers_.items():
        lines.append([f"optimizer, {printable(stage, 40)} stage", printable(text)])
    if classifier.temperature_ != 1:  # that of an average is told with its candidates
        lines.append(["temperature, from validation bags", f"{classifier.temperature_:.3g}"])
    for part, scores in classifier.bag_scores_.items():
        correlation = scores["bag_correlation"]
        text = f"proportion error {100 * (scores['proportion_error'] or 0.0):.1f} points"
        if correlation is not None:
            text += f", bag correlation {correlation:.3f}"
        lines.append([f"{printable(part, 40)} bags", text])
    lines.append(["random state", _plain(classifier.random_state)])
    lines.append(["trained on", printable(classifier.device_)])
    return lines


def history_contents(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Curves of training, one entry per network or other fit; an epoch that is not larger begins another."""
    fits: list[list[dict[str, Any]]] = []
    for entry in history[:MOST_HISTORY]:
        new = not fits or fits[-1][-1]["stage"] != entry["stage"] or fits[-1][-1]["epoch"] >= entry["epoch"]
        if new:
            fits.append([])
        fits[-1].append(entry)
    found = []
    room = MOST_HISTORY
    for number, entries in enumerate(fits, 1):
        names = {
            name: None for entry in entries for name in entry if name not in ("stage", "epoch", "seconds")
        }
        if len(entries) < 2 or not names:
            continue
        step = math.ceil(len(entries) * len(names) / 2000)
        kept = entries[::step]
        room -= len(kept) * len(names)
        if room < 0:
            break
        curves = {printable(name, 60): [entry.get(name) for entry in kept] for name in names}
        stage = printable(entries[0]["stage"], 60)
        found.append(
            {"stage": stage, "fit": number, "epochs": [entry["epoch"] for entry in kept], "curves": curves}
        )
    return found

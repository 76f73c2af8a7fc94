"""How good a classifier is, judged without labels by bags that it has not learned from."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import torch

from apportion._untrusted import printable
from apportion.bags.bags import Bags
from apportion.bags.build import build_bags_without_features
from apportion.bags.instances import read_weight
from apportion.bags.proportions import Proportions
from apportion.errors import SettingsError
from apportion.estimator import ProportionClassifier
from apportion.pipeline import EpochState
from apportion.saving import About
from apportion.selection.bag_differences import features_for_tests, sample_rows
from apportion.selection.crossfit import assign_folds, cross_fit, take_instances
from apportion.selection.diagnosis import (
    MIN_BAGS,
    Diagnosis,
    Origin,
    describe_p,
    diagnose_bags,
    has_estimate,
    is_network,
    outward,
    proportion_errors,
    why_untested,
)
from apportion.selection.held_out import hold_out
from apportion.tables.check import read_weight_column
from apportion.tables.fit import WEIGHT, fingerprint
from apportion.tables.images import read_all_images
from apportion.tables.predict import Source, about_of, check_proportions, columns_of, read_for
from apportion.tables.read import clean_errors
from apportion.tables.spec import TableSpec


@dataclass(frozen=True)
class Evaluation:
    """Bags that a classifier can be judged by, and how their rows are predicted."""

    table: Any  # all rows of the table
    bags: Bags  # without features
    proportions: Proportions
    judged_on: str  # in words
    origin: Origin = "held_out"
    folds: int = 0  # models to train, each without a part of the bags; 0: the classifier itself is judged

    @cached_property
    def X(self) -> Any:
        """The rows of the bags, in their order: a copy that takes time if the table is large."""
        return take_instances(self.table, self.bags.source.numpy())


def plan_diagnosis(
    classifier: ProportionClassifier,
    spec: TableSpec,
    *,
    new: bool = False,
    folds: int | None = None,
    train: bool = True,
) -> Evaluation:
    """Choose the bags of a table that can judge a classifier: it must not have learned from them.

    Those are the validation bags, if the table is the one that the classifier was fitted on and at least six
    were held out, or all bags of a `new` table. Otherwise models that are trained alike on other bags
    predict the bags in turn or, if nothing may be trained or there are too few bags for any answer, the
    classifier itself predicts bags that it may have learned from, which supports none.
    """
    source, all_bags, proportions, learned = _read_bags(classifier, spec)
    about = about_of(classifier)
    if new and learned:
        raise SettingsError("the model has learned from these bags; leave --new out")
    bags, judged_on = all_bags.known(), ""
    if learned and about.held_out and about.groupings == 1:
        validation = hold_out(all_bags, about.held_out, classifier.random_state or 0)[1]
        if fingerprint(validation.ids) == about.held_out_names and about.held_out >= MIN_BAGS:
            bags = validation
            judged_on = f"{len(bags.sizes)} validation bags"
    if new:
        judged_on = f"{len(bags.sizes)} new bags"
    table = all_rows(classifier, source)
    if judged_on:
        return Evaluation(table, bags, proportions, judged_on)
    if not train or len(bags.sizes) < MIN_BAGS:
        has = "has" if learned else "may have"
        judged_on = f"{len(bags.sizes)} bags that the model {has} learned from"
        return Evaluation(table, bags, proportions, judged_on, "training")
    folds = int(assign_folds(bags, folds, 0).max()) + 1
    judged_on = (
        f"{len(bags.sizes)} bags, each predicted by one of {folds} copies of the model, trained on other bags"
    )
    without = _left_out(about, all_bags)
    if without:
        judged_on += f" and without {' and '.join(without)}"
    return Evaluation(table, bags, proportions, judged_on, "cross_validated", folds)


def other_bags(
    classifier: ProportionClassifier, spec: TableSpec, evaluation: Evaluation
) -> Evaluation | None:
    """The bags of the table that are left out of an evaluation by validation bags; None for any other."""
    source, bags, proportions, learned = _read_bags(classifier, spec)
    judged = set(evaluation.bags.ids)
    bags = bags.known()
    others = [i for i, name in enumerate(bags.ids) if name not in judged]
    if not others or not learned or evaluation.origin != "held_out":
        return None
    bags = bags.select(torch.tensor(others))
    judged_on = f"{len(bags.sizes)} bags that the model has learned from"
    return Evaluation(all_rows(classifier, source), bags, proportions, judged_on, "training")


def _read_bags(classifier: ProportionClassifier, spec: TableSpec) -> tuple[Source, Bags, Proportions, bool]:
    """A table, its bags without features, their proportions, and whether the classifier learned from them."""
    checked = check_proportions(classifier, spec)
    checked.report.raise_problems()
    source = read_for(classifier, spec.table, spec.missing)
    (bag,) = spec.bag_names
    proportions = checked.proportions[bag]
    with clean_errors(spec.table):
        ids = checked.frame.select(bag).collect().to_series()
    weight = read_weight(read_weight_column(spec.table, spec.weight, checked.frame), len(ids))
    bags = build_bags_without_features(len(ids), bags=ids, proportions=proportions, weight=weight).bags
    aligned = checked.aligned[bag]
    about = about_of(classifier)
    learned = fingerprint(aligned.bags, aligned.sizes.tolist()) in about.fingerprint.split(",")
    if learned and spec.weight is None and WEIGHT in about.data:
        raise SettingsError(f"the model learned from rows with weights, {about.data[WEIGHT]}; pass --weight")
    return source, bags, proportions, learned


def all_rows(classifier: ProportionClassifier, source: Source) -> Any:
    """The rows of a table as the classifier takes them."""
    with clean_errors(source.table):
        if source.image is not None:
            return np.concatenate(list(read_all_images(source.image, source.table, source.frame)))
        return source.frame.select([column.name for column in columns_of(classifier)]).collect()


def _left_out(about: About, bags: Bags) -> list[str]:
    """What the classifier may have learned from and copies that are trained in its place do not."""
    known = set(bags.known().ids)
    unknown = [name for name in bags.ids if name not in known]
    parts = []
    if unknown:
        some = ", ".join(printable(name, 40) for name in unknown[:3]) + (", …" if len(unknown) > 3 else "")
        count = "the bag" if len(unknown) == 1 else f"{len(unknown)} bags"
        parts.append(f"{count} without proportions ({some})")
    if about.known_labels:
        parts.append("known labels")
    if about.groupings > 1:
        parts.append("the bags of other groupings")
    return parts


def predict_bags(
    classifier: ProportionClassifier, evaluation: Evaluation, out: np.ndarray
) -> Iterator[tuple[int, EpochState]]:
    """Fill `out` (n, k) with the probabilities of the rows; yields (fold, state) of models it trains."""
    if not evaluation.folds:
        out[:] = classifier.predict_proba(evaluation.X)
        return
    yield from cross_fit(
        classifier, evaluation.table, evaluation.bags, evaluation.proportions, out,
        folds=evaluation.folds, seed=classifier.random_state or 0, rows=evaluation.bags.source.numpy(),
    )  # fmt: skip


def diagnose_probabilities(
    classifier: ProportionClassifier, probabilities: np.ndarray, evaluation: Evaluation
) -> Diagnosis:
    """The diagnosis of probabilities (n, k) of the rows of an evaluation."""
    fold_of_bag = None
    if evaluation.folds:
        fold_of_bag = assign_folds(evaluation.bags, evaluation.folds, classifier.random_state or 0)
    rows = evaluation.bags.source[sample_rows(len(probabilities))].numpy()
    return diagnose_bags(
        torch.from_numpy(np.log(np.maximum(probabilities, 1e-38))),
        evaluation.bags,
        features=features_for_tests(take_instances(evaluation.table, rows)),
        origin=evaluation.origin,
        fold_of_bag=fold_of_bag,
        noisy=evaluation.proportions.std is not None,
        network=is_network(classifier.resolved_["model"]),
    )


def judged_device(classifier: ProportionClassifier, device: str) -> str:
    """Where networks are trained for a diagnosis: by default where the classifier was, if that is the CPU.

    Images are learned from in other lengths on a GPU.
    """
    return "cpu" if device == "auto" and classifier.device_ == "cpu" else device


def bag_table(found: Diagnosis, evaluation: Evaluation) -> pl.DataFrame:
    """One row per bag: its id, its rows, and its proportion error."""
    bags = evaluation.bags
    columns = {
        "bag": list(bags.ids),
        "rows": bags.sizes.numpy(),
        "proportion_error": found.bag_errors.numpy(),
    }
    return pl.DataFrame(columns)


def row_table(found: Diagnosis, evaluation: Evaluation, classifier: ProportionClassifier) -> pl.DataFrame:
    """One row per row of the table, counted from one: its bag, its class by optimal transport, its margin."""
    bags = evaluation.bags
    order = bags.source.argsort()
    bag = torch.repeat_interleave(torch.arange(len(bags.ids)), bags.sizes)[order]
    return pl.DataFrame(
        {
            "row": (bags.source[order] + 1).numpy(),
            "bag": [bags.ids[i] for i in bag.tolist()],
            "class": classifier.classes_[found.classes[order].numpy()],
            "margin": found.margins[order].numpy(),
        }
    )


# --- in words


def describe_diagnosis(found: Diagnosis, judged_on: str, *, verbose: bool = False) -> list[str]:
    """A diagnosis for people; `verbose` adds figures about the labels of rows by optimal transport."""
    errors = found.bag_errors.double()
    middle, worst = (100 * float(errors.quantile(q)) for q in (0.5, 0.95))
    mean, without = (100 * error for error in proportion_errors(found))
    low, high = outward(found.accuracy_min, found.accuracy_max)
    return [
        *found.reasons,
        f"judged on: {judged_on}",
        f"spread of the proportions: {found.spread:.3g} times that of random bags ({_compare_spread(found)})",
        f"bag correlation: {found.correlation:.3f}, {_describe_test(found)}",
        f"proportion error: {mean:.1f} points on average, {middle:.1f} in the median bag, more than "
        f"{worst:.1f} in one of twenty; {without:.1f} on average if every bag got the overall shares. It is "
        "half the summed difference of the shares: the percentage of rows that would have to change class",
        f"accuracy of single rows, estimated: {describe_estimate(found)}",
        f"accuracy of single rows, certain bounds: {low} to {high} %"
        f"{', up to the noise' if found.noisy else ''}; "
        f"if the model told only bags apart: {100 * found.accuracy_if_unrelated:.1f} %; "
        f"if it named the largest class for every row: {100 * found.largest_class:.1f} %",
        *(_describe_labels(found) if verbose else ()),
    ]


def _describe_labels(found: Diagnosis) -> list[str]:
    """How certain predictions and labels of rows are: figures for those who know what they are."""
    narrow = float((found.margins < 0.1).double().mean())
    return [
        f"labels by optimal transport agree with the most probable class: {100 * found.agreement:.1f} %",
        f"entropy of the predictions: {100 * found.entropy:.1f} % of that of a uniform one",
        f"labels with a margin below 0.1 nats: {100 * narrow:.1f} %",
    ]


def _describe_test(found: Diagnosis) -> str:
    """What the permutation test says, if there was one."""
    untested = why_untested(found)
    if untested:
        return f"not tested: {untested}"
    return (
        f"significant from {found.critical_correlation:.3f} (permutation test, {describe_p(found.p_value)})"
    )


def describe_estimate(found: Diagnosis) -> str:
    """The estimated accuracy of single rows, if there is one."""
    if not has_estimate(found):
        return "not possible from these bags"
    interval = f"{100 * found.accuracy_low:.1f} to {100 * found.accuracy_high:.1f} %"
    if found.noisy:
        interval = "no interval, since the proportions are noisy"
    return f"{100 * found.accuracy:.1f} % ({interval})"


def _compare_spread(found: Diagnosis) -> str:
    if found.noisy:
        return "without the noise; it says nothing about chance"
    if found.spread > 1 + found.spread_tolerance:
        return "more than chance: bags differ for a reason"
    return "as by chance" if found.spread >= 1 - found.spread_tolerance else "less than chance"

"""Is a model any good? What held-out bags say about its predictions, without a single label.

`diagnose` answers four questions. Are the proportions of held-out bags predicted better than by chance (a
permutation test)? Between which bounds is the accuracy for certain (arithmetic)? Can it be estimated (only if
bags differ by chance, or in their classes alone), and how large is it then (a regression over bags)? How
certain is the label of each row (the dual prices of optimal transport)? docs/diagnose.md explains the figures
and validates them on data with labels.
"""

import itertools
import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from scipy.special import stdtrit
from torch import Tensor

from apportion._random import as_seed
from apportion.bags.bags import Bags, bag_means, bag_sums
from apportion.bags.build import (
    build_bags_without_features,
    check_row_order,
    name_grouping,
    tables_of_groupings,
    take_bag_columns,
)
from apportion.bags.instances import read_weight
from apportion.bags.predictions import bags_of_predictions
from apportion.bags.problems import pearson_spread
from apportion.bags.proportions import as_proportions
from apportion.errors import DataError, SettingsError, did_you_mean
from apportion.networks import NETWORKS
from apportion.selection.bag_differences import (
    Differences,
    features_for_tests,
    find_differences,
    sample_rows,
)
from apportion.selection.crossfit import (
    assign_folds,
    check_takes_weight,
    cross_fit,
    name_bags,
    take_instances,
)
from apportion.transport import (
    assign_weighted_with_duals,
    assign_with_duals,
    class_masses,
    round_to_counts,
)

MIN_BAGS = 6  # fewer have too few permutations for a rare one
SIGNIFICANCE = 0.002  # the p-value up to which a correlation counts
MIN_PERMUTATIONS = 499  # fewer cannot show a p-value as small as SIGNIFICANCE
MAX_INTERVAL = 0.9  # an interval of the accuracy that is as wide as this says nothing
JACKKNIFE_GROUPS = 200  # groups of bags at most, each left out once
MAX_CLASSES = 200  # beyond this, all classes share one slope: a slope for each pair takes k squared numbers

Origin = Literal["held_out", "cross_validated", "training"]


@dataclass(frozen=True)
class Diagnosis:
    """What bags say about predictions. `supported` is the verdict, `reasons` say why.

    Attributes
    ----------
    supported : bool
        Whether the proportions of held-out bags are predicted better than by chance. False: the data cannot
        support an answer, or nothing shows that it can.
    reasons : tuple of str
        The verdict in plain English, one sentence or more each.
    accuracy : float
        The estimated fraction of rows whose most probable class is correct. NaN if it cannot be estimated
        from these bags, which is usual if they differ by more than chance, and if `supported` is False.
    accuracy_low, accuracy_high : float
        The 95 % interval of `accuracy`. Without an estimate, the bounds of arithmetic.
    accuracy_min, accuracy_max : float
        The bounds of arithmetic: with these predictions and these proportions, no labels of the rows give a
        smaller or a larger accuracy. They hold whatever the data.
    accuracy_if_unrelated : float
        The accuracy if, inside every bag, predictions had nothing to do with the classes.
    differences : {"chance", "classes", "more"}
        How bags differ: by chance; in their proportions, while rows of a class look alike in all bags; or in
        other ways too. Only the first two allow an estimate of the accuracy.
    p_chance, p_classes : float
        p-values of the first two.
    spread, spread_tolerance : float
        The variance of the bags' proportions over that of random bags of the same sizes: about 1 for random
        bags, 0 if all bags are alike. Random bags stay within 1 ± `spread_tolerance` (three deviations).
    correlation, critical_correlation, p_value : float
        The correlation of predicted and known proportions over bags, weighted by their inverse variances; the
        correlation that the permutation test requires; and its p-value.
    largest_class : float
        The overall proportion of the largest class: the accuracy of always predicting it.
    agreement : float
        The fraction of rows whose most probable class is also their class by optimal transport.
    entropy : float
        The mean entropy of the predictions over that of a uniform one: 0 is certain, 1 is uniform.
    proportion_error_of_overall_shares : float
        The mean proportion error if every bag were predicted to have the overall proportions: what the mean
        of `bag_errors` has to be compared with.
    bag_errors : Tensor (m,)
        The proportion error of each bag: half the L1 distance of predicted and known proportions. So many of
        its rows, at least, would have to change their class for its proportions to be right.
    classes : Tensor (N,)
        The class of each row by optimal transport: the most likely labels that have every bag's counts.
    margins : Tensor (N,)
        How certain each of these classes is; see `label_margins`.
    noisy : bool
        The proportions were noisy and have been denoised: `spread`, the bounds and the interval of
        `accuracy` do not hold then.
    origin : {"held_out", "cross_validated", "training"}
        Which bags the predictions are for: bags that were not learned from, bags that were left out in turn,
        or, which says nothing about other data, the bags that were learned from.
    """

    supported: bool
    reasons: tuple[str, ...]
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    accuracy_min: float
    accuracy_max: float
    accuracy_if_unrelated: float
    differences: Differences
    p_chance: float
    p_classes: float
    spread: float
    spread_tolerance: float
    correlation: float
    critical_correlation: float
    p_value: float
    largest_class: float
    agreement: float
    entropy: float
    proportion_error_of_overall_shares: float
    bag_errors: Tensor = field(repr=False)
    classes: Tensor = field(repr=False)
    margins: Tensor = field(repr=False)
    noisy: bool = False
    origin: Origin = "held_out"


def diagnose(
    model: Any,
    X: Any,
    bags: Any,
    proportions: Any,
    *,
    sample_weight: Any = None,
    new_bags: bool = False,
    folds: int | None = None,
    random_state: Any = 0,
    n_permutations: int = 1999,
) -> "Diagnosis | dict[Hashable, Diagnosis]":
    """Diagnose a model with bags that it has not learned from.

    By default, copies of the model are trained on some of the bags, and each predicts the others. This takes
    about as long as three fits.

    Parameters
    ----------
    model : estimator
        A `ProportionClassifier`, fitted or not, or any estimator with `fit(X, bags=..., proportions=...)` and
        `predict_proba`. It is copied, and not changed.
    X : data frame or array-like of shape (n_samples, ...)
        The instances.
    bags : array-like of shape (n_samples,), str or dict
        The bag of each row, or the column of `X` that has it. `{grouping: either}` for several groupings:
        each is diagnosed by itself, with models that learn from its bags alone.
    proportions : table, Proportions or dict
        The known proportions of the bags, in any form that `ProportionClassifier.fit` accepts. Bags without
        proportions are left out.
    sample_weight : array-like of shape (n_samples,) or str, optional
        How many people each row stands for, or the column of `X` that has it, as in
        `ProportionClassifier.fit`. A row of weight 3 is three equal rows, which may differ in their classes.
    new_bags : bool, default=False
        The model was trained on none of these bags: it is diagnosed itself, and nothing is trained.
    folds : int, optional
        The number of models to train. None: four, or two for more than a million rows.
    random_state : int, RandomState instance or None, default=0
        Determines which bags are left out together.
    n_permutations : int, default=1999
        Random permutations of the test, at least 499.

    Returns
    -------
    Diagnosis
        Its rows are those of `X` whose bags have proportions, in the order of `X`. `{grouping: Diagnosis}`
        for several groupings.

    Raises
    ------
    DataError
        Fewer than six bags have proportions: nothing is trained. With `new_bags=True` there is a diagnosis,
        which is not supported.

    Examples
    --------
    >>> import numpy as np
    >>> from apportion import ProportionClassifier, diagnose
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(1000, 2))
    >>> town = np.arange(1000) % 50
    >>> yes = X[:, 0] + 0.5 * rng.normal(size=1000) > 0  # not known to anyone
    >>> shares = {i: [1 - yes[town == i].mean(), yes[town == i].mean()] for i in range(50)}
    >>> model = ProportionClassifier(epochs=30, pseudo_labels=None, random_state=0)
    >>> diagnosis = diagnose(model, X, town, shares)
    >>> diagnosis.supported, diagnosis.differences
    (True, 'chance')
    >>> diagnosis.accuracy_low < diagnosis.accuracy < diagnosis.accuracy_high <= diagnosis.accuracy_max
    True
    """
    X, bags = take_bag_columns(X, bags)
    if isinstance(sample_weight, str):
        X, sample_weight = take_bag_columns(X, sample_weight)
    check_row_order(X, bags)
    options: dict[str, Any] = {"new_bags": new_bags, "folds": folds, "n_permutations": n_permutations}
    options["seed"] = as_seed(random_state)
    options["weight"] = sample_weight
    if not isinstance(bags, Mapping):
        return _diagnose_grouping(model, X, bags, proportions, **options)
    found: dict[Hashable, Diagnosis] = {}
    for name, table in tables_of_groupings(bags, proportions).items():
        try:
            found[name] = _diagnose_grouping(model, X, bags[name], table, **options)
        except DataError as error:
            raise name_grouping(error, name) from None
    return found


def _diagnose_grouping(
    model: Any,
    X: Any,
    ids: Any,
    table: Any,
    *,
    new_bags: bool,
    folds: int | None,
    seed: int,
    n_permutations: int,
    weight: Any,
) -> Diagnosis:
    n = X.shape[0] if hasattr(X, "shape") else len(X)
    weight = read_weight(weight, n)
    if weight is not None and not new_bags:
        check_takes_weight(model)
    built = build_bags_without_features(n, bags=ids, proportions=table, weight=weight)
    _check_learned_bags(model, built.bags, new_bags=new_bags)
    bags = built.bags.known()
    if not new_bags and len(bags.sizes) < MIN_BAGS:
        raise DataError(
            f"there are {len(bags.sizes)} bags with proportions, and a diagnosis needs at least {MIN_BAGS};"
            " nothing was trained. diagnose_predictions(..., origin='training') gives the bounds of the"
            " accuracy of predictions"
        )
    rows = bags.source.numpy()
    fold_of_bag = None
    if new_bags:
        probabilities = np.asarray(model.predict_proba(take_instances(X, rows)))
    else:
        probabilities = np.empty((len(rows), len(built.classes)))
        named = name_bags(as_proportions(table), built.bags, ids)
        for _ in cross_fit(model, X, bags, named, probabilities, folds=folds, seed=seed, rows=rows):
            pass
        fold_of_bag = assign_folds(bags, folds, seed)
    diagnosis = diagnose_bags(
        torch.from_numpy(np.log(np.maximum(probabilities, 1e-38))),
        bags,
        features=features_for_tests(take_instances(X, rows[sample_rows(len(rows)).numpy()])),
        origin="held_out" if new_bags else "cross_validated",
        fold_of_bag=fold_of_bag,
        n_permutations=n_permutations,
        seed=seed,
        noisy=bags.precision is not None,
        network=is_network(getattr(model, "model", None)),
    )
    return _in_order(diagnosis, bags)


def is_network(model: Any) -> bool:
    """Whether the setting `model` of a classifier is surely a network: neither "auto" nor another model."""
    return isinstance(model, torch.nn.Module) or (isinstance(model, str) and model in NETWORKS)


def _check_learned_bags(model: Any, bags: Bags, *, new_bags: bool) -> None:
    """Raise DataError if most bags that are said to be new are among those that the model learned from."""
    learned = getattr(model, "training_bags_", None)
    if not new_bags or not learned:
        return
    seen = set(learned) & set(zip(bags.ids, bags.sizes.tolist(), strict=True))
    if len(seen) > len(bags.ids) / 2:
        bag = next(iter(seen))[0]
        what = f"the model was trained on {len(seen)} of these bags, such as {bag!r}"
        raise DataError(f"{what}; leave new_bags out, or leave their rows out", bag=bag)


def _in_order(diagnosis: Diagnosis, bags: Bags) -> Diagnosis:
    """The diagnosis with its rows in the user's order instead of that of the bags."""
    order = bags.source.argsort()
    return replace(diagnosis, classes=diagnosis.classes[order], margins=diagnosis.margins[order])


def diagnose_predictions(
    probabilities: Any,
    bags: Any,
    proportions: Any,
    *,
    origin: Origin,
    features: Any = None,
    classes: Any = None,
    sample_weight: Any = None,
    n_permutations: int = 1999,
) -> Diagnosis:
    """Diagnose predictions that any classifier has made.

    Parameters
    ----------
    probabilities : array-like (N, k) or data frame
        The predicted probabilities of the rows.
    bags : array-like (N,)
        The bag of each row.
    proportions : table or Proportions
        The known proportions of the bags, in any form that `ProportionClassifier.fit` accepts. All bags need
        them. `Proportions(std=...)` are denoised first.
    origin : {"held_out", "cross_validated", "training"}
        Where the predictions come from: from a model that learned from none of these bags; from
        cross-validation by bag; or from a model that learned from these bags. The last is never supported,
        since a network can overfit its training bags.
    features : array-like (N, ...) or data frame, optional
        What the predictions were made from. Differences between bags are more easily found with them.
    classes : sequence, optional
        The classes of the columns of `probabilities`, such as `model.classes_`. A table and a data frame of
        predictions are aligned by the names of their columns.
    sample_weight : array-like of shape (N,), optional
        How many people each row stands for. A row of weight 3 is three equal rows, which may differ in their
        classes.
    n_permutations : int, default=1999
        Random permutations of the test, at least 499.

    Returns
    -------
    Diagnosis
        Its rows are in the order of `probabilities`.

    Examples
    --------
    Predictions that are right for nine rows of ten; the labels `y` are not passed.

    >>> import numpy as np
    >>> from apportion import diagnose_predictions
    >>> rng = np.random.default_rng(0)
    >>> bags = np.repeat(np.arange(200), 10)
    >>> y = rng.random(2000) < 0.5
    >>> proportions = np.stack([np.bincount(bags, ~y), np.bincount(bags, y)], axis=1) / 10
    >>> p = np.where(rng.random(2000) < 0.9, np.where(y, 0.9, 0.1), np.where(y, 0.1, 0.9))
    >>> diagnosis = diagnose_predictions(np.column_stack([1 - p, p]), bags, proportions, origin="held_out")
    >>> diagnosis.supported, round(diagnosis.accuracy, 1)
    (True, 0.9)
    """
    if origin not in get_args(Origin):
        choices = ", ".join(map(repr, get_args(Origin)))
        raise SettingsError(
            f"origin is {origin!r}{did_you_mean(origin, get_args(Origin))}; pass one of {choices}"
        )
    built = bags_of_predictions(
        probabilities,
        bags,
        proportions,
        classes,
        unavailable=frozenset(["missing_bags"]),
        weight=sample_weight,
    ).bags
    for i in built.proportions.isnan().any(1).nonzero().flatten().tolist():
        raise DataError(f"{built.name(i)} has no proportions; leave its rows out", bag=built.ids[i])
    measured = None
    if features is not None:
        rows = built.source[sample_rows(len(built.source))]
        measured = features_for_tests(take_instances(features, rows.numpy()))
    diagnosis = diagnose_bags(
        built.x.double().clamp_min(1e-38).log(),
        built,
        features=measured,
        origin=origin,
        n_permutations=n_permutations,
        noisy=built.precision is not None,
    )
    return _in_order(diagnosis, built)


def diagnose_bags(
    log_probs: Tensor,
    bags: Bags,
    *,
    features: Tensor | None = None,
    origin: Origin = "held_out",
    fold_of_bag: Tensor | None = None,
    n_permutations: int = 1999,
    seed: int = 0,
    noisy: bool = False,
    network: bool = False,
) -> Diagnosis:
    """`diagnose_predictions` for log-probabilities (N, k) in the order of `Bags`.

    `features` (n, d) are those of `sample_rows(N)`. `fold_of_bag` (m,): which bags were predicted by the same
    model. `noisy`: the proportions of the bags have been denoised. `network`: a network made the predictions,
    so that advice about its training makes sense.
    """
    if n_permutations < MIN_PERMUTATIONS:
        raise SettingsError(f"n_permutations is {n_permutations}; pass at least {MIN_PERMUTATIONS}")
    log_probs = log_probs.double()
    known = bags.proportions.double()
    weight = people_of_rows(bags)
    n = bags.sizes if weight is None else bag_sums(weight.unsqueeze(1), bags.sizes).squeeze(1)
    probabilities = log_probs.exp()
    predicted = bag_means(probabilities, bags.sizes, weight)
    top = log_probs.argmax(1)
    hard = class_shares(top, bags.sizes, bags.n_classes, weight)
    labels = transport_labels(log_probs, bags, top)
    spread, spread_tolerance = bag_spread(known, n)
    correlation, null = permutation_test(predicted, known, n, n_permutations, seed)
    critical = float(null.quantile(1 - SIGNIFICANCE))
    if origin == "cross_validated":
        critical = inflate_correlation(critical)
    statistic = deflate_correlation(correlation) if origin == "cross_validated" else correlation
    differences = find_differences(
        probabilities, bags, features, fold_of_bag=fold_of_bag, weight=weight, noisy=noisy
    )
    bounds = accuracy_bounds(hard, known, n)
    limits = (0.0, 1.0) if noisy else (bounds.least, bounds.most)
    estimate = (math.nan, *limits)
    if differences.kind != "more" and origin != "training":
        growth = shared_chance(hard, known, n, fold_of_bag) if origin == "cross_validated" else 1.0
        estimate = accuracy_interval(hard, known, n, limits, fold_of_bag, growth)
    accuracy, accuracy_low, accuracy_high = estimate
    figures = Diagnosis(
        supported=False,
        reasons=(),
        accuracy=accuracy,
        accuracy_low=accuracy_low,
        accuracy_high=accuracy_high,
        accuracy_min=bounds.least,
        accuracy_max=bounds.most,
        accuracy_if_unrelated=bounds.unrelated,
        differences=differences.kind,
        p_chance=differences.p_chance,
        p_classes=differences.p_classes,
        spread=spread,
        spread_tolerance=spread_tolerance,
        correlation=correlation,
        critical_correlation=critical,
        p_value=p_value_of(statistic, null),
        largest_class=float(bags.overall.max()),
        agreement=labels.agreement,
        entropy=float(_mean(torch.special.entr(probabilities).sum(1), weight) / math.log(bags.n_classes)),
        proportion_error_of_overall_shares=error_of_overall_shares(known, n),
        bag_errors=(predicted - known).abs().sum(1) / 2,
        classes=labels.classes,
        margins=labels.margins,
        noisy=noisy,
        origin=origin,
    )
    supported, reasons = verdict(figures, network=network)
    if not supported:
        figures = replace(figures, accuracy=math.nan, accuracy_low=limits[0], accuracy_high=limits[1])
    return replace(figures, supported=supported, reasons=reasons)


def error_of_overall_shares(known: Tensor, sizes: Tensor) -> float:
    """The mean proportion error if every bag were predicted to have the overall proportions."""
    n = sizes.double()
    overall = n @ known.double() / n.sum()
    return float((known.double() - overall).abs().sum(1).mean() / 2)


def class_shares(classes: Tensor, sizes: Tensor, k: int, weight: Tensor | None = None) -> Tensor:
    """(m, k) the share of each class among the rows of each bag; rows are sorted by bag."""
    bag = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    counts = torch.bincount(bag * k + classes.cpu(), weight, minlength=len(sizes) * k)
    counts = counts.reshape(-1, k).double()
    return counts / (sizes.unsqueeze(1) if weight is None else counts.sum(1, keepdim=True))


def people_of_rows(bags: Bags) -> Tensor | None:
    """(N,) how many people the rows count as, in the order of the bags; None without weights.

    The tests need to know how many people chance could assign, and take a weight of 3 for three of them.
    Weights that sum to less than the rows are worth, such as shares, are multiplied: Kish's effective number
    of rows is the least that they can stand for.
    """
    if bags.weight is None:
        return None
    weight = bags.weight.double()
    empty = bags.mass <= 1e-6 * float(weight.mean())
    for i in empty.nonzero().flatten().tolist():
        raise DataError(f"all rows of {bags.name(i)} have the weight 0; leave them out", bag=bags.ids[i])
    return weight * max(1.0, float(weight.sum() / weight.square().sum()))


def _mean(values: Tensor, weight: Tensor | None) -> float:
    return float(values.mean() if weight is None else (weight * values).sum() / weight.sum())


class TransportLabels(NamedTuple):
    """The most likely labels of rows that have every bag's counts."""

    classes: Tensor  # (N,) of a row that is split between classes, the one with its largest part
    margins: Tensor  # (N,)
    agreement: float  # the fraction of rows that are in their most probable class


def transport_labels(log_probs: Tensor, bags: Bags, top: Tensor) -> TransportLabels:
    """Labels by optimal transport, from log-probabilities (N, k) and their most probable classes (N,)."""
    if bags.weight is None:
        found = assign_with_duals(log_probs, bags.sizes, round_to_counts(bags.proportions, bags.sizes))
        classes, prices = found.classes, found.prices
        agreement = float((classes == top).double().mean())
    else:
        mass = class_masses(bags.weight, bags.sizes, bags.proportions)
        labels, prices = assign_weighted_with_duals(log_probs, bags.sizes, mass, bags.weight)
        classes = labels.argmax(1)
        agreement = _mean(labels.gather(1, top.unsqueeze(1)).squeeze(1), bags.weight.double())
    return TransportLabels(classes, label_margins(log_probs, bags.sizes, classes, prices), agreement)


# --- the verdict


def has_estimate(found: Diagnosis) -> bool:
    """Whether the accuracy of single rows is estimated, and not by an interval that says nothing."""
    wide = found.accuracy_high - found.accuracy_low >= MAX_INTERVAL
    return not math.isnan(found.accuracy) and (found.noisy or not wide)


def verdict(figures: Diagnosis, *, network: bool = False) -> tuple[bool, tuple[str, ...]]:
    """Whether the figures support an answer, and the reasons in plain English.

    `network`: a network made the predictions, so that advice about its training makes sense.
    """
    refusal = _reason_for_no_answer(figures, network)
    if refusal is not None:
        return False, (f"No answer: {refusal}", _describe_bounds(figures))
    reasons = [
        "Held-out bag proportions are predicted better than chance"
        f" (permutation test, {describe_p(figures.p_value)}). {describe_errors(figures)} This is about bags,"
        " not about single rows.",
        _describe_differences(figures),
    ]
    if figures.differences == "more":
        reasons.append(_describe_bounds(figures))
    elif figures.accuracy_low <= figures.largest_class + 1e-6:
        reasons.append("The accuracy is not shown to exceed that of always predicting the largest class.")
    if figures.noisy:
        reasons.append(
            "The proportions are noisy: the spread, the bounds and the interval of the accuracy do not hold."
        )
    elif figures.spread < 1 - figures.spread_tolerance:
        reasons.append(
            "The bags are more alike than random bags of these sizes; bags that differ more, or more bags,"
            " would say more."
        )
    return True, tuple(reasons)


def describe_p(p: float) -> str:
    """A p-value, which is never zero."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def describe_errors(figures: Diagnosis) -> str:
    """How far the proportions of bags are off, and how far the overall shares are."""
    error, without = (f"{100 * value:.1f}" for value in proportion_errors(figures))
    return (
        f"The mean proportion error is {error} points; it would be {without} if every bag got the overall"
        " shares."
    )


def proportion_errors(figures: Diagnosis) -> tuple[float, float]:
    """The mean proportion error of the predictions, and that of the overall shares."""
    return float(figures.bag_errors.double().mean()), figures.proportion_error_of_overall_shares


def outward(low: float, high: float, digits: int = 1) -> tuple[str, str]:
    """Certain bounds as percentages: the lower one is rounded down, the upper one up.

    A bound that is rounded to the nearest number may exclude what is possible.
    """
    scale = 10**digits
    ends = math.floor(100 * low * scale + 1e-6), math.ceil(100 * high * scale - 1e-6)
    return f"{ends[0] / scale:.{digits}f}", f"{ends[1] / scale:.{digits}f}"


def why_untested(figures: Diagnosis) -> str:
    """Why the bag correlation is not tested; "" if it is."""
    n_bags = len(figures.bag_errors)
    if n_bags < MIN_BAGS:
        return f"{n_bags} bags are too few for a permutation test; at least {MIN_BAGS} are needed"
    if figures.origin == "training":
        return "the model learned from these bags"
    if figures.spread < 1e-6:
        return "all bags have the same proportions"
    return ""


def _describe_differences(figures: Diagnosis) -> str:
    """What the differences between bags allow to say about single rows."""
    if figures.differences == "chance":
        return (
            f"The bags differ no more than random ones ({describe_p(figures.p_chance)}), so the accuracy of"
            " single rows can be estimated. The estimate is only right if rows did come into their bags by"
            " chance."
        )
    if figures.differences == "classes":
        return (
            "The bags differ in how common the classes are, and rows of a class look alike in all bags"
            f" ({describe_p(figures.p_classes)}), so the accuracy of single rows can be estimated. The"
            " estimate is only right if rows came into their bags by their class alone."
        )
    return (
        f"The bags differ by more than chance ({describe_p(figures.p_chance)}), and in more than their class"
        " shares: rows of a bag resemble each other. Which of the rows of such a bag belong to which class"
        " cannot be seen from totals, so there is no estimate of the accuracy of single rows, only bounds."
    )


def _describe_bounds(figures: Diagnosis) -> str:
    """The bounds of arithmetic in words."""
    low, high = outward(figures.accuracy_min, figures.accuracy_max)
    return (
        f"From the known totals alone, between {low} and {high} % of the rows are classified correctly,"
        f" whatever their classes are; {100 * figures.accuracy_if_unrelated:.1f} % if the model could tell"
        " bags apart, but not the rows of a bag."
    )


def _reason_for_no_answer(figures: Diagnosis, network: bool) -> str | None:
    """Why there is no answer, or None if there is one."""
    untested = why_untested(figures)
    if len(figures.bag_errors) < MIN_BAGS:
        return f"{untested}."
    if figures.origin == "training":
        return (
            "these predictions are for bags that the model was trained on, and a model can fit such bags"
            " better than any others. It was not judged by bags that it has not learned from."
        )
    if untested:
        return f"{untested}, so nothing tells the classes apart."
    if figures.p_value > SIGNIFICANCE:
        advice = (
            "the network is underfit (try more epochs or a larger batch) or overfit (if it predicts its"
            " training bags far better: try fewer epochs, or select the epoch on validation bags)"
            if network
            else "the model fits too little, or too much (if it predicts its training bags far better)"
        )
        return (
            "held-out bag proportions are predicted no better than chance"
            f" (permutation test, {describe_p(figures.p_value)}; the correlation is"
            f" {figures.correlation:.2f}, {figures.critical_correlation:.2f} would be needed)."
            f" {describe_errors(figures)} The features may carry no information about these classes, there"
            f" may be too few bags to show it, or {advice}."
        )
    if math.isnan(figures.accuracy) and figures.differences != "more":
        noise = ", or the noise of the proportions was misstated" if figures.noisy else ""
        return (
            "the accuracy cannot be estimated from these bags, because the estimate is above 100 %. Rows of"
            " a bag probably resemble each other, so that predictions follow the bag more than the class"
            f"{noise}."
        )
    return None


# --- bounds of arithmetic


class AccuracyBounds(NamedTuple):
    """What the predicted and the known classes of every bag allow. Fractions of all rows."""

    least: float
    most: float
    unrelated: float  # if predictions are independent of classes inside every bag


def accuracy_bounds(predicted: Tensor, known: Tensor, sizes: Tensor) -> AccuracyBounds:
    """Bounds of the accuracy from the shares (m, k) of predicted and of known classes in every bag.

    At best, every bag has as many correct rows of a class as were predicted and as there are, whichever is
    less. At worst, predictions miss wherever there are enough rows of other classes (Fréchet's bound).
    """
    predicted = _without_rounding(predicted, sizes)
    known = _without_rounding(known, sizes)
    weights = sizes.double() / float(sizes.sum())
    most = torch.minimum(predicted, known).sum(1)
    least = (predicted + known - 1).clamp_min(0).sum(1)
    unrelated = (predicted * known).sum(1)
    values = (float((weights * each).sum()) for each in (least, most, unrelated))
    low, high, middle = (min(1.0, max(0.0, value)) for value in values)
    return AccuracyBounds(low, high, min(high, max(low, middle)))


def _without_rounding(shares: Tensor, sizes: Tensor) -> Tensor:
    """Shares (m, k) as float64; shares of float32 are counts over sizes up to rounding."""
    n = sizes.double().unsqueeze(1)
    counts = shares.double() * n
    whole = counts.round()
    return torch.where((counts - whole).abs() <= 1e-6 * n + 1e-6, whole, counts) / n


# --- how informative the bags are


def bag_spread(proportions: Tensor, sizes: Tensor) -> tuple[float, float]:
    """The variance of proportions over that of random bags of these sizes, and three deviations of that."""
    spread, freedom = pearson_spread(proportions.double().numpy(), sizes.numpy())
    return spread, 3 * math.sqrt(2 / freedom)


def inverse_variance_weights(proportions: Tensor, sizes: Tensor) -> Tensor:
    """(m,) one over the variance of each bag's proportions, with mean 1.

    The variance has two parts, as in a random-effects meta-analysis (DerSimonian and Laird, 1986): bags
    differ for a reason, and by chance, the less the larger the bag.
    """
    known = proportions.double()
    n = sizes.double()
    rows = n.sum()
    freedom = len(n) - 1
    overall = (n @ known) / rows
    row_variance = float((overall * (1 - overall)).sum())
    excess = (n * (known - overall).square().sum(1)).sum() - freedom * row_variance
    between = (excess / (rows - n.square().sum() / rows - freedom).clamp_min(1e-12)).clamp(0, row_variance)
    weights = 1 / (between + (row_variance - between) / n).clamp_min(1e-12)
    return weights / weights.mean()


# --- the permutation test


def permutation_test(
    predicted: Tensor, known: Tensor, sizes: Tensor, n_permutations: int = 999, seed: int = 0
) -> tuple[float, Tensor]:
    """The bag correlation, and its values with the known proportions permuted among the bags.

    Proportions of small bags vary the most, predicted and known ones alike, so that plain permutations would
    be exceeded too often. Each bag's distance from the mean is therefore standardized before it is permuted.
    """
    weights = inverse_variance_weights(known, sizes).unsqueeze(1)

    def standardize(values: Tensor) -> Tensor:
        values = values.double()
        scaled = weights.sqrt() * (values - (weights * values).mean(0))
        return scaled - scaled.mean(0)

    predicted = standardize(predicted).flatten()
    known = standardize(known)
    scale = float(predicted.norm() * known.norm())
    if scale < 1e-9 * len(known):
        return 0.0, torch.zeros(n_permutations)
    orders = bag_permutations(len(known), n_permutations, seed)
    null = [predicted @ known.index_select(0, order).flatten() for order in orders]
    return float(predicted @ known.flatten()) / scale, torch.stack(null) / scale


def p_value_of(correlation: float, null: Tensor) -> float:
    """How often permuted proportions reach a correlation, which counts as one of them.

    Ties count. The tolerance is for the same products added in another order.
    """
    return (1 + int((null >= correlation - 1e-9).sum())) / (1 + len(null))


def bag_permutations(m: int, n: int, seed: int) -> Iterator[Tensor]:
    """`n` random permutations of m > 1 bags, or each but the identity once if there are no more than n."""
    if m < 10 and math.factorial(m) <= n:
        for order in itertools.islice(itertools.permutations(range(m)), 1, None):
            yield torch.tensor(order)
        return
    generator = torch.Generator().manual_seed(seed)
    for _ in range(n):
        yield torch.randperm(m, generator=generator)


def deflate_correlation(correlation: float) -> float:
    """A cross-validated correlation r, corrected for comparison with permuted ones: r² / (1 - r²) is halved.

    In cross-validation, two folds that agree by chance are predicted from each other, so chance counts twice.
    The variance of such correlations is twice that of permuted ones (docs/log.md). A perfect correlation
    stays perfect.
    """
    return correlation / math.sqrt(2 - correlation**2)


def inflate_correlation(correlation: float) -> float:
    """The inverse of `deflate_correlation`."""
    return correlation * math.sqrt(2 / (1 + correlation**2))


# --- the accuracy, estimated from bags


def estimate_accuracy(
    predicted: Tensor, known: Tensor, sizes: Tensor, fold_of_bag: Tensor | None = None, growth: float = 1.0
) -> tuple[float, float]:
    """The estimated accuracy, and half its 95 % interval, from proportions (m, k) alone.

    `predicted` are the proportions of the most probable classes. If a class is confused in the same way in
    every bag, they are a linear function of the known proportions, whose slopes are the rates of confusion.
    The interval is that of a jackknife over bags, and wider where the bags show that confusion varies.

    `fold_of_bag` (m,): bags were predicted in folds, by a network each, and are compared with those of their
    fold. If a fold has more of a class, the other folds have less, so its network expects less: compared with
    all bags, accuracies would be underestimated. `growth` of the jackknife's variance: see `shared_chance`.
    """
    known = known.double()
    predicted = predicted.double()
    freedom = 1.0
    if fold_of_bag is not None and len(sizes) > int(fold_of_bag.max()) + 1:
        known = _center_folds(known, sizes, fold_of_bag)
        predicted = _center_folds(predicted, sizes, fold_of_bag)
        freedom = (len(sizes) - 1) / (len(sizes) - len(fold_of_bag.unique()))
    n = sizes.double().unsqueeze(1)
    m, k = known.shape
    groups = min(m, JACKKNIFE_GROUPS)
    if k > MAX_CLASSES:
        products = torch.cat([torch.ones_like(n), known, predicted, known.square(), known * predicted], 1)
        weighted = n * products
        sums = torch.stack([weighted[i::groups].sum(0) for i in range(groups)])
        accuracy_from_sums = _accuracy_of_one_slope
    else:
        columns = torch.cat([torch.ones_like(n), known, predicted], 1)
        weighted = n * columns
        sums = torch.stack([columns[i::groups, : k + 1].T @ weighted[i::groups] for i in range(groups)])
        accuracy_from_sums = partial(_accuracy_from_sums, m=m)
    total = sums.sum(0)
    accuracy = float(accuracy_from_sums(total[None])[0])
    if m < 3:
        return accuracy, 1.0
    left_out = accuracy_from_sums(total - sums)
    deviation = math.sqrt((groups - 1) / groups * float((left_out - left_out.mean()).square().sum()))
    half_width = float(stdtrit(groups - 1, 0.975)) * deviation * math.sqrt(freedom * growth)
    return accuracy, math.hypot(half_width, varying_confusion(predicted, known, sizes))


def shared_chance(
    predicted: Tensor, known: Tensor, sizes: Tensor, fold_of_bag: Tensor | None = None
) -> float:
    """By what factor, 1 to 2, the variance of a cross-fitted accuracy exceeds that of a jackknife, at most.

    A network fits some of the chance of its training bags. Where such a bag and a held-out one agree by
    chance, the one is predicted from the other and, in another fold, the other from the one: a pair of bags
    counts twice. A jackknife, which takes predictions as given, sees it once. Only the part of the known
    proportions that predictions do not explain is chance. `deflate_correlation` is the same for a test.
    """
    known, predicted = known.double(), predicted.double()
    if fold_of_bag is not None:
        known, predicted = (_center_folds(each, sizes, fold_of_bag) for each in (known, predicted))
    n = sizes.double().unsqueeze(1)
    x, y = (each - (n * each).sum(0) / n.sum() for each in (known, predicted))
    squares = float((n * x.square()).sum() * (n * y.square()).sum())
    return 2 - float((n * x * y).sum()) ** 2 / max(squares, 1e-30)


def _center_folds(values: Tensor, sizes: Tensor, fold_of_bag: Tensor) -> Tensor:
    """Proportions (m, k), moved so that every fold has the overall mean."""
    n = sizes.double().unsqueeze(1)
    overall = (n * values).sum(0) / n.sum()
    moved = values.clone()
    for fold in fold_of_bag.unique().tolist():
        mine = fold_of_bag == fold
        moved[mine] += overall - (n[mine] * values[mine]).sum(0) / n[mine].sum()
    return moved


def accuracy_interval(
    predicted: Tensor,
    known: Tensor,
    sizes: Tensor,
    limits: tuple[float, float] = (0.0, 1.0),
    fold_of_bag: Tensor | None = None,
    growth: float = 1.0,
) -> tuple[float, float, float]:
    """The estimated accuracy and its 95 % interval, all within the limits; or NaN and the limits.

    An estimate far above one is not chance. Where rows of a bag resemble each other, their predictions
    follow the proportions of the bag, and more rows seem correct than there are.
    """
    least, most = limits
    accuracy, half_width = estimate_accuracy(predicted, known, sizes, fold_of_bag, growth)
    if accuracy > 1.1 or accuracy - 1 > max(0.01, 2 * half_width):
        return math.nan, least, most
    accuracy = min(most, max(least, accuracy))  # before its ends: an interval beyond would have no width
    return accuracy, max(least, accuracy - half_width), min(most, accuracy + half_width)


def varying_confusion(predicted: Tensor, known: Tensor, sizes: Tensor) -> float:
    """How far the accuracy may be off because confusion varies from bag to bag; 0 for random bags.

    The regression sees the confusion that goes along with the known proportions. The rest shows as residuals
    that vary more than chance explains; as much again is assumed to be hidden in the slopes.
    """
    spread, tolerance = bag_spread(known, sizes)
    if spread <= 1 + tolerance:
        return 0.0  # rows are in bags by chance, so confusion cannot go along with proportions
    n = sizes.double().unsqueeze(1)
    m, k = known.shape
    if k > MAX_CLASSES:
        return 1.0  # no single slope describes how so many classes are confused
    columns = torch.cat([torch.ones_like(n), known, predicted], 1)
    sums = columns[:, : k + 1].T @ (n * columns)
    pi, q, slopes, variance = (part[0] for part in _confusion_slopes(sums[None], m))
    residuals = predicted - q - (known - pi) @ slopes
    rates = (q - pi @ slopes + slopes).clamp(0, 1)  # (k, k) how often a class is predicted as another
    by_chance = float(pi @ (rates * (1 - rates)).sum(1))  # the variance of residuals, times the bag size
    two_deviations = 1 + 2 * math.sqrt(2 / ((m - 1) * (k - 1)))
    excess = float((n * residuals.square()).sum()) / (m - 1) - two_deviations * by_chance
    hidden = max(0.0, excess) / float(n.mean()) / float(variance)
    return math.sqrt(hidden) * (1 - float(pi.square().sum()))


def _accuracy_of_one_slope(sums: Tensor) -> Tensor:
    """Accuracies (r,) from weighted sums (r, 1 + 4k) of [1, known, predicted, known², known predicted]."""
    pi, q, squares, products = (sums[:, 1:] / sums[:, :1]).chunk(4, 1)
    variance = (squares - pi.square()).sum(1).clamp_min(1e-12)
    slope = (products - pi * q).sum(1) / variance
    return (pi * q).sum(1) + slope * (pi - pi.square()).sum(1)


def _accuracy_from_sums(sums: Tensor, m: int) -> Tensor:
    """Accuracies (r,) from the sums that `_confusion_slopes` takes."""
    pi, q, slopes, _ = _confusion_slopes(sums, m)
    covariance = torch.diag_embed(pi) - pi[:, :, None] * pi[:, None, :]  # of one row's class
    return (pi * q).sum(1) + (covariance * slopes.transpose(1, 2)).sum((1, 2))


def _confusion_slopes(sums: Tensor, m: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The regression of predicted on known proportions: their means, the slopes, the variance of the known.

    `sums` (r, 1 + k, 1 + 2k) are weighted sums over bags of products of [1, known, predicted]. Returns pi
    (r, k), q (r, k), slopes (r, k, k) and the variance (r,). All classes share one slope. Each pair of
    classes has its own deviation from it, shrunk by a ridge of k² / m.
    """
    k = sums.shape[1] - 1
    means = sums / sums[:, :1, :1]
    pi, q = means[:, 0, 1 : k + 1], means[:, 0, k + 1 :]
    own = means[:, 1:, 1 : k + 1] - pi[:, :, None] * pi[:, None, :]  # covariance of known proportions
    joint = means[:, 1:, k + 1 :] - pi[:, :, None] * q[:, None, :]  # covariance of known and predicted
    variance = own.diagonal(dim1=1, dim2=2).sum(1).clamp_min(1e-12)
    slope = (joint.diagonal(dim1=1, dim2=2).sum(1) / variance)[:, None, None]
    ridge = variance[:, None, None] / k * (k * k / m) * torch.eye(k, dtype=sums.dtype)
    slopes = slope * torch.eye(k, dtype=sums.dtype) + torch.linalg.solve(own + ridge, joint - slope * own)
    return pi, q, slopes, variance


# --- how certain single labels are


def label_margins(log_probs: Tensor, sizes: Tensor, classes: Tensor, prices: Tensor) -> Tensor:
    """A lower bound, (N,), on the loss of log-likelihood of a bag's labels if a row gets another class.

    It is in nats, and follows from the dual prices of the transport problem: no other row can gain what this
    one loses. Zero: another labeling is as likely. Infinity: the bag has only one class.
    """
    value = log_probs.double() - prices.repeat_interleave(sizes, 0)
    own = value.gather(1, classes.unsqueeze(1))
    best_other = value.scatter(1, classes.unsqueeze(1), -math.inf).amax(1, keepdim=True)
    return (own - best_other).squeeze(1)

"""Is a model any good? What held-out bags say about its predictions, without a single label.

`diagnose` answers three questions. Do predicted and known proportions of held-out bags correlate more than
by chance (a permutation test)? How many rows are predicted correctly (a regression over bags)? How certain
is the label of each row (the dual prices of optimal transport)? docs/diagnose.md explains the figures and
validates them on data with labels.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from scipy.special import stdtrit
from torch import Tensor

from apportion.bags.bags import Bags, bag_means
from apportion.bags.predictions import bags_of_predictions
from apportion.errors import DataError, SettingsError
from apportion.evaluate import entropy
from apportion.transport import assign_with_duals, round_to_counts

MIN_BAGS = 6  # fewer have too few permutations for a rare one
SIGNIFICANCE = 0.002  # the p-value up to which a correlation counts
MIN_PERMUTATIONS = 499  # fewer cannot show a p-value as small as SIGNIFICANCE
MAX_INTERVAL = 0.9  # an interval of the accuracy that is as wide as this says nothing
JACKKNIFE_GROUPS = 200  # groups of bags at most, each left out once


@dataclass(frozen=True)
class Diagnosis:
    """What held-out bags say about predictions. `supported` is the verdict, `reasons` say why.

    Attributes
    ----------
    supported : bool
        False: the data cannot support an answer, or nothing shows that it can.
    reasons : tuple of str
        The verdict in plain English, one sentence or more each.
    spread, spread_tolerance : float
        The variance of the bags' proportions over that of random bags of the same sizes: about 1 for random
        bags, 0 if all bags are alike. Random bags stay within 1 ± `spread_tolerance` (three deviations).
    correlation, critical_correlation, p_value : float
        The correlation of predicted and known proportions over bags, weighted by their inverse variances; the
        correlation that the permutation test requires; and its p-value.
    accuracy, accuracy_low, accuracy_high : float
        The estimated fraction of rows whose most probable class is correct, and its 95 % interval. NaN if it
        cannot be estimated from these bags.
    largest_class : float
        The overall proportion of the largest class: the accuracy of always predicting it.
    agreement : float
        The fraction of rows whose most probable class is also their class by optimal transport.
    entropy : float
        The mean entropy of the predictions over that of a uniform one: 0 is certain, 1 is uniform.
    bag_errors : Tensor (m,)
        The proportion error of each bag: half the L1 distance of predicted and known proportions.
    classes : Tensor (N,)
        The class of each row by optimal transport: the most likely labels that have every bag's counts.
    margins : Tensor (N,)
        How certain each of these classes is; see `label_margins`.
    noisy : bool
        The proportions were noisy and have been denoised: `spread` and the interval of `accuracy` do not
        hold then.
    """

    supported: bool
    reasons: tuple[str, ...]
    spread: float
    spread_tolerance: float
    correlation: float
    critical_correlation: float
    p_value: float
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    largest_class: float
    agreement: float
    entropy: float
    bag_errors: Tensor
    classes: Tensor
    margins: Tensor
    noisy: bool = False


def diagnose(
    probabilities: Any,
    bags: Any,
    proportions: Any,
    *,
    classes: Any = None,
    cross_validated: bool = False,
    n_permutations: int = 1999,
) -> Diagnosis:
    """Diagnose predictions of any classifier for rows in bags that it has not learned from.

    Parameters
    ----------
    probabilities : array-like (N, k) or data frame
        The predicted probabilities of the rows, from held-out bags or from cross-validation by bag.
    bags : array-like (N,)
        The bag of each row.
    proportions : table or Proportions
        The known proportions of the bags, in any form that `ProportionClassifier.fit` accepts. All bags need
        them. `Proportions(std=...)` are denoised first.
    classes : sequence, optional
        The classes of the columns of `probabilities`, such as `model.classes_`. A table and a data frame of
        predictions are aligned by the names of their columns.
    cross_validated : bool, default=False
        The predictions come from cross-validation: a stricter permutation test is then needed.
    n_permutations : int, default=1999
        Random permutations of the test, at least 499.

    Returns
    -------
    Diagnosis
        Its rows are in the order of `probabilities`.

    Examples
    --------
    Predictions that are right for nine rows of ten; `diagnose` does not see the labels `y`.

    >>> import numpy as np
    >>> from apportion import diagnose
    >>> rng = np.random.default_rng(0)
    >>> bags = np.repeat(np.arange(40), 20)
    >>> y = rng.random(800) < rng.random(40)[bags]
    >>> proportions = np.stack([np.bincount(bags, ~y), np.bincount(bags, y)], axis=1) / 20
    >>> p = np.where(rng.random(800) < 0.9, np.where(y, 0.9, 0.1), np.where(y, 0.1, 0.9))
    >>> diagnosis = diagnose(np.column_stack([1 - p, p]), bags, proportions)
    >>> diagnosis.supported, round(diagnosis.accuracy, 2)
    (True, 0.9)
    """
    built = bags_of_predictions(
        probabilities, bags, proportions, classes, unavailable=frozenset(["missing_bags"])
    ).bags
    for i in built.proportions.isnan().any(1).nonzero().flatten().tolist():
        raise DataError(f"{built.name(i)} has no proportions; leave its rows out", bag=built.ids[i])
    log_probs = built.x.double().clamp_min(1e-38).log()
    noisy = built.precision is not None
    diagnosis = diagnose_bags(
        log_probs, built, cross_validated=cross_validated, n_permutations=n_permutations, noisy=noisy
    )
    original_order = built.source.argsort()
    return replace(
        diagnosis, classes=diagnosis.classes[original_order], margins=diagnosis.margins[original_order]
    )


def diagnose_bags(
    log_probs: Tensor,
    bags: Bags,
    *,
    cross_validated: bool = False,
    n_permutations: int = 1999,
    seed: int = 0,
    noisy: bool = False,
) -> Diagnosis:
    """`diagnose` for log-probabilities (N, k) in the order of `Bags`.

    `noisy`: the proportions of the bags have been denoised.
    """
    if n_permutations < MIN_PERMUTATIONS:
        raise SettingsError(f"n_permutations is {n_permutations}; pass at least {MIN_PERMUTATIONS}")
    log_probs = log_probs.double()
    known = bags.proportions.double()
    sizes = bags.sizes
    predicted = bag_means(log_probs.exp(), sizes)
    top = log_probs.argmax(1)
    hard = bag_means(F.one_hot(top, bags.n_classes).double(), sizes)
    solution = assign_with_duals(log_probs, sizes, round_to_counts(bags.proportions, sizes))
    spread, spread_tolerance = bag_spread(known, sizes)
    correlation, null = permutation_test(predicted, known, sizes, n_permutations, seed)
    critical = float(null.quantile(1 - SIGNIFICANCE))
    if cross_validated:
        critical = inflate_correlation(critical)
    statistic = deflate_correlation(correlation) if cross_validated else correlation
    # Ties count. The tolerance is for the same products added in another order.
    n_reached = int((null >= statistic - 1e-9).sum())
    accuracy, accuracy_low, accuracy_high = accuracy_interval(hard, known, sizes)
    figures = Diagnosis(
        supported=False,
        reasons=(),
        spread=spread,
        spread_tolerance=spread_tolerance,
        correlation=correlation,
        critical_correlation=critical,
        p_value=(1 + n_reached) / (1 + len(null)),
        accuracy=accuracy,
        accuracy_low=accuracy_low,
        accuracy_high=accuracy_high,
        largest_class=float(bags.overall.max()),
        agreement=float((solution.classes == top).double().mean()),
        entropy=float(entropy(log_probs).mean() / math.log(bags.n_classes)),
        bag_errors=(predicted - known).abs().sum(1) / 2,
        classes=solution.classes,
        margins=label_margins(log_probs, sizes, solution.classes, solution.prices),
        noisy=noisy,
    )
    supported, reasons = verdict(figures)
    return replace(figures, supported=supported, reasons=reasons)


# --- the verdict


def verdict(figures: Diagnosis) -> tuple[bool, tuple[str, ...]]:
    """Whether the figures support an answer, and the reasons in plain English."""
    refusal = _reason_for_no_answer(figures)
    if refusal is not None:
        return False, (f"No answer: {refusal}",)
    reasons = [
        "Held-out bag proportions are predicted better than chance"
        f" (permutation test, p = {figures.p_value:.2g})."
    ]
    if figures.noisy:
        reasons.append("The proportions are noisy: the spread and the interval of the accuracy do not hold.")
    elif figures.spread < 1 - figures.spread_tolerance:
        reasons.append(
            "The bags are more alike than random bags of these sizes; bags that differ more, or more bags,"
            " would say more."
        )
    if figures.spread > 1 + figures.spread_tolerance:
        reasons.append(
            "The bags differ more than random bags would; if rows of a bag resemble each other, the accuracy"
            " is overestimated."
        )
    if figures.accuracy_low <= figures.largest_class:
        reasons.append("The accuracy is not shown to exceed that of always predicting the largest class.")
    return True, tuple(reasons)


def _reason_for_no_answer(figures: Diagnosis) -> str | None:
    """Why there is no answer, or None if there is one."""
    n_bags = len(figures.bag_errors)
    if figures.spread < 1e-6:
        return "all bags have the same proportions, so nothing tells the classes apart."
    if n_bags < MIN_BAGS:
        return f"{n_bags} bags are too few for a permutation test; at least {MIN_BAGS} are needed."
    if figures.p_value > SIGNIFICANCE:
        return (
            "held-out bag proportions are predicted no better than chance"
            f" (permutation test, p = {figures.p_value:.2g}; the correlation is {figures.correlation:.2f},"
            f" {figures.critical_correlation:.2f} would be needed). The features may carry no information"
            " about these classes, there may be too few bags to show it, or the network is underfit (try more"
            " epochs or a larger batch) or overfit (if it predicts its training bags far better: try fewer"
            " epochs, or select the epoch on validation bags)."
        )
    if math.isnan(figures.accuracy):
        noise = ", or the noise of the proportions was misstated" if figures.noisy else ""
        return (
            "the accuracy cannot be estimated from these bags, because the estimate is above 100 %. Rows of"
            " a bag probably resemble each other, so that predictions follow the bag more than the class"
            f"{noise}."
        )
    return None


# --- how informative the bags are


def bag_spread(proportions: Tensor, sizes: Tensor) -> tuple[float, float]:
    """The variance of proportions over that of random bags of these sizes, and three deviations of that.

    It is Pearson's statistic over its degrees of freedom: about 1 for random bags.
    """
    known = proportions.double()
    n = sizes.unsqueeze(1).double()
    overall = (known * n).sum(0) / n.sum()
    present = overall > 0
    statistic = (n * (known - overall).square())[:, present] / overall[present]
    freedom = max(1, (len(sizes) - 1) * (int(present.sum()) - 1))
    return float(statistic.sum()) / freedom, 3 * math.sqrt(2 / freedom)


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

    predicted = standardize(predicted)
    known = standardize(known)
    scale = float(predicted.norm() * known.norm())
    if scale < 1e-9 * len(known):
        return 0.0, torch.zeros(n_permutations)
    null = [(predicted * known[order]).sum() for order in bag_permutations(len(known), n_permutations, seed)]
    return float((predicted * known).sum()) / scale, torch.stack(null) / scale


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


def estimate_accuracy(predicted: Tensor, known: Tensor, sizes: Tensor) -> tuple[float, float]:
    """The estimated accuracy, and half its 95 % interval, from proportions (m, k) alone.

    `predicted` are the proportions of the most probable classes. If a class is confused in the same way in
    every bag, they are a linear function of the known proportions, whose slopes are the rates of confusion.
    The interval is that of a jackknife over bags, and wider where the bags show that confusion varies.
    """
    known = known.double()
    predicted = predicted.double()
    n = sizes.double().unsqueeze(1)
    m, k = known.shape
    columns = torch.cat([torch.ones_like(n), known, predicted], 1)
    weighted = n * columns
    groups = min(m, JACKKNIFE_GROUPS)
    sums = torch.stack([columns[i::groups, : k + 1].T @ weighted[i::groups] for i in range(groups)])
    total = sums.sum(0)
    accuracy = float(_accuracy_from_sums(total[None], m)[0])
    if m < 3:
        return accuracy, 1.0
    left_out = _accuracy_from_sums(total - sums, m)
    deviation = math.sqrt((groups - 1) / groups * float((left_out - left_out.mean()).square().sum()))
    half_width = float(stdtrit(groups - 1, 0.975)) * deviation
    return accuracy, math.hypot(half_width, varying_confusion(predicted, known, sizes))


def accuracy_interval(predicted: Tensor, known: Tensor, sizes: Tensor) -> tuple[float, float, float]:
    """The estimated accuracy and its 95 % interval, all within [0, 1]; or NaN, 0 and 1.

    An estimate far above one is not chance. Where rows of a bag resemble each other, their predictions
    follow the proportions of the bag, and more rows seem correct than there are.
    """
    accuracy, half_width = estimate_accuracy(predicted, known, sizes)
    if accuracy > 1.1 or accuracy - 1 > max(0.01, 2 * half_width):
        return math.nan, 0.0, 1.0
    accuracy = min(1.0, max(0.0, accuracy))  # before its ends: an interval beyond one would have no width
    return accuracy, max(0.0, accuracy - half_width), min(1.0, accuracy + half_width)


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

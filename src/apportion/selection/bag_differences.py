"""How do bags differ: by chance, in their classes alone, or in other ways as well?

The accuracy of single rows can be estimated from bags only if rows came into their bags by chance, or by
their class alone. Both have consequences that can be tested without labels. The tests ask whether bags
differ in their proportions, in their predictions and in their features more than that.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from narwhals.dependencies import is_pandas_dataframe, is_polars_dataframe
from scipy.stats import chi2
from torch import Tensor

from apportion._random import stream
from apportion.bags.bags import Bags, bag_means, bag_sums
from apportion.encoding import TableEncoder

LEVEL = 0.001  # bags made by chance fail each of three tests this often
LEVEL_OF_CLASSES = 0.01  # stricter: bags that differ have to look alike inside every class
MAX_ROWS = 200_000  # a random sample of the rows is tested
MAX_FEATURES = 16  # more are projected to so many random directions
MAX_PREDICTIONS = 64  # so are the predictions of more classes
MIN_FREEDOM = 6  # bags beyond the number of classes

Differences = Literal["chance", "classes", "more"]


@dataclass(frozen=True)
class BagDifferences:
    """How bags differ, and the p-values that say so.

    Attributes
    ----------
    kind : {"chance", "classes", "more"}
        Bags differ as by chance; or in their proportions, while rows of a class look alike in all bags; or in
        other ways too.
    p_chance : float
        The smallest p-value of three tests that bags are random: of proportions, predictions and features.
    p_classes : float
        The smaller p-value of two tests that rows of a class look alike in all bags.
    """

    kind: Differences
    p_chance: float
    p_classes: float


def find_differences(
    probabilities: Tensor,
    bags: Bags,
    features: Tensor | None = None,
    *,
    fold_of_bag: Tensor | None = None,
    weight: Tensor | None = None,
    noisy: bool = False,
) -> BagDifferences:
    """How bags with known proportions differ.

    `probabilities` (N, k) are in the order of the bags; `features` (n, d) are those of `sample_rows(N)`.
    `fold_of_bag` (m,): the bags of each fold were predicted by another network, whose predictions may differ.
    `weight` (N,): how many equal rows each row stands for. `noisy`: the proportions have been denoised, and
    say nothing about chance.
    """
    known = bags.proportions.double()
    rows = sample_rows(len(probabilities))
    bag = torch.repeat_interleave(torch.arange(len(bags.sizes)), bags.sizes)[rows]
    sizes = torch.bincount(bag, minlength=len(bags.sizes))
    kept = sizes > 0  # all of them, unless rows were sampled
    sizes = sizes[kept]
    known_kept = known[kept]
    one_fold = torch.zeros(len(sizes), dtype=torch.int64)
    fold = one_fold if fold_of_bag is None else fold_of_bag[kept]
    predictions = _project(probabilities[rows].double(), MAX_PREDICTIONS)
    mass = bags.sizes if weight is None else _count(bags.sizes, weight)
    p_proportions = 1.0 if noisy else p_value_of_proportions(known, mass)
    w = None if weight is None else weight[rows]
    white = _whiten(predictions, sizes, fold, w)
    p_measures = [_p_value_of_chance(white, sizes, fold, w)]
    p_classes = _p_value_of_classes(white, sizes, known_kept, fold, w)
    if features is not None and features.shape[1]:
        white = _whiten(features.double(), sizes, one_fold, w)
        p_measures.append(_p_value_of_chance(white, sizes, one_fold, w))
        p_classes = min(p_classes, _p_value_of_classes(white, sizes, known_kept, one_fold, w))
    p_chance = min(p_proportions, *p_measures)
    kind: Differences = "more"
    if p_chance > LEVEL:
        kind = "chance"
    elif p_proportions <= LEVEL and p_measures[0] <= LEVEL and p_classes > LEVEL_OF_CLASSES:
        kind = "classes"
    return BagDifferences(kind, p_chance, p_classes)


def sample_rows(n: int) -> Tensor:
    """The rows of n that are tested, in ascending order."""
    if n <= MAX_ROWS:
        return torch.arange(n)
    return torch.randperm(n, generator=stream(0, "rows of a test"))[:MAX_ROWS].sort().values


# --- are bags random?


def p_value_of_proportions(known: Tensor, sizes: Tensor) -> float:
    """The p-value of proportions (m, k) of random bags: Pearson's test of homogeneity.

    Its variance has a term for rare classes in bags of unequal sizes, which Pearson's approximation lacks.
    """
    n = sizes.double()
    overall = (n @ known) / n.sum()
    present = overall > 0
    k = int(present.sum())
    if k < 2 or len(sizes) < 2:
        return 1.0
    overall = overall[present]
    statistic = float((n.unsqueeze(1) * (known[:, present] - overall).square() / overall).sum())
    kurtosis = float((1 / overall).sum()) - 2 * k + 1 - (k - 1) * (k + 1)
    return _p_value(statistic, n, k - 1, kurtosis)


def p_value_of_chance(
    values: Tensor, sizes: Tensor, fold_of_bag: Tensor, weight: Tensor | None = None
) -> float:
    """The p-value of values (N, d), of rows sorted by bag, if rows are in bags by chance: Pillai's trace.

    Bags are compared with those of the same fold. A row of weight 3 is three equal rows.
    """
    return _p_value_of_chance(_whiten(values, sizes, fold_of_bag, weight), sizes, fold_of_bag, weight)


def _p_value_of_chance(
    white: Tensor, sizes: Tensor, fold_of_bag: Tensor, weight: Tensor | None = None
) -> float:
    folds = len(fold_of_bag.unique())
    if white.shape[1] == 0 or len(sizes) <= folds:
        return 1.0
    n = _count(sizes, weight)
    statistic = float((n.unsqueeze(1) * bag_means(white, sizes, weight).square()).sum())
    d = white.shape[1]
    kurtosis = float(_mean(white.square().sum(1).square(), weight)) - d * (d + 2)
    return _p_value(statistic, n, d, kurtosis, folds)


def _p_value(statistic: float, n: Tensor, d: int, kurtosis: float, folds: int = 1) -> float:
    """P of the sum over bags and d dimensions of n times squared means, by a scaled chi-square.

    The values are white over all rows, whose assignment to bags is permuted. The first two moments match.
    """
    m = len(n)
    rows = float(n.sum())
    mean = d * (m - folds) * rows / (rows - folds)
    variance = 2 * d * (m - folds) * max(rows - m, 1e-9) / rows + kurtosis * (
        float((1 / n).sum()) - m * m / rows
    )
    scale = max(variance, 1e-9 * mean) / (2 * mean)
    return float(chi2.sf(statistic / scale, mean / scale))


def _count(sizes: Tensor, weight: Tensor | None) -> Tensor:
    """(m,) the rows of each bag, or the sum of their weights."""
    return sizes.double() if weight is None else bag_sums(weight.unsqueeze(1), sizes).squeeze(1)


def _mean(values: Tensor, weight: Tensor | None) -> Tensor:
    """The mean over the rows of values (N, ...)."""
    return values.mean(0) if weight is None else torch.tensordot(weight, values, 1) / weight.sum()


def _whiten(values: Tensor, sizes: Tensor, fold_of_bag: Tensor, weight: Tensor | None = None) -> Tensor:
    """Values (N, d) as at most d uncorrelated directions of variance 1, around 0 in every fold."""
    n = _count(sizes, weight).unsqueeze(1)
    folds = int(fold_of_bag.max()) + 1
    sums = values.new_zeros(folds, values.shape[1])
    sums.index_add_(0, fold_of_bag, n * bag_means(values, sizes, weight))
    rows = n.new_zeros(folds, 1).index_add_(0, fold_of_bag, n)
    centers = (sums / rows.clamp_min(1))[fold_of_bag]
    centered = values - centers.repeat_interleave(sizes, 0)
    deviation = _mean(centered.square(), weight).sqrt()
    varies = deviation > 1e-9 * (1 + values.abs().amax(0))
    centered = centered[:, varies] / deviation[varies]
    if centered.shape[1] == 0:
        return centered
    variances, directions = torch.linalg.eigh(_products(centered, weight) / n.sum())
    kept = variances > 1e-6
    return centered @ (directions[:, kept] / variances[kept].sqrt())


def _products(values: Tensor, weight: Tensor | None) -> Tensor:
    """(d, d) sums over the rows of the products of values (N, d)."""
    return values.T @ (values if weight is None else weight.unsqueeze(1) * values)


# --- do rows of a class look alike in all bags?


def p_value_of_classes(
    values: Tensor, sizes: Tensor, known: Tensor, fold_of_bag: Tensor, weight: Tensor | None = None
) -> float:
    """The p-value of values (N, d), sorted by bag, if rows of a class look alike in all bags of a fold.

    The mean of a bag is then the mean of its classes' means, weighted by its proportions, up to the chance
    of the variance inside classes. 0 if too few bags can show it.
    """
    white = _whiten(values, sizes, fold_of_bag, weight)
    return _p_value_of_classes(white, sizes, known, fold_of_bag, weight)


def _p_value_of_classes(
    white: Tensor, sizes: Tensor, known: Tensor, fold_of_bag: Tensor, weight: Tensor | None = None
) -> float:
    m, k = known.shape
    d = white.shape[1]
    design = torch.cat([known, torch.nn.functional.one_hot(fold_of_bag).double()[:, 1:]], 1)
    if d == 0 or m - design.shape[1] < MIN_FREEDOM:
        return 0.0
    n = _count(sizes, weight).unsqueeze(1)
    rows = float(n.sum())
    means = bag_means(white, sizes, weight)
    gram = design.T @ (n * design)
    inverse = torch.linalg.pinv(gram, rtol=1e-9, hermitian=True)
    rank = int(torch.linalg.matrix_rank(gram, rtol=1e-9, hermitian=True))
    coefficients = inverse @ (design.T @ (n * means))
    residuals = means - design @ coefficients
    class_means = coefficients[:k]  # up to a constant, which cancels
    mixed = known @ class_means
    rows_of_class = (n * known).sum(0)
    between = class_means.T @ (rows_of_class.unsqueeze(1) * class_means) - mixed.T @ (n * mixed)
    within = _products(white, weight) - means.T @ (n * means) - between  # inside a class and a bag
    spread_of_classes = torch.diag(rows_of_class) - known.T @ (n * known)
    from_noise = float((inverse[:k, :k] * spread_of_classes).sum())  # of class means, in `between`
    freedom = rows - m - from_noise
    if freedom < 1:
        return 0.0
    covariance = within / freedom
    if float(torch.linalg.eigvalsh(covariance).min()) <= 1e-9:
        return 0.0
    statistic = float(torch.linalg.solve(covariance, residuals.T @ (n * residuals)).trace())
    return float(chi2.sf(statistic, d * (m - rank)))


# --- features


def features_for_tests(X: Any) -> Tensor | None:
    """Instances as a few numbers each, (n, at most 16); None if they are not numbers.

    Frames are encoded. Many features become some random directions of the standardized ones.
    """
    if is_pandas_dataframe(X) or is_polars_dataframe(X):
        X = TableEncoder().fit(X).transform(X)
    elif hasattr(X, "toarray"):
        X = X.toarray()
    try:
        array = X.detach().cpu() if isinstance(X, Tensor) else torch.from_numpy(np.asarray(X))
    except (TypeError, ValueError):
        return None
    x = array.reshape(len(array), -1).float()
    if not bool(x.isfinite().all()):
        return None
    x = x - x.mean(0)
    deviation = x.square().mean(0).sqrt()
    x = x[:, deviation > 0] / deviation[deviation > 0]
    return _project(x, MAX_FEATURES)


def _project(x: Tensor, most: int) -> Tensor:
    """Values (n, d) along `most` random directions, if d is larger."""
    if x.shape[1] <= most:
        return x
    generator = stream(0, "directions of a test")
    return x @ torch.randn(x.shape[1], most, generator=generator).to(x)

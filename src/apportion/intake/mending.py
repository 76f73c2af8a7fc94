"""Proportions as they really are: noisy, rounded, of other totals, missing; and a few given labels."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from apportion.bags.bags import Bags, exact_bag_means
from apportion.errors import DataError
from apportion.intake.filling import Foretold, denoised
from apportion.intake.forms import bags_from, one_source, table_shares
from apportion.intake.gaps import check_noise, check_table, complete, refuse_alike, refuse_far, rescaling
from apportion.intake.given import given_rows, placed_labels, with_given
from apportion.intake.grouping import bags_of
from apportion.intake.ids import groups_of
from apportion.intake.instances import as_instances
from apportion.intake.remedies import ESTIMATOR
from apportion.intake.sound import check_numbers, check_shape, checked_shares, shares_of_counts
from apportion.intake.weights import Relax, weights_by, weights_of
from apportion.pseudo_labels import Labeler, hard_labels
from apportion.transport import entropic_plan

Noise = float | str | None


class Mended(NamedTuple):
    bags: Bags  # bags without proportions have NaN for them; given labels are bags of one class
    classes: np.ndarray  # (k,) sorted
    relax: Relax  # how much the proportions weigh against predictions when labels are made; infinite: exact


def mended_bags(
    x: Any, y: Any = None, ids: Any = None, *, proportions: Any = None, counts: Any = None,
    classes: Any = None, noise: Noise = None, normalize: bool = False, unlabeled: bool = False,
    fill: bool = False, given: Any = None, differ: bool = True,
) -> Mended:  # fmt: skip
    """`bags_from` for tables that need an option; without any it is the same.

    `noise` is the standard deviation of the error of each number in the table, or "estimate". `normalize`
    rescales numbers of another total, and their noise. `unlabeled` takes bags whose row is all NaN, is None
    or is not there. `fill` takes rows of which some are: these classes have what is left. `given` are classes
    of single rows: {row: class}, or a pandas series by the index of `x`. Bags that do not `differ` are
    refused, unless others stand beside them.
    """
    relax, known = math.inf, None
    table = counts if proportions is None else proportions
    check_table(table, normalize=normalize, unlabeled=unlabeled, fill=fill)
    given = given_rows(placed_labels(given, x, ids), len(x))
    if noise is not None or normalize or unlabeled or fill:
        if table is None or ids is None:
            raise DataError("noise, normalize, unlabeled, fill are for tables; pass proportions= or counts=")
        one_source(y, table)
        names, _, sizes = groups = groups_of(ids, len(x))
        gap, way = math.nan if fill else 0.0, ESTIMATOR._replace(absent=unlabeled)
        values, classes = table_shares(proportions, counts, groups, classes, gap=gap, scaled=False, way=way)
        check_shape(values)
        if fill:
            values = complete(values, sizes, names, whole=counts is not None, normalize=normalize)
        known = ~np.isnan(values).all(1) if unlabeled else np.ones(len(values), bool)
        if not known.any():
            raise DataError("no bag has proportions, so that there is nothing to learn from")
        shares, there = np.full_like(values, 1 / values.shape[1]), np.flatnonzero(known)
        names = [names[i] for i in there.tolist()]
        shares[there], relax = mended_shares(
            values[there], sizes[there], names, noise, classes, normalize=normalize, whole=counts is not None
        )
        bags = bags_of(as_instances(x), groups, checked_shares(shares, groups, False, classes))
    else:
        bags, classes = bags_from(x, y, ids, proportions=proportions, counts=counts, classes=classes)
    if known is not None and not known.all():
        gaps = torch.from_numpy(~known).unsqueeze(1)
        bags = replace(bags, proportions=bags.proportions.masked_fill(gaps, math.nan))
    bags = with_given(bags, given, classes, sure=noise is None) if given else bags
    if differ:
        refuse_alike(bags)
    return Mended(bags, classes, relax)


def mended_shares(
    values: np.ndarray, sizes: np.ndarray, names: Sequence[Hashable], noise: Noise, classes: Any = None, *,
    normalize: bool, whole: bool, told: Foretold | None = None,
) -> tuple[np.ndarray, Relax]:  # fmt: skip
    """Shares (m, k) of numbers that are noisy or of other totals, and what each bag's weigh in transport;
    noisy ones are drawn to what predictions have `told`, if any have."""
    check_noise(noise)
    totals, level = sizes.astype(float) if whole else np.ones(len(sizes)), noise
    if noise is None:
        check_numbers(values, names, classes, whole=whole)
    if normalize:
        scale = rescaling(values, totals, names, noise)
        values, level = values * scale, None if noise is None else noise * scale
    if noise is None and whole:
        return shares_of_counts(values, (names, np.empty(0), sizes), classes), math.inf
    if level is None:
        return values, math.inf
    refuse_far(values, totals, names, level, whole=whole)
    shares, weights = denoised(values, sizes, level, whole=whole, told=told)
    return shares, weights_by(names, weights)


def on_belief(label: Labeler, bags: Bags, relax: Relax) -> Labeler:
    """The labeller of these bags with, for each, the shares that predictions and uncertain ones agree on."""
    weights = weights_of(bags, relax)
    return lambda log_probs, sizes, proportions: label(
        log_probs, sizes, believed(log_probs, sizes, proportions, weights)
    )


def believed(
    log_probs: Tensor, sizes: Tensor, proportions: Tensor, relax: float | Tensor = math.inf
) -> Tensor:
    """Shares (m, k): the known ones; where there are none, the predicted; with finite `relax`, the masses of
    the relaxed plan. Labels that have their whole counts are then exact."""
    known = proportions.isfinite().all(1, keepdim=True)
    exact = bool((torch.as_tensor(relax) == math.inf).all())
    if exact and bool(known.all()):
        return proportions
    filled = torch.where(known, proportions, exact_bag_means(log_probs.exp(), sizes).to(proportions))
    filled = filled / filled.sum(1, keepdim=True)
    if exact:
        return filled
    mass = entropic_plan(log_probs, sizes, filled, reg=1.0, precision=relax).mass.to(filled)
    return exact_bag_means(mass, sizes).to(filled)


def transduced(log_probs: Tensor, bags: Bags, relax: Relax = math.inf) -> np.ndarray:
    """(N,) classes in the order of the user's rows: the likeliest that have the counts of every bag."""
    labels = on_belief(hard_labels, bags, relax)(log_probs, bags.sizes, bags.proportions)
    found = np.empty(len(bags.x), np.int64)
    found[bags.source] = labels.argmax(1).cpu()
    return found

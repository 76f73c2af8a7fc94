"""Pseudo-labels: they match the proportions, exact, soft, uncertain or unknown, and what limits they have."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from apportion._random import stream
from apportion.bags.bags import Bags, exact_bag_means
from apportion.bags.groupings import join_groupings
from apportion.pseudo_labels import (
    PSEUDO_LABELS,
    SoftLabels,
    argmax_labels,
    hard_labels,
    make_labeler,
    predicted_labels,
    predicted_proportions,
    relaxed_proportions,
    soft_labels,
    transduce,
)
from apportion.transport import entropic_plan


def problem(sizes=(4, 1, 7, 16), k: int = 3, seed: int = 0):
    """Log-probabilities, sizes, and proportions that are whole counts over the sizes."""
    generator = stream(seed, "labeling")
    counts = [torch.bincount(torch.randint(k, (n,), generator=generator), minlength=k) / n for n in sizes]
    log_probs = torch.randn(sum(sizes), k, generator=generator).mul(2).log_softmax(1)
    return log_probs, torch.tensor(sizes), torch.stack(counts)


def class_masses(labels, sizes):
    return torch.stack([part.sum(0) for part in labels.split(sizes.tolist())])


@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(2, 5), st.integers(0, 100))
def test_hard_labels_are_one_hot_and_have_the_counts_of_every_bag(sizes, k, seed):
    log_probs, sizes, shares = problem(sizes, k, seed)
    labels = hard_labels(log_probs, sizes, shares)
    assert set(labels.unique().tolist()) <= {0.0, 1.0}
    assert torch.equal(labels.sum(1), torch.ones(len(labels)))
    torch.testing.assert_close(class_masses(labels, sizes), shares * sizes[:, None])


def test_hard_labels_are_the_best_of_all_labelings_with_these_counts():
    log_probs, sizes, shares = problem((6,), 3)
    classes = [c for c in range(3) for _ in range(round(float(shares[0, c] * 6)))]
    best = max(
        sum(log_probs[i, c] for i, c in enumerate(way)) for way in set(itertools.permutations(classes))
    )
    got = (hard_labels(log_probs, sizes, shares) * log_probs).sum()
    assert got.item() == pytest.approx(float(best), rel=1e-5)


def test_hard_labels_of_proportions_that_are_not_whole_are_of_the_nearest_counts():
    log_probs = torch.randn(10, 3, generator=stream(0)).log_softmax(1)
    labels = hard_labels(log_probs, torch.tensor([10]), torch.tensor([[0.33, 0.33, 0.34]]))
    assert sorted(labels.sum(0).tolist()) == [3.0, 3.0, 4.0]
    assert labels.sum(0)[2] == 4.0


@pytest.mark.parametrize("reg", [0.1, 1.0])
def test_soft_labels_sum_to_one_and_meet_the_proportions(reg):
    log_probs, sizes, shares = problem()
    labels = soft_labels(log_probs, sizes, shares, reg)
    torch.testing.assert_close(labels.sum(1), torch.ones(len(labels)))
    torch.testing.assert_close(class_masses(labels, sizes) / sizes[:, None], shares, rtol=0, atol=1e-5)


def test_soft_labels_tend_to_the_hard_ones_as_reg_falls():
    log_probs, sizes, shares = problem((16, 16), 3, seed=1)
    hard = hard_labels(log_probs, sizes, shares)
    away = [
        float((soft_labels(log_probs, sizes, shares, reg) - hard).abs().mean()) for reg in (3.0, 0.3, 0.003)
    ]
    assert away == sorted(away, reverse=True)
    assert away[-1] < 0.01
    assert away[0] > 0.1


def test_soft_labels_tend_to_the_proportions_as_reg_grows():
    log_probs, sizes, shares = problem((8,), 3)
    labels = soft_labels(log_probs, sizes, shares, 1e4)
    torch.testing.assert_close(labels, shares.expand(8, 3), rtol=0, atol=1e-3)


def test_relaxed_labels_lie_between_the_prediction_and_the_constraint():
    log_probs, sizes, shares = problem((8, 8), 3)
    free, tight = soft_labels(log_probs, sizes, shares, 1.0, 1e-6), soft_labels(log_probs, sizes, shares, 1.0)
    torch.testing.assert_close(soft_labels(log_probs, sizes, shares, 1.0, 1e6), tight, rtol=0, atol=1e-4)
    torch.testing.assert_close(free, log_probs.softmax(1), rtol=0, atol=1e-4)
    gaps = [
        float(
            (class_masses(soft_labels(log_probs, sizes, shares, 1.0, precision), sizes) / 8 - shares)
            .abs()
            .sum()
        )
        for precision in (1e-6, 0.1, 1.0, 10.0, math.inf)
    ]
    assert gaps == sorted(gaps, reverse=True)


def test_a_class_that_a_bag_has_none_of_gets_no_label():
    log_probs, sizes = torch.randn(6, 3, generator=stream(0)).log_softmax(1), torch.tensor([6])
    shares = torch.tensor([[0.5, 0.0, 0.5]])
    assert hard_labels(log_probs, sizes, shares)[:, 1].sum() == 0
    assert soft_labels(log_probs, sizes, shares)[:, 1].sum() == 0


def test_labels_of_bags_of_one_are_their_proportions_whatever_is_predicted():
    log_probs, sizes, shares = problem((1,) * 9, 3)
    assert torch.equal(hard_labels(log_probs, sizes, shares), shares)
    torch.testing.assert_close(soft_labels(log_probs, sizes, shares), shares)


def test_a_constant_added_to_an_instances_scores_changes_no_label():
    log_probs, sizes, shares = problem()
    moved = log_probs + torch.randn(len(log_probs), 1, generator=stream(1))
    assert torch.equal(hard_labels(moved, sizes, shares), hard_labels(log_probs, sizes, shares))
    torch.testing.assert_close(
        soft_labels(moved, sizes, shares, 1.0), soft_labels(log_probs, sizes, shares, 1.0), rtol=0, atol=1e-4
    )
    torch.testing.assert_close(predicted_labels(moved, sizes, shares), log_probs.exp())


def test_labels_without_transport_ignore_the_proportions():
    log_probs, sizes, shares = problem()
    torch.testing.assert_close(predicted_labels(log_probs, sizes, shares), log_probs.exp())
    assert torch.equal(
        argmax_labels(log_probs, sizes, shares), F.one_hot(log_probs.argmax(1), 3).to(log_probs.dtype)
    )


@pytest.mark.parametrize("label", [hard_labels, soft_labels, predicted_labels, argmax_labels])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_labels_have_the_dtype_and_shape_of_the_predictions(label, dtype):
    log_probs, sizes, shares = problem()
    labels = label(log_probs.to(dtype), sizes, shares)
    assert (labels.dtype, labels.shape) == (dtype, log_probs.shape)


def test_labelers_by_name():
    log_probs, sizes, shares = problem()
    for name, expected in {
        "hard": hard_labels(log_probs, sizes, shares), "predicted": log_probs.exp(),
        "argmax": argmax_labels(log_probs, sizes, shares),
        "soft": soft_labels(log_probs, sizes, shares, 0.5, 2.0),
    }.items():  # fmt: skip
        torch.testing.assert_close(make_labeler(name, 0.5, 2.0)(log_probs, sizes, shares), expected)
    assert set(PSEUDO_LABELS) == {"soft", "hard", "predicted", "argmax"}


def test_soft_labels_keep_the_error_of_their_last_plan_and_of_the_worst_until_it_is_reset():
    label = SoftLabels(1.0)
    errors = []
    for seed in range(3):
        log_probs, sizes, shares = problem(seed=seed)
        label(log_probs, sizes, shares)
        errors.append(float(entropic_plan(log_probs, sizes, shares, reg=1.0).error.max()))
        assert float(label.last_error) == errors[-1]
    assert label.reset_worst_error() == max(errors)
    assert label.reset_worst_error() == 0.0


# --- unknown and uncertain proportions


def test_exact_proportions_stay_as_they_are():
    log_probs, sizes, shares = problem()
    exact = torch.full((4,), math.inf, dtype=torch.float64)
    assert relaxed_proportions(log_probs, sizes, shares) is shares
    assert relaxed_proportions(log_probs, sizes, shares, exact) is shares


def test_unknown_proportions_become_the_predicted_ones():
    log_probs, sizes, shares = problem()
    means = exact_bag_means(log_probs.exp(), sizes)
    torch.testing.assert_close(predicted_proportions(log_probs, sizes), means)
    unknown = shares.clone()
    unknown[1:3] = math.nan
    got = relaxed_proportions(log_probs, sizes, unknown)
    torch.testing.assert_close(got[1:3], means[1:3].float())
    torch.testing.assert_close(got[[0, 3]], shares[[0, 3]])


def test_uncertain_proportions_lie_between_the_known_and_the_predicted_ones_by_their_precision():
    log_probs, sizes, shares = problem((30, 30), 3)
    predicted = predicted_proportions(log_probs, sizes).float()
    away = []
    for precision in (1e6, 10.0, 1.0, 1e-6):
        got = relaxed_proportions(log_probs, sizes, shares, torch.tensor([precision, math.inf]))
        torch.testing.assert_close(got[1], shares[1], rtol=0, atol=1e-5)
        torch.testing.assert_close(got.sum(1), torch.ones(2))
        away.append(float((got[0] - shares[0]).abs().sum()))
    assert away == sorted(away)
    assert away[0] < 1e-4
    torch.testing.assert_close(got[0], predicted[0], rtol=0, atol=1e-3)


def test_transduction_has_the_counts_of_every_bag_in_the_order_of_the_users_rows():
    log_probs, sizes, shares = problem()
    source = torch.randperm(28, generator=stream(3))
    bags = Bags(torch.zeros(28, 1), sizes, shares, source, list("abcd"))
    classes = torch.from_numpy(transduce(log_probs, bags))
    assert torch.equal(classes[source], hard_labels(log_probs, sizes, shares).argmax(1))


@pytest.mark.parametrize("precision", [None, torch.tensor([math.inf, 0.1, 1.0, 5.0], dtype=torch.float64)])
def test_transduction_of_unknown_and_uncertain_bags_has_the_counts_they_agree_on(precision):
    log_probs, sizes, shares = problem()
    shares[2] = math.nan
    bags = Bags(torch.zeros(28, 1), sizes, shares, torch.arange(28), list("abcd"), precision=precision)
    agreed = relaxed_proportions(log_probs, sizes, shares, precision)
    expected = hard_labels(log_probs, sizes, agreed).argmax(1)
    assert transduce(log_probs, bags).tolist() == expected.tolist()


def test_transduction_with_several_groupings_has_the_counts_of_the_first_and_nearly_those_of_the_others():
    generator = stream(4)
    truth = torch.randint(3, (240,), generator=generator)
    x = torch.zeros(240, 1)
    parts = {}
    for name, n_bags in (("town", 12), ("age", 5)):
        bag = torch.randint(n_bags, (240,), generator=generator)
        order = bag.argsort(stable=True)
        sizes = torch.bincount(bag)
        shares = torch.stack([F.one_hot(truth[bag == i], 3).float().mean(0) for i in range(n_bags)])
        parts[name] = Bags(x, sizes, shares, order, [f"{name} {i}" for i in range(n_bags)])
    bags = join_groupings(parts)
    scores = 2 * F.one_hot(truth, 3) + torch.randn(240, 3, generator=generator)
    log_probs = scores.log_softmax(1)[bags.source]
    labels = F.one_hot(torch.from_numpy(transduce(log_probs, bags)), 3).float()
    for name, most in (("town", 1e-6), ("age", 0.06)):
        part = parts[name]
        means = exact_bag_means(labels[part.source], part.sizes)
        assert float((means - part.proportions).abs().max()) < most
    argmax = scores.argmax(1)
    assert (labels.argmax(1) == truth).float().mean() > (argmax == truth).float().mean()

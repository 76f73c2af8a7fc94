"""PLOT: what the student learns, how rows are weighted and mixed, and the change that stops algorithm 2."""

import math

import pytest
import torch
from conftest import network, ragged, trained
from hypothesis import given
from hypothesis import strategies as st

from apportion._random import reseed, stream
from apportion.losses import cross_entropy, symmetric_cross_entropy
from apportion.methods.plot import PLOT, LabelHistory, bag_weights, mixup, prediction_change


def labels_of(n: int, k: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, k, generator=stream(seed, "labels")).softmax(1)


@given(st.integers(1, 7), st.integers(1, 12))
def test_the_label_history_is_the_mean_of_its_last_rounds(limit, n_rounds):
    rounds = [labels_of(4, seed=s) for s in range(n_rounds)]
    history = LabelHistory(rounds[0], limit)
    for labels in rounds[1:]:
        history.add(labels)
    torch.testing.assert_close(history.mean, torch.stack(rounds[-limit:]).mean(0))
    assert len(history.rounds) == min(limit, n_rounds)


def test_a_label_history_of_no_round_is_refused():
    with pytest.raises(ValueError, match="memory is 0"):
        LabelHistory(torch.zeros(1, 2), 0)


def test_plot_learns_the_mean_labels_of_the_rows_of_the_batch():
    bags, classifier = ragged((4, 2, 5)), network(3)
    history = LabelHistory(labels_of(11))
    history.add(labels_of(11, seed=1))
    batch = bags.take(torch.tensor([2, 0]))
    (terms,) = PLOT(classifier, history, symmetric_cross_entropy).losses(batch, 0.0)
    rows = [6, 7, 8, 9, 10, 0, 1, 2, 3]
    expected = symmetric_cross_entropy(classifier(bags.x[rows]), history.mean[rows]).mean()
    torch.testing.assert_close(terms, {"labels": expected})


def test_plot_follows_labels_that_are_added_between_epochs():
    bags, history = ragged((4, 2, 5)), LabelHistory(labels_of(11), 1)
    learner = PLOT(network(3), history, cross_entropy)
    batch = bags.take(torch.arange(3))
    before = next(learner.losses(batch, 0.0))["labels"].item()
    history.add(labels_of(11, seed=9))
    assert next(learner.losses(batch, 0.0))["labels"].item() != before


def test_rows_of_equal_bags_have_equal_weights():
    assert torch.equal(bag_weights(torch.tensor([4, 4, 4]), 100), torch.ones(12))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_bag_weights_give_eq_3_the_mean_over_bags_of_the_mean_in_each(sizes):
    losses = torch.rand(sum(sizes), generator=stream(0))
    weighted = (losses * bag_weights(torch.tensor(sizes), 100)).mean()
    torch.testing.assert_close(weighted, torch.stack([part.mean() for part in losses.split(sizes)]).mean())


def test_the_drawn_rows_of_a_larger_bag_weigh_as_much_as_any_bag():
    bags = ragged((3, 500, 20, 20))
    weights, totals = bag_weights(bags.sizes, 32), torch.zeros(4)
    for batch in bags.batches(32, stream(0)):
        bag = torch.bucketize(batch.row, bags.sizes.cumsum(0), right=True)
        totals.index_add_(0, bag, weights[batch.row])
    torch.testing.assert_close(totals, torch.full((4,), (3 + 32 + 20 + 20) / 4))


def test_eq_3_and_eq_22_differ_for_ragged_bags_as_the_losses_of_plot_do():
    bags, classifier, history = ragged((1, 9)), network(3), LabelHistory(labels_of(10))
    batch = bags.take(torch.tensor([0, 1]))
    losses = cross_entropy(classifier(bags.x), history.mean)
    plain, weighted = (
        next(PLOT(classifier, history, cross_entropy, weights=w).losses(batch, 0.0))["labels"]
        for w in (None, bag_weights(bags.sizes, 100))
    )
    torch.testing.assert_close(plain, losses.mean())
    torch.testing.assert_close(weighted, (losses[0] + losses[1:].mean()) / 2)
    assert abs(plain - weighted) > 0.01


@given(st.floats(0.05, 5.0), st.integers(0, 100))
def test_mixup_leaves_rows_of_labels_summing_to_one_and_mixes_instances_as_their_labels(alpha, seed):
    reseed(seed)
    labels = labels_of(7)
    x, mixed_labels = mixup(alpha, labels, labels)
    torch.testing.assert_close(mixed_labels.sum(1), torch.ones(7))
    assert torch.equal(x, mixed_labels)


def test_mixup_draws_one_weight_per_row_from_a_beta_distribution():
    n = 4000
    for alpha in (1.0, 0.4):
        reseed(1)
        (rows,) = mixup(alpha, torch.eye(n))
        own = rows.diagonal().double()[rows.diagonal() < 1]  # a row may be its own partner
        # Beta(a, a): mean 1/2, variance 1 / (4 (2a + 1))
        assert own.mean() == pytest.approx(0.5, abs=0.02)
        assert own.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.05)
        assert len(own.unique()) > 0.9 * n
        torch.testing.assert_close(rows.sum(1), torch.ones(n))
        assert (rows > 0).sum(1).max() == 2


def test_mixup_on_images_mixes_whole_images_as_their_labels_and_weights():
    reseed(1)
    numbers = torch.arange(4.0)
    images = numbers.view(4, 1, 1, 1).expand(4, 1, 2, 2).contiguous()
    x, labels, weights = mixup(1.0, images, numbers.view(4, 1).repeat(1, 3), numbers)
    assert (x.flatten(1).std(1) == 0).all()
    assert torch.equal(x[:, 0, 0, 0], weights)
    assert torch.equal(labels[:, 2], weights)


def test_a_mixed_row_has_the_mixed_weight():
    """Eq. (3): both bags of a mixed pair count, each by its share."""
    bags, labels = ragged((1, 4)), labels_of(5)
    weights = bag_weights(bags.sizes, 100)
    learner = PLOT(network(3), LabelHistory(labels), cross_entropy, 1.0, weights)
    batch = bags.take(torch.arange(2))
    reseed(3)
    (terms,) = learner.losses(batch, 0.0)
    reseed(3)
    x, y, w = mixup(1.0, batch.x, labels, weights)
    assert w.std() > 0
    expected = (w * cross_entropy(learner.classifier(x), y)).mean()
    torch.testing.assert_close(terms["labels"], expected)


def test_plot_draws_random_numbers_for_mixup_only():
    bags = ragged((4, 2, 5))
    learner = PLOT(network(3), LabelHistory(labels_of(11)), cross_entropy, mixup=1.0)
    (epoch,) = trained(learner, bags, 1)
    assert math.isfinite(epoch.terms["labels"])
    state = torch.get_rng_state()
    list(PLOT(learner.classifier, learner.labels, cross_entropy).losses(bags.take(torch.arange(3)), 0.0))
    assert torch.equal(torch.get_rng_state(), state)


def test_the_change_of_predictions_equals_an_explicit_loop_and_the_first_is_from_uniform():
    sizes = torch.tensor([1, 3])
    now, before = labels_of(4).log(), labels_of(4, seed=1).log()
    for previous, values in ((before, before.exp()), (None, torch.full((4, 3), 1 / 3))):
        total = 0.0
        for i, n in enumerate((1, 3, 3, 3)):
            total += sum(((math.exp(now[i, c]) - values[i, c]) / n) ** 2 for c in range(3))
        assert prediction_change(now, previous, sizes) == pytest.approx(math.sqrt(total), rel=1e-5)


def test_predictions_that_stay_do_not_change():
    now = labels_of(4).log()
    assert prediction_change(now, now.clone(), torch.tensor([2, 2])) == 0.0


def test_predictions_of_minus_infinity_are_zero_probabilities():
    sure = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]])
    assert prediction_change(sure, None, torch.tensor([2])) == pytest.approx(0.5)

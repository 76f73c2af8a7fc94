"""Losses against explicit loops, their limits, and what drawing rows of a bag does to them."""

import math
from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from conftest import central_difference, ragged
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import hypergeom

from apportion._random import stream
from apportion.errors import SettingsError
from apportion.losses import (
    LOG_ZERO,
    cross_entropy,
    kl_divergence,
    proportion_loss,
    reverse_cross_entropy,
    sampling_corrected_mean,
    symmetric_cross_entropy,
)


def softmax(row: list[float]) -> list[float]:
    powers = [math.exp(value) for value in row]
    return [power / sum(powers) for power in powers]


def some(n: int = 6, k: int = 4, seed: int = 0):
    generator = stream(seed, "losses")
    return torch.randn(n, k, generator=generator), torch.rand(n, k, generator=generator).softmax(1)


@pytest.mark.parametrize("shape", [(4, 1), (4, 3), (4,), (4, 2, 2)], ids=str)
def test_scores_that_are_not_one_for_each_class_are_refused(shape):
    """One output would be spread over all classes, and the loss be zero."""
    with pytest.raises(SettingsError, match="2 classes"):
        proportion_loss(torch.zeros(shape), torch.tensor([2, 2]), torch.full((2, 2), 0.5))


def test_the_proportion_loss_equals_an_explicit_loop_over_ragged_bags():
    logits, _ = some(6, 3)
    bag, shares = [0, 1, 1, 1, 2, 2], torch.tensor([[1.0, 0, 0], [0.2, 0.3, 0.5], [0.5, 0.5, 0]])
    total = 0.0  # a bag counts as often as it has rows
    for b in range(3):
        rows = [softmax(logits[i].tolist()) for i in range(6) if bag[i] == b]
        mean = [sum(row[c] for row in rows) / len(rows) for c in range(3)]
        total -= len(rows) * sum(float(shares[b, c]) * math.log(mean[c]) for c in range(3))
    loss = proportion_loss(logits, torch.tensor([1, 3, 2]), shares)
    assert loss.item() == pytest.approx(total / 6, rel=1e-6)


def test_a_bag_counts_as_its_rows_do_and_so_as_often_as_its_copies():
    logits, _ = some(6, 3)
    shares = torch.tensor([[0.2, 0.3, 0.5], [0.5, 0.5, 0.0]])
    whole = proportion_loss(logits.repeat(2, 1), torch.tensor([4, 2, 4, 2]), shares.repeat(2, 1))
    twice = torch.cat([logits[:4], logits[:4], logits[4:], logits[4:]])  # a bag and its copy as one
    joined = proportion_loss(twice, torch.tensor([8, 4]), shares)
    torch.testing.assert_close(proportion_loss(logits, torch.tensor([4, 2]), shares), whole)
    torch.testing.assert_close(joined, whole)


def test_the_proportion_loss_averages_probabilities_and_not_their_logarithms():
    # two sure and opposite predictions match an even bag; the mean of their logarithms would not
    logits, sizes = torch.tensor([[10.0, -10.0], [-10.0, 10.0]]), torch.tensor([2])
    even = torch.tensor([[0.5, 0.5]])
    loss = proportion_loss(logits, sizes, even)
    of_logarithms = -(even * logits.log_softmax(1).mean(0)).sum()
    assert loss.item() == pytest.approx(math.log(2), abs=1e-6)
    assert of_logarithms.item() == pytest.approx(10.0, abs=1e-3)


@given(st.integers(0, 1000))
def test_the_proportion_loss_is_never_below_the_entropy_of_the_proportions(seed):
    logits, _ = some(6, 4, seed)
    shares = torch.rand(2, 4, generator=stream(seed)).softmax(1)
    floor = torch.special.entr(shares).sum(1) @ torch.tensor([4 / 6, 2 / 6])
    assert proportion_loss(logits, torch.tensor([4, 2]), shares) >= floor - 1e-6


def test_the_proportion_loss_falls_as_predictions_move_towards_the_proportions():
    shares, sizes = torch.tensor([[0.9, 0.1]]), torch.tensor([4])
    losses = [
        float(proportion_loss(torch.tensor([[z, 0.0]] * 4), sizes, shares))
        for z in (-2.0, -1.0, 0.0, 1.0, 2.0)
    ]
    assert losses == sorted(losses, reverse=True)


def test_the_proportion_loss_of_bags_of_one_is_cross_entropy():
    logits, _ = some()
    labels = F.one_hot(torch.tensor([0, 3, 1, 1, 2, 0]), 4).float()
    torch.testing.assert_close(
        proportion_loss(logits, torch.ones(6, dtype=torch.int64), labels),
        cross_entropy(logits, labels).mean(),
    )


def test_a_class_that_is_present_but_predicted_impossible_costs_much_and_not_infinity():
    logits = torch.tensor([[200.0, -200.0]], requires_grad=True)
    loss = proportion_loss(logits, torch.tensor([1]), torch.tensor([[0.0, 1.0]]))
    loss.backward()
    assert 80 < loss.item() < 90
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_an_absent_class_that_is_predicted_impossible_costs_nothing():
    logits = torch.tensor([[200.0, -200.0]])
    assert proportion_loss(logits, torch.tensor([1]), torch.tensor([[1.0, 0.0]])).item() == 0.0


def test_cross_entropies_equal_explicit_loops():
    logits, labels = some()
    labels[0] = torch.tensor([0.0, 1.0, 0.0, 0.0])
    for i in range(6):
        p, q = softmax(logits[i].tolist()), labels[i].tolist()
        forward = -sum(q[c] * math.log(p[c]) for c in range(4))
        backward = -sum(p[c] * (math.log(q[c]) if q[c] > 0 else -4.0) for c in range(4))
        assert cross_entropy(logits, labels)[i].item() == pytest.approx(forward, rel=1e-5)
        assert reverse_cross_entropy(logits, labels, -4.0)[i].item() == pytest.approx(backward, rel=1e-5)
        both = symmetric_cross_entropy(logits, labels, 0.3, 0.7, -4.0)[i].item()
        assert both == pytest.approx(0.3 * forward + 0.7 * backward, rel=1e-5)


def test_cross_entropy_with_one_hot_labels_is_torchs_own():
    logits, _ = some()
    classes = torch.tensor([0, 3, 1, 1, 2, 0])
    torch.testing.assert_close(
        cross_entropy(logits, F.one_hot(classes, 4)), F.cross_entropy(logits, classes, reduction="none")
    )


def test_symmetric_cross_entropy_without_the_reverse_term_is_cross_entropy():
    logits, labels = some()
    torch.testing.assert_close(
        symmetric_cross_entropy(logits, labels, 1.0, 0.0), cross_entropy(logits, labels)
    )


def test_reverse_cross_entropy_of_a_hard_label_is_the_missing_probability_times_log_zero():
    logits, _ = some()
    classes = torch.tensor([0, 3, 1, 1, 2, 0])
    missing = 1 - logits.softmax(1).gather(1, classes[:, None]).squeeze(1)
    got = reverse_cross_entropy(logits, F.one_hot(classes, 4).float())
    torch.testing.assert_close(got, -LOG_ZERO * missing)


def test_the_divergence_equals_an_explicit_loop_and_the_clean_side_gets_no_gradient():
    clean, moved = (some(seed=s)[0].requires_grad_() for s in (0, 1))
    total = 0.0
    for i in range(6):
        p, q = softmax(clean[i].tolist()), softmax(moved[i].tolist())
        total += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)) / 6
    got = kl_divergence(clean, moved)
    got.backward()
    assert got.item() == pytest.approx(total, rel=1e-5)
    assert clean.grad is None
    expected = central_difference(lambda z: kl_divergence(clean.double(), z), moved.detach().double(), 1e-3)
    torch.testing.assert_close(moved.grad, expected.float(), rtol=1e-2, atol=1e-3)


def test_the_divergence_of_equal_predictions_is_zero():
    logits, _ = some()
    assert kl_divergence(logits, logits + 3.0).item() == pytest.approx(0.0, abs=1e-6)


def test_losses_are_computed_in_float32_whatever_the_network_computes_in():
    logits, labels = some()
    half, sizes, shares = logits.bfloat16(), torch.tensor([3, 3]), labels[:2]
    for got, expected in (
        (proportion_loss(half, sizes, shares), proportion_loss(half.float(), sizes, shares)),
        (symmetric_cross_entropy(half, labels), symmetric_cross_entropy(half.float(), labels)),
        (kl_divergence(half, half.flip(0)), kl_divergence(half.float(), half.float().flip(0))),
    ):
        assert got.dtype == torch.float32
        assert torch.equal(got, expected)


@pytest.mark.parametrize("sure", [5.0, 20.0, 80.0])
def test_a_sure_but_wrong_bag_of_one_has_the_gradient_of_cross_entropy(sure):
    logits = torch.tensor([[sure, 0.0]], requires_grad=True)
    proportion_loss(logits, torch.tensor([1]), torch.tensor([[0.0, 1.0]])).backward()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, torch.tensor([[1.0, -1.0]]), rtol=0.01, atol=0.0)


# --- bags of which only some rows are drawn

N, DRAWN, TIMES = 400, 32, 3000
LEFT = 1 - DRAWN / N
SHARES = torch.tensor([[0.6, 0.25, 0.15]])


@cache
def samples() -> torch.Tensor:
    """(TIMES, DRAWN) rows of as many draws from a bag of N."""
    generator = stream(0, "samples")
    return torch.stack([torch.randperm(N, generator=generator)[:DRAWN] for _ in range(TIMES)])


def logits_of(n: int = N) -> torch.Tensor:
    """Certain predictions of three classes, one of them rare."""
    return 4 * torch.randn(n, 3, generator=stream(5)) + torch.tensor([4.0, 0.0, -2.0])


def losses_of_samples(logits: torch.Tensor, corrected: bool) -> torch.Tensor:
    """(TIMES,) the loss of every sample of the bag."""
    rows = logits[samples()].flatten(0, 1)
    sizes = torch.full((TIMES,), DRAWN)
    if not corrected:
        means = logits[samples()].softmax(2).mean(1)
        return -(SHARES * means.log()).sum(1)
    each = rows.split(DRAWN)
    return torch.stack([proportion_loss(part, sizes[:1], SHARES, LEFT) for part in each])


def test_the_loss_of_samples_is_on_average_that_of_the_whole_bag():
    whole = float(proportion_loss(logits_of(), torch.tensor([N]), SHARES))
    plain, corrected = (float(losses_of_samples(logits_of(), on).mean()) - whole for on in (False, True))
    assert plain > 0.01  # the logarithm is concave
    assert abs(corrected) < 0.2 * plain


def test_samples_do_not_draw_predictions_towards_uncertainty():
    """The gradient with respect to how certain predictions are: samples alone would lower it."""
    gradients = {}
    for name, loss in {
        "whole": lambda z: proportion_loss(z, torch.tensor([N]), SHARES),
        "plain": lambda z: losses_of_samples(z, False).mean(),
        "corrected": lambda z: losses_of_samples(z, True).mean(),
    }.items():
        scale = torch.ones((), requires_grad=True)
        loss(scale * logits_of()).backward()
        gradients[name] = float(scale.grad)  # type: ignore[arg-type]
    assert gradients["plain"] > gradients["whole"]
    bias = gradients["plain"] - gradients["whole"]
    assert abs(gradients["corrected"] - gradients["whole"]) < 0.25 * bias


def test_the_variance_of_certain_predictions_is_the_hypergeometric_one():
    ones = torch.zeros(N, 1)
    ones[:60] = 1.0
    mean = ones[samples()].mean(1)
    corrected = sampling_corrected_mean(mean, mean, torch.full((TIMES,), DRAWN), LEFT)  # 0² = 0, 1² = 1
    variance = (corrected.square() - mean.square()).mean()
    assert float(variance) == pytest.approx(hypergeom(N, 60, DRAWN).var() / DRAWN**2, rel=0.03)


def test_a_whole_bag_needs_no_correction_and_impossible_classes_keep_a_gradient():
    mean = torch.tensor([[0.7, 0.3]])
    assert torch.equal(sampling_corrected_mean(mean, mean, torch.tensor([5]), 0.0), mean)
    logits = torch.tensor([[90.0, 0.0, -90.0], [80.0, 0.0, -80.0]], requires_grad=True)
    proportion_loss(logits, torch.tensor([2]), SHARES, 0.5).backward()
    assert bool(logits.grad.isfinite().all())  # type: ignore[union-attr]


def test_a_single_row_beside_a_drawn_bag_keeps_its_own_loss():
    bags = ragged((20, 1), k=2)
    bags = replace(bags, proportions=torch.tensor([[0.4, 0.6], [0.0, 1.0]]))
    for epoch in range(8):
        (batch,) = bags.batches(8, stream(epoch))
        assert sorted(batch.sizes.tolist()) == [1, 8]
        assert batch.undrawn == pytest.approx(0.6)
        logits = torch.randn(9, 2, generator=stream(epoch))
        parts = zip(logits.split(batch.sizes.tolist()), batch.sizes.split(1), batch.proportions, strict=True)
        apart = [
            proportion_loss(rows, size, shares[None], 0.0 if size == 1 else batch.undrawn)
            for rows, size, shares in parts
        ]
        together = proportion_loss(logits, batch.sizes, batch.proportions, batch.undrawn)
        torch.testing.assert_close(together, torch.stack(apart) @ (batch.sizes / 9))

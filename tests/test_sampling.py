"""Bags larger than a batch: rows are drawn anew, and the loss of a sample is that of the bag on average."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from conftest import learner_of, two_views
from scipy.stats import chisquare, hypergeom

from apportion import ProportionClassifier
from apportion.bags.bags import Bags, bag_means
from apportion.losses import proportion_loss, sampling_corrected_mean
from apportion.methods import METHODS
from apportion.networks import mlp

N, DRAWN, TIMES = 400, 32, 3000
SHARES = torch.tensor([[0.6, 0.25, 0.15]])


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def one_bag(n: int) -> Bags:
    """A bag of as many rows as one likes: all are the same place in memory."""
    rows = torch.zeros(1, 1).expand(n, 1)
    return Bags(rows, torch.tensor([n]), torch.ones(1, 2) / 2, rows[:, 0], ["all"])


def drawn(n: int, wanted: int, generator: torch.Generator) -> torch.Tensor:
    return next(iter(one_bag(n).batches(wanted, generator))).row


@cache
def samples() -> torch.Tensor:
    """(TIMES, DRAWN) rows of as many draws from a bag of N."""
    return torch.stack([drawn(N, DRAWN, stream(seed)) for seed in range(TIMES)])


def logits_of(n: int = N) -> torch.Tensor:
    """Sure predictions of three classes, one of them rare."""
    return 4 * torch.randn(n, 3, generator=stream(5)) + torch.tensor([4.0, 0.0, -2.0])


def losses_of_samples(logits: torch.Tensor, corrected: bool) -> torch.Tensor:
    """(TIMES,) the loss of every sample of the bag."""
    probabilities = logits[samples()].softmax(2)  # (TIMES, DRAWN, 3)
    sizes, left = torch.full((TIMES,), DRAWN), 1 - DRAWN / N
    predicted = probabilities.mean(1)
    if corrected:
        predicted = sampling_corrected_mean(predicted, probabilities.square().mean(1), sizes, left)
    return -(SHARES * predicted.log()).sum(1)


def test_rows_are_drawn_without_repeats_and_each_as_often_as_another():
    seen = np.zeros(30, int)
    for seed in range(1000):
        rows = drawn(30, 7, stream(seed))
        assert len(rows.unique()) == 7
        seen[rows.numpy()] += 1
    # rows of one draw exclude each other, which makes counts a little more even than the law expects
    assert chisquare(seen).pvalue > 0.001
    assert drawn(30, 30, stream(0)).sort().values.tolist() == list(range(30))


def test_a_draw_needs_memory_for_what_is_drawn_alone():
    """A permutation of so many rows would take 8 TB."""
    assert len(drawn(10**12, 1000, stream(0)).unique()) == 1000


def test_the_loss_of_samples_is_on_average_that_of_the_whole_bag():
    logits = logits_of()
    whole = float(proportion_loss(logits, torch.tensor([N]), SHARES))
    plain, corrected = (float(losses_of_samples(logits, on).mean()) - whole for on in (False, True))
    assert plain > 0.01  # the logarithm is concave
    assert abs(corrected) < 0.2 * plain


def test_samples_do_not_draw_predictions_towards_vagueness():
    """The gradient with respect to how sure all predictions are: samples alone would lower it."""
    found = {}
    for name, loss in {
        "whole": lambda z: proportion_loss(z, torch.tensor([N]), SHARES),
        "plain": lambda z: losses_of_samples(z, False).mean(),
        "corrected": lambda z: losses_of_samples(z, True).mean(),
    }.items():
        sure = torch.ones((), requires_grad=True)
        loss(sure * logits_of()).backward()
        found[name] = float(sure.grad)  # type: ignore[arg-type]
    assert found["plain"] > found["whole"]
    assert abs(found["corrected"] - found["whole"]) < 0.25 * (found["plain"] - found["whole"])


def test_the_variance_of_sure_predictions_is_the_hypergeometric_one():
    ones = torch.zeros(N, 1)
    ones[:60] = 1.0
    mean = ones[samples()].mean(1)
    sizes, left = torch.full((TIMES,), DRAWN), 1 - DRAWN / N
    variance = (
        sampling_corrected_mean(mean, mean, sizes, left).square() - mean.square()
    ).mean()  # 0² = 0, 1² = 1
    expected = hypergeom(N, 60, DRAWN).var() / DRAWN**2
    assert float(variance) == pytest.approx(expected, rel=0.03)


def test_a_whole_bag_is_left_as_it_is_and_impossible_classes_keep_a_gradient():
    mean = torch.tensor([[0.7, 0.3]])
    same = sampling_corrected_mean(mean, mean, torch.tensor([5]), 0.0)
    assert torch.equal(same, mean)
    logits = torch.tensor([[90.0, 0.0, -90.0], [80.0, 0.0, -80.0]], requires_grad=True)
    proportion_loss(logits, torch.tensor([2]), SHARES, 0.5).backward()
    assert bool(logits.grad.isfinite().all())  # type: ignore[union-attr]


def large() -> Bags:
    sizes = torch.tensor([3, 200, 5, 40])
    shares = torch.tensor([[0.5, 0.5]]).expand(4, 2)
    return Bags(torch.randn(248, 2, generator=stream(1)), sizes, shares, torch.arange(248), list("abcd"))


def test_batches_say_what_share_of_a_bag_was_not_drawn():
    bags = large()
    for batch in bags.batches(16, stream(2)):
        size = bags.sizes[torch.bucketize(batch.row[0], bags.sizes.cumsum(0), right=True)]
        if size > 16:
            assert len(batch.sizes) == 1
            assert batch.left == pytest.approx(1 - 16 / int(size))
        else:
            assert batch.left == 0
    assert not any(batch.left for batch in bags.batches(200, stream(2)))


@pytest.mark.parametrize("name", METHODS)
def test_every_first_stage_accounts_for_what_was_not_drawn(name):
    network = mlp((2,), 2, widths=(8,))
    with torch.no_grad():
        network[1].weight.mul_(20)  # sure enough for samples to differ
    learner = learner_of(name, network)
    batch = next(b for b in large().batches(16, stream(2)) if b.left)
    if name == "two_views":
        batch = replace(batch, x=two_views(batch.x))
    of_bags = "counts" if name == "count_likelihood" else "proportion"
    terms = [next(learner.losses(each, 0.5))[of_bags] for each in (batch, replace(batch, left=0.0))]
    assert terms[0].item() < terms[1].item()


def test_labels_of_a_bag_that_is_only_sampled_are_exact_over_all_its_rows():
    truth = np.random.default_rng(0).integers(2, size=1200)
    x = np.random.default_rng(1).normal(2.5 * truth[:, None], 1, (1200, 2))
    town = np.where(np.arange(1200) < 800, 0, 1 + np.arange(1200) % 30)
    settings = {"batch_size": 64, "first_epochs": 20, "second_epochs": 3, "rate": 5e-3}
    model = ProportionClassifier(**settings, random_state=0)
    model.fit(x, truth, bags=town)
    for name in range(31):
        here = town == name
        assert (model.transduction_[here] == 1).sum() == truth[here].sum()
    assert (model.transduction_ == truth).mean() > 0.9


def test_the_means_of_samples_are_those_of_the_bag_on_average():
    values = logits_of().softmax(1)
    means = bag_means(values[samples().flatten()], torch.full((TIMES,), DRAWN))
    error = 4 * values.std(0) / np.sqrt(TIMES * DRAWN)
    assert bool(((means.mean(0) - values.mean(0)).abs() < error).all())

"""LLP-MM, EasyLLP, MixBag and Mean Map agree with slow references on tiny problems."""

import math
from itertools import combinations, product

import numpy as np
import pytest
import torch
from conftest import central_difference, network, ragged
from torch import Tensor, nn

from apportion._random import reseed, stream
from apportion.bags.bags import BagBatch, Bags
from apportion.bags.simulate import make_bags
from apportion.datasets.synthetic import blobs
from apportion.errors import SettingsError
from apportion.losses import proportion_loss
from apportion.methods.easy_llp import EasyLLP, debiased_weights
from apportion.methods.llp_mm import (
    default_order,
    hypergeometric_distributions,
    moment_loss,
    sample_distributions,
)
from apportion.methods.mean_map import MeanMap, estimate_class_means
from apportion.methods.mixbag import MixBag, confidence_interval_loss, mix_bags
from apportion.methods.setup import Setup


def random_logits(n: int, k: int, scale: float = 2.0, seed: int = 0) -> Tensor:
    return scale * torch.randn(n, k, generator=stream(seed, "logits"))


def whole_counts(sizes: list[int], k: int, seed: int = 0) -> Tensor:
    """Random class counts of bags of these sizes, (b, k)."""
    generator = stream(seed, "counts")
    labels = [torch.randint(k, (n,), generator=generator) for n in sizes]
    return torch.stack([torch.bincount(each, minlength=k) for each in labels])


# --- LLP-MM


def counts_by_enumeration(probabilities: np.ndarray, r: int) -> dict[tuple[int, ...], float]:
    """The distribution of the counts of r rows of one bag, over all samples and all their labelings."""
    n, k = probabilities.shape
    chances: dict[tuple[int, ...], float] = {}
    for rows in combinations(range(n), r):
        for labels in product(range(k), repeat=r):
            counts = tuple(labels.count(c) for c in range(k))
            chance = math.prod(probabilities[row, label] for row, label in zip(rows, labels, strict=True))
            chances[counts] = chances.get(counts, 0.0) + chance / math.comb(n, r)
    return chances


def moment_loss_by_enumeration(logits: np.ndarray, sizes: list[int], counts: np.ndarray, order: int) -> float:
    """The loss of LLP-MM without polynomials: the known counts are the predictions of one-hot rows."""
    total = 0.0
    start = 0
    for n, of_bag in zip(sizes, counts, strict=True):
        odds = np.exp(logits[start : start + n])
        start += n
        truth = np.repeat(np.eye(len(of_bag)), of_bag, axis=0)
        orders = range(1, min(order, n) + 1)
        for r in orders:
            predicted = counts_by_enumeration(odds / odds.sum(1, keepdims=True), r)
            known = counts_by_enumeration(truth, r)
            total -= n / len(orders) * sum(known[a] * math.log(predicted[a]) for a in known if known[a])
    return total / sum(sizes)


@pytest.mark.parametrize(("k", "order"), [(2, 1), (2, 4), (3, 3), (4, 2)])
def test_the_moment_loss_is_that_of_all_samples_and_all_their_labelings(k, order):
    sizes = [3, 1, 5, 2]
    logits = random_logits(sum(sizes), k)
    counts = whole_counts(sizes, k)
    proportions = counts / torch.tensor(sizes).unsqueeze(1)
    loss = moment_loss(logits, torch.tensor(sizes), proportions, order)
    expected = moment_loss_by_enumeration(logits.double().numpy(), sizes, counts.numpy(), order)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_order_one_is_the_proportion_loss():
    bags = ragged((4, 9, 1), k=3)
    logits = random_logits(14, 3)
    one = moment_loss(logits, bags.sizes, bags.proportions, 1, undrawn=0.3)
    torch.testing.assert_close(one, proportion_loss(logits, bags.sizes, bags.proportions, 0.3))


@pytest.mark.parametrize("n", [8, 300])
def test_predicted_distributions_sum_to_one_and_certain_predictions_are_hypergeometric(n):
    sizes = torch.tensor([n, n])
    uncertain = random_logits(2 * n, 2).double().softmax(1)
    for distribution in sample_distributions(uncertain, sizes, 8):
        torch.testing.assert_close(distribution.sum(1), torch.ones(2).double(), rtol=1e-9, atol=0)
        assert distribution.min() > -1e-13
    certain = torch.eye(2)[torch.arange(2 * n) % 2].double()
    proportions = torch.full((2, 2), 0.5).double()
    known = hypergeometric_distributions(proportions, sizes, 8)
    for predicted, target in zip(sample_distributions(certain, sizes, 8), known, strict=True):
        torch.testing.assert_close(predicted, target, rtol=1e-9, atol=1e-12)


def test_the_true_labels_have_the_smallest_moment_loss_and_shares_of_bags_a_larger_one():
    sizes = torch.tensor([6, 6])
    counts = whole_counts([6, 6], 3)
    truth = torch.repeat_interleave(torch.arange(3).repeat(2), counts.flatten())
    proportions = counts / 6
    certain = 30.0 * torch.eye(3)[truth]
    shares = proportions.clamp_min(1e-9).log().repeat_interleave(6, 0)
    losses = [moment_loss(logits, sizes, proportions, 3) for logits in (certain, shares)]
    torch.testing.assert_close(*(moment_loss(each, sizes, proportions, 1) for each in (certain, shares)))
    assert losses[0] < losses[1] - 0.01


def test_the_gradient_of_the_moment_loss_is_right():
    counts = whole_counts([4, 3], 3)
    sizes = torch.tensor([4, 3])
    logits = random_logits(7, 3).double().requires_grad_()

    def loss(at: Tensor) -> Tensor:
        return moment_loss(at, sizes, counts / sizes.unsqueeze(1), 3)

    (gradient,) = torch.autograd.grad(loss(logits), logits)
    numeric = central_difference(lambda at: loss(at).detach(), logits.detach().clone(), 1e-2)
    torch.testing.assert_close(gradient, numeric, rtol=2e-2, atol=2e-4)


def test_samples_of_drawn_rows_have_the_counts_of_the_whole_bag():
    """Averaged over all draws of 4 of 6 rows, predictions of order 2 are those of the whole bag."""
    probabilities = random_logits(6, 2).double().softmax(1)
    (whole,) = sample_distributions(probabilities, torch.tensor([6]), 2)[2]
    drawn = [
        sample_distributions(probabilities[list(rows)], torch.tensor([4]), 2)[2][0]
        for rows in combinations(range(6), 4)
    ]
    torch.testing.assert_close(torch.stack(drawn).mean(0), whole)


def test_the_default_order_is_limited_by_the_number_of_count_vectors():
    assert [default_order(k) for k in (2, 3, 10, 30, 100)] == [8, 8, 4, 2, 1]


# --- EasyLLP


def test_the_debiased_loss_is_unbiased():
    """Over random labels of the other rows, the weights of a row average to one-hot at its class."""
    prior = np.array([0.5, 0.2, 0.3])
    n = 4
    for own in range(3):
        expected = np.zeros(3)
        for others in product(range(3), repeat=n - 1):
            counts = np.bincount([own, *others], minlength=3)
            weights = debiased_weights(
                torch.from_numpy(counts / n).view(1, 3), torch.tensor([n]), torch.from_numpy(prior)
            )
            expected += weights[0].numpy() * math.prod(prior[c] for c in others)
        np.testing.assert_allclose(expected, np.eye(3)[own], atol=1e-12)


def test_the_debiased_loss_agrees_with_a_sum_over_rows_and_classes():
    bags = ragged((3, 1, 4), k=3)
    classifier = network(3)
    learner = EasyLLP.build(classifier, Setup(bags))
    batch = bags.take(torch.arange(3))
    (terms,) = learner.losses(batch, 0.0)
    logits = classifier(batch.x).detach().double().numpy()
    sizes, shares = bags.sizes.numpy(), bags.proportions.double().numpy()
    prior = (sizes[:, None] * shares).sum(0) / sizes.sum()
    total = 0.0
    for j, i in enumerate(np.repeat(np.arange(3), sizes)):
        chances = np.exp(logits[j]) / np.exp(logits[j]).sum()
        for c in range(3):
            total -= (sizes[i] * (shares[i, c] - prior[c]) + prior[c]) * math.log(chances[c])
    assert terms["debiased"].item() == pytest.approx(total / sizes.sum(), rel=1e-5)


def test_the_debiased_loss_of_bags_of_one_is_cross_entropy_and_drawn_bags_count_whole():
    prior = torch.tensor([0.7, 0.3])
    pure = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    torch.testing.assert_close(debiased_weights(pure, torch.tensor([1, 1]), prior), pure)
    share = torch.tensor([[0.6, 0.4]])
    drawn = debiased_weights(share, torch.tensor([5]), prior, undrawn=0.75)
    torch.testing.assert_close(drawn, debiased_weights(share, torch.tensor([20]), prior))


def test_the_debiased_loss_has_no_lower_bound():
    """Whoever can tell bags apart lowers it forever; the proportion loss stops at its minimum."""
    sizes, shares = torch.tensor([20, 20]), torch.tensor([[0.6, 0.4], [0.4, 0.6]])
    weights = debiased_weights(shares, sizes, torch.tensor([0.5, 0.5])).repeat_interleave(20, 0)
    direction = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).repeat_interleave(20, 0)
    losses = [-(weights * (scale * direction).log_softmax(1)).sum(1).mean() for scale in (1.0, 10.0, 100.0)]
    assert losses[2] < 5 * losses[1] < 0


# --- MixBag


def test_mixed_bags_are_made_of_rows_of_two_bags():
    """With one-hot predictions, counts show which rows were drawn: as many as expected of either bag."""
    sizes = torch.tensor([6, 4, 8])
    of_bag = torch.eye(3)[torch.repeat_interleave(sizes)]
    ratio = torch.tensor([0.5, 0.0, 1.0])
    reseed(0)
    mixed = mix_bags(of_bag, sizes, torch.eye(3), ratio)
    counts = mixed.predicted * mixed.sizes.unsqueeze(1)
    torch.testing.assert_close(counts, torch.tensor([[3.0, 2, 0], [0, 1, 8], [1, 0, 8]]))
    torch.testing.assert_close(mixed.proportions, mixed.predicted)


def test_the_mean_and_the_variance_of_mixed_bags_are_those_of_draws_without_replacement():
    sizes = torch.tensor([5, 7])
    labels = torch.tensor([0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0])
    truth = torch.eye(2)[labels]
    proportions = torch.stack([part.mean(0) for part in truth.split([5, 7])])
    ratio = torch.tensor([0.6, 0.3])
    reseed(0)
    drawn = torch.stack([mix_bags(truth, sizes, proportions, ratio).predicted for _ in range(1000)])
    mixed = mix_bags(truth, sizes, proportions, ratio)
    torch.testing.assert_close(drawn.mean(0), mixed.proportions, rtol=0, atol=0.02)
    torch.testing.assert_close(drawn.var(0), mixed.variance, rtol=0.2, atol=1e-4)


def test_the_confidence_interval_loss_agrees_with_a_sum_over_bags():
    sizes = torch.tensor([6, 4, 8, 5])
    proportions = whole_counts([6, 4, 8, 5], 3) / sizes.unsqueeze(1)
    reseed(1)
    mixed = mix_bags(random_logits(23, 3, 4.0).softmax(1), sizes, proportions, torch.rand(4))
    for z in (0.0, 1.0, 100.0):
        total = 0.0
        for f, p, v, n in zip(*(part.double().numpy() for part in mixed), strict=True):
            if any(abs(f[c] - p[c]) > z * math.sqrt(v[c]) for c in range(3)):
                total -= n * sum(p[c] * math.log(f[c]) for c in range(3))
        loss = confidence_interval_loss(mixed, z).item()
        assert loss == pytest.approx(total / mixed.sizes.sum().item(), rel=1e-5)
    assert loss == 0.0


def test_99_percent_of_intervals_hold_the_true_proportion():
    truth = torch.eye(2)[torch.randint(2, (6400,), generator=stream(0))]
    sizes = torch.full((100,), 64)
    proportions = truth.view(100, 64, 2).mean(1)
    reseed(0)
    inside = []
    for _ in range(20):
        mixed = mix_bags(truth, sizes, proportions, torch.rand(100))
        inside.append((mixed.predicted - mixed.proportions).abs() <= 2.5758 * mixed.variance.sqrt() + 1e-6)
    assert 0.98 < torch.cat(inside).double().mean() < 0.999


def test_a_single_bag_or_part_of_one_is_not_mixed():
    bags = ragged((6, 5), k=2)
    learner = MixBag(network())
    (alone,) = learner.losses(bags.take(torch.tensor([0])), 0.0)
    batch = bags.take(torch.arange(2))
    part = BagBatch(batch.x, batch.sizes, batch.proportions, batch.row, undrawn=0.5)
    (drawn,) = learner.losses(part, 0.0)
    assert alone["mixed"] == drawn["mixed"] == 0.0


# --- Mean Map


def bags_of_blobs(size: int = 20, n: int = 2000) -> tuple[Bags, Tensor]:
    data = blobs(1, n, 3)
    return make_bags(data.x, data.y, size, 3, stream(0, "mean map"))


def test_estimated_class_means_agree_with_least_squares_by_numpy():
    bags, _ = bags_of_blobs()
    x = bags.x.double().numpy()
    bag = np.repeat(np.arange(len(bags.sizes)), bags.sizes)
    centers = np.stack([x[bag == i].mean(0) for i in range(len(bags.sizes))])
    root = np.sqrt(bags.sizes.numpy())[:, None]
    shares = bags.proportions.double().numpy()
    expected, *_ = np.linalg.lstsq(root * shares, root * centers, rcond=None)
    np.testing.assert_allclose(estimate_class_means(bags, 0.0).numpy(), expected, atol=1e-4)


def test_class_means_are_near_the_true_ones_and_average_to_the_mean_of_all_rows():
    bags, hidden = bags_of_blobs()
    true = torch.stack([bags.x[hidden == c].mean(0) for c in range(3)])
    for ridge in (0.0, 0.01):
        means = estimate_class_means(bags, ridge)
        torch.testing.assert_close(means, true, rtol=0, atol=0.3)
        torch.testing.assert_close(bags.overall.float() @ means, bags.x.mean(0), rtol=0, atol=1e-5)
    pulled = estimate_class_means(bags, 1e6)
    torch.testing.assert_close(pulled, bags.x.mean(0).expand(3, 2), rtol=0, atol=1e-3)


def test_equal_bags_and_absent_classes_have_finite_means():
    bags = ragged((5, 5, 5), k=3)
    same = bags.proportions[:1].expand(3, 3).clone()
    absent = torch.tensor([[0.5, 0.5, 0.0]]).repeat(3, 1)
    for proportions in (same, absent):
        equal = Bags(bags.x, bags.sizes, proportions, bags.source, bags.ids)
        for ridge in (0.0, 1e-3):
            assert estimate_class_means(equal, ridge).isfinite().all()


def test_with_the_true_means_the_loss_is_that_of_logistic_regression():
    bags, hidden = make_bags(*(lambda data: (data.x, data.y))(blobs(1, 60, 3)), 1, 3, stream(0))
    classifier = nn.Linear(2, 3)
    learner = MeanMap.build(classifier, Setup(bags), ridge=0.0, l2=0.1)
    (terms,) = learner.losses(bags.take(torch.arange(60)), 0.0)
    logits = classifier(bags.x).detach().double().numpy()
    total = 0.0
    for row, label in zip(logits, hidden.tolist(), strict=True):
        total -= math.log(np.exp(row[label]) / np.exp(row).sum()) / 60
    assert terms["logistic"].item() == pytest.approx(total, abs=1e-5)
    assert terms["l2"].item() == pytest.approx(0.05 * classifier.weight.square().sum().item())


def test_mean_map_refuses_networks_that_are_not_linear():
    bags, _ = bags_of_blobs()
    with pytest.raises(SettingsError, match="linear"):
        MeanMap.build(network(3), Setup(bags))
    MeanMap.build(network(3, widths=()), Setup(bags))

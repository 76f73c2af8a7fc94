"""denoise: cleaned shares are nearer to the truth than noisy ones, and precision says by how much."""

import math

import numpy as np
import pytest

from apportion.bags.build import build_bags
from apportion.bags.denoise import denoise, impute_missing_cells, predict_shares, sums_beyond_noise
from apportion.bags.proportions import Proportions


def random_counts(m: int, size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).multinomial(size, [0.6, 0.3, 0.1], m).astype(float)


@pytest.mark.parametrize("spread", ["random", "skewed"])
def test_clean_shares_are_nearer_to_the_truth_than_noisy_ones(spread):
    random = np.random.default_rng(1)
    counts = random_counts(400, 64)
    if spread == "skewed":
        counts = np.stack([random.multinomial(64, random.dirichlet([1, 1, 1])) for _ in range(400)]).astype(
            float
        )
    noisy = counts + random.laplace(0, 2, counts.shape)
    shares, precision = denoise(noisy, np.full(400, 64), 2 * math.sqrt(2), counts=True)
    np.testing.assert_allclose(shares.sum(1), 1)
    assert (shares > 0).all()
    assert ((precision > 0) & (precision < math.inf)).all()
    clipped = np.clip(noisy, 0, 64)
    plain = clipped / clipped.sum(1, keepdims=True)
    errors = [np.sqrt(((s - counts / 64) ** 2).mean()) for s in (shares, plain)]
    assert errors[0] < (0.9 if spread == "random" else 1.0) * errors[1]


@pytest.mark.parametrize("seed", range(4))
def test_the_variance_between_bags_is_not_that_of_the_smallest(seed):
    random = np.random.default_rng(seed)
    sizes = np.repeat([1, 3, 1000], [150, 150, 100])
    right = random.binomial(sizes, np.clip(random.normal(0.3, 0.05, 400), 0, 1))
    counts = np.stack([sizes - right, right], 1) + random.laplace(0, 3, (400, 2))
    shares, precision = denoise(counts, sizes, 3 * math.sqrt(2), counts=True)
    small, truth = sizes < 1000, right / sizes
    assert abs(shares[small, 1] - 0.3).mean() < 0.07  # a count of one row that is off by four says nothing
    assert abs(shares[~small, 1] - truth[~small]).mean() < 0.003
    assert precision[~small].min() > 100 > 2 > precision[small].max()


def test_a_class_that_is_the_rest_has_the_noise_of_the_other():
    random = np.random.default_rng(0)
    true = random.binomial(50, 0.3, 2000)
    noisy = true + random.normal(0, 6, 2000)
    shares, precision = denoise(np.stack([noisy, 50 - noisy], 1), np.full(2000, 50), 6.0, counts=True)
    chance, error = 0.3 * 0.7 / 50, (6 / 50) ** 2
    np.testing.assert_allclose(precision, 1 + chance / error, rtol=0.1)
    assert ((shares[:, 0] - true / 50) ** 2).mean() < chance  # the error of the overall share for all


def test_without_noise_nothing_moves():
    counts = random_counts(50, 30)
    shares, precision = denoise(counts, np.full(50, 30), 0.0, counts=True)
    np.testing.assert_allclose(shares, counts / 30)
    assert (precision == math.inf).all()


def test_with_endless_noise_all_bags_have_the_overall_shares():
    counts = random_counts(200, 20)
    shares, _ = denoise(counts, np.full(200, 20), 1e6, counts=True)
    np.testing.assert_allclose(shares, np.broadcast_to(counts.sum(0) / counts.sum(), shares.shape), atol=1e-3)


def test_an_estimated_deviation_is_as_good_as_the_true_one():
    counts = random_counts(2000, 64)
    noisy = counts + np.random.default_rng(2).normal(0, 3, counts.shape)
    known, _ = denoise(noisy, np.full(2000, 64), 3.0, counts=True)
    estimated, _ = denoise(noisy, np.full(2000, 64), "estimate", counts=True)
    np.testing.assert_allclose(estimated, known, atol=0.01)


def test_noise_that_leaves_a_class_nothing_still_has_a_precision():
    shares, precision = denoise(np.array([[9.0, 1.0], [12.0, -2.5]] * 5), np.full(10, 10), 1.4, counts=True)
    assert (precision > 0).all()
    assert (shares > 0).all()


def test_predictions_draw_noisy_shares_toward_their_own_bag():
    random = np.random.default_rng(0)
    truth = random.dirichlet([1, 1], 300)
    bag = np.repeat(np.arange(300), 20)
    predicted = predict_shares(truth[bag], bag, np.full(300, 20))
    np.testing.assert_allclose(predicted.shares, truth)
    np.testing.assert_allclose(predicted.variance, truth * (1 - truth) / 20)
    noisy = truth + random.normal(0, 0.3, truth.shape)
    error = {}
    for name, center in (("overall", None), ("predicted", predicted)):
        shares, _ = denoise(noisy, np.full(300, 20), 0.3, counts=False, predicted=center)
        error[name] = np.abs(shares - truth).mean()
    assert error["predicted"] < 0.5 * error["overall"]


@pytest.mark.parametrize("scale", [0.5, 2.0, 8.0])
def test_noise_in_thousands_of_bags_is_explained_by_its_deviation(scale):
    values = np.random.default_rng(0).laplace(0, scale, (20_000, 2)) + [[10, 10]]
    totals = np.full(20_000, 20.0)
    assert len(sums_beyond_noise(values, totals, scale * math.sqrt(2))) == 0
    assert len(sums_beyond_noise(values, totals, "estimate")) == 0
    assert len(sums_beyond_noise(values * 10, totals, "estimate")) == 20_000


# --- missing cells


def test_one_missing_class_has_exactly_what_is_left():
    whole = random_counts(50, 20)
    gaps = whole.copy()
    gaps[np.arange(50), np.arange(50) % 3] = np.nan
    np.testing.assert_allclose(impute_missing_cells(gaps, np.full(50, 20.0)), whole)
    np.testing.assert_allclose(impute_missing_cells(gaps / 20, np.ones(50)), whole / 20)


def test_several_missing_classes_share_what_is_left_as_they_are_overall():
    shares = np.array([[0.5, 0.4, 0.1], [0.5, 0.2, 0.3], [0.4, np.nan, np.nan], [np.nan] * 3])
    found = impute_missing_cells(shares, np.ones(4))
    np.testing.assert_allclose(found[2], [0.4, 0.6 * 0.6, 0.6 * 0.4])  # overall 0.3 to 0.2
    assert np.isnan(found[3]).all()
    np.testing.assert_array_equal(found[:2], shares[:2])
    never = impute_missing_cells(np.array([[0.2, np.nan, np.nan], [0.6, np.nan, np.nan]]), np.ones(2))
    np.testing.assert_allclose(never, [[0.2, 0.4, 0.4], [0.6, 0.2, 0.2]])


# --- in bags


X = np.random.default_rng(0).normal(size=(400, 2))
TOWN = np.arange(400) % 20
COUNTS = np.stack([np.arange(20), 20 - np.arange(20)], 1)


@pytest.mark.filterwarnings("ignore:counts cover:apportion.errors.ApportionWarning")
@pytest.mark.parametrize("factor", [1, 10, 0.1])
def test_noisy_numbers_of_another_total_are_rescaled_with_their_noise(factor):
    noisy = COUNTS + np.random.default_rng(0).normal(0, 1, COUNTS.shape)
    sums = noisy.sum(1, keepdims=True)
    shares, precision = denoise(noisy * 20 / sums, np.full(20, 20), 20 / sums, counts=True)
    table = Proportions(noisy * factor, "counts", std=float(factor), normalize=True)
    bags = build_bags(X, bags=TOWN, proportions=table).bags
    np.testing.assert_allclose(bags.proportions, shares, atol=1e-6)
    np.testing.assert_allclose(bags.precision, precision)


def test_percentages_have_the_noise_of_shares():
    noisy = COUNTS / 20 + np.random.default_rng(0).normal(0, 0.01, COUNTS.shape)
    shares = build_bags(X, bags=TOWN, proportions=Proportions(noisy, std=0.01)).bags
    percent = build_bags(X, bags=TOWN, proportions=Proportions(100 * noisy, "percent", std=1.0)).bags
    np.testing.assert_allclose(percent.proportions, shares.proportions, atol=1e-6)
    np.testing.assert_allclose(percent.precision, shares.precision)


def test_unknown_bags_are_left_out_of_the_estimate_and_have_no_proportions():
    noisy = COUNTS + np.random.default_rng(0).normal(0, 1, COUNTS.shape)
    noisy[4] = np.nan
    bags = build_bags(
        X, bags=TOWN, proportions=Proportions(noisy, "counts", std=1.0, missing_bags="allow")
    ).bags
    assert bags.proportions[4].isnan().all()
    known = np.delete(noisy, 4, 0)
    shares, precision = denoise(known, np.full(19, 20), 1.0, counts=True)
    np.testing.assert_allclose(np.delete(bags.proportions.numpy(), 4, 0), shares, atol=1e-6)
    np.testing.assert_allclose(np.delete(bags.precision.numpy(), 4), precision)
    assert bags.precision[4] == math.inf


def test_exact_proportions_have_no_precision():
    for options in ({"std": 0.0}, {"std": "estimate"}, {}):
        assert (
            build_bags(X, bags=TOWN, proportions=Proportions(COUNTS, "counts", **options)).bags.precision
            is None
        )

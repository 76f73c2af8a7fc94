"""Diagnoses without labels, on data whose labels are known: every figure, and when there is no answer."""

import math
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy.stats import t as student
from sklearn.linear_model import LogisticRegression

from apportion import diagnose
from apportion.bags.bags import Bags, bag_means
from apportion.bags.denoise import denoise
from apportion.bags.simulate import make_bags
from apportion.datasets.synthetic import blobs, digits, moons
from apportion.errors import DataError, SettingsError
from apportion.networks import mlp
from apportion.pipeline import fit_two_stages
from apportion.selection.crossfit import out_of_fold_log_proba
from apportion.selection.diagnosis import (
    Diagnosis,
    accuracy_interval,
    bag_permutations,
    bag_spread,
    deflate_correlation,
    diagnose_bags,
    estimate_accuracy,
    inflate_correlation,
    inverse_variance_weights,
    label_margins,
    permutation_test,
    varying_confusion,
    verdict,
)
from apportion.transport import assign_with_duals


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bagged(
    y: torch.Tensor, size: int, k: int, seed: int = 0, groups: str = "random"
) -> tuple[Bags, torch.Tensor]:
    return make_bags(torch.arange(len(y)).float()[:, None], y, size, k, seeded(seed), groups)


def mistaken(y: torch.Tensor, confusion: torch.Tensor, seed: int = 1) -> torch.Tensor:
    """Predicted classes, drawn from the row of `confusion` of each true class."""
    return torch.multinomial(confusion[y], 1, generator=seeded(seed)).flatten()


def sure(classes: torch.Tensor, k: int) -> torch.Tensor:
    return (0.98 * torch.nn.functional.one_hot(classes, k).double() + 0.02 / k).log()


CONFUSION = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1], [0.0, 0.4, 0.6]])


# --- the estimate of accuracy


@pytest.mark.parametrize("groups", ["random", "dirichlet"])
def test_the_accuracy_of_many_bags_is_found_without_labels(groups):
    y = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), 200_000, True, generator=seeded())
    bags, hidden = bagged(y, 20, 3, groups=groups)
    guess = mistaken(hidden, CONFUSION)
    shares = bag_means(torch.nn.functional.one_hot(guess, 3).double(), bags.sizes)
    accuracy, error = estimate_accuracy(shares, bags.proportions, bags.sizes)
    truth = float((guess == hidden).double().mean())
    assert error < 0.02
    assert abs(accuracy - truth) < 0.01


def test_the_interval_of_the_accuracy_holds_as_often_as_it_says():
    held, k = [], 3
    for seed in range(200):
        y = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), 1200, True, generator=seeded(seed))
        bags, hidden = bagged(y, 30, k, seed)
        guess = mistaken(hidden, CONFUSION, seed)
        shares = bag_means(torch.nn.functional.one_hot(guess, k).double(), bags.sizes)
        accuracy, error = estimate_accuracy(shares, bags.proportions, bags.sizes)
        held.append(abs(accuracy - float((guess == hidden).double().mean())) <= error)
    assert 0.9 <= np.mean(held) <= 0.99  # 95 % of 200, within three deviations


def test_mistakes_that_differ_from_bag_to_bag_widen_the_interval():
    """Guessed by place: a class is mistaken otherwise in each of four places, which bags mix."""
    held, narrow = [], []
    truth, guess = np.array([0.1, 0.3, 0.6, 0.9]), np.array([0.0, 0.6, 0.3, 1.0])
    for seed in range(60):
        random = np.random.default_rng(seed)
        mixture = random.dirichlet(np.ones(4), 60)
        place = np.stack([random.choice(4, 30, p=p) for p in mixture])
        y, told = (random.random((60, 30)) < rate[place] for rate in (truth, guess))
        known, predicted = (torch.from_numpy(np.stack([1 - v.mean(1), v.mean(1)], 1)) for v in (y, told))
        accuracy, error = estimate_accuracy(predicted, known, torch.full((60,), 30))
        miss, extra = (
            abs(accuracy - (y == told).mean()),
            varying_confusion(predicted, known, torch.full((60,), 30)),
        )
        held.append(miss <= error)
        narrow.append(miss <= math.sqrt(error**2 - extra**2))
    assert np.mean(narrow) < 0.6
    assert np.mean(held) > 0.9


def test_nothing_is_added_in_random_bags_and_little_where_classes_are_mistaken_alike():
    y = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), 4000, True, generator=seeded())
    for groups, most in (("random", 0.0), ("dirichlet", 0.03)):
        bags, hidden = bagged(y, 40, 3, groups=groups)
        guess = torch.nn.functional.one_hot(mistaken(hidden, CONFUSION), 3).double()
        assert varying_confusion(bag_means(guess, bags.sizes), bags.proportions.double(), bags.sizes) <= most


def test_the_accuracy_of_perfect_predictions_is_one_and_of_bags_of_one_is_counted():
    y = torch.multinomial(torch.tensor([0.6, 0.4]), 400, True, generator=seeded())
    bags, hidden = bagged(y, 8, 2)
    accuracy, error = estimate_accuracy(bags.proportions, bags.proportions, bags.sizes)
    assert accuracy == pytest.approx(1, abs=1e-6)
    assert error < 1e-6
    single, hidden = bagged(y, 1, 2)
    guess = mistaken(hidden, CONFUSION[:2, :2])
    accuracy, _ = estimate_accuracy(torch.nn.functional.one_hot(guess, 2), single.proportions, single.sizes)
    assert accuracy == pytest.approx(float((guess == hidden).double().mean()), abs=0.04)


def slow_accuracy(predicted: np.ndarray, known: np.ndarray, n: np.ndarray, m: int) -> float:
    """The regression over bags, each weighed by its rows, as docs/diagnose.md tells it."""
    k, w = known.shape[1], n / n.sum()
    pi, q = w @ known, w @ predicted
    own = (known - pi).T @ (w[:, None] * (known - pi))
    joint = (known - pi).T @ (w[:, None] * (predicted - q))
    slope = np.trace(joint) / np.trace(own)
    ridge = np.trace(own) / k * k**2 / m * np.eye(k)
    slopes = slope * np.eye(k) + np.linalg.solve(own + ridge, joint - slope * own)
    return pi @ q + ((np.diag(pi) - np.outer(pi, pi)) * slopes.T).sum()


@pytest.mark.parametrize("m", [30, 450])
def test_the_accuracy_and_its_jackknife_are_those_of_a_slow_regression_over_bags_of_unequal_sizes(m):
    """Small bags are mistaken otherwise than large ones, so that it matters what each weighs."""
    random, k = np.random.default_rng(m), 3
    n = random.choice([5, 100], m)
    y = [random.integers(k, size=size) for size in n]
    told = [np.where(random.random(len(each)) < (0.9 if len(each) > 5 else 0.3), each, 0) for each in y]
    known, predicted = (np.array([np.bincount(v, minlength=k) / len(v) for v in part]) for part in (y, told))
    groups = min(m, 200)
    kept = [np.arange(m) % groups != group for group in range(groups)]
    each = np.array([slow_accuracy(predicted[rows], known[rows], n[rows], m) for rows in kept])
    deviation = math.sqrt((groups - 1) / groups * ((each - each.mean()) ** 2).sum())
    shares = torch.from_numpy(predicted), torch.from_numpy(known)
    assert varying_confusion(*shares, torch.from_numpy(n)) == 0
    accuracy, error = estimate_accuracy(*shares, torch.from_numpy(n))
    assert accuracy == pytest.approx(slow_accuracy(predicted, known, n, m), rel=1e-9)
    assert error == pytest.approx(student.ppf(0.975, groups - 1) * deviation, rel=1e-6)
    assert abs(accuracy - slow_accuracy(predicted, known, np.ones(m), m)) > 0.02


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ((0.8, 0.1), (0.8, 0.7, 0.9)),
        ((1.03, 0.05), (1.0, 0.95, 1.0)),  # an interval has a width
        ((-0.1, 0.05), (0.0, 0.0, 0.05)),
        ((1 + 1e-6, 1e-9), (1.0, 1.0, 1.0)),
        ((1.09, 0.2), (1.0, 0.8, 1.0)),
        ((1.11, 0.4), (math.nan, 0.0, 1.0)),
        ((1.05, 0.02), (math.nan, 0.0, 1.0)),
    ],
)
def test_an_accuracy_a_little_above_one_is_one_and_far_above_it_is_none(monkeypatch, raw, expected):
    monkeypatch.setattr("apportion.selection.diagnosis.estimate_accuracy", lambda *_: raw)
    nothing = torch.zeros(1)
    assert accuracy_interval(nothing, nothing, nothing) == pytest.approx(expected, nan_ok=True)


# --- how informative the bags are


def test_random_bags_have_the_spread_of_chance_and_others_have_not():
    y = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), 20_000, True, generator=seeded())
    bags, _ = bagged(y, 50, 3)
    spread, chance = bag_spread(bags.proportions, bags.sizes)
    assert abs(spread - 1) < chance < 0.2
    skewed, _ = bagged(y, 50, 3, groups="dirichlet")
    assert bag_spread(skewed.proportions, skewed.sizes)[0] > 5
    assert bag_spread(bags.proportions.mean(0).expand(400, 3), bags.sizes)[0] < 1e-10


def test_shuffled_correlations_are_those_of_shuffled_shares():
    known = torch.rand(30, 3, generator=seeded()).softmax(1)
    mixed = 0.5 * known + 0.5 * torch.rand(30, 3, generator=seeded(1)).softmax(1)
    sizes = torch.full((30,), 20)
    found, null = permutation_test(mixed, known, sizes, 400)
    one, other = ((v - v.mean(0)).flatten().numpy() for v in (mixed, known))
    assert found == pytest.approx(np.corrcoef(one, other)[0, 1], abs=1e-6)
    assert abs(float(null.mean())) < 0.05
    assert float(null.std()) == pytest.approx(1 / np.sqrt(29 * 2), rel=0.5)
    assert permutation_test(torch.full((30, 3), 1 / 3), known, sizes)[0] == 0
    assert permutation_test(mixed, torch.full((30, 3), 1 / 3), sizes)[0] == 0
    one_class = torch.eye(3)[:1].expand(30, 3)
    assert permutation_test(mixed, one_class, torch.arange(1, 31))[0] == 0


def test_a_bag_weighs_by_its_rows_if_bags_differ_by_chance_and_like_any_other_if_for_a_reason():
    sizes = torch.tensor([1, 10, 100, 1000] * 100)
    generator = np.random.default_rng(0)

    def weights(reason: float) -> torch.Tensor:
        chance = generator.beta(reason, reason, len(sizes)) if reason else np.full(len(sizes), 0.5)
        one = torch.from_numpy(generator.binomial(sizes.numpy(), chance) / sizes.numpy())
        return inverse_variance_weights(torch.stack([one, 1 - one], 1), sizes)

    alike = inverse_variance_weights(torch.eye(2).repeat(5, 1), torch.full((10,), 7))
    assert float((alike - 1).abs().max()) < 1e-12
    by_chance, for_a_reason = weights(0), weights(2)
    for found in (by_chance, for_a_reason):
        assert float(found.mean()) == pytest.approx(1)
    assert float(by_chance[2] / by_chance[1]) == pytest.approx(10, rel=0.2)
    assert float(for_a_reason[3] / for_a_reason[2]) == pytest.approx(1, abs=0.05)
    assert float(for_a_reason[3] / for_a_reason[0]) == pytest.approx(0.25 / 0.05, rel=0.2)  # 1/4 a row


def test_weights_and_the_correlation_are_what_a_hand_finds():
    sizes, share = torch.tensor([2, 4, 6, 8]), torch.tensor([1, 1 / 4, 5 / 6, 1 / 4]).double()
    known = torch.stack([share, 1 - share], 1)
    # half of all rows: a row's variance is 1/2, the sum of squares 23/6, 3/2 of it by chance; 20 - 6 - 3 = 11
    reason = (23 / 6 - 3 / 2) / 11
    variances = reason + (1 / 2 - reason) / sizes.double()
    expected = (1 / variances) / (1 / variances).mean()
    torch.testing.assert_close(inverse_variance_weights(known, sizes), expected)
    told = torch.tensor([0.3, 0.6, 0.5, 0.4]).double()
    one, other = (
        np.sqrt(expected.numpy()) * (v.numpy() - np.average(v, weights=expected)) for v in (told, share)
    )
    found, _ = permutation_test(torch.stack([told, 1 - told], 1), known, sizes)
    assert found == pytest.approx(np.corrcoef(one, other)[0, 1])
    assert permutation_test(known, known, sizes)[0] == pytest.approx(1)  # whatever the sizes
    pure = inverse_variance_weights(torch.eye(2)[[0, 1, 0, 1]], torch.tensor([1, 2, 3, 4]))
    torch.testing.assert_close(pure, torch.ones(4).double())  # one row of such a bag tells all of it


def test_small_bags_vary_the_most_but_do_not_look_predicted():
    # predictions follow a feature that the class does not: plain shuffles, sizes alike, let too many pass
    random, passed = np.random.default_rng(0), np.zeros(2)
    for seed in range(400):
        sizes = torch.from_numpy(np.exp(random.normal(3, 1.6, 100)).round().clip(1).astype(np.int64))
        told, rare = random.beta(1, 9, int(sizes.sum())), random.random(int(sizes.sum())) < 0.1
        both = (torch.from_numpy(np.stack([1 - each, each], 1)).double() for each in (told, rare))
        predicted, known = (bag_means(each, sizes) for each in both)
        for i, each in enumerate((sizes, torch.ones_like(sizes))):
            found, null = permutation_test(predicted, known, each, 199, seed)
            passed[i] += float((null >= found).double().mean()) < 0.05
    assert passed[0] / 400 < 0.08 < 0.1 < passed[1] / 400


def crossed_shares(random: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Shares of 40 bags unrelated to five features, predicted by lines fitted to three quarters of them."""
    features, share = random.normal(size=(40, 5)), random.binomial(50, 0.5, 40) / 50
    part, told = random.permutation(40) % 4, np.empty(40)
    for mine in (part == each for each in range(4)):
        slopes = np.sign(features[~mine].T @ (share[~mine] - share[~mine].mean()))
        told[mine] = 0.5 + 0.02 * features[mine] @ slopes
    one, other = (torch.from_numpy(np.stack([each, 1 - each], 1)) for each in (told, share))
    return one, other


def test_cross_validated_predictions_share_chance_and_need_a_higher_correlation():
    random, passed, sizes = np.random.default_rng(0), np.zeros(2), torch.full((40,), 50)
    for seed in range(400):
        found, null = permutation_test(*crossed_shares(random), sizes, 199, seed)
        statistics = np.array([deflate_correlation(found), found])
        passed += [float((null >= each).double().mean()) < 0.05 for each in statistics]
    assert passed[0] / 400 < 0.06 < 0.09 < passed[1] / 400


def test_a_cross_validated_correlation_counts_half_its_odds_and_a_perfect_one_is_perfect():
    for r in (-0.7, 0.0, 0.3, 0.9, 1.0):
        deflated = deflate_correlation(r)
        assert inflate_correlation(deflated) == pytest.approx(r)
        assert deflated**2 * (1 - r**2) == pytest.approx(r**2 * (1 - deflated**2) / 2)
    assert deflate_correlation(1.0) == 1
    y = torch.randint(3, (600,), generator=seeded())
    bags, hidden = bagged(y, 20, 3)
    log_probs = sure(mistaken(hidden, torch.full((3, 3), 0.55 / 3) + 0.45 * torch.eye(3)), 3)
    rows = np.asarray(bags.ids)[np.repeat(np.arange(30), bags.sizes.numpy())]
    plain, crossed = (
        diagnose(
            log_probs.exp(), rows, dict(zip(bags.ids, bags.proportions, strict=True)), cross_validated=each
        )
        for each in (False, True)
    )
    assert crossed.correlation == plain.correlation > 0.1
    assert crossed.critical_correlation == pytest.approx(inflate_correlation(plain.critical_correlation))
    assert plain.p_value < 0.05 < crossed.p_value


# --- margins


def test_margins_bound_what_another_class_costs_the_whole_bag():
    size, counts = 6, torch.tensor([[3, 2, 1]])
    for seed in range(5):
        log_probs = torch.randn(size, 3, generator=seeded(seed)).double().log_softmax(1)
        found = assign_with_duals(log_probs, [size], counts)
        margins = label_margins(log_probs, torch.tensor([size]), found.classes, found.prices)
        labelings = [
            torch.tensor(c)
            for c in product(range(3), repeat=size)
            if torch.equal(torch.bincount(torch.tensor(c), minlength=3), counts[0])
        ]
        worth = torch.stack([log_probs[torch.arange(size), c].sum() for c in labelings])
        best = worth.max()
        for i in range(size):
            others = torch.tensor([bool(c[i] != found.classes[i]) for c in labelings])
            assert -1e-9 <= margins[i] <= best - worth[others].max() + 1e-9
        # the likeliest other labeling moves two instances at least, each by its margin
        assert margins.max() > 0


def test_the_margin_of_a_bag_of_one_class_is_infinite():
    log_probs = torch.randn(4, 2, generator=seeded()).double().log_softmax(1)
    found = assign_with_duals(log_probs, [4], torch.tensor([[4, 0]]))
    margins = label_margins(log_probs, torch.tensor([4]), found.classes, found.prices)
    assert torch.isinf(margins).all()


# --- the verdict


FINE = Diagnosis(
    supported=True, reasons=(), spread=1.0, spread_tolerance=0.3, correlation=0.9, critical_correlation=0.4,
    p_value=0.0005, accuracy=0.9, accuracy_low=0.8, accuracy_high=0.95, largest_class=0.5, agreement=0.9,
    entropy=0.5, bag_errors=torch.zeros(6), classes=torch.zeros(60), margins=torch.zeros(60),
)  # fmt: skip
VERDICTS: dict[str, tuple[dict[str, Any], bool, list[str]]] = {
    "fine": ({}, True, ["better than chance"]),
    "at the level": ({"p_value": 0.002}, True, ["better than chance"]),
    "chance": ({"p_value": 0.41}, False, ["no better than chance (permutation test, p = 0.41"]),
    "all alike": ({"spread": 0.0}, False, ["same proportions"]),
    "five bags": ({"bag_errors": torch.zeros(5)}, False, ["5 bags are too few"]),
    "no accuracy": ({"accuracy": math.nan}, False, ["cannot be estimated"]),
    "more alike than random": ({"spread": 0.6}, True, ["better than chance", "more alike than random"]),
    "differ for a reason": ({"spread": 5.0}, True, ["better than chance", "differ more than random"]),
    "noisy": ({"spread": 0.6, "noisy": True}, True, ["better than chance", "noisy"]),
    "largest class": ({"accuracy_low": 0.5}, True, ["better than chance", "largest class"]),
}


@pytest.mark.parametrize(("changes", "supported", "phrases"), VERDICTS.values(), ids=VERDICTS)
def test_the_verdict_follows_from_the_figures(changes, supported, phrases):
    found, reasons = verdict(replace(FINE, **changes))
    assert found == supported
    assert len(reasons) == len(phrases)
    for reason, phrase in zip(reasons, phrases, strict=True):
        assert phrase in reason
    assert reasons[0].startswith("No answer") != supported


def test_bags_that_differ_for_a_reason_come_with_a_warning():
    y = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), 2000, True, generator=seeded())
    for groups, n_reasons in (("random", 1), ("dirichlet", 2)):
        bags, hidden = bagged(y, 20, 3, groups=groups)
        assert len(diagnose_bags(sure(mistaken(hidden, CONFUSION), 3), bags).reasons) == n_reasons


def test_predictions_that_follow_the_bag_and_not_the_row_have_no_accuracy():
    """Every row has the majority class of its bag: predicted proportions are steeper than the known ones."""
    share = np.linspace(0.3, 0.7, 40)
    bags, table = np.repeat(np.arange(40), 50), np.column_stack([1 - share, share])
    found = diagnose(table[bags], bags, table)
    assert not found.supported
    assert found.p_value == 1 / 2000
    assert math.isnan(found.accuracy)
    assert (found.accuracy_low, found.accuracy_high) == (0.0, 1.0)


def test_denoised_proportions_say_nothing_about_how_bags_differ():
    """Denoising shrinks proportions, so that they are more alike than those of random bags."""
    random, (m, n, k) = np.random.default_rng(0), (100, 32, 5)
    y = random.integers(k, size=(m, n))
    guess = np.where(random.random(y.shape) < 0.85, y, (y + 1) % k)
    counts = np.stack([(y == c).sum(1) for c in range(k)], 1) + random.laplace(scale=2, size=(m, k))
    shares = torch.from_numpy(denoise(counts, np.full(m, n), 2.8, counts=True)[0])
    bags = Bags(torch.zeros(m * n, 1), torch.full((m,), n), shares, torch.arange(m * n), range(m))
    log_probs = sure(torch.from_numpy(guess.ravel()), k)
    plain, noisy = (diagnose_bags(log_probs, bags, noisy=each) for each in (False, True))
    assert plain.supported
    assert noisy.supported
    assert noisy.noisy
    assert plain.spread == noisy.spread < 1 - plain.spread_tolerance
    assert plain.reasons[1] != noisy.reasons[1]


def test_too_few_permutations_are_refused():
    bags, hidden = bagged(torch.arange(400) % 2, 8, 2)
    assert diagnose_bags(sure(hidden, 2), bags, n_permutations=499).supported
    with pytest.raises(SettingsError):
        diagnose_bags(sure(hidden, 2), bags, n_permutations=498)


def test_the_largest_class_is_that_of_rows_and_p_counts_the_order_that_was_found():
    sizes = torch.tensor([90] + [10] * 9)
    shares = torch.tensor([[0.1, 0.9]] + [[i / 10, 1 - i / 10] for i in range(1, 10)])
    classes = torch.cat(
        [torch.arange(n) < round(n * float(p[0])) for n, p in zip(sizes.tolist(), shares, strict=True)]
    )
    bags = Bags(torch.zeros(180, 1), sizes, shares, torch.arange(180), range(10))
    log_probs = sure(1 - classes.long(), 2)
    found = diagnose_bags(log_probs, bags)
    assert found.largest_class == pytest.approx((81 + 45) / 180)
    assert found.p_value == 1 / 2000
    null = permutation_test(bag_means(log_probs.exp(), sizes), shares, sizes, 1999)[1]
    assert found.critical_correlation == pytest.approx(float(null.quantile(0.998)))


SETS = {"moons": lambda: moons(0, 600), "blobs": lambda: blobs(1, 800), "digits": lambda: digits(0)}
FIT = partial(fit_two_stages, model=mlp, label=None, epochs=40, batch_size=128, learning_rate=5e-3, seed=0)


@pytest.mark.parametrize("name", SETS)
def test_informative_bags_are_supported_and_permuted_proportions_are_not(name):
    data = SETS[name]()
    bags, hidden = make_bags(data.x, data.y, 16, data.n_classes, seeded())
    log_probs = out_of_fold_log_proba(bags, FIT, folds=2)
    found = diagnose_bags(log_probs, bags, cross_validated=True)
    assert found.supported
    truth = float((log_probs.argmax(1) == hidden).double().mean())
    assert found.accuracy_low <= truth <= found.accuracy_high
    order = torch.randperm(len(bags.sizes), generator=seeded(2))
    permuted = replace(bags, proportions=bags.proportions[order])
    log_probs = out_of_fold_log_proba(permuted, FIT, folds=2)
    assert not diagnose_bags(log_probs, permuted, cross_validated=True).supported


def test_predictions_that_never_name_a_small_class_do_not_beat_the_largest():
    y = torch.multinomial(torch.tensor([0.8, 0.2]), 2000, True, generator=seeded())
    bags, hidden = bagged(y, 10, 2)
    timid = torch.where(hidden == 1, 0.4, 0.1).double()
    found = diagnose_bags(torch.stack([1 - timid, timid], 1).log(), bags)
    assert found.supported
    assert found.accuracy_low <= found.largest_class


def test_agreement_entropy_and_errors_are_what_they_say():
    y = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), 600, True, generator=seeded())
    bags, hidden = bagged(y, 10, 3)
    found = diagnose_bags(sure(hidden, 3), bags)
    assert found.agreement == 1
    assert torch.equal(found.classes, hidden)
    expected = (0.02 * (1 / 3 - bags.proportions)).abs().sum(1) / 2  # sure() gives 2 % to all classes alike
    torch.testing.assert_close(found.bag_errors, expected.double(), atol=1e-6, rtol=0)
    even = diagnose_bags(torch.full((600, 3), 1 / 3).log(), bags)
    assert even.entropy == pytest.approx(1)
    assert not even.supported


def test_predictions_of_another_library_in_any_order_are_diagnosed():
    data = moons(0, 600)
    x, y = data.x.numpy(), data.y.numpy()
    town = np.random.default_rng(0).integers(30, size=600)
    shares = {i: [(y[town == i] == c).mean() for c in (0, 1)] for i in range(30)}
    probabilities = LogisticRegression().fit(x, y).predict_proba(x)
    found = diagnose(probabilities, town, shares)
    assert found.supported
    order = np.random.default_rng(1).permutation(600)
    again = diagnose(probabilities[order], town[order], shares)
    assert again.accuracy == pytest.approx(found.accuracy)
    assert again.p_value == found.p_value
    torch.testing.assert_close(again.bag_errors, found.bag_errors)
    assert torch.equal(again.classes, found.classes[order])  # rows as they were given
    torch.testing.assert_close(again.margins, found.margins[order])
    assert (found.classes.numpy() == y).mean() > 0.8


# --- what `diagnose` takes


@pytest.mark.parametrize(
    "change",
    [np.log, lambda p: 100 * p, lambda p: p - 0.5, lambda p: p / 2, lambda p: p[:, :1]],
    ids=["log", "percent", "scores", "half", "one column"],
)
def test_what_are_no_probabilities_is_refused(change):
    probabilities = np.array([[0.25, 0.75], [0.75, 0.25]] * 4)
    ids, shares = [0, 0, 1, 1, 2, 2, 3, 3], {i: [i / 4, 1 - i / 4] for i in range(4)}
    assert not diagnose(probabilities, ids, shares).supported
    with pytest.raises(DataError):
        diagnose(change(probabilities), ids, shares)


def test_a_table_with_names_is_aligned_by_them_or_needs_the_classes_of_the_predictions():
    random = np.random.default_rng(0)
    town, shares = np.repeat(np.arange(40), 20), random.uniform(0.1, 0.9, 40)
    yes = np.clip(shares[town] + 0.05 * random.normal(size=800), 0.01, 0.99)
    predictions = np.column_stack([1 - yes, yes])
    table = pd.DataFrame({"no": 1 - shares, "yes": shares})
    reversed_ = table[["yes", "no"]]
    right = diagnose(predictions, town, table)
    assert right.correlation > 0.95
    with pytest.raises(DataError):
        diagnose(predictions, town, reversed_)
    for each in (reversed_, reversed_.T.to_dict()):
        assert diagnose(predictions, town, each, classes=["no", "yes"]).correlation == right.correlation


@pytest.mark.parametrize("library", [pd, pl], ids=["pandas", "polars"])
@pytest.mark.parametrize("order", [["no", "yes"], ["yes", "no"]], ids=str)
@pytest.mark.parametrize("classes", [None, ["no", "yes"], ["yes", "no"]], ids=str)
def test_predictions_with_names_are_aligned_by_them(library, order, classes):
    shares = np.random.default_rng(0).random(12)
    table = pd.DataFrame({"no": 1 - shares, "yes": shares})
    ids = np.repeat(np.arange(12), 5)
    values = {"no": 1 - shares[ids], "yes": shares[ids]}
    predictions = library.DataFrame({name: values[name] for name in order})
    for known in (table, table[["yes", "no"]]):
        assert diagnose(predictions, ids, known, classes=classes).correlation == pytest.approx(1)


def test_names_of_predictions_that_are_not_those_of_the_classes_are_refused():
    table, ids = pd.DataFrame({"no": [0.25, 0.5], "yes": [0.75, 0.5]}), np.arange(4) % 2
    predictions = pd.DataFrame(np.full((4, 2), 0.5), columns=["no", "maybe"])
    for classes in ("random", ["no", "yes"]):
        with pytest.raises(DataError):
            diagnose(predictions, ids, table, classes=classes)
    with pytest.raises(DataError):  # percentages
        diagnose(np.full((4, 2), 0.5), ids, 100 * table.to_numpy(), classes=["no", "yes"])


# --- more oracles


def test_spread_is_pearsons_statistic_over_its_degrees_of_freedom():
    known = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    assert bag_spread(known, torch.tensor([10, 10, 20])) == pytest.approx((20 / 2, 3 * math.sqrt(2 / 2)))


def test_mistakes_that_differ_between_bags_widen_the_interval_by_what_is_beyond_chance():
    first = torch.tensor([0.2, 0.2, 0.8, 0.8], dtype=torch.float64).repeat(25)
    odd = torch.tensor([0.1, -0.1, 0.1, -0.1], dtype=torch.float64).repeat(25)  # not along with the shares
    known, told = (torch.stack([p, 1 - p], 1) for p in (first, 0.5 + 0.8 * (first - 0.5) + odd))
    by_chance = 2 * 0.9 * 0.1  # each class is right in nine of ten
    beyond = 100 * 100 * 2 * 0.1**2 / 99 - (1 + 2 * math.sqrt(2 / 99)) * by_chance
    expected = math.sqrt(beyond / 100 / 0.18) * (1 - 0.5)
    assert varying_confusion(told, known, torch.full((100,), 100)) == pytest.approx(expected)


def test_few_bags_are_held_against_every_other_order_once():
    orders = {tuple(order.tolist()) for order in bag_permutations(6, 1999, seed=0)}
    assert len(orders) == 719
    assert tuple(range(6)) not in orders
    assert len(list(bag_permutations(7, 1999, seed=0))) == 1999  # of 5,040
    for seed in range(40):  # everything is predicted: always an answer, whatever is drawn
        shares = torch.rand(6, 3, generator=seeded(seed), dtype=torch.float64).softmax(1)
        rows = shares.repeat_interleave(50, 0)
        bags = Bags(rows, torch.full((6,), 50), shares, torch.arange(300), list("abcdef"))
        assert diagnose_bags(rows.log(), bags, seed=seed).p_value == pytest.approx(1 / 720)


def test_shares_that_are_shuffled_onto_themselves_reach_the_correlation():
    # two bags alike in what is predicted: exchanged, they are as good, though their products add up elsewise
    for seed in range(40):
        predicted = torch.rand(6, 3, generator=seeded(seed), dtype=torch.float64).softmax(1)
        predicted[1] = predicted[0]
        rows, known = predicted.repeat_interleave(50, 0), torch.randn(6, 3, generator=seeded(seed)).softmax(1)
        known = 0.9 * predicted + 0.1 * known.double()
        bags = Bags(rows, torch.full((6,), 50), known, torch.arange(300), list("abcdef"))
        found = diagnose_bags(rows.log(), bags, n_permutations=7199)
        assert found.p_value > 1.2 / 720  # of 720 orders two are as good

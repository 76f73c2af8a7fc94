"""Diagnoses without labels, on data whose labels are known: every figure, and when there is no answer."""

import math
from dataclasses import replace
from itertools import permutations, product
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy.stats import t as student
from sklearn import clone
from sklearn.linear_model import LogisticRegression

from apportion import (
    BagScore,
    ProportionClassifier,
    Proportions,
    condition_on_proportions,
    diagnose,
    diagnose_predictions,
    tabulate,
)
from apportion.bags.bags import Bags, bag_means
from apportion.bags.denoise import denoise
from apportion.bags.simulate import make_bags
from apportion.datasets.synthetic import blobs, digits, moons
from apportion.errors import ApportionWarning, DataError, SettingsError
from apportion.selection.bag_differences import (
    features_for_tests,
    find_differences,
    p_value_of_chance,
    p_value_of_classes,
    p_value_of_proportions,
)
from apportion.selection.crossfit import assign_folds, cross_fit
from apportion.selection.diagnosis import (
    Diagnosis,
    accuracy_bounds,
    accuracy_interval,
    bag_permutations,
    bag_spread,
    deflate_correlation,
    diagnose_bags,
    estimate_accuracy,
    inflate_correlation,
    inverse_variance_weights,
    is_network,
    label_margins,
    outward,
    permutation_test,
    shared_chance,
    varying_confusion,
    verdict,
    why_untested,
)
from apportion.tables.diagnose import describe_diagnosis
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
        diagnose_predictions(
            log_probs.exp(), rows, dict(zip(bags.ids, bags.proportions, strict=True)), origin=each
        )
        for each in ("held_out", "cross_validated")
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
    accuracy_min=0.2, accuracy_max=0.97, accuracy_if_unrelated=0.5,
    differences="chance", p_chance=0.5, p_classes=0.5,
    proportion_error_of_overall_shares=0.15,
)  # fmt: skip
VERDICTS: dict[str, tuple[dict[str, Any], bool, list[str]]] = {
    "fine": ({}, True, ["better than chance", "no more than random"]),
    "at the level": ({"p_value": 0.002}, True, ["better than chance", "no more than random"]),
    "chance": ({"p_value": 0.41}, False, ["(permutation test, p = 0.41", "20.0 and 97.0 %"]),
    "all alike": ({"spread": 0.0}, False, ["same proportions", "20.0 and 97.0 %"]),
    "five bags": ({"bag_errors": torch.zeros(5)}, False, ["5 bags are too few", "20.0 and 97.0 %"]),
    "no accuracy": ({"accuracy": math.nan}, False, ["cannot be estimated", "20.0 and 97.0 %"]),
    "training bags": ({"origin": "training"}, False, ["was trained on", "20.0 and 97.0 %"]),
    "more alike than random": ({"spread": 0.6}, True, ["better than", "no more than random", "more alike"]),
    "differ in classes": ({"differences": "classes"}, True, ["better than", "by their class alone"]),
    "differ for a reason": (
        {"differences": "more", "accuracy": math.nan}, True, ["better", "no estimate", "20.0 and 97.0 %"],
    ),
    "noisy": ({"spread": 0.6, "noisy": True}, True, ["better than chance", "no more than random", "noisy"]),
    "largest class": ({"accuracy_low": 0.5}, True, ["better than", "no more than random", "largest class"]),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "supported", "phrases"), VERDICTS.values(), ids=VERDICTS)
def test_the_verdict_follows_from_the_figures(changes, supported, phrases):
    found, reasons = verdict(replace(FINE, **changes))
    assert found == supported
    assert len(reasons) == len(phrases)
    for reason, phrase in zip(reasons, phrases, strict=True):
        assert phrase in reason
    assert reasons[0].startswith("No answer") != supported


def test_only_networks_are_advised_to_train_longer():
    figures = replace(FINE, p_value=0.41)
    for network in (False, True):
        (reason, _) = verdict(figures, network=network)[1]
        assert ("epochs" in reason) == ("network" in reason) == network
    assert [is_network(each) for each in ("mlp", torch.nn.Linear(2, 2), "linear", "auto", None)] == [
        True, True, False, False, False,
    ]  # fmt: skip


def test_a_p_value_is_never_zero():
    for differences in ("more", "chance", "classes"):
        figures = replace(FINE, differences=differences, p_value=0.0005, p_chance=0.0, p_classes=0.0)
        printed = " ".join(verdict(figures)[1])
        assert "p = 0" not in printed
        assert printed.count("p < 0.001") == 2


@pytest.mark.parametrize(
    "changes", [{"bag_errors": torch.zeros(5)}, {"spread": 0.0}, {"origin": "training"}], ids=str
)
def test_a_test_is_only_reported_where_there_is_one(changes):
    figures = replace(FINE, **changes)
    assert why_untested(figures)
    (line,) = [each for each in describe_diagnosis(figures, "") if each.startswith("bag correlation")]
    assert "not tested" in line
    assert "significant" not in line
    assert any("significant from 0.400" in line for line in describe_diagnosis(FINE, "some bags"))
    assert not why_untested(FINE)


def test_certain_bounds_are_never_narrower_than_they_are():
    assert outward(0.006, 0.842, 0) == ("0", "85")
    assert outward(0.006, 0.842) == ("0.6", "84.2")
    assert outward(0.0, 1.0, 0) == ("0", "100")
    for low, high in np.sort(np.random.default_rng(0).random((200, 2)), axis=1):
        for places in (0, 1, 2):
            ends = [float(end) / 100 for end in outward(low, high, places)]
            assert ends[0] <= low + 1e-7
            assert ends[1] >= high - 1e-7
            assert max(low - ends[0], ends[1] - high) < 10**-places / 100 + 1e-7


def test_the_error_of_the_overall_shares_is_that_of_predicting_them():
    random = np.random.default_rng(0)
    sizes = random.integers(5, 40, 30)
    shares = random.dirichlet(np.ones(3), 30)
    bags = np.repeat(np.arange(30), sizes)
    overall = sizes @ shares / sizes.sum()
    p = np.tile(overall, (len(bags), 1))
    found = diagnose_predictions(p, bags, Proportions(shares), origin="held_out")
    by_hand = np.abs(shares - overall).sum(1).mean() / 2
    assert found.proportion_error_of_overall_shares == pytest.approx(by_hand, abs=1e-6)
    assert float(found.bag_errors.mean()) == pytest.approx(by_hand, abs=1e-6)
    assert f"{100 * by_hand:.1f} on average if" in " ".join(describe_diagnosis(found, "thirty bags"))


class Untrainable:
    def fit(self, X: Any, *, bags: Any, proportions: Any) -> None:
        raise AssertionError("something is trained")


def test_too_few_bags_are_found_before_anything_is_trained():
    x, town, y = town_data(50, 5)
    with pytest.raises(DataError, match="5 bags"):
        diagnose(Untrainable(), x, town, shares_of(y, town))


def test_predictions_that_follow_the_bag_and_not_the_row_have_no_accuracy():
    """Every row has the majority class of its bag: predicted proportions are steeper than the known ones."""
    share = np.linspace(0.3, 0.7, 40)
    bags, table = np.repeat(np.arange(40), 50), np.column_stack([1 - share, share])
    found = diagnose_predictions(table[bags], bags, table, origin="held_out")
    assert found.differences == "more"
    assert found.p_value == 1 / 2000
    assert math.isnan(found.accuracy)
    least = np.where(share > 0.5, share, 1 - share).mean()  # all rows of a bag have one predicted class
    assert (found.accuracy_low, found.accuracy_high) == pytest.approx((least, least))


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
    assert plain.reasons[-1] != noisy.reasons[-1]


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
FIT = ProportionClassifier("mlp", "dllp", None, epochs=40, batch_size=128, learning_rate=5e-3, random_state=0)


def cross_fitted(bags: Bags, folds: int) -> tuple[torch.Tensor, Diagnosis]:
    out = np.empty((len(bags.x), bags.n_classes))
    for _ in cross_fit(
        FIT, bags.x.numpy(), bags, dict(zip(bags.ids, bags.proportions, strict=True)), out, folds=folds
    ):
        pass
    return torch.from_numpy(out), diagnose_bags(
        torch.from_numpy(out).log(),
        bags,
        features=features_for_tests(bags.x),
        origin="cross_validated",
        fold_of_bag=assign_folds(bags, folds, 0),
    )


@pytest.mark.parametrize("name", SETS)
def test_informative_bags_are_supported_and_permuted_proportions_are_not(name):
    data = SETS[name]()
    bags, hidden = make_bags(data.x, data.y, 16, data.n_classes, seeded())
    probabilities, found = cross_fitted(bags, 2)
    assert found.supported
    assert found.differences == "chance"
    truth = float((probabilities.argmax(1) == hidden).double().mean())
    assert found.accuracy_low <= truth <= found.accuracy_high <= found.accuracy_max
    order = torch.randperm(len(bags.sizes), generator=seeded(2))
    _, permuted = cross_fitted(replace(bags, proportions=bags.proportions[order]), 2)
    assert not permuted.supported
    assert math.isnan(permuted.accuracy)


def test_predictions_that_never_name_a_small_class_do_not_beat_the_largest():
    y = torch.multinomial(torch.tensor([0.8, 0.2]), 2000, True, generator=seeded())
    bags, hidden = bagged(y, 10, 2)
    timid = torch.where(hidden == 1, 0.4, 0.1).double()
    found = diagnose_bags(torch.stack([1 - timid, timid], 1).log(), bags)
    assert found.supported
    assert found.accuracy_low <= found.largest_class + 1e-6
    assert len(found.reasons) == 3


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
    found = diagnose_predictions(probabilities, town, shares, origin="held_out")
    assert found.supported
    order = np.random.default_rng(1).permutation(600)
    again = diagnose_predictions(probabilities[order], town[order], shares, origin="held_out")
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
    assert not diagnose_predictions(probabilities, ids, shares, origin="held_out").supported
    with pytest.raises(DataError):
        diagnose_predictions(change(probabilities), ids, shares, origin="held_out")


def test_a_table_with_names_is_aligned_by_them_or_needs_the_classes_of_the_predictions():
    random = np.random.default_rng(0)
    town, shares = np.repeat(np.arange(40), 20), random.uniform(0.1, 0.9, 40)
    yes = np.clip(shares[town] + 0.05 * random.normal(size=800), 0.01, 0.99)
    predictions = np.column_stack([1 - yes, yes])
    table = pd.DataFrame({"no": 1 - shares, "yes": shares})
    reversed_ = table[["yes", "no"]]
    right = diagnose_predictions(predictions, town, table, origin="held_out")
    assert right.correlation > 0.95
    with pytest.raises(DataError):
        diagnose_predictions(predictions, town, reversed_, origin="held_out")
    for each in (reversed_, reversed_.T.to_dict()):
        assert (
            diagnose_predictions(
                predictions, town, each, classes=["no", "yes"], origin="held_out"
            ).correlation
            == right.correlation
        )


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
        assert diagnose_predictions(
            predictions, ids, known, classes=classes, origin="held_out"
        ).correlation == pytest.approx(1)


def test_names_of_predictions_that_are_not_those_of_the_classes_are_refused():
    table, ids = pd.DataFrame({"no": [0.25, 0.5], "yes": [0.75, 0.5]}), np.arange(4) % 2
    predictions = pd.DataFrame(np.full((4, 2), 0.5), columns=["no", "maybe"])
    for classes in ("random", ["no", "yes"]):
        with pytest.raises(DataError):
            diagnose_predictions(predictions, ids, table, classes=classes, origin="held_out")
    with pytest.raises(DataError):  # percentages
        diagnose_predictions(
            np.full((4, 2), 0.5), ids, 100 * table.to_numpy(), classes=["no", "yes"], origin="held_out"
        )


# --- bounds of arithmetic, and bags that differ


@pytest.mark.parametrize("names", ["column", "grouping", "numbers"])
def test_every_function_reads_a_table_in_the_same_way(names):
    random = np.random.default_rng(0)
    town = np.arange(400) % 20 + 1
    people = pd.DataFrame(
        {"town": town, "age": random.normal(size=400), "sex": random.choice(["f", "m"], 400)}
    )
    no = people.age.add(town / 10).gt(1).groupby(people.town).mean().to_numpy()
    shares = pd.DataFrame({"town": range(1, 21), "no": no, "yes": 1 - no})
    shares = shares[shares.town != 7]  # an index of numbers with a gap
    given = Proportions(shares, classes=["no", "yes"], missing_bags="allow")
    bags: Any = "town"
    if names == "grouping":
        bags, given, people = {"town": town}, {"town": given}, people.drop(columns="town")
    if names == "numbers":  # an index without a name, where no column can name the bags
        shares = shares.set_index("town")
        shares.index = pd.Index(shares.index.tolist())
        given = Proportions(shares, classes=["no", "yes"], missing_bags="allow")
        bags, people = town, people.drop(columns="town")
    named = shares.set_index("town") if "town" in shares else shares
    exact = Proportions(named, missing_bags="allow")
    model = ProportionClassifier(model="linear", random_state=0)
    model.fit(people, bags=bags, proportions=given)
    rows = people.drop(columns="town", errors="ignore")
    expected = clone(model).fit(rows, bags=town, proportions=exact).predict_proba(rows)
    np.testing.assert_array_equal(model.predict_proba(people), expected)
    found = diagnose(model, people, bags, given, n_permutations=499)
    expected_diagnosis = diagnose(model, rows, town, exact, n_permutations=499)
    assert repr(found.get("town") if names == "grouping" else found) == repr(expected_diagnosis)
    ids = bags if names == "grouping" else pd.Series(town, name="town")
    probabilities = model.predict_proba(people)
    np.testing.assert_array_equal(
        condition_on_proportions(probabilities, ids, given, classes=model.classes_),
        condition_on_proportions(probabilities, town, exact, classes=model.classes_),
    )
    predicted = model.predict(people, decide="shares", bags=bags, proportions=given)
    assert (predicted == model.predict(rows, decide="shares", bags=town, proportions=exact)).all()
    if names == "grouping":
        return
    by = {"sex": people.sex}
    with pytest.warns(ApportionWarning, match="all that arithmetic allows"):  # no column explains the towns
        tables = [
            tabulate(model, x, by, bags=b, proportions=p, replicates=2, random_state=0)
            for x, b, p in [(people, bags, given), (rows, town, exact)]
        ]
    assert all(np.array_equal(tables[0][name], tables[1][name]) for name in tables[0])
    held_out = pd.Series(town[town != 7], name="town")
    kept = rows[town != 7].set_axis(held_out.index)
    table = shares.reset_index(drop=True) if names == "column" else named
    assert BagScore()(model, kept, table, bags=held_out) == BagScore()(model, kept, named, bags=held_out)


def test_bounds_of_the_accuracy_are_those_of_all_labelings_of_a_bag():
    random = np.random.default_rng(0)
    for _ in range(30):
        k, n = random.integers(2, 4), random.integers(1, 7)
        predicted, y = random.integers(k, size=(2, n))
        counts = [np.bincount(each, minlength=k) for each in (predicted, y)]
        shares = [torch.from_numpy(each / n)[None].float() for each in counts]
        bounds = accuracy_bounds(*shares, torch.tensor([n]))
        accuracies = [(np.array(order) == predicted).mean() for order in permutations(y.tolist())]
        assert (bounds.least, bounds.most) == pytest.approx((min(accuracies), max(accuracies)), abs=1e-12)
        assert bounds.unrelated == pytest.approx(np.mean(accuracies))


def reordered(y: np.ndarray, bag: np.ndarray, score: np.ndarray) -> np.ndarray:
    """The same labels in every bag, in the order of a score."""
    y = y.copy()
    for each in np.unique(bag):
        rows = np.flatnonzero(bag == each)
        y[rows[np.argsort(score[rows])]] = np.sort(y[rows])
    return y


@pytest.mark.parametrize("seed", range(3))
def test_no_labels_of_rows_in_bags_made_by_a_column_are_outside_the_interval(seed):
    """Totals cannot tell labels from others with the same totals, permuted or reversed inside the bags."""
    random = np.random.default_rng(seed)
    bag = np.repeat(np.arange(40), 40)
    age = random.normal(random.normal(size=40)[bag], 1.0)
    y = (random.random(1600) < 1 / (1 + np.exp(-2 * age))).astype(int)
    p = 1 / (1 + np.exp(-2 * age))
    table = {i: [1 - y[bag == i].mean(), y[bag == i].mean()] for i in range(40)}
    found = diagnose_predictions(np.column_stack([1 - p, p]), bag, table, origin="held_out", features=age)
    assert found.supported
    assert found.differences == "more"
    assert math.isnan(found.accuracy)
    assert (found.accuracy_low, found.accuracy_high) == (found.accuracy_min, found.accuracy_max)
    for score in (age, -age, random.random(1600)):
        truth = ((p > 0.5) == reordered(y, bag, score)).mean()
        assert found.accuracy_low - 1e-9 <= truth <= found.accuracy_high + 1e-9
    assert truth == pytest.approx(found.accuracy_if_unrelated, abs=0.03)


@pytest.mark.parametrize("groups", ["random", "dirichlet", "cluster"])
def test_how_bags_differ_is_found(groups):
    data = blobs(2, 2000)
    bags, hidden = make_bags(data.x, data.y, 40, 4, seeded(), groups)
    p = torch.from_numpy(LogisticRegression().fit(bags.x, hidden).predict_proba(bags.x))
    found = find_differences(p, bags, features_for_tests(bags.x))
    assert found.kind == {"random": "chance", "dirichlet": "classes", "cluster": "more"}[groups]


def test_random_bags_are_called_different_as_rarely_as_the_level_says():
    """Also if rare classes lie in bags of very unequal sizes, and if networks of folds differ."""
    random, low = np.random.default_rng(0), np.zeros(3)
    for _ in range(300):
        sizes = torch.from_numpy(np.exp(random.normal(2.5, 1.2, 60)).round().clip(1).astype(np.int64))
        n = int(sizes.sum())
        rare = torch.from_numpy(random.random(n) < 0.03).double()
        known = bag_means(torch.stack([1 - rare, rare], 1), sizes)
        fold = torch.arange(60) % 4
        values = torch.from_numpy(random.exponential(size=(n, 2))) + fold.repeat_interleave(sizes)[:, None]
        p_values = (
            p_value_of_proportions(known, sizes),
            p_value_of_chance(values, sizes, fold),
            p_value_of_classes(values, sizes, known, fold),
        )
        low += np.array(p_values) < 0.05
    assert (low / 300 < 0.1).all()
    assert (low / 300 > 0.01).all()


def test_accuracies_are_not_underestimated_because_folds_know_the_other_folds():
    """Each network expects the classes of its training bags, so that it errs against the held-out ones."""
    random, off = np.random.default_rng(0), []
    for _ in range(100):
        y = random.random((24, 20)) < 0.5
        fold = np.arange(24) % 4
        others = np.array([y[fold != each].mean() for each in range(4)])
        guess = random.random(y.shape) < np.where(y, 0.7, 0.3) + 3 * (others[fold] - 0.5)[:, None]
        predicted, known = (torch.from_numpy(np.stack([1 - v.mean(1), v.mean(1)], 1)) for v in (guess, y))
        sizes = torch.full((24,), 20)
        both = [
            estimate_accuracy(predicted, known, sizes, each)[0] for each in (None, torch.from_numpy(fold))
        ]
        off.append(np.array(both) - (guess == y).mean())
    plain, by_fold = np.mean(off, axis=0)
    assert plain < -0.04
    assert abs(by_fold) < 0.02


def regressions(
    seed: int, signal: float, m: int = 60, n: int = 8, d: int = 100
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, float]:
    """Shares of bags as cross-fitted regressions predict them, known ones, sizes, folds and the accuracy."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(m, n, d))
    y = signal * x[..., 0] + random.normal(size=(m, n)) > 0
    mean, p, fold = x.mean(1), y.mean(1), np.arange(m) % 4
    top = np.empty((m, n), bool)
    for each in range(4):
        center = mean[fold != each] - mean[fold != each].mean(0)
        slopes = np.linalg.solve(center.T @ center + 10 * np.eye(d), center.T @ p[fold != each])
        top[fold == each] = x[fold == each] @ slopes > 0
    shares = (torch.from_numpy(np.stack([1 - each, each], 1)) for each in (top.mean(1), p))
    return *shares, torch.full((m,), n), torch.from_numpy(fold), float((top == y).mean())


@pytest.mark.parametrize("signal", [0.0, 2.0])
def test_intervals_hold_although_folds_learn_from_each_other(signal):
    """Pairs of bags that agree by chance count twice, which a jackknife over bags alone does not see."""
    off, plain, grown = [], [], []
    for seed in range(400):
        predicted, known, sizes, fold, truth = regressions(seed, signal)
        growth = shared_chance(predicted, known, sizes, fold)
        accuracy, width = estimate_accuracy(predicted, known, sizes, fold)
        off.append(accuracy - truth)
        plain.append(abs(off[-1]) <= width)
        grown.append(abs(off[-1]) <= estimate_accuracy(predicted, known, sizes, fold, growth)[1])
    assert abs(np.mean(off)) < 3 * np.std(off) / math.sqrt(len(off))  # no bias
    assert np.mean(plain) < 0.93 <= np.mean(grown)  # 95 % of 400 up to two deviations


def test_chance_counts_twice_as_far_as_predictions_do_not_explain_the_proportions():
    predicted, known, sizes, fold, _ = regressions(0, 2.0)
    growth = shared_chance(predicted, known, sizes)
    correlation = np.corrcoef(predicted[:, 1], known[:, 1])[0, 1]
    assert growth == pytest.approx(2 - correlation**2)
    assert shared_chance(known, known, sizes, fold) == pytest.approx(1)
    assert shared_chance(known.flip(0) * 0 + 0.5, known, sizes, fold) == 2
    moved = predicted + torch.tensor([0.1, -0.1]) * fold.unsqueeze(1)
    assert shared_chance(moved, known, sizes, fold) == pytest.approx(
        shared_chance(predicted, known, sizes, fold)
    )
    one, other = (estimate_accuracy(predicted, known, sizes, fold, each) for each in (1.0, 1.44))
    assert other == pytest.approx((one[0], 1.2 * one[1]))


def test_the_interval_is_wider_for_cross_validated_predictions_than_for_held_out_ones():
    y = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), 1200, True, generator=seeded())
    bags, hidden = bagged(y, 20, 3)
    log_probs = sure(mistaken(hidden, CONFUSION), 3)
    held_out, crossed = (
        diagnose_bags(log_probs, bags, origin=each) for each in ("held_out", "cross_validated")
    )
    assert crossed.accuracy == held_out.accuracy
    hard = bag_means(log_probs.exp().round(), bags.sizes)
    growth = shared_chance(hard, bags.proportions, bags.sizes)
    assert 1 < growth < 2
    widths = [each.accuracy - each.accuracy_low for each in (crossed, held_out)]
    assert widths[0] / widths[1] == pytest.approx(math.sqrt(growth))


# --- diagnose: a model and bags


def town_data(n: int = 900, m: int = 45, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 2))
    return x, np.arange(n) % m, (x[:, 0] + 0.3 * random.normal(size=n) > 0).astype(int)


def shares_of(y: np.ndarray, bag: np.ndarray) -> dict[Any, list[float]]:
    return {i: [1 - y[bag == i].mean(), y[bag == i].mean()] for i in np.unique(bag).tolist()}


QUICK = ProportionClassifier(epochs=20, pseudo_labels=None, random_state=0)


def test_every_form_of_bags_and_proportions_gives_the_same_diagnosis():
    x, town, y = town_data()
    shares = shares_of(y, town)
    first = diagnose(QUICK, x, town, shares)
    assert first.supported
    assert first.origin == "cross_validated"
    truth_of_rows = (first.classes.numpy() == y).mean()
    assert truth_of_rows > 0.85  # in the order of X
    assert first.accuracy_low < first.accuracy <= first.accuracy_high <= first.accuracy_max
    array = diagnose(QUICK, x, town, np.array(list(shares.values())))
    missing = {**shares, 0: None}
    fewer = diagnose(QUICK, x, town, Proportions(missing, missing_bags="allow"))
    assert array.accuracy == first.accuracy
    assert len(fewer.bag_errors) == 44
    assert not hasattr(QUICK, "model_")
    frame = pl.DataFrame({"a": x[:, 0], "b": x[:, 1], "town": town})
    from_column = diagnose(QUICK, frame, "town", shares)
    from_ids = diagnose(QUICK, pd.DataFrame({"a": x[:, 0], "b": x[:, 1]}), town, shares)
    assert from_column.accuracy == from_ids.accuracy
    several = diagnose(QUICK, x, {"a": town, "b": town % 9}, {"a": shares, "b": shares_of(y, town % 9)})
    assert several["a"].accuracy == first.accuracy
    assert len(several["b"].bag_errors) == 9


def test_shuffled_proportions_that_a_network_overfits_are_not_supported():
    """What diagnosing predictions for training bags used to call fine."""
    x, town, y = town_data(300, 30)
    order = np.random.default_rng(0).permutation(30)
    shares = shares_of(y, town)
    shuffled = {i: shares[j] for i, j in enumerate(order.tolist())}
    model = ProportionClassifier("mlp", "dllp", None, epochs=300, random_state=0).fit(
        x, bags=town, proportions=shuffled
    )
    assert not diagnose(model, x, town, shuffled).supported
    p = model.predict_proba(x)
    overfit = diagnose_predictions(p, town, shuffled, origin="held_out")
    assert overfit.supported  # said to be held out, which nobody can check
    labeled = diagnose_predictions(p, town, shuffled, origin="training")
    assert not labeled.supported
    assert math.isnan(labeled.accuracy)
    assert (labeled.accuracy_low, labeled.accuracy_high) == (labeled.accuracy_min, labeled.accuracy_max)
    with pytest.raises(SettingsError):
        diagnose_predictions(p, town, shuffled, origin="train")


def test_a_model_is_diagnosed_itself_by_new_bags():
    x, town, y = town_data()
    model = clone(QUICK).fit(x, bags=town, proportions=shares_of(y, town))
    new_x, new_town, new_y = town_data(seed=1)
    found = diagnose(model, new_x, new_town + 100, shares_of(new_y, new_town + 100), new_bags=True)
    assert found.origin == "held_out"
    same = diagnose_predictions(
        model.predict_proba(new_x), new_town, shares_of(new_y, new_town), origin="held_out", features=new_x
    )
    assert found.accuracy == pytest.approx(same.accuracy)
    assert found.p_chance == pytest.approx(same.p_chance)


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


def test_thousands_of_classes_share_one_slope_and_take_no_matrices_of_pairs(monkeypatch):
    random = np.random.default_rng(0)
    y = random.integers(6, size=(60, 20))
    guess = np.where(random.random(y.shape) < 0.8, y, random.integers(6, size=y.shape))
    known, predicted = (
        torch.stack([torch.from_numpy((v == c).mean(1)) for c in range(6)], 1) for v in (y, guess)
    )
    sizes = torch.full((60,), 20)
    monkeypatch.setattr("apportion.selection.diagnosis.MAX_CLASSES", 5)
    accuracy, half_width = estimate_accuracy(predicted, known, sizes)
    assert abs(accuracy - (y == guess).mean()) < half_width < 0.15
    p = np.full((60, 20_000), 1 / 20_000)
    table = {i: np.bincount(random.integers(20_000, size=6), minlength=20_000) / 6 for i in range(10)}
    assert not diagnose_predictions(p, np.arange(60) % 10, table, origin="held_out").supported

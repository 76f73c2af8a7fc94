"""A diagnosis without labels, on data whose labels are known: every figure, and when it must say no."""

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy.stats import t as student
from sklearn.linear_model import LogisticRegression

from apportion import ProportionClassifier, diagnose
from apportion.bags.bags import Bags, bag_means
from apportion.bags.simulate import dirichlet_bag_ids, make_bags
from apportion.datasets.synthetic import blobs, digits, moons
from apportion.errors import DataError
from apportion.fitting import stage_settings
from apportion.fitting.crossfit import unseen_log_probs
from apportion.intake.mending import denoised
from apportion.judging.bag_statistics import accuracy_from_bags, accuracy_interval, spread_of, uneven
from apportion.judging.diagnosis import diagnosis_of, margins_of, needed, worth
from apportion.judging.shuffles import bag_weights, other_orders, shuffled_correlations
from apportion.tabular.diagnosed import report
from apportion.transport import assign_with_duals


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bagged(
    y: torch.Tensor, size: int, k: int, seed: int = 0, groups: Any = None
) -> tuple[Bags, torch.Tensor]:
    return make_bags(torch.arange(len(y)).float()[:, None], y, size, k, seeded(seed), groups)


def mistaken(y: torch.Tensor, confusion: torch.Tensor, seed: int = 1) -> torch.Tensor:
    """Predicted classes, drawn from the row of `confusion` of each true class."""
    return torch.multinomial(confusion[y], 1, generator=seeded(seed)).flatten()


def sure(classes: torch.Tensor, k: int) -> torch.Tensor:
    return (0.98 * torch.nn.functional.one_hot(classes, k).double() + 0.02 / k).log()


CONFUSION = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1], [0.0, 0.4, 0.6]])


# --- the estimate of accuracy


@pytest.mark.parametrize("groups", [None, dirichlet_bag_ids], ids=["random", "dirichlet"])
def test_the_accuracy_of_many_bags_is_found_without_labels(groups):
    y = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), 200_000, True, generator=seeded())
    bags, hidden = bagged(y, 20, 3, groups=groups)
    guess = mistaken(hidden, CONFUSION)
    shares = bag_means(torch.nn.functional.one_hot(guess, 3).double(), bags.sizes)
    accuracy, error = accuracy_from_bags(shares, bags.proportions, bags.sizes)
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
        accuracy, error = accuracy_from_bags(shares, bags.proportions, bags.sizes)
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
        accuracy, error = accuracy_from_bags(predicted, known, torch.full((60,), 30))
        miss, extra = abs(accuracy - (y == told).mean()), uneven(predicted, known, torch.full((60,), 30))
        held.append(miss <= error)
        narrow.append(miss <= math.sqrt(error**2 - extra**2))
    assert np.mean(narrow) < 0.6
    assert np.mean(held) > 0.9


def test_nothing_is_added_in_random_bags_and_little_where_classes_are_mistaken_alike():
    y = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), 4000, True, generator=seeded())
    for groups, most in ((None, 0.0), (dirichlet_bag_ids, 0.03)):
        bags, hidden = bagged(y, 40, 3, groups=groups)
        guess = torch.nn.functional.one_hot(mistaken(hidden, CONFUSION), 3).double()
        assert uneven(bag_means(guess, bags.sizes), bags.proportions.double(), bags.sizes) <= most


def test_the_accuracy_of_perfect_predictions_is_one_and_of_bags_of_one_is_counted():
    y = torch.multinomial(torch.tensor([0.6, 0.4]), 400, True, generator=seeded())
    bags, hidden = bagged(y, 8, 2)
    accuracy, error = accuracy_from_bags(bags.proportions, bags.proportions, bags.sizes)
    assert accuracy == pytest.approx(1, abs=1e-6)
    assert error < 1e-6
    single, hidden = bagged(y, 1, 2)
    guess = mistaken(hidden, CONFUSION[:2, :2])
    accuracy, _ = accuracy_from_bags(torch.nn.functional.one_hot(guess, 2), single.proportions, single.sizes)
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
    assert uneven(*shares, torch.from_numpy(n)) == 0
    accuracy, error = accuracy_from_bags(*shares, torch.from_numpy(n))
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
    monkeypatch.setattr("apportion.judging.bag_statistics.accuracy_from_bags", lambda *_: raw)
    nothing = torch.zeros(1)
    assert accuracy_interval(nothing, nothing, nothing) == pytest.approx(expected, nan_ok=True)


# --- how informative the bags are


def test_random_bags_have_the_spread_of_chance_and_others_have_not():
    y = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), 20_000, True, generator=seeded())
    bags, _ = bagged(y, 50, 3)
    spread, chance = spread_of(bags.proportions, bags.sizes)
    assert abs(spread - 1) < chance < 0.2
    skewed, _ = bagged(y, 50, 3, groups=dirichlet_bag_ids)
    assert spread_of(skewed.proportions, skewed.sizes)[0] > 5
    assert spread_of(bags.proportions.mean(0).expand(400, 3), bags.sizes)[0] < 1e-10


def test_shuffled_correlations_are_those_of_shuffled_shares():
    known = torch.rand(30, 3, generator=seeded()).softmax(1)
    mixed = 0.5 * known + 0.5 * torch.rand(30, 3, generator=seeded(1)).softmax(1)
    sizes = torch.full((30,), 20)
    found, null = shuffled_correlations(mixed, known, sizes, 400)
    one, other = ((v - v.mean(0)).flatten().numpy() for v in (mixed, known))
    assert found == pytest.approx(np.corrcoef(one, other)[0, 1], abs=1e-6)
    assert abs(float(null.mean())) < 0.05
    assert float(null.std()) == pytest.approx(1 / np.sqrt(29 * 2), rel=0.5)
    assert shuffled_correlations(torch.full((30, 3), 1 / 3), known, sizes)[0] == 0
    assert shuffled_correlations(mixed, torch.full((30, 3), 1 / 3), sizes)[0] == 0
    one_class = torch.eye(3)[:1].expand(30, 3)
    assert shuffled_correlations(mixed, one_class, torch.arange(1, 31))[0] == 0


def test_a_bag_weighs_by_its_rows_if_bags_differ_by_chance_and_like_any_other_if_for_a_reason():
    sizes = torch.tensor([1, 10, 100, 1000] * 100)
    generator = np.random.default_rng(0)

    def weights(reason: float) -> torch.Tensor:
        chance = generator.beta(reason, reason, len(sizes)) if reason else np.full(len(sizes), 0.5)
        one = torch.from_numpy(generator.binomial(sizes.numpy(), chance) / sizes.numpy())
        return bag_weights(torch.stack([one, 1 - one], 1), sizes)

    alike = bag_weights(torch.eye(2).repeat(5, 1), torch.full((10,), 7))
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
    torch.testing.assert_close(bag_weights(known, sizes), expected)
    told = torch.tensor([0.3, 0.6, 0.5, 0.4]).double()
    one, other = (
        np.sqrt(expected.numpy()) * (v.numpy() - np.average(v, weights=expected)) for v in (told, share)
    )
    found, _ = shuffled_correlations(torch.stack([told, 1 - told], 1), known, sizes)
    assert found == pytest.approx(np.corrcoef(one, other)[0, 1])
    assert shuffled_correlations(known, known, sizes)[0] == pytest.approx(1)  # whatever the sizes
    pure = bag_weights(torch.eye(2)[[0, 1, 0, 1]], torch.tensor([1, 2, 3, 4]))
    torch.testing.assert_close(pure, torch.ones(4).double())  # one row of such a bag tells all of it


def test_shares_of_small_bags_stray_the_most_and_seem_foretold_by_nobody():
    # predictions follow a feature that the class does not: plain shuffles, sizes alike, let too many pass
    random, passed = np.random.default_rng(0), np.zeros(2)
    for seed in range(400):
        sizes = torch.from_numpy(np.exp(random.normal(3, 1.6, 100)).round().clip(1).astype(np.int64))
        told, rare = random.beta(1, 9, int(sizes.sum())), random.random(int(sizes.sum())) < 0.1
        both = (torch.from_numpy(np.stack([1 - each, each], 1)).double() for each in (told, rare))
        predicted, known = (bag_means(each, sizes) for each in both)
        for i, each in enumerate((sizes, torch.ones_like(sizes))):
            found, null = shuffled_correlations(predicted, known, each, 199, seed)
            passed[i] += float((null >= found).double().mean()) < 0.05
    assert passed[0] / 400 < 0.08 < 0.1 < passed[1] / 400


def crossed_shares(random: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Shares of 40 bags that five features do not tell, foretold by lines through three parts of them."""
    features, share = random.normal(size=(40, 5)), random.binomial(50, 0.5, 40) / 50
    part, told = random.permutation(40) % 4, np.empty(40)
    for mine in (part == each for each in range(4)):
        slopes = np.sign(features[~mine].T @ (share[~mine] - share[~mine].mean()))
        told[mine] = 0.5 + 0.02 * features[mine] @ slopes
    one, other = (torch.from_numpy(np.stack([each, 1 - each], 1)) for each in (told, share))
    return one, other


def test_networks_that_judge_each_others_bags_share_their_chance_and_are_believed_less():
    random, passed, sizes = np.random.default_rng(0), np.zeros(2), torch.full((40,), 50)
    for seed in range(400):
        found, null = shuffled_correlations(*crossed_shares(random), sizes, 199, seed)
        passed += [float((null >= worth(found, crossed)).double().mean()) < 0.05 for crossed in (True, False)]
    assert passed[0] / 400 < 0.06 < 0.09 < passed[1] / 400


def test_a_crossed_correlation_is_worth_half_its_odds_and_a_perfect_one_is_perfect():
    for r in (-0.7, 0.0, 0.3, 0.9, 1.0):
        assert worth(r, False) == needed(r, False) == r
        assert needed(worth(r, True), True) == pytest.approx(r)
    assert worth(1.0, True) == 1
    small = worth(0.3, True)
    assert small**2 / (1 - small**2) == pytest.approx(0.3**2 / (1 - 0.3**2) / 2)
    y = torch.randint(3, (600,), generator=seeded())
    bags, hidden = bagged(y, 20, 3)
    log_probs = sure(mistaken(hidden, torch.full((3, 3), 0.55 / 3) + 0.45 * torch.eye(3)), 3)
    rows = np.asarray(bags.ids)[np.repeat(np.arange(30), bags.sizes.numpy())]
    plain, crossed = (
        diagnose(log_probs.exp(), rows, dict(zip(bags.ids, bags.proportions, strict=True)), crossed=each)
        for each in (False, True)
    )
    assert crossed.correlation == plain.correlation > 0.1
    assert crossed.shuffled == pytest.approx(needed(plain.shuffled, True))
    assert plain.p_value < 0.05 < crossed.p_value


# --- margins


def test_margins_bound_what_another_class_costs_the_whole_bag():
    size, counts = 6, torch.tensor([[3, 2, 1]])
    for seed in range(5):
        log_probs = torch.randn(size, 3, generator=seeded(seed)).double().log_softmax(1)
        found = assign_with_duals(log_probs, [size], counts)
        margins = margins_of(log_probs, torch.tensor([size]), found.classes, found.prices)
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
    margins = margins_of(log_probs, torch.tensor([4]), found.classes, found.prices)
    assert torch.isinf(margins).all()


# --- the words


SETS = {"moons": lambda: moons(0, 600), "blobs": lambda: blobs(1, 800), "digits": lambda: digits(0)}


def test_bags_that_differ_for_a_reason_come_with_a_warning():
    y = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), 2000, True, generator=seeded())
    for groups, warned in ((None, False), (dirichlet_bag_ids, True)):
        bags, hidden = bagged(y, 20, 3, groups=groups)
        found = diagnosis_of(sure(mistaken(hidden, CONFUSION), 3), bags)
        assert any("differ for a reason" in each for each in found.words) == warned


def test_rows_that_tell_their_bag_and_not_their_class_have_no_accuracy():
    """Features of a region: the shares of unseen bags are foretold, of single rows nothing is known."""
    random = np.random.default_rng(0)
    m, size, k = 60, 40, 3
    town = np.repeat(np.arange(m), size)
    y = np.concatenate([random.choice(k, size, p=p) for p in random.dirichlet(np.ones(k) * 2, m)])
    counts = np.array([np.bincount(y[town == i], minlength=k) for i in range(m)])
    x = random.normal(size=(m * size, 6))
    x[:, :k] += 6 * (counts[town] / size - 1 / k)
    seen = town < 40
    model = ProportionClassifier(second_stage=None, first_epochs=60, random_state=0)
    model.fit(x[seen], bags=town[seen], counts=counts[:40])
    probabilities = model.predict_proba(x[~seen])
    assert (probabilities.argmax(1) == y[~seen]).mean() < 0.6
    found = diagnose(probabilities, town[~seen] - 40, counts=counts[40:])
    assert not found.supported
    assert "accuracy cannot be told from these bags. The rows of a bag seem to be alike" in found.words[0]
    assert math.isnan(found.accuracy)
    assert (found.low, found.high) == (0.0, 1.0)
    assert "accuracy, estimated: cannot be told from these bags; naming" in "\n".join(report(found, "all"))


def test_too_few_shuffles_to_show_anything_are_refused():
    y = torch.arange(400) % 2
    bags, hidden = bagged(y, 8, 2)
    for given in ({}, {"shuffles": 499}):
        assert diagnosis_of(sure(hidden, 2), bags, **given).supported
    with pytest.raises(DataError, match="shuffles is 498; pass 499 at least: fewer show nothing so rare"):
        diagnose(sure(hidden, 2).exp(), torch.arange(400) // 8, bags.proportions.numpy(), shuffles=498)


def test_shares_that_were_noisy_tell_neither_how_bags_differ_nor_how_sure_the_accuracy_is():
    """Denoising draws shares together, so that they are more alike than those of random bags."""
    random, (m, n, k) = np.random.default_rng(0), (100, 32, 5)
    y = random.integers(k, size=(m, n))
    told = np.where(random.random(y.shape) < 0.85, y, (y + 1) % k)
    counts = np.stack([(y == c).sum(1) for c in range(k)], 1) + random.laplace(scale=2, size=(m, k))
    shares = torch.from_numpy(denoised(counts, np.full(m, n), 2.8, whole=True)[0])
    bags = Bags(torch.zeros(m * n, 1), torch.full((m,), n), shares, torch.arange(m * n), range(m))
    log_probs, alike = sure(torch.from_numpy(told.ravel()), k), "more alike than random ones"
    assert any(alike in each for each in diagnosis_of(log_probs, bags).words)
    found = diagnosis_of(log_probs, bags, noisy=True)
    assert found.supported
    assert not any(alike in each for each in found.words)
    assert found.words[1].startswith("The shares are noisy: how much bags differ, and how sure the accuracy")
    text = "\n".join(report(found, "all"))
    assert "random bags (once their noise is taken off, which tells nothing of chance)" in text
    assert "% (no interval: the shares are noisy); naming the largest" in text


def test_the_largest_class_is_that_of_rows_and_p_counts_the_order_that_was_found():
    sizes = torch.tensor([90] + [10] * 9)
    shares = torch.tensor([[0.1, 0.9]] + [[i / 10, 1 - i / 10] for i in range(1, 10)])
    classes = torch.cat(
        [torch.arange(n) < round(n * float(p[0])) for n, p in zip(sizes.tolist(), shares, strict=True)]
    )
    bags = Bags(torch.zeros(180, 1), sizes, shares, torch.arange(180), range(10))
    log_probs = sure(1 - classes.long(), 2)
    found = diagnosis_of(log_probs, bags)
    assert found.largest == pytest.approx((81 + 45) / 180)
    assert found.p_value == 1 / 2000
    null = shuffled_correlations(bag_means(log_probs.exp(), sizes), shares, sizes, 1999)[1]
    assert found.shuffled == pytest.approx(float(null.quantile(0.998)))


def quick(**given: Any) -> dict[str, Any]:
    settings = {"first_epochs": 40, "second_epochs": 0, "batch_size": 128, "rate": 5e-3}
    words = {"first_stage": "dllp", "second_stage": None, "backbone": "mlp", "labels": "soft", "reg": 1.0}
    return stage_settings(**words, **settings, second_rate=1e-3, seed=0, **given)


@pytest.mark.parametrize("name", SETS)
def test_fine_bags_are_called_fine_and_shuffled_shares_are_not(name):
    data = SETS[name]()
    bags, hidden = make_bags(data.x, data.y, 16, data.n_classes, seeded())
    log_probs = unseen_log_probs(bags, quick(), folds=2)
    found = diagnosis_of(log_probs, bags, crossed=True)
    assert found.supported
    assert found.words[0].startswith("The bags tell the classes apart")
    truth = float((log_probs.argmax(1) == hidden).double().mean())
    assert found.low <= truth <= found.high
    order = torch.randperm(len(bags.sizes), generator=seeded(2))
    shuffled = replace(bags, proportions=bags.proportions[order])
    found = diagnosis_of(unseen_log_probs(shuffled, quick(), folds=2), shuffled, crossed=True)
    assert not found.supported
    assert "no better than shuffled ones" in found.words[0]
    assert "learned too little (more epochs" in found.words[0]
    assert "or its own bags by heart (if it foretells those far better: fewer epochs" in found.words[0]


def test_bags_that_are_all_alike_support_no_answer():
    y = torch.arange(400) % 2
    bags, hidden = bagged(y, 8, 2)
    alike = replace(bags, proportions=torch.full_like(bags.proportions, 0.5))
    found = diagnosis_of(sure(hidden, 2), alike)
    assert not found.supported
    assert "all bags have the same proportions" in found.words[0]


def test_a_handful_of_bags_supports_no_answer_however_good():
    y = torch.arange(50) % 2
    bags, hidden = bagged(y, 10, 2)
    found = diagnosis_of(sure(hidden, 2), bags)
    assert not found.supported
    assert "5 bags are too few" in found.words[0]


def test_a_network_that_names_the_largest_class_alone_is_told_so():
    y = torch.multinomial(torch.tensor([0.8, 0.2]), 2000, True, generator=seeded())
    bags, hidden = bagged(y, 10, 2)
    timid = torch.where(hidden == 1, 0.4, 0.1).double()
    found = diagnosis_of(torch.stack([1 - timid, timid], 1).log(), bags)
    assert found.supported
    assert "not shown that single rows are told better" in found.words[-1]


def test_agreement_entropy_and_errors_are_what_they_say():
    y = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), 600, True, generator=seeded())
    bags, hidden = bagged(y, 10, 3)
    found = diagnosis_of(sure(hidden, 3), bags)
    assert found.agreement == 1
    assert torch.equal(found.classes, hidden)
    expected = (0.02 * (1 / 3 - bags.proportions)).abs().sum(1) / 2  # sure() gives 2 % to all classes alike
    torch.testing.assert_close(found.errors, expected.double(), atol=1e-6, rtol=0)
    even = diagnosis_of(torch.full((600, 3), 1 / 3).log(), bags)
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
    torch.testing.assert_close(again.errors, found.errors)
    assert torch.equal(again.classes, found.classes[order])  # rows as they were given
    torch.testing.assert_close(again.margins, found.margins[order])
    assert (found.classes.numpy() == y).mean() > 0.8


def test_no_network_is_asked_about_a_bag_that_it_learnt_from(monkeypatch):
    from apportion.fitting import crossfit

    data = moons(0, 200)
    bags, _ = make_bags(data.x, data.y, 20, 2, seeded())
    seen: list[set[Any]] = []
    real = crossfit.two_stages

    def watched(others: Bags, **settings: Any) -> Any:
        seen.append({tuple(row) for row in others.x.tolist()})
        return real(others, **settings)

    monkeypatch.setattr(crossfit, "two_stages", watched)
    asked: list[set[Any]] = []
    predict = crossfit.predict

    def noted(network: Any, x: torch.Tensor, view: Any) -> torch.Tensor:
        asked.append({tuple(row) for row in x.tolist()})
        return predict(network, x, view)

    monkeypatch.setattr(crossfit, "predict", noted)
    found = unseen_log_probs(bags, quick() | {"first_epochs": 1}, folds=3)
    assert found.shape == (200, 2)
    assert [bool(a & b) for a, b in zip(seen, asked, strict=True)] == [False] * 3
    assert set.union(*asked) == {tuple(row) for row in bags.x.tolist()}


def test_long_trainings_of_the_judges_tell_how_far_they_are(monkeypatch, capsys):
    from apportion.fitting import crossfit

    data = moons(0, 200)
    bags, _ = make_bags(data.x, data.y, 10, 2, seeded())
    settings = quick() | {"first_epochs": 2}
    silent = unseen_log_probs(bags, settings, folds=2)
    assert torch.equal(unseen_log_probs(bags, settings, folds=2, verbose=True), silent)
    assert capsys.readouterr().out == ""  # they took no five seconds
    monkeypatch.setattr(crossfit, "SILENCE", -1.0)
    assert torch.equal(unseen_log_probs(bags, settings, folds=2, verbose=True), silent)
    said = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert said == [f"network {i} of 2, first stage, epoch {j} of 2" for i in (1, 2) for j in (1, 2)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (np.log, "these look like log-probabilities: pass numpy.exp of them"),
        (lambda p: 100 * p, "these look like percentages: divide them by 100"),
        (lambda p: p - 0.5, "from -0.25 to 0.25, .* if these are scores, pass their softmax"),
        (lambda p: p / 2, "rows miss a sum of one by 0.5; each row is probabilities of all classes"),
        (lambda p: p[:, :1], r"predictions are of shape \(8, 1\); pass \(rows, 2\), a column a class"),
    ],
)
def test_what_are_no_probabilities_is_refused_with_what_it_looks_like(change, message):
    probabilities = np.array([[0.25, 0.75], [0.75, 0.25]] * 4)
    ids, shares = [0, 0, 1, 1, 2, 2, 3, 3], {i: [i / 4, 1 - i / 4] for i in range(4)}
    assert not diagnose(probabilities, ids, shares).supported
    with pytest.raises(DataError, match=message):
        diagnose(change(probabilities), ids, shares)


def test_a_table_with_names_is_read_by_them_or_asks_for_the_order_of_the_predictions():
    random = np.random.default_rng(0)
    town, shares = np.repeat(np.arange(40), 20), random.uniform(0.1, 0.9, 40)
    yes = np.clip(shares[town] + 0.05 * random.normal(size=800), 0.01, 0.99)
    predictions = np.column_stack([1 - yes, yes])
    table = pd.DataFrame({"no": 1 - shares, "yes": shares})
    turned = table[["yes", "no"]]
    right = diagnose(predictions, town, table)
    assert right.correlation > 0.95
    with pytest.raises(
        DataError, match=r"the table has the classes \['yes', 'no'\], predictions may have another"
    ):
        diagnose(predictions, town, turned)
    for one in (turned, turned.T.to_dict()):
        assert diagnose(predictions, town, one, classes=["no", "yes"]).correlation == right.correlation


@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize("order", [["no", "yes"], ["yes", "no"]], ids=str)
@pytest.mark.parametrize("classes", [None, ["no", "yes"], ["yes", "no"]], ids=str)
def test_predictions_with_names_are_read_by_them(library, order, classes):
    random = np.random.default_rng(0)
    shares = random.random(12)
    table = pd.DataFrame({"no": 1 - shares, "yes": shares})
    ids = np.repeat(np.arange(12), 5)
    values = {"no": 1 - shares[ids], "yes": shares[ids]}
    made = {"pandas": pd.DataFrame, "polars": pl.DataFrame}[library]({name: values[name] for name in order})
    for known in (table, table[["yes", "no"]]):
        assert diagnose(made, ids, known, classes=classes).correlation == pytest.approx(1)


def test_names_of_predictions_that_are_not_those_of_the_classes_are_refused():
    table, ids = pd.DataFrame({"no": [0.25, 0.5], "yes": [0.75, 0.5]}), np.arange(4) % 2
    predicted = pd.DataFrame(np.full((4, 2), 0.5), columns=["no", "maybe"])
    with pytest.raises(DataError, match="class 'maybe' has no column in the table"):
        diagnose(predicted, ids, table)
    words = r"predictions has the columns \['no', 'maybe'\], but the classes are \['no', 'yes'\]"
    with pytest.raises(DataError, match=words):
        diagnose(predicted, ids, table, classes=["no", "yes"])
    with pytest.raises(
        DataError, match="bag 0 has 25 as the proportion of class 'no', which is more than one"
    ):
        diagnose(np.full((4, 2), 0.5), ids, 100 * table.to_numpy(), classes=["no", "yes"])


def test_spread_is_pearsons_statistic_over_its_degrees_of_freedom():
    known = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    assert spread_of(known, torch.tensor([10, 10, 20])) == pytest.approx((20 / 2, 3 * math.sqrt(2 / 2)))


def test_mistakes_that_differ_between_bags_widen_the_interval_by_what_is_beyond_chance():
    first = torch.tensor([0.2, 0.2, 0.8, 0.8], dtype=torch.float64).repeat(25)
    odd = torch.tensor([0.1, -0.1, 0.1, -0.1], dtype=torch.float64).repeat(25)  # not along with the shares
    known, told = (torch.stack([p, 1 - p], 1) for p in (first, 0.5 + 0.8 * (first - 0.5) + odd))
    by_chance = 2 * 0.9 * 0.1  # each class is right in nine of ten
    beyond = 100 * 100 * 2 * 0.1**2 / 99 - (1 + 2 * math.sqrt(2 / 99)) * by_chance
    expected = math.sqrt(beyond / 100 / 0.18) * (1 - 0.5)
    assert uneven(told, known, torch.full((100,), 100)) == pytest.approx(expected)


def test_six_bags_are_enough_to_tell():
    from apportion.judging.verdict import words_for

    values = {"spread": 1.0, "p_value": 0.0015, "correlation": 1.0, "shuffled": 0.9, "accuracy": 0.9,
              "low": 0.8, "largest": 0.5, "chance": 0.5, "noisy": False}  # fmt: skip
    assert words_for(values, 6)[0]
    assert not words_for(values, 5)[0]


def test_few_bags_are_held_against_every_other_order_once():
    orders = {tuple(order.tolist()) for order in other_orders(6, 1999, seed=0)}
    assert len(orders) == 719
    assert tuple(range(6)) not in orders
    assert len(list(other_orders(7, 1999, seed=0))) == 1999  # of 5,040
    for seed in range(40):  # all foretold: always an answer, whatever is drawn
        shares = torch.rand(6, 3, generator=seeded(seed), dtype=torch.float64).softmax(1)
        rows = shares.repeat_interleave(50, 0)
        bags = Bags(rows, torch.full((6,), 50), shares, torch.arange(300), list("abcdef"))
        assert diagnosis_of(rows.log(), bags, seed=seed).p_value == pytest.approx(1 / 720)


def test_shares_that_are_shuffled_onto_themselves_reach_the_correlation():
    # two bags alike in what is predicted: exchanged, they are as good, though their products add up elsewise
    for seed in range(40):
        predicted = torch.rand(6, 3, generator=seeded(seed), dtype=torch.float64).softmax(1)
        predicted[1] = predicted[0]
        rows, known = predicted.repeat_interleave(50, 0), torch.randn(6, 3, generator=seeded(seed)).softmax(1)
        known = 0.9 * predicted + 0.1 * known.double()
        bags = Bags(rows, torch.full((6,), 50), known, torch.arange(300), list("abcdef"))
        found = diagnosis_of(rows.log(), bags, shuffles=7199)
        assert found.p_value > 1.2 / 720  # of 720 orders two are as good

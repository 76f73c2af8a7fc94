"""A diagnosis without labels, on data whose labels are known: every figure, and when it must say no."""

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from apportion import diagnose
from apportion.bag_statistics import accuracy_from_bags, shuffled_correlations, spread_of, uneven
from apportion.bagging import dirichlet_groups, make_bags
from apportion.bags import Bags
from apportion.crossfit import unseen_log_probs
from apportion.data.synthetic import blobs, digits, moons
from apportion.diagnosis import diagnosis_of, margins_of
from apportion.fitting import stage_settings
from apportion.instances import BagError
from apportion.means import bag_means
from apportion.transport import certified


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


@pytest.mark.parametrize("groups", [None, dirichlet_groups], ids=["random", "dirichlet"])
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
    for groups, most in ((None, 0.0), (dirichlet_groups, 0.03)):
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


# --- how informative the bags are


def test_random_bags_have_the_spread_of_chance_and_others_have_not():
    y = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), 20_000, True, generator=seeded())
    bags, _ = bagged(y, 50, 3)
    spread, chance = spread_of(bags.proportions, bags.sizes)
    assert abs(spread - 1) < chance < 0.2
    skewed, _ = bagged(y, 50, 3, groups=dirichlet_groups)
    assert spread_of(skewed.proportions, skewed.sizes)[0] > 5
    assert spread_of(bags.proportions.mean(0).expand(400, 3), bags.sizes)[0] < 1e-10


def test_shuffled_correlations_are_those_of_shuffled_shares():
    known = torch.rand(30, 3, generator=seeded()).softmax(1)
    mixed = 0.5 * known + 0.5 * torch.rand(30, 3, generator=seeded(1)).softmax(1)
    found, null = shuffled_correlations(mixed, known, 400)
    one, other = ((v - v.mean(0)).flatten().numpy() for v in (mixed, known))
    assert found == pytest.approx(np.corrcoef(one, other)[0, 1], abs=1e-6)
    assert abs(float(null.mean())) < 0.05
    assert float(null.std()) == pytest.approx(1 / np.sqrt(29 * 2), rel=0.5)
    assert shuffled_correlations(torch.full((30, 3), 1 / 3), known)[0] == 0


# --- margins


def test_margins_bound_what_another_class_costs_the_whole_bag():
    size, counts = 6, torch.tensor([[3, 2, 1]])
    for seed in range(5):
        log_probs = torch.randn(size, 3, generator=seeded(seed)).double().log_softmax(1)
        found = certified(log_probs, [size], counts)
        margins = margins_of(log_probs, torch.tensor([size]), found.classes, found.prices)
        labellings = [
            torch.tensor(c)
            for c in product(range(3), repeat=size)
            if torch.equal(torch.bincount(torch.tensor(c), minlength=3), counts[0])
        ]
        worth = torch.stack([log_probs[torch.arange(size), c].sum() for c in labellings])
        best = worth.max()
        for i in range(size):
            others = torch.tensor([bool(c[i] != found.classes[i]) for c in labellings])
            assert -1e-9 <= margins[i] <= best - worth[others].max() + 1e-9
        # the likeliest other labelling moves two instances at least, each by its margin
        assert margins.max() > 0


def test_the_margin_of_a_bag_of_one_class_is_infinite():
    log_probs = torch.randn(4, 2, generator=seeded()).double().log_softmax(1)
    found = certified(log_probs, [4], torch.tensor([[4, 0]]))
    margins = margins_of(log_probs, torch.tensor([4]), found.classes, found.prices)
    assert torch.isinf(margins).all()


# --- the words


SETS = {"moons": lambda: moons(0, 600), "blobs": lambda: blobs(1, 800), "digits": lambda: digits(0)}


def test_bags_that_differ_for_a_reason_come_with_a_warning():
    y = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), 2000, True, generator=seeded())
    for groups, warned in ((None, False), (dirichlet_groups, True)):
        bags, hidden = bagged(y, 20, 3, groups=groups)
        found = diagnosis_of(sure(mistaken(hidden, CONFUSION), 3), bags)
        assert any("differ for a reason" in each for each in found.words) == warned


def quick(**given: Any) -> dict[str, Any]:
    settings = {"first_epochs": 40, "second_epochs": 0, "instances_per_batch": 128, "rate": 5e-3}
    words = {"first_stage": "dllp", "second_stage": None, "backbone": "mlp", "labels": "soft", "reg": 1.0}
    return stage_settings(**words, **settings, second_rate=1e-3, seed=0, **given)


@pytest.mark.parametrize("name", SETS)
def test_fine_bags_are_called_fine_and_shuffled_shares_are_not(name):
    data = SETS[name]()
    bags, hidden = make_bags(data.x, data.y, 16, data.n_classes, seeded())
    log_probs = unseen_log_probs(bags, quick(), folds=2)
    found = diagnosis_of(log_probs, bags)
    assert found.supported
    assert found.words[0].startswith("The bags tell the classes apart")
    truth = float((log_probs.argmax(1) == hidden).double().mean())
    assert found.low <= truth <= found.high
    order = torch.randperm(len(bags.sizes), generator=seeded(2))
    shuffled = replace(bags, proportions=bags.proportions[order])
    found = diagnosis_of(unseen_log_probs(shuffled, quick(), folds=2), shuffled)
    assert not found.supported
    assert "no better than shuffled ones" in found.words[0]


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
    from apportion import crossfit

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
    with pytest.raises(BagError, match=message):
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
        BagError, match=r"the table has the classes \['yes', 'no'\], predictions may have another"
    ):
        diagnose(predictions, town, turned)
    for one in (turned, turned.T.to_dict()):
        assert diagnose(predictions, town, one, classes=["no", "yes"]).correlation == right.correlation

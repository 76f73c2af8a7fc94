"""Probabilities once the shares of bags are known: against enumeration, and by what they must meet."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import ragged

from apportion import meet
from apportion.conditioning import met
from apportion.errors import DataError


def enumerated(probs: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The probability of each row's class given the counts, by all labelings that have them."""
    n, k = probs.shape
    total = np.zeros((n, k))
    for labels in itertools.product(range(k), repeat=n):
        if (np.bincount(labels, minlength=k) == counts).all():
            total[np.arange(n), labels] += probs[np.arange(n), labels].prod()
    return total / total[0].sum()


def drawn(n: int, k: int, scale: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    scores = np.exp(rng.normal(0, scale, (n, k)))
    probs = scores / scores.sum(1, keepdims=True)
    return probs, np.bincount([rng.choice(k, p=p) for p in probs], minlength=k)


@pytest.mark.parametrize(("n", "k", "scale"), [(3, 2, 2.0), (9, 2, 1.0), (6, 3, 1.0), (5, 4, 3.0)])
def test_it_is_far_nearer_to_the_exact_probabilities_than_predictions_are(n, k, scale):
    rng, off = np.random.default_rng(0), []
    for _ in range(20):
        probs, counts = drawn(n, k, scale, rng)
        exact, found = enumerated(probs, counts), meet(probs, ["a"] * n, counts={"a": counts})
        off.append([np.abs(each - exact).mean() for each in (found, probs)])
    found, before = np.mean(off, 0)
    assert found < 0.45 * before


@pytest.mark.parametrize("sure", [0.9, 0.999, 1 - 1e-9])
def test_it_is_never_surer_than_the_exact_probabilities_where_there_is_little_room(sure):
    probs = np.array([sure] * 3 + [1 - sure] * 3)
    probs = np.stack([1 - probs, probs], 1)
    found = meet(probs, ["a"] * 6, counts={"a": [3, 3]})
    assert (found.min(1) >= enumerated(probs, np.array([3, 3])).min(1)).all()


def test_the_mean_of_every_bag_is_its_shares_and_rows_keep_their_places():
    rng = np.random.default_rng(1)
    probs, ids = rng.dirichlet([1, 1, 1], 200), rng.integers(0, 9, 200)
    shares = {bag: rng.dirichlet([2, 2, 2]) for bag in range(9)} | {4: [0.5, 0.5, 0.0], 7: [0.0, 1.0, 0.0]}
    found = meet(probs, ids, shares)
    assert found.sum(1) == pytest.approx(np.ones(200))
    for bag, known in shares.items():
        assert found[ids == bag].mean(0) == pytest.approx(known, abs=1e-5)
    order = rng.permutation(200)
    assert meet(probs[order], ids[order], shares) == pytest.approx(found[order], abs=1e-6)


def test_a_bag_of_one_is_its_label_and_rows_that_are_alike_have_the_shares():
    assert meet([[0.9, 0.1]], ["a"], {"a": [0, 1]}) == pytest.approx(np.array([[0, 1]]), abs=1e-6)
    alike = meet(np.full((8, 2), 0.5), ["a"] * 8, {"a": [0.25, 0.75]})
    assert alike == pytest.approx(np.tile([0.25, 0.75], (8, 1)), abs=1e-5)


def test_who_is_likelier_before_is_likelier_after():
    probs = np.linspace(0.05, 0.95, 30)
    found = meet(np.stack([1 - probs, probs], 1), ["a"] * 30, {"a": [0.8, 0.2]})[:, 1]
    assert (np.diff(found) > 0).all()
    assert (found < probs).all()


def test_known_shares_make_true_probabilities_better_and_they_stay_true():
    rng = np.random.default_rng(2)
    probs, ids = rng.beta(1, 1, 4000), np.repeat(np.arange(250), 16)
    truth = rng.random(4000) < probs
    counts = {bag: [int((~truth[ids == bag]).sum()), int(truth[ids == bag].sum())] for bag in range(250)}
    found = meet(np.stack([1 - probs, probs], 1), ids, counts=counts)[:, 1]

    def loss(p: np.ndarray) -> float:
        return float(-np.log(np.where(truth, p, 1 - p).clip(1e-12)).mean())

    assert loss(found) < loss(probs) - 0.02
    sure = (found > 0.8) & (found < 0.9)  # of those who have 0.85, 85 in a hundred are
    assert truth[sure].mean() == pytest.approx(found[sure].mean(), abs=0.05)


def test_names_are_read_by_the_names():
    pandas = pytest.importorskip("pandas")
    probs = pandas.DataFrame({"yes": [0.9, 0.2, 0.6], "no": [0.1, 0.8, 0.4]})
    table = pandas.DataFrame({"no": [2 / 3], "yes": [1 / 3]}, index=["a"])
    found = meet(probs, ["a"] * 3, table)
    assert found.mean(0) == pytest.approx([1 / 3, 2 / 3], abs=1e-5)  # the columns of the predictions


def test_a_table_may_have_more_bags_than_there_are_rows_for():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(3)
    probs, ids = rng.dirichlet([1, 1, 1], 60), rng.permutation(np.repeat(np.arange(12), 5))
    shares = pandas.DataFrame(rng.dirichlet([2, 2, 2], 12), columns=list("ABC"))
    column = shares.assign(town=range(12)).iloc[rng.permutation(12)].reset_index(drop=True)
    polars = pytest.importorskip("polars").DataFrame({name: column[name].to_list() for name in column})
    for some in ([3, 8, 11], [8], list(range(12))):
        rows = np.isin(ids, some)
        expected = meet(probs, ids, shares.to_numpy())[rows]
        for table in (shares, shares.T.to_dict("list"), shares.to_dict("index"), column, polars):
            found = meet(probs[rows], ids[rows], table, classes=list("ABC"))
            assert found == pytest.approx(expected, abs=1e-6)


def test_rows_numbers_and_a_column_that_may_both_name_the_bags_are_told():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"a": [0.1, 0.2, 0.3], "b": [0.9, 0.8, 0.7], "town": [2, 0, 1]})
    probs = np.full((3, 2), 0.5)
    with pytest.raises(DataError, match=r"the column 'town' or the rows' numbers.*table.set_index\('town'\)"):
        meet(probs, [1, 1, 2], table)
    for given in ({"classes": ["a", "b"], "proportions": table}, {"proportions": table.set_index("town")}):
        assert meet(probs, [1, 1, 2], **given)[2] == pytest.approx([0.1, 0.9], abs=1e-5)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"proportions": {"a": [0.5, 0.6]}}, "proportions summing to 1.1; divide them by their sum$"),
        ({"proportions": {"a": [0.5, 0.3]}}, "proportions summing to 0.8; divide them by their sum$"),
        ({"counts": {"a": [5, 6]}}, "sum to 11 but 3 instances; divide them by their sum, and pass prop"),
        ({"proportions": {"a": [0.5, math.nan]}}, "no number for 1 of its 2 classes; give all$"),
        ({"proportions": {"a": [math.nan] * 2}}, "is not a number; give one, or leave the bag's rows out"),
        ({"proportions": {"a": [-0.5, 1.5]}}, "which is negative; give a number from 0 to 1$"),
        ({"proportions": {"a": [0.5, 0.5]}, "bags": ["a", "b", "a"]}, "bag 'b' has instances.*leave its r"),
    ],
)  # fmt: skip
def test_errors_name_what_the_caller_can_do(table, said):
    with pytest.raises(DataError, match=said) as problem:
        meet(np.full((3, 2), 0.5), **{"bags": ["a"] * 3} | table)
    assert "ProportionClassifier" not in str(problem.value)
    assert "unlabeled" not in str(problem.value)


@pytest.mark.parametrize(
    ("probs", "said"),
    [
        (np.ones((3, 2)), "rows miss a sum of one"),
        (np.full((3, 3), 1 / 3), "one column per class"),
    ],
)
def test_what_are_no_probabilities_of_the_classes_is_refused(probs, said):
    with pytest.raises(DataError, match=said):
        meet(probs, ["a"] * 3, {"a": [0.5, 0.5]})


def test_bags_without_shares_stay_as_they_are():
    bags = ragged([3, 5, 4])
    logs = torch.randn(12, bags.n_classes, generator=torch.Generator().manual_seed(0)).log_softmax(1)
    shares = bags.proportions.clone()
    shares[1] = math.nan
    found = met(logs, replace(bags, proportions=shares))
    torch.testing.assert_close(found[3:8], logs[3:8].exp())
    torch.testing.assert_close(found[:3], met(logs, bags)[:3])


@pytest.mark.parametrize("knows", [0.0, 1.0])
@pytest.mark.parametrize(("n", "k", "noise"), [(20, 2, 0.1), (20, 2, 0.3), (100, 5, 0.03), (100, 5, 0.1)])
def test_noisy_shares_tell_what_they_can_and_spoil_nothing(n, k, noise, knows):
    """Predictions know all about bags, or nothing; `exact` is by the shares without their noise."""
    rng, ids = np.random.default_rng(0), np.repeat(np.arange(200), n)
    town, own = rng.normal(0, 1, (200, k))[ids], rng.normal(0, 1, (200 * n, k))
    true, probs = (np.exp(s) / np.exp(s).sum(1, keepdims=True) for s in (town + own, knows * town + own))
    y = (true.cumsum(1) > rng.random((200 * n, 1))).argmax(1)
    shares = np.stack([np.bincount(ids, y == c) for c in range(k)], 1) / n
    noisy = shares + rng.normal(0, noise, shares.shape)
    exact, found, endless = (
        meet(probs, ids, numbers, noise=level)
        for numbers, level in ((shares, None), (noisy, noise), (shares, 0.499))
    )
    before, exact, found, endless = (
        -np.log(each[np.arange(len(y)), y]).mean() for each in (probs, exact, found, endless)
    )
    assert exact < found < before + 0.001
    assert endless < before + 0.001
    if not knows:
        assert found < 0.4 * exact + 0.6 * before


def test_shares_without_noise_are_met():
    probs, counts = drawn(9, 3, 1.0, np.random.default_rng(0))
    exact, none = (meet(probs, ["a"] * 9, counts={"a": counts}, noise=level) for level in (None, 0.0))
    np.testing.assert_allclose(none, exact, atol=1e-6)


@pytest.mark.parametrize("classes", [[5, 10], [0.5, 10.0], [-2, -1], [9, 10, 11], [False, True]])
def test_numbers_that_name_classes_are_in_the_order_of_numbers(classes):
    """As those of `classes_` are, by which the columns of predictions stand."""
    k, ids = len(classes), np.repeat(np.arange(6), 5)
    probs = np.random.default_rng(0).dirichlet(np.ones(k), 30)
    counts = np.random.default_rng(1).multinomial(5, np.ones(k) / k, 6)
    table = pd.DataFrame(counts, columns=pd.Index(classes, dtype=object))
    found = meet(probs, ids, counts=table)
    np.testing.assert_array_equal(found, meet(probs, ids, counts=counts))
    turned = table.iloc[:, ::-1]
    with pytest.raises(DataError, match="predictions may have another order; pass classes="):
        meet(probs, ids, counts=turned)
    np.testing.assert_array_equal(found, meet(probs, ids, counts=turned, classes=classes))


def test_classes_of_several_kinds_have_no_order():
    table = pd.DataFrame([[2, 3], [4, 1]], columns=["no", 1])
    with pytest.raises(DataError, match="predictions may have another order; pass classes="):
        meet(np.full((10, 2), 0.5), np.repeat([0, 1], 5), counts=table)

"""Predictions conditioned on the proportions of their bags: oracles, laws, noise, several groupings."""

import itertools
import math

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apportion import Proportions, condition_on_proportions
from apportion.errors import ApportionWarning, DataError


def enumerate_labelings(probs: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The probability of each row's class given the counts of its bag, by all labelings that have them."""
    n, k = probs.shape
    total = np.zeros((n, k))
    for labels in itertools.product(range(k), repeat=n):
        if (np.bincount(labels, minlength=k) == counts).all():
            total[np.arange(n), labels] += probs[np.arange(n), labels].prod()
    return total / total[0].sum()


def softmax(scores: np.ndarray) -> np.ndarray:
    return np.exp(scores) / np.exp(scores).sum(1, keepdims=True)


def draw(n: int, k: int, scale: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities, and the counts of labels drawn from them."""
    probs = softmax(rng.normal(0, scale, (n, k)))
    return probs, np.bincount([rng.choice(k, p=p) for p in probs], minlength=k)


def proportion_gap(probs: np.ndarray, bags: np.ndarray, table: pd.DataFrame) -> float:
    return float(np.abs(pd.DataFrame(probs).groupby(bags).mean() - table.to_numpy()).to_numpy().max())


# --- oracles


@pytest.mark.parametrize(("n", "k", "scale"), [(3, 2, 2.0), (9, 2, 1.0), (6, 3, 1.0), (5, 4, 3.0)])
def test_it_is_much_closer_to_the_exact_conditional_probabilities_than_predictions_are(n, k, scale):
    rng, errors = np.random.default_rng(0), []
    for _ in range(20):
        probs, counts = draw(n, k, scale, rng)
        exact = enumerate_labelings(probs, counts)
        found = condition_on_proportions(probs, ["a"] * n, Proportions({"a": counts}, "counts"))
        errors.append([np.abs(each - exact).mean() for each in (found, probs)])
    found, before = np.mean(errors, 0)
    assert found < 0.45 * before


@pytest.mark.parametrize("confidence", [0.9, 0.999, 1 - 1e-9])
def test_it_is_never_more_confident_than_the_exact_probabilities(confidence):
    probs = np.array([confidence] * 3 + [1 - confidence] * 3)
    probs = np.stack([1 - probs, probs], 1)
    found = condition_on_proportions(probs, ["a"] * 6, {"a": [0.5, 0.5]})
    assert (found.min(1) >= enumerate_labelings(probs, np.array([3, 3])).min(1)).all()


def test_true_probabilities_become_better_and_stay_calibrated():
    rng = np.random.default_rng(2)
    probs, bags = rng.beta(1, 1, 4000), np.repeat(np.arange(250), 16)
    truth = rng.random(4000) < probs
    counts = np.stack([np.bincount(bags, ~truth), np.bincount(bags, truth)], 1)
    found = condition_on_proportions(np.stack([1 - probs, probs], 1), bags, Proportions(counts, "counts"))[
        :, 1
    ]

    def log_loss(p: np.ndarray) -> float:
        return float(-np.log(np.where(truth, p, 1 - p).clip(1e-12)).mean())

    assert log_loss(found) < log_loss(probs) - 0.02
    some = (found > 0.8) & (found < 0.9)
    assert truth[some].mean() == pytest.approx(found[some].mean(), abs=0.05)


# --- laws


@given(st.integers(0, 1000), st.integers(2, 4), st.integers(1, 6))
def test_bag_means_are_the_proportions_and_the_order_of_rows_does_not_matter(seed, k, m):
    rng = np.random.default_rng(seed)
    n = 40
    probs, bags = rng.dirichlet(np.ones(k), n), np.r_[np.arange(m), rng.integers(0, m, n - m)]
    shares = rng.dirichlet(np.full(k, 2.0), m)
    found = condition_on_proportions(probs, bags, shares)
    np.testing.assert_allclose(found.sum(1), 1)
    np.testing.assert_allclose(pd.DataFrame(found).groupby(bags).mean(), shares, atol=1e-5)
    order = rng.permutation(n)
    np.testing.assert_allclose(
        condition_on_proportions(probs[order], bags[order], shares), found[order], atol=1e-5
    )


def test_proportions_may_be_zero_or_one_and_equal_rows_stay_equal():
    single = condition_on_proportions([[0.9, 0.1]], ["a"], {"a": [0, 1]})
    np.testing.assert_allclose(single, [[0, 1]], atol=1e-6)
    equal = condition_on_proportions(np.full((8, 2), 0.5), ["a"] * 8, {"a": [0.25, 0.75]})
    np.testing.assert_allclose(equal, np.tile([0.25, 0.75], (8, 1)), atol=1e-5)
    three = np.random.default_rng(0).dirichlet(np.ones(3), 10)
    found = condition_on_proportions(three, ["a"] * 10, {"a": [0.5, 0.5, 0.0]})
    np.testing.assert_allclose(found.mean(0), [0.5, 0.5, 0.0], atol=1e-5)


def test_the_order_of_rows_by_probability_is_kept():
    probs = np.linspace(0.05, 0.95, 30)
    found = condition_on_proportions(np.stack([1 - probs, probs], 1), ["a"] * 30, {"a": [0.8, 0.2]})[:, 1]
    assert (np.diff(found) > 0).all()
    assert (found < probs).all()


def test_rows_of_bags_with_unknown_proportions_stay_as_they_are():
    rng = np.random.default_rng(0)
    probs, bags = rng.dirichlet(np.ones(3), 12), np.repeat(["a", "b", "c"], [3, 5, 4])
    table = {"a": [0.2, 0.3, 0.5], "b": [0.6, 0.2, 0.2], "c": [0.1, 0.1, 0.8]}
    full = condition_on_proportions(probs, bags, table)
    partial = {"a": table["a"], "c": table["c"]}
    found = condition_on_proportions(probs, bags, Proportions(partial, missing_bags="allow"))
    np.testing.assert_allclose(found[3:8], probs[3:8], atol=1e-6)
    np.testing.assert_array_equal(found[[0, 1, 2, 8, 9, 10, 11]], full[[0, 1, 2, 8, 9, 10, 11]])


# --- names


def test_frames_are_aligned_by_the_names_of_their_columns():
    probs = pd.DataFrame({"yes": [0.9, 0.2, 0.6], "no": [0.1, 0.8, 0.4]})
    table = pd.DataFrame({"no": [2 / 3], "yes": [1 / 3]}, index=["a"])
    for frame in (probs, pl.DataFrame({name: probs[name].to_list() for name in probs})):
        found = condition_on_proportions(frame, ["a"] * 3, table)
        np.testing.assert_allclose(found.mean(0), [1 / 3, 2 / 3], atol=1e-5)  # the columns of the predictions


def test_a_table_may_have_more_bags_than_the_rows():
    rng = np.random.default_rng(3)
    probs, bags = rng.dirichlet([1, 1, 1], 60), rng.permutation(np.repeat(np.arange(12), 5))
    shares = pd.DataFrame(rng.dirichlet([2, 2, 2], 12), columns=list("ABC"))
    column = shares.assign(town=range(12)).iloc[rng.permutation(12)].reset_index(drop=True)
    polars = pl.DataFrame({name: column[name].to_list() for name in column})
    for some in ([3, 8, 11], [8], list(range(12))):
        rows = np.isin(bags, some)
        expected = condition_on_proportions(probs, bags, shares.to_numpy())[rows]
        for table in (shares, shares.T.to_dict("list"), shares.to_dict("index"), column, polars):
            found = condition_on_proportions(probs[rows], bags[rows], table, classes=list("ABC"))
            np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("classes", [[5, 10], [0.5, 10.0], [-2, -1], [9, 10, 11], [False, True]])
def test_numbers_that_name_classes_are_sorted_as_numbers(classes):
    """As those of `classes_`, which the columns of predictions follow."""
    k, bags = len(classes), np.repeat(np.arange(6), 5)
    probs = np.random.default_rng(0).dirichlet(np.ones(k), 30)
    counts = np.random.default_rng(1).multinomial(5, np.ones(k) / k, 6)
    table = pd.DataFrame(counts, columns=pd.Index(classes, dtype=object))
    found = condition_on_proportions(probs, bags, Proportions(table, "counts"))
    np.testing.assert_array_equal(found, condition_on_proportions(probs, bags, Proportions(counts, "counts")))
    backwards = Proportions(table.iloc[:, ::-1], "counts")
    np.testing.assert_array_equal(found, condition_on_proportions(probs, bags, backwards, classes=classes))
    with pytest.raises(DataError):  # predictions might have its order
        condition_on_proportions(probs, bags, backwards)


def test_the_columns_of_the_result_are_those_of_the_predictions():
    probs, bags = np.array([[0.6, 0.3, 0.1]] * 4), ["a"] * 4
    table = {"a": {"x": 0.5, "y": 0.2, "z": 0.3}}
    found = condition_on_proportions(probs, bags, table, classes=["z", "x", "y"])
    np.testing.assert_allclose(found.mean(0), [0.3, 0.5, 0.2], atol=1e-5)


def test_bag_ids_may_be_tuples_of_any_length():
    bags = [("x",) if i % 2 else ("y", i % 3) for i in range(60)]
    shares = {bag: np.full(3, 1 / 3) for bag in set(bags)}
    assert condition_on_proportions(np.full((60, 3), 1 / 3), bags, shares).shape == (60, 3)


ONE_BAG = ["a"] * 3


@pytest.mark.parametrize(
    ("bags", "table"),
    [
        (ONE_BAG, {"a": [0.5, 0.6]}),
        (ONE_BAG, {"a": [0.5, 0.3]}),
        (ONE_BAG, Proportions({"a": [5, 6]}, "counts")),
        (ONE_BAG, {"a": [0.5, math.nan]}),
        (ONE_BAG, {"a": [math.nan, math.nan]}),
        (ONE_BAG, {"a": [-0.5, 1.5]}),
        (ONE_BAG, {"a": [0.2, 0.3, 0.5]}),
        (["a", "b", "a"], {"a": [0.5, 0.5]}),
    ],
)
def test_proportions_that_cannot_be_are_refused(bags, table):
    with pytest.raises(DataError):
        condition_on_proportions(np.full((3, 2), 0.5), bags, table)


@pytest.mark.parametrize("probabilities", [np.ones((3, 2)), np.full((3, 3), 1 / 3), np.full((3,), 0.5)])
def test_what_are_no_probabilities_is_refused(probabilities):
    with pytest.raises(DataError):
        condition_on_proportions(probabilities, ONE_BAG, {"a": [0.5, 0.5]})


def test_classes_that_are_not_those_of_the_table_are_refused():
    table = pd.DataFrame([[0.5, 0.5]], columns=["no", 1], index=["a"])
    with pytest.raises(DataError):  # of several types, which have no order
        condition_on_proportions(np.full((3, 2), 0.5), ONE_BAG, table)
    table = pd.DataFrame([[0.5, 0.5]], columns=["no", "yes"], index=["a"])
    with pytest.raises(DataError):
        condition_on_proportions(np.full((3, 2), 0.5), ONE_BAG, table, classes=["no", "maybe"])


# --- noise


@pytest.mark.parametrize("knows", [0.0, 1.0])
@pytest.mark.parametrize(("n", "k", "std"), [(20, 2, 0.1), (20, 2, 0.3), (100, 5, 0.03), (100, 5, 0.1)])
def test_noisy_proportions_help_as_far_as_they_can_and_never_hurt(n, k, std, knows):
    """Predictions know all about bags, or nothing; the largest `std` says that the table knows nothing."""
    rng, bags = np.random.default_rng(0), np.repeat(np.arange(200), n)
    town, own = rng.normal(0, 1, (200, k))[bags], rng.normal(0, 1, (200 * n, k))
    true, probs = softmax(town + own), softmax(knows * town + own)
    y = (true.cumsum(1) > rng.random((200 * n, 1))).argmax(1)
    shares = np.stack([np.bincount(bags, y == c) for c in range(k)], 1) / n
    noisy = shares + rng.normal(0, std, shares.shape)

    def log_loss(values: np.ndarray) -> float:
        return float(-np.log(values[np.arange(len(y)), y]).mean())

    exact, found, ignored = (
        log_loss(condition_on_proportions(probs, bags, Proportions(table, std=level)))
        for table, level in ((shares, None), (noisy, std), (shares, 0.499))
    )
    before = log_loss(probs)
    assert exact < found < before + 0.001
    assert ignored < before + 0.001
    if not knows:
        assert found < 0.4 * exact + 0.6 * before


def test_a_standard_deviation_of_zero_is_exact():
    probs, counts = draw(9, 3, 1.0, np.random.default_rng(0))
    exact, zero = (
        condition_on_proportions(probs, ["a"] * 9, Proportions({"a": counts}, "counts", std=std))
        for std in (None, 0.0)
    )
    np.testing.assert_allclose(zero, exact, atol=1e-6)


# --- several groupings


class World:
    """600 people in towns and age groups, of three classes; their features go along with both."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.x = rng.normal(size=(600, 3))
        scores = np.stack([self.x[:, 0] * 2, self.x[:, 1] * 2, 0.4 * self.x[:, 2]], 1)
        self.y = (scores + rng.gumbel(size=scores.shape)).argmax(1)
        self.town = np.floor(self.x[:, 0] * 2 + rng.normal(size=600)).astype(int) % 9
        self.age = np.floor(self.x[:, 1] + rng.normal(size=600)).astype(int) % 4 * 20
        self.bags = {"town": self.town, "age": self.age}
        self.shares = {name: pd.crosstab(ids, self.y, normalize="index") for name, ids in self.bags.items()}
        self.probs = softmax(0.3 * scores + rng.normal(0, 0.3, scores.shape))


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def test_the_proportions_of_all_groupings_are_met_and_predictions_are_better_for_it():
    world = World(3)
    probs = softmax(np.stack([world.x[:, 0] * 2, *np.zeros((2, 600))], 1))  # which know one feature alone
    one = condition_on_proportions(probs, world.town, world.shares["town"])
    both = condition_on_proportions(probs, world.bags, world.shares)
    for name, ids in world.bags.items():
        assert proportion_gap(both, ids, world.shares[name]) < 1e-4
    loss = [float(-np.log(each[np.arange(600), world.y]).mean()) for each in (both, one, probs)]
    assert loss[0] < loss[1] - 0.005 < loss[2] - 0.01
    order = np.random.default_rng(0).permutation(600)
    moved = {name: ids[order] for name, ids in world.bags.items()}
    again = condition_on_proportions(probs[order], moved, world.shares)
    np.testing.assert_allclose(again, both[order], atol=1e-6)


def test_a_single_named_grouping_is_a_grouping_without_a_name(world):
    named = condition_on_proportions(world.probs, {"town": world.town}, {"town": world.shares["town"]})
    plain = condition_on_proportions(world.probs, world.town, world.shares["town"])
    np.testing.assert_array_equal(named, plain)


def test_groupings_of_other_classes_are_refused(world):
    named = {
        name: table.set_axis(list(classes), axis=1)
        for (name, table), classes in zip(world.shares.items(), ("abc", "abd"), strict=True)
    }
    for classes in (None, list("abc")):
        with pytest.raises(DataError):
            condition_on_proportions(world.probs, world.bags, named, classes=classes)


def test_contradictions_are_errors_and_small_ones_warnings_and_rounded_tables_are_neither(world):
    rounded = {name: table.round(2) for name, table in world.shares.items()}
    rounded = {name: table.div(table.sum(axis=1), axis=0) for name, table in rounded.items()}
    condition_on_proportions(world.probs, world.bags, rounded)
    near = world.shares | {"age": world.shares["age"] + np.array([0.01, -0.01, 0.0])}
    with pytest.warns(ApportionWarning, match="only the first grouping is matched exactly"):
        found = condition_on_proportions(world.probs, world.bags, near)
    assert proportion_gap(found, world.town, world.shares["town"]) < 1e-4
    wrong = world.shares | {"age": world.shares["age"].iloc[:, [1, 2, 0]].set_axis([0, 1, 2], axis=1)}
    with pytest.raises(DataError) as error:
        condition_on_proportions(world.probs, world.bags, wrong)
    assert error.value.bag in {*world.town, *world.age}
    assert error.value.value > 0.02


def test_a_noisy_grouping_gives_way_to_an_exact_one(world):
    shifted = world.shares["age"] + np.array([0.06, -0.03, -0.03])
    wrong = world.shares | {"age": shifted}
    with pytest.raises(DataError):
        condition_on_proportions(world.probs, world.bags, wrong)
    found = condition_on_proportions(world.probs, world.bags, wrong | {"age": Proportions(shifted, std=0.05)})
    assert proportion_gap(found, world.town, world.shares["town"]) < 1e-3


@pytest.mark.parametrize("std", [3.0, "estimate"])
def test_noisy_counts_draw_predictions_part_of_the_way(world, std):
    counts = pd.crosstab(world.town, world.y)
    noisy = counts + np.random.default_rng(0).normal(0, 3, counts.shape)  # some negative, no sum right
    found = condition_on_proportions(world.probs, world.town, Proportions(noisy, "counts", std=std))
    gap, before = (
        np.abs(pd.DataFrame(each).groupby(world.town).mean() - world.shares["town"]).to_numpy().mean()
        for each in (found, world.probs)
    )
    assert gap < 0.8 * before


def test_certain_predictions_are_conditioned_where_some_labeling_has_the_proportions(world):
    rng = np.random.default_rng(0)
    for _ in range(20):
        y, guess = rng.integers(3, size=(2, 400))
        bags = {"a": rng.integers(6, size=400), "b": rng.integers(5, size=400)}
        shares = {name: pd.crosstab(ids, y, normalize="index") for name, ids in bags.items()}
        certain = np.eye(3)[np.where(rng.random(400) < 0.7, y, guess)]
        found = condition_on_proportions(certain, bags, shares)
        for name, ids in bags.items():
            assert proportion_gap(found, ids, shares[name]) < 2e-3
    found = condition_on_proportions(np.tile([1.0, 0.0, 0.0], (600, 1)), world.bags, world.shares)
    assert proportion_gap(found, world.town, world.shares["town"]) < 1e-3


def test_indices_in_another_order_are_refused(world):
    frame = pd.DataFrame(world.probs, index=[f"row {i}" for i in range(600)])
    town = pd.Series(world.town, index=frame.index)
    found = condition_on_proportions(frame, town, world.shares["town"])
    counted = condition_on_proportions(frame.reset_index(drop=True), town, world.shares["town"])
    np.testing.assert_array_equal(found, counted)  # an index that only counts rows says nothing
    for bags in (town.iloc[::-1], {"town": town, "age": pd.Series(world.age, index=town.index).iloc[::-1]}):
        table = world.shares if isinstance(bags, dict) else world.shares["town"]
        with pytest.raises(DataError):
            condition_on_proportions(frame, bags, table)


def test_proportions_on_tensors_are_taken():
    probs = torch.tensor([[0.9, 0.1], [0.5, 0.5]])
    found = condition_on_proportions(probs, torch.tensor([1, 1]), torch.tensor([[0.25, 0.75]]))
    np.testing.assert_allclose(found.mean(0), [0.25, 0.75], atol=1e-5)

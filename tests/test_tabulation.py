"""Tables by group: counts that add up, bounds that always hold, intervals that hold as often as they say."""

import itertools
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import BaseEstimator
from sklearn.linear_model import LinearRegression

from apportion import Proportions, condition_on_proportions, tabulate
from apportion.bags.build import build_bags_without_features
from apportion.errors import ApportionWarning, DataError, SettingsError
from apportion.tabulation import CellCounter, group_by


class BagRegression(BaseEstimator):
    """Goodman's regression: shares of bags are linear in the means of their rows; so are probabilities."""

    def fit(self, X: Any, *, bags: Any, proportions: Any) -> "BagRegression":
        x = np.asarray(X, float)
        bags = np.asarray(bags)
        table = proportions.table if isinstance(proportions, Proportions) else proportions
        names = np.unique(bags)
        means = np.array([x[bags == bag].mean(0) for bag in names])
        shares = np.array([table[bag] for bag in names])
        self.classes_ = np.arange(shares.shape[1])
        self.model_ = LinearRegression().fit(means, shares)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        p = self.model_.predict(np.asarray(X, float)).clip(0.01, 0.99)
        return p / p.sum(1, keepdims=True)


def people(seed: int = 0, m: int = 40, n: int = 30) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    town = np.repeat(np.arange(m), n)
    race = (random.random(m * n) < random.uniform(0.1, 0.9, m)[town]).astype(int)
    y = (random.random(m * n) < np.where(race, 0.8, 0.3)).astype(int)
    return race, town, y, random.integers(3, size=m * n)


def shares_of(y: np.ndarray, town: np.ndarray) -> dict[int, list[float]]:
    return {i: [1 - y[town == i].mean(), y[town == i].mean()] for i in np.unique(town).tolist()}


@pytest.mark.parametrize(
    "ages",
    [
        pd.Series([30, None, 40, None], dtype="Int64"),
        pd.Series([30, None, 40, None], dtype=float),
        pl.Series([30, None, 40, None]),
    ],
    ids=["Int64", "float", "polars"],
)
def test_rows_without_a_value_are_one_group(ages):
    x, town = np.arange(4.0)[:, None], [0, 0, 1, 1]
    model = BagRegression().fit(x, bags=town, proportions={0: [0.5, 0.5], 1: [0.2, 0.8]})
    table = pd.DataFrame(tabulate(model, x, {"age": ages}, replicates=0))
    rows = {age: n for age, n in zip(table["age"], table["rows"], strict=True) if age in (30, 40)}
    assert rows == {30: 1, 40: 1}
    assert sorted(table["rows"]) == [1, 1, 1, 1, 2, 2]


def test_counts_are_sums_of_conditioned_probabilities_and_add_up_to_every_margin():
    race, town, y, county = people()
    shares = shares_of(y, town)
    model = BagRegression().fit(race[:, None], bags=town, proportions=shares)
    groups = {"race": race, "county": county}
    table = pd.DataFrame(tabulate(model, race[:, None], groups, bags=town, proportions=shares, replicates=0))
    p = condition_on_proportions(model.predict_proba(race[:, None]), town, shares)
    for row in table.itertuples(index=False):
        mine = (race == row.race) & (county == row.county)
        assert row.rows == mine.sum()
        assert row.count == pytest.approx(p[mine, row[2]].sum(), abs=1e-6)
        assert row.share == pytest.approx(row.count / row.rows)
        assert np.isnan(row.count_low)
    assert table.groupby("class")["count"].sum().tolist() == pytest.approx([(y == 0).sum(), (y == 1).sum()])


def test_bounds_are_those_of_all_labelings_that_have_the_totals():
    random = np.random.default_rng(0)
    for _ in range(10):
        group = random.integers(2, size=7)
        bag = np.array([0, 0, 0, 0, 1, 1, 1])
        y = random.integers(2, size=7)
        bags = build_bags_without_features(7, bags=bag, proportions=shares_of(y, bag)).bags
        counter = CellCounter(bags, group_by({"g": group}, bags.source.numpy()), [0, 1])
        found = []
        for labels in itertools.product([0, 1], repeat=7):
            if all(sum(np.array(labels)[bag == b]) == y[bag == b].sum() for b in (0, 1)):
                found.append(
                    [
                        [np.sum((group == g) & (np.array(labels) == c)) for c in (0, 1)]
                        for g in np.unique(group)
                    ]
                )
        least, most = counter.bounds()
        np.testing.assert_allclose(least, np.min(found, 0), atol=1e-5)
        np.testing.assert_allclose(most, np.max(found, 0), atol=1e-5)


def test_intervals_hold_in_simulated_elections_and_lie_within_the_bounds():
    held = []
    for seed in range(12):
        race, town, y, county = people(seed)
        groups = {"race": race, "county": county}
        table = tabulate(BagRegression(), race[:, None], groups, bags=town, proportions=shares_of(y, town))
        frame = pd.DataFrame(table)
        assert (frame.count_min <= frame.count_low + 1e-9).all()
        assert (frame.count_low <= frame["count"] + 1e-9).all()
        assert (frame["count"] <= frame.count_high + 1e-9).all()
        assert (frame.count_high <= frame.count_max + 1e-9).all()
        truth = [
            ((race == r) & (county == c) & (y == k)).sum()
            for r, c, k in zip(frame.race, frame.county, frame["class"], strict=True)
        ]
        assert (frame.count_min - 1e-3 <= truth).all()
        assert (truth <= frame.count_max + 1e-3).all()
        held.append(((frame.count_low <= truth) & (truth <= frame.count_high)).mean())
    assert 0.8 <= np.mean(held) <= 1.0


@pytest.mark.parametrize("case", ["shuffled", "few bags", "alike"])
def test_intervals_are_the_bounds_where_bags_show_nothing(case):
    """Without information all halves of the bags predict the overall shares, and agree about them."""
    race, town, y, _ = people(m=7 if case == "few bags" else 40)
    shares = shares_of(y, town)
    if case == "shuffled":
        order = np.random.default_rng(1).permutation(len(shares))
        shares = {bag: shares[int(other)] for bag, other in zip(shares, order, strict=True)}
    if case == "alike":
        shares = {bag: [0.5, 0.5] if bag % 2 else [0.51, 0.49] for bag in shares}
    with pytest.warns(ApportionWarning, match="all that arithmetic allows"):
        table = tabulate(BagRegression(), race[:, None], {"race": race}, bags=town,
                         proportions=Proportions(shares, std=0.01), sample_weight=None)  # fmt: skip
    assert table["count_low"] == table["count_min"]
    assert table["count_high"] == table["count_max"]


def test_every_library_of_frames_gives_the_same_table():
    race, town, y, county = people()
    shares = shares_of(y, town)
    x = {"race": race.astype(float), "age": np.linspace(-1, 1, len(race))}
    fitted = BagRegression().fit(np.column_stack(list(x.values())), bags=town, proportions=shares)
    fitted.feature_names_in_ = np.array(["race", "age"], dtype=object)
    columns = {**x, "county": county, "town": town}
    tables = []
    for library in (pd, pl):
        frame = library.DataFrame(columns)
        found = tabulate(fitted, frame, ["county", "race"], bags="town", proportions=shares, replicates=2)
        assert isinstance(found, library.DataFrame)
        tables.append({name: list(found[name]) for name in found.columns})
    assert tables[0] == tables[1]
    again = tabulate(fitted, np.column_stack(list(x.values())), {"county": county, "race": x["race"]},
                     bags=town, proportions=shares, replicates=2)  # fmt: skip
    assert again == tables[0]


def test_without_proportions_there_are_counts_and_no_intervals():
    race, town, y, county = people()
    fitted = BagRegression().fit(race[:, None], bags=town, proportions=shares_of(y, town))
    table = tabulate(fitted, race[:, None], {"county": county})
    assert np.isnan(table["count_low"]).all()
    assert table["count_max"] == table["rows"]
    assert table["count_min"] == [0.0] * 6


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"by": "county"}, DataError),
        ({"by": {"county": [1, 2]}}, DataError),
        ({"by": {}}, SettingsError),
        ({"level": 1.0}, SettingsError),
        ({"replicates": 3}, SettingsError),
        ({"bags": None}, SettingsError),
        ({"proportions": None}, SettingsError),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(options, error):
    race, town, y, county = people()
    named: dict[str, Any] = {"by": {"county": county}, "bags": town, "proportions": shares_of(y, town)}
    named |= options
    with pytest.raises(error):
        tabulate(BagRegression(), race[:, None], named.pop("by"), **named)

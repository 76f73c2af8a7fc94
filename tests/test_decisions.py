"""Decisions that respect known shares: those of all training rows, or those of the bags of new rows."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import clone

from apportion import ProportionClassifier, Proportions
from apportion._random import stream
from apportion.bags.build import build_bags_without_features
from apportion.decisions import (
    HIGHEST_PRICE,
    decide_by_bags,
    decide_by_prices,
    describe_never_predicted,
    never_predicted,
    share_prices,
)
from apportion.errors import ApportionWarning, DataError, SettingsError
from apportion.selection.crossfit import cross_fit
from apportion.transport import round_to_counts


@given(st.integers(2, 6), st.integers(1, 200), st.integers(0, 10_000))
def test_prices_give_the_rows_they_come_from_their_shares(k, n, seed):
    log_probs = (2 * torch.randn(n, k, generator=stream(seed), dtype=torch.float64)).log_softmax(1)
    shares = torch.rand(k, generator=stream(seed + 1), dtype=torch.float64)
    shares /= shares.sum()
    codes = decide_by_prices(log_probs.exp().numpy(), share_prices(log_probs, shares))
    wanted = round_to_counts(shares.unsqueeze(0), [n])[0]
    # the marginal row of each class is indifferent, and may fall to either side
    assert np.abs(np.bincount(codes, minlength=k) - wanted.numpy()).max() < k


def test_equal_shares_of_symmetric_predictions_need_no_prices():
    log_probs = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.4, 0.6], [0.1, 0.9]]).log()
    prices = share_prices(log_probs, torch.tensor([0.5, 0.5]))
    assert decide_by_prices(log_probs.exp().numpy(), prices).tolist() == [0, 0, 1, 1]
    assert share_prices(log_probs, torch.tensor([1.0, 0.0])).tolist()[1] == HIGHEST_PRICE


def test_the_counts_of_bags_are_met_and_noisy_ones_are_a_compromise():
    probabilities = torch.rand(60, 3, generator=stream(0)).softmax(1).numpy()
    bags = np.arange(60) % 4
    counts = {b: [9, 4, 2] for b in range(4)}
    codes = decide_by_bags(probabilities, bags, Proportions(counts, "counts"))
    found = np.stack([np.bincount(codes[bags == b], minlength=3) for b in range(4)])
    assert found.tolist() == [[9, 4, 2]] * 4
    vague = decide_by_bags(probabilities, bags, Proportions(counts, "counts", std=1e6))
    expected = [
        round_to_counts(probabilities[bags == b].mean(0, keepdims=True).astype(float), [15])[0]
        for b in range(4)
    ]
    for b in range(4):
        assert np.abs(np.bincount(vague[bags == b], minlength=3) - expected[b].numpy()).max() <= 1
    both = {"a": bags, "b": np.arange(60) // 30}
    tables = {"a": Proportions(counts, "counts"), "b": {0: [0.6, 4 / 15, 2 / 15], 1: [0.6, 4 / 15, 2 / 15]}}
    codes = decide_by_bags(probabilities, both, tables)
    found = np.stack([np.bincount(codes[bags == b], minlength=3) for b in range(4)])
    assert found.tolist() == [[9, 4, 2]] * 4


# --- in the estimator


def rare_class(n: int = 4000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, labels with a weakly predictable class of 12 %, and bags of 16."""
    random = np.random.default_rng(0)
    x = random.normal(size=(n, 3))
    y = np.where(random.random(n) < 1 / (1 + np.exp(2.3 - 0.8 * x[:, 0])), "yes", "no")
    return x, y, np.arange(n) // 16


def test_copies_of_a_model_do_not_repeat_its_warning():
    random = np.random.default_rng(0)
    bag = np.repeat(np.arange(8), 20)
    shares = {i: [0.95, 0.05] if i % 2 else [0.9, 0.1] for i in range(8)}
    model = ProportionClassifier("linear", random_state=0)
    X = random.normal(size=(160, 2))
    with pytest.warns(ApportionWarning, match="most probable"):
        model.fit(X, bags=bag, proportions=shares)
    bags = build_bags_without_features(160, bags=bag, proportions=shares).bags
    with warnings.catch_warnings():
        warnings.simplefilter("error", ApportionWarning)
        for _ in cross_fit(model, X, bags, shares, np.empty((160, 2)), folds=2):
            pass
    with pytest.warns(ApportionWarning, match="most probable"):
        clone(model).fit(X, bags=bag, proportions=shares)


def test_a_class_that_is_never_predicted_is_reported_and_shares_predict_it(tmp_path):
    x, y, bags = rare_class()
    model = ProportionClassifier(epochs=40, pseudo_labels=None, random_state=0)
    with pytest.warns(ApportionWarning, match="'yes'.*never"):
        model.fit(x, y, bags=bags)
    assert "'yes'" in model.never_predicted_
    assert model.predicted_shares_.tolist() == [1.0, 0.0]
    np.testing.assert_allclose(model.class_shares_, [(y == "no").mean(), (y == "yes").mean()])
    with pytest.warns(ApportionWarning, match="'yes'.*never"):
        assert set(model.predict(x)) == {"no"}
    decided = model.predict(x, decide="shares")
    assert abs((decided == "yes").mean() - (y == "yes").mean()) < 2 / len(y)
    assert (y[decided == "yes"] == "yes").mean() > 1.4 * (y == "yes").mean()
    np.testing.assert_array_equal(model.predict(x[:7], decide="shares"), decided[:7])  # row by row
    counts = {
        b: {"no": int((y[bags == b] == "no").sum()), "yes": int((y[bags == b] == "yes").sum())}
        for b in range(250)
    }
    known = model.predict(x, decide="shares", bags=bags, proportions=Proportions(counts, "counts"))
    assert all((known[bags == b] == "yes").sum() == counts[b]["yes"] for b in range(250))


def test_arguments_of_predict_that_do_not_go_together_are_refused():
    x, y, bags = rare_class(400)
    model = ProportionClassifier(epochs=2, pseudo_labels=None, random_state=0).fit(x, y, bags=bags)
    table = {b: [0.9, 0.1] for b in range(25)}
    for wrong in (
        {"decide": "most"},
        {"decide": "shares", "bags": bags},
        {"decide": "shares", "proportions": table},
        {"bags": bags, "proportions": table},
    ):
        with pytest.raises(SettingsError):
            model.predict(x, **wrong)
    with pytest.raises(DataError):
        model.predict(x, decide="shares", bags=bags, proportions={0: [0.9, 0.1]})


def test_only_classes_that_should_have_a_row_are_missed():
    shares, predicted = np.array([0.9, 0.0995, 0.0005]), np.array([1.0, 0.0, 0.0])
    assert never_predicted(shares, predicted, 1000).tolist() == [False, True, False]
    assert never_predicted(shares, predicted, 2000).tolist() == [False, True, True]
    assert describe_never_predicted(np.arange(3), shares, np.zeros(3, bool)) == ""

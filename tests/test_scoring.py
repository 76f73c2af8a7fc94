"""Scorers for scikit-learn's searches."""

import numpy as np
import pandas as pd
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.model_selection import cross_val_score

from apportion import BagCorrelation, BagScore, DataError, diagnose, expand_proportions
from apportion.judging.scoring import _is_table


@pytest.mark.parametrize("score", [BagCorrelation(), BagScore()])
def test_a_search_that_does_not_route_is_told_what_a_score_of_bags_needs(score):
    x, y = np.zeros((12, 1)), np.arange(12) % 2
    with pytest.raises(ValueError, match=r"call sklearn.set_config\(enable_metadata_routing=True\)"):
        cross_val_score(DummyClassifier(), x, y, scoring=score, cv=2, error_score="raise")


def test_an_array_with_a_row_a_bag_is_a_table():
    rng = np.random.default_rng(0)
    ids, table = np.repeat(np.arange(4), 5), rng.dirichlet(np.ones(2), 4)

    class Knows:
        classes_ = np.arange(2)

        def predict_proba(self, X):
            return table[ids]

    score = BagScore("error")
    assert score(Knows(), None, table, bags=ids) == pytest.approx(0, abs=1e-6)
    assert score(Knows(), None, table, bags=ids) == score(Knows(), None, table[ids], bags=ids)


class Known:
    """Knows the shares of every row's bag."""

    def __init__(self, shares):
        self.shares, self.classes_ = shares, np.arange(shares.shape[1])

    def predict_proba(self, X):
        return self.shares


def test_a_frame_with_the_shares_of_rows_is_none_of_bags_though_its_index_may_name_them():
    ids, table = np.repeat([8, 3, 5], 4), np.array([[0.1, 0.9], [0.5, 0.5], [0.7, 0.3]])
    rows = table.repeat(4, 0)
    frame = pd.DataFrame(rows, index=np.roll(np.arange(12), 5))  # of rows, as a search leaves them
    assert BagCorrelation()(Known(rows), None, frame, bags=ids) == pytest.approx(1)
    gap = frame.astype(object)
    gap.iloc[:4] = np.nan
    assert not _is_table(gap, ids, 12)
    named = pd.DataFrame(table, index=[8, 3, 5]).sort_index()
    assert BagScore("error")(Known(rows), None, named, bags=ids) == pytest.approx(0, abs=1e-6)
    alone = pd.DataFrame(table, index=[8, 3, 5]).sort_index()  # a row a bag: the index tells which
    assert BagScore("error")(Known(table), None, alone, bags=np.array([8, 3, 5])) == pytest.approx(
        0, abs=1e-6
    )


def test_bags_of_millions_have_means_that_do_not_stray():
    table, sizes = np.array([[0.2, 0.8], [0.7, 0.3], [0.45, 0.55]], np.float32), [100, 4_000_000, 100]
    shares, ids = table.repeat(sizes, 0), np.repeat([0, 1, 2], sizes)
    known = dict(enumerate(table.tolist()))
    assert BagCorrelation()(Known(shares), None, known, bags=ids) == pytest.approx(1, abs=1e-6)
    assert BagScore("correlation")(Known(shares), None, known, bags=ids) == pytest.approx(1, abs=1e-6)


def test_what_a_score_advises_is_what_it_takes():
    table = np.array([[3.0, 2.0], [1.0, 4.0]])
    ids = np.repeat([0, 1], 5)
    known = Known((table / 5)[ids])
    with pytest.raises(DataError, match="these are counts: divide each bag's by their sum"):
        BagScore("error")(known, None, table, bags=ids)
    with pytest.raises(DataError, match=r"summing to 0.99; divide them by their sum$"):
        BagScore("error")(known, None, np.array([[0.59, 0.4], [0.2, 0.8]]), bags=ids)
    with pytest.raises(DataError, match=r"summing to 0.99; divide them by their sum$"):
        diagnose((table / 5)[ids], ids, np.array([[0.59, 0.4], [0.2, 0.8]]))


def test_expanded_shares_have_the_index_of_the_bags_that_they_are_of():
    bags = pd.Series(["a", "b", "a", "b"], index=[7, 3, 5, 1])
    table = pd.DataFrame({"no": [0.5, 0.25], "yes": [0.5, 0.75]}, index=["a", "b"])
    expanded = expand_proportions(table, bags)
    assert list(expanded.index) == [7, 3, 5, 1]
    assert expanded.loc[1].tolist() == [0.25, 0.75]
    assert list(expand_proportions(table, bags.tolist()).index) == [0, 1, 2, 3]
    counts = 2 * table.mul([1, 2], axis=0)
    pd.testing.assert_frame_equal(
        expand_proportions(counts=counts.iloc[:1], bags=bags[bags == "a"]), expanded[bags == "a"]
    )
    with pytest.raises(DataError, match="bags is missing; pass bags=, the bag id of every row"):
        expand_proportions(table)
    known = Known(expanded.to_numpy())
    known.classes_ = np.array(["no", "yes"])
    assert BagScore("error")(known, None, expanded, bags=bags) == pytest.approx(0, abs=1e-6)

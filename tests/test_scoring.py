"""Scorers for scikit-learn's searches."""

import numpy as np
import pandas as pd
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.model_selection import cross_val_score

from apportion import BagCorrelation, BagScore
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

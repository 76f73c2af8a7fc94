"""Scorers for scikit-learn's searches."""

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.model_selection import cross_val_score

from apportion import BagCorrelation, BagScore


@pytest.mark.parametrize("score", [BagCorrelation(), BagScore()])
def test_a_search_that_does_not_route_is_told_what_a_score_of_bags_needs(score):
    x, y = np.zeros((12, 1)), np.arange(12) % 2
    with pytest.raises(ValueError, match=r"call sklearn.set_config\(enable_metadata_routing=True\)"):
        cross_val_score(DummyClassifier(), x, y, scoring=score, cv=2, error_score="raise")

"""Where a class is rare, networks begin at the overall shares of the classes."""

import numpy as np
import pytest
import torch
from conftest import ragged
from sklearn.metrics import roc_auc_score
from torch import nn

from apportion import ProportionClassifier
from apportion.evaluate import predict_log_proba
from apportion.fitting.start import overall_shares, starting_at
from apportion.networks import mlp


def test_overall_shares_are_those_of_all_rows_and_none_is_zero():
    bags = ragged((1, 3, 12))
    expected = (bags.sizes.unsqueeze(1) * bags.proportions.double()).sum(0) / 16
    torch.testing.assert_close(overall_shares(bags), expected)
    none = torch.tensor([[1.0, 0.0, 0.0]]).expand(3, 3)
    assert overall_shares(type(bags)(bags.x, bags.sizes, none, bags.source, bags.ids)).tolist() == [
        1.0,
        0.5 / 16,
        0.5 / 16,
    ]


def test_a_networks_first_mean_prediction_is_near_these_shares_and_where_none_is_rare_nothing_changes():
    torch.manual_seed(0)
    network, x = mlp((2,), 3), torch.randn(500, 2)
    before = predict_log_proba(network, x)
    assert torch.equal(predict_log_proba(starting_at(torch.tensor([0.6, 0.33, 0.07]), network), x), before)
    shares = torch.tensor([0.9, 0.099, 0.001])
    mean = predict_log_proba(starting_at(shares, network), x).exp().mean(0)
    torch.testing.assert_close(mean, shares, rtol=0.3, atol=0.0)


@pytest.mark.parametrize("network", [nn.Linear(2, 3, bias=False), nn.Sequential(nn.Linear(2, 3), nn.Tanh())])
def test_a_network_without_such_a_last_layer_is_left_as_it_is(network):
    before = network(torch.ones(1, 2))
    assert torch.equal(starting_at(torch.tensor([0.9, 0.05, 0.05]), network)(torch.ones(1, 2)), before)


def test_a_class_of_one_row_in_two_hundred_is_found_where_it_is():
    """From even shares the network unlearns the rare class everywhere, and ranks its rows last: AUC 0.1."""
    random = np.random.default_rng(20)
    town, x = random.integers(0, 200, 20000), random.normal(size=(20000, 4)).astype("float32")
    rare = (x[:, 0] + 0.3 * random.normal(size=20000) > 2.8).astype(int)
    shares = {name: [1 - rare[town == name].mean(), rare[town == name].mean()] for name in range(200)}
    model = ProportionClassifier(random_state=20).fit(x, bags=town, proportions=shares)
    assert roc_auc_score(rare, model.predict_proba(x)[:, 1]) > 0.95

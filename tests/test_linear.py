"""The linear model: the minimum of the bag loss, and supervised logistic regression where bags are rows."""

import numpy as np
import pytest
import torch
from scipy.optimize import approx_fprime
from sklearn.linear_model import LogisticRegression

from apportion._random import stream
from apportion.bags.bags import Bags
from apportion.bags.simulate import make_bags
from apportion.losses import proportion_loss
from apportion.methods.linear import bag_loss, fit_linear, try_penalties


def clouds(n: int = 600, k: int = 3, size: int = 8, seed: int = 0) -> tuple[Bags, torch.Tensor]:
    """Overlapping clouds in five dimensions, in random bags."""
    random = np.random.default_rng(seed)
    y = random.choice(k, n, p=np.arange(1, k + 1) / np.arange(1, k + 1).sum())
    x = random.normal(size=(n, 5)) + 2 * np.eye(k, 5)[y]
    return make_bags(x, y, size, k, stream(seed, "clouds"))


@pytest.mark.parametrize("k", [2, 3])
def test_gradient_is_that_of_finite_differences_and_the_loss_that_of_dllp(k):
    bags, _ = clouds(k=k)
    weights = np.random.default_rng(1).normal(size=k * 6)
    loss, gradient = bag_loss(weights, bags, l2=0.1)
    slopes = approx_fprime(weights, lambda w: bag_loss(w, bags, l2=0.1)[0], 1e-6)
    np.testing.assert_allclose(gradient, slopes, atol=1e-6)
    W = torch.from_numpy(weights.reshape(k, 6))
    logits = bags.x.double() @ W[:, :-1].T + W[:, -1]
    expected = proportion_loss(logits, bags.sizes, bags.proportions) + 0.05 * W[:, :-1].square().sum()
    assert loss == pytest.approx(float(expected), rel=1e-6)


def test_solution_is_a_minimum_from_wherever_the_solver_starts():
    bags, _ = clouds()
    model = fit_linear(bags, 1e-2)
    weights = torch.cat([model.weight, model.bias.unsqueeze(1)], 1).detach().double().numpy().ravel()
    best, gradient = bag_loss(weights, bags, 1e-2)
    assert np.abs(gradient).max() < 1e-5
    far = torch.nn.Linear(5, 3)
    torch.nn.init.normal_(far.weight, generator=stream(0, "far"))
    again = fit_linear(bags, 1e-2, far)
    torch.testing.assert_close(again.weight, model.weight, atol=2e-3, rtol=0)
    random = np.random.default_rng(0)
    for _ in range(20):
        assert bag_loss(weights + 0.05 * random.normal(size=weights.shape), bags, 1e-2)[0] > best


def test_bags_of_one_row_are_logistic_regression():
    bags, y = clouds(size=1)
    model = fit_linear(bags, 1e-2)
    oracle = LogisticRegression(C=1 / (len(y) * 1e-2), tol=1e-8, max_iter=1000)
    oracle.fit(bags.x.double().numpy(), y.numpy())
    expected = oracle.predict_proba(bags.x.double().numpy())
    with torch.no_grad():
        np.testing.assert_allclose(model(bags.x).softmax(1).numpy(), expected, atol=1e-4)


def test_held_out_bags_choose_a_strong_penalty_for_noise_and_a_weak_one_for_signal():
    def chosen(bags: Bags) -> float:
        half = torch.arange(len(bags.sizes)).split(len(bags.sizes) // 2)
        return max(try_penalties(bags.select(half[0]), bags.select(half[1])), key=lambda each: each.score).l2

    bags, _ = clouds(n=4000)
    noise = torch.randn(bags.x.shape, generator=stream(0, "noise"))
    assert chosen(bags) <= 3e-3
    assert chosen(Bags(noise, bags.sizes, bags.proportions, bags.source, bags.ids)) >= 3e-2

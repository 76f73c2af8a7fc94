"""Boosted trees: equations against autograd and dense algebra, splits against all splits, what is learned."""

from collections import deque
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import expit, softmax

from apportion._random import stream
from apportion.bags.bags import Bags
from apportion.bags.simulate import make_bags
from apportion.errors import ModelError
from apportion.losses import proportion_loss
from apportion.methods import _tree_growth as kernels
from apportion.methods import boosted_trees
from apportion.methods.boosted_trees import Boosting, apply_bins, as_rows, bin_edges, boost


def ragged_bags(k: int, n: int = 400, seed: int = 0) -> Bags:
    """Rows of noise in bags of 1 to 30, some proportions zero."""
    generator = stream(seed, "ragged", k)
    sizes = torch.randint(1, 30, (n,), generator=generator)
    sizes = sizes[: int((sizes.cumsum(0) <= n).sum())]
    shares = torch.rand(len(sizes), k, generator=generator) * (
        torch.rand(len(sizes), k, generator=generator) > 0.2
    )
    shares += 1e-3 * (shares.sum(1, keepdim=True) == 0)
    n = int(sizes.sum())
    x = torch.randn(n, 4, generator=generator)
    return Bags(x, sizes, shares / shares.sum(1, keepdim=True), torch.arange(n), range(len(sizes)))


def boosting(bags: Bags, scores: np.ndarray | None = None) -> tuple[Boosting, list[np.ndarray]]:
    random = np.random.default_rng(0)
    x = as_rows(bags.x)
    edges = bin_edges(x, random)
    state = Boosting(apply_bins(x, edges), bags, [len(edge) + 1 for edge in edges], 8, 0.7, random)
    if scores is not None:
        state.scores[:] = scores
        state.add(np.zeros((1, scores.shape[1])))  # predicts the bags
    return state, edges


def random_scores(bags: Bags) -> np.ndarray:
    columns = 1 if bags.n_classes == 2 else bags.n_classes
    return np.random.default_rng(1).normal(size=(len(bags.x), columns))


@pytest.mark.parametrize("k", [2, 3, 5])
def test_residuals_are_minus_the_gradient_of_the_bag_loss(k):
    bags = ragged_bags(k)
    scores = random_scores(bags)
    state, _ = boosting(bags, scores)
    z = torch.tensor(scores, requires_grad=True)
    logits = torch.cat([torch.zeros_like(z), z], 1) if k == 2 else z
    loss = proportion_loss(logits, bags.sizes, bags.proportions)
    assert state.loss() == pytest.approx(loss.item(), rel=1e-5)
    (loss * len(z)).backward()
    rows = np.arange(len(z))
    residuals, weights = state.compare(rows)
    np.testing.assert_allclose(residuals, -z.grad.numpy(), atol=2e-4)
    some, some_weights = state.compare(rows[5::7])
    assert (some == residuals[5::7]).all()
    assert (some_weights == weights[5::7]).all()


@pytest.mark.parametrize("k", [2, 3])
def test_leaf_equations_are_those_of_a_newton_step_for_whole_bags(k):
    bags = ragged_bags(k)
    state, _ = boosting(bags, random_scores(bags))
    feature, cut, child, _ = state.grow()
    leaves = int((feature < 0).sum())
    assert leaves > 3
    classes = state.scores.shape[1]
    gram, right, information = (
        np.zeros((classes, leaves, leaves)),
        np.zeros((classes, leaves)),
        np.zeros(classes),
    )
    leaf = np.empty(len(bags.x), np.uint8)
    kernels.find_leaves(state.bins, feature, cut, child, leaf)
    kernels.leaf_equations(
        state.probabilities, leaf, state.sizes, state.proportions, state.predicted, gram, right, information
    )
    bag = np.repeat(np.arange(len(state.sizes)), state.sizes)
    p = softmax(state.scores, 1) if classes > 1 else expit(state.scores)
    for c in range(classes):
        slope = p[:, c] * (1 - p[:, c]) / state.sizes[bag]
        A = np.zeros((len(state.sizes), leaves))
        np.add.at(A, (bag, leaf), slope)
        predicted = state.predicted[:, c]
        weight = state.sizes / (predicted * (1 - predicted))
        np.testing.assert_allclose(gram[c], A.T @ (weight[:, None] * A), rtol=1e-9)
        gap = state.proportions[:, c] - predicted
        np.testing.assert_allclose(right[c], A.T @ (weight * gap), rtol=1e-9, atol=1e-9)
        assert information[c] == pytest.approx((weight[bag] * slope**2).sum())


def test_trees_are_grown_on_the_fraction_of_the_rows():
    bags = ragged_bags(2)
    for fraction in (0.7, 0.1):
        state, _ = boosting(bags)
        state.fraction = fraction
        drawn = [len(state.draw_rows_and_features()[0]) for _ in range(50)]
        assert np.mean(drawn) / len(bags.x) == pytest.approx(fraction, rel=0.1)


def test_first_split_is_the_best_of_all_splits():
    bags = ragged_bags(3)
    state, edges = boosting(bags, random_scores(bags))
    n, d = state.bins.shape
    feature, cut, child = (np.zeros(15, np.int32) for _ in range(3))
    gain = np.zeros(15)
    memory = np.zeros((8, state.start[-1], 5))
    residuals, weights = state.compare(np.arange(n))
    n_nodes = kernels.grow(
        state.bins, state.start, np.arange(d), residuals, weights, np.arange(n, dtype=np.int32), 20,
        memory, feature, cut, child, gain,
    )  # fmt: skip

    def explained(rows: np.ndarray) -> float:
        return np.square(residuals[rows].sum(0, dtype=np.float64)).sum() / weights[rows].sum()

    gains = {}
    for f in range(d):
        for place in range(len(edges[f])):
            left = state.bins[:, f] <= place
            if min(left.sum(), n - left.sum()) >= 20:
                gains[f, place] = explained(left) + explained(~left) - explained(np.ones(n, bool))
    best = max(gains.values())
    assert gain[0] == pytest.approx(best, rel=1e-4)
    assert gains[int(feature[0]), int(cut[0])] == pytest.approx(best, rel=1e-4)
    # by thresholds every row reaches the same leaf as by bins, and no leaf is too small
    by_bin, by_value = np.empty(n, np.int32), np.empty(n, np.int32)
    kernels.find_leaves(state.bins, feature, cut, child, by_bin)
    threshold = np.zeros(n_nodes, np.float32)
    for node in np.flatnonzero(feature[:n_nodes] >= 0):
        threshold[node] = edges[feature[node]][cut[node]]
    kernels.find_leaves(as_rows(bags.x), feature, threshold, child, by_value)
    assert (by_bin == by_value).all()
    counts = np.bincount(by_bin)
    assert len(counts) == (n_nodes + 1) // 2
    assert counts.min() >= 20


def last_round(bags: Bags, validation: Bags | None = None, **settings: int) -> boosted_trees.Round:
    return deque(boost(bags, validation, **settings), maxlen=1).pop()


def squares(n: int = 6000, k: int = 2, size: int = 32) -> tuple[Bags, torch.Tensor]:
    """Classes are the fields of a chessboard, which no linear model separates; two features are noise."""
    x = torch.rand(n, 4, generator=stream(0, "squares"))
    y = ((2 * x[:, 0]).long() + (2 * x[:, 1]).long()) % k if k == 2 else (3 * x[:, 0]).long()
    return make_bags(x, y, size, k, stream(1, "squares"))


@pytest.mark.parametrize("k", [2, 3])
def test_trees_learn_what_no_linear_model_can_and_the_module_repeats_it(k):
    bags, y = squares(k=k)
    state = last_round(bags, rounds=100)
    model = state.classifier
    logits = model(bags.x)
    assert (logits.argmax(1) == y).float().mean() > 0.93
    torch.testing.assert_close(logits, model._torch_forward(bags.x), atol=1e-5, rtol=0)
    assert model.importance[:1].min() > model.importance[2:].max()
    loss = proportion_loss(logits, bags.sizes, bags.proportions)
    assert loss.item() == pytest.approx(state.loss, abs=1e-3)
    model.check()


def test_a_tree_sees_both_of_two_features():
    bags, y = squares()
    model = last_round(replace(bags, x=bags.x[:, :2]), rounds=100).classifier
    assert (model(bags.x[:, :2]).argmax(1) == y).float().mean() > 0.95


def test_trees_depend_on_the_seed_and_on_the_order_of_values_alone():
    bags, _ = squares(1500)
    model = last_round(bags, rounds=20, seed=1).classifier
    torch.testing.assert_close(model(bags.x), last_round(bags, rounds=20, seed=1).classifier(bags.x))
    assert not torch.equal(model(bags.x), last_round(bags, rounds=20, seed=2).classifier(bags.x))
    stretched = replace(bags, x=(4 * bags.x).exp())
    again = last_round(stretched, rounds=20, seed=1).classifier
    torch.testing.assert_close(again(stretched.x), model(bags.x))


def test_noise_stops_early_but_not_before_the_least_number_of_rounds():
    bags = ragged_bags(2, n=3000)
    m = len(bags.sizes) // 2
    which = torch.arange(len(bags.sizes))
    state = last_round(bags.select(which[:m]), bags.select(which[m:]), rounds=500)
    assert state.number == state.best + boosted_trees.PATIENCE
    assert boosted_trees.MIN_ROUNDS <= state.best < 200


def test_features_without_variation_and_single_rows_give_the_overall_shares():
    bags = ragged_bags(3)
    model = last_round(replace(bags, x=torch.zeros(len(bags.x), 2)), rounds=10).classifier
    shares = model(torch.zeros(1, 2)).softmax(1)[0].double()
    torch.testing.assert_close(shares, bags.overall, atol=0.02, rtol=0)
    tiny = Bags(torch.eye(2), torch.tensor([1, 1]), torch.eye(2), torch.arange(2), range(2))
    assert last_round(tiny, rounds=10).classifier(tiny.x).isfinite().all()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("feature", 4),
        ("feature", -2),
        ("child", 0),
        ("child", -5),
        ("child", 10**9),
        ("root", 10**9),
        ("root", -1),
    ],
)
def test_buffers_that_lead_nowhere_are_refused(name, value):
    bags, _ = squares(1500)
    model = last_round(bags, rounds=3).classifier
    getattr(model, name)[0] = value
    with pytest.raises(ModelError):
        model.check()


def test_depth_that_is_too_small_is_refused():
    bags, _ = squares(1500)
    model = last_round(bags, rounds=3).classifier
    model.depth -= 1
    with pytest.raises(ModelError):
        model.check()

"""Boosted trees on the bag loss.

Every row i has a score z_ij for each class j, and p_i = softmax(z_i). The loss is that of DLLP,

    L = - Σ_b n_b Σ_j π_bj log p̂_bj,    p̂_b = mean of p_i over the rows of bag b

Trees are added one after the other. Each round:

1. Residuals. With R_bj = π_bj / p̂_bj, minus the gradient of L by the scores of a row in bag b is

       r_ij = p_ij (R_bj - Σ_c p_ic R_bc)                                                          (1)

   Its weight is the curvature of the loss if that row moved alone, the mean over classes of

       w_ij = s_ij² / (n_b p̂_bj (1 - p̂_bj)),    s_ij = p_ij (1 - p_ij)                             (2)

2. Structure. One tree for all classes is grown on the residuals of some rows: each split takes the largest
   reduction of the weighted squared error Σ_i w_i ‖r_i / w_i - value‖².

3. Leaf values. Rows of a bag move together, so the curvature along a leaf is not the sum over its rows. If
   leaf l adds δ_l to the scores of class j, the prediction of bag b moves by Σ_l A_bl δ_l, where A_bl is the
   sum of s_ij / n_b over the rows of the bag in the leaf. A Newton step for all leaves of the tree at once is

       (AᵀWA + ρI) δ = AᵀW (π_j - p̂_j),    W_b = n_b / (p̂_bj (1 - p̂_bj))                           (3)

   The system has as many unknowns as a tree has leaves. The ridge ρ is a multiple of the information that an
   average leaf would have if the rows of a bag moved independently.

4. z += rate · δ.

docs/methods/boosted-trees.md derives the equations and compares with per-row curvature.
"""

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from apportion._random import derive_seed
from apportion._scratch import empty_array, pieces
from apportion.bags.bags import Bags
from apportion.methods.count_likelihood import count_log_likelihood
from apportion.methods.protocol import LossTerms
from apportion.networks.trees import BoostedTrees, Tree, as_module

# chosen on the training rows of Adult; the fraction of rows, on many tables (docs/log.md)
RATE = 0.15
RIDGE = 3.0
FEW_LEAVES, MANY_LEAVES = 8, 31  # of a tree; held-out bags choose
ROWS_PER_LEAF = 20
FRACTIONS_OF_ROWS = (0.7, 0.2)  # on which the structure of a tree is grown; held-out bags choose
FRACTION_OF_FEATURES = 0.7
FEWEST_FEATURES = 4  # of a tree, where there are so many: one feature alone shows no interaction
LARGEST_STEP = 4.0  # of a leaf, before it is multiplied by the rate

MAX_ROUNDS = 600
USUAL_ROUNDS = 150  # where no bags can be held out
MIN_ROUNDS = 50  # a few held-out bags must not stop boosting before it began
PATIENCE = 100  # rounds without a better score of the held-out bags
ROUNDS_BETWEEN_SCORES = 10
MAX_BINS = 255
ROWS_TO_BIN_AT_ONCE = 1 << 14  # they stay in the processor's cache
MAX_ROWS_TO_BIN = 200_000  # from which the bins of a feature are determined
MAX_ROWS_TO_GROW = 200_000  # more rows per tree make it slower and not better


@dataclass(frozen=True)
class Round:
    """What boosting yields now and then: the trees so far, and how well they predict.

    It has the form of a Learner, and its classifier is made only when it is asked for.
    """

    number: int  # trees so far
    total: int  # trees at most
    loss: float  # bag loss of the training bags, per row
    score: float | None  # log-likelihood of the counts of the held-out bags, in nats per row
    best: int  # the number of trees with the best score so far; without held-out bags the latest
    best_score: float
    seconds: float  # since the last one
    trees: list[Tree]
    base: np.ndarray  # (k,)
    n_features: int

    @property
    def classifier(self) -> BoostedTrees:
        """The best number of trees as a module."""
        return as_module(self.trees[: self.best], self.base, self.n_features)

    def networks(self) -> list[nn.Module]:
        return [self.classifier]

    def losses(self, batch: Any, progress: float) -> Iterator[LossTerms]:
        return iter(())


def boost(
    bags: Bags,
    validation: Bags | None = None,
    *,
    rounds: int = MAX_ROUNDS,
    leaves: int = FEW_LEAVES,
    fraction: float = FRACTIONS_OF_ROWS[0],
    seed: int = 0,
    resume: Sequence[Tree] = (),
) -> Generator[Round, None, Round]:
    """Add trees, and yield after every ten rounds; the last round is also returned.

    Parameters
    ----------
    bags : Bags
        Rows of numbers of any scale. The proportions of all bags must be known.
    validation : Bags, optional
        Held-out bags with known proportions. Boosting ends when the likelihood of their counts has not
        improved for 100 rounds, and the best number of trees, at least 50, is kept.
    rounds : int, default=600
        Trees at most.
    leaves : int, default=8
        Leaves of a tree at most. More leaves learn more complex interactions of features, and overfit sooner.
    fraction : float, default=0.7
        Of the rows, on which the structure of a tree is grown. Its leaf values follow from all rows.
    seed : int, default=0
        Determines on which rows and features each tree is grown.
    resume : sequence of Tree, optional
        The trees of a round that was yielded before, after which boosting continues with the same bits.
    """
    random = np.random.default_rng(derive_seed(seed, "trees"))
    x = as_rows(bags.x)
    edges = bin_edges(x, random)
    n_bins = [len(each) + 1 for each in edges]
    state = Boosting(apply_bins(x, edges), bags, n_bins, leaves, fraction, random)
    held_out = None if validation is None else HeldOut(validation, edges, state.base)
    trees: list[Tree] = []
    best = 0
    best_score = -np.inf
    started = time.perf_counter()
    resume = resume[:rounds]
    for number in range(1, rounds + 1):
        saved = resume[number - 1] if number <= len(resume) else None
        tree = state.add_tree(edges) if saved is None else state.replay(saved, edges)
        trees.append(tree)
        score = None
        if held_out is not None:
            held_out.add(tree)
        if number % ROUNDS_BETWEEN_SCORES and number < rounds:
            continue
        if held_out is None:
            best = number
        else:
            score = held_out.score()
            if number <= MIN_ROUNDS or score > best_score:
                best, best_score = number, score
        if number < len(resume):
            continue
        now = time.perf_counter()
        found = Round(
            number=number,
            total=rounds,
            loss=state.loss(),
            score=score,
            best=best,
            best_score=best_score,
            seconds=now - started,
            trees=trees,
            base=state.base,
            n_features=x.shape[1],
        )
        started = now
        if number > len(resume):
            yield found
        if number >= best + PATIENCE:
            break
    return found


class Boosting:
    """Scores of the training rows, and how to improve them by one more tree."""

    def __init__(
        self,
        bins: np.ndarray,
        bags: Bags,
        n_bins: list[int],
        leaves: int,
        fraction: float,
        random: np.random.Generator,
    ) -> None:
        self.bins = bins
        self.fraction = fraction
        self.random = random
        self.sizes = bags.sizes.numpy()
        self.start = np.concatenate([[0], np.cumsum(n_bins)])
        self.base = bags.overall.clamp_min(0.5 / len(bags.x)).log().numpy()
        proportions = bags.proportions.double().numpy()
        self.proportions = np.ascontiguousarray(proportions[:, 1:] if bags.n_classes == 2 else proportions)
        n, classes = len(bins), self.proportions.shape[1]
        self.predicted = np.empty((len(self.sizes), classes))
        self.histograms = np.empty((leaves, self.start[-1], classes + 2))
        self.leaf = empty_array(n, np.min_scalar_type(leaves))
        self.leaf[:] = 0
        self.scores = empty_array((n, classes), np.float64)
        self.scores[:] = one_score_for_two(self.base)
        self.probabilities = empty_array((n, classes), np.float64)
        self.add(np.zeros((1, classes)))

    def add(self, delta: np.ndarray) -> None:
        """Add the values (leaves, classes) of the leaves to the scores, and predict the bags."""
        from apportion.methods import _tree_growth as kernels  # numba imports slowly

        kernels.add_and_predict(self.scores, delta, self.leaf, self.probabilities, self.sizes, self.predicted)

    def add_tree(self, edges: list[np.ndarray]) -> Tree:
        """Grow a tree on the residuals, solve its leaf values, and add them to the scores."""
        feature, cut, child, gain = self.grow()
        delta = self.leaf_values(feature, cut, child)
        self.add(delta)
        threshold = np.zeros(len(feature), np.float32)
        for node in np.flatnonzero(feature >= 0):
            threshold[node] = edges[feature[node]][cut[node]]
        value = np.hstack([np.zeros_like(delta), delta]) if delta.shape[1] == 1 else delta
        return Tree(feature, threshold, child, value, gain)

    def replay(self, tree: Tree, edges: list[np.ndarray]) -> Tree:
        """Add a tree that was grown before, and draw the random numbers that it took."""
        from apportion.methods import _tree_growth as kernels

        self.draw_rows_and_features()
        cut = np.zeros(len(tree.feature), np.int32)
        for node in np.flatnonzero(tree.feature >= 0):
            cut[node] = np.searchsorted(edges[tree.feature[node]], tree.threshold[node])
        kernels.find_leaves(self.bins, tree.feature, cut, tree.child, self.leaf)
        self.add(np.ascontiguousarray(tree.value[:, 1:] if self.scores.shape[1] == 1 else tree.value))
        return tree

    def grow(self) -> tuple[np.ndarray, ...]:
        """The structure of a tree, grown on some of the rows and features."""
        from apportion.methods import _tree_growth as kernels

        rows, features = self.draw_rows_and_features()
        residuals, weights = self.compare(rows)
        nodes = 2 * len(self.histograms) - 1
        feature, cut, child = (np.zeros(nodes, np.int32) for _ in range(3))
        gain = np.zeros(nodes)
        n_nodes = kernels.grow(
            np.take(self.bins, rows, 0), self.start, features, residuals, weights,
            np.arange(len(rows), dtype=np.int32), rows_per_leaf(len(self.bins)), self.histograms, feature,
            cut, child, gain,
        )  # fmt: skip
        return feature[:n_nodes], cut[:n_nodes], child[:n_nodes], gain[:n_nodes]

    def draw_rows_and_features(self) -> tuple[np.ndarray, np.ndarray]:
        """On which a tree is grown."""
        n, d = self.bins.shape
        rows = self.draw_rows(min(round(self.fraction * n), MAX_ROWS_TO_GROW))
        n_features = max(FEWEST_FEATURES, round(FRACTION_OF_FEATURES * d))
        features = np.sort(self.random.permutation(d)[:n_features])
        return rows, features

    def draw_rows(self, n_rows: int) -> np.ndarray:
        """About `n_rows` of the rows, in ascending order."""
        # float32 random numbers below a fraction are faster than a choice without replacement
        n = len(self.bins)
        drawn = [
            rows.start + np.flatnonzero(self.random.random(rows.stop - rows.start, np.float32) < n_rows / n)
            for rows in pieces(n)
        ]
        return np.concatenate(drawn)

    def compare(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Residuals (rows, classes) and weights (rows,) of some rows in ascending order, float32."""
        from apportion.methods import _tree_growth as kernels

        residuals = np.empty((len(rows), self.proportions.shape[1]), np.float32)
        weights = np.empty(len(rows), np.float32)
        kernels.compare_bags(
            self.probabilities, self.sizes, self.proportions, self.predicted, rows, residuals, weights
        )
        return residuals, weights

    def leaf_values(self, feature: np.ndarray, cut: np.ndarray, child: np.ndarray) -> np.ndarray:
        """Equation (3), times the rate: (leaves, classes). Finds the leaves of all rows."""
        from apportion.methods import _tree_growth as kernels

        leaves = int((feature < 0).sum())
        classes = self.proportions.shape[1]
        gram = np.zeros((classes, leaves, leaves))
        right = np.zeros((classes, leaves))
        information = np.zeros(classes)
        kernels.find_leaves(self.bins, feature, cut, child, self.leaf)
        kernels.leaf_equations(
            self.probabilities,
            self.leaf,
            self.sizes,
            self.proportions,
            self.predicted,
            gram,
            right,
            information,
        )
        ridge = RIDGE * information / leaves + kernels.TINY
        gram += ridge[:, None, None] * np.eye(leaves)
        delta = np.linalg.solve(gram, right[:, :, None])[:, :, 0].T
        return RATE * np.ascontiguousarray(np.clip(delta, -LARGEST_STEP, LARGEST_STEP))

    def loss(self) -> float:
        """The bag loss per row."""
        predicted = self.predicted
        proportions = self.proportions
        terms = proportions * np.log(predicted)
        if proportions.shape[1] == 1:
            terms = terms + (1 - proportions) * np.log1p(-predicted)
        return -float((self.sizes[:, None] * terms).sum() / self.sizes.sum())


class HeldOut:
    """Bags that are not learned from, and their scores so far."""

    def __init__(self, bags: Bags, edges: list[np.ndarray], base: np.ndarray) -> None:
        self.bags = bags
        self.x = as_rows(bags.x)
        self.logits = np.tile(base, (len(self.x), 1))

    def add(self, tree: Tree) -> None:
        from apportion.methods import _tree_growth as kernels

        for rows in pieces(len(self.x)):
            leaf = np.empty(rows.stop - rows.start, np.int32)
            kernels.find_leaves(self.x[rows], tree.feature, tree.threshold, tree.child, leaf)
            self.logits[rows] += tree.value[leaf]

    def score(self) -> float:
        """The log-likelihood of the counts, in nats per row."""
        log_probs = torch.from_numpy(self.logits).log_softmax(1)
        total = count_log_likelihood(log_probs, self.bags.sizes, self.bags.proportions).sum()
        return float(total) / len(self.x)


# --- features


def as_rows(x: Tensor) -> np.ndarray:
    """Instances as rows of numbers, (n, d) float32."""
    return np.ascontiguousarray(x.flatten(1).float().numpy())


def bin_edges(x: np.ndarray, random: np.random.Generator) -> list[np.ndarray]:
    """Between the bins of every feature: a bin per value or, of more than 255, about as many rows in each."""
    if len(x) > MAX_ROWS_TO_BIN:
        x = x[np.sort(random.choice(len(x), MAX_ROWS_TO_BIN, replace=False))]
    edges = []
    for column in x.T:
        values = np.unique(column)
        if len(values) > MAX_BINS:
            inner = np.linspace(0, 1, MAX_BINS + 1)[1:-1]
            edges.append(np.unique(np.quantile(column, inner, method="lower")))
            continue
        middle = values[:-1] + (values[1:] - values[:-1]) / 2  # the sum could overflow
        edges.append(np.minimum(middle, np.nextafter(values[1:], values[:-1])))
    return edges


def apply_bins(x: np.ndarray, edges: list[np.ndarray]) -> np.ndarray:
    """The bin of each value, (n, d) bytes: the first whose upper edge is not below it."""
    bins = empty_array(x.shape, np.uint8)
    for rows in pieces(len(x), ROWS_TO_BIN_AT_ONCE):
        columns = np.ascontiguousarray(x[rows].T)
        for f, edge in enumerate(edges):
            bins[rows, f] = np.searchsorted(edge, columns[f])
    return bins


def one_score_for_two(logits: np.ndarray) -> np.ndarray:
    """Of two classes the difference of their logits; of more all of them."""
    return logits[1:] - logits[:1] if len(logits) == 2 else logits


def rows_per_leaf(n: int) -> int:
    """The fewest rows of a leaf, on which a tree is grown."""
    return max(2, min(ROWS_PER_LEAF, n // 50))

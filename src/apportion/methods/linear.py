"""Linear model: multinomial logistic regression on the bag loss, solved to convergence.

    minimize  1/N Σ_b n_b CE(π_b, p̂_b) + l2/2 ‖W‖²,    p̂_b = mean over the rows of bag b of softmax(W x + β)

If every bag is one row, this is scikit-learn's logistic regression with C = 1 / (N l2). The intercept β
starts at the logarithm of the overall shares and is not penalized. docs/methods/linear.md describes the
method.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from torch import nn

from apportion._scratch import pieces
from apportion.bags.bags import Bags, bag_slices
from apportion.methods.count_likelihood import count_log_likelihood

PENALTIES = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)  # tried in this order
USUAL_PENALTY = 1e-3  # where no bags can be held out
ROWS_AT_ONCE = 1 << 13  # their probabilities stay in the processor's cache
MOST_ROWS_AT_ONCE = 1 << 18  # of a bag that is larger
MAX_ITERATIONS = 1000


class Penalty(NamedTuple):
    """A penalty, the model with it, and how well that predicts held-out bags."""

    l2: float
    model: nn.Linear
    score: float  # log-likelihood of the counts, in nats per row


def fit_linear(bags: Bags, l2: float = USUAL_PENALTY, start: nn.Linear | None = None) -> nn.Linear:
    """The linear model with the smallest penalized bag loss, float32.

    Parameters
    ----------
    bags : Bags
        Rows of numbers, standardized. The proportions of all bags must be known.
    l2 : float, default=1e-3
        Strength of the penalty on the weights, per row.
    start : nn.Linear, optional
        Where the solver starts, such as the model for another penalty.
    """
    model = initial_model(bags) if start is None else start
    solution = minimize(
        lambda weights: bag_loss(weights, bags, l2),
        _as_vector(model),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": MAX_ITERATIONS, "maxcor": 20, "ftol": 1e-10, "gtol": 1e-6},
    )
    return _as_module(solution.x, bags.n_classes)


def try_penalties(
    training: Bags,
    validation: Bags,
    penalties: Sequence[float] = PENALTIES,
    *,
    tried: Sequence[Penalty] = (),
) -> Iterator[Penalty]:
    """Yield penalties with the likelihood of the counts of `validation`.

    The penalties are tried in turn, strongest first, each from the solution of the one before, until two in
    a row are worse than the best. Those in `tried` have been yielded before, by an earlier process.
    """
    found = None
    best = -math.inf
    worse = 0
    for number, l2 in enumerate(penalties):
        if number < len(tried):
            found = tried[number]
        else:
            model = fit_linear(training, l2, None if found is None else found.model)
            found = Penalty(l2, model, score_of_linear(model, validation))
            yield found
        worse = 0 if found.score > best else worse + 1
        best = max(best, found.score)
        if worse == 2:
            return


def score_of_linear(model: nn.Linear, bags: Bags) -> float:
    """The log-likelihood of the counts, in nats per row."""
    with torch.no_grad():
        log_probs = model(bags.x.float()).double().log_softmax(1)
    total = count_log_likelihood(log_probs, bags.sizes, bags.proportions, bags.weight).sum()
    return float(total / bags.mass.sum())


def initial_model(bags: Bags) -> nn.Linear:
    """A model that predicts the overall shares for every row. A class without rows counts as half a row."""
    model = without_weights(bags.x.shape[1], bags.n_classes)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(bags.overall.clamp_min(0.5 / len(bags.x)).log())
    return model


def bag_loss(weights: np.ndarray, bags: Bags, l2: float) -> tuple[float, np.ndarray]:
    """The penalized bag loss and its gradient. `weights` are W and β side by side, (k, d + 1), flattened.

    With the ratios R_b = π_b / p̂_b, the derivative by the logit of class j of a row in bag b is

        p_j (Σ_c p_c R_bc - R_bj)

    so a row is pushed toward the classes of which its bag has too few, as far as it is undecided.
    """
    k = bags.n_classes
    W = weights.reshape(k, -1)
    gradient = np.zeros_like(W)
    loss = 0.0
    sizes = bags.sizes.numpy()
    mass = bags.mass.numpy()
    proportions = bags.proportions.numpy().astype(np.float64).T  # (k, m)
    for some, rows in bag_slices(bags.sizes, ROWS_AT_ONCE):
        row_weight = None if bags.weight is None else bags.weight[rows].double().numpy()
        x = bags.x[rows].numpy()
        parts = [x[part] for part in pieces(len(x), MOST_ROWS_AT_ONCE)]  # one, but of a very large bag
        if len(parts) == 1:
            parts = [x.astype(np.float64)]
        n = sizes[some]
        # (k, rows): sums over classes run along rows, which is fast
        logits = np.hstack([W[:, :-1] @ part.astype(np.float64, copy=False).T for part in parts])
        logits += W[:, -1:]
        logits -= logits.max(0)
        p = np.exp(logits, out=logits)
        p /= p.sum(0)
        weighted = p if row_weight is None else p * row_weight
        predicted = np.add.reduceat(weighted, n.cumsum() - n, axis=1) / mass[some]
        predicted = np.maximum(predicted, 1e-300)
        loss -= float((mass[some] * proportions[:, some] * np.log(predicted)).sum())
        ratio = np.repeat(proportions[:, some] / predicted, n, axis=1)
        toward = p * ratio
        toward -= p * toward.sum(0)
        if row_weight is not None:
            toward *= row_weight
        columns = np.array_split(toward, np.cumsum([len(part) for part in parts[:-1]]), axis=1)
        for own, part in zip(columns, parts, strict=True):
            gradient[:, :-1] -= own @ part.astype(np.float64, copy=False)
        gradient[:, -1] -= toward.sum(1)
    loss /= mass.sum()
    gradient /= mass.sum()
    loss += l2 / 2 * float(np.square(W[:, :-1]).sum())
    gradient[:, :-1] += l2 * W[:, :-1]
    return loss, gradient.ravel()


def _as_vector(model: nn.Linear) -> np.ndarray:
    weights = torch.cat([model.weight, model.bias.unsqueeze(1)], 1)
    return weights.detach().double().numpy().ravel()


def _as_module(weights: np.ndarray, n_classes: int) -> nn.Linear:
    W = torch.from_numpy(weights.reshape(n_classes, -1)).float()
    model = without_weights(W.shape[1] - 1, n_classes)
    with torch.no_grad():
        model.weight.copy_(W[:, :-1])
        model.bias.copy_(W[:, -1])
    return model.eval()


def without_weights(n_features: int, n_classes: int) -> nn.Linear:
    """Initial weights would be drawn from the generator of the whole process, and others may be training."""
    model = nn.utils.skip_init(nn.Linear, n_features, n_classes)
    assert isinstance(model, nn.Linear)  # noqa: S101
    return model

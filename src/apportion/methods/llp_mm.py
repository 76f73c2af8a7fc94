"""LLP-MM: match the class counts of small samples of every bag, not only their mean.

    L = 1/N Σ_bags n_i · 1/s Σ_{r ≤ s} CE( hypergeometric_r(bag i), predicted_r(bag i) )

Draw r of a bag's n rows without replacement. The bag's known counts give the distribution of the classes of
these r rows, a multivariate hypergeometric one. So do the predictions: it is the mean over all samples of r
rows of the distribution of the counts of independent rows. Order 1 is the proportion loss; higher orders also
see how certain the predictions are.

The predicted probabilities of order r are the coefficients of a polynomial in one variable per class, the
elementary symmetric polynomial e_r of q_j(z) = Σ_c f_c(x_j) z_c over the rows j of a bag. Newton's identities
give it from the power sums Σ_j q_j(z)^r, which take one pass over the rows.

"Learning from label proportions via moment matching" (LLP-MM), 2026.
"""

import math
from collections.abc import Iterator
from functools import cache
from itertools import combinations_with_replacement
from typing import NamedTuple

import torch
from torch import Tensor, nn

from apportion.bags.bags import BagBatch, exact_bag_means
from apportion.losses import mean_over_rows, proportion_losses
from apportion.methods.protocol import LossTerms
from apportion.methods.setup import bag_sizes_before_drawing

MAX_COUNT_VECTORS = 1000  # of the highest order by default: order 8 for two classes, 4 for ten, 1 for 50
TINY = 1e-12  # rounding errors of the sums are smaller


class LLPMM:
    """The cross-entropies of the counts of samples of 1, 2, …, `order` rows, with equal weights.

    There are (k + r - 1 choose r) count vectors of order r. By default (0) the order is the largest one up to
    8 with at most `MAX_COUNT_VECTORS` of them.
    """

    title = "LLP-MM"
    mean_terms = ("moments",)

    def __init__(self, classifier: nn.Module, order: int = 0) -> None:
        self.classifier = classifier
        self.order = order

    def networks(self) -> list[nn.Module]:
        return [self.classifier]

    def losses(self, batch: BagBatch, progress: float) -> Iterator[LossTerms]:
        logits = self.classifier(batch.x)
        order = self.order or default_order(batch.proportions.shape[1])
        yield {"moments": moment_loss(logits, batch.sizes, batch.proportions, order, batch.undrawn)}


def default_order(k: int) -> int:
    """The largest order up to 8 for which k classes have at most `MAX_COUNT_VECTORS` count vectors."""
    return max(r for r in range(1, 9) if r == 1 or math.comb(k + r - 1, r) <= MAX_COUNT_VECTORS)


def moment_loss(
    logits: Tensor, sizes: Tensor, proportions: Tensor, order: int, undrawn: float = 0.0
) -> Tensor:
    """The cross-entropy of the counts of samples of up to `order` rows, mean over the orders and over rows.

    A bag of n rows has orders up to n. Samples of the drawn rows are samples of the whole bag, so if a
    fraction `undrawn` was not drawn, the target is still that of the whole bag.
    """
    losses = proportion_losses(logits, sizes, proportions, undrawn)  # order 1
    if order > 1:
        precise = torch.float32 if logits.device.type == "mps" else torch.float64
        predicted = sample_distributions(logits.to(precise).softmax(1), sizes, order)
        whole = bag_sizes_before_drawing(sizes, undrawn)
        known = hypergeometric_distributions(proportions.to(precise), whole, order)
        for r in range(2, order + 1):
            loss = -(known[r] * predicted[r].clamp_min(TINY).log()).sum(1)
            losses = losses + loss.to(losses.dtype).where(sizes >= r, 0.0)
    return mean_over_rows(losses / sizes.clamp_max(order), sizes)


def sample_distributions(probabilities: Tensor, sizes: Tensor, order: int) -> list[Tensor]:
    """The predicted distributions of the counts of r rows of each bag, (b, count vectors), r = 0 … `order`.

    Probabilities (n, k) in float64. For bags of fewer than r rows, values are meaningless.
    """
    k = probabilities.shape[1]
    n = sizes.to(probabilities.dtype)
    power_sums = []
    monomials = torch.ones_like(probabilities[:, :1])
    for r in range(1, order + 1):
        vectors = count_vectors(k, r)
        # Π_c f_c^(a_c) of every row, from the monomials with one factor less
        monomials = monomials[:, vectors.parent.to(n.device)] * probabilities[:, vectors.last.to(n.device)]
        mean = exact_bag_means(monomials, sizes)
        power_sums.append(n.unsqueeze(1) * mean * vectors.multinomial.to(mean))
    distributions = [probabilities.new_ones(len(sizes), 1)]
    for r in range(1, order + 1):
        # Newton's identities, divided by (n choose r) so that the coefficients are probabilities
        total = probabilities.new_zeros(len(sizes), len(count_vectors(k, r).last))
        for i in range(1, r + 1):
            ratio = torch.ones_like(n)  # (n choose r - i) / (n choose r)
            for t in range(i):
                ratio = ratio * (r - t) / (n - r + 1 + t).clamp_min(1)
            sign = 1.0 if i % 2 else -1.0
            product = multiply(distributions[r - i], power_sums[i - 1], k, r - i, i)
            total = total + (sign / r * ratio).unsqueeze(1) * product
        distributions.append(total)
    return distributions


def hypergeometric_distributions(proportions: Tensor, sizes: Tensor, order: int) -> list[Tensor]:
    """The distributions of the counts of r rows drawn without replacement, as in `sample_distributions`.

    Proportions (b, k) and sizes (b,) give the counts of the bags. They need not be whole numbers, as
    proportions may be rounded or estimated.
    """
    counts = sizes.to(proportions.dtype).unsqueeze(1) * proportions
    falling = [torch.ones_like(counts)]  # N (N - 1) … (N - j + 1), by j
    for j in range(order):
        falling.append(falling[-1] * (counts - j).clamp_min(0))
    table = torch.stack(falling, 2)  # (b, k, order + 1)
    distributions = []
    for r in range(order + 1):
        vectors = count_vectors(proportions.shape[1], r)
        weights = vectors.multinomial.to(counts).repeat(len(counts), 1)
        for c, powers in enumerate(vectors.counts.to(counts.device).T):
            weights = weights * table[:, c, powers]
        distributions.append(weights / weights.sum(1, keepdim=True).clamp_min(TINY))
    return distributions


class CountVectors(NamedTuple):
    """All ways in which r rows can be of k classes."""

    counts: Tensor  # (v, k) how often each class occurs
    multinomial: Tensor  # (v,) the number of orders in which the rows can have these counts
    parent: Tensor  # (v,) the index of the vector of r - 1 rows without the last class
    last: Tensor  # (v,) the last class


@cache
def count_vectors(k: int, r: int) -> CountVectors:
    """The count vectors of r rows and k classes."""
    numbers = _numbers(k, r)
    parents = _numbers(k, r - 1) if r else {}
    counts = torch.tensor([[each.count(c) for c in range(k)] for each in numbers])
    orders = [math.factorial(r) // math.prod(math.factorial(n) for n in row) for row in counts.tolist()]
    return CountVectors(
        counts,
        torch.tensor(orders, dtype=torch.float64),
        torch.tensor([parents.get(each[:-1], 0) for each in numbers]),
        torch.tensor([each[-1] if each else 0 for each in numbers]),
    )


def multiply(one: Tensor, other: Tensor, k: int, r: int, s: int) -> Tensor:
    """The product of homogeneous polynomials of degrees r and s, given by their coefficients (b, v)."""
    index = _product_index(k, r, s).to(one.device)
    products = (one.unsqueeze(2) * other.unsqueeze(1)).flatten(1)
    result = one.new_zeros(len(one), len(count_vectors(k, r + s).last))
    return result.index_add(1, index, products)


@cache
def _product_index(k: int, r: int, s: int) -> Tensor:
    """For each pair of monomials of degrees r and s, the index of their product."""
    numbers = _numbers(k, r + s)
    pairs = [(one, other) for one in _numbers(k, r) for other in _numbers(k, s)]
    return torch.tensor([numbers[tuple(sorted(one + other))] for one, other in pairs])


@cache
def _numbers(k: int, r: int) -> dict[tuple[int, ...], int]:
    """The index of every sorted sequence of r of k classes."""
    return {each: i for i, each in enumerate(combinations_with_replacement(range(k), r))}

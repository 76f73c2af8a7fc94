"""Count likelihood: maximize the probability of the class counts of every bag.

    L = - 1/N Σ_bags log P(counts of the bag),   rows independent, row j of class c with probability f_c(x_j)

DLLP treats every row as a draw from the mean prediction of its bag. Here each row has its own probabilities:
the counts of a bag vary little if its predictions are certain and much if they are not, so no bag is fitted
more closely than chance allows. The exact sum over all labelings, a Poisson multinomial distribution, is
approximated by a saddlepoint. The method is new; docs/methods/counts.md derives it.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from apportion._device import send_to_device, start_copy_to_host
from apportion.bags.bags import BagBatch, bag_means, bag_slices, bag_sums
from apportion.errors import SettingsError
from apportion.losses import mean_over_rows
from apportion.methods.protocol import LossTerms
from apportion.transport import entropic_plan

TINY = 1e-30  # a normal float32, so that its logarithm is exact
MAX_CLASSES = 10_000  # of matrices with a number for every pair, 0.8 GB for one bag
MOST_ROWS = 1 << 20  # whose likelihood is computed at once
CELL_VARIANCE = 1 / 12  # variance of a uniform distribution over one whole count


class CountLikelihood:
    """The count likelihood alone, on batches of whole bags."""

    title = "count likelihood"

    def __init__(self, classifier: nn.Module) -> None:
        self.classifier = classifier

    def networks(self) -> list[nn.Module]:
        return [self.classifier]

    def losses(self, batch: BagBatch, progress: float) -> Iterator[LossTerms]:
        logits = self.classifier(batch.x)
        yield {"counts": count_loss(logits, batch.sizes, batch.proportions, batch.undrawn)}


def count_loss(
    logits: Tensor,
    sizes: Tensor,
    proportions: Tensor,
    undrawn: float = 0.0,
    on_host: Callable[[], Sequence[Tensor]] | None = None,
) -> Tensor:
    """Minus the log-likelihood of the counts up to a constant, mean over rows.

    The saddlepoint approximation holds for bags of any size; for a bag of one row it is cross-entropy. The
    saddlepoint is where predictions, shifted by one potential per class, have the observed counts: entropic
    transport with λ = 1. The log-likelihood has two terms: the size of the shift, KL(plan ‖ predictions), and
    the volume of the counts around it, given by the covariance of the plan. If only part of a bag was drawn
    (`undrawn`, as in `BagBatch`), the normal approximation is used instead.

    Transport is solved on the CPU. `on_host`, if given, waits for CPU copies of logits, sizes and proportions
    that were started earlier, and returns them.
    """
    if undrawn:
        return drawn_count_loss(logits, sizes, proportions, undrawn)
    if on_host is None:
        on_host = start_copy_to_host(logits.float(), sizes, proportions)
    host_logits, host_sizes, host_proportions = on_host()
    log_probs = logits.float().log_softmax(1)
    plan = entropic_plan(host_logits, host_sizes, host_proportions, reg=1.0).mass.float()
    plan = send_to_device(plan, logits.device)
    # the plan minimizes this divergence, so its own gradient vanishes here
    divergence = (plan * (plan.clamp_min(TINY).log() - log_probs)).sum(1)
    plan = differentiable_plan(plan, log_probs, sizes, proportions, host_sizes)
    covariance = 2 * math.pi * count_covariance(plan, host_sizes)
    # the volume is at least that of a cell of width one
    cell = torch.eye(plan.shape[1], device=covariance.device)
    factor = torch.linalg.cholesky_ex(cell + covariance)[0]
    log_volume = factor.diagonal(dim1=1, dim2=2).log().sum(1)
    return (divergence.sum() + log_volume.sum()) / sizes.sum()


def differentiable_plan(
    plan: Tensor, log_probs: Tensor, sizes: Tensor, proportions: Tensor, host_sizes: Tensor
) -> Tensor:
    """The plan (N, k) as a differentiable function of `log_probs`: one Newton step from the solution."""
    scores = plan.clamp_min(TINY).log() + (log_probs - log_probs.detach())
    excess = sizes.unsqueeze(1) * (bag_means(scores.softmax(1), sizes) - proportions)
    covariance = count_covariance(plan, host_sizes)
    # The covariance is singular: equal potentials for all classes change nothing, nor does the potential of a
    # class without mass. The two added terms fix this.
    k = plan.shape[1]
    regularizer = 1 / k + 1e-4 * torch.eye(k, device=covariance.device)
    potentials = torch.linalg.solve_ex(covariance + regularizer, excess.unsqueeze(2))[0].squeeze(2)
    per_row = torch.repeat_interleave(potentials, sizes, 0, output_size=len(scores))
    return (scores - per_row).softmax(1)


def count_covariance(probs: Tensor, sizes: Tensor, weight: Tensor | None = None) -> Tensor:
    """The covariance matrix of the counts of each bag, (m, k, k): Σ_j w_j (diag(p_j) - p_j p_j')."""
    k = probs.shape[1]
    if k > MAX_CLASSES:
        raise SettingsError(
            f"the likelihood of counts needs a matrix of {k:,} × {k:,} numbers for every bag; merge classes,"
            " or use another method or score, such as 'dllp' or 'cross_entropy'"
        )
    sizes = sizes.cpu()
    if weight is not None:
        weight = weight.to(probs).unsqueeze(1)
        products = (probs.unsqueeze(2) * probs.unsqueeze(1) * weight.unsqueeze(2)).flatten(1)
        second = bag_sums(products, sizes.to(probs.device)).view(len(sizes), *probs.shape[1:] * 2)
        return torch.diag_embed(bag_sums(probs * weight, sizes.to(probs.device))) - second
    if bool((sizes == sizes[0]).all()):
        return _covariance_of_equal_bags(probs.view(len(sizes), -1, probs.shape[1]))
    # Bags whose sizes are within a factor of two are padded with zeros to one size. This takes at most twice
    # the rows, and is up to 50 times as fast as one bag after the other.
    start = sizes.cumsum(0) - sizes
    octave = sizes.log2().floor()
    matrices = []
    order = []
    for value in octave.unique():
        which = (octave == value).nonzero().squeeze(1)
        place = torch.arange(int(sizes[which].max()))
        row = (start[which].unsqueeze(1) + place).clamp_max(len(probs) - 1).to(probs.device)
        inside = (place < sizes[which].unsqueeze(1)).to(probs)
        rows = probs.index_select(0, row.flatten()).view(*row.shape, -1)
        matrices.append(_covariance_of_equal_bags(rows * inside.unsqueeze(2)))
        order.append(which)
    return torch.cat(matrices)[torch.cat(order).argsort().to(probs.device)]


def _covariance_of_equal_bags(rows: Tensor) -> Tensor:
    """(m, k, k) from the probabilities of bags of one size, (m, n, k); rows of zeros add nothing."""
    return torch.diag_embed(rows.sum(1)) - rows.mT @ rows


def drawn_count_loss(logits: Tensor, sizes: Tensor, proportions: Tensor, undrawn: float) -> Tensor:
    """`count_loss` by the normal approximation, for bags of which a fraction `undrawn` was not drawn.

    The counts of the drawn rows are unknown. They vary around n times the proportions like draws without
    replacement, which adds to the covariance. A bag of a single row in the same batch is complete, and its
    loss is cross-entropy.
    """
    probs = logits.float().softmax(1)
    n = sizes.float().view(-1, 1, 1)
    draws = torch.diag_embed(proportions) - proportions.unsqueeze(2) * proportions.unsqueeze(1)
    covariance = count_covariance(probs, sizes.cpu()) + n * undrawn * draws
    predicted = bag_means(probs, sizes)
    bag_loss = -normal_log_density(n.squeeze(2) * (proportions - predicted), covariance) / n.flatten()
    row_loss = -(proportions * predicted.clamp_min(TINY).log()).sum(1)
    single_row = (sizes == 1) & (len(sizes) > 1)
    return mean_over_rows(torch.where(single_row, row_loss, bag_loss), sizes)


def count_log_likelihood(
    log_probs: Tensor, sizes: Tensor, proportions: Tensor, weight: Tensor | None = None
) -> Tensor:
    """The log-probability of the counts of each bag, (m,) float64, by the normal approximation.

    The counts of n independent rows have the sum of their probabilities as mean and the sum of their
    covariances diag(p) - pp' as covariance. A row of weight 3 is three independent rows.
    """
    slices = list(bag_slices(sizes.cpu())) if len(log_probs) > MOST_ROWS else []
    if len(slices) > 1:  # to save memory
        return torch.cat(
            [
                count_log_likelihood(
                    log_probs[rows], sizes[some], proportions[some], None if weight is None else weight[rows]
                )
                for some, rows in slices
            ]
        )
    probs = log_probs.double().exp()
    n = sizes.double().unsqueeze(1)
    if weight is not None:
        n = bag_sums(weight.double().unsqueeze(1), sizes)
    difference = n * (proportions.double() - bag_means(probs, sizes, weight))
    return normal_log_density(difference, count_covariance(probs, sizes, weight))


def normal_log_density(difference: Tensor, covariance: Tensor) -> Tensor:
    """The log-probability (m,) of counts that differ from their means by `difference` (m, k).

    Each count is a cell of width one, and the total of the counts is fixed.
    """
    k = difference.shape[1]
    cell = CELL_VARIANCE * torch.eye(k, dtype=difference.dtype, device=difference.device)
    factor = torch.linalg.cholesky_ex(covariance + cell)[0]  # checking it would wait for the device
    solved = torch.linalg.solve_triangular(factor, difference.unsqueeze(2), upper=False)
    distance = solved.square().sum((1, 2))
    # The counts always sum to n: the direction of all classes together, whose variance is the cell's, is left
    # out. Across it, a cell of whole counts is √k wide.
    log_det = 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1) - math.log(CELL_VARIANCE) - math.log(k)
    return -(distance + log_det + (k - 1) * math.log(2 * math.pi)) / 2

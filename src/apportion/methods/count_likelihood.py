"""How likely the counts of bags are, if rows are independent and have the predicted probabilities.

CountLikelihood: the likelihood of every bag's counts, where DLLP has a cross-entropy of its proportions.

DLLP takes every row for a draw from the mean prediction of its bag. Here each row has its own: a bag of sure
predictions has little room, and one of vague ones much, so that no bag is fitted better than chance allows.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from apportion._device import send_to_device, start_copy_to_host
from apportion.bags.bags import BagBatch, bag_means
from apportion.losses import mean_over_rows
from apportion.methods.protocol import LossTerms
from apportion.transport import entropic_plan

TINY = 1e-30  # whose logarithm float32 still holds
CELL = 1 / 12  # variance of a number spread over the width of one: counts are whole


def count_log_likelihood(log_probs: Tensor, sizes: Tensor, proportions: Tensor) -> Tensor:
    """(m,) the logarithm of the probability of each bag's counts (n times its shares), by the normal law.

    The counts of n independent rows have the sum of their probabilities as mean, and the sum of their
    covariances diag(p) - pp' as covariance. So probabilities that are surer are expected to be nearer: the
    same shares from sure predictions are worth more than from vague ones, and being sure and wrong is dear.
    """
    probs, n = log_probs.double().exp(), sizes.double().unsqueeze(1)
    return normal_log_density(n * (proportions.double() - bag_means(probs, sizes)), covariances(probs, sizes))


def count_loss(
    logits: Tensor,
    sizes: Tensor,
    proportions: Tensor,
    left: float = 0.0,
    on_host: Callable[[], Sequence[Tensor]] | None = None,
) -> Tensor:
    """Minus the log-likelihood of a bag's counts but for a constant, mean over rows.

    By the saddlepoint, which holds for bags of any size: of a bag of one it is cross-entropy. The point is
    where predictions, each class raised by a potential, have the counts: entropic transport with λ = 1. How
    far they are moved, KL(plan | predictions), and how much room there is, the covariance of the plan, are
    the likelihood. Of a bag of which only a share was drawn, the normal law takes its place. Transport
    is the host's: `on_host` gives logits, sizes and proportions there, if they are on their way already.
    `left` is a BagBatch's.
    """
    if left:
        return drawn_count_loss(logits, sizes, proportions, left)
    there, host, shares = (on_host or start_copy_to_host(logits.float(), sizes, proportions))()
    log_probs = logits.float().log_softmax(1)
    fixed = send_to_device(entropic_plan(there, host, shares, reg=1.0).mass.float(), logits.device)
    moved = (fixed * (fixed.clamp_min(TINY).log() - log_probs)).sum(1)  # the plan is where this is least
    plan = following(fixed, log_probs, sizes, proportions, host)
    k, room = plan.shape[1], 2 * math.pi * covariances(plan, host)
    # a cell of width one is the least room that there is
    factor = torch.linalg.cholesky_ex(torch.eye(k, device=room.device) + room)[0]
    volume = factor.diagonal(dim1=1, dim2=2).log().sum(1)
    return (moved.sum() + volume.sum()) / sizes.sum()


def following(fixed: Tensor, log_probs: Tensor, sizes: Tensor, proportions: Tensor, host: Tensor) -> Tensor:
    """The plan, now with its gradient: one step of Newton's method from where it is solved already."""
    change = log_probs - log_probs.detach()
    scores = fixed.clamp_min(TINY).log() + change
    off = sizes.unsqueeze(1) * (bag_means(scores.softmax(1), sizes) - proportions)
    # all potentials raised alike change nothing, nor does that of a class without mass
    room = covariances(fixed, host)
    ground = 1 / len(room[0]) + 1e-4 * torch.eye(len(room[0]), device=room.device)
    potentials = torch.linalg.solve_ex(room + ground, off.unsqueeze(2))[0].squeeze(2)
    raised = torch.repeat_interleave(potentials, sizes, 0, output_size=len(scores))
    return (scores - raised).softmax(1)


def covariances(probs: Tensor, sizes: Tensor) -> Tensor:
    """(m, k, k) of the counts of each bag: the sum of diag(p) - pp' over its rows; lengths are the host's."""
    sizes = sizes.cpu()
    if bool((sizes == sizes[0]).all()):
        return spread(probs.view(len(sizes), -1, probs.shape[1]))
    # bags within a factor of two are filled up with zeros to one size, which is up to fifty times as fast as
    # one bag after the other, and takes no more than twice the rows
    start, octave = sizes.cumsum(0) - sizes, sizes.log2().floor()
    parts, order = [], []
    for which in [(octave == one).nonzero().squeeze(1) for one in octave.unique()]:
        place = torch.arange(int(sizes[which].max()))
        row = (start[which].unsqueeze(1) + place).clamp_max(len(probs) - 1).to(probs.device)
        there = (place < sizes[which].unsqueeze(1)).to(probs)
        rows = probs.index_select(0, row.flatten()).view(*row.shape, -1)
        parts.append(spread(rows * there.unsqueeze(2)))
        order.append(which)
    return torch.cat(parts)[torch.cat(order).argsort().to(probs.device)]


def spread(rows: Tensor) -> Tensor:
    """(m, k, k) the sum of diag(p) - pp' over each bag's rows (m, n, k); rows of zeros add nothing."""
    return torch.diag_embed(rows.sum(1)) - rows.mT @ rows


def drawn_count_loss(logits: Tensor, sizes: Tensor, proportions: Tensor, left: float) -> Tensor:
    """The same by the normal law, for bags of which a share `left` was not drawn.

    The counts of what was drawn are not known: they spread about n times the shares as draws without
    replacement do, which is added to the covariance. A lone row beside the bag is whole: cross-entropy.
    """
    probs, n = logits.float().softmax(1), sizes.float().view(-1, 1, 1)
    drawn = torch.diag_embed(proportions) - proportions.unsqueeze(2) * proportions.unsqueeze(1)
    covariance = covariances(probs, sizes.cpu()) + n * left * drawn
    predicted = bag_means(probs, sizes)
    drawn_loss = -normal_log_density(n.squeeze(2) * (proportions - predicted), covariance) / n.flatten()
    row_loss = -(proportions * predicted.clamp_min(TINY).log()).sum(1)
    return mean_over_rows(torch.where((sizes == 1) & (len(sizes) > 1), row_loss, drawn_loss), sizes)


def normal_log_density(off: Tensor, covariance: Tensor) -> Tensor:
    """(m,) of counts that are `off` (m, k) their means, each a cell of width one, of a fixed total."""
    k = off.shape[1]
    cell = CELL * torch.eye(k, dtype=off.dtype, device=off.device)
    factor = torch.linalg.cholesky_ex(covariance + cell)[0]  # unchecked: a check would wait for the device
    distance = torch.linalg.solve_triangular(factor, off.unsqueeze(2), upper=False).square().sum((1, 2))
    # all classes together never differ from n: that direction, whose variance is the cell's, is left out, and
    # across it a cell of whole counts is as wide as the root of k
    volume = 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1) - math.log(CELL) - math.log(k)
    return -(distance + volume + (k - 1) * math.log(2 * math.pi)) / 2


class CountLikelihood:
    def __init__(self, classifier: nn.Module) -> None:
        self.classifier = classifier

    def networks(self) -> list[nn.Module]:
        return [self.classifier]

    def losses(self, batch: BagBatch, progress: float) -> Iterator[LossTerms]:
        logits = self.classifier(batch.x)
        yield {"counts": count_loss(logits, batch.sizes, batch.proportions, batch.left)}

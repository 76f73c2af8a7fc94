"""Two views: labels by transport from a weak view of each instance, taught to a strong view of it.

Beside them stand the bag loss, of the weak view, and for the first half a contrast that draws the two views
of an instance together and pushes other instances apart, which is what lets large bags begin at all.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from apportion.bags import BagBatch
from apportion.learner import Terms, still_batchnorm
from apportion.likelihood import count_loss
from apportion.losses import cross_entropy, proportion_loss
from apportion.remembered import Remembered
from apportion.speed import fetched, sent
from apportion.transport import certified, whole_counts

OnHost = Callable[[], Sequence[Tensor]]  # logits, sizes and proportions of a batch, once they are there


class TwoViews:
    """The classifier is `average`, a running mean of the weights of `network`, which is what trains.

    Both are nn.Sequential(features, head); `projector` maps features to where they are contrasted. A batch's
    x is (n, 2, ...): weak and strong. The bag loss, DLLP's or the likelihood of `counts`, has a weight that
    falls from `bag_first` to `bag_last`. With bags `remembered`, batches are those of `scattered(bags)`.
    """

    def __init__(
        self,
        network: nn.Module,
        average: nn.Module,
        projector: nn.Module,
        bag_first: float = 8.0,
        bag_last: float = 2.0,
        contrast: float = 1.0,
        temperature: float = 0.2,
        momentum: float = 0.99,
        transport: bool = True,
        counts: bool = False,
        remembered: Remembered | None = None,
    ) -> None:
        if remembered is not None and (counts or transport != remembered.priced):
            raise ValueError("remembered bags know no likelihood of counts, and have prices for transport")
        self.classifier = average.requires_grad_(False)
        self.network = in_two_parts(network)
        kept = [network, projector, average, *([] if remembered is None else [remembered])]
        self.player = nn.ModuleList(kept)  # one optimiser; all of it is saved
        self.projector = projector
        self.bag_weights = bag_first, bag_last
        self.contrast = contrast
        self.temperature = temperature
        self.momentum = momentum
        self.transport = transport  # False: the largest class is the label, whatever the proportions
        self.counts = counts
        self.remembered = remembered

    def players(self) -> list[nn.Module]:
        return [self.player]

    def steps(self, batch: BagBatch, progress: float) -> Iterator[Terms]:
        (features, head), (weak, strong) = self.network, batch.x.unbind(1)
        plain = features(weak)
        logits = head(plain)
        to_host = self.remembered is None and (self.transport or self.counts)
        asked = fetched(logits.float(), batch.sizes, batch.proportions) if to_host else None
        with still_batchnorm(self.network):  # the statistics used at test time are those of weak views
            moved = features(strong)
        answers, (first, last) = head(moved), self.bag_weights
        bag_weight = first + (last - first) * progress
        terms = {"proportion": bag_weight * self.bag_loss(logits, batch, asked)}
        if progress < 0.5:
            alike = contrast(self.projector(plain), self.projector(moved), self.temperature)
            terms["contrast"] = self.contrast * (1 - 2 * progress) * alike
        # last: while transport is under way on the host, the device has all of the above to do
        labels, weights = self.labels(logits.detach(), batch, asked)
        terms["labels"] = (weights * cross_entropy(answers, labels)).mean()
        yield terms
        follow(self.classifier, self.network, self.momentum)
        if self.remembered is not None:
            self.remembered.remember(logits, batch.row)

    def bag_loss(self, logits: Tensor, batch: BagBatch, on_host: OnHost | None) -> Tensor:
        if self.remembered is not None:
            return self.remembered.loss(logits, batch.row)
        bags = logits, batch.sizes, batch.proportions, batch.left
        return count_loss(*bags, on_host=on_host) if self.counts else proportion_loss(*bags)

    def labels(self, logits: Tensor, batch: BagBatch, on_host: OnHost | None) -> tuple[Tensor, Tensor]:
        if self.transport and on_host is not None:
            return sure_labels(logits, batch.sizes, on_host)
        scores = logits.float() if self.remembered is None else self.remembered.at_prices(logits, batch.row)
        return F.one_hot(scores.argmax(1), scores.shape[1]).to(scores), trust(scores)


def in_two_parts(network: nn.Module) -> nn.Sequential:
    parts = list(network) if isinstance(network, nn.Sequential) else []
    if not isinstance(network, nn.Sequential) or len(parts) != 2 or not isinstance(parts[1], nn.Linear):
        raise TypeError(
            "two views contrast the features before the last layer: pass a network of two parts, "
            "nn.Sequential(features, head) with a linear head, or name another first stage, such as dllp"
        )
    return network


def sure_labels(scores: Tensor, sizes: Tensor, on_host: OnHost) -> tuple[Tensor, Tensor]:
    """Exact transport labels (n, k) of a batch of whole bags, and how far to trust each, (n,).

    Transport is the host's: `on_host` gives scores, sizes and proportions there. The prices that prove the
    labels are taken off: the label is the largest class that is left, in doubt where another is as cheap.
    """
    there, lengths, proportions = on_host()
    found = certified(there, lengths, whole_counts(proportions, lengths))
    classes, prices = (sent(each, scores.device) for each in (found.classes, found.prices.float()))
    scores = scores.float() - prices.repeat_interleave(sizes, 0, output_size=len(scores))
    return F.one_hot(classes, scores.shape[1]).to(scores), trust(scores)


def trust(scores: Tensor) -> Tensor:
    """How far to trust the largest class of each row, exp(-10 H²), (n,): H is its entropy over log k."""
    doubt = torch.special.entr(scores.softmax(1)).sum(1) / math.log(max(2, scores.shape[1]))
    return torch.exp(-10 * doubt.square())


def contrast(one: Tensor, other: Tensor, temperature: float) -> Tensor:
    """InfoNCE in both directions: of all instances in the batch, which is the other view of this one?"""
    one, other = F.normalize(one.float(), dim=1), F.normalize(other.float(), dim=1)
    alike = one @ other.T / temperature
    same = torch.arange(len(one), device=one.device)
    return (F.cross_entropy(alike, same) + F.cross_entropy(alike.T, same)) / 2


@torch.no_grad()
def follow(mean: nn.Module, value: nn.Module, momentum: float) -> None:
    """One step of the running means of a network's weights and statistics, in place and all at once."""
    means, values = (
        [each for each in (*net.parameters(), *net.buffers()) if each.is_floating_point()]
        for net in (mean, value)
    )
    torch._foreach_lerp_(means, values, 1 - momentum)

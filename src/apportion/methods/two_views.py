"""Two views: labels by transport from a weak view of each instance, taught to a strong view of it.

Beside them stand the bag loss, of the weak view, and for the first half a contrast that draws the two views
of an instance together and pushes other instances apart, which is what lets large bags begin at all.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from apportion._device import Quick, identity, send_to_device, start_copy_to_host
from apportion.bags.bags import BagBatch
from apportion.losses import proportion_loss
from apportion.methods.count_likelihood import count_loss
from apportion.methods.prediction_memory import PredictionMemory
from apportion.methods.protocol import LossTerms, WeightAverage, frozen_batch_norm
from apportion.transport import assign_with_duals, round_to_counts

OnHost = Callable[[], Sequence[Tensor]]  # logits, sizes and proportions of a batch, once they are there


class TwoViews:
    """The classifier is `average`, a running mean of the weights of `network`, which is what trains.

    Both are nn.Sequential(features, head); `projector` maps features to where they are contrasted. A batch's
    x is (n, 2, ...): weak and strong. The bag loss, DLLP's or the likelihood of `counts`, has a weight that
    falls from `bag_first` to `bag_last`. With bags `remembered`, batches are those of `scattered(bags)`.
    `quick` makes the parts of a step fast, each a function of a batch (speed.quick).
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
        remembered: PredictionMemory | None = None,
        quick: Quick | None = None,
    ) -> None:
        if remembered is not None and (counts or transport != remembered.priced):
            raise ValueError("remembered bags know no likelihood of counts, and have prices for transport")
        self.classifier = average.requires_grad_(False)
        self.network = in_two_parts(network)
        self.averaging = WeightAverage(momentum)
        kept = network, projector, average, self.averaging, *([] if remembered is None else [remembered])
        self.player = nn.ModuleList(kept)  # one optimizer; all of it is saved
        self.projector = projector
        self.n_bags = 0  # in a usual batch: for others nothing is compiled anew
        self.bag_weights = bag_first, bag_last
        self.contrast, self.temperature = contrast, temperature
        self.transport = transport  # False: the largest class is the label, whatever the proportions
        self.counts = counts
        self.remembered = remembered
        parts = self._weak, self._strong, self._alike, taught
        fast = [(quick or identity)(part, graphs=True) for part in parts]
        self.weak, self.strong, self.alike, self.taught = fast

    def networks(self) -> list[nn.Module]:
        return [self.player]

    def losses(self, batch: BagBatch, progress: float) -> Iterator[LossTerms]:
        weak, strong = batch.x.unbind(1)
        self.n_bags = self.n_bags or len(batch.sizes)
        usual = not (self.remembered or self.counts or batch.left) and len(batch.sizes) == self.n_bags
        plain, logits, *lost = self.weak(weak, (batch.sizes, batch.proportions) if usual else None)
        to_host = self.remembered is None and (self.transport or self.counts)
        asked = start_copy_to_host(logits.float(), batch.sizes, batch.proportions) if to_host else None
        moved, answers = self.strong(strong)
        first, last = self.bag_weights
        bag_weight = first + (last - first) * progress
        terms = {"proportion": bag_weight * (lost[0] if usual else self.bag_loss(logits, batch, asked))}
        if progress < 0.5:
            terms["contrast"] = self.contrast * (1 - 2 * progress) * self.alike(plain, moved)
        # last: while transport is under way on the host, the device has all of the above to do
        terms["labels"] = self.taught(answers, *self.labels(logits.detach(), batch, asked)).mean()
        yield terms
        self.averaging.follow(self.classifier, self.network)
        if self.remembered is not None:
            self.remembered.remember(logits, batch.row)

    def _weak(self, x: Tensor, known: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, ...]:
        """Features, logits and, where the sizes and proportions of whole bags are known, DLLP's loss."""
        features, head = self.network
        plain = features(x)
        logits = head(plain)
        return (plain, logits) if known is None else (plain, logits, proportion_loss(logits, *known))

    def _strong(self, x: Tensor) -> tuple[Tensor, ...]:
        with frozen_batch_norm(self.network):  # the statistics used at test time are those of weak views
            return self._weak(x)

    def _alike(self, plain: Tensor, moved: Tensor) -> Tensor:
        return contrast(self.projector(plain), self.projector(moved), self.temperature)

    def bag_loss(self, logits: Tensor, batch: BagBatch, on_host: OnHost | None) -> Tensor:
        if self.remembered is not None:
            return self.remembered.loss(logits, batch.row)
        bags = logits, batch.sizes, batch.proportions, batch.left
        return count_loss(*bags, on_host=on_host) if self.counts else proportion_loss(*bags)

    def labels(self, logits: Tensor, batch: BagBatch, on_host: OnHost | None) -> tuple[Tensor, Tensor]:
        """The class of every row, and its scores, of which that class is the largest at fair prices."""
        if self.transport and on_host is not None:
            return at_fair_prices(logits, on_host)
        scores = logits.float() if self.remembered is None else self.remembered.at_prices(logits, batch.row)
        return scores.argmax(1), scores


def in_two_parts(network: nn.Module) -> nn.Sequential:
    parts = list(network) if isinstance(network, nn.Sequential) else []
    if not isinstance(network, nn.Sequential) or len(parts) != 2 or not isinstance(parts[1], nn.Linear):
        raise TypeError(
            "two views contrast the features before the last layer: pass a network of two parts, "
            "nn.Sequential(features, head) with a linear head, or name another first stage, such as dllp"
        )
    return network


def at_fair_prices(scores: Tensor, on_host: OnHost) -> tuple[Tensor, Tensor]:
    """Exact transport labels of a batch of whole bags, as classes (n,), and the scores less their prices.

    Transport is the host's: `on_host` gives scores, sizes and proportions there. Once the prices that prove
    the labels are taken off, the label is the largest class that is left, in doubt where another is as cheap.
    """
    there, lengths, proportions = on_host()
    found = assign_with_duals(there, lengths, round_to_counts(proportions, lengths))
    prices = found.prices.float().repeat_interleave(lengths, 0)
    return send_to_device(found.classes, scores.device), scores.float() - send_to_device(
        prices, scores.device
    )


def taught(answers: Tensor, classes: Tensor, scores: Tensor) -> Tensor:
    """Cross-entropy of the answers to the labels, as far as the scores trust them, (n,)."""
    return trust(scores) * F.cross_entropy(answers.float(), classes, reduction="none")


def trust(scores: Tensor) -> Tensor:
    """How far to trust the largest class of each row, exp(-10 H²), (n,): H is its entropy over log k."""
    doubt = torch.special.entr(scores.softmax(1)).sum(1) / math.log(max(2, scores.shape[1]))
    return torch.exp(-10 * doubt.square())


def projector(width: int) -> nn.Module:
    """From features to the 128 values in which two views are contrasted."""
    return nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 128))


def contrast(one: Tensor, other: Tensor, temperature: float) -> Tensor:
    """InfoNCE in both directions: of all instances in the batch, which is the other view of this one?"""
    one, other = F.normalize(one.float(), dim=1), F.normalize(other.float(), dim=1)
    alike = one @ other.T / temperature
    same = torch.arange(len(one), device=one.device)
    return (F.cross_entropy(alike, same) + F.cross_entropy(alike.T, same)) / 2

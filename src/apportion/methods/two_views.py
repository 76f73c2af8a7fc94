"""Two views: exact transport labels a weak view of each instance, and a strong view is trained on the label.

    L = w(t) · bag loss(weak) + mean_j trust_j · CE(strong_j, label_j) + (1 - 2t)₊ · InfoNCE(weak, strong)

The labels of a batch match the proportions of its bags, as in PLOT, but are made anew in every step, as in
FixMatch (Sohn et al., 2020). The contrastive term (SimCLR, Chen et al., 2020) draws the two views of an
instance together and pushes instances apart; without it, training on large bags does not start to learn. Its
weight falls to zero by the middle of training. The method is new; docs/methods/two-views.md describes it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from apportion._device import PartCompiler, identity, plain_network, send_to_device, start_copy_to_host
from apportion.bags.bags import BagBatch, RowBatch
from apportion.losses import proportion_loss
from apportion.methods.count_likelihood import count_loss
from apportion.methods.prediction_memory import PredictionMemory
from apportion.methods.protocol import LossTerms, WeightAverage, frozen_batch_norm
from apportion.methods.setup import Setup
from apportion.transport import assign_with_duals, round_to_counts

OnHost = Callable[[], Sequence[Tensor]]  # waits for the CPU copies of a batch's logits, sizes and proportions


class TwoViews:
    """`network` is trained; the classifier is `average`, an exponential moving average of its weights.

    Both are nn.Sequential(features, head); `projector` maps features to the space where views are contrasted.
    A batch has x of shape (n, 2, ...): weak and strong views. The bag loss is the proportion loss or, with
    `counts`, the count likelihood; its weight goes from `bag_first` to `bag_last`. Without `transport`, the
    label of an instance is its most probable class. With a `memory`, batches are of rows from all bags.
    `compile_part` compiles the parts of a step.
    """

    title = "two views"
    batches = ("bag", "row")
    views = 2

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
        memory: PredictionMemory | None = None,
        compile_part: PartCompiler | None = None,
    ) -> None:
        if memory is not None and counts:
            raise ValueError("the count likelihood needs whole bags; leave out counts or memory")
        if memory is not None and transport != memory.transport:
            raise ValueError(f"transport is {transport}, but the memory has transport={memory.transport}")
        self.network = split_network(network)
        self.classifier = average.requires_grad_(False)
        self.projector = projector
        self.averaging = WeightAverage(momentum)
        self.memory = memory
        # one module for one optimizer, so that checkpoints include everything
        parts = [network, projector, average, self.averaging]
        self.trained = nn.ModuleList(parts if memory is None else [*parts, memory])
        self.bag_first = bag_first
        self.bag_last = bag_last
        self.contrast = contrast
        self.temperature = temperature
        self.transport = transport
        self.counts = counts
        self.usual_n_bags = 0  # bags in the first batch; passes are compiled for this number only
        compile_part = compile_part or identity
        self.weak_pass = compile_part(self._weak_pass, graphs=True)
        self.strong_pass = compile_part(self._strong_pass, graphs=True)
        self.contrastive_loss = compile_part(self._contrastive_loss, graphs=True)
        self.label_losses = compile_part(label_losses, graphs=True)

    @classmethod
    def build(cls, network: nn.Module, setup: Setup, transport: bool = True, **options: Any) -> Self:
        """With the average, the projector and, for batches of rows, the memory that the method needs."""
        plain = split_network(plain_network(network))
        head = cast(nn.Linear, plain[1])
        memory = PredictionMemory(setup.bags, transport, setup.compile_part) if setup.by == "row" else None
        return cls(
            network,
            setup.to_device(deepcopy(plain)),
            make_projector(head.in_features).to(head.weight.device),
            transport=transport,
            memory=memory,
            compile_part=setup.compile_part,
            **options,
        )

    def networks(self) -> list[nn.Module]:
        return [self.trained]

    def losses(self, batch: BagBatch | RowBatch, progress: float) -> Iterator[LossTerms]:
        weak, strong = batch.x.unbind(1)
        features, logits, *bag_loss = self.weak_pass(weak, self._bags_for_pass(batch))
        on_host = self._start_copy(logits, batch)
        strong_features, strong_logits = self.strong_pass(strong)
        bag_weight = self.bag_first + (self.bag_last - self.bag_first) * progress
        loss = bag_loss[0] if bag_loss else self.bag_loss(logits, batch, on_host)
        terms = {"proportion": bag_weight * loss}
        if progress < 0.5:
            contrast = self.contrastive_loss(features, strong_features)
            terms["contrast"] = self.contrast * (1 - 2 * progress) * contrast
        # last, so that the device is busy with all of the above while the CPU solves the transport problems
        classes, scores = self.labels(logits.detach(), batch, on_host)
        terms["labels"] = self.label_losses(strong_logits, classes, scores).mean()
        yield terms
        self.averaging.update(self.classifier, self.network)
        if self.memory is not None:
            self.memory.update(logits, batch.row)

    def _bags_for_pass(self, batch: BagBatch | RowBatch) -> tuple[Tensor, Tensor] | None:
        """Sizes and proportions of a usual batch, whose proportion loss is compiled with the forward pass."""
        if isinstance(batch, RowBatch) or self.counts or batch.undrawn:
            return None
        if not self.usual_n_bags:
            self.usual_n_bags = len(batch.sizes)
        return (batch.sizes, batch.proportions) if len(batch.sizes) == self.usual_n_bags else None

    def _weak_pass(self, x: Tensor, bags: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, ...]:
        """Features, logits and, for whole bags of these sizes and proportions, the proportion loss."""
        body, head = self.network
        features = body(x)
        logits = head(features)
        if bags is None:
            return features, logits
        sizes, proportions = bags
        return features, logits, proportion_loss(logits, sizes, proportions)

    def _strong_pass(self, x: Tensor) -> tuple[Tensor, ...]:
        with frozen_batch_norm(self.network):  # in evaluation mode, instances look like weak views
            return self._weak_pass(x)

    def _contrastive_loss(self, weak: Tensor, strong: Tensor) -> Tensor:
        return info_nce(self.projector(weak), self.projector(strong), self.temperature)

    def _start_copy(self, logits: Tensor, batch: BagBatch | RowBatch) -> OnHost | None:
        """Start copying to the CPU what transport and the count likelihood of whole bags need there."""
        if isinstance(batch, RowBatch) or not (self.transport or self.counts):
            return None
        return start_copy_to_host(logits.float(), batch.sizes, batch.proportions)

    def bag_loss(self, logits: Tensor, batch: BagBatch | RowBatch, on_host: OnHost | None) -> Tensor:
        if isinstance(batch, RowBatch):
            return self._memory().loss(logits, batch.row)
        if self.counts:
            return count_loss(logits, batch.sizes, batch.proportions, batch.undrawn, on_host=on_host)
        return proportion_loss(logits, batch.sizes, batch.proportions, batch.undrawn)

    def labels(
        self, logits: Tensor, batch: BagBatch | RowBatch, on_host: OnHost | None
    ) -> tuple[Tensor, Tensor]:
        """The label of every row, (n,), and the scores (n, k) of which it is the largest."""
        if not self.transport:
            return logits.argmax(1), logits.float()
        if isinstance(batch, RowBatch):
            scores = self._memory().adjusted_scores(logits, batch.row)
            return scores.argmax(1), scores
        if on_host is None:
            on_host = start_copy_to_host(logits.float(), batch.sizes, batch.proportions)
        return transport_labels(logits, on_host)

    def _memory(self) -> PredictionMemory:
        if self.memory is None:
            raise TypeError("batches of rows need the predictions of whole bags; pass a PredictionMemory")
        return self.memory


def split_network(network: nn.Module) -> nn.Sequential:
    """The network, after checking that it is nn.Sequential(features, linear head)."""
    two_parts = isinstance(network, nn.Sequential) and len(network) == 2
    if not two_parts or not isinstance(network[1], nn.Linear):
        raise TypeError(
            "two_views contrasts the features before the last layer; pass a network of two parts, "
            "nn.Sequential(features, head) with a linear head, or use another method, such as dllp"
        )
    return network


def transport_labels(logits: Tensor, on_host: OnHost) -> tuple[Tensor, Tensor]:
    """Exact transport labels of a batch of whole bags, (n,), and logits minus their dual prices, (n, k).

    The label is the class with the highest score. The larger its lead, the more certain it is.
    """
    host_logits, sizes, proportions = on_host()
    assignment = assign_with_duals(host_logits, sizes, round_to_counts(proportions, sizes))
    prices = assignment.prices.float().repeat_interleave(sizes, 0)
    classes = send_to_device(assignment.classes, logits.device)
    return classes, logits.float() - send_to_device(prices, logits.device)


def label_losses(logits: Tensor, classes: Tensor, scores: Tensor) -> Tensor:
    """Cross-entropy of each row to its label, weighted by the trust in it, (n,)."""
    return trust(scores) * F.cross_entropy(logits.float(), classes, reduction="none")


def trust(scores: Tensor) -> Tensor:
    """exp(-10 H²) of each row, (n,), where H is the entropy of softmax(scores) over log k."""
    entropy = torch.special.entr(scores.softmax(1)).sum(1) / math.log(max(2, scores.shape[1]))
    return torch.exp(-10 * entropy.square())


def make_projector(width: int) -> nn.Module:
    """A network from features of this width to the 128 dimensions in which views are contrasted."""
    return nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 128))


def info_nce(one: Tensor, other: Tensor, temperature: float) -> Tensor:
    """InfoNCE in both directions: find the other view of each instance among all views of the batch."""
    one = F.normalize(one.float(), dim=1)
    other = F.normalize(other.float(), dim=1)
    similarity = one @ other.T / temperature
    same = torch.arange(len(one), device=one.device)
    return (F.cross_entropy(similarity, same) + F.cross_entropy(similarity.T, same)) / 2

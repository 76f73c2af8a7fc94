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
from functools import partial
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from apportion._device import GraphPart, identity, plain_network, send_to_device, start_copy_to_host
from apportion.bags.bags import BagBatch, RowBatch
from apportion.losses import proportion_loss
from apportion.methods.count_likelihood import count_loss
from apportion.methods.prediction_memory import PredictionMemory
from apportion.methods.protocol import LossTerms, WeightAverage, frozen_batch_norm
from apportion.methods.setup import Setup
from apportion.transport import assign_with_duals, round_to_counts

OnHost = Callable[[], Sequence[Tensor]]  # waits for copies of tensors on the CPU, and returns them


class TwoViews:
    """`network` is trained; the classifier is `average`, an exponential moving average of its weights.

    Both are nn.Sequential(features, head); `projector` maps features to the space where views are contrasted.
    A batch has x of shape (n, 2, ...): weak and strong views. The bag loss is the proportion loss or, with
    `counts`, the count likelihood; its weight goes from `bag_first` to `bag_last`. Without `transport`, the
    label of an instance is its most probable class. With a `memory`, batches are of rows from all bags.
    `graph_part` makes the parts of a step fast on a GPU.
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
        graph_part: GraphPart | None = None,
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
        self.usual_n_bags = 0  # bags in the first batch; passes are recorded for this number only
        graph_part = graph_part or identity
        self.weak_pass = graph_part(self._weak_pass, [network])
        self.strong_pass = graph_part(self._strong_pass, [network])
        self.contrastive_loss = graph_part(self._contrastive_loss, [projector])
        self.label_losses = graph_part(label_losses)

    @classmethod
    def build(cls, network: nn.Module, setup: Setup, transport: bool = True, **options: Any) -> Self:
        """With the average, the projector and, for batches of rows, the memory that the method needs."""
        plain = split_network(plain_network(network))
        head = cast(nn.Linear, plain[1])
        memory = PredictionMemory(setup.bags, transport, setup.graph_part) if setup.by == "row" else None
        return cls(
            network,
            setup.to_device(deepcopy(plain)),
            make_projector(head.in_features).to(head.weight.device),
            transport=transport,
            memory=memory,
            graph_part=setup.graph_part,
            **options,
        )

    def networks(self) -> list[nn.Module]:
        return [self.trained]

    def losses(self, batch: BagBatch | RowBatch, progress: float) -> Iterator[LossTerms]:
        weak, strong = batch.x.unbind(1)
        host_bags = self._copy_bags(batch)  # first, so that they are there long before the logits
        features, logits, *bag_loss = self.weak_pass(weak, *self._bags_for_pass(batch))
        host_logits = None if host_bags is None else start_copy_to_host(logits.float())
        strong_features, strong_logits = self.strong_pass(strong)
        bag_weight = self.bag_first + (self.bag_last - self.bag_first) * progress
        loss = bag_loss[0] if bag_loss else self.bag_loss(logits, batch, host_logits, host_bags)
        terms = {"proportion": bag_weight * loss}
        if progress < 0.5:
            contrast = self.contrastive_loss(features, strong_features)
            terms["contrast"] = self.contrast * (1 - 2 * progress) * contrast
        # last, so that the device is busy with all of the above while the CPU solves the transport problems
        classes, scores = self.labels(logits.detach(), batch, host_logits, host_bags)
        terms["labels"] = self.label_losses(strong_logits, classes, scores).mean()
        yield terms
        self.averaging.update(self.classifier, self.network)
        if self.memory is not None:
            self.memory.update(logits, batch.row)

    def _bags_for_pass(self, batch: BagBatch | RowBatch) -> tuple[Tensor, ...]:
        """Sizes and proportions of a usual batch, whose proportion loss belongs to the forward pass."""
        if isinstance(batch, RowBatch) or self.counts or batch.undrawn:
            return ()
        if not self.usual_n_bags:
            self.usual_n_bags = len(batch.sizes)
        return (batch.sizes, batch.proportions) if len(batch.sizes) == self.usual_n_bags else ()

    def _weak_pass(self, x: Tensor, *bags: Tensor) -> tuple[Tensor, ...]:
        """Features, logits and, for whole bags of these sizes and proportions, the proportion loss."""
        body, head = self.network
        features = body(x)
        logits = head(features)
        if not bags:
            return features, logits
        sizes, proportions = bags
        return features, logits, proportion_loss(logits, sizes, proportions)

    def _strong_pass(self, x: Tensor) -> tuple[Tensor, ...]:
        with frozen_batch_norm(self.network):  # in evaluation mode, instances look like weak views
            return self._weak_pass(x)

    def _contrastive_loss(self, weak: Tensor, strong: Tensor) -> Tensor:
        return info_nce(self.projector(weak), self.projector(strong), self.temperature)

    def _copy_bags(self, batch: BagBatch | RowBatch) -> OnHost | None:
        """Start copying to the CPU what transport and the count likelihood of whole bags need there."""
        if isinstance(batch, RowBatch) or not (self.transport or self.counts):
            return None
        return start_copy_to_host(batch.sizes, batch.proportions)

    def bag_loss(
        self,
        logits: Tensor,
        batch: BagBatch | RowBatch,
        host_logits: OnHost | None = None,
        host_bags: OnHost | None = None,
    ) -> Tensor:
        if isinstance(batch, RowBatch):
            return self._memory().loss(logits, batch.row)
        if self.counts:
            on_host = None
            if host_logits is not None and host_bags is not None:
                on_host = partial(_both, host_logits, host_bags)
            return count_loss(logits, batch.sizes, batch.proportions, batch.undrawn, on_host=on_host)
        return proportion_loss(logits, batch.sizes, batch.proportions, batch.undrawn)

    def labels(
        self,
        logits: Tensor,
        batch: BagBatch | RowBatch,
        host_logits: OnHost | None = None,
        host_bags: OnHost | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The label of every row, (n,), and the scores (n, k) of which it is the largest."""
        if not self.transport:
            return logits.argmax(1), logits.float()
        if isinstance(batch, RowBatch):
            scores = self._memory().adjusted_scores(logits, batch.row)
            return scores.argmax(1), scores
        return transport_labels(
            logits,
            host_logits or start_copy_to_host(logits.float()),
            host_bags or start_copy_to_host(batch.sizes, batch.proportions),
        )

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


def _both(host_logits: OnHost, host_bags: OnHost) -> Sequence[Tensor]:
    return (*host_logits(), *host_bags())


def transport_labels(logits: Tensor, host_logits: OnHost, host_bags: OnHost) -> tuple[Tensor, Tensor]:
    """Exact transport labels of a batch of whole bags, (n,), and logits minus their dual prices, (n, k).

    The label is the class with the highest score. The larger its lead, the more certain it is.
    """
    sizes, proportions = host_bags()
    counts = round_to_counts(proportions, sizes)  # while the device still computes the logits
    (scores,) = host_logits()
    assignment = assign_with_duals(scores, sizes, counts)
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

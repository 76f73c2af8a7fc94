"""A memory of the latest prediction of every row, for learning from batches of rows from all bags.

A batch holds only a few large bags, and the gradient of the proportion loss is the same for all rows of a
bag: it mostly reflects the chance differences of these few bags. In a batch of rows from all bags
(`Bags.batches(by="row")`), each row follows the error of its own bag, and errors that bags share cancel. The
loss needs the mean prediction of whole bags, which this memory provides.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from apportion._device import GraphPart, identity, send_to_device
from apportion.bags.bags import Bags, exact_bag_means
from apportion.transport import assign_with_duals, round_to_counts


class PredictionMemory(nn.Module):
    """The latest log-probabilities of all rows, (N, k), and the bag means that follow from them.

    With `transport`, it also keeps the dual prices of exact transport of these predictions, from which
    `adjusted_scores` reads labels. It is a module without parameters, so that checkpoints include it.
    `graph_part` makes the loss of a batch fast on a GPU.

    In a round every row is drawn once. Sums are recomputed at its start, prices at its end.
    """

    def __init__(self, bags: Bags, transport: bool = False, graph_part: GraphPart = identity) -> None:
        super().__init__()
        device = bags.x.device
        self.transport = transport
        self.lengths = bags.sizes  # on the CPU
        self.bag = torch.repeat_interleave(bags.sizes).to(device)  # (N,) the bag of each row
        self.sizes = bags.sizes.to(device).unsqueeze(1)
        self.proportions = bags.proportions
        self.overall = bags.overall.float().clamp_min(1e-6).to(device)
        self.counts = round_to_counts(bags.proportions.cpu(), bags.sizes)
        # before the first round, only classes that are absent from a bag have a price
        prices = torch.zeros(len(bags.sizes), bags.n_classes)
        prices.masked_fill_(self.counts == 0, math.inf if transport else 0.0)
        self.register_buffer("log_probs", self.overall.log().repeat(len(bags.x), 1))
        self.register_buffer("prices", prices.to(device))
        self.register_load_state_dict_post_hook(_start_new_round)
        # of the predictions at the start of the round; filled in place, since graphs read these tensors
        self.sums = torch.zeros_like(self.proportions)
        self.overall_at_start = torch.zeros_like(self.overall)
        self.rows_left = 0  # in this round
        self.fast_loss = graph_part(self._loss, [self])

    def loss(self, logits: Tensor, row: Tensor) -> Tensor:
        """The proportion loss of the bags of these rows, mean over rows. Only these rows get a gradient.

        For a batch that consists of whole bags, it equals the loss of DLLP.
        """
        self._begin_round_if_due()
        return self.fast_loss(logits, row)

    def _loss(self, logits: Tensor, row: Tensor) -> Tensor:
        probabilities = logits.float().softmax(1)
        bag = self.bag[row]
        with torch.no_grad():
            proportions = self.proportions[bag]
            means = self._means(probabilities, row)[bag]
        # the value of the bag means, with the gradient each row would have if its whole bag were in the batch
        predicted = means + (probabilities - probabilities.detach())
        return -(proportions * predicted.log()).sum(1).mean()

    @torch.no_grad()
    def means(self, probabilities: Tensor, row: Tensor) -> Tensor:
        """The current mean prediction of every bag, (m, k), given the probabilities of these rows."""
        self._begin_round_if_due()
        return self._means(probabilities, row)

    def _means(self, probabilities: Tensor, row: Tensor) -> Tensor:
        n = len(self.bag)
        bag = self.bag[row]
        # Rows outside the batch count with their stored predictions plus a common shift that makes the mean
        # of all rows right: it was exact when the round began, and the batch shows how far predictions have
        # moved since. Without the shift, changes that all rows share would show an epoch late, and training
        # would oscillate.
        change = probabilities - self.log_probs[row].exp()
        overall = self.overall_at_start + change.mean(0)
        shift = (n * overall - self.sums.sum(0) - change.sum(0)) / max(1, n - len(row))
        zeros = torch.zeros_like(self.sums)
        ones = torch.ones_like(bag, dtype=overall.dtype)
        inside = zeros.index_add(0, bag, probabilities)
        n_outside = self.sizes - zeros[:, :1].index_add(0, bag, ones.unsqueeze(1))
        outside = self.sums - zeros.index_add(0, bag, probabilities - change) + n_outside * shift
        # at least a thousandth of the overall proportion of a class: the shift may make a sum negative
        outside = torch.maximum(outside, 1e-3 * self.overall * n_outside).masked_fill_(n_outside == 0, 0.0)
        return ((inside + outside) / self.sizes).clamp_min(1.2e-38)  # the clamp of proportion_loss

    @torch.no_grad()
    def update(self, logits: Tensor, row: Tensor) -> None:
        """Store the predictions of a batch, after its loss. The last batch of a round updates the prices."""
        log_probs = logits.detach().float().log_softmax(1)
        self.sums.index_add_(0, self.bag[row], log_probs.exp() - self.log_probs[row].exp())
        self.log_probs[row] = log_probs
        self.rows_left -= len(row)
        if self.rows_left <= 0 and self.transport:
            assignment = assign_with_duals(self.log_probs.cpu(), self.lengths, self.counts)
            self.prices.copy_(send_to_device(assignment.prices.float(), self.prices.device))

    def adjusted_scores(self, logits: Tensor, row: Tensor) -> Tensor:
        """Logits minus the prices of the row's bag; the largest class is the transport label of the row."""
        return logits.detach().float() - self.prices[self.bag[row]]

    @torch.no_grad()
    def _begin_round_if_due(self) -> None:
        if self.rows_left > 0:
            return
        # recomputed in every round, since adding small changes forever loses digits
        sums = exact_bag_means(self.log_probs.exp(), self.lengths) * self.sizes
        self.sums.copy_(sums)
        self.overall_at_start.copy_(sums.sum(0) / len(self.bag))
        self.rows_left = len(self.bag)


def _start_new_round(memory: PredictionMemory, _: Any) -> None:
    """Start a new round after loading: checkpoints are written between epochs, so no round is under way."""
    memory.rows_left = 0

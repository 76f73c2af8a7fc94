"""What a network last said of every row: a batch can hold rows of all bags, and bags still count as wholes.

A batch of whole bags holds few large ones, and what a few bags say of the classes is mostly chance: every row
of a bag is pushed alike. In a batch of rows from all bags (`scattered`) each row is pushed by what its own
bag lacks, and what bags have in common cancels.
"""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from apportion._device import Quick, identity, send_to_device
from apportion.bags.bags import Bags, exact_means
from apportion.transport import assign_with_duals, round_to_counts


def scattered(bags: Bags) -> Bags:
    """Every row as a bag of its own with its bag's proportions: batches then hold rows of all bags.

    For learners that have the bags `PredictionMemory`; to others a row's proportions would be its label.
    """
    bag = torch.repeat_interleave(bags.sizes)
    ids = [bags.ids[i] for i in bag.tolist()]
    shares = bags.proportions[bag.to(bags.proportions.device)]
    return replace(bags, sizes=torch.ones_like(bag), proportions=shares, ids=ids)


class PredictionMemory(nn.Module):
    """The last predictions of the rows of some bags, (N, k), with the means and, if `priced`, the prices that
    follow from them. A module, so that a checkpoint holds it; it has no weights, and stays on its device.
    `quick` makes the loss of a batch fast (speed.quick).
    """

    def __init__(self, bags: Bags, priced: bool = False, quick: Quick = identity) -> None:
        super().__init__()
        device, k, m = bags.x.device, bags.n_classes, len(bags.sizes)
        self.lengths, self.priced = bags.sizes, priced
        self.bag = torch.repeat_interleave(bags.sizes).to(device)  # (N,) of each row
        self.sizes, self.proportions = bags.sizes.to(device).unsqueeze(1), bags.proportions
        self.overall = bags.overall.float().clamp_min(1e-6).to(device)
        self.counts = round_to_counts(bags.proportions.cpu(), bags.sizes)
        prices = torch.zeros(m, k).masked_fill_(self.counts == 0, math.inf if priced else 0.0)
        self.register_buffer("log_probs", self.overall.log().repeat(len(bags.x), 1))
        self.register_buffer("prices", prices.to(device))
        self.register_load_state_dict_post_hook(forget_round)
        self.unseen = 0  # rows until all have been seen once; then the next round begins
        self.loss_now = quick(self._loss)

    def loss(self, logits: Tensor, row: Tensor) -> Tensor:
        """The proportion loss of the bags of these rows, by row; its gradient is that of these rows alone.

        Of a batch that is made of whole bags it is DLLP's.
        """
        self._begin()
        return self.loss_now(logits, row)

    def _loss(self, logits: Tensor, row: Tensor) -> Tensor:
        probabilities, bag = logits.float().softmax(1), self.bag[row]
        with torch.no_grad():
            known, means = self.proportions[bag], self._means(probabilities, row)[bag]
        # the means' value, and of each row the gradient that it would have were its whole bag in the batch
        predicted = means + (probabilities - probabilities.detach())
        return -(known * predicted.log()).sum(1).mean()

    @torch.no_grad()
    def means(self, probabilities: Tensor, row: Tensor) -> Tensor:
        """(m, k) the mean of every bag by now, given that these rows have these probabilities.

        The other rows are where they were last seen, all moved alike, so that the mean of all rows is right:
        it was known when the round began, and rows of a batch tell how far rows have come since. Without this
        the memory answers what all rows have in common an epoch late, and training swings without end.
        """
        self._begin()
        return self._means(probabilities, row)

    def _means(self, probabilities: Tensor, row: Tensor) -> Tensor:
        n, bag, drawn = len(self.bag), self.bag[row], len(row)
        change = probabilities - self.log_probs[row].exp()
        now = self.before + change.mean(0)
        moved = (n * now - self.sums.sum(0) - change.sum(0)) / max(1, n - drawn)
        zeros, ones = torch.zeros_like(self.sums), torch.ones_like(bag, dtype=now.dtype)
        here = zeros.index_add(0, bag, probabilities)
        absent = self.sizes - zeros[:, :1].index_add(0, bag, ones.unsqueeze(1))
        there = self.sums - zeros.index_add(0, bag, probabilities - change) + absent * moved
        # a thousandth of a class's share at least, since a guess may be less than nothing
        there = torch.maximum(there, 1e-3 * self.overall * absent).masked_fill_(absent == 0, 0.0)
        return ((here + there) / self.sizes).clamp_min(1.2e-38)  # as DLLP's

    @torch.no_grad()
    def remember(self, logits: Tensor, row: Tensor) -> None:
        """After the loss of a batch; the last batch of a round also makes the prices anew."""
        after = logits.detach().float().log_softmax(1)
        self.sums.index_add_(0, self.bag[row], after.exp() - self.log_probs[row].exp())
        self.log_probs[row] = after
        self.unseen -= len(row)
        if self.unseen <= 0 and self.priced:
            found = assign_with_duals(self.log_probs.cpu(), self.lengths, self.counts)
            self.prices.copy_(send_to_device(found.prices.float(), self.prices.device))

    def at_prices(self, logits: Tensor, row: Tensor) -> Tensor:
        """Scores whose largest class is the label, by exact transport of what the last round remembered."""
        return logits.detach().float() - self.prices[self.bag[row]]

    @torch.no_grad()
    def _begin(self) -> None:
        """A round, if one is over: every row once. Sums are made anew, since adding to them loses digits."""
        if self.unseen > 0:
            return
        sums = exact_means(self.log_probs.exp(), self.lengths) * self.sizes
        self.sums, self.before = sums.float(), (sums.sum(0) / len(self.bag)).float()
        self.unseen = len(self.bag)


def forget_round(remembered: PredictionMemory, _: Any) -> None:
    """What was loaded is of the end of an epoch: a round that was under way is none of its."""
    remembered.unseen = 0

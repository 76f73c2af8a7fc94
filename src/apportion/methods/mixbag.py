"""MixBag: bags mixed from the rows of two bags, whose proportions are known up to chance.

    L = (1 - w) · proportion loss + w · 1/N Σ n · CE(p, f̄)  over mixed bags whose f̄ leaves the interval

A fraction γ of the rows of one bag and 1 - γ of those of another make a mixed bag. Its expected proportions p
are the mean of those of both bags, weighted by the rows taken. The true ones differ by chance, so the
cross-entropy counts only if the mean prediction f̄ of some class is outside its confidence interval.

Asanomi, Matsuo, Suehiro & Bise, "MixBag: bag-level data augmentation for learning from label proportions",
ICCV 2023.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from apportion.bags.bags import BagBatch, bag_means
from apportion.losses import cross_entropy_of_means, mean_over_rows, proportion_loss
from apportion.methods.protocol import LossTerms

Z_99 = 2.5758  # a normal variable is within this many standard deviations with probability 0.99


class MixBag:
    """The proportion loss of bags, and with weight `mixed` the confidence interval loss of mixed bags.

    Each bag of a batch is mixed with the next one; bags are shuffled in every epoch. `z` is half the width of
    the interval in standard deviations: by default 99 % of intervals hold the true proportion.
    """

    title = "MixBag"
    mean_terms = ("proportion", "mixed")

    def __init__(self, classifier: nn.Module, mixed: float = 0.5, z: float = Z_99) -> None:
        self.classifier = classifier
        self.mixed = mixed
        self.z = z

    def networks(self) -> list[nn.Module]:
        return [self.classifier]

    def losses(self, batch: BagBatch, progress: float) -> Iterator[LossTerms]:
        logits = self.classifier(batch.x)
        loss = proportion_loss(logits, batch.sizes, batch.proportions, batch.undrawn)
        if len(batch.sizes) == 1 or batch.undrawn:  # there is no other whole bag to mix with
            yield {"proportion": loss, "mixed": 0.0 * loss}
            return
        ratio = torch.rand(len(batch.sizes), device=logits.device)
        bags = mix_bags(logits.float().softmax(1), batch.sizes, batch.proportions, ratio)
        yield {
            "proportion": (1 - self.mixed) * loss,
            "mixed": self.mixed * confidence_interval_loss(bags, self.z),
        }


class MixedBags(NamedTuple):
    """One mixed bag for each bag of a batch."""

    predicted: Tensor  # (b, k) mean prediction of the rows
    proportions: Tensor  # (b, k) expected proportions
    variance: Tensor  # (b, k) of the true proportions around them
    sizes: Tensor  # (b,) number of rows


def mix_bags(probabilities: Tensor, sizes: Tensor, proportions: Tensor, ratio: Tensor) -> MixedBags:
    """Mix a fraction `ratio` (b,) of the rows of each bag with 1 - `ratio` of those of the next bag.

    At least one row of either bag is drawn, at random and without replacement.
    """
    n_own = (ratio * sizes).round().clamp_min(1)
    n_other = ((1 - ratio) * sizes.roll(-1)).round().clamp_min(1)
    total = n_own + n_other
    own = sum_of_drawn_rows(probabilities, sizes, n_own)
    other = sum_of_drawn_rows(probabilities, sizes, n_other.roll(1)).roll(-1, 0)
    predicted = (own + other) / total.unsqueeze(1)
    own_weight = (n_own / total).unsqueeze(1)
    other_weight = (n_other / total).unsqueeze(1)
    expected = own_weight * proportions + other_weight * proportions.roll(-1, 0)
    variance = own_weight.square() * variance_of_drawn(proportions, sizes, n_own)
    of_other = variance_of_drawn(proportions.roll(-1, 0), sizes.roll(-1), n_other)
    return MixedBags(predicted, expected, variance + other_weight.square() * of_other, total)


def sum_of_drawn_rows(probabilities: Tensor, sizes: Tensor, n_drawn: Tensor) -> Tensor:
    """The sum (b, k) of the probabilities of `n_drawn` random rows of each bag."""
    bag = torch.repeat_interleave(sizes, output_size=len(probabilities))
    # rows in random order within their bags, and how many of its bag come before each
    order = torch.argsort(bag + torch.rand(len(bag), device=bag.device, dtype=torch.float64))
    place = torch.arange(len(bag), device=bag.device) - (sizes.cumsum(0) - sizes)[bag]
    drawn = (place < n_drawn[bag]).to(probabilities.dtype)
    return bag_means(probabilities[order] * drawn.unsqueeze(1), sizes) * sizes.unsqueeze(1)


def variance_of_drawn(proportions: Tensor, sizes: Tensor, n_drawn: Tensor) -> Tensor:
    """The variance (b, k) of the proportions among rows drawn without replacement (hypergeometric)."""
    undrawn = (sizes - n_drawn) / (sizes - 1).clamp_min(1)
    return proportions * (1 - proportions) * (undrawn / n_drawn).unsqueeze(1)


def confidence_interval_loss(bags: MixedBags, z: float) -> Tensor:
    """The cross-entropy of mixed bags with a class outside its interval, mean over the rows of all bags."""
    outside = (bags.predicted - bags.proportions).abs() > z * bags.variance.sqrt()
    losses = cross_entropy_of_means(bags.predicted, bags.proportions)
    return mean_over_rows(losses.where(outside.any(1), 0.0), bags.sizes)

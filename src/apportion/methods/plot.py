"""PLOT: learn from labels that optimal transport made to meet every bag's proportions. Algorithms 1 and 2."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from apportion.bags.bags import BagBatch
from apportion.methods.protocol import LossTerms

Loss = Callable[[Tensor, Tensor], Tensor]  # (logits, labels) -> (n,)


class LabelHistory:
    """The last rounds of labels and their mean, which is what the student learns from."""

    def __init__(self, labels: Tensor, limit: int = 5) -> None:
        if limit < 1:
            raise ValueError(f"memory is {limit}; at least one round of labels is needed")
        self.limit = limit
        self.rounds = [labels]
        self.mean = labels

    def add(self, labels: Tensor) -> None:
        self.restore([*self.rounds, labels][-self.limit :])

    def restore(self, rounds: list[Tensor]) -> None:
        self.rounds = rounds
        self.mean = sum(rounds[1:], rounds[0]) / len(rounds)  # no stack: that would copy every round


class PLOT:
    """`weights` (N,) are 1/n_i up to a constant for eq. (3), None for eq. (22); ragged bags differ."""

    def __init__(
        self,
        classifier: nn.Module,
        labels: LabelHistory,
        loss: Loss,
        mixup: float = 0.0,
        weights: Tensor | None = None,
    ) -> None:
        if not mixup >= 0:
            raise ValueError(f"mixup is {mixup}; pass the Beta's parameter, or 0 for none")
        self.classifier = classifier
        self.labels = labels
        self.loss = loss
        self.mixup = mixup
        self.weights = weights

    def networks(self) -> list[nn.Module]:
        return [self.classifier]

    def losses(self, batch: BagBatch, progress: float) -> Iterator[LossTerms]:
        x, labels = batch.x, self.labels.mean[batch.row]
        weights = torch.ones_like(labels[:, 0]) if self.weights is None else self.weights[batch.row]
        if self.mixup:
            x, labels, weights = mixup_rows(self.mixup, x, labels, weights)
        yield {"labels": (weights * self.loss(self.classifier(x), labels)).mean()}


def mixup_rows(alpha: float, *values: Tensor) -> list[Tensor]:
    """Each row mixed with another of the batch, by a weight of its own from Beta(alpha, alpha)."""
    first = values[0]
    shape = torch.full((len(first),), alpha, device=first.device)
    # unchecked: a check would have to wait for the device
    weight = torch.distributions.Beta(shape, shape, validate_args=False).sample()
    other = torch.randperm(len(first), device=first.device)
    return [torch.lerp(v[other], v, weight.view(-1, *[1] * (v.ndim - 1)).to(v.dtype)) for v in values]


def bag_weights(sizes: Tensor, batch_size: int) -> Tensor:
    """Each instance's weight of eq. (3), 1/n_i, scaled to a mean of one in an epoch, (N,).

    Of a bag larger than a batch an epoch sees a batch only: that many are its n_i.
    """
    seen = sizes.clamp_max(batch_size)
    return torch.repeat_interleave(int(seen.sum()) / (len(seen) * seen.float()), sizes)


def prediction_change(log_probs: Tensor, before: Tensor | None, sizes: Tensor) -> float:
    """δ = ‖P − P^Δ‖_F of algorithm 2: a bag's predictions are over its size, the first P^Δ is uniform."""
    previous = torch.full_like(log_probs, 1 / log_probs.shape[1]) if before is None else before.exp()
    scale = torch.repeat_interleave(1 / sizes.to(log_probs), sizes.to(log_probs.device)).unsqueeze(1)
    return float((scale * (log_probs.exp() - previous)).norm())

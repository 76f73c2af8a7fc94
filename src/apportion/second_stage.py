"""PLOT: learn from labels that optimal transport made to meet every bag's proportions. Algorithms 1 and 2."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from apportion.bags import BagBatch
from apportion.learner import Terms

Loss = Callable[[Tensor, Tensor], Tensor]  # (logits, labels) -> (n,)


class Memory:
    """The last rounds of labels and their mean, which is what the student learns from."""

    def __init__(self, labels: Tensor, rounds: int = 5) -> None:
        if rounds < 1:
            raise ValueError(f"rounds is {rounds}; at least one round of labels is needed")
        self.limit = rounds
        self.rounds = [labels]
        self.mean = labels

    def add(self, labels: Tensor) -> None:
        self.restore([*self.rounds, labels][-self.limit :])

    def restore(self, rounds: list[Tensor]) -> None:
        self.rounds = rounds
        self.mean = torch.stack(rounds).mean(0)


class PLOT:
    """`weights` (N,) are 1/n_i up to a constant for eq. (3), None for eq. (22); ragged bags differ."""

    def __init__(
        self,
        classifier: nn.Module,
        labels: Memory,
        loss: Loss,
        mixup: float = 0.0,
        weights: Tensor | None = None,
    ) -> None:
        self.classifier = classifier
        self.labels = labels
        self.loss = loss
        self.mixup = mixup
        self.weights = weights

    def players(self) -> list[nn.Module]:
        return [self.classifier]

    def steps(self, batch: BagBatch, progress: float) -> Iterator[Terms]:
        x, labels = batch.x, self.labels.mean[batch.row]
        if self.mixup:
            x, labels = mixed(x, labels, self.mixup)
        losses = self.loss(self.classifier(x), labels)
        if self.weights is not None:
            losses = losses * self.weights[batch.row]
        yield {"labels": losses.mean()}


def mixed(x: Tensor, labels: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Instances and labels, each mixed with another of the batch by one weight from Beta(alpha, alpha)."""
    # drawn on the CPU: a device scalar would have to be waited for
    weight = float(torch.distributions.Beta(alpha, alpha).sample())
    other = torch.randperm(len(x), device=x.device)
    return torch.lerp(x[other], x, weight), torch.lerp(labels[other], labels, weight)


def bag_weights(sizes: Tensor) -> Tensor:
    """Each instance's weight of eq. (3), 1/n_i, scaled to a mean of one, (N,)."""
    return torch.repeat_interleave(int(sizes.sum()) / (len(sizes) * sizes.float()), sizes)


def prediction_change(log_probs: Tensor, before: Tensor | None, sizes: Tensor) -> float:
    """δ = ‖P − P^Δ‖_F of algorithm 2: a bag's predictions are over its size, the first P^Δ is uniform."""
    previous = torch.full_like(log_probs, 1 / log_probs.shape[1]) if before is None else before.exp()
    scale = torch.repeat_interleave(1 / sizes.to(log_probs), sizes.to(log_probs.device)).unsqueeze(1)
    return float((scale * (log_probs.exp() - previous)).norm())

"""PLOT, the second stage: a student learns labels that match the proportions of every bag.

    min_θ  1/N Σ_j  w_j  loss(f_θ(x_j), q_j)        q: the mean of the last rounds of labels

Optimal transport makes the labels (`pseudo_labels`). Eq. (22) has w = 1, eq. (3) has w_j = 1/n_i
(`bag_weights`). Algorithms 1 and 2, which relabel after every epoch, are `pipeline.second_stage`. How strong
mixup is, and how many rounds are averaged, is decided in `defaults` or by a recipe.

Liu et al., "Two-stage training for learning from label proportions", IJCAI 2021.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from apportion.bags.bags import BagBatch, RowBatch
from apportion.errors import SettingsError
from apportion.methods.protocol import LossTerms

Loss = Callable[[Tensor, Tensor], Tensor]  # (logits (n, k), labels (n, k)) -> (n,)


class LabelHistory:
    """The last `limit` rounds of labels (N, k), and their mean, which the student learns from."""

    def __init__(self, labels: Tensor, limit: int = 5) -> None:
        if limit < 1:
            raise SettingsError(f"memory is {limit}; pass at least 1 round of labels")
        self.limit = limit
        self.rounds = [labels]
        self.mean = labels

    def add(self, labels: Tensor) -> None:
        """Add a round, and drop the oldest beyond the limit."""
        self.restore([*self.rounds, labels][-self.limit :])

    def restore(self, rounds: list[Tensor]) -> None:
        """Replace all rounds, for example by those of a checkpoint."""
        self.rounds = rounds
        self.mean = sum(rounds[1:], rounds[0]) / len(rounds)  # torch.stack would copy every round


class PLOT:
    """The student. `weights` (N,) are row weights; `mixup` is the parameter of mixup's Beta distribution.

    Eq. (22) has no mixup, and that is the default here; `defaults.default_mixup` has the estimator's.
    """

    def __init__(
        self,
        classifier: nn.Module,
        labels: LabelHistory,
        loss: Loss,
        mixup: float = 0.0,
        weights: Tensor | None = None,
    ) -> None:
        if not mixup >= 0:
            raise SettingsError(f"mixup is {mixup}; pass the parameter of a Beta distribution, or 0 for none")
        self.classifier = classifier
        self.labels = labels
        self.loss = loss
        self.mixup = mixup
        self.weights = weights

    def networks(self) -> list[nn.Module]:
        return [self.classifier]

    def losses(self, batch: BagBatch | RowBatch, progress: float) -> Iterator[LossTerms]:
        x = batch.x
        labels = self.labels.mean[batch.row]
        weights = torch.ones_like(labels[:, 0]) if self.weights is None else self.weights[batch.row]
        if self.mixup:
            x, labels, weights = mixup(self.mixup, x, labels, weights)
        yield {"labels": (weights * self.loss(self.classifier(x), labels)).mean()}


def mixup(alpha: float, *values: Tensor) -> list[Tensor]:
    """Mix each row with a random row of the batch, with its own weight from Beta(alpha, alpha).

    All `values` (n, ...) are mixed in the same way.

    Zhang et al., "mixup: Beyond empirical risk minimization", ICLR 2018.
    """
    first = values[0]
    concentration = torch.full((len(first),), alpha, device=first.device)
    # validating the arguments would wait for the device
    weight = torch.distributions.Beta(concentration, concentration, validate_args=False).sample()
    other = torch.randperm(len(first), device=first.device)
    return [torch.lerp(v[other], v, weight.view(-1, *[1] * (v.ndim - 1)).to(v.dtype)) for v in values]


def bag_weights(sizes: Tensor, batch_size: int) -> Tensor:
    """The weight of each row in eq. (3), (N,): 1/n_i, scaled to a mean of one over an epoch.

    Of a larger bag, only `batch_size` rows are drawn per epoch, which are then its n_i.
    """
    drawn = sizes.clamp_max(batch_size)
    return torch.repeat_interleave(int(drawn.sum()) / (len(drawn) * drawn.float()), sizes)


def prediction_change(log_probs: Tensor, previous: Tensor | None, sizes: Tensor) -> float:
    """δ = ‖P − P^Δ‖_F of algorithm 2. Each row counts 1/n_i; the first P^Δ is uniform."""
    before = torch.full_like(log_probs, 1 / log_probs.shape[1]) if previous is None else previous.exp()
    scale = torch.repeat_interleave(1 / sizes.to(log_probs), sizes.to(log_probs.device)).unsqueeze(1)
    return float((scale * (log_probs.exp() - before)).norm())


def moving_average(average: Tensor, predicted: Tensor, momentum: float) -> Tensor:
    """`momentum` times the average of log-probabilities, plus the rest of the latest ones."""
    if not momentum:
        return predicted
    # the user's `log_probs` may contain -inf, from which an average would never recover
    return torch.lerp(predicted, average.clamp_min(-100.0).to(predicted), momentum)

"""What the loop asks of a method."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from apportion.bags.bags import BagBatch, Bags

# named, already weighted; the loss is their sum, so what is logged is what is optimized
LossTerms = dict[str, Tensor]


class Learner(Protocol):
    """A method. `steps` yields a set of terms for each player; the loop steps that player, then goes on."""

    classifier: nn.Module  # (n, ...) -> logits (n, k)

    def networks(self) -> list[nn.Module]:
        """The networks that learn, one optimizer each."""
        ...

    def losses(self, batch: BagBatch, progress: float) -> Iterator[LossTerms]:
        """One turn of every player on a batch; `progress` runs from 0 to 1 over the stage."""
        ...


def checked_networks(
    learner: Learner, optimizers: Sequence[Optimizer], rate: Callable[[float], float]
) -> list[nn.Module]:
    """The players of a learner, or what is wrong with what they are to be trained by."""
    if isinstance(optimizers, Optimizer):
        raise TypeError(f"optimizers is one {type(optimizers).__name__}; pass a list, [optimizer]")
    if not callable(rate):
        remedy = "of the peak rate by progress from 0 to 1, such as lambda progress: 1.0"
        raise TypeError(f"rate is {rate!r}; pass a function to a share {remedy}")
    players = learner.networks()
    if len(optimizers) != len(players):
        what = f"there are {len(optimizers)} optimizers for {len(players)} players"
        raise ValueError(f"{what}; pass one for each of learner.networks(), in a list")
    for i, (player, optimizer) in enumerate(zip(players, optimizers, strict=True)):
        own = {id(weight) for weight in player.parameters()}
        if own and own.isdisjoint(id(w) for group in optimizer.param_groups for w in group["params"]):
            what = f"optimizer {i} has no weight of player {i}, a {type(player).__name__}"
            raise ValueError(f"{what}, which would learn nothing; make it from that network's parameters")
    return players


def check_known_proportions(bags: Bags) -> None:
    """Bags without proportions teach a first stage nothing, and would make all weights NaN."""
    for i in bags.proportions.isnan().any(1).nonzero().flatten()[:1].tolist():
        remedy = "train on known_bags(bags), of apportion.intake.mending"
        raise ValueError(f"bag {bags.ids[i]!r} has no proportions, which a first stage learns from; {remedy}")


def loss_terms_of(learner: Learner, batch: BagBatch, progress: float) -> Iterator[LossTerms]:
    """What `steps` yields; terms that it returns would be taken for their names."""
    turns = learner.losses(batch, progress)
    if turns is None or isinstance(turns, dict):
        what = f"steps of {type(learner).__name__} returns {type(turns).__name__}"
        raise TypeError(f"{what}; it must yield a dict of terms for each player: yield, not return")
    return turns


@contextmanager
def frozen_batch_norm(model: nn.Module) -> Iterator[None]:
    """Forward passes inside leave the running statistics as they were."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    tracked = [m.track_running_stats for m in norms]
    try:
        for m in norms:
            m.track_running_stats = False  # not momentum 0: the number of batches would still be counted
        yield
    finally:
        for m, was_tracked in zip(norms, tracked, strict=True):
            m.track_running_stats = was_tracked


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """What is computed inside has gradients for its inputs alone: those of the weights, a third of the
    arithmetic, are not wanted, and a compiled backward pass would make them all the same."""
    learning = [p for p in model.parameters() if p.requires_grad]
    try:
        for p in learning:
            p.requires_grad_(False)
        yield
    finally:
        for p in learning:
            p.requires_grad_()


class WeightAverage(nn.Module):
    """Running means of a network's weights and statistics. A module, so that a checkpoint has its count.

    After t steps the momentum is (1 + t) / (10 + t), up to the one that was asked for: a short training would
    else be answered by the network that it began with.
    """

    taken: Tensor

    def __init__(self, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("taken", torch.zeros((), dtype=torch.int64))  # on the host: it is read in a step

    @torch.no_grad()
    def follow(self, mean: nn.Module, network: nn.Module) -> None:
        """One step, in place and all at once. Tensors are listed anew: networks may have been moved, and
        buffers replaced."""
        means, values = (
            [each for each in (*net.parameters(), *net.buffers()) if each.is_floating_point()]
            for net in (mean, network)
        )
        t = int(self.taken)
        torch._foreach_lerp_(means, values, 1 - min(self.momentum, (1 + t) / (10 + t)))
        self.taken += 1

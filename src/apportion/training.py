"""The training loop: one generator for all methods of both stages.

It yields after every epoch. What happens between epochs (evaluating, logging, stopping) is the body of the
caller's `for` statement, so there are no callbacks. Which epoch is kept is decided in `selection.epochs`.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from apportion._random import reseed
from apportion.bags.bags import Bags
from apportion.errors import TrainingError
from apportion.methods.protocol import Learner, LossTerms, check_networks, loss_terms
from apportion.optim import set_learning_rate

Schedule = Callable[[float], float]  # progress (0 to 1) -> fraction of the peak learning rate
View = Callable[[Tensor], Tensor]  # raw instances, on their device -> what the network takes


class Epoch(NamedTuple):
    """What the loop yields after an epoch."""

    number: int  # from 1
    total: int  # number of epochs in the stage
    terms: dict[str, float]  # mean of each loss term over the batches
    seconds: float


def train(
    learner: Learner,
    bags: Bags,
    optimizers: Sequence[Optimizer],
    *,
    epochs: int,
    schedule: Schedule,
    seed: int,
    stage: str,
    batch_size: int = 1024,
    by: str = "bag",
    augment: View = lambda x: x,
    done: int = 0,
) -> Iterator[Epoch]:
    """Train the learner's networks, one optimizer each, and yield after every epoch.

    All randomness of an epoch depends on `seed`, `stage` and the epoch's number alone. Training that resumes
    after `done` epochs therefore gives the same weights, bit for bit, as uninterrupted training.
    """
    if not callable(schedule):
        raise TypeError(
            f"schedule is {schedule!r}; pass a function from progress (0 to 1) to a fraction of the peak "
            "learning rate, such as lambda progress: 1.0"
        )
    rows_per_epoch = int(bags.sizes.clamp_max(batch_size).sum()) if by == "bag" else len(bags.x)
    for number in range(done + 1, epochs + 1):
        started = time.perf_counter()
        for network in check_networks(learner, optimizers):
            network.train()
        sums: LossTerms = {}
        n_batches = 0
        rows_done = 0
        for batch in bags.batches(batch_size, reseed(seed, stage, number), by=by):
            progress = (number - 1 + rows_done / rows_per_epoch) / epochs
            set_learning_rate(optimizers, schedule(progress))
            batch = replace(batch, x=augment(batch.x))
            for optimizer, terms in zip(optimizers, loss_terms(learner, batch, progress), strict=True):
                first, *others = terms.values()
                optimizer.zero_grad()
                sum(others, start=first).backward()
                optimizer.step()
                for name, term in terms.items():
                    sums[name] = sums[name] + term.detach() if name in sums else term.detach()
            n_batches += 1
            rows_done += len(batch.x)
        # the only point in an epoch where the host waits for the device
        means = (torch.stack(list(sums.values())) / n_batches).tolist()
        epoch = Epoch(number, epochs, dict(zip(sums, means, strict=True)), time.perf_counter() - started)
        check_finite(epoch, stage)
        yield epoch


def check_finite(epoch: Epoch, stage: str) -> None:
    """Raise TrainingError if a loss term has become NaN or infinite."""
    for name, mean in epoch.terms.items():
        if not math.isfinite(mean):
            raise TrainingError(
                f"the loss term '{name}' is {mean} in epoch {epoch.number} of the {stage} stage; "
                "lower the learning rate"
            )

"""The loop: one visible generator for every method of both stages."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from apportion._random import reseed
from apportion.bags.bags import Bags
from apportion.errors import TrainingError
from apportion.methods.protocol import Learner, checked_networks, loss_terms_of
from apportion.optim import set_learning_rate

Rate = Callable[[float], float]  # progress in [0, 1] -> share of the peak rate
View = Callable[[Tensor], Tensor]  # raw instances on their device -> what the network takes


class Epoch(NamedTuple):
    number: int  # from 1
    of: int  # so many
    terms: dict[str, float]  # mean of each term over the batches
    seconds: float


def train(
    learner: Learner,
    bags: Bags,
    optimizers: Sequence[Optimizer],
    *,
    epochs: int,
    rate: Rate,
    seed: int,
    stage: str,
    batch_size: int = 1024,
    augment: View = lambda x: x,
    done: int = 0,
) -> Iterator[Epoch]:
    """Train, and yield after every epoch: what happens between epochs is the body of the caller's for."""
    for number in range(done + 1, epochs + 1):
        started = time.perf_counter()
        for player in checked_networks(learner, optimizers, rate):
            player.train()
        sums: dict[str, Tensor] = {}
        n_batches, seen, rows = 0, 0, int(bags.sizes.clamp_max(batch_size).sum())
        for batch in bags.batches(batch_size, reseed(seed, stage, number)):
            progress = (number - 1 + seen / rows) / epochs
            set_learning_rate(optimizers, rate(progress))
            batch = replace(batch, x=augment(batch.x))
            for optimizer, terms in zip(optimizers, loss_terms_of(learner, batch, progress), strict=True):
                optimizer.zero_grad()
                reduce(add, terms.values()).backward()
                optimizer.step()
                for name, term in terms.items():
                    sums[name] = sums[name] + term.detach() if name in sums else term.detach()
            n_batches, seen = n_batches + 1, seen + len(batch.x)
        # the one wait for the device in an epoch
        means = dict(zip(sums, (torch.stack(list(sums.values())) / n_batches).tolist(), strict=True))
        for name, mean in means.items():
            if not math.isfinite(mean):
                where = f"epoch {number} of the {stage} stage"
                raise TrainingError(f"{where}: the term '{name}' is {mean}; lower the rate")
        yield Epoch(number, epochs, means, time.perf_counter() - started)

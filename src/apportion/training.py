"""The training loop: one generator for all methods of both stages.

It yields after every epoch. What happens between epochs (evaluating, logging, stopping) is the body of the
caller's `for` statement, so there are no callbacks. Which epoch is kept is decided in `selection.epochs`.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from apportion._random import seeded
from apportion.bags.bags import Bags
from apportion.errors import TrainingError
from apportion.methods.protocol import Learner, LossTerms
from apportion.optim import Schedule, set_learning_rate

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
        networks = check_networks(learner, optimizers)
        for network in networks:
            network.train()
        sums: LossTerms = {}
        n_batches = 0
        rows_done = 0
        with seeded(seed, stage, number) as generator:
            for batch in bags.batches(batch_size, generator, by=by):
                progress = (number - 1 + rows_done / rows_per_epoch) / epochs
                set_learning_rate(optimizers, schedule(progress))
                batch = replace(batch, x=augment(batch.x))
                turns = loss_terms(learner, batch, progress, len(networks))
                for optimizer, terms in zip(optimizers, turns, strict=True):
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


def check_networks(learner: Learner, optimizers: Sequence[Optimizer]) -> list[nn.Module]:
    """The learner's networks, after checking that each has an optimizer that trains it."""
    if isinstance(optimizers, Optimizer):
        raise TypeError(f"optimizers is one {type(optimizers).__name__}; pass a list, [optimizer]")
    networks = learner.networks()
    if len(optimizers) != len(networks):
        raise ValueError(
            f"there are {len(optimizers)} optimizers for {len(networks)} networks; pass a list with one for "
            "each of learner.networks()"
        )
    for i, (network, optimizer) in enumerate(zip(networks, optimizers, strict=True)):
        own = {id(weight) for weight in network.parameters()}
        trained = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
        if own and own.isdisjoint(trained):
            raise ValueError(
                f"optimizer {i} has no parameter of network {i}, a {type(network).__name__}, which would not "
                "learn; make it from that network's parameters"
            )
    return networks


def loss_terms(learner: Learner, batch: Any, progress: float, n_networks: int) -> Iterator[LossTerms]:
    """`learner.losses`, after checking that it yields one dict of tensors per network."""
    method = type(learner).__name__
    turns = learner.losses(batch, progress)
    if not isinstance(turns, Iterator):
        raise TypeError(
            f"losses of {method} must yield dicts of terms, one per network; it returned {_a(turns)}"
        )
    n_turns = 0
    for n_turns, terms in enumerate(turns, 1):
        if n_turns > n_networks:
            break
        if not isinstance(terms, dict):
            raise TypeError(f"losses of {method} yielded {_a(terms)}; yield a dict of terms by name")
        if not terms:
            raise ValueError(
                f"network {n_turns - 1} of {method} has no terms; yield at least one. {STATE_HINT}"
            )
        for name, term in terms.items():
            if not isinstance(term, Tensor):
                raise TypeError(f"the term '{name}' of {method} is {_a(term)}; yield a tensor")
        yield terms
    if n_turns != n_networks:
        count = n_turns if n_turns < n_networks else f"more than {n_networks}"
        raise ValueError(f"losses of {method} yields {count} dicts for {n_networks} networks. {STATE_HINT}")


STATE_HINT = (
    "A module that is not trained by terms of its own belongs into one nn.ModuleList with the network that is"
)


def _a(value: object) -> str:
    """A value in a message about its type, such as "a dict"."""
    return "None" if value is None else f"a {type(value).__name__}"


def check_finite(epoch: Epoch, stage: str) -> None:
    """Raise TrainingError if a loss term has become NaN or infinite."""
    for name, mean in epoch.terms.items():
        if not math.isfinite(mean):
            raise TrainingError(
                f"the loss term '{name}' is {mean} in epoch {epoch.number} of the {stage} stage; "
                "lower the learning rate"
            )

"""Predictions for bags by networks that have not seen them: each part of the bags in turn is left out."""

import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from apportion._device import catch_out_of_memory
from apportion._random import preserve_random_state, stream
from apportion.bags.bags import Bags
from apportion.evaluate import predict
from apportion.fitting import two_stages
from apportion.fitting.telling import words_of
from apportion.intake.instances import as_floats
from apportion.pipeline import EpochState

SILENCE = 5.0  # seconds between lines


def unseen_log_probs(
    bags: Bags, settings: Mapping[str, Any], folds: int = 4, seed: int = 0, verbose: bool = False
) -> Tensor:
    """Log-probabilities (N, k) in the order of the bags, on the CPU.

    For each of `folds` parts of the bags a network learns from all others; `settings` are those of
    `two_stages`. So the figures are those of networks trained alike, from a little less data.
    """
    m = len(bags.sizes)
    if not 2 <= folds <= m:
        raise ValueError(f"{m} bags cannot be left out in {folds} parts; there are at least two of each")
    part = torch.empty(m, dtype=torch.int64)
    part[torch.randperm(m, generator=stream(seed, "folds"))] = torch.arange(m) % folds
    row = torch.repeat_interleave(part, bags.sizes)
    found = torch.empty(len(bags.x), bags.n_classes)
    with preserve_random_state(bags.x.device), catch_out_of_memory(bags.x, bags.x.device):
        for fold in range(folds):
            others, name = bags.select((part != fold).nonzero().flatten()), f"network {fold + 1} of {folds}"
            epoch_states = two_stages(others, **settings)
            epoch_state = deque(_told(epoch_states, name) if verbose else epoch_states, maxlen=1).pop()
            mine = bags.x[(row == fold).to(bags.x.device)]
            found[row == fold] = predict(epoch_state.learner.classifier, mine, as_floats).cpu()
    return found


def _told(epoch_states: Iterable[EpochState], name: str) -> Iterator[EpochState]:
    """The same epoch_states, with a line about one of them now and then; none of a training of seconds."""
    said = time.monotonic()
    for epoch_state in epoch_states:
        if time.monotonic() - said > SILENCE:
            sys.stdout.write(f"{name}, {words_of(epoch_state, {})}\n")
            sys.stdout.flush()
            said = time.monotonic()
        yield epoch_state

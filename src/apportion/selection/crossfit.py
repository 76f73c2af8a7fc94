"""Out-of-fold predictions: every bag is predicted by a network that was trained without it."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from apportion._device import catch_out_of_memory
from apportion._random import preserve_random_state, stream
from apportion.bags.arrays import as_floats
from apportion.bags.bags import Bags
from apportion.errors import SettingsError
from apportion.evaluate import predict_log_proba
from apportion.pipeline import EpochState

SECONDS_BETWEEN_LINES = 5.0


def out_of_fold_log_proba(
    bags: Bags,
    fit: Callable[[Bags], Iterator[EpochState]],
    folds: int = 4,
    seed: int = 0,
    verbose: bool = False,
) -> Tensor:
    """Predict every bag with a network that was trained on other bags.

    Parameters
    ----------
    bags : Bags
        With known proportions.
    fit : function
        Trains a network on some of the bags, such as `partial(fit_two_stages, model=..., label=...)`.
    folds : int, default=4
        Number of parts of the bags. Each part is predicted by a network that learned from the others.
    seed : int, default=0
        Determines which bags are in which part.
    verbose : bool, default=False
        Print a line every few seconds.

    Returns
    -------
    Tensor of shape (N, k)
        Log-probabilities in the order of `bags.x`, on the CPU.
    """
    m = len(bags.sizes)
    if not 2 <= folds <= m:
        raise SettingsError(f"folds is {folds}, and there are {m} bags; pass a number from 2 to {m}")
    fold_of_bag = torch.empty(m, dtype=torch.int64)
    fold_of_bag[torch.randperm(m, generator=stream(seed, "folds"))] = torch.arange(m) % folds
    fold_of_row = torch.repeat_interleave(fold_of_bag, bags.sizes)
    log_probs = torch.empty(len(bags.x), bags.n_classes)
    with preserve_random_state(bags.x.device), catch_out_of_memory(bags.x, bags.x.device):
        for fold in range(folds):
            states = fit(bags.select((fold_of_bag != fold).nonzero().flatten()))
            if verbose:
                states = _print_progress(states, f"network {fold + 1} of {folds}")
            last = deque(states, maxlen=1).pop()
            rows = fold_of_row == fold
            x = bags.x[rows.to(bags.x.device)]
            log_probs[rows] = predict_log_proba(last.learner.classifier, x, as_floats).cpu()
    return log_probs


def _print_progress(states: Iterator[EpochState], name: str) -> Iterator[EpochState]:
    """Yield the states, and print the progress every few seconds; short trainings print nothing."""
    printed = time.monotonic()
    for state in states:
        if time.monotonic() - printed > SECONDS_BETWEEN_LINES:
            number, total = state.epoch.number, state.epoch.total
            sys.stdout.write(f"{name}, {state.stage} stage, epoch {number} of {total}\n")
            sys.stdout.flush()
            printed = time.monotonic()
        yield state

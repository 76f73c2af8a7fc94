"""Choosing an epoch by bags that no learner sees, and making probabilities true on them."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from apportion._device import plain_network
from apportion._random import stream
from apportion.bags.bags import Bags
from apportion.errors import DataError
from apportion.evaluate import predict
from apportion.intake.gaps import check_flags, refuse_alike
from apportion.intake.given import GivenBag
from apportion.intake.instances import as_floats
from apportion.intake.joining import BagOf
from apportion.judging.bag_scores import SCORES
from apportion.judging.calibration import cooled, fitted_temperature
from apportion.judging.verdict import LEAST_BAGS
from apportion.optim import words_of
from apportion.pipeline import EpochState


def check_choice(held_out: float, choose: str | None, calibrate: bool) -> None:
    """Refuse words that are not known, and a choice by bags that are not held out."""
    check_flags(calibrate=calibrate)
    if not isinstance(held_out, int | float | np.number) or not 0 <= held_out < 1:
        raise DataError(f"held_out is {held_out!r}; it is a share of the bags, at least 0 and less than 1")
    if choose is not None and choose not in SCORES:
        raise DataError(f"choose is {choose!r}; there are {', '.join(SCORES)}")
    for name, wanted in (("choose", choose is not None), ("calibrate", calibrate)):
        if wanted and not held_out:
            raise DataError(f"{name} goes by bags that are held out: pass held_out=0.1 (--held-out 0.1)")


def part_of(bags: Bags, held_out: float, seed: int, choose: str | None = None) -> tuple[Bags, Bags | None]:
    """The bags to learn from, and a share of those with proportions that no learner sees.

    These are enough to choose by, and those that are left are two at least, and differ.
    """
    if not held_out:
        return bags, None
    there = int(_eligible(bags).sum())
    cut = max(2, round(held_out * there))
    which = "bags" if there == len(bags.sizes) else "bags with proportions"
    what = f"of {there} {which} {cut} would be held out"
    if cut > there - 2:
        raise DataError(f"{what}; leave two at least to learn from")
    if cut < LEAST_BAGS and choose is not None and "correlation" in choose:
        share = f"hold out {LEAST_BAGS} at least, held_out={LEAST_BAGS / there:.2g}, or "
        remedy = f"{share if there >= LEAST_BAGS + 2 else ''}choose by likelihood"
        raise DataError(f"{what}, too few for a correlation; {remedy}")
    learned, held = split(bags, cut, seed)
    try:
        refuse_alike(learned)
    except DataError as problem:
        raise DataError(f"once {cut} of {there} bags are held out, {problem}, or hold out fewer") from None
    return learned, held


def split(bags: Bags, cut: int, seed: int) -> tuple[Bags, Bags]:
    """All bags but `cut`, and these; which ones depends on the seed alone."""
    order = torch.randperm(len(bags.sizes), generator=stream(seed, "held-out"))
    order = order[_eligible(bags)[order].logical_not().sort(stable=True).indices]
    return bags.select(order[cut:]), bags.select(order[:cut])


def _eligible(bags: Bags) -> Tensor:
    """(m,) bags with proportions that are not made of given labels: others say nothing when held out."""
    plain = (name.name if isinstance(name, BagOf) else name for name in bags.ids)
    given = torch.tensor([isinstance(name, GivenBag) for name in plain])
    return bags.proportions.isfinite().all(1).cpu() & ~given


class Chosen:
    """The network of the epoch with the best score on held-out bags; of the last epoch, if nothing chooses.

    `see` is told of every epoch of both stages and returns what history says of it. Rows go to the network,
    wherever it is; scores are counted on the CPU.
    """

    def __init__(self, held: Bags | None, choose: str | None) -> None:
        self.held = None if held is None else replace(held, proportions=held.proportions.cpu())
        self.choose = choose
        self.score, self.stage, self.epoch = -math.inf, "", 0
        self.classifier: nn.Module = nn.Identity()
        self.weights: dict[str, Tensor] | None = None
        self.optimizers: dict[str, str] = {}  # by stage, what turned its classifier, in words

    def see(self, epoch_state: EpochState) -> dict[str, Any]:
        network, said = epoch_state.learner.classifier, {}
        if epoch_state.optimizers:  # of which the first is the classifier's
            self.optimizers[epoch_state.stage] = words_of(epoch_state.optimizers[0])
        if self.held is not None and self.choose is not None:
            x = self.held.x.to(next(network.parameters()).device)
            score = SCORES[self.choose](predict(network, x, as_floats).cpu(), self.held)
            said = {f"held-out {self.choose}": score}
            if self.epoch and not score > self.score:  # nor one that is not a number
                return said
            self.score = -math.inf if math.isnan(score) else score  # any number is better
            # copies: training goes on with these very tensors
            self.weights = {name: value.clone() for name, value in network.state_dict().items()}
        self.classifier, self.stage, self.epoch = network, epoch_state.stage, epoch_state.epoch.number
        return said

    def network(self, calibrate: bool = False) -> tuple[nn.Module, float]:
        """The chosen network on the CPU, in evaluation mode, and the temperature that its scores were
        divided by: one, or that at which the counts of held-out bags are likeliest."""
        if self.weights is not None:
            self.classifier.load_state_dict(self.weights)
        network = plain_network(self.classifier).cpu().eval()
        if not calibrate or self.held is None:
            return network, 1.0
        log_probs = predict(network, self.held.x.cpu(), as_floats)
        temperature = fitted_temperature(log_probs, self.held.sizes, self.held.proportions)
        return cooled(network, temperature), temperature

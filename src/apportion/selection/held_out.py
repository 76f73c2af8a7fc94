"""Which bags are held out from training: a fraction for networks, all in turn for models of tables.

Held-out bags choose epochs and temperatures of networks (`split_bags`, with `validation_fraction`), and
penalties, numbers of trees and weights of models of tables (`split_to_choose`, without an option).
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from apportion._random import stream
from apportion.bags.bags import Bags
from apportion.bags.problems import check_bags_differ
from apportion.errors import DataError
from apportion.evaluate import MIN_BAGS_TO_CORRELATE

HELD_OUT = 0.2  # fraction of the bags, where they are held out once
MOST_BAGS = 1000  # held out; they are enough, and more take time
PARTS = 4  # of the bags, each of which is held out once, where models are fitted fast enough
MOST_ROWS_TO_CHOOSE = 200_000  # from which penalties and numbers of trees are chosen
# of equal size; fewer are all learned from, with usual settings, and an average of them has no trees
FEWEST_BAGS = 20


# --- for networks


def split_bags(
    bags: Bags, validation_fraction: float, seed: int, select_by: str | None = None
) -> tuple[Bags, Bags]:
    """The training bags and the validation bags, which are a fraction of those with known proportions.

    At least two bags are held out. At least two bags, with different proportions, are left for training.
    """
    n_eligible = int(can_validate(bags).sum())
    n_validation = max(2, round(validation_fraction * n_eligible))
    kind = "bags" if n_eligible == len(bags.sizes) else "bags with known proportions"
    what = f"validation_fraction={validation_fraction:g} holds out {n_validation} of {n_eligible} {kind}"
    if n_validation > n_eligible - 2:
        raise DataError(f"{what}; pass a smaller fraction, which leaves at least two for training")
    if n_validation < MIN_BAGS_TO_CORRELATE and select_by is not None and "correlation" in select_by:
        hint = "pass select_by='likelihood'"
        if n_eligible >= MIN_BAGS_TO_CORRELATE + 2:
            fraction = MIN_BAGS_TO_CORRELATE / n_eligible
            hint = f"pass validation_fraction={fraction:.2g}, or select_by='likelihood'"
        raise DataError(f"{what}, which are too few for a correlation; {hint}")
    training, validation = hold_out(bags, n_validation, seed)
    for problem in check_bags_differ(training.proportions.cpu().double().numpy()):
        raise DataError(
            f"{what}, and for the rest, {problem.message}; pass a smaller validation_fraction, or "
            f"{problem.render_hint().removeprefix('pass ')}",
            problems=[problem],
        )
    return training, validation


def hold_out(bags: Bags, n_validation: int, seed: int) -> tuple[Bags, Bags]:
    """All bags but `n_validation`, and these. The choice depends on the seed alone."""
    training, validation = choose_held_out(bags, n_validation, seed)
    return bags.select(training), bags.select(validation)


def choose_held_out(bags: Bags, n_validation: int, seed: int) -> tuple[Tensor, Tensor]:
    """The indices of the bags of `hold_out`, in random order."""
    order = torch.randperm(len(bags.sizes), generator=stream(seed, "held-out"))
    order = order[can_validate(bags)[order].logical_not().sort(stable=True).indices]
    return order[n_validation:], order[:n_validation]


def can_validate(bags: Bags) -> Tensor:
    """(m,) bool: bags with known proportions that are not made of known labels."""
    known = bags.proportions.isfinite().all(1).cpu()
    return known if bags.pure is None else known & ~bags.pure


# --- for models of tables


@dataclass(frozen=True)
class Split:
    """Bags to learn from, and bags to choose by."""

    bags: Bags
    learned: Tensor  # the indices of the bags to learn from, in random order where they are many
    held_out: Bags

    @cached_property
    def training(self) -> Bags:
        """The bags to learn from: a copy, which only networks need."""
        return self.bags.select(self.learned)

    @cached_property
    def small_training(self) -> Bags:
        """Those with known proportions or, of many rows, the first of them."""
        known = self.learned[self.bags.proportions[self.learned].isfinite().all(1)]
        count = int((self.bags.sizes[known].cumsum(0) <= MOST_ROWS_TO_CHOOSE).sum())
        return self.bags.select(known[: max(1, count)])


def effective_bags(mass: Tensor) -> float:
    """How many bags of equal size say as much as these, given the weights of their rows (Kish, 1965).

    Where one bag has most of the rows, it alone decides how well held-out bags are predicted, or what is
    learned without it.
    """
    return float(mass.double().sum().square() / mass.double().square().sum().clamp_min(1e-300))


def split_to_choose(bags: Bags, parts: int, seed: int) -> list[Split]:
    """Each part of the bags held out in turn; of one part, a fifth of the bags. No split of too few bags."""
    eligible = can_validate(bags)
    n_eligible = int(eligible.sum())
    if effective_bags(bags.mass[eligible]) < FEWEST_BAGS:
        return []
    if parts == 1:
        learned, held_out = choose_held_out(bags, min(MOST_BAGS, round(HELD_OUT * n_eligible)), seed)
        return [Split(bags, learned, bags.select(held_out))]
    part = torch.full((len(bags.sizes),), -1)
    part[eligible] = torch.randperm(n_eligible, generator=stream(seed, "parts")) % parts
    splits = []
    for number in range(parts):
        held_out = bags.select((part == number).nonzero().flatten())
        splits.append(Split(bags, (part != number).nonzero().flatten(), held_out))
    return splits

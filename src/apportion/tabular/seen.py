"""Whether the bags of a table are those that a model has learnt from, or those that it held out."""

import hashlib
from collections.abc import Iterable
from typing import Any

from apportion.bags import Bags
from apportion.judging.choosing import split
from apportion.models import Facts


def names_of(bags: Bags) -> str:
    """A sum of the bags' names in their order: whether bags are those that were held out."""
    return _sum(bags.ids)


def sum_of(bags: Bags) -> str:
    """A sum of the bags' names, sizes and mean features: whether they are those that were learnt from."""
    means = (round(mean, 4) + 0.0 for mean in bags.x.double().mean(0).flatten().tolist())  # no minus nought
    return _sum([*bags.ids, *bags.sizes.tolist(), *means])


def _sum(values: Iterable[Any]) -> str:
    return hashlib.sha256("\n".join(map(str, values)).encode()).hexdigest()[:16]


def held_out_of(facts: Facts, bags: Bags, seed: int) -> Bags | None:
    """The bags that training held out, if this is the table it had."""
    cut = facts.held_out
    if not 0 < cut < len(bags.sizes) or facts.bags != len(bags.sizes) - cut:
        return None
    trained, held = split(bags, cut, seed)
    # the order of names decides which are held out, and texts sort otherwise than numbers
    same = len(trained.x) == facts.rows and names_of(held) == facts.held_out_names
    return held if same else None


def learnt_from(facts: Facts, bags: Bags, seed: int) -> bool:
    """Whether the very rows and bags are those of the model's training, or these and what it held out."""
    cut = facts.held_out
    if 0 < cut < len(bags.sizes):
        bags, _ = split(bags, cut, seed)
    return sum_of(bags) == facts.learnt

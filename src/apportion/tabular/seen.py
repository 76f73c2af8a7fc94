"""Whether the bags of a table are those that a model has learned from, or those that it held out."""

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from apportion.bags.bags import Bags
from apportion.intake.joining import BagOf
from apportion.models import Facts
from apportion.selection.epochs import hold_out

PART = 1 << 24  # bytes of images


def names_of(bags: Bags) -> str:
    """A sum of the bags' names in their order: whether bags are those that were held out."""
    return _sum(bags.ids)


def sums_of(bags: Bags, held: Bags | None, groupings: int) -> str:
    """What was learned from: of one grouping `sum_of`, of several a sum of each, held-out bags in them."""
    if groupings == 1:
        return sum_of(bags)
    parts = [bags] if held is None else [bags, held]
    means = _means(*(part.x for part in parts))  # of all rows, each once a grouping
    found: dict[Any, list[tuple[Any, int]]] = {}
    for part in parts:
        for each, size in zip(part.ids, part.sizes.tolist(), strict=True):
            if isinstance(each, BagOf):
                found.setdefault(each.grouping, []).append((each.name, size))
    return ",".join(_sum_of_one(each, means) for each in found.values())


def _sum_of_one(bags: Iterable[tuple[Any, int]], means: Tensor) -> str:
    """In whatever order the bags are."""
    return _sum([*sorted(f"{name} {size}" for name, size in bags), *_rounded(means)])


def _rounded(means: Tensor) -> Iterable[float]:
    return (round(mean, 4) + 0.0 for mean in means.flatten().tolist())  # no minus nought


def sum_of(bags: Bags) -> str:
    """A sum of the bags' names, sizes and mean features: whether they are those that were learned from."""
    return _sum([*bags.ids, *bags.sizes.tolist(), *_rounded(_means(bags.x))])


def _means(*rows: Tensor) -> Tensor:
    """Of every feature; of images by parts, since as doubles they would be eight times as large."""
    shape = rows[0].shape[1:]
    if rows[0].dtype != torch.uint8:
        return (rows[0] if len(rows) == 1 else torch.cat(rows)).double().mean(0)
    total = torch.zeros(shape, dtype=torch.float64)  # of whole numbers: the order of parts does not matter
    for part in (part for x in rows for part in x.split(max(1, PART // shape.numel()))):
        total += part.sum(0, dtype=torch.float64).cpu()
    return total / sum(map(len, rows))


def _sum(values: Iterable[Any]) -> str:
    return hashlib.sha256("\n".join(map(str, values)).encode()).hexdigest()[:16]


def held_out_of(facts: Facts, bags: Bags, seed: int) -> Bags | None:
    """The bags that training held out, if this is the table it had."""
    cut = facts.held_out
    if not 0 < cut < len(bags.sizes) or facts.bags != len(bags.sizes) - cut:
        return None
    trained, held = hold_out(bags, cut, seed)
    # the order of names decides which are held out, and texts sort otherwise than numbers
    same = len(trained.x) == facts.rows and names_of(held) == facts.held_out_names
    return held if same else None


def learnt_from(facts: Facts, bags: Bags, seed: int) -> bool:
    """Whether the very rows and bags are those of the model's training, or these and what it held out."""
    cut = facts.held_out
    if facts.groupings > 1:
        mine = zip(bags.ids, bags.sizes.tolist(), strict=True)
        return _sum_of_one(mine, _means(bags.x)) in facts.learned.split(",")
    if 0 < cut < len(bags.sizes):
        bags, _ = hold_out(bags, cut, seed)
    return sum_of(bags) == facts.learned

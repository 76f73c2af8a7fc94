"""The pieces of a sample, each small: a bag, regions of the plane, a confusion matrix, the time of a part."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from apportion.bags.bags import Bags

FULL, TOP = 12, 10  # shares of all classes up to FULL of them, else of the TOP largest of each bag
PAIRS = 150  # the confusions kept where there are more than FULL classes


def bag_of(bags: Bags, i: int) -> dict[str, Any]:
    """The bag's name, size and known shares in per cent, the largest only where there are many classes."""
    known = bags.proportions[i].cpu()
    classes = list(range(len(known)))
    if len(known) > FULL:
        classes = known.argsort(descending=True, stable=True)[:TOP].tolist()
    shares = [round(100 * share, 2) for share in known[classes].tolist()]
    return {"name": str(bags.ids[i])[:40], "size": int(bags.sizes[i]), "classes": classes, "known": shares}


def grid_of(x: Tensor, across: int, up: int) -> dict[str, Any]:
    """A grid over two-dimensional instances and a little beyond."""
    low, high = x.amin(0), x.amax(0)
    ends = (low - 0.05 * (high - low), high + 0.05 * (high - low))
    low, high = ([round(value, 3) for value in end.tolist()] for end in ends)
    return {"low": low, "high": high, "across": across, "up": up}


def grid_points(grid: dict[str, Any]) -> Tensor:
    """The points of a grid, (up · across, 2), row by row from below."""
    (left, below), (right, above) = grid["low"], grid["high"]
    up, across = torch.linspace(below, above, grid["up"]), torch.linspace(left, right, grid["across"])
    return torch.stack(torch.meshgrid(across, up, indexing="xy"), -1).reshape(-1, 2)


def regions(log_probs: Tensor) -> str:
    """A digit a point: of two classes the second's share in tenths, of up to ten the class."""
    if log_probs.shape[1] == 2:
        return "".join(str(n) for n in (10 * log_probs[:, 1].exp()).long().clamp_max(9).tolist())
    return "".join(str(n) for n in log_probs.argmax(1).tolist())


def sparse(matrix: Tensor) -> dict[str, Any]:
    """A confusion matrix: in full where there are few classes, else its diagonal and its largest others."""
    k = len(matrix)
    if k <= FULL:
        return {"full": matrix.tolist()}
    others = matrix.masked_fill(torch.eye(k, dtype=torch.bool), 0).flatten()
    largest = others.argsort(descending=True, stable=True)[:PAIRS]
    pairs = [[i // k, i % k, int(others[i])] for i in largest.tolist() if others[i]]
    return {"right": matrix.diagonal().tolist(), "of": matrix.sum(1).tolist(), "pairs": pairs}


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """How long the work takes, the device's part included; it is done once before, to warm up."""
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return round(time.perf_counter() - started, 4)

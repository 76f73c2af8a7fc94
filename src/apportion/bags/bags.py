"""The training set of a learner: bags of instances and the class proportions of every bag, and no label.

Means over the rows of bags that are laid end to end.
"""

from bisect import bisect_right
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class BagBatch:
    """Whole bags laid end to end; no padding, so that batch-norm sees only real instances."""

    x: Tensor  # (n, ...)
    sizes: Tensor  # (b,) of the bags, which sum to n
    proportions: Tensor  # (b, k)
    row: Tensor  # (n,) which row of Bags.x
    left: float = 0.0  # share that was not drawn of a bag larger than a batch; a lone row may be beside it


@dataclass(frozen=True)
class Bags:
    """Bags as runs of rows, of any sizes. No label field: a learner cannot leak what it cannot reach."""

    x: Tensor  # (N, ...) sorted so that a bag is one run of rows
    sizes: Tensor  # (m,) int64 on the CPU, sums to N; batches are planned there without waiting for a device
    proportions: Tensor  # (m, k) float32, rows sum to one
    source: Tensor  # (N,) each row's place in the user's data
    ids: Sequence[Hashable]  # (m,) the user's names of the bags, for messages

    def __post_init__(self) -> None:
        m, n = len(self.sizes), len(self.x)
        if not (len(self.proportions) == len(self.ids) == m and len(self.source) == n):
            raise ValueError(
                f"{m} sizes, {len(self.proportions)} rows of proportions, {len(self.ids)} ids, {n} instances "
                f"and {len(self.source)} source rows do not fit; use build_bags or make_bags to build bags"
            )
        if int(self.sizes.sum()) != n:
            raise ValueError(f"the sizes sum to {int(self.sizes.sum())}, but there are {n} instances")
        for i in (self.sizes < 1).nonzero().flatten().tolist():
            raise ValueError(f"bag {self.ids[i]!r} has no instance; drop it")

    @property
    def n_classes(self) -> int:
        return self.proportions.shape[1]

    @property
    def overall(self) -> Tensor:
        """(k,) the shares of all rows, on the CPU and in double precision."""
        return (self.sizes.unsqueeze(1) * self.proportions.cpu().double()).sum(0) / len(self.x)

    def to(self, device: torch.device | str) -> "Bags":
        return replace(self, x=self.x.to(device), proportions=self.proportions.to(device))

    def select(self, which: Tensor) -> "Bags":
        """The bags numbered `which`, as bags of their own."""
        batch, ids = self.take(which), [self.ids[i] for i in which.tolist()]
        return Bags(batch.x, self.sizes[which], batch.proportions, self.source[batch.row.cpu()], ids)

    def take(self, which: Tensor) -> BagBatch:
        """One batch of the bags numbered `which`."""
        sizes, device = self.sizes[which], self.x.device
        row = self._rows(which, sizes).to(device)
        return BagBatch(self.x[row], sizes.to(device), self.proportions[which.to(device)], row)

    def batches(self, batch_size: int, generator: torch.Generator) -> Iterator[BagBatch]:
        """Bags in random order, filled up to a number of instances: an epoch is every instance once.

        A bag larger than a batch is one of its own, but for a lone row, and sampled anew in every epoch, so
        that memory does not depend on it.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; pass one or more")
        order = torch.randperm(len(self.sizes), generator=generator)
        kept = self.sizes[order].clamp_max(batch_size)
        row = self._rows(order, kept, generator)
        ends, cuts = [0, *kept.cumsum(0).tolist()], [0]  # where bags end, and where batches begin, in bags
        while cuts[-1] < len(order):
            cuts.append(bisect_right(ends, ends[cuts[-1]] + batch_size) - 1)
        for i in range(len(cuts) - 2, -1, -1):  # one row alone has no batch statistics: it joins a neighbor
            if ends[cuts[i + 1]] - ends[cuts[i]] == 1 < batch_size and len(cuts) > 2:
                del cuts[max(i, 1)]
        n_bags = [after - before for before, after in pairwise(cuts)]
        n_rows = [ends[after] - ends[before] for before, after in pairwise(cuts)]
        parts = ((row, n_rows), (kept, n_bags), (order, n_bags))
        # all indices travel once an epoch, so that no step waits for a copy
        on_device = (tensor.to(self.x.device).split(lengths) for tensor, lengths in parts)
        left = (1 - kept / self.sizes[order]).split(n_bags)
        for rows, sizes, which, undrawn in zip(*on_device, left, strict=True):
            x, shares = self.x.index_select(0, rows), self.proportions.index_select(0, which)  # [] is slow
            yield BagBatch(x, sizes, shares, rows, float(undrawn.max()))

    def _rows(self, which: Tensor, kept: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Rows of the bags numbered `which`, end to end; of a larger bag only `kept` are drawn."""
        sizes, n = self.sizes.numpy(), kept.numpy()  # half of the time of torch for few bags
        begin, start = (sizes.cumsum() - sizes)[which.numpy()], n.cumsum() - n
        row = torch.from_numpy(np.arange(n.sum()) + np.repeat(begin - start, n))
        for i in (sizes[which.numpy()] > n).nonzero()[0].tolist():
            random = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
            chosen = random.choice(sizes[which[i]], n[i], replace=False, shuffle=False)  # memory of n alone
            row[start[i] : start[i] + n[i]] = torch.from_numpy(begin[i] + chosen)
        return row


def bag_means(values: Tensor, sizes: Tensor) -> Tensor:
    """The mean of the rows of each bag, (b, k), for bags of any sizes laid end to end."""
    if values.device.type == "cpu":
        return torch.segment_reduce(values, "mean", lengths=sizes)
    return added_means(values, sizes)


def added_means(values: Tensor, sizes: Tensor) -> Tensor:
    """The same where segments have one thread a bag (CUDA), or no function at all."""
    bag = torch.repeat_interleave(sizes, output_size=len(values))
    return values.new_zeros(len(sizes), values.shape[1]).index_add_(0, bag, values) / sizes.unsqueeze(1)


def row_weighted_mean(values: Tensor, sizes: Tensor) -> Tensor:
    """The mean of a value of each bag (b,) over all rows: a bag counts as often as it has rows.

    So does its count in a likelihood: of a thousand rows it says a thousand times what that of one row says.
    """
    return (values * sizes).sum() / sizes.sum()


def exact_means(values: Tensor, sizes: Tensor) -> Tensor:
    """`bag_means` in double precision, where there is any: a huge bag's sum in single strays."""
    values = values if values.device.type == "mps" else values.double()
    return bag_means(values, sizes.to(values.device))

"""The training set of a learner: bags of instances and the class proportions of every bag, and no label."""

from bisect import bisect_right
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class BagBatch:
    """Whole bags laid end to end; no padding, so that batch-norm sees only real instances."""

    x: Tensor  # (n, ...)
    bag: Tensor  # (n,) which of the b bags
    proportions: Tensor  # (b, k)
    row: Tensor  # (n,) which row of Bags.x


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
                f"and {len(self.source)} source rows do not fit; use group_bags or make_bags to build bags"
            )
        if int(self.sizes.sum()) != n:
            raise ValueError(f"the sizes sum to {int(self.sizes.sum())}, but there are {n} instances")
        for i in (self.sizes < 1).nonzero().flatten().tolist():
            raise ValueError(f"bag {self.ids[i]!r} has no instance; drop it")

    @property
    def n_classes(self) -> int:
        return self.proportions.shape[1]

    def to(self, device: torch.device | str) -> "Bags":
        return replace(self, x=self.x.to(device), proportions=self.proportions.to(device))

    def select(self, which: Tensor) -> "Bags":
        """The bags numbered `which`, as bags of their own."""
        batch, ids = self.take(which), [self.ids[i] for i in which.tolist()]
        return Bags(batch.x, self.sizes[which], batch.proportions, self.source[batch.row.cpu()], ids)

    def take(self, which: Tensor) -> BagBatch:
        """One batch of the bags numbered `which`."""
        row, bag = self._rows(which)
        row, device = row.to(self.x.device), self.x.device
        return BagBatch(self.x[row], bag.to(device), self.proportions[which.to(device)], row)

    def batches(self, instances_per_batch: int, generator: torch.Generator) -> Iterator[BagBatch]:
        """The bags in random order, each batch filled up to a number of instances: an epoch is every
        instance once.

        A bag larger than a batch is a batch of its own, sampled anew in every epoch, so that memory does
        not depend on the largest bag. All indices travel to the device once an epoch, so that no step waits
        for a copy.
        """
        order = torch.randperm(len(self.sizes), generator=generator)
        row, position = self._rows(order, instances_per_batch, generator)
        ends = [0, *self.sizes[order].clamp_max(instances_per_batch).cumsum(0).tolist()]
        cuts = [0]  # where batches begin, in bags
        while cuts[-1] < len(order):
            cuts.append(bisect_right(ends, ends[cuts[-1]] + instances_per_batch) - 1)
        n_bags = torch.tensor(cuts).diff()
        position = position - torch.tensor(cuts[:-1]).repeat_interleave(n_bags)[position]
        n_rows = torch.tensor([ends[cut] for cut in cuts]).diff().tolist()
        parts = (
            tensor.to(self.x.device).split(lengths)
            for tensor, lengths in ((row, n_rows), (position, n_rows), (order, n_bags.tolist()))
        )
        for rows, bag, which in zip(*parts, strict=True):
            # index_select: a fourth of the time of [] for few rows
            yield BagBatch(self.x.index_select(0, rows), bag, self.proportions.index_select(0, which), rows)

    def _rows(
        self, which: Tensor, limit: int | None = None, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Rows of the bags numbered `which`, end to end, and for each row which of those bags it is in."""
        sizes = self.sizes[which]
        kept = sizes if limit is None else sizes.clamp_max(limit)
        begin = (self.sizes.cumsum(0) - self.sizes)[which]
        position = torch.repeat_interleave(kept)
        start = kept.cumsum(0) - kept
        row = torch.arange(int(kept.sum())) + (begin - start)[position]
        for i in (sizes > kept).nonzero().flatten().tolist():
            chosen = torch.randperm(int(sizes[i]), generator=generator)[: int(kept[i])]
            row[start[i] : start[i] + kept[i]] = begin[i] + chosen
        return row, position


def bag_means(values: Tensor, bag: Tensor, n_bags: int) -> Tensor:
    """The mean of the rows of each bag, (b, k), for bags of any sizes."""
    sums = values.new_zeros(n_bags, values.shape[1]).index_add_(0, bag, values)
    sizes = values.new_zeros(n_bags).index_add_(0, bag, torch.ones_like(bag, dtype=values.dtype))
    return sums / sizes.unsqueeze(1)

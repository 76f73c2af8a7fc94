"""Bags: the training data of every learner, instances in groups with the class proportions of each group.

Instances are sorted by bag and stored end to end without padding, so bags may have any sizes. There is no
label field: a learner cannot leak what it cannot reach. A row is the index of an instance.
"""

from bisect import bisect_right
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, overload

import numpy as np
import torch
from torch import Tensor

from apportion._scratch import empty_array
from apportion.errors import DataError, SettingsError


@dataclass(frozen=True)
class BagBatch:
    """Whole bags, end to end. Without padding, batch normalization sees only real instances.

    A bag that is larger than a batch is a batch by itself, of rows that are drawn anew in every epoch.

    Parameters
    ----------
    x : Tensor of shape (n, ...)
        The rows of the first bag, then those of the second, and so on.
    sizes : Tensor of shape (b,)
        The number of rows of each bag in the batch; they sum to n.
    proportions : Tensor of shape (b, k)
        The known class proportions of each bag.
    row : Tensor of shape (n,)
        The index of each row in `Bags.x`.
    undrawn : float, default=0.0
        The fraction of a bag larger than the batch that was not drawn.
    weight : Tensor of shape (n,), optional
        How much each row counts in its bag. None: all rows count the same.
    """

    x: Tensor  # (n, ...)
    sizes: Tensor  # (b,) sizes of the bags, summing to n
    proportions: Tensor  # (b, k)
    row: Tensor  # (n,) index into Bags.x
    undrawn: float = 0.0  # fraction of a bag larger than the batch that was not drawn
    weight: Tensor | None = None  # (n,) the weight of each row; None: all are equal


@dataclass(frozen=True)
class RowBatch:
    """Rows drawn from all bags, and the bag each one belongs to.

    Parameters
    ----------
    x : Tensor of shape (n, ...)
        The rows.
    row : Tensor of shape (n,)
        The index of each row in `Bags.x`.
    bag : Tensor of shape (n,)
        The index of each row's bag in `Bags.sizes` and `Bags.proportions`.
    weight : Tensor of shape (n,), optional
        How much each row counts in its bag. None: all rows count the same.
    """

    x: Tensor  # (n, ...)
    row: Tensor  # (n,) index into Bags.x
    bag: Tensor  # (n,) index into Bags.sizes and Bags.proportions
    weight: Tensor | None = None  # (n,) the weight of each row; None: all are equal


@dataclass(frozen=True)
class Bags:
    """Instances in bags of any sizes, with the class proportions of every bag and without labels."""

    x: Tensor  # (N, ...) sorted by bag
    sizes: Tensor  # (m,) int64, on the CPU, where batches are planned without waiting for a device
    proportions: Tensor  # (m, k) float32, rows sum to one; a row of NaN: unknown
    source: Tensor  # (N,) the index of each row in the user's data
    ids: Sequence[Hashable]  # (m,) the user's bag ids, for messages
    grouping: Sequence[Hashable] | None = None  # (m,) the grouping of each bag, if rows are in several bags
    # (m,) float64, on the CPU: the weight of a bag's proportions against predictions when labels are made.
    # Infinite: labels match the proportions exactly. None: they do in all bags.
    precision: Tensor | None = None
    pure: Tensor | None = None  # (m,) bool, on the CPU: bags made of rows with a known label
    # (N,) float32, positive: how much each row counts in its bag, such as the people it stands for. A row of
    # weight 3 is three equal rows. None: all rows count the same.
    weight: Tensor | None = None

    def __post_init__(self) -> None:
        m, n = len(self.sizes), len(self.x)
        if not (len(self.proportions) == len(self.ids) == m and len(self.source) == n):
            raise DataError(
                f"{m} sizes, {len(self.proportions)} rows of proportions, {len(self.ids)} ids, {n} instances "
                f"and {len(self.source)} source rows do not match; use build_bags or make_bags"
            )
        if self.weight is not None and len(self.weight) != n:
            raise DataError(
                f"weight has {len(self.weight)} entries, but there are {n} rows; pass one per row"
            )
        for name in ("grouping", "precision", "pure"):
            value = getattr(self, name)
            if value is not None and len(value) != m:
                raise DataError(f"{name} has {len(value)} entries, but there are {m} bags; pass one per bag")
        if int(self.sizes.sum()) != n:
            total = int(self.sizes.sum())
            raise DataError(
                f"the sizes sum to {total}, but there are {n} instances; use build_bags or make_bags"
            )
        for i in (self.sizes < 1).nonzero().flatten().tolist():
            raise DataError(f"{self.name(i)} has no instance; drop it")

    @property
    def n_classes(self) -> int:
        """Number of classes k."""
        return self.proportions.shape[1]

    @property
    def overall(self) -> Tensor:
        """Class proportions of all rows, (k,), float64 on the CPU."""
        mass = self.mass
        return (mass.unsqueeze(1) * self.proportions.cpu().double()).sum(0) / mass.sum()

    @property
    def mass(self) -> Tensor:
        """The sum of the weights of each bag, (m,), float64 on the CPU: its size if rows have no weights."""
        if self.weight is None:
            return self.sizes.double()
        return bag_sums(self.weight.cpu().double().unsqueeze(1), self.sizes).squeeze(1)

    def name(self, i: int) -> str:
        """Bag `i` as it is called in messages: "bag 'b7'", or "bag 'b7' of grouping 'age'"."""
        if self.grouping is None:
            return f"bag {self.ids[i]!r}"
        return f"bag {self.ids[i]!r} of grouping {self.grouping[i]!r}"

    def to(self, device: torch.device | str) -> "Bags":
        """The same bags with instances and proportions on `device`."""
        weight = None if self.weight is None else self.weight.to(device)
        return replace(self, x=self.x.to(device), proportions=self.proportions.to(device), weight=weight)

    def select(self, which: Tensor) -> "Bags":
        """The bags with these indices (CPU), in this order."""
        sizes = self.sizes[which]
        n = int(sizes.sum())
        x, source = empty_like(self.x, n), empty_like(self.source, n)
        weight = None if self.weight is None else empty_like(self.weight, n)
        for some, rows in bag_slices(sizes):
            index = self._row_indices(which[some], sizes[some])
            torch.index_select(self.source, 0, index, out=source[rows])
            index = index.to(self.x.device)
            torch.index_select(self.x, 0, index, out=x[rows])
            if self.weight is not None and weight is not None:
                torch.index_select(self.weight, 0, index, out=weight[rows])
        index = which.tolist()
        return Bags(
            x,
            sizes,
            self.proportions[which.to(self.x.device)],
            source,
            ids=[self.ids[i] for i in index],
            grouping=None if self.grouping is None else [self.grouping[i] for i in index],
            precision=None if self.precision is None else self.precision[which],
            pure=None if self.pure is None else self.pure[which],
            weight=weight,
        )

    def without_features(self) -> "Bags":
        """The same bags, whose instances have no features: to select some of them then takes no memory."""
        return replace(self, x=self.x.new_empty(len(self.x), 0))

    def known(self) -> "Bags":
        """The bags whose proportions are known, which is what a first stage can learn from."""
        known = self.proportions.isfinite().all(1).cpu()
        return self if bool(known.all()) else self.select(known.nonzero().flatten())

    def take(self, which: Tensor) -> BagBatch:
        """The bags with these indices (CPU) as one batch."""
        sizes = self.sizes[which]
        device = self.x.device
        row = self._row_indices(which, sizes).to(device)
        weight = None if self.weight is None else self.weight[row]
        proportions = self.proportions[which.to(device)]
        return BagBatch(self.x[row], sizes.to(device), proportions, row, weight=weight)

    @overload
    def batches(self, batch_size: int, generator: torch.Generator) -> Iterator[BagBatch]: ...
    @overload
    def batches(
        self, batch_size: int, generator: torch.Generator, by: Literal["bag"]
    ) -> Iterator[BagBatch]: ...
    @overload
    def batches(
        self, batch_size: int, generator: torch.Generator, by: Literal["row"]
    ) -> Iterator[RowBatch]: ...
    @overload
    def batches(
        self, batch_size: int, generator: torch.Generator, by: str
    ) -> Iterator[BagBatch] | Iterator[RowBatch]: ...
    def batches(
        self, batch_size: int, generator: torch.Generator, by: str = "bag"
    ) -> Iterator[BagBatch] | Iterator[RowBatch]:
        """One epoch in random order: batches of whole bags, or (`by="row"`) of rows from all bags.

        `batch_size` counts rows. Bags are added to a batch until the next one does not fit. A bag larger than
        a batch is a batch by itself: `batch_size` of its rows are drawn anew in every epoch, so that memory
        does not depend on the largest bag. A batch of a single row would have no batch statistics, so the row
        joins a neighboring batch if there is one.
        """
        if batch_size < 1:
            raise SettingsError(f"batch_size is {batch_size}; pass 1 or more")
        if by == "bag":
            return self._bag_batches(batch_size, generator)
        if by == "row":
            return self._row_batches(batch_size, generator)
        raise SettingsError(f"by is {by!r}; pass 'bag' or 'row'")

    def _bag_batches(self, batch_size: int, generator: torch.Generator) -> Iterator[BagBatch]:
        order = torch.randperm(len(self.sizes), generator=generator)
        drawn = self.sizes[order].clamp_max(batch_size)
        row = self._row_indices(order, drawn, generator)
        n_bags, n_rows = _plan_batches(drawn, batch_size)
        undrawn = (1 - drawn / self.sizes[order]).split(n_bags)
        # all indices are copied to the device once per epoch, so that no step waits for a copy
        device = self.x.device
        rows = row.to(device).split(n_rows)
        sizes = drawn.to(device).split(n_bags)
        bags = order.to(device).split(n_bags)
        for i in range(len(n_bags)):
            x = self.x.index_select(0, rows[i])  # faster than indexing with []
            proportions = self.proportions.index_select(0, bags[i])
            weight = None if self.weight is None else self.weight.index_select(0, rows[i])
            yield BagBatch(x, sizes[i], proportions, rows[i], float(undrawn[i].max()), weight)

    def _row_batches(self, batch_size: int, generator: torch.Generator) -> Iterator[RowBatch]:
        order = torch.randperm(len(self.x), generator=generator)
        _, n_rows = _plan_batches(torch.ones_like(order), batch_size)
        bag = torch.repeat_interleave(self.sizes)[order]
        device = self.x.device
        for row, bag_of_row in zip(order.to(device).split(n_rows), bag.to(device).split(n_rows), strict=True):
            weight = None if self.weight is None else self.weight.index_select(0, row)
            yield RowBatch(self.x.index_select(0, row), row, bag_of_row, weight)

    def _row_indices(self, which: Tensor, drawn: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Row indices of the bags `which`, end to end; `drawn` at random from a bag that has more."""
        # numpy takes half the time of torch for a few bags
        sizes = self.sizes.numpy()
        n = drawn.numpy()
        begin = (sizes.cumsum() - sizes)[which.numpy()]
        start = n.cumsum() - n
        row = torch.from_numpy(np.arange(n.sum()) + np.repeat(begin - start, n))
        for i in (sizes[which.numpy()] > n).nonzero()[0].tolist():
            random = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
            # choice needs memory for n rows only, a permutation for the whole bag
            chosen = random.choice(sizes[which[i]], n[i], replace=False, shuffle=False)
            row[start[i] : start[i] + n[i]] = torch.from_numpy(begin[i] + chosen)
        return row


def empty_like(x: Tensor, n_rows: int) -> Tensor:
    """Rows without values, like those of `x` in shape, type and device; many lie in a file (`_scratch`)."""
    shape = (n_rows, *x.shape[1:])
    if x.device.type != "cpu" or x.dtype == torch.bfloat16:
        return x.new_empty(shape)
    return torch.from_numpy(empty_array(shape, x[:0].numpy().dtype))


def _plan_batches(sizes: Tensor, batch_size: int) -> tuple[list[int], list[int]]:
    """The number of bags and the number of rows in each batch, for bags of these sizes in this order."""
    ends = [0, *sizes.cumsum(0).tolist()]  # ends[i]: rows in the first i bags
    cuts = [0]
    while cuts[-1] < len(sizes):
        cuts.append(bisect_right(ends, ends[cuts[-1]] + batch_size) - 1)
    for i in reversed(range(len(cuts) - 1)):
        single_row = ends[cuts[i + 1]] - ends[cuts[i]] == 1
        if single_row and batch_size > 1 and len(cuts) > 2:
            del cuts[max(i, 1)]
    n_bags = [after - before for before, after in pairwise(cuts)]
    n_rows = [ends[after] - ends[before] for before, after in pairwise(cuts)]
    return n_bags, n_rows


def bag_means(values: Tensor, sizes: Tensor, weight: Tensor | None = None) -> Tensor:
    """The mean of `values` (n, k) over the rows of each bag, (b, k); bags lie end to end.

    With `weight` (n,), the weighted mean.
    """
    if weight is not None:
        weight = weight.to(values).unsqueeze(1)
        return bag_sums(values * weight, sizes) / bag_sums(weight, sizes)
    if values.device.type == "cpu":
        return torch.segment_reduce(values, "mean", lengths=sizes)
    return index_add_bag_sums(values, sizes) / sizes.unsqueeze(1)


def bag_sums(values: Tensor, sizes: Tensor) -> Tensor:
    """The sum of `values` (n, k) over the rows of each bag, (b, k)."""
    if values.device.type == "cpu":
        return torch.segment_reduce(values, "sum", lengths=sizes)
    return index_add_bag_sums(values, sizes)


def index_add_bag_sums(values: Tensor, sizes: Tensor) -> Tensor:
    """`bag_sums` for devices whose segment_reduce is slow (one thread per bag on CUDA) or missing (MPS)."""
    bag = torch.repeat_interleave(sizes, output_size=len(values))
    return values.new_zeros(len(sizes), values.shape[1]).index_add_(0, bag, values)


def exact_bag_means(values: Tensor, sizes: Tensor, weight: Tensor | None = None) -> Tensor:
    """`bag_means` in float64 where the device has it: float32 sums of a huge bag lose digits."""
    values = values if values.device.type == "mps" else values.double()
    return bag_means(values, sizes.to(values.device), weight)


def bag_slices(sizes: Tensor, n_rows: int = 1 << 20) -> Iterator[tuple[slice, slice]]:
    """Slices of the bags, each with the slice of their rows: about `n_rows` at a time, to save memory."""
    ends = sizes.cumsum(0)
    first = 0
    start = 0
    while first < len(sizes):
        last = max(first + 1, int(torch.searchsorted(ends, start + n_rows, right=True)))
        stop = int(ends[last - 1])
        yield slice(first, last), slice(start, stop)
        first, start = last, stop

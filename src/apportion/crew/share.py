"""One process's share of the bags, and the weight of its part in every step: sums over processes are then
the terms and gradients of one process on all bags of the step."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from apportion.bags.bags import BagBatch, Bags
from apportion.crew.group import Group
from apportion.errors import RunError
from apportion.methods.protocol import Learner, LossTerms

MEANS = {"proportion", "counts", "labels", "consistency", "real", "fake"}  # over rows
WHOLE = {"matching"}  # made from means over all processes


class Share:
    """The bags of one process, in place of Bags: what the stages ask of those, in step with other processes.

    A process that has fewer batches than another repeats its last, with no weight.
    """

    def __init__(self, bags: Bags, group: Group, batch_size: int, epochs: int, done: int) -> None:
        self.group, self.epochs, self.done = group, epochs, done
        self.batch = own_batch(bags, group.size, batch_size)
        dealt, outline = deal(bags, group.size), replace(bags, x=bags.x.new_empty(len(bags.x), 0))
        self.bags = bags.select(dealt[group.rank])  # all that is read of instances in a mapped file
        self.outline = outline.select(dealt[group.rank])  # to count without copying
        self.x, self.sizes, self.proportions = self.bags.x, self.bags.sizes, self.bags.proportions
        self.rows = outline.take(dealt[group.rank]).row
        # the first process puts together what all have found
        self.all_rows = [] if group.rank else [outline.take(which).row for which in dealt]
        self.longest = max(int(bags.sizes[which].sum()) for which in dealt)
        self.of_rows = self.progress = 0.0

    def batches(self, batch_size: int, generator: torch.Generator, by: str = "bag") -> Iterator[BagBatch]:
        state = generator.get_state()
        ahead = self.outline.batches(batch_size, generator)
        counts = [len(batch.row) for batch in ahead]
        generator.set_state(state)
        table = self.group.rounded_up(counts, self.x.device)
        own, rows, seen = self.bags.batches(batch_size, generator), int(table.sum()), 0
        batch = None  # every process has a bag, and so a batch to begin with
        for mine, n_rows in zip(table[self.group.rank].tolist(), table.sum(0).tolist(), strict=True):
            self.of_rows = mine / n_rows
            self.progress = (self.done + seen / rows) / self.epochs
            seen += n_rows
            batch = next(own) if mine or batch is None else batch
            yield batch
        self.done += 1
        self.progress = self.done / self.epochs  # what is done between epochs goes by it too

    def gathered(self, part: Tensor) -> Tensor:
        """The values of all rows (N, k), from those of each process; the first alone has them."""
        parts = self.group.gathered(part, self.longest)
        if not parts:
            return part
        whole = part.new_empty(sum(map(len, self.all_rows)), *part.shape[1:])
        for rows, own in zip(self.all_rows, parts, strict=True):
            whole[rows] = own[: len(rows)]
        return whole

    def mean(self, values: Tensor) -> Tensor:
        """The mean of rows over all processes; its gradient is that of the own rows."""
        own = values.mean(0) * self.of_rows
        return own + (self.group.reduced(own.detach().clone()) - own.detach())

    def weighed(self, name: str, term: Tensor) -> Tensor:
        """A term's part in the sum over processes."""
        if name in WHOLE:  # each process has all of its value, and its own part of the gradient
            return term - term.detach() * (1 - 1 / self.group.size)
        if name not in MEANS:
            raise RunError(f"the term '{name}' is no known mean over instances; use one process")
        return term * self.of_rows

    def sum_gradients(self, player: nn.Module) -> None:
        """Put the sum over processes in place of a player's gradients, and the mean in place of batch-norm's
        running statistics, which each process takes of its own instances."""
        grads = [p.grad for p in player.parameters() if p.grad is not None]
        norms = [m for m in player.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        kept = [b for m in norms for b in (m.running_mean, m.running_var) if b is not None]
        for buffer in kept:
            buffer.mul_(self.of_rows)
        values = [*grads, *kept]
        total = self.group.reduced(torch.cat([value.detach().reshape(-1) for value in values]))
        for value, part in zip(values, total.split([value.numel() for value in values]), strict=True):
            value.detach().copy_(part.view(value.shape))


class Weighed:
    """A learner whose terms are weighed as parts of a sum over processes."""

    def __init__(self, learner: Learner, share: Share) -> None:
        self.learner, self.share, self.classifier = learner, share, learner.classifier

    def networks(self) -> list[nn.Module]:
        return self.learner.networks()

    def losses(self, batch: BagBatch, progress: float) -> Iterator[LossTerms]:
        for terms in self.learner.losses(batch, self.share.progress):
            yield {name: self.share.weighed(name, term) for name, term in terms.items()}


def deal(bags: Bags, processes: int) -> list[Tensor]:
    """The numbers of each process's bags: by size, in turn, so that shares differ by no more than a bag."""
    order = bags.sizes.argsort(descending=True, stable=True)
    return [order[rank::processes].sort().values for rank in range(processes)]


def own_batch(bags: Bags, processes: int, batch_size: int) -> int:
    """Instances that one process adds to a step; the recipe's number is that of all processes."""
    own = batch_size // processes
    if len(bags.sizes) < processes:
        raise RunError(f"{len(bags.sizes)} bags cannot be shared by {processes} processes; start fewer")
    split = (bags.sizes > own) & (bags.sizes <= batch_size)
    for i in split.nonzero().flatten().tolist():
        raise RunError(
            f"bag {bags.ids[i]!r} has {int(bags.sizes[i])} instances, but batch_size = "
            f"{batch_size} leaves each of {processes} processes {own}, and bags are not split; set "
            f"batch_size to at least {processes * int(bags.sizes.max())}, or start fewer processes"
        )
    return own

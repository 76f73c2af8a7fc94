"""Several processes for one training, started by torchrun: `DistributedPipeline` runs both stages in each.

Every bag belongs to one process and is never split. In every step each process computes the loss of its own
bags, weighted by its fraction of the step's rows. The sum of the gradients over processes is then exactly
the gradient of one process on all bags of the step, and all processes take the same step. docs/decisions/0016
explains why this is not DistributedDataParallel, which weights processes equally and misses forward passes
inside a method.

Read it top to bottom: the processes and what they exchange; the bags of one process; the weights and sums;
the two stages. A training script needs `process_group`, `DistributedPipeline` and nothing else.
"""

import atexit
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from apportion import pipeline
from apportion._random import derive_seed
from apportion.bags.bags import BagBatch, Bags
from apportion.errors import RunError, SettingsError
from apportion.losses import cross_entropy
from apportion.methods import LLPGAN, ROT, TwoViews
from apportion.methods.plot import LabelHistory, Loss
from apportion.methods.protocol import Learner, LossTerms
from apportion.optim import Schedule
from apportion.pipeline import EpochState
from apportion.pseudo_labels import Labeler, SoftLabels, hard_labels

MAX, SUM = dist.ReduceOp.MAX, dist.ReduceOp.SUM

# --- the processes and what they exchange


class ProcessGroup:
    """The processes of one training, as one of them sees them.

    Attributes
    ----------
    rank, size : int
        The number of this process, from 0, and how many there are.
    seconds : float
        Time spent on exchanging tensors, waiting included.
    """

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.seconds = 0.0

    def all_reduce(self, value: Tensor, operation: Any = SUM) -> Tensor:
        """The sum, or the maximum, of a tensor over the processes, in place."""
        started = time.perf_counter()
        dist.all_reduce(value, operation)
        self.seconds += time.perf_counter() - started
        return value

    def gather(self, part: Tensor, length: int) -> list[Tensor]:
        """The parts of all processes, padded to `length` rows. Only the first process receives them."""
        started = time.perf_counter()
        padded = part.new_zeros(length, *part.shape[1:])
        padded[: len(part)] = part
        parts = []
        if self.rank == 0:
            parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.gather(padded, parts or None)
        self.seconds += time.perf_counter() - started
        return parts

    def broadcast(self, value: Any) -> Any:
        """The first process's value, in every process."""
        box = [value]
        dist.broadcast_object_list(box, 0)
        return box[0]

    def all_gather(self, value: Any) -> list[Any]:
        """The values of all processes, in every process."""
        box: list[Any] = [None] * self.size
        dist.all_gather_object(box, value)
        return box

    def gather_counts(self, counts: Sequence[int], device: torch.device) -> Tensor:
        """The counts of every process, (processes, steps); zeros where a process has fewer steps."""
        steps = int(self.all_reduce(torch.tensor(len(counts), device=device), MAX))
        table = torch.zeros(self.size, steps, dtype=torch.int64, device=device)
        table[self.rank, : len(counts)] = torch.tensor(counts, device=device)
        return self.all_reduce(table).cpu()

    def barrier(self) -> None:
        """Wait until all processes have reached this point."""
        dist.barrier()


def process_group(device: torch.device) -> ProcessGroup | None:
    """The group that torchrun started, or None for a single process. Uses NCCL on CUDA, gloo on the CPU."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return None
    if not dist.is_initialized():
        if device.type == "mps":
            raise RunError("several processes train on the CPU or on CUDA, not on MPS; choose the device cpu")
        store, rank, size = next(dist.rendezvous("env://"))
        # after a restart torchrun's store still has the addresses of dead processes
        store = dist.PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size)
        atexit.register(dist.destroy_process_group)
    return ProcessGroup()


def process_device(device: torch.device) -> torch.device:
    """The device of this process: under torchrun each has a GPU of its own."""
    local_rank = os.environ.get("LOCAL_RANK")
    if device.type != "cuda" or local_rank is None:
        return device
    n_gpus = torch.cuda.device_count()
    if int(local_rank) >= n_gpus:
        raise RunError(f"process {local_rank} finds {n_gpus} GPUs; start no more processes than GPUs")
    torch.cuda.set_device(int(local_rank))
    return torch.device("cuda", int(local_rank))


def process_seed(seed: int, rank: int) -> int:
    """The seed of a process's order of bags, noise, mixup and augmentation."""
    return derive_seed(seed, "process", rank)


def process_batch_size(bags: Bags, n_processes: int, batch_size: int) -> int:
    """Rows per batch of one process; `batch_size` is that of all processes together."""
    own = batch_size // n_processes
    if len(bags.sizes) < n_processes:
        what = f"{len(bags.sizes)} bags are too few for {n_processes} processes"
        raise RunError(f"{what}; start fewer processes")
    # a bag larger than the whole batch is sampled in any case
    too_large = (bags.sizes > own) & (bags.sizes <= batch_size)
    for i in too_large.nonzero().flatten().tolist():
        raise RunError(
            f"{bags.name(i)} has {int(bags.sizes[i])} rows, but batch_size={batch_size} leaves {own} to each "
            f"of {n_processes} processes, and bags are not split; set batch_size to at least "
            f"{n_processes * int(bags.sizes.max())}, or start fewer processes"
        )
    return own


def check_same(group: ProcessGroup, facts: Mapping[str, Any]) -> None:
    """Raise `RunError` unless all processes agree on these facts, such as versions and a hash of the data."""
    for name, value in facts.items():
        values = group.all_gather(value)
        for rank, other in enumerate(values):
            if other != values[0]:
                what = f"'{name}' is {other} in process {rank} and {values[0]} in process 0"
                raise RunError(f"{what}; start all processes with the same one")


# --- the bags of one process


def deal_bags(bags: Bags, n_processes: int) -> list[Tensor]:
    """The bags of each process: dealt in turn by size, so that rows differ by no more than one bag."""
    order = bags.sizes.argsort(descending=True, stable=True)
    return [order[rank::n_processes].sort().values for rank in range(n_processes)]


class ProcessBags:
    """The bags of one process, used by the stages like `Bags` and in step with the other processes.

    All processes take the same number of steps. A process that has no batch left repeats its last batch with
    weight zero. From a memory-mapped file, only the process's own bags are read.

    Attributes
    ----------
    x, sizes, proportions :
        As in `Bags`, of the own bags.
    rows : Tensor
        The rows of the own bags among those of all.
    step_weight : float
        The process's fraction of the rows of the current step.
    progress : float
        From 0 to 1 over the stage, the same in all processes.
    """

    def __init__(self, bags: Bags, group: ProcessGroup, batch_size: int, epochs: int, done: int = 0) -> None:
        if bags.weight is not None:
            raise SettingsError("rows with weights are not dealt to several processes; train in one")
        self.group = group
        self.epochs = epochs
        self.done = done
        self.batch_size = process_batch_size(bags, group.size, batch_size)
        dealt = deal_bags(bags, group.size)
        outline = replace(bags, x=bags.x.new_empty(len(bags.x), 0))  # to count rows without copying instances
        self.bags = bags.select(dealt[group.rank])
        self.outline = outline.select(dealt[group.rank])
        self.x, self.sizes, self.proportions = self.bags.x, self.bags.sizes, self.bags.proportions
        self.precision = self.bags.precision
        self.rows = outline.take(dealt[group.rank]).row
        self._rows_of_all = [outline.take(which).row for which in dealt] if group.rank == 0 else []
        self._most_rows = max(int(bags.sizes[which].sum()) for which in dealt)
        self.weight = None  # of rows
        self.step_weight = self.progress = 0.0

    def batches(self, batch_size: int, generator: torch.Generator, by: str = "bag") -> Iterator[BagBatch]:
        """One epoch of batches of whole bags, which sets `step_weight` and `progress` for every step."""
        counts = self._count_rows(batch_size, generator)
        total = int(counts.sum())
        rows_done = 0
        batches = self.bags.batches(batch_size, generator, by="bag")
        batch = next(batches)  # every process has a bag
        for step in range(counts.shape[1]):
            own, of_all = int(counts[self.group.rank, step]), int(counts[:, step].sum())
            if own and step > 0:
                batch = next(batches)
            self.step_weight = own / of_all
            self.progress = (self.done + rows_done / total) / self.epochs
            rows_done += of_all
            yield batch
        self.done += 1
        self.progress = self.done / self.epochs  # between epochs, the momentum of labels depends on it

    def _count_rows(self, batch_size: int, generator: torch.Generator) -> Tensor:
        """(processes, steps) the rows of every batch to come; the generator stays as it is."""
        state = generator.get_state()
        counts = [len(batch.row) for batch in self.outline.batches(batch_size, generator, by="bag")]
        generator.set_state(state)
        return self.group.gather_counts(counts, self.x.device)

    def gather_rows(self, part: Tensor) -> Tensor:
        """The values (N, k) of all rows, in the first process; in others the own part, as it is."""
        parts = self.group.gather(part, self._most_rows)
        if not parts:
            return part
        whole = part.new_empty(sum(map(len, self._rows_of_all)), *part.shape[1:])
        for rows, padded in zip(self._rows_of_all, parts, strict=True):
            whole[rows] = padded[: len(rows)]
        return whole

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the rows of all processes; its gradient is that of the own rows."""
        own = values.mean(0) * self.step_weight
        return own + (self.group.all_reduce(own.detach().clone()) - own.detach())


# --- the weights and sums of a step

MEAN_TERMS = {"proportion", "counts", "labels", "consistency", "real", "fake"}  # means over rows
GLOBAL_TERMS = {"matching"}  # made of means over all processes


class WeightedLearner:
    """A learner whose loss terms are the process's parts of a sum over processes."""

    def __init__(self, learner: Learner, bags: ProcessBags) -> None:
        self.learner = learner
        self.bags = bags
        self.classifier = learner.classifier
        # a method from outside says which of its terms are means over rows
        self.mean_terms = {*MEAN_TERMS, *getattr(learner, "mean_terms", ())}

    def networks(self) -> list[nn.Module]:
        return self.learner.networks()

    def losses(self, batch: BagBatch, progress: float) -> Iterator[LossTerms]:
        for terms in self.learner.losses(batch, self.bags.progress):
            yield {name: weigh_term(name, term, self.bags, self.mean_terms) for name, term in terms.items()}


def weigh_term(
    name: str, term: Tensor, bags: ProcessBags, mean_terms: Collection[str] = MEAN_TERMS
) -> Tensor:
    """The process's part of a loss term: the parts of all processes sum to the term, and so do gradients."""
    if name in GLOBAL_TERMS:  # every process has the whole value, and only its own part of the gradient
        return term - term.detach() * (1 - 1 / bags.group.size)
    if name not in mean_terms:
        raise RunError(f"the loss term '{name}' cannot be summed over processes; use one process")
    return term * bags.step_weight


def sum_gradients(network: nn.Module, bags: ProcessBags) -> None:
    """Replace gradients by their sums over processes, and batch normalization's statistics by their means.

    Each process updates running statistics with its own rows.
    """
    values = [p.grad for p in network.parameters() if p.grad is not None]
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            for statistic in (module.running_mean, module.running_var):
                if statistic is not None:
                    statistic.mul_(bags.step_weight)
                    values.append(statistic)
    flat = torch.cat([value.detach().reshape(-1) for value in values])
    sums = bags.group.all_reduce(flat).split([value.numel() for value in values])
    for value, part in zip(values, sums, strict=True):
        value.detach().copy_(part.view(value.shape))


@contextmanager
def summed_gradients(
    networks: Sequence[nn.Module], optimizers: Sequence[Optimizer], bags: ProcessBags
) -> Iterator[None]:
    """Within this context, every optimizer sums gradients over the processes before it steps."""
    if any(optimizer._optimizer_step_pre_hooks for optimizer in optimizers):
        raise RunError(
            "an optimizer has a hook that changes gradients, such as clipping, before they are summed over "
            "processes; pass optimizers without such hooks, or use one process"
        )

    def hook_for(network: nn.Module) -> Any:
        def hook(*_: object) -> None:
            sum_gradients(network, bags)

        return hook

    handles = [
        optimizer.register_step_pre_hook(hook_for(network))
        for network, optimizer in zip(networks, optimizers, strict=True)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def global_feature_means(learner: Learner, bags: ProcessBags) -> Iterator[None]:
    """Within this context, LLP-GAN matches means of features over the rows of all processes."""
    if not isinstance(learner, LLPGAN):
        yield
        return
    before = learner.mean
    learner.mean = bags.mean
    try:
        yield
    finally:
        learner.mean = before


# --- the two stages


class DistributedPipeline:
    """The stages of `apportion.pipeline`, with the same arguments, for one process of a group.

    They yield the loss terms of all bags. In the second stage the first process also yields the predictions
    and labels of all rows.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group

    def first_stage(
        self,
        learner: Learner,
        bags: Bags,
        optimizers: Sequence[Optimizer],
        *,
        epochs: int,
        schedule: Schedule,
        seed: int,
        batch_size: int = 1024,
        by: str = "bag",
        resume: dict[str, Any] | None = None,
        **options: Any,
    ) -> Iterator[EpochState]:
        """`pipeline.first_stage` in this process."""
        if isinstance(learner, TwoViews):
            raise RunError("TwoViews contrasts all instances of a batch with each other; use one process")
        if getattr(learner, "memory", None) is not None:
            raise RunError("a memory of predictions needs those of all rows; use one process, or no memory")
        _check_whole_bags(by)
        pipeline.check_known_proportions(bags)
        own = ProcessBags(bags, self.group, batch_size, epochs, _epochs_done(resume))
        states = pipeline.first_stage(
            WeightedLearner(learner, own),
            cast(Bags, own),
            optimizers,
            epochs=epochs,
            schedule=_schedule_of(own, schedule),
            seed=process_seed(seed, self.group.rank),
            batch_size=own.batch_size,
            resume=resume,
            **options,
        )
        with summed_gradients(learner.networks(), optimizers, own), global_feature_means(learner, own):
            for state in states:
                if isinstance(learner, ROT):
                    worst = self.group.all_reduce(learner.label.worst_error.clone(), MAX)
                    # only the first process reports it, and only what is reported is reset
                    learner.label.worst_error = worst if self.group.rank == 0 else torch.zeros_like(worst)
                yield replace(self._with_summed_terms(state), learner=learner)

    def second_stage(
        self,
        log_probs: Tensor,
        student: nn.Module,
        bags: Bags,
        optimizers: Sequence[Optimizer],
        *,
        epochs: int,
        schedule: Schedule,
        seed: int,
        label: Labeler = hard_labels,
        loss: Loss = cross_entropy,
        weights: Tensor | None = None,
        stop: float | None = None,
        batch_size: int = 1024,
        by: str = "bag",
        resume: dict[str, Any] | None = None,
        **options: Any,
    ) -> Iterator[EpochState]:
        """`pipeline.second_stage` in this process."""
        if stop is not None:
            raise RunError(f"stop={stop} needs the predictions of all rows; use one process, or no stop")
        _check_whole_bags(by)
        own = ProcessBags(bags, self.group, batch_size, epochs, _epochs_done(resume))
        gatherer = RowGatherer(own)

        def own_part_of_loss(logits: Tensor, labels: Tensor) -> Tensor:
            return loss(logits, labels) * own.step_weight

        states = pipeline.second_stage(
            log_probs[own.rows],
            student,
            cast(Bags, own),
            optimizers,
            epochs=epochs,
            schedule=_schedule_of(own, schedule),
            seed=process_seed(seed, self.group.rank),
            label=label,
            loss=own_part_of_loss,
            weights=None if weights is None else weights[own.rows],
            batch_size=own.batch_size,
            resume=_own_rows(resume, own.rows.cpu()),
            **options,
        )
        with summed_gradients([student], optimizers, own):
            for state in states:
                if isinstance(label, SoftLabels):
                    label.last_error = self.group.all_reduce(label.last_error.clone(), MAX)
                yield gatherer.gather(self._with_summed_terms(state))

    def _with_summed_terms(self, state: EpochState) -> EpochState:
        """The state with the loss terms of all bags."""
        terms = state.epoch.terms
        device = next(state.learner.classifier.parameters()).device
        sums = self.group.all_reduce(torch.tensor([*terms.values()], dtype=torch.float64, device=device))
        terms = dict(zip(terms, sums.tolist(), strict=True))
        return replace(state, epoch=state.epoch._replace(terms=terms))


class RowGatherer:
    """Gathers states of the second stage in the first process, where they are evaluated and saved.

    Rounds of labels that were gathered after an earlier epoch are not sent again.
    """

    def __init__(self, bags: ProcessBags) -> None:
        self.bags = bags
        self._before: list[tuple[Tensor, Tensor]] = []  # parts of this process, and the same of all rows
        self._now: list[tuple[Tensor, Tensor]] = []

    def gather(self, state: EpochState) -> EpochState:
        """The state with the predictions and labels of all rows."""
        self._before, self._now = self._now, []
        own_labels = cast(LabelHistory, state.labels)
        rounds = [self._all_rows(each) for each in own_labels.rounds]
        labels = LabelHistory(rounds[0], own_labels.limit)
        labels.restore(rounds)
        log_probs = None if state.log_probs is None else self._all_rows(state.log_probs)
        ema = self._all_rows(cast(Tensor, state.ema))
        return replace(state, labels=labels, log_probs=log_probs, ema=ema)

    def _all_rows(self, part: Tensor) -> Tensor:
        for known, whole in [*self._now, *self._before]:
            if known is part:
                self._now.append((part, whole))
                return whole
        whole = self.bags.gather_rows(part)
        self._now.append((part, whole))
        return whole


def _check_whole_bags(by: str) -> None:
    if by != "bag":
        raise RunError(f"by={by!r} needs the predictions of all rows; use one process, or by='bag'")


def _epochs_done(resume: dict[str, Any] | None) -> int:
    return 0 if resume is None else resume["epoch"]


def _schedule_of(bags: ProcessBags, schedule: Schedule) -> Schedule:
    """The schedule at the progress of all processes: a process's own progress may differ a little."""
    return lambda progress: schedule(bags.progress)


def _own_rows(resume: dict[str, Any] | None, rows: Tensor) -> dict[str, Any] | None:
    """The part of a saved state of the second stage that belongs to these rows."""
    if resume is None:
        return None
    labels = [each[rows] for each in resume["labels"]]
    return resume | {"labels": labels, "ema": resume["ema"][rows]}

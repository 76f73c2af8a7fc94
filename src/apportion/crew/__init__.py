"""The two stages with several processes: each trains on its own bags, and all take the same steps.

Both have the arguments of `pipeline`'s, and yield what one process would: the terms of all bags, and in the
second stage, to the first process, the predictions and labels of all instances.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from apportion import pipeline
from apportion._random import key
from apportion.bags.bags import Bags
from apportion.crew.group import MAX, Group, joined, own_device
from apportion.crew.share import Share, Weighed, own_batch
from apportion.crew.summing import averaging, summing
from apportion.errors import RunError
from apportion.methods import ROT, TwoViews
from apportion.methods.plot import LabelHistory
from apportion.methods.protocol import Learner
from apportion.pipeline import EpochState
from apportion.pseudo_labels import SoftLabels
from apportion.recipes import Recipe

__all__ = [
    "Crew", "RunError", "Group", "Share", "joined", "own_batch", "own_device", "own_seed",
    "refuse_strangers",
]  # fmt: skip


def own_seed(seed: int, rank: int) -> int:
    """The seed of a process's order, noise, mixup and augmentation."""
    return key(seed, "process", rank)


class Crew:
    """The stages of `pipeline`, for one process of a group."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.known: list[tuple[Tensor, Tensor]] = []  # own rows, and the same of all processes

    def first_stage(
        self, learner: Learner, bags: Bags, optimizers: Sequence[Optimizer], **given: Any
    ) -> Iterator[EpochState]:
        if isinstance(learner, TwoViews):
            raise RunError("two views are contrasted with all instances of a batch; use one process")
        if getattr(learner, "memory", None) is not None:
            raise RunError("scattered batches are remembered by one process; use one, or whole bags")
        given = _defaults(pipeline.first_stage) | given
        share, given = self._shared(bags, given)
        weighed = Weighed(learner, share)
        with summing(share, learner.networks(), optimizers), averaging(share, learner):
            for epoch_state in pipeline.first_stage(weighed, cast(Bags, share), optimizers, **given):
                if isinstance(learner, ROT):
                    worst = self.group.reduced(learner.label.worst.clone(), MAX)
                    # the first process alone writes it down, and so forgets it
                    learner.label.worst = torch.zeros_like(worst) if self.group.rank else worst
                yield replace(self._summed(epoch_state), learner=learner)

    def second_stage(
        self, log_probs: Tensor, student: nn.Module, bags: Bags, optimizers: Sequence[Optimizer], **given: Any
    ) -> Iterator[EpochState]:
        given = _defaults(pipeline.second_stage) | given
        if given["stop"] is not None:
            raise RunError("second.stop looks at all predictions at once; leave it out, or use one process")
        share, given = self._shared(bags, given)
        rows, loss, resume, label = share.rows, given["loss"], given["resume"], given["label"]
        given["loss"] = lambda logits, labels: loss(logits, labels) * share.of_rows
        if given["weights"] is not None:
            given["weights"] = given["weights"][rows]
        if resume is not None:
            tables = {"labels": [r[rows.cpu()] for r in resume["labels"]]}
            given["resume"] = resume | tables | {"ema": resume["ema"][rows.cpu()]}
        own = log_probs[rows], student, cast(Bags, share), optimizers
        with summing(share, [student], optimizers):
            for epoch_state in pipeline.second_stage(*own, **given):
                if isinstance(label, SoftLabels):
                    label.last = self.group.reduced(label.last.clone(), MAX)
                yield self._whole(self._summed(epoch_state), share)

    def _shared(self, bags: Bags, given: dict[str, Any]) -> tuple[Share, dict[str, Any]]:
        """The own share of the bags, and what a stage is told."""
        done = 0 if given["resume"] is None else given["resume"]["epoch"]
        share = Share(bags, self.group, given["batch_size"], given["epochs"], done)
        schedule = given["schedule"]
        return share, given | {
            "schedule": lambda progress: schedule(share.progress),
            "seed": own_seed(given["seed"], self.group.rank),
            "batch_size": share.batch,
        }

    def _summed(self, epoch_state: EpochState) -> EpochState:
        terms = epoch_state.epoch.terms
        device = next(epoch_state.learner.classifier.parameters()).device
        total = self.group.reduced(torch.tensor([*terms.values()], dtype=torch.float64, device=device))
        means = dict(zip(terms, total.tolist(), strict=True))
        return replace(epoch_state, epoch=epoch_state.epoch._replace(terms=means))

    def _whole(self, epoch_state: EpochState, share: Share) -> EpochState:
        """In the first process the epoch_state of all instances, which is evaluated, and resumed from."""
        before, self.known = self.known, []

        def whole(part: Tensor) -> Tensor:
            found = [full for own, full in [*self.known, *before] if own is part]
            if not found:
                found = [share.gathered(part)]
            self.known.append((part, found[0]))
            return found[0]

        labels = cast(LabelHistory, epoch_state.labels)
        rounds = [whole(each) for each in labels.rounds]
        memory = LabelHistory(rounds[0], labels.limit)
        memory.restore(rounds)
        log_probs = None if epoch_state.log_probs is None else whole(epoch_state.log_probs)
        return replace(
            epoch_state, labels=memory, log_probs=log_probs, ema=whole(cast(Tensor, epoch_state.ema))
        )


def _defaults(stage: Callable[..., Any]) -> dict[str, Any]:
    named = signature(stage).parameters.items()
    return {name: given.default for name, given in named if given.default is not given.empty}


def refuse_strangers(group: Group, here: dict[str, Any], recipe: Recipe) -> None:
    """All processes of a training have the same data, version and arithmetic, and step by whole gradients."""
    # a clip would shorten before the others' gradients are added, a memory would lack the others' rows
    alone = {"clip": recipe.first.clip if recipe.second is None else None, "batches": recipe.first.batches}
    for name in (each for each, value in alone.items() if value is not None):
        raise RunError(f"first.{name} is for one process; leave it out, or start one")
    for name in ("apportion", "torch", "exact", "data"):
        said = group.heard(here[name])
        for rank in (rank for rank, value in enumerate(said) if value != said[0]):
            raise RunError(f"'{name}' is {said[rank]} in process {rank}, {said[0]} in 0; make them one")

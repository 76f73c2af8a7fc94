"""The two stages end to end: read this file first.

A first stage learns from the bags' proportions. Its log-probabilities are all that the second stage takes
over, so that predictions from anywhere can start one. The second stage turns them into labels that meet
every bag's proportions, teaches those to a student, and relabels after every epoch (algorithm 1; algorithm
2 with soft labels and `stop`). Both are generators: what happens between epochs is the caller's for loop.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from apportion.bags.bags import Bags
from apportion.evaluate import predict
from apportion.losses import cross_entropy
from apportion.methods.plot import PLOT, LabelHistory, Loss, prediction_change
from apportion.methods.prediction_memory import scattered
from apportion.methods.protocol import Learner, check_known_proportions
from apportion.pseudo_labels import Labeller, hard_labels
from apportion.training import Epoch, Rate, View, train
from apportion.transport._inputs import ArrayLike


@dataclass(frozen=True)
class EpochState:
    """What a caller sees after an epoch: enough to evaluate, to log, and to resume from."""

    stage: str  # "first" or "second"
    epoch: Epoch
    learner: Learner
    optimizers: Sequence[Optimizer]
    log_probs: Tensor | None = None  # of all instances, where the stage relabeled after this epoch
    labels: LabelHistory | None = None
    running: Tensor | None = None  # the running mean of log-probabilities that is labeled
    before: Tensor | None = None  # the predictions that δ of algorithm 2 compares with
    change: float | None = None  # δ itself, where `stop` is given
    label_seconds: float = 0.0  # predicting and labeling all instances
    last: bool = False  # no epoch follows; a checkpoint of this one would have nothing to resume

    def state(self) -> dict[str, Any]:
        """Tensors and plain values only: the state from which `resume` continues to the same bits."""
        return {
            "stage": self.stage,
            "epoch": self.epoch.number,
            "players": [player.state_dict() for player in self.learner.networks()],
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "rounds": None if self.labels is None else self.labels.rounds,
            "running": self.running,
            "before": self.before,
        }


def first_stage(
    learner: Learner,
    bags: Bags,
    optimizers: Sequence[Optimizer],
    *,
    epochs: int,
    rate: Rate,
    seed: int,
    batch_size: int = 1024,
    augment: View = lambda x: x,
    resume: dict[str, Any] | None = None,
) -> Iterator[EpochState]:
    """Train any learner on the bags; its classifier is the teacher."""
    check_known_proportions(bags)
    done = restore(learner, optimizers, resume, "first")
    for epoch in train(
        learner, bags, optimizers, epochs=epochs, rate=rate, seed=seed, stage="first",
        batch_size=batch_size, augment=augment, done=done,
    ):  # fmt: skip
        yield EpochState("first", epoch, learner, optimizers, last=epoch.number == epochs)


def second_stage(
    log_probs: ArrayLike,
    student: nn.Module,
    bags: Bags,
    optimizers: Sequence[Optimizer],
    *,
    epochs: int,
    rate: Rate,
    seed: int,
    label: Labeller = hard_labels,
    loss: Loss = cross_entropy,
    mixup: float = 0.0,
    weights: Tensor | None = None,
    memory: int = 5,
    hold: int = 1,
    running: float = 0.0,
    stop: float | None = None,
    batch_size: int = 1024,
    scatter: bool = False,
    augment: View = lambda x: x,
    prepare: View = lambda x: x,
    resume: dict[str, Any] | None = None,
) -> Iterator[EpochState]:
    """Teach a student the transport labels of `log_probs` (N, k), in order of bags, and relabel as it learns.

    The first labels are kept for `hold` epochs: a new student is not asked before it has learned. Labels are
    made from a running mean of log-probabilities, whose momentum `running` falls with the rate; the student
    learns the mean of the last `memory` rounds, in batches of whole bags or (`scatter`) of rows of them all.
    """
    belief, before = torch.as_tensor(log_probs, dtype=torch.float32, device=bags.x.device), None
    labels = LabelHistory(label(belief, bags.sizes, bags.proportions), memory)
    learner = PLOT(student, labels, loss, mixup, weights)
    done = restore(learner, optimizers, resume, "second")
    if resume is not None and done:
        labels.restore([each.to(belief) for each in resume["rounds"]])  # a checkpoint is read to the CPU
        before = None if resume["before"] is None else resume["before"].to(belief)
        belief = resume["running"].to(belief)
    for epoch in train(
        learner, scattered(bags) if scatter else bags, optimizers, epochs=epochs, rate=rate, seed=seed,
        stage="second", batch_size=batch_size, augment=augment, done=done,
    ):  # fmt: skip
        fresh, change, started = None, None, time.perf_counter()
        if epoch.number >= hold:
            fresh = predict(student, bags.x, prepare, batch_size)
            lag = running * rate(epoch.number / epochs)  # a student at rest is believed at once
            # a floor of -100, since predictions from elsewhere may hold -inf, which no mean survives
            belief = torch.lerp(fresh, belief.clamp_min(-100.0).to(fresh), lag) if lag else fresh
            labels.add(label(belief, bags.sizes, bags.proportions))
        if stop is not None and fresh is not None:
            change, before = prediction_change(fresh, before, bags.sizes), fresh
        last = epoch.number == epochs or (stop is not None and change is not None and change <= stop)
        now = fresh, labels, belief, before, change, time.perf_counter() - started, last
        yield EpochState("second", epoch, learner, optimizers, *now)
        if last:
            return


def restore(
    learner: Learner, optimizers: Sequence[Optimizer], state: dict[str, Any] | None, stage: str
) -> int:
    """Put a saved state back into the players and their optimizers; the number of epochs that are done."""
    if state is None:
        return 0
    if state["stage"] != stage:
        raise ValueError(f"resume is a state of the {state['stage']} stage; pass one of the {stage}, or None")
    for player, saved in zip(learner.networks(), state["players"], strict=True):
        player.load_state_dict(saved)
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return state["epoch"]

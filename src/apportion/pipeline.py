"""The two stages: read this file first.

A first stage learns a classifier from the proportions of the bags. The second stage takes over its
log-probabilities and nothing else, so predictions from anywhere can start one. It turns them into labels
that match the proportions of every bag, trains a student on these labels, and relabels after every epoch
(algorithm 1 of the paper; algorithm 2 with soft labels and `stop`).

All stages are generators. They yield an EpochState after every epoch; what happens between epochs is the body
of the caller's `for` statement.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from apportion import defaults
from apportion._device import compile_for, usual_batch_lengths
from apportion._random import reseed
from apportion.bags.arrays import as_floats
from apportion.bags.bags import Bags
from apportion.errors import SettingsError
from apportion.evaluate import predict_log_proba
from apportion.losses import cross_entropy
from apportion.methods import make_learner
from apportion.methods.network_checks import check_network, check_shares_no_weights
from apportion.methods.plot import PLOT, LabelHistory, Loss, prediction_change
from apportion.methods.protocol import Learner, check_known_proportions
from apportion.pseudo_labels import Labeler, hard_labels, relaxed_proportions
from apportion.training import Epoch, Schedule, View, train
from apportion.transport._inputs import ArrayLike


@dataclass(frozen=True)
class EpochState:
    """What a stage yields after an epoch: enough to evaluate, to log, and to resume."""

    stage: str  # "first" or "second"
    epoch: Epoch
    learner: Learner
    optimizers: Sequence[Optimizer]
    last: bool = False  # no epoch follows
    # second stage only
    log_probs: Tensor | None = None  # (N, k) this epoch's predictions, or None during warm-up
    labels: LabelHistory | None = None
    ema: Tensor | None = None  # (N, k) moving average of the predictions, from which labels are made
    previous: Tensor | None = None  # (N, k) the predictions that `change` compares with next
    change: float | None = None  # δ of algorithm 2, if `stop` is given
    label_seconds: float = 0.0  # spent on predicting and labeling all rows

    def state(self) -> dict[str, Any]:
        """Tensors and plain values from which `resume` continues with the same bits."""
        return {
            "stage": self.stage,
            "epoch": self.epoch.number,
            "networks": [network.state_dict() for network in self.learner.networks()],
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "labels": None if self.labels is None else self.labels.rounds,
            "ema": self.ema,
            "previous": self.previous,
        }


def first_stage(
    learner: Learner,
    bags: Bags,
    optimizers: Sequence[Optimizer],
    *,
    epochs: int,
    schedule: Schedule,
    seed: int,
    batch_size: int = 1024,
    by: str = "bag",
    augment: View = lambda x: x,
    resume: dict[str, Any] | None = None,
) -> Iterator[EpochState]:
    """Train a method on the proportions of the bags; `learner.classifier` is the result.

    Batches are of whole bags, or of rows from all bags with `by="row"`, for methods that support it.
    """
    check_known_proportions(bags)
    done = _restore(learner, optimizers, resume, "first")
    for epoch in train(
        learner, bags, optimizers, epochs=epochs, schedule=schedule, seed=seed, stage="first",
        batch_size=batch_size, by=by, augment=augment, done=done,
    ):  # fmt: skip
        yield EpochState("first", epoch, learner, optimizers, last=epoch.number == epochs)


def second_stage(
    log_probs: ArrayLike,
    student: nn.Module,
    bags: Bags,
    optimizers: Sequence[Optimizer],
    *,
    epochs: int,
    schedule: Schedule,
    seed: int,
    label: Labeler = hard_labels,
    loss: Loss = cross_entropy,
    mixup: float = 0.0,
    weights: Tensor | None = None,
    memory: int = 5,
    warmup_epochs: int = 1,
    ema: float = 0.0,
    stop: float | None = None,
    batch_size: int = 1024,
    by: str = "bag",
    augment: View = lambda x: x,
    prepare: View = lambda x: x,
    resume: dict[str, Any] | None = None,
) -> Iterator[EpochState]:
    """Train a student on labels made from `log_probs`, and make new labels as it learns.

    `log_probs` (N, k) is in the order of `bags.x`. The first labels are kept for `warmup_epochs`, since a new
    student predicts nothing useful. From then on labels are made after every epoch, from a moving average of
    the student's log-probabilities with momentum `ema` times the schedule: the less the student still moves,
    the more its latest predictions count. The student learns the mean of the last `memory` rounds of labels.
    Training ends early when predictions change by at most `stop`. `augment` is what training sees of the
    instances, `prepare` what labeling sees.
    """

    def make_labels(log_probs: Tensor) -> Tensor:
        proportions = relaxed_proportions(log_probs, bags.sizes, bags.proportions, bags.precision)
        return label(log_probs, bags.sizes, proportions)

    average = torch.as_tensor(log_probs, dtype=torch.float32, device=bags.x.device)
    previous = None
    labels = LabelHistory(make_labels(average), memory)
    learner = PLOT(student, labels, loss, mixup, weights)
    done = _restore(learner, optimizers, resume, "second")
    if resume is not None:
        labels.restore([each.to(average) for each in resume["labels"]])  # checkpoints are read to the CPU
        if resume["previous"] is not None:
            previous = resume["previous"].to(average)
        average = resume["ema"].to(average)
    for epoch in train(
        learner, bags, optimizers, epochs=epochs, schedule=schedule, seed=seed, stage="second",
        batch_size=batch_size, by=by, augment=augment, done=done,
    ):  # fmt: skip
        started = time.perf_counter()
        predicted = None
        change = None
        if epoch.number >= warmup_epochs:
            predicted = predict_log_proba(student, bags.x, prepare, batch_size)
            momentum = ema * schedule(epoch.number / epochs)
            average = _moving_average(average, predicted, momentum)
            labels.add(make_labels(average))
            if stop is not None:
                change = prediction_change(predicted, previous, bags.sizes)
                previous = predicted
        label_seconds = time.perf_counter() - started
        converged = stop is not None and change is not None and change <= stop
        last = epoch.number == epochs or converged
        yield EpochState(
            "second", epoch, learner, optimizers, last, predicted, labels, average, previous, change,
            label_seconds,
        )  # fmt: skip
        if last:
            return


def fit_two_stages(
    bags: Bags,
    model: defaults.MakeNetwork,
    *,
    method: str = "dllp",
    label: Labeler | None,
    epochs: int | None = None,
    student_epochs: int | None = None,
    learning_rate: float | None = None,
    student_learning_rate: float | None = None,
    batch_size: int | None = None,
    horizontal_flip: bool = True,
    seed: int = 0,
) -> Iterator[EpochState]:
    """Train a teacher on the bags and, unless `label` is None, a student on labels made from its predictions.

    The classifier is that of the last state's learner. `model` makes a network, (shape of an instance,
    number of classes) -> nn.Module. None: chosen by `apportion.defaults`, by the kind of data and the bags.
    Bags without proportions (NaN) take part in the second stage only.
    """
    known = bags.known()
    shape = bags.x.shape[1:]
    device = bags.x.device
    kind = defaults.kind_of_data(bags.x, device)
    by = defaults.default_by(kind, method, bags, batch_size)
    rows = batch_size or defaults.default_batch_size(kind, bags, by)
    if epochs is None:
        epochs = defaults.default_epochs(kind, bags, batch_size, by)
    if student_epochs is None:
        student_epochs = defaults.default_student_epochs(kind, bags, rows, by)
    lengths = usual_batch_lengths(bags.sizes, rows)

    def new_network(stage: str, by_parts: bool) -> nn.Module:
        reseed(seed, stage, "weights")
        to_device, _ = compile_for(device, lengths, parts=by_parts)
        network = to_device(model(shape, bags.n_classes))
        if not defaults.is_built_in(model):
            check_shares_no_weights(network, model, shape, bags.n_classes)
        check_network(network, as_floats(bags.x[:1]), bags.n_classes, rows, horizontal_flip)
        defaults.set_initial_bias(network, defaults.initial_proportions(known))
        return network

    by_parts = method == "two_views"  # whose steps have several passes
    teacher = new_network("first", by_parts)
    muon = defaults.suits_muon(model, teacher)
    steps = epochs * len(known.x) / rows
    settings = defaults.default_optimization(kind, method, muon, steps, defaults.usual_bag_size(known))
    if learning_rate is not None:
        settings = replace(settings, learning_rate=learning_rate)
    to_device, compile_part = compile_for(device, lengths, parts=by_parts)
    options = defaults.default_method_options(kind, method)
    learner = make_learner(
        method, teacher, known, by=by, options=options, to_device=to_device, compile_part=compile_part
    )
    optimizers = defaults.make_optimizers(
        learner.networks(), settings, defaults.generator_learning_rate(kind)
    )
    view = compile_part(defaults.default_view(kind, method, horizontal_flip))
    yield from first_stage(
        learner, known, optimizers, epochs=epochs, schedule=settings.schedule, seed=seed, batch_size=rows,
        by=by, augment=view,
    )  # fmt: skip
    if label is None:
        return
    log_probs = predict_log_proba(learner.classifier, bags.x, as_floats, rows)
    student = new_network("second", by_parts=False)
    muon = defaults.suits_muon(model, student)
    settings = defaults.default_student_optimization(kind, muon, student_epochs * len(bags.x) / rows)
    if student_learning_rate is not None:
        settings = replace(settings, learning_rate=student_learning_rate)
    yield from second_stage(
        log_probs, student, bags, defaults.make_optimizers([student], settings), epochs=student_epochs,
        schedule=settings.schedule, seed=seed, label=label, mixup=defaults.default_mixup(kind),
        warmup_epochs=defaults.default_warmup_epochs(kind, student_epochs), ema=defaults.default_ema(kind),
        batch_size=rows, by=by, augment=defaults.default_view(kind, "plot", horizontal_flip),
        prepare=as_floats,
    )  # fmt: skip


def _moving_average(average: Tensor, predicted: Tensor, momentum: float) -> Tensor:
    if not momentum:
        return predicted
    # predictions from elsewhere may hold -inf, which no average would ever leave
    return torch.lerp(predicted, average.clamp_min(-100.0).to(predicted), momentum)


def _restore(
    learner: Learner, optimizers: Sequence[Optimizer], state: dict[str, Any] | None, stage: str
) -> int:
    """Load a saved state into networks and optimizers; returns the number of epochs that are done."""
    if state is None:
        return 0
    if state["stage"] != stage:
        raise SettingsError(f"resume is a state of the {state['stage']} stage; pass one of the {stage} stage")
    for network, saved in zip(learner.networks(), state["networks"], strict=True):
        network.load_state_dict(saved)
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return state["epoch"]

"""The two stages: read this file first.

A first stage learns a classifier from the proportions of the bags. The second stage takes over its
log-probabilities and nothing else, so predictions from anywhere can start one. It turns them into labels
that match the proportions of every bag, trains a student on these labels, and relabels after every epoch
(algorithm 1 of the paper; algorithm 2 with soft labels and `stop`).

All stages are generators. They yield an EpochState after every epoch; what happens between epochs is the body
of the caller's `for` statement.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
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
from apportion.defaults import TrainingPlan, make_optimizers
from apportion.errors import SettingsError
from apportion.evaluate import predict_log_proba
from apportion.losses import cross_entropy
from apportion.methods import make_learner
from apportion.methods.network_checks import MakeNetwork, check_network, check_shares_no_weights
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
    model: MakeNetwork,
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

    The trained classifier is `learner.classifier` of the last state. `model` makes a network from the shape
    of an instance and the number of classes. `None`: chosen by `apportion.defaults` from the kind of data
    and the bags. Bags without proportions (NaN) take part in the second stage only.
    """
    plan = defaults.plan_training(bags, method, batch_size, epochs, student_epochs)
    learner = yield from _fit_teacher(bags, model, plan, method, learning_rate, horizontal_flip, seed)
    if label is None:
        return
    log_probs = predict_log_proba(learner.classifier, bags.x, as_floats, plan.batch_size)
    yield from _fit_student(log_probs, bags, model, plan, label, student_learning_rate, horizontal_flip, seed)


def _fit_teacher(
    bags: Bags,
    model: MakeNetwork,
    plan: TrainingPlan,
    method: str,
    learning_rate: float | None,
    horizontal_flip: bool,
    seed: int,
) -> Generator[EpochState, None, Learner]:
    """The first stage with its defaults; returns the trained learner."""
    known = bags.known()
    lengths = usual_batch_lengths(bags.sizes, plan.batch_size)
    # a step of two_views has several forward passes: its parts are compiled instead of the network
    to_device, compile_part = compile_for(bags.x.device, lengths, parts=method == "two_views")
    reseed(seed, "first", "weights")
    network = _new_network(model, known, to_device, plan.batch_size, horizontal_flip)
    settings = defaults.default_optimization(
        plan.kind,
        method,
        muon=defaults.suits_muon(model, network),
        steps=plan.epochs * len(known.x) / plan.batch_size,
        bag_size=defaults.usual_bag_size(known),
    )
    if learning_rate is not None:
        settings = replace(settings, learning_rate=learning_rate)
    learner = make_learner(
        method,
        network,
        known,
        by=plan.by,
        options=defaults.default_method_options(plan.kind, method),
        to_device=to_device,
        compile_part=compile_part,
    )
    yield from first_stage(
        learner,
        known,
        make_optimizers(learner.networks(), settings, defaults.generator_learning_rate(plan.kind)),
        epochs=plan.epochs,
        schedule=settings.schedule,
        seed=seed,
        batch_size=plan.batch_size,
        by=plan.by,
        augment=compile_part(defaults.default_view(plan.kind, method, horizontal_flip)),
    )
    return learner


def _fit_student(
    log_probs: Tensor,
    bags: Bags,
    model: MakeNetwork,
    plan: TrainingPlan,
    label: Labeler,
    learning_rate: float | None,
    horizontal_flip: bool,
    seed: int,
) -> Iterator[EpochState]:
    """The second stage with its defaults, for a new network."""
    lengths = usual_batch_lengths(bags.sizes, plan.batch_size)
    to_device, _ = compile_for(bags.x.device, lengths, parts=False)
    reseed(seed, "second", "weights")
    student = _new_network(model, bags.known(), to_device, plan.batch_size, horizontal_flip)
    settings = defaults.default_student_optimization(
        plan.kind,
        muon=defaults.suits_muon(model, student),
        steps=plan.student_epochs * len(bags.x) / plan.batch_size,
    )
    if learning_rate is not None:
        settings = replace(settings, learning_rate=learning_rate)
    return second_stage(
        log_probs,
        student,
        bags,
        make_optimizers([student], settings),
        epochs=plan.student_epochs,
        schedule=settings.schedule,
        seed=seed,
        label=label,
        mixup=defaults.default_mixup(plan.kind),
        warmup_epochs=defaults.default_warmup_epochs(plan.kind, plan.student_epochs),
        ema=defaults.default_ema(plan.kind),
        batch_size=plan.batch_size,
        by=plan.by,
        augment=defaults.default_view(plan.kind, "plot", horizontal_flip),
        prepare=as_floats,
    )


def _new_network(
    model: MakeNetwork,
    known: Bags,
    to_device: Callable[[nn.Module], nn.Module],
    batch_size: int,
    horizontal_flip: bool,
) -> nn.Module:
    """A network for these bags, on its device, after checking that it can learn from them."""
    shape = known.x.shape[1:]
    network = to_device(model(shape, known.n_classes))
    if not defaults.is_built_in(model):
        check_shares_no_weights(network, model, shape, known.n_classes)
    check_network(network, as_floats(known.x[:1]), known.n_classes, batch_size, horizontal_flip)
    defaults.set_initial_bias(network, defaults.initial_proportions(known))
    return network


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

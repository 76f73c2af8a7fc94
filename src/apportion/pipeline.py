"""The two stages: read this file first.

A first stage learns a classifier from the proportions of the bags. The second stage takes over its
log-probabilities and nothing else, so predictions from anywhere can start one. It turns them into labels
that match the proportions of every bag, trains a student on these labels, and relabels after every epoch
(algorithm 1 of the paper; algorithm 2 with soft labels and `stop`).

All stages are generators. They yield an EpochState after every epoch; what happens between epochs is the body
of the caller's `for` statement.
"""

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from apportion._device import graphs_for, usual_batch_lengths
from apportion._random import seeded
from apportion.bags.arrays import as_floats
from apportion.bags.bags import Bags
from apportion.checkpoints import check_state
from apportion.defaults import (
    TrainingPlan,
    plan_student_optimization,
    plan_teacher_optimization,
    plan_training,
)
from apportion.errors import CheckpointError, DataError, SettingsError
from apportion.evaluate import predict_log_proba
from apportion.losses import cross_entropy
from apportion.methods import METHODS, make_learner, name_of
from apportion.methods.build import Method, takes_weights
from apportion.methods.new_network import MakeNetwork, new_network
from apportion.methods.plot import PLOT, LabelHistory, Loss, moving_average, prediction_change
from apportion.methods.protocol import Learner
from apportion.networks.trees import Tree, trees_as_tensors
from apportion.optim import Schedule, make_optimizers
from apportion.pseudo_labels import Labeler, hard_labels, relaxed_proportions
from apportion.training import Epoch, View, train
from apportion.transport import ArrayLike


@dataclass(frozen=True)
class EpochState:
    """What a stage yields after an epoch: enough to evaluate, to log, and to resume."""

    stage: str  # "first" or "second"
    epoch: Epoch
    learner: Learner
    optimizers: Sequence[Optimizer]
    last: bool = False  # no epoch follows, of this stage or another
    # second stage only
    log_probs: Tensor | None = None  # (N, k) this epoch's predictions, or None during warm-up
    labels: LabelHistory | None = None
    ema: Tensor | None = None  # (N, k) moving average of the predictions, from which labels are made
    previous: Tensor | None = None  # (N, k) the predictions with which `change` is computed in the next epoch
    change: float | None = None  # δ of algorithm 2, if `stop` is given
    label_seconds: float = 0.0  # time spent on predicting and labeling all rows
    # last state of an average of models only: their weights, scores and settings
    selection: dict[str, Any] | None = None
    # of models that are fitted in several steps
    step: str = ""
    trees: Sequence[Tree] | None = None  # of an ensemble that is being grown
    finished: Mapping[str, Any] = field(default_factory=dict)  # what earlier steps ended with, by name

    def state(self) -> dict[str, Any]:
        """Tensors and plain values that `resume` accepts; resumed training gives bit-identical weights."""
        networks = []
        if self.trees is None:
            networks = [network.state_dict() for network in self.learner.networks()]
        return {
            "stage": self.stage,
            "epoch": self.epoch.number,
            "networks": networks,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "labels": None if self.labels is None else self.labels.rounds,
            "ema": self.ema,
            "previous": self.previous,
            "step": self.step,
            "trees": None if self.trees is None else trees_as_tensors(self.trees),
            "finished": dict(self.finished),
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
    """Train a method on the proportions of the bags. The trained network is `learner.classifier`.

    Parameters
    ----------
    learner : Learner
        The method, see `apportion.methods`.
    bags : Bags
        Training data. The proportions of all bags must be known.
    optimizers : sequence of Optimizer
        One per network of `learner.networks()`.
    epochs : int
        Passes over the data.
    schedule : callable
        Maps progress (0 to 1) to a fraction of the peak learning rate, see `apportion.optim`.
    seed : int
        Determines the order of the bags and all other randomness.
    batch_size : int, default=1024
        Rows per batch.
    by : {"bag", "row"}, default="bag"
        Batches hold whole bags, or rows from all bags, which not all methods support.
    augment : callable, optional
        Turns a batch of instances into what the method takes, for example random views of images.
    resume : dict, optional
        `EpochState.state()` of an earlier epoch, after which training continues.

    Yields
    ------
    EpochState
        After every epoch.
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

    Parameters not listed here are those of `first_stage`.

    Parameters
    ----------
    log_probs : array-like of shape (N, k)
        Predictions from which the first labels are made, in the order of `bags.x`.
    student : nn.Module
        The network to train.
    bags : Bags
        Training data. Proportions may be unknown (NaN) or uncertain (`Bags.precision`).
    label : callable, default=hard_labels
        Makes labels from log-probabilities, sizes and proportions, see `apportion.pseudo_labels`.
    loss : callable, default=cross_entropy
        The loss (n,) of logits (n, k) and labels (n, k).
    mixup : float, default=0.0
        Parameter of mixup's Beta distribution; 0: no mixup.
    weights : Tensor of shape (N,), optional
        Weights of the rows in the loss, in addition to `bags.weight`.
    memory : int, default=5
        The student learns the mean of this many of the latest rounds of labels.
    warmup_epochs : int, default=1
        New labels are made after this epoch and every later one. Until then the student learns the first
        labels, since its own predictions are not useful yet.
    ema : float, default=0.0
        Labels are made from a moving average of the student's log-probabilities, whose momentum is `ema`
        times the schedule: as the learning rate falls, the latest predictions count more.
    stop : float, optional
        Training ends early when predictions change by at most this much (δ of algorithm 2).
    augment, prepare : callable, optional
        Turn a batch of instances into the input of the network, in training and in prediction.

    Yields
    ------
    EpochState
        After every epoch, with the predictions and the labels.
    """

    def make_labels(log_probs: Tensor) -> Tensor:
        weight = {} if bags.weight is None else {"weight": bags.weight}
        proportions = relaxed_proportions(log_probs, bags.sizes, bags.proportions, bags.precision, **weight)
        return label(log_probs, bags.sizes, proportions, **weight)

    average = torch.as_tensor(log_probs, dtype=torch.float32, device=bags.x.device)
    previous = None
    labels = LabelHistory(make_labels(average) if resume is None else average, memory)
    if bags.weight is not None:
        relative = bags.weight / bags.weight.mean()
        weights = relative if weights is None else weights * relative
    learner = PLOT(student, labels, loss, mixup, weights)
    done = _restore(learner, optimizers, resume, "second")
    if resume is not None:
        labels.restore([each.to(average) for each in resume["labels"]])  # checkpoints are loaded to the CPU
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
            average = moving_average(average, predicted, momentum)
            labels.add(make_labels(average))
            if stop is not None:
                change = prediction_change(predicted, previous, bags.sizes)
                previous = predicted
        label_seconds = time.perf_counter() - started
        converged = stop is not None and change is not None and change <= stop
        last = epoch.number == epochs or converged
        yield EpochState(
            "second",
            epoch,
            learner,
            optimizers,
            last=last,
            log_probs=predicted,
            labels=labels,
            ema=average,
            previous=previous,
            change=change,
            label_seconds=label_seconds,
        )
        if last:
            return


def fit_two_stages(
    bags: Bags,
    model: MakeNetwork,
    *,
    method: Method = "dllp",
    label: Labeler | None,
    epochs: int | None = None,
    student_epochs: int | None = None,
    learning_rate: float | None = None,
    student_learning_rate: float | None = None,
    batch_size: int | None = None,
    horizontal_flip: bool = True,
    seed: int = 0,
    resume: dict[str, Any] | None = None,
) -> Generator[EpochState, None, nn.Module]:
    """Train a teacher on the bags and, unless `label` is None, a student on labels made from its predictions.

    The trained network is `learner.classifier` of the last state; the generator also returns it. Parameters
    that are None are chosen by `apportion.defaults` from the kind of data and the bags.

    Parameters
    ----------
    bags : Bags
        Training data, on the device to train on. Bags with unknown proportions (NaN) take part in the second
        stage only.
    model : callable
        `(shape, n_classes) -> nn.Module`: makes a new network for instances of this shape.
    method : str or callable, default="dllp"
        The method of the first stage: a name in `apportion.methods.METHODS`, or a class such as those.
    label : callable or None
        Makes the labels of the second stage, see `apportion.pseudo_labels`. None: no second stage.
    epochs, student_epochs : int, optional
        Epochs of the first and of the second stage.
    learning_rate, student_learning_rate : float, optional
        Peak learning rates of both stages.
    batch_size : int, optional
        Rows per batch.
    horizontal_flip : bool, default=True
        Whether training may mirror images.
    seed : int, default=0
        Determines initial weights, batches and augmentation.
    resume : dict, optional
        `EpochState.state()` of an earlier epoch of either stage, after which training continues.

    Yields
    ------
    EpochState
        After every epoch of both stages.
    """
    if bags.weight is not None and not takes_weights(method):
        known = " or ".join(repr(name) for name in METHODS if takes_weights(name))
        raise SettingsError(
            f"the rows have weights, but the method is {name_of(method)!r}; pass method={known}"
        )
    plan = plan_training(
        bags,
        method,
        epochs=epochs,
        student_epochs=student_epochs,
        learning_rate=learning_rate,
        student_learning_rate=student_learning_rate,
        batch_size=batch_size,
        horizontal_flip=horizontal_flip,
    )
    only_teacher = label is None or plan.student_epochs == 0
    if resume is None or resume["stage"] == "first":
        teacher = yield from _fit_teacher(bags, model, plan, seed, resume, only_teacher)
        if label is None or only_teacher:
            return teacher
        log_probs = predict_log_proba(teacher, bags.x, as_floats, plan.batch_size)
        resume = None
    else:
        log_probs = resume["ema"]
    assert label is not None  # noqa: S101  # no state of a second stage comes from a fit without one
    return (yield from _fit_student(log_probs, bags, model, plan, label, seed, resume))


def _fit_teacher(
    bags: Bags,
    model: MakeNetwork,
    plan: TrainingPlan,
    seed: int,
    resume: dict[str, Any] | None,
    only_teacher: bool,
) -> Generator[EpochState, None, nn.Module]:
    """The first stage, on the bags whose proportions are known; returns the trained network."""
    known = bags.known()
    lengths = usual_batch_lengths(bags.sizes, plan.batch_size)
    # with two views there are several forward passes per step, so its parts are compiled, not the network
    to_device, graph_part = graphs_for(bags.x.device, lengths, parts=plan.pairs)
    view = graph_part(plan.view)
    with seeded(seed, "first", "weights"):
        network = new_network(model, known, to_device, plan.batch_size, plan.horizontal_flip)
        settings = plan_teacher_optimization(plan, model, network, known)
        learner = make_learner(
            plan.method,
            network,
            known,
            by=plan.by,
            options=plan.method_options,
            to_device=to_device,
            graph_part=graph_part,
        )
    optimizers = make_optimizers(learner.networks(), settings, plan.generator_learning_rate)
    if resume is not None:
        check_state(resume, learner.networks(), optimizers, error=CheckpointError)
    for state in first_stage(
        learner,
        known,
        optimizers,
        epochs=plan.epochs,
        schedule=settings.schedule,
        seed=seed,
        batch_size=plan.batch_size,
        by=plan.by,
        augment=view,
        resume=resume,
    ):
        yield replace(state, last=state.last and only_teacher)
    return learner.classifier


def _fit_student(
    log_probs: Tensor,
    bags: Bags,
    model: MakeNetwork,
    plan: TrainingPlan,
    label: Labeler,
    seed: int,
    resume: dict[str, Any] | None,
) -> Generator[EpochState, None, nn.Module]:
    """The second stage, for a new network, which is returned."""
    lengths = usual_batch_lengths(bags.sizes, plan.batch_size)
    to_device, _ = graphs_for(bags.x.device, lengths, parts=False)
    with seeded(seed, "second", "weights"):
        student = new_network(model, bags, to_device, plan.batch_size, plan.horizontal_flip)
    settings = plan_student_optimization(plan, model, student, bags)
    optimizers = make_optimizers([student], settings)
    if resume is not None:
        shape = (len(bags.x), bags.n_classes)
        check_state(resume, [student], optimizers, shape, error=CheckpointError)
    yield from second_stage(
        log_probs,
        student,
        bags,
        optimizers,
        epochs=plan.student_epochs,
        schedule=settings.schedule,
        seed=seed,
        label=label,
        mixup=plan.mixup,
        warmup_epochs=plan.warmup_epochs,
        ema=plan.ema,
        batch_size=plan.batch_size,
        by=plan.by,
        augment=plan.student_view,
        prepare=as_floats,
        resume=resume,
    )
    return student


def check_known_proportions(bags: Bags) -> None:
    """Raise DataError for a bag with unknown proportions, whose loss would make all weights NaN."""
    for i in bags.proportions.isnan().any(1).nonzero().flatten().tolist():
        raise DataError(
            f"{bags.name(i)} has no proportions for a first stage to learn from; use bags.known()"
        )


def _restore(
    learner: Learner, optimizers: Sequence[Optimizer], state: dict[str, Any] | None, stage: str
) -> int:
    """Load a saved state into networks and optimizers. Returns the number of completed epochs."""
    if state is None:
        return 0
    if state["stage"] != stage:
        raise SettingsError(f"resume is a state of the {state['stage']} stage; pass one of the {stage} stage")
    for network, saved in zip(learner.networks(), state["networks"], strict=True):
        network.load_state_dict(saved)
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return state["epoch"]

"""From the words of a recipe to networks, learners and functions."""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, cast

from torch import nn
from torch.optim import Optimizer

from apportion._device import PartCompiler, identity, plain_network
from apportion.bags.bags import Bags
from apportion.losses import SCE_WEIGHTS, cross_entropy, symmetric_cross_entropy
from apportion.methods import METHODS
from apportion.methods.llp_gan import generator
from apportion.methods.plot import Loss
from apportion.methods.prediction_memory import PredictionMemory
from apportion.methods.protocol import Learner
from apportion.methods.two_views import make_projector, split_network
from apportion.networks import NETWORKS
from apportion.optim import SCHEDULES, halving, make_optimizer
from apportion.pseudo_labels import Labeler, SoftLabels, argmax_labels, hard_labels, predicted_labels
from apportion.recipes import First, Network, Second
from apportion.training import Schedule


def build_network(network: Network, shape: Sequence[int], n_classes: int) -> nn.Module:
    return NETWORKS[network.name](shape, n_classes, **network.options)


def build_learner(
    first: First,
    classifier: nn.Module,
    shape: Sequence[int],
    place: Callable[[nn.Module], nn.Module],
    bags: Bags | None = None,
    quick: PartCompiler = identity,
) -> Learner:
    """The first stage's learner; LLP-GAN gets a generator of instances of this shape as its second player,
    two views a running mean of the network and a projector; for scattered batches `bags` are remembered.
    `quick` makes parts of a step fast."""
    options: dict[str, Any] = dict(first.options)
    if first.batches == "scattered":
        if bags is None:  # without them each row's proportions would be its label
            raise ValueError("scattered batches need the bags that are remembered; pass bags")
        priced = first.method == "two-views" and options.get("transport", True)
        options["memory"] = PredictionMemory(bags, priced, quick)
    if first.method == "gan":
        options["generator"] = place(generator(shape, int(options.get("noise", 100))))
    if first.method == "two-views":
        plain = split_network(plain_network(classifier))
        options["average"] = place(deepcopy(plain))
        width = cast(nn.Linear, plain[1]).in_features
        options["quick"] = quick
        options["projector"] = make_projector(width).to(next(plain.parameters()).device)
    return METHODS[first.method](classifier, **options)


def by(first: First) -> str:
    """Whether batches are of whole bags or of rows: `by` of the stages."""
    return "row" if first.batches == "scattered" else "bag"


def build_optimizers(players: Sequence[nn.Module], stage: First | Second) -> list[Optimizer]:
    """One optimizer a player: the stage's own for the classifier, Adam with β₁ = 0.5 for a generator."""
    classifier, *others = players
    given = {"decay": stage.decay, "momentum": stage.momentum}
    if not isinstance(stage, First):
        return [make_optimizer(classifier, stage.optimizer, stage.rate, **given)]
    own = make_optimizer(classifier, stage.optimizer, stage.rate, **given, clip=stage.clip)
    return [own, *(make_optimizer(other, "adam", stage.generator_rate, momentum=0.5) for other in others)]


def build_schedule(stage: First | Second) -> Schedule:
    schedule = SCHEDULES[stage.schedule]
    return partial(halving, epochs=stage.epochs) if schedule is halving else schedule


def build_labeler(second: Second) -> Labeler:
    if second.labels == "soft":
        return SoftLabels(second.reg, math.inf if second.relax is None else second.relax)
    return {"hard": hard_labels, "predicted": predicted_labels, "argmax": argmax_labels}[second.labels]


def build_loss(second: Second) -> Loss:
    if second.loss == "ce":
        return cross_entropy
    alpha, beta = SCE_WEIGHTS.get(second.loss.removeprefix("sce-"), (second.alpha, second.beta))
    return partial(symmetric_cross_entropy, alpha=alpha, beta=beta, log_zero=second.log_zero)

"""From the words of a recipe to networks, learners and functions."""

import math
from collections.abc import Callable, Sequence
from functools import partial

from torch import nn
from torch.optim import Optimizer

from apportion._device import PartCompiler, identity
from apportion.bags.bags import Bags
from apportion.defaults import Optimization, make_optimizers
from apportion.losses import SCE_WEIGHTS, cross_entropy, symmetric_cross_entropy
from apportion.methods import make_learner
from apportion.methods.plot import Loss
from apportion.methods.protocol import Learner
from apportion.networks import NETWORKS
from apportion.optim import SCHEDULES, halving
from apportion.pseudo_labels import Labeler, make_labeler
from apportion.recipes import First, Network, Second
from apportion.training import Schedule


def build_network(network: Network, shape: Sequence[int], n_classes: int) -> nn.Module:
    return NETWORKS[network.name](shape, n_classes, **network.options)


def build_learner(
    first: First,
    classifier: nn.Module,
    bags: Bags,
    to_device: Callable[[nn.Module], nn.Module] = lambda network: network,
    compile_part: PartCompiler = identity,
) -> Learner:
    return make_learner(
        first.method,
        classifier,
        bags,
        by=by(first),
        options=first.options,
        to_device=to_device,
        compile_part=compile_part,
    )


def by(first: First) -> str:
    """Whether batches are of whole bags or of rows: `by` of the stages."""
    return "row" if first.batches == "scattered" else "bag"


def build_optimizers(players: Sequence[nn.Module], stage: First | Second) -> list[Optimizer]:
    """One optimizer a player: the stage's own for the classifier, Adam with β₁ = 0.5 for a generator."""
    first = isinstance(stage, First)
    settings = Optimization(
        stage.optimizer, stage.rate, build_schedule(stage), stage.decay, stage.momentum,
        stage.clip if first else None,
    )  # fmt: skip
    return make_optimizers(players, settings, stage.generator_rate if first else 3e-4)


def build_schedule(stage: First | Second) -> Schedule:
    schedule = SCHEDULES[stage.schedule]
    return partial(halving, epochs=stage.epochs) if schedule is halving else schedule


def build_labeler(second: Second) -> Labeler:
    return make_labeler(second.labels, second.reg, math.inf if second.relax is None else second.relax)


def build_loss(second: Second) -> Loss:
    if second.loss == "ce":
        return cross_entropy
    alpha, beta = SCE_WEIGHTS.get(second.loss.removeprefix("sce-"), (second.alpha, second.beta))
    return partial(symmetric_cross_entropy, alpha=alpha, beta=beta, log_zero=second.log_zero)

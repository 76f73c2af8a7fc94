"""Networks of users' own: those that no stage can train, told before any training, and how others learn."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from apportion._device import plain_network
from apportion.grid.beyond import TWO_VIEWS, muon_rate
from apportion.grid.images import FAST, FAST_SECOND
from apportion.grid.others import bag_rate
from apportion.methods.protocol import frozen_batch_norm
from apportion.networks import NETWORKS
from apportion.networks.resnet import FlipAveraged
from apportion.recipes import First, Second

Stage = TypeVar("Stage", First, Second)
Backbone = Callable[[Sequence[int], int], nn.Module]  # (shape of an instance, classes) -> network


def is_ours(backbone: Backbone) -> bool:
    return (backbone.func if isinstance(backbone, partial) else backbone) in NETWORKS.values()


def suited(first: First, backbone: Backbone, network: nn.Module) -> First:
    """The settings of a first stage, with SGD (two views) or Adam in place of Muon for networks that are not
    ours, which may have learned before, and for those of ours in which lengths of filters matter."""
    if first.optimizer != "muon" or suits_muon(backbone, network):
        return first
    other = TWO_VIEWS if first.method == "two-views" else FAST.first
    own = replace(first, optimizer=other.optimizer, rate=other.rate)
    return replace(own, decay=other.decay, schedule=other.schedule, clip=other.clip)


def suited_student(second: Second, backbone: Backbone, network: nn.Module) -> Second:
    """The same of a second stage, with SGD."""
    if second.optimizer != "muon" or suits_muon(backbone, network):
        return second
    own = replace(second, optimizer=FAST_SECOND.optimizer, rate=FAST_SECOND.rate)
    return replace(own, schedule=FAST_SECOND.schedule)


def usual_rate(stage: First | Second, steps: float, size: float) -> float:
    """The peak rate of so many steps. Of Muon it is the lower the longer they are and, where the bag loss
    has no other beside it that teaches, the larger the bags are."""
    if stage.optimizer != "muon":
        return stage.rate
    alone = isinstance(stage, First) and stage.method != "two-views"
    return min(muon_rate(steps), bag_rate(size) if alone else stage.rate)


def at_rate(stage: Stage, rate: float | None, steps: float, size: float) -> Stage:
    """The stage with the peak rate that is told, or else its usual one."""
    return replace(stage, rate=usual_rate(stage, steps, size) if rate is None else rate)


def suits_muon(backbone: Backbone, network: nn.Module) -> bool:
    """Whether Muon is for a network: a new one of ours in which filters have no length that matters."""
    return is_ours(backbone) and lengths_are_taken_out(network)


def lengths_are_taken_out(network: nn.Module) -> bool:
    """Whether a norm follows every convolution of a network of ours, as Muon wants it: there are as many."""
    layers = list(network.modules())
    norms = sum(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in layers)
    return 0 < sum(isinstance(layer, nn.Conv2d) for layer in layers) <= norms


def check_network(
    network: nn.Module, backbone: Backbone, x: Tensor, k: int, batch: int, mirror: bool
) -> None:
    """Refuse a network that cannot learn k classes of instances such as the one in x, in such batches, or
    that takes mirror images for what they are not."""
    check_new(network, backbone, x.shape[1:], k)
    check_scores(network, x, k)
    if batch == 1:  # of larger ones none has one instance alone
        check_lone(network, x)
    if not mirror and any(isinstance(layer, FlipAveraged) for layer in network.modules()):
        what = (
            "mirror=False says that mirror images are of another class, and test_time_flip=True asks them too"
        )
        raise ValueError(
            f"{what} at test time; leave test_time_flip out of the backbone, or pass mirror=True"
        )


def check_new(network: nn.Module, backbone: Backbone, shape: Sequence[int], k: int) -> None:
    """Refuse a backbone whose networks share weights that learn: a student would change its teacher, and a
    second fit the first one's answers. Costs a network a stage, thrown away; ours are not asked."""
    if is_ours(backbone):
        return
    with torch.random.fork_rng(devices=[]):
        other = backbone(shape, k)
    learned = {id(weight) for weight in network.parameters() if weight.requires_grad}
    if any(id(weight) in learned for weight in other.parameters()):
        remedy = "return new ones each time, such as copy.deepcopy(network), or freeze what is shared"
        raise ValueError(f"the backbone's networks share weights; {remedy}")


def check_scores(network: nn.Module, x: Tensor, k: int) -> None:
    """Refuse a network that does not give k scores for the one instance in x, or gives probabilities."""
    before = network.training
    try:
        with torch.no_grad():
            scores = network.eval()(x).float()
    finally:
        network.train(before)
    if scores.shape != (1, k):
        remedy = "its last layer must give one score for each class, (n, n_classes)"
        raise ValueError(f"the backbone gives {tuple(scores.shape)} for one instance; {remedy}")
    if bool((scores >= 0).all()) and abs(float(scores.sum()) - 1) < 1e-5:
        remedy = "leave the softmax out: the losses take scores, and have it themselves"
        raise ValueError(f"the backbone gives probabilities, {scores[0, :3].tolist()}; {remedy}")


def check_lone(network: nn.Module, x: Tensor) -> None:
    """Refuse batches of the one instance in x where a batch-norm is left with one value a channel, which has
    no variance. It is tried: where images are still several pixels there, one of them is enough."""
    before, plain = network.training, plain_network(network)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), frozen_batch_norm(plain):
            plain.train()(x)
    except ValueError as problem:
        what = f"the network's batch-norm cannot learn from one instance of shape {tuple(x.shape[1:])}"
        raise ValueError(f"batch_size is 1, and {what}; pass 2 or more") from problem
    finally:
        network.train(before)

"""Networks of users' own that no stage can train, told before any training."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from apportion.backbones import BACKBONES

Backbone = Callable[[Sequence[int], int], nn.Module]  # (shape of an instance, classes) -> network


def check_new(network: nn.Module, backbone: Backbone, shape: Sequence[int], k: int) -> None:
    """Refuse a backbone whose networks share weights that learn: a student would change its teacher, and a
    second fit the first one's answers. Costs a network a stage, thrown away; ours are not asked."""
    made = backbone.func if isinstance(backbone, partial) else backbone
    if made in BACKBONES.values():
        return
    with torch.random.fork_rng(devices=[]):
        other = backbone(shape, k)
    learnt = {id(weight) for weight in network.parameters() if weight.requires_grad}
    if any(id(weight) in learnt for weight in other.parameters()):
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

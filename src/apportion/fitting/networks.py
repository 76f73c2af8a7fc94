"""Networks of users' own that no stage can train, told before any training."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from apportion.backbones import BACKBONES

Backbone = Callable[[Sequence[int], int], nn.Module]  # (shape of an instance, classes) -> network


def check_new(backbone: Backbone, shape: Sequence[int], k: int) -> None:
    """Refuse one network for all: a student would be its teacher, a second fit would go on from the first.

    Costs two networks that are thrown away; ours are not asked.
    """
    made = backbone.func if isinstance(backbone, partial) else backbone
    if made not in BACKBONES.values() and backbone(shape, k) is backbone(shape, k):
        remedy = "return a new one each time, such as copy.deepcopy(network)"
        raise ValueError(f"the backbone returns the same network twice; {remedy}")


def check_scores(network: nn.Module, x: Tensor, k: int) -> None:
    """Refuse a network that does not give k scores for the one instance in x, or gives probabilities."""
    before = network.training
    with torch.no_grad():
        scores = network.eval()(x).float()
    network.train(before)
    if scores.shape != (1, k):
        remedy = "its last layer must give one score for each class, (n, n_classes)"
        raise ValueError(f"the backbone gives {tuple(scores.shape)} for one instance; {remedy}")
    if bool((scores >= 0).all()) and abs(float(scores.sum()) - 1) < 1e-5:
        remedy = "leave the softmax out: the losses take scores, and have it themselves"
        raise ValueError(f"the backbone gives probabilities, {scores[0, :3].tolist()}; {remedy}")

"""A weighted average of classifiers, and logits that are scaled and shifted in place."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from apportion.networks.trees import BoostedTrees


class Average(nn.Module):
    """Weighted sum of the members' logits, plus a bias: their log-odds are averaged.

    Parameters
    ----------
    members : sequence of nn.Module
        Each returns logits (n, k).
    n_classes : int
        Number of classes k.
    """

    weights: Tensor  # (members,)
    bias: Tensor  # (k,)

    def __init__(self, members: Sequence[nn.Module], n_classes: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.register_buffer("weights", torch.full((len(members),), 1 / len(members)))
        self.register_buffer("bias", torch.zeros(n_classes))

    def forward(self, x: Tensor) -> Tensor:
        # logits are centered, since members may differ by a constant that means nothing and could be large
        logits = torch.stack([member(x).float().log_softmax(1) for member in self.members], 2)
        return logits @ self.weights + self.bias


@torch.no_grad()
def rescale(model: nn.Module, scale: float, bias: Tensor | float = 0.0) -> bool:
    """Multiply the logits of a model by `scale` and add `bias` (k,), in its weights.

    Returns False, and changes nothing, if it is not a model of tables, whose last layer can hold both.
    """
    if isinstance(model, nn.Linear):
        model.weight.mul_(scale)
        model.bias.mul_(scale).add_(bias)
    elif isinstance(model, BoostedTrees):
        model.value.mul_(scale)
        model.base.mul_(scale).add_(bias)
    elif isinstance(model, Average):
        model.weights.mul_(scale)
        model.bias.mul_(scale).add_(bias)
    else:
        return False
    return True

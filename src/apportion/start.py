"""Where a network begins: at the overall shares of the classes, which the bags tell before any training."""

import torch
from torch import Tensor, nn

from apportion.bags import Bags
from apportion.speed import unplaced


def starting_at(shares: Tensor, network: nn.Module) -> nn.Module:
    """The network, whose last layer's biases are raised so that its first predictions are these shares (k,).

    One that begins with a rare class for every second row unlearns it everywhere, least likely where rows lie
    far out, before it learns where it is (docs/log.md). Equal shares change nothing.
    """
    plain = unplaced(network)
    head = plain[-1] if isinstance(plain, nn.Sequential) and len(plain) else plain
    if isinstance(head, nn.Linear) and head.bias is not None:
        with torch.no_grad():
            head.bias.add_((len(shares) * shares).log().to(head.bias))
    return network


def overall_shares(bags: Bags) -> Tensor:
    """(k,) of all rows; of a class that no bag has, as if one row in two sets like this had it."""
    counts = (bags.sizes.unsqueeze(1) * bags.proportions.cpu().double()).sum(0)
    return counts.clamp_min(0.5) / counts.sum()

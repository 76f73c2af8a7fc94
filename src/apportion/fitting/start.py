"""Where a network begins: with a rare class at the overall shares, which bags tell before any training."""

import torch
from torch import Tensor, nn

from apportion._device import plain_network
from apportion.bags.bags import Bags

RARE = 0.2  # of an even share, 1/k


def starting_at(shares: Tensor, network: nn.Module) -> nn.Module:
    """The network; where a class is rare, its last biases make its first predictions these shares (k,).

    One that begins with a rare class for every second row unlearns it everywhere, most where rows lie far
    out, before it learns where it is. Where none is rare, beginning at even shares learns large bags sooner
    (docs/log.md, of Adult).
    """
    if float(shares.min()) >= RARE / len(shares):
        return network
    plain = plain_network(network)
    head = plain[-1] if isinstance(plain, nn.Sequential) and len(plain) else plain
    if isinstance(head, nn.Linear) and head.bias is not None:
        with torch.no_grad():
            head.bias.add_((len(shares) * shares).log().to(head.bias))
    return network


def overall_shares(bags: Bags) -> Tensor:
    """(k,) of all rows; of a class that no bag has, as if one row in two sets like this had it."""
    return bags.overall.clamp_min(0.5 / len(bags.x))

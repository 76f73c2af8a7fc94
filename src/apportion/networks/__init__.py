"""Networks: functions (shape of an instance, n_classes) -> `nn.Sequential(features, head)`.

`features` turns instances (n, ...) into vectors (n, d), `head` is a linear layer with `n_classes` logits.
Any other `nn.Module` that returns logits (n, n_classes) can take the place of these.
"""

from collections.abc import Callable

from torch import nn

from apportion._register import register
from apportion.networks.conv13 import conv13
from apportion.networks.mlp import MNIST_WIDTHS, mlp
from apportion.networks.resnet import resnet9, resnet18, wrn_28_2

IMAGE_NETWORKS = {"conv13": conv13, "wrn_28_2": wrn_28_2, "resnet18": resnet18, "resnet9": resnet9}
NETWORKS: dict[str, Callable[..., nn.Module]] = {"mlp": mlp, **IMAGE_NETWORKS}
BUILT_IN = tuple(NETWORKS.values())  # NETWORKS may have others, from outside


def register_network(name: str, network: Callable[..., nn.Module]) -> None:
    """Make a function (shape of an instance, n_classes, **options) -> nn.Module available by name."""
    register(NETWORKS, "network", name, network)


__all__ = [
    "BUILT_IN", "IMAGE_NETWORKS", "MNIST_WIDTHS", "NETWORKS", "conv13", "mlp", "register_network", "resnet9",
    "resnet18", "wrn_28_2",
]  # fmt: skip

"""Networks: functions (shape of an instance, n_classes) -> `nn.Sequential(features, head)`.

`features` turns instances (n, ...) into vectors (n, d), `head` is a linear layer with `n_classes` logits.
Any other `nn.Module` that returns logits (n, n_classes) can take the place of these.
"""

from apportion.networks.conv13 import conv13
from apportion.networks.mlp import MNIST_WIDTHS, mlp
from apportion.networks.resnet import resnet9, resnet18, wrn_28_2

NETWORKS = {"mlp": mlp, "conv13": conv13, "wrn_28_2": wrn_28_2, "resnet18": resnet18, "resnet9": resnet9}

__all__ = ["MNIST_WIDTHS", "NETWORKS", "conv13", "mlp", "resnet9", "resnet18", "wrn_28_2"]

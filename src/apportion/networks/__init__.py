"""Networks: every backbone is nn.Sequential(features, head), (n, ...) -> logits (n, k)."""

from apportion.networks.conv13 import conv13
from apportion.networks.mlp import MNIST_WIDTHS, mlp
from apportion.networks.resnet import resnet9, resnet18, wrn_28_2

NETWORKS = {"mlp": mlp, "conv13": conv13, "wrn-28-2": wrn_28_2, "resnet18": resnet18, "resnet9": resnet9}

__all__ = ["NETWORKS", "MNIST_WIDTHS", "conv13", "mlp", "resnet9", "resnet18", "wrn_28_2"]

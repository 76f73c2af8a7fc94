"""Networks: every backbone is nn.Sequential(features, head), (n, ...) -> logits (n, k)."""

from apportion.backbones.conv13 import conv13
from apportion.backbones.mlp import MNIST_WIDTHS, mlp
from apportion.backbones.residual import resnet18, wrn_28_2
from apportion.backbones.resnet9 import resnet9

BACKBONES = {"mlp": mlp, "conv13": conv13, "wrn-28-2": wrn_28_2, "resnet18": resnet18, "resnet9": resnet9}

__all__ = ["BACKBONES", "MNIST_WIDTHS", "conv13", "mlp", "resnet9", "resnet18", "wrn_28_2"]

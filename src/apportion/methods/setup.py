"""What a method may need besides the classifier, and how a method is made from it."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

from torch import Tensor, nn

from apportion._device import GraphPart, identity, plain_network
from apportion.bags.bags import Bags


@dataclass(frozen=True)
class Setup:
    """What `build` of a method gets besides the classifier.

    A method that needs nothing but the classifier has no `build` and is called with the classifier alone.
    """

    bags: Bags  # the training data, without labels
    by: str = "bag"  # the kind of batches the method will be given
    to_device: Callable[[nn.Module], nn.Module] = lambda network: network  # for further networks
    graph_part: GraphPart = identity  # makes a part of a step fast

    def copy_network(self, network: nn.Module) -> nn.Module:
        """A copy of the classifier on its device, such as for a moving average of its weights."""
        return self.to_device(deepcopy(plain_network(network)))


def bag_sizes_before_drawing(sizes: Tensor, undrawn: float) -> Tensor:
    """The sizes (b,) of the whole bags, as floats, of which `BagBatch.undrawn` says what was not drawn.

    Only a bag that is larger than a batch is drawn from. It may share its batch with a bag of one row.
    """
    whole = sizes.double() if sizes.device.type != "mps" else sizes.float()
    if not undrawn:
        return whole
    complete = (sizes == 1) & (len(sizes) > 1)
    return whole.where(complete, whole / (1 - undrawn))

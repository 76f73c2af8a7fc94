"""A new network for a stage: on its device, checked, and with its first bias.

A user's own network is checked here, before any training.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from apportion._device import plain_network
from apportion.bags.arrays import as_floats
from apportion.bags.bags import Bags
from apportion.errors import SettingsError
from apportion.methods.protocol import frozen_batch_norm
from apportion.networks import BUILT_IN
from apportion.networks.flip import FlipAveraged

# (shape of an instance, number of classes) -> network
MakeNetwork = Callable[[Sequence[int], int], nn.Module]


def new_network(
    make_network: MakeNetwork,
    bags: Bags,
    to_device: Callable[[nn.Module], nn.Module],
    batch_size: int,
    horizontal_flip: bool,
) -> nn.Module:
    """A network for these bags, on its device, after checking that it can learn from them."""
    shape = bags.x.shape[1:]
    proportions = initial_proportions(bags)
    n_classes = bags.n_classes
    x = as_floats(bags.x[:1])
    network = to_device(make_network(shape, n_classes))
    plain = plain_network(network)
    if not is_built_in(make_network):
        check_shares_no_weights(network, make_network, shape, n_classes)
    check_network(network, x, n_classes, batch_size, horizontal_flip)
    set_initial_bias(plain, proportions)
    return network


def is_built_in(make_network: MakeNetwork) -> bool:
    """Whether the function makes one of the networks in `apportion.networks`."""
    function = make_network.func if isinstance(make_network, partial) else make_network
    return function in BUILT_IN


# --- initial bias


def initial_proportions(bags: Bags) -> Tensor:
    """Known class proportions of all rows, (k,). A class without rows counts as half a row."""
    known = bags.without_features().known()
    return known.overall.clamp_min(0.5 / len(known.x))


def set_initial_bias(network: nn.Module, proportions: Tensor) -> None:
    """Make the first predictions equal these proportions (k,) if a class has less than a fifth of 1/k.

    A network that starts with a high probability for a rare class first learns to predict it nowhere, and
    only later where it occurs. Without rare classes, training on large bags is faster from equal proportions
    (docs/log.md, Adult).
    """
    k = len(proportions)
    if float(proportions.min()) >= 0.2 / k:
        return
    head = network[-1] if isinstance(network, nn.Sequential) and len(network) else network
    if isinstance(head, nn.Linear) and head.bias is not None:
        with torch.no_grad():
            head.bias.add_((k * proportions).log().to(head.bias))


# --- checks


def check_network(
    network: nn.Module, x: Tensor, n_classes: int, batch_size: int, horizontal_flip: bool
) -> None:
    """Raise SettingsError if a network cannot learn from instances such as the one in `x` (1, ...)."""
    check_logits(network, x, n_classes)
    if batch_size == 1:  # with larger batches, no batch has a single row
        check_single_row(network, x)
    if not horizontal_flip and any(isinstance(layer, FlipAveraged) for layer in network.modules()):
        raise SettingsError(
            "horizontal_flip is False, but the network has test_time_flip=True, which averages predictions "
            "with those of mirror images; leave test_time_flip out, or pass horizontal_flip=True"
        )


def check_shares_no_weights(
    network: nn.Module, make_network: MakeNetwork, shape: Sequence[int], k: int
) -> None:
    """Raise SettingsError if networks from the same function share trainable weights.

    Training a student would then change its teacher, and a second fit would change the model of the first.
    """
    with torch.random.fork_rng(devices=[]):
        other = make_network(shape, k)
    learned = {id(weight) for weight in network.parameters() if weight.requires_grad}
    if any(id(weight) in learned for weight in other.parameters()):
        raise SettingsError(
            "the networks that the model function returns share weights; return a new one each time, such as "
            "copy.deepcopy(network), or freeze what is shared"
        )


def check_logits(network: nn.Module, x: Tensor, n_classes: int) -> None:
    """Raise SettingsError unless the network maps the instance in `x` (1, ...) to logits (1, n_classes)."""
    was_training = network.training
    try:
        with torch.no_grad():
            logits = network.eval()(x).float()
    finally:
        network.train(was_training)
    if logits.shape != (1, n_classes):
        raise SettingsError(
            f"the network returns shape {tuple(logits.shape)} for one instance; its last layer must return "
            f"one logit per class, (n, {n_classes})"
        )
    if bool((logits >= 0).all()) and abs(float(logits.sum()) - 1) < 1e-5:
        raise SettingsError(
            f"the network returns probabilities, {logits[0, :3].tolist()}; leave out the softmax, since "
            "losses take logits"
        )


def check_single_row(network: nn.Module, x: Tensor) -> None:
    """Raise SettingsError if batch normalization gets one value per channel, which has no variance.

    This is found by a forward pass: a single image may still have several pixels there, which is enough.
    """
    was_training = network.training
    plain = plain_network(network)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), frozen_batch_norm(plain):
            plain.train()(x)
    except ValueError as error:
        raise SettingsError(
            "batch_size is 1, but the network's batch normalization cannot learn from one instance of shape "
            f"{tuple(x.shape[1:])}; pass 2 or more"
        ) from error
    finally:
        network.train(was_training)

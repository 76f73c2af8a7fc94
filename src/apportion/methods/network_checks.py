"""Checks of users' own networks, made before any training."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from apportion._device import plain_network
from apportion.errors import SettingsError
from apportion.methods.protocol import frozen_batch_norm
from apportion.networks.flip import FlipAveraged

# (shape of an instance, number of classes) -> network
MakeNetwork = Callable[[Sequence[int], int], nn.Module]


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

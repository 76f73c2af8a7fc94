"""What a method must provide to be trained by `training.train`, and helpers that methods share.

A new first stage is a class with a `classifier`, `networks()` and `losses()`. The smallest one:

    class DLLP:
        def __init__(self, classifier):
            self.classifier = classifier

        def networks(self):
            return [self.classifier]

        def losses(self, batch, progress):
            logits = self.classifier(batch.x)
            yield {"proportion": proportion_loss(logits, batch.sizes, batch.proportions, batch.undrawn)}

`testing.check_method` runs the tests that every method has to pass.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

# Scalars by name, already weighted. The loss is their sum, so what is logged is what is optimized.
LossTerms = dict[str, Tensor]


class Learner(Protocol):
    """A method that learns from bags, in the form that the training loop expects."""

    @property
    def classifier(self) -> nn.Module:
        """The network that predicts: instances (n, ...) -> logits (n, k)."""
        ...

    def networks(self) -> list[nn.Module]:
        """The networks to train, each with its own optimizer. The classifier's comes first."""
        ...

    def losses(self, batch: Any, progress: float) -> Iterator[LossTerms]:
        """Yield the loss terms of each network in turn.

        The loop takes a network's step before it requests the terms of the next one.

        `batch` is a BagBatch, or a RowBatch for methods that support batches of rows. `progress` runs from 0
        to 1 over the stage.
        """
        ...


@contextmanager
def frozen_batch_norm(model: nn.Module) -> Iterator[None]:
    """Within this context, forward passes do not change the running statistics of batch normalization."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    tracked = [m.track_running_stats for m in norms]
    try:
        for m in norms:
            m.track_running_stats = False  # momentum 0 would still count batches
        yield
    finally:
        for m, was_tracked in zip(norms, tracked, strict=True):
            m.track_running_stats = was_tracked


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Within this context, only the inputs get gradients, not the weights.

    Gradients of the weights would take a third of the arithmetic, and a recorded or compiled backward pass
    computes them whether or not they are used.
    """
    learned = [p for p in model.parameters() if p.requires_grad]
    try:
        for p in learned:
            p.requires_grad_(False)
        yield
    finally:
        for p in learned:
            p.requires_grad_()


class WeightAverage(nn.Module):
    """Exponential moving average of a network's weights and running statistics.

    After t steps the momentum is min(momentum, (1 + t) / (10 + t)); otherwise the average of a short training
    would still be close to the initial network. It is a module so that checkpoints include the step count.
    """

    taken: Tensor

    def __init__(self, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        # lists in a tuple, so that torch does not register the modules; to find them anew would take longer
        # than the update itself
        self.modules_of: tuple[list[nn.Module], list[nn.Module]] = ([], [])
        self.register_buffer("taken", torch.zeros((), dtype=torch.int64))  # on the CPU: every step reads it

    @torch.no_grad()
    def update(self, average: nn.Module, network: nn.Module) -> None:
        """Move `average` one step toward `network`, in place."""
        steps = int(self.taken)
        momentum = min(self.momentum, (1 + steps) / (10 + steps))
        if (
            not self.modules_of[0]
            or self.modules_of[0][0] is not average
            or self.modules_of[1][0] is not network
        ):
            self.modules_of = list(average.modules()), list(network.modules())
        old, new = map(_floating_tensors, self.modules_of)
        torch._foreach_lerp_(old, new, 1 - momentum)
        self.taken += 1


def _floating_tensors(modules: Sequence[nn.Module]) -> list[Tensor]:
    """Parameters and buffers. Not cached, since networks move between devices and buffers are replaced."""
    tensors = {
        id(tensor): tensor
        for module in modules
        for tensor in (*module._parameters.values(), *module._buffers.values())
        if tensor is not None and tensor.is_floating_point()
    }
    return list(tensors.values())  # each once, though modules may share it

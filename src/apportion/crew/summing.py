"""What makes a step one of all processes, as long as a stage lasts: then everything is as it was before."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from torch import nn
from torch.optim import Optimizer

from apportion.crew.share import Share
from apportion.errors import RunError
from apportion.methods import LLPGAN
from apportion.methods.protocol import Learner


@contextmanager
def summing(share: Share, players: list[nn.Module], optimizers: Sequence[Optimizer]) -> Iterator[None]:
    """Optimizers sum gradients over processes before they step, and afterwards step as they did before."""
    if any(optimizer._optimizer_step_pre_hooks for optimizer in optimizers):
        raise RunError(
            "an optimizer changes gradients before it steps, as clip does, but they are added over processes "
            "only then; pass optimizers that do not, or use one process"
        )
    hooks = [
        optimizer.register_step_pre_hook(partial(sum_gradients, share, player))
        for player, optimizer in zip(players, optimizers, strict=True)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def sum_gradients(share: Share, player: nn.Module, *_: object) -> None:
    share.sum_gradients(player)


@contextmanager
def averaging(share: Share, learner: Learner) -> Iterator[None]:
    """LLP-GAN matches means of features over the instances of all processes."""
    if not isinstance(learner, LLPGAN):
        yield
        return
    own, learner.mean = learner.mean, share.mean
    try:
        yield
    finally:
        learner.mean = own

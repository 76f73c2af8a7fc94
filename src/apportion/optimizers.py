"""One optimiser a player: SGD, Adam or Muon, whose rate is set as a share of its peak."""

from collections.abc import Sequence
from inspect import unwrap

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adam, Optimizer

from apportion.muon import Muon

OPTIMIZERS = ("adam", "sgd", "muon")


# torch wraps these methods so that its compiler leaves them alone, and imports the compiler to do so: a
# second and more, for what is never compiled on the CPU
class PlainSGD(SGD):
    add_param_group, zero_grad = unwrap(SGD.add_param_group), unwrap(SGD.zero_grad)
    step = torch.no_grad()(unwrap(SGD.step))


class PlainAdam(Adam):
    add_param_group, zero_grad = unwrap(Adam.add_param_group), unwrap(Adam.zero_grad)
    step = torch.no_grad()(unwrap(Adam.step))


def set_rate(optimizers: Sequence[Optimizer], share: float) -> None:
    """A share of the peak: of the rate with which any torch optimiser comes, times what others made of it."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if group["lr"] != (before := group.get("set", group["lr"])):  # by a scheduler, or by hand
                group["peak"] = group["peak"] * group["lr"] / before if before else group["lr"]
            group["lr"] = group["set"] = group.setdefault("peak", group["lr"]) * share


def words_of(optimizer: Optimizer) -> str:
    """Which it is and the peak of its rate, for people; of Muon that of the filters."""
    name = type(optimizer).__name__.removeprefix("Plain")
    return f"{name}, peak rate {optimizer.defaults['lr']:g}"


def make_optimizer(
    network: nn.Module,
    name: str,
    rate: float,
    *,
    decay: float = 0.0,
    momentum: float = 0.9,
    clip: float | None = None,
) -> Optimizer:
    """SGD with Nesterov momentum, Adam with β₁ = `momentum`, or Muon. Only matrices decay, not biases, norms.

    A gradient longer than `clip` is shortened to it. Weights that need no gradient are left out.
    """
    weights = [p for p in network.parameters() if p.requires_grad]
    if not weights:
        remedy = "set requires_grad of its last layer, at least"
        raise ValueError(f"no weight of the {type(network).__name__} is to be learnt; {remedy}")
    matrices, vectors = [p for p in weights if p.ndim > 1], [p for p in weights if p.ndim <= 1]
    # one group where nothing decays: a second one costs small networks a tenth of their step
    parts = ((matrices, decay), (vectors, 0.0)) if decay else ((weights, 0.0),)
    groups = [{"params": part, "weight_decay": weight, "peak": rate} for part, weight in parts if part]
    fused = next(network.parameters()).is_cuda
    sgd, adam = (SGD, Adam) if fused else (PlainSGD, PlainAdam)
    if name not in OPTIMIZERS:
        raise ValueError(f"no optimiser '{name}'; there are {', '.join(OPTIMIZERS)}")
    if name == "muon":
        optimizer: Optimizer = Muon(network, rate, momentum, decay)
    elif name == "sgd":
        optimizer = sgd(groups, lr=rate, momentum=momentum, nesterov=momentum > 0, fused=fused)
    else:
        optimizer = adam(groups, lr=rate, betas=(momentum, 0.999), fused=fused)
    if clip is not None:

        def shorten(*_: object) -> None:
            clip_grad_norm_(weights, clip)

        optimizer.register_step_pre_hook(shorten)
    return optimizer

"""Tests that every method has to pass, modeled on scikit-learn's `check_estimator`.

For a method that is made from a classifier alone, `check_method(MyMethod)` runs all of them.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from apportion._random import preserve_random_state, reseed, stream
from apportion.bags.bags import Bags
from apportion.bags.simulate import make_bags
from apportion.methods.protocol import Learner
from apportion.networks import mlp
from apportion.optim import constant, make_optimizer
from apportion.pipeline import EpochState, first_stage
from apportion.training import View

MakeLearner = Callable[[nn.Module], Learner]  # a classifier of rows with two features -> the method


def check_method(make_learner: MakeLearner, *, augment: View = lambda x: x) -> None:
    """Raise AssertionError unless a method follows the protocol `apportion.methods.protocol.Learner`.

    Parameters
    ----------
    make_learner : callable
        Makes the method for a classifier, nn.Sequential(features, head), of rows with two features. It is
        called several times. Any other network that it makes must depend on torch's random generator only.
    augment : callable, optional
        Turns a batch of rows (n, 2) into what the method takes.
    """
    with preserve_random_state(torch.device("cpu")):
        check_terms(make_learner, augment)
        check_bags_of_any_sizes(make_learner, augment)
        check_seeds(make_learner, augment)
        check_hidden_labels(make_learner, augment)
        check_resuming(make_learner, augment)


def check_terms(make_learner: MakeLearner, augment: View) -> None:
    """`losses` yields one dict of finite scalars per network, and each network learns from its own."""
    learner = _new_learner(make_learner)
    bags, _ = _two_classes()
    batch = bags.take(torch.arange(4))
    reseed(0, "check terms")
    batch = replace(batch, x=augment(batch.x))
    networks = learner.networks()
    n_dicts = 0
    for network, terms in zip(networks, learner.losses(batch, 0.25), strict=False):
        n_dicts += 1
        for name, term in terms.items():
            _require(term.shape == (), f"the term '{name}' has shape {tuple(term.shape)}; yield scalars")
            _require(math.isfinite(float(term.detach())), f"the term '{name}' is {float(term.detach())}")
        weights = [p for p in network.parameters() if p.requires_grad]
        total = torch.stack(list(terms.values())).sum()
        gradients = torch.autograd.grad(total, weights, retain_graph=True, allow_unused=True)
        learns = any(each is not None and bool(each.any()) for each in gradients)
        _require(learns, f"no weight of network {n_dicts - 1} has a gradient from its terms")
    _require(n_dicts == len(networks), f"losses yields {n_dicts} dicts for {len(networks)} networks")


def check_bags_of_any_sizes(make_learner: MakeLearner, augment: View) -> None:
    """Bags of different sizes, of one row, and larger than a batch can be learned from."""
    generator = stream(1, "check_method")
    sizes = torch.tensor([1, 5, 2, 40, 1, 9])
    proportions = torch.rand(6, 2, generator=generator) + 0.05
    bags = Bags(
        torch.randn(58, 2, generator=generator),
        sizes,
        proportions / proportions.sum(1, keepdim=True),
        torch.arange(58),
        list(range(6)),
    )
    for state in _train(_new_learner(make_learner), bags, augment, batch_size=12):
        for name, mean in state.epoch.terms.items():
            _require(math.isfinite(mean), f"the term '{name}' is {mean} for bags of sizes {sizes.tolist()}")


def check_seeds(make_learner: MakeLearner, augment: View) -> None:
    """The same seed gives bit-identical weights, and another seed gives different ones."""
    bags, _ = _two_classes()
    first, again, other = (_trained_weights(make_learner, bags, augment, seed) for seed in (0, 0, 1))
    _require(_same_bits(first, again), "two trainings with the same seed give different weights")
    _require(not _same_bits(first, other), "trainings with different seeds give the same weights")


def check_hidden_labels(make_learner: MakeLearner, augment: View) -> None:
    """Permuting the hidden labels within bags, which changes no proportion, changes no weight."""
    bags, hidden = _two_classes()
    generator = stream(2, "check_method")
    parts = hidden.split(bags.sizes.tolist())
    shuffled = torch.cat([part[torch.randperm(len(part), generator=generator)] for part in parts])
    y = torch.empty_like(shuffled)
    y[bags.source] = shuffled
    x = torch.empty_like(bags.x)
    x[bags.source] = bags.x
    again, _ = make_bags(x, y, 20, 2, stream(0, "check_method", "bags"))
    same = _same_bits(
        _trained_weights(make_learner, bags, augment), _trained_weights(make_learner, again, augment)
    )
    _require(same, "permuting labels within bags changes the weights: hidden labels reach the method")


def check_resuming(make_learner: MakeLearner, augment: View) -> None:
    """Interrupted and resumed training gives the same weights, bit for bit."""
    bags, _ = _two_classes()
    whole = _new_learner(make_learner)
    saved = [copy.deepcopy(state.state()) for state in _train(whole, bags, augment)]
    resumed = _new_learner(make_learner)
    for _ in _train(resumed, bags, augment, resume=saved[0]):
        pass
    _require(
        _same_bits(_weights_of(whole), _weights_of(resumed)),
        "resumed training gives different weights; keep all state in the modules of networks()",
    )


def _two_classes() -> tuple[Bags, Tensor]:
    """200 rows of two clusters in random bags of 20, and their hidden labels."""
    generator = stream(0, "check_method")
    y = torch.arange(200) % 2
    x = torch.randn(200, 2, generator=generator) + 2.0 * y.unsqueeze(1)
    return make_bags(x, y, 20, 2, stream(0, "check_method", "bags"))


def _new_learner(make_learner: MakeLearner) -> Learner:
    reseed(0, "check_method")
    return make_learner(mlp((2,), 2, widths=(16,)))


def _train(
    learner: Learner,
    bags: Bags,
    augment: View,
    *,
    seed: int = 0,
    batch_size: int = 64,
    resume: dict[str, Any] | None = None,
) -> Iterator[EpochState]:
    optimizers: list[Optimizer] = [make_optimizer(each, "adam", 1e-2) for each in learner.networks()]
    return first_stage(
        learner,
        bags,
        optimizers,
        epochs=3,
        schedule=constant,
        seed=seed,
        batch_size=batch_size,
        augment=augment,
        resume=resume,
    )


def _trained_weights(make_learner: MakeLearner, bags: Bags, augment: View, seed: int = 0) -> list[Tensor]:
    learner = _new_learner(make_learner)
    for _ in _train(learner, bags, augment, seed=seed):
        pass
    return _weights_of(learner)


def _weights_of(learner: Learner) -> list[Tensor]:
    tensors = [value for network in learner.networks() for value in network.state_dict().values()]
    return [value.detach().clone() for value in tensors]


def _same_bits(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)

"""Tests that every method has to pass, modeled on scikit-learn's `check_estimator`.

`check_method(MyMethod)` runs all of them, in a second or two. They assume nothing about what the terms of a
loss are or how they are called.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from apportion._random import preserve_random_state, reseed, stream
from apportion.bags.bags import Bags
from apportion.bags.simulate import make_bags
from apportion.evaluate import accuracy, predict_log_proba
from apportion.methods.build import Method, is_linear, make_learner, takes_pairs
from apportion.methods.protocol import Learner
from apportion.networks import mlp
from apportion.optim import constant, make_optimizer
from apportion.pipeline import EpochState, first_stage
from apportion.training import View

MakeClassifier = Callable[[int], nn.Module]  # number of classes -> a classifier of rows with two features


class _Subject(NamedTuple):
    """What is tested, and what it needs."""

    method: Method
    network: MakeClassifier
    augment: View


def check_method(
    method: Method, *, network: MakeClassifier | None = None, augment: View | None = None
) -> None:
    """Raise AssertionError unless a method follows the protocol `apportion.methods.protocol.Learner`.

    The method must learn an easy problem, take bags of any sizes, of two and of three classes, and a single
    bag, be repeatable by its seed, resume to the same bits, and depend on nothing but rows and proportions.

    Parameters
    ----------
    method : str or callable
        A class, a function that makes a `Learner` from a classifier, a partial of these, or the name of a
        method. It is called several times; networks that it makes must depend on torch's random generator
        only.
    network : callable, optional
        `network(n_classes) -> nn.Module`: makes a classifier of rows with two features. The default is an
        mlp, nn.Sequential(features, head), or a linear one if the method says `linear = True`.
    augment : callable, optional
        Turns a batch of rows (n, 2) into what the method takes. The default changes nothing, or makes pairs
        of views, (n, 2, 2), if the method says `views = 2`.

    Examples
    --------
    >>> from functools import partial
    >>> from apportion.methods import ROT
    >>> from apportion.testing import check_method
    >>> check_method(partial(ROT, alpha=0.9))
    """
    if network is None:
        widths = () if is_linear(method) else (16,)

        def network(n_classes: int) -> nn.Module:
            return mlp((2,), n_classes, widths)

    if augment is None:
        augment = _noisy_pairs if takes_pairs(method) else _unchanged
    subject = _Subject(method, network, augment)
    with preserve_random_state(torch.device("cpu")):
        check_terms(subject)
        check_bags_of_any_sizes(subject)
        check_one_bag(subject)
        check_seeds(subject)
        check_hidden_labels(subject)
        check_resuming(subject)
        check_learning(subject)


def _unchanged(x: Tensor) -> Tensor:
    return x


def _noisy_pairs(x: Tensor) -> Tensor:
    """A weak and a strong view of points: a little noise, and more of it."""
    return torch.stack([x + 0.02 * torch.randn_like(x), x + 0.2 * torch.randn_like(x)], 1)


def check_terms(subject: _Subject) -> None:
    """`losses` yields one dict of finite scalars per network, and each network learns from its own."""
    bags, _ = _two_classes()
    learner = _new_learner(subject, bags)
    batch = bags.take(torch.arange(4))
    reseed(0, "check terms")
    batch = replace(batch, x=subject.augment(batch.x))
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


def check_bags_of_any_sizes(subject: _Subject) -> None:
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
    _check_finite_training(subject, bags, f"bags of sizes {sizes.tolist()}")


def check_one_bag(subject: _Subject) -> None:
    """A single bag can be learned from, one of whose classes does not occur, and so can three classes."""
    generator = stream(3, "check_method")
    for n, share in ((30, [0.5, 0.5]), (30, [1.0, 0.0]), (30, [0.5, 0.3, 0.2]), (1, [0.0, 1.0])):
        x = torch.randn(n, 2, generator=generator)
        bags = Bags(x, torch.tensor([n]), torch.tensor([share]), torch.arange(n), ["the only one"])
        _check_finite_training(subject, bags, f"a single bag of {n} rows with proportions {share}")


def _check_finite_training(subject: _Subject, bags: Bags, what: str) -> None:
    learner = _new_learner(subject, bags)
    for state in _train(subject, learner, bags, batch_size=12):
        for name, mean in state.epoch.terms.items():
            _require(math.isfinite(mean), f"the term '{name}' is {mean} for {what}")
    weights = _weights_of(learner)
    _require(all(bool(each.isfinite().all()) for each in weights), f"weights are not finite after {what}")


def check_seeds(subject: _Subject) -> None:
    """The same seed gives bit-identical weights, and another seed gives different ones."""
    bags, _ = _two_classes()
    first, again, other = (_trained_weights(subject, bags, seed) for seed in (0, 0, 1))
    _require(_same_bits(first, again), "two trainings with the same seed give different weights")
    _require(not _same_bits(first, other), "trainings with different seeds give the same weights")


def check_hidden_labels(subject: _Subject) -> None:
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
    same = _same_bits(_trained_weights(subject, bags), _trained_weights(subject, again))
    _require(same, "permuting labels within bags changes the weights: hidden labels reach the method")


def check_resuming(subject: _Subject) -> None:
    """Interrupted and resumed training gives the same weights, bit for bit."""
    bags, _ = _two_classes()
    whole = _new_learner(subject, bags)
    saved = [copy.deepcopy(state.state()) for state in _train(subject, whole, bags)]
    resumed = _new_learner(subject, bags)
    for _ in _train(subject, resumed, bags, resume=saved[0]):
        pass
    _require(
        _same_bits(_weights_of(whole), _weights_of(resumed)),
        "resumed training gives different weights; keep all state in the modules of networks()",
    )


def check_learning(subject: _Subject) -> None:
    """Two well separated classes in small bags are told apart, and the classifier is what was trained."""
    bags, hidden = _two_classes(bag_size=4)
    learner = _new_learner(subject, bags)
    for _ in _train(subject, learner, bags, epochs=EPOCHS_TO_LEARN):
        pass
    right = accuracy(predict_log_proba(learner.classifier, bags.x), hidden)
    _require(
        right > 0.9,
        f"after {EPOCHS_TO_LEARN} epochs, {right:.0%} of the rows of two well separated classes are right, "
        "expected more than 90 %; is the classifier the network that is trained, and the sign of the loss "
        "right?",
    )


EPOCHS_TO_LEARN = 30


def _two_classes(bag_size: int = 20) -> tuple[Bags, Tensor]:
    """200 rows of two clusters in random bags, and their hidden labels."""
    generator = stream(0, "check_method")
    y = torch.arange(200) % 2
    x = torch.randn(200, 2, generator=generator) + 2.0 * y.unsqueeze(1)
    return make_bags(x, y, bag_size, 2, stream(0, "check_method", "bags"))


def _new_learner(subject: _Subject, bags: Bags) -> Learner:
    reseed(0, "check_method")
    return make_learner(subject.method, subject.network(bags.n_classes), bags)


def _train(
    subject: _Subject,
    learner: Learner,
    bags: Bags,
    *,
    seed: int = 0,
    epochs: int = 3,
    batch_size: int = 64,
    resume: dict[str, Any] | None = None,
) -> Iterator[EpochState]:
    optimizers: list[Optimizer] = [make_optimizer(each, "adam", 1e-2) for each in learner.networks()]
    return first_stage(
        learner,
        bags,
        optimizers,
        epochs=epochs,
        schedule=constant,
        seed=seed,
        batch_size=batch_size,
        augment=subject.augment,
        resume=resume,
    )


def _trained_weights(subject: _Subject, bags: Bags, seed: int = 0) -> list[Tensor]:
    learner = _new_learner(subject, bags)
    for _ in _train(subject, learner, bags, seed=seed):
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

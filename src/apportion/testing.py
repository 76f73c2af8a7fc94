"""Tests that every method has to pass, modeled on scikit-learn's `check_estimator`.

`check_method(MyMethod)` runs all of them, in a second or two. They assume nothing about what the terms of a
loss are or how they are called.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from apportion._random import preserve_random_state, reseed, stream
from apportion.bags.bags import BagBatch, Bags
from apportion.bags.simulate import make_bags
from apportion.errors import TrainingError
from apportion.evaluate import accuracy, predict_log_proba
from apportion.methods.build import (
    Method,
    class_of,
    is_linear,
    make_learner,
    takes_pairs,
    takes_rows,
    takes_weights,
)
from apportion.methods.protocol import Learner
from apportion.networks import mlp
from apportion.optim import constant, make_optimizer
from apportion.pipeline import EpochState, first_stage
from apportion.training import View, loss_terms

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

    The method must learn easy problems of two and of three classes, take bags of any sizes and a single bag,
    be repeatable by its seed, resume to the same bits, and depend on nothing but rows and proportions. What
    its class says about batches of rows, weights and means must be true. An error that the method raises is
    passed on, with a note on what was checked.

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
        for check in CHECKS:
            with _note(f"while checking {check.__name__.removeprefix('check_').replace('_', ' ')}"):
                check(subject)


@contextmanager
def _note(text: str) -> Iterator[None]:
    """Errors of the body say what was being checked."""
    try:
        yield
    except Exception as error:
        error.add_note(text)
        raise


def _unchanged(x: Tensor) -> Tensor:
    return x


def _noisy_pairs(x: Tensor) -> Tensor:
    """A weak and a strong view of points: a little noise, and more of it."""
    return torch.stack([x + 0.02 * torch.randn_like(x), x + 0.2 * torch.randn_like(x)], 1)


def check_terms(subject: _Subject) -> None:
    """`losses` yields one dict of finite scalars per network, and each network learns from its own."""
    bags, _ = _two_classes()
    learner = _new_learner(subject, bags)
    networks = learner.networks()
    expected = set(learner.classifier.state_dict())
    for i, terms in enumerate(loss_terms(learner, _batch(subject, bags), 0.25, len(networks))):
        for name, term in terms.items():
            _require(term.shape == (), f"the term '{name}' has shape {tuple(term.shape)}; yield scalars")
            _require(math.isfinite(float(term.detach())), f"the term '{name}' is {float(term.detach())}")
        weights = [p for p in networks[i].parameters() if p.requires_grad]
        total = torch.stack(list(terms.values())).sum()
        learns = False
        if total.requires_grad:
            gradients = torch.autograd.grad(total, weights, retain_graph=True, allow_unused=True)
            learns = any(each is not None and bool(each.any()) for each in gradients)
        _require(learns, f"no weight of network {i} has a gradient from its terms")
    _require(
        set(learner.classifier.state_dict()) == expected,
        "losses added buffers to the classifier, which is saved and loaded by itself; put them into a module "
        "next to it, both in one nn.ModuleList",
    )


def check_weights_of_rows(subject: _Subject) -> None:
    """If the class says `weights = True`: a row of weight 3 has the same loss as three equal rows."""
    if not takes_weights(subject.method):
        return
    bags, _ = _two_classes()
    times = torch.randint(1, 4, (len(bags.x),), generator=stream(4, "check_method"))
    row = torch.arange(len(bags.x)).repeat_interleave(times)
    sizes = torch.stack([part.sum() for part in times.split(bags.sizes.tolist())])
    copies = replace(bags, x=bags.x[row], sizes=sizes, source=torch.arange(len(row)))
    repeated = _term_values(subject, copies, seed=0)
    with_other_seed = _term_values(subject, copies, seed=1)
    for name, value in _term_values(subject, replace(bags, weight=times.float()), seed=0).items():
        is_random = repeated.get(name) != with_other_seed.get(name)  # it may draw other numbers for every row
        _require(
            is_random or math.isclose(value, repeated.get(name, math.nan), rel_tol=1e-5, abs_tol=1e-6),
            f"the term '{name}' is {value:.6g} if rows have weights, and {repeated.get(name)} if they are "
            "repeated instead; take batch.weight into account, or leave out weights = True",
        )


def _term_values(subject: _Subject, bags: Bags, seed: int) -> dict[str, float]:
    """The terms of all networks for the first bags."""
    learner = _new_learner(subject, bags)
    batch = _batch(subject, bags)
    reseed(seed, "check terms")
    values: dict[str, float] = {}
    for terms in loss_terms(learner, batch, 0.25, len(learner.networks())):
        values |= {name: float(term.detach()) for name, term in terms.items()}
    return values


def _batch(subject: _Subject, bags: Bags) -> BagBatch:
    """The first four bags."""
    batch = bags.take(torch.arange(4))
    reseed(0, "check terms")
    return replace(batch, x=subject.augment(batch.x))


def check_batches_of_rows(subject: _Subject) -> None:
    """If the class says `batches = ("bag", "row")`: it learns from batches of rows, too."""
    kinds = getattr(class_of(subject.method), "batches", ("bag",))
    _require(
        kinds in (("bag",), ("bag", "row")), f"batches is {kinds!r}; it can be ('bag',) or ('bag', 'row')"
    )
    if takes_rows(subject.method):
        bags, _ = _two_classes()
        reseed(0, "check_method")
        learner = make_learner(subject.method, subject.network(2), bags, by="row")
        before = _weights_of(learner)
        _train_finite(subject, learner, bags, "batches of rows", by="row")
        _require(
            not _same_bits(before, _weights_of(learner)), "training with batches of rows changes nothing"
        )


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
    with _note(f"with {what}"):
        _train_finite(subject, _new_learner(subject, bags), bags, what)


def _train_finite(subject: _Subject, learner: Learner, bags: Bags, what: str, by: str = "bag") -> None:
    try:
        for _ in _train(subject, learner, bags, batch_size=12, by=by):
            pass
    except TrainingError as error:
        reason = str(error).partition(" in epoch")[0]
        raise AssertionError(
            f"{reason} for {what}; does it take log(0), or 0/0, when a class is absent or a bag has one row?"
        ) from error
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
    """Two, and three, well separated classes in small bags are told apart by what was trained."""
    for n_classes, words in ((2, "two"), (3, "three")):
        bags, hidden = _separate_classes(n_classes, bag_size=4)
        learner = _new_learner(subject, bags)
        names: dict[str, float] = {}
        for state in _train(subject, learner, bags, epochs=EPOCHS_TO_LEARN):
            names |= state.epoch.terms
        right = accuracy(predict_log_proba(learner.classifier, bags.x), hidden)
        _require(
            right > 0.9,
            f"after {EPOCHS_TO_LEARN} epochs, {right:.0%} of the rows of {words} well separated classes are "
            "right, expected more than 90 %; is the classifier what is trained, is the sign of the loss "
            "right, and does it use all classes?",
        )
        _check_mean_terms(subject, names)


def _check_mean_terms(subject: _Subject, terms: Mapping[str, float]) -> None:
    for name in getattr(class_of(subject.method), "mean_terms", ()):
        _require(name in terms, f"mean_terms has '{name}', but the terms are {', '.join(terms)}")


EPOCHS_TO_LEARN = 30


def _separate_classes(n_classes: int, bag_size: int) -> tuple[Bags, Tensor]:
    """Rows of well separated clusters in random bags, and their hidden labels."""
    if n_classes == 2:
        return _two_classes(bag_size)
    generator = stream(0, "check_method", n_classes)
    y = torch.arange(210) % n_classes
    angle = 2 * math.pi * y / n_classes
    x = torch.randn(210, 2, generator=generator) + 3.0 * torch.stack([angle.cos(), angle.sin()], 1)
    return make_bags(x, y, bag_size, n_classes, stream(0, "check_method", "bags"))


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
    by: str = "bag",
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
        by=by,
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


CHECKS = (
    check_terms,
    check_weights_of_rows,
    check_bags_of_any_sizes,
    check_one_bag,
    check_batches_of_rows,
    check_seeds,
    check_hidden_labels,
    check_resuming,
    check_learning,
)

"""What the tests share: one thread, small data, small networks, short training."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import settings
from torch import Tensor, nn

from apportion._random import reseed, stream
from apportion.bags.bags import Bags
from apportion.bags.simulate import make_bags
from apportion.datasets.synthetic import moons
from apportion.methods import METHODS, TwoViews, is_linear, make_learner, takes_pairs
from apportion.methods.protocol import Learner
from apportion.networks import mlp
from apportion.optim import constant, make_optimizer
from apportion.training import Epoch, train

torch.set_num_threads(1)  # on shared cores a suite of small networks is several times slower on two
settings.register_profile("apportion", derandomize=True, deadline=None, max_examples=60, database=None)
settings.load_profile("apportion")


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    """Keep tests off the GPU, where defaults and numbers depend on the machine."""
    monkeypatch.setattr("apportion._device.cuda_works", lambda: False)


def ragged(sizes: Sequence[int] = (1, 3, 2), k: int = 3, shape: Sequence[int] = (2,)) -> Bags:
    """Random instances in bags of these sizes, with random proportions."""
    generator, n = stream(0, "ragged", *sizes), sum(sizes)
    shares = torch.rand(len(sizes), k, generator=generator) + 0.05
    x = torch.randn(n, *shape, generator=generator)
    ids = [f"bag {i}" for i in range(len(sizes))]
    return Bags(x, torch.tensor(sizes), shares / shares.sum(1, keepdim=True), torch.arange(n), ids)


def moon_bags(n: int = 200, size: int = 20, seed: int = 1) -> tuple[Bags, Tensor]:
    """A few bags of two moons, and their hidden labels."""
    data = moons(seed, n)
    return make_bags(data.x, data.y, size, 2, stream(seed, "bags"))


def network(
    k: int = 2, shape: Sequence[int] = (2,), seed: int = 0, widths: Sequence[int] = (32, 32)
) -> nn.Module:
    reseed(seed, "weights")
    return mlp(shape, k, widths)


def normed(k: int = 2, features: int = 2, width: int = 16) -> nn.Sequential:
    """A small classifier with batch-norm."""
    reseed(0, "weights")
    body = nn.Sequential(nn.Linear(features, width), nn.BatchNorm1d(width), nn.ReLU())
    return nn.Sequential(body, nn.Linear(width, k))


# whose x is a batch of instances, and whose classifier may be any network
ONE_VIEW = [name for name in METHODS if not takes_pairs(name) and not is_linear(name)]


def two_views(x: Tensor) -> Tensor:
    """A weak and a strong view of points: a little noise, and more of it."""
    return torch.stack([x + 0.02 * torch.randn_like(x), x + 0.2 * torch.randn_like(x)], 1)


def learner_of(name: str, classifier: nn.Module, shape: Sequence[int] = (2,), **options: Any) -> Learner:
    """A method of the first stage on this classifier; with the other players that it needs."""
    if name == "two_views":
        options = {"momentum": 0.9} | options
    if name == "llp_gan":
        options = {"noise": 8} | options
    *_, last = (layer for layer in classifier.modules() if isinstance(layer, nn.Linear))
    reseed(0, {"two_views": "projector", "llp_gan": "generator"}.get(name, name))
    return make_learner(name, classifier, ragged(k=last.out_features, shape=shape), options=options)


def trained(learner: Learner, bags: Bags, epochs: int = 2, **changes: Any) -> list[Epoch]:
    """Train with Adam at a constant rate; the record of every epoch."""
    optimizers = changes.pop("optimizers", None) or [
        make_optimizer(p, "adam", 1e-3) for p in learner.networks()
    ]
    given = {"schedule": steady, "seed": 0, "stage": "first", "batch_size": 64} | changes
    if isinstance(learner, TwoViews):
        given.setdefault("augment", two_views)
    return list(train(learner, bags, optimizers, epochs=epochs, **given))


def steady(progress: float) -> float:
    return constant(progress)


def weights_of(*networks: nn.Module) -> list[Tensor]:
    """All weights and buffers, copied."""
    return [value.detach().clone() for net in networks for value in net.state_dict().values()]


def same_bits(one: Iterable[Tensor], other: Iterable[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def shuffled_inside(labels: Tensor, sizes: Tensor, seed: int = 0) -> Tensor:
    """The labels, permuted inside each bag: the proportions of every bag stay as they are."""
    generator = stream(seed, "shuffle")
    parts = labels.split(sizes.tolist())
    return torch.cat([part[torch.randperm(len(part), generator=generator)] for part in parts])


def central_difference(function: Callable[[Tensor], Tensor], at: Tensor, step: float = 1e-4) -> Tensor:
    """The gradient of a function of one tensor, value by value."""
    gradient = torch.zeros_like(at)
    for i in range(at.numel()):
        move = torch.zeros_like(at)
        move.view(-1)[i] = step
        gradient.view(-1)[i] = (function(at + move) - function(at - move)) / (2 * step)
    return gradient

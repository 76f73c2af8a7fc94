"""Muon: orthogonal steps, filters of one length, and SGD for all else."""

import pickle
from contextlib import contextmanager
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from apportion._device import channels_last
from apportion.networks import mlp, resnet9
from apportion.optim import (
    OPTIMIZERS,
    OTHERS,
    Muon,
    Replayed,
    make_optimizer,
    orthogonal,
    orthogonal_all,
    set_learning_rate,
    turned,
    words_of,
)


def trained(
    network: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3, seed: int = 0
) -> list[float]:
    """Steps on random images of two classes, one of which is brighter; the losses."""
    generator, losses = torch.Generator().manual_seed(seed), []
    for _ in range(steps):
        y = torch.randint(2, (16,), generator=generator)
        x = torch.randn(16, 3, 8, 8, generator=generator) + y.view(-1, 1, 1, 1)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def small(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return resnet9((3, 8, 8), 2, width=4)


@pytest.mark.parametrize("shape", [(3, 6, 20), (2, 16, 40), (1, 9, 9)])
def test_singular_values_come_near_one_and_vectors_stay(shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    made = orthogonal(matrices)
    values = torch.linalg.svdvals(made)
    assert float(values.min()) > 0.5
    assert float(values.max()) < 1.3
    u, _, v = torch.linalg.svd(matrices, full_matrices=False)
    nearest = u @ v  # the orthogonal matrix that is nearest
    assert float((made - nearest).norm() / nearest.norm()) < 0.35
    torch.testing.assert_close(orthogonal(7 * matrices), made, rtol=1e-4, atol=1e-5)  # of any length


def test_filters_of_one_shape_together_are_each_alone_in_either_layout():
    generator = torch.Generator().manual_seed(1)
    steps = [torch.randn(shape, generator=generator) for shape in ((4, 3, 3, 3), (4, 3, 3, 3), (6, 4, 1, 1))]
    laid = [step.contiguous(memory_format=torch.channels_last) for step in steps]

    def flat(step: Tensor) -> Tensor:
        return orthogonal(step.permute(0, 2, 3, 1).reshape(1, len(step), -1))[0]

    for step, made, other in zip(steps, orthogonal_all(steps), orthogonal_all(laid), strict=True):
        assert made.shape == step.shape
        torch.testing.assert_close(made.permute(0, 2, 3, 1).flatten(1), flat(step))
        torch.testing.assert_close(made, other)


def test_filters_keep_their_length_and_turn_by_the_rate():
    network = small()
    optimizer = Muon(network, 0.1, momentum=0.0)
    turned = [p for group in optimizer.param_groups if group["turned"] for p in group["params"]]
    assert len(turned) == 8
    assert all(p.ndim == 4 for p in turned)
    trained(network, optimizer, 1)
    before = [(p * len(p) ** 0.5 / p.norm()).detach() for p in turned]
    trained(network, optimizer, 1, seed=1)
    for old, new in zip(before, turned, strict=True):
        step = (new.detach() - old).flatten(1) / 0.1
        assert 0.7 < float(torch.linalg.svdvals(step)[0]) < 1.3


def test_without_convolutions_it_is_sgd():
    torch.manual_seed(0)
    networks = [mlp((3, 8, 8), 2, widths=(8,)) for _ in range(2)]
    networks[1].load_state_dict(networks[0].state_dict())
    muon = make_optimizer(networks[0], "muon", 0.05, decay=1e-3)
    sgd = make_optimizer(networks[1], "sgd", OTHERS * 0.05, decay=1e-3)
    assert trained(networks[0], muon, 5) == pytest.approx(trained(networks[1], sgd, 5), rel=1e-5)


def test_rates_are_set_as_shares_of_each_groups_peak():
    optimizer = make_optimizer(small(), "muon", 0.05)
    set_learning_rate([optimizer], 0.5)
    assert sorted({group["lr"] for group in optimizer.param_groups}) == [0.025, 0.05]


def test_it_learns_and_goes_on_to_the_same_bits_from_its_state():
    network = channels_last(small())
    optimizer = make_optimizer(network, "muon", 0.02, clip=5.0)
    losses = trained(network, optimizer, 60)
    assert sum(losses[-10:]) < 0.6 * sum(losses[:10])
    other = channels_last(small(1))
    other.load_state_dict(network.state_dict())
    resumed = make_optimizer(other, "muon", 0.02, clip=5.0)
    resumed.load_state_dict(deepcopy(optimizer.state_dict()))  # torch would share its tensors
    assert trained(network, optimizer, 2, seed=5) == trained(other, resumed, 2, seed=5)


def test_weights_that_need_no_gradient_are_left_alone():
    network = small()
    frozen = next(p for p in network.parameters() if p.ndim == 4 and p[0].numel() >= len(p))
    frozen.requires_grad_(False)
    before = frozen.clone()
    trained(network, make_optimizer(network, "muon", 0.1), 2)
    assert torch.equal(frozen, before)


def test_filters_that_begin_at_nought_and_other_weights_of_four_dimensions_stay_sound():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 2))
    nn.init.zeros_(network[0].weight)
    optimizer = Muon(network, 0.1)
    trained(network, optimizer, 2)
    assert bool(network[0].weight.isfinite().all())
    back = nn.Sequential(nn.ConvTranspose2d(8, 4, 3), nn.Flatten())  # its filters lie the other way round
    assert not any(group["turned"] for group in Muon(back, 0.1).param_groups)


@pytest.mark.parametrize("copy", [deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))])  # noqa: S301
def test_a_copy_goes_on(copy):
    network = small()
    optimizer = make_optimizer(network, "muon", 0.05)
    trained(network, optimizer, 2)
    other = copy(optimizer)
    assert isinstance(other.turn, Replayed)  # which a GPU would ask for
    for mine, theirs in zip(optimizer.param_groups, other.param_groups, strict=True):
        for p, q in zip(mine["params"], theirs["params"], strict=True):
            p.grad = q.grad = p.detach().sin()
    optimizer.step()
    other.step()
    for mine, theirs in zip(optimizer.param_groups, other.param_groups, strict=True):
        torch.testing.assert_close(mine["params"], theirs["params"], rtol=0, atol=0)


def test_one_dense_layer_alone_decays_as_by_sgd():
    networks = [nn.Sequential(nn.Flatten(), nn.Linear(192, 2, bias=False)) for _ in range(2)]
    networks[1].load_state_dict(networks[0].state_dict())
    muon = make_optimizer(networks[0], "muon", 0.05, decay=0.1)
    sgd = make_optimizer(networks[1], "sgd", OTHERS * 0.05, decay=0.1)
    assert trained(networks[0], muon, 5) == pytest.approx(trained(networks[1], sgd, 5), rel=1e-5)


def test_short_filters_are_brought_to_the_length_of_others():
    (weight,) = filters = [1e-3 * torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(0))]
    turned(filters, [torch.ones_like(weight)], [torch.zeros_like(weight)], 0.9)
    assert float(weight.norm()) == pytest.approx(2.0)


class Graph:
    """What `Replayed` asks of a CUDA graph: what was called while it was recorded happens at every replay."""

    recording, recorded = None, 0

    def replay(self) -> None:
        self.run()


@contextmanager
def recording(graph, **_):
    Graph.recording, Graph.recorded = graph, Graph.recorded + 1
    yield
    Graph.recording = None


def recordable(filters: list[Tensor], gradients: list[Tensor], sums: list[Tensor], momentum: float):
    if Graph.recording is None:
        return turned(filters, gradients, sums, momentum)
    steps = [torch.empty_like(p) for p in filters]

    def run() -> None:
        torch._foreach_copy_(steps, turned(filters, gradients, sums, momentum))

    Graph.recording.run = run
    return steps


def test_what_is_recorded_is_what_would_be_launched_and_recorded_anew_where_tensors_are_others(monkeypatch):
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", recording)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(Graph, "recorded", 0)
    found = []
    for turn in (turned, Replayed(recordable)):
        generator = torch.Generator().manual_seed(1)
        filters = [torch.randn(4, 3, 3, 3, generator=generator) for _ in range(3)]
        sums = [torch.zeros_like(p) for p in filters]
        for i in range(24):
            if i == 8:  # another state is loaded
                sums = [-each for each in sums]
            which = slice(0, 2 if 14 <= i < 20 else 3)  # one is without a gradient for a while
            gradients = [torch.randn(p.shape, generator=generator) + p for p in filters]
            steps = turn(filters[which], gradients[which], sums[which], 0.9 if i < 22 else 0.5)
            torch._foreach_add_(filters[which], steps, alpha=-0.05)
        found.append([*filters, *sums])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert Graph.recorded == 3  # from the fourth call on of the same tensors: at 3, 11 and 17


@pytest.mark.gpu
def test_on_a_gpu_recorded_steps_are_those_that_are_launched_one_by_one_also_after_a_state_is_loaded():
    weights = []
    for recorded in (False, True):
        network = channels_last(small().cuda())
        optimizer, generator = Muon(network, 0.05, decay=5e-4), torch.Generator("cuda").manual_seed(1)
        for i in range(20):
            optimizer.turn = optimizer.turn if recorded else turned
            if i == 10:  # other momenta than were recorded
                state = deepcopy(optimizer.state_dict())
                for each in state["state"].values():
                    each["momentum_buffer"].neg_()
                optimizer.load_state_dict(state)
            set_learning_rate([optimizer], 1 - i / 20)
            for p in network.parameters():
                p.grad = torch.randn(p.shape, device="cuda", generator=generator) + p.detach()
            optimizer.step()
        weights.append([p.detach() for p in network.parameters()])
    torch.testing.assert_close(*weights)


def test_optimisers_are_named_with_the_peak_of_their_rate_wherever_it_stands():
    said = []
    for name in OPTIMIZERS:
        optimizer = make_optimizer(resnet9((3, 8, 8), 2, width=4), name, 0.02, decay=0.1)
        set_learning_rate([optimizer], 0.25)
        said.append(words_of(optimizer))
    assert said == ["Adam, peak rate 0.02", "SGD, peak rate 0.02", "Muon, peak rate 0.02"]

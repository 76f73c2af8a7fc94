"""Schedules, SGD and Adam as torch has them, and Muon: orthogonal steps for filters, SGD for all else."""

import math
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager
from copy import deepcopy
from functools import partial

import pytest
import torch
from conftest import network, same_bits, weights_of
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from apportion._device import channels_last
from apportion._random import stream
from apportion.errors import SettingsError
from apportion.networks import mlp, resnet9
from apportion.optim import (
    OPTIMIZERS,
    OTHER_RATE,
    SCHEDULES,
    GraphedSteps,
    Muon,
    cosine,
    describe_optimizer,
    flat_then_linear,
    halving,
    make_optimizer,
    one_cycle,
    orthogonal_steps,
    orthogonalize,
    orthogonalize_filters,
    ramp_cosine,
    set_learning_rate,
)

# --- schedules


@pytest.mark.parametrize("name", SCHEDULES)
@given(at=st.floats(0.0, 1.0), epochs=st.integers(1, 500))
def test_a_schedule_is_a_fraction_of_the_peak(name, at, epochs):
    schedule = partial(halving, epochs=epochs) if name == "halving" else SCHEDULES[name]
    assert 0.0 <= schedule(at) <= 1.0


@pytest.mark.parametrize("schedule", [flat_then_linear, cosine, one_cycle, ramp_cosine])
@given(at=st.floats(0.0, 0.999))
def test_it_changes_without_jumps_and_ends_at_zero(schedule, at):
    assert abs(schedule(at + 1e-6) - schedule(at)) < 1e-4
    assert schedule(1.0) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("schedule", "points"),
    [
        (flat_then_linear, {0.0: 1.0, 0.35: 1.0, 0.7: 1.0, 0.85: 0.5}),
        (cosine, {0.0: 1.0, 0.5: 0.5}),
        (one_cycle, {0.0: 1 / 25, 0.3: 1.0, 0.65: 0.5}),
        (ramp_cosine, {0.0: 0.0, 0.025: 0.5, 0.05: 1.0, 0.525: 0.5}),
    ],
)
def test_schedules_have_these_points(schedule, points):
    assert [schedule(at) for at in points] == pytest.approx(list(points.values()))


def test_one_cycle_is_that_of_torch():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=1001, cycle_momentum=False)
    for step in range(1001):
        # theirs counts its steps from another end and ends at 1/250,000 of the peak
        assert one_cycle(step / 1000) == pytest.approx(theirs.get_last_lr()[0], abs=0.005)
        optimizer.step()
        if step < 1000:
            theirs.step()


@pytest.mark.parametrize("epochs", [1, 7, 100, 161, 289, 1000])
def test_halving_halves_after_every_hundred_epochs_exactly(epochs):
    for number in range(1, epochs + 1):
        assert halving((number - 1) / epochs, epochs) == 0.5 ** ((number - 1) // 100), number
    assert math.log2(halving(1.0, 1000)) == -10


# --- the learning rate


def test_any_optimizer_of_torch_has_its_own_rate_for_a_peak():
    optimizer = torch.optim.AdamW(network().parameters(), lr=0.4)
    for fraction in (0.5, 0.25):
        set_learning_rate([optimizer], fraction)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.4 * fraction)


def test_a_rate_that_somebody_else_sets_scales_the_peak():
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scheduler, rates = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5), []
    for _ in range(3):
        for fraction in (1.0, 0.5):
            set_learning_rate([optimizer], fraction)
            rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx([0.1, 0.05, 0.05, 0.025, 0.025, 0.0125])  # the fraction counts once
    again = torch.optim.SGD([weight], lr=1.0)
    again.load_state_dict(optimizer.state_dict())
    set_learning_rate([again], 1.0)
    assert again.param_groups[0]["lr"] == pytest.approx(0.0125)  # the scheduler's last
    again.param_groups[0]["lr"] = 1e-6
    set_learning_rate([again], 0.0)
    again.param_groups[0]["lr"] = 0.3  # by hand, where the fraction was zero
    set_learning_rate([again], 0.5)
    assert again.param_groups[0]["lr"] == pytest.approx(0.15)


def small(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return resnet9((3, 8, 8), 2, width=4)


def test_rates_are_fractions_of_the_peak_of_each_group():
    optimizer = make_optimizer(small(), "muon", 0.05)
    set_learning_rate([optimizer], 0.5)
    assert sorted({group["lr"] for group in optimizer.param_groups}) == [0.025, 0.05]


def test_optimizers_are_described_with_the_peak_of_their_rate():
    described = []
    for name in OPTIMIZERS:
        optimizer = make_optimizer(small(), name, 0.02, weight_decay=0.1)
        set_learning_rate([optimizer], 0.25)
        described.append(describe_optimizer(optimizer))
    assert described == ["Adam, peak rate 0.02", "SGD, peak rate 0.02", "Muon, peak rate 0.02"]


# --- SGD and Adam


@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_they_step_as_those_of_torch_and_only_matrices_decay(name, weight_decay):
    ends = []
    for own in (True, False):
        net = network()
        optimizer = make_optimizer(net, name, 0.1, weight_decay=weight_decay, momentum=0.8)
        if not own:
            groups = [
                {"params": [p], "weight_decay": weight_decay if p.ndim > 1 else 0.0} for p in net.parameters()
            ]
            if name == "sgd":
                optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.8, nesterov=True)
            else:
                optimizer = torch.optim.Adam(groups, lr=0.1, betas=(0.8, 0.999))
        torch.manual_seed(1)
        for _ in range(5):
            optimizer.zero_grad()
            net(torch.randn(30, 2)).square().mean().backward()
            optimizer.step()
        ends.append(weights_of(net))
    assert same_bits(*ends)


def test_a_gradient_longer_than_the_clip_is_scaled_down_to_it():
    layer = nn.Linear(3, 1, bias=False)
    for length, kept in ((10.0, 0.5), (0.1, 0.1)):
        optimizer = make_optimizer(layer, "sgd", 1.0, momentum=0.0, clip=0.5)
        before = layer.weight.detach().clone()
        layer.weight.grad = torch.tensor([[length, 0.0, 0.0]])
        optimizer.step()
        assert float((before - layer.weight.detach()).norm()) == pytest.approx(kept, rel=1e-4)


def test_unknown_optimizers_and_networks_without_weights_to_learn_are_refused():
    with pytest.raises(SettingsError):
        make_optimizer(network(), "adagrad", 0.1)
    with pytest.raises(SettingsError):
        make_optimizer(network().requires_grad_(False), "adam", 0.1)


def test_the_compiler_of_torch_is_not_imported_to_train_on_the_cpu():
    program = """
import sys, torch
from apportion.optim import make_optimizer
net = torch.nn.Linear(2, 2)
for optimizer in (make_optimizer(net, "adam", 0.1), make_optimizer(net, "sgd", 0.1)):
    optimizer.zero_grad()
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


# --- Muon


def train_images(
    network: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3, seed: int = 0
) -> list[float]:
    """Steps on random images of two classes, one of which is brighter; the losses."""
    generator, losses = stream(seed, "images"), []
    for _ in range(steps):
        y = torch.randint(2, (16,), generator=generator)
        x = torch.randn(16, 3, 8, 8, generator=generator) + y.view(-1, 1, 1, 1)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("shape", [(3, 6, 20), (2, 16, 40), (1, 9, 9)])
def test_singular_values_come_near_one_and_vectors_stay(shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = orthogonalize(matrices)
    values = torch.linalg.svdvals(found)
    assert float(values.min()) > 0.5
    assert float(values.max()) < 1.3
    u, _, v = torch.linalg.svd(matrices, full_matrices=False)
    nearest = u @ v  # the nearest orthogonal matrix
    assert float((found - nearest).norm() / nearest.norm()) < 0.35
    torch.testing.assert_close(orthogonalize(7 * matrices), found, rtol=1e-4, atol=1e-5)


def test_filters_of_one_shape_are_orthogonalized_together_as_one_by_one_in_either_layout():
    generator = torch.Generator().manual_seed(1)
    steps = [torch.randn(shape, generator=generator) for shape in ((4, 3, 3, 3), (4, 3, 3, 3), (6, 4, 1, 1))]
    other_layout = [step.contiguous(memory_format=torch.channels_last) for step in steps]
    together, other = orthogonalize_filters(steps), orthogonalize_filters(other_layout)
    for step, found, same in zip(steps, together, other, strict=True):
        alone = orthogonalize(step.permute(0, 2, 3, 1).reshape(1, len(step), -1))[0]
        assert found.shape == step.shape
        torch.testing.assert_close(found.permute(0, 2, 3, 1).flatten(1), alone)
        torch.testing.assert_close(found, same)


def filters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups if group["orthogonalize"] for p in group["params"]]


def test_filters_keep_their_length_and_turn_by_the_rate():
    net = small()
    optimizer = Muon(net, 0.1, momentum=0.0)
    filters = filters_of(optimizer)
    assert len(filters) == 8
    assert all(p.ndim == 4 for p in filters)
    train_images(net, optimizer, 1)
    before = [(p * len(p) ** 0.5 / p.norm()).detach() for p in filters]
    train_images(net, optimizer, 1, seed=1)
    for old, new in zip(before, filters, strict=True):
        step = (new.detach() - old).flatten(1) / 0.1
        assert 0.7 < float(torch.linalg.svdvals(step)[0]) < 1.3


@pytest.mark.parametrize(
    "make",
    [
        lambda: mlp((3, 8, 8), 2, widths=(8,)),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 2, bias=False)),
    ],
    ids=["mlp", "one layer"],
)
def test_without_convolutions_it_is_sgd(make):
    torch.manual_seed(0)
    one, other = make(), make()
    other.load_state_dict(one.state_dict())
    muon = make_optimizer(one, "muon", 0.05, weight_decay=0.1)
    sgd = make_optimizer(other, "sgd", OTHER_RATE * 0.05, weight_decay=0.1)
    assert train_images(one, muon, 5) == pytest.approx(train_images(other, sgd, 5), rel=1e-5)


def test_it_learns_and_resumes_with_the_same_bits_from_its_state():
    net = channels_last(small())
    optimizer = make_optimizer(net, "muon", 0.02, clip=5.0)
    losses = train_images(net, optimizer, 60)
    assert sum(losses[-10:]) < 0.6 * sum(losses[:10])
    other = channels_last(small(1))
    other.load_state_dict(net.state_dict())
    resumed = make_optimizer(other, "muon", 0.02, clip=5.0)
    resumed.load_state_dict(deepcopy(optimizer.state_dict()))  # torch would share its tensors
    assert train_images(net, optimizer, 2, seed=5) == train_images(other, resumed, 2, seed=5)


def test_weights_that_need_no_gradient_are_left_alone():
    net = small()
    fixed = next(p for p in net.parameters() if p.ndim == 4 and p[0].numel() >= len(p))
    fixed.requires_grad_(False)
    before = fixed.clone()
    train_images(net, make_optimizer(net, "muon", 0.1), 2)
    assert torch.equal(fixed, before)


def test_filters_that_begin_at_zero_stay_finite_and_short_ones_get_the_length_of_others():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 2))
    nn.init.zeros_(net[0].weight)
    train_images(net, Muon(net, 0.1), 2)
    assert bool(net[0].weight.isfinite().all())
    (weight,) = filters = [1e-3 * torch.randn(4, 3, 3, 3, generator=stream(0))]
    orthogonal_steps(filters, [torch.ones_like(weight)], [torch.zeros_like(weight)], 0.9)
    assert float(weight.norm()) == pytest.approx(2.0)


def test_only_filters_of_convolutions_are_orthogonalized():
    transposed = nn.Sequential(nn.ConvTranspose2d(8, 4, 3), nn.Flatten())  # its filters lie the other way
    assert filters_of(Muon(transposed, 0.1)) == []


@pytest.mark.parametrize("copy", [deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))])  # noqa: S301
def test_a_copy_goes_on(copy):
    net = small()
    optimizer = make_optimizer(net, "muon", 0.05)
    train_images(net, optimizer, 2)
    other = copy(optimizer)
    assert isinstance(other.graphed_steps, GraphedSteps)  # used on a GPU
    pairs = [
        (p, q)
        for mine, theirs in zip(optimizer.param_groups, other.param_groups, strict=True)
        for p, q in zip(mine["params"], theirs["params"], strict=True)
    ]
    for p, q in pairs:
        p.grad = q.grad = p.detach().sin()
    optimizer.step()
    other.step()
    assert all(torch.equal(p, q) for p, q in pairs)


# --- CUDA graphs


class FakeGraph:
    """A CUDA graph: what was called while it was recorded happens at every replay."""

    recording: "FakeGraph | None" = None
    n_recorded = 0
    run: Callable[[], None]

    def replay(self) -> None:
        self.run()


@contextmanager
def record(graph, **_):
    FakeGraph.recording = graph
    FakeGraph.n_recorded += 1
    yield
    FakeGraph.recording = None


def recordable(filters: list[Tensor], gradients: list[Tensor], buffers: list[Tensor], momentum: float):
    if FakeGraph.recording is None:
        return orthogonal_steps(filters, gradients, buffers, momentum)
    steps = [torch.empty_like(p) for p in filters]

    def run() -> None:
        torch._foreach_copy_(steps, orthogonal_steps(filters, gradients, buffers, momentum))

    FakeGraph.recording.run = run
    return steps


def test_graphed_steps_are_plain_steps_and_recorded_anew_for_other_tensors(monkeypatch):
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", record)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(FakeGraph, "n_recorded", 0)
    found = []
    for function in (orthogonal_steps, GraphedSteps(recordable)):
        generator = torch.Generator().manual_seed(1)
        filters = [torch.randn(4, 3, 3, 3, generator=generator) for _ in range(3)]
        buffers = [torch.zeros_like(p) for p in filters]
        for i in range(24):
            if i == 8:  # another state is loaded
                buffers = [-each for each in buffers]
            which = slice(0, 2 if 14 <= i < 20 else 3)  # one has no gradient for a while
            gradients = [torch.randn(p.shape, generator=generator) + p for p in filters]
            steps = function(filters[which], gradients[which], buffers[which], 0.9 if i < 22 else 0.5)
            torch._foreach_add_(filters[which], steps, alpha=-0.05)
        found.append([*filters, *buffers])
    assert same_bits(*found)
    assert FakeGraph.n_recorded == 3  # from the fourth call with the same tensors: at 3, 11 and 17


@pytest.mark.gpu
def test_on_a_gpu_graphed_steps_are_plain_steps_also_after_a_state_is_loaded():
    weights = []
    for graphed in (False, True):
        net = channels_last(small().cuda())
        optimizer, generator = Muon(net, 0.05, weight_decay=5e-4), torch.Generator("cuda").manual_seed(1)
        if not graphed:
            optimizer.graphed_steps = orthogonal_steps  # type: ignore[assignment]
        for i in range(20):
            if i == 10:  # other momenta than were recorded
                state = deepcopy(optimizer.state_dict())
                for each in state["state"].values():
                    each["momentum_buffer"].neg_()
                optimizer.load_state_dict(state)
                if not graphed:
                    optimizer.graphed_steps = orthogonal_steps  # type: ignore[assignment]
            set_learning_rate([optimizer], 1 - i / 20)
            for p in net.parameters():
                p.grad = torch.randn(p.shape, device="cuda", generator=generator) + p.detach()
            optimizer.step()
        weights.append([p.detach() for p in net.parameters()])
    torch.testing.assert_close(*weights)

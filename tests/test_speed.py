"""What is compiled, and the plain network behind a fast one."""

import pytest
import torch
from torch import nn

from apportion._device import Fast, compile_for, lengths_of, plain_network, quick, to_device
from apportion._random import reseed, stream
from apportion.augment import views
from apportion.bags.bags import Bags
from apportion.methods.protocol import frozen, frozen_batch_norm
from apportion.networks import conv13, mlp

# importing torch's compiler warns about torch's own use of torch.jit
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


def test_a_network_on_the_cpu_is_left_as_it_is():
    network = mlp((2,), 2)
    assert to_device(network, torch.device("cpu"), {8}) is network
    assert plain_network(network) is network


def test_a_fast_networks_weights_are_listed_once_under_the_plain_networks_names():
    network = mlp((2,), 2)
    fast = nn.Sequential(Fast(network[0], {8}), network[1])
    assert [id(p) for p in fast.parameters()] == [id(p) for p in network.parameters()]
    assert list(plain_network(fast).state_dict()) == list(network.state_dict())


def test_a_batch_of_another_size_takes_the_plain_path_and_answers_in_float32():
    network = mlp((2,), 2)
    answer = Fast(network, {8})(torch.randn(3, 2))
    assert answer.dtype == torch.float32
    assert answer.shape == (3, 2)


@pytest.mark.parametrize(
    ("sizes", "lengths"),
    [
        ([64] * 781 + [16], {1024}),
        ([100] * 500, {1024, 1000}),
        ([48] * 40 + [5], {1024, 1008}),
        ([3000] * 20, {1024}),
        ([1, 5, 9, 70, 3], {1024}),
    ],
)
def test_the_usual_lengths_are_those_of_most_batches_of_an_epoch_and_of_predictions(sizes, lengths):
    assert lengths_of(torch.tensor(sizes), 1024) == lengths
    if len(sizes) > 10:
        n = sum(sizes)
        bags = Bags(torch.zeros(n, 1), torch.tensor(sizes), torch.ones(len(sizes), 1), torch.arange(n), sizes)
        found = [len(batch.x) in lengths for batch in bags.batches(1024, stream(0))]
        assert sum(found) >= len(found) - 2


@pytest.mark.parametrize(("alike", "lengths"), [(91, {1024, 1000}), (89, {1024}), (50, {1024})])
def test_more_than_nine_bags_in_ten_of_one_size_give_training_a_usual_length(alike, lengths):
    sizes = torch.tensor([100] * alike + list(range(1, 101 - alike)))
    assert lengths_of(sizes, 1024) == lengths


def test_the_two_views_of_an_image_are_one_piece_for_the_compiler():
    """Where it had to break off, or to wait for a number, nothing would be gained."""
    augment, _ = views((0.5,) * 3, (0.25,) * 3, torch.device("cpu"), "weak+strong")
    assert quick(augment, torch.device("cpu"), {4}) is augment
    whole = torch.compile(augment, backend="eager", dynamic=False, fullgraph=True)
    x = torch.randint(0, 256, (4, 3, 32, 32), generator=stream(0), dtype=torch.uint8)
    found = []
    for view in (augment, whole):
        reseed(0, "view")
        found.append(view(x))
    assert torch.equal(*found)


def test_on_cuda_a_part_is_compiled_for_its_lengths_and_either_it_or_the_network(monkeypatch):
    asked, cuda = [], torch.device("cuda")

    def compiler(part, **options):
        asked.append(options)
        return lambda x, *more: ("compiled", *more)

    def part(x, *more):
        return ("plain", *more)

    monkeypatch.setattr(torch, "compile", compiler)
    monkeypatch.setattr("apportion._device.compiles", lambda device: device.type == "cuda")
    for graphs, mode in ((True, "reduce-overhead"), (False, None)):
        fast = quick(part, cuda, {4, 6}, graphs=graphs)
        assert asked.pop() == {"dynamic": False, "mode": mode}
        assert [fast(torch.zeros(n), 7) for n in (4, 6, 5)] == [("compiled", 7)] * 2 + [("plain", 7)]
    assert quick(part, cuda, ()) is part
    for parts, lengths in ((True, [(), {4}]), (False, [{4}, ()])):
        assert [way.keywords["lengths"] for way in compile_for(cuda, {4}, parts)] == lengths
    assert asked == []


def test_what_is_done_to_a_network_for_a_while_reaches_its_compiled_form():
    """Compiled code must ask anew whether statistics move and weights learn (VAT, GAN, two views)."""
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    compiled = torch.compile(network, backend="eager", dynamic=False)
    x = torch.randn(8, 3, generator=stream(0))

    def moved() -> bool:
        before = network[1].running_mean.clone()
        compiled(x).sum().backward()
        return not torch.equal(before, network[1].running_mean)

    def learned() -> bool:
        network.zero_grad()
        compiled(x.requires_grad_()).square().sum().backward()
        return network[0].weight.grad is not None

    assert moved()
    assert learned()
    with frozen_batch_norm(network):
        assert not moved()
    with frozen(network):
        assert not learned()
    assert moved()
    assert learned()


def test_convolutions_take_channels_last_on_a_cpu_and_answer_the_same():
    network = conv13((3, 16, 16), 4, dropout=0.0).eval()
    x = torch.randn(5, 3, 16, 16, generator=stream(0))
    with torch.no_grad():
        before = network(x)
        to_device(network, torch.device("cpu"), {8})
        assert network[0][0].weight.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(network(x), before)


def test_a_module_of_the_users_own_may_call_view():
    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            return self.layer(x).view(len(x), -1)

    network = to_device(nn.Sequential(Viewed(), nn.Linear(36, 2)), torch.device("cpu"), {8})
    assert network(torch.zeros(2, 3, 5, 5)).shape == (2, 2)


def test_a_layer_that_has_no_shape_yet_is_left_alone():
    network = nn.Sequential(nn.LazyConv2d(4, 3), nn.Flatten(), nn.LazyLinear(2))
    assert to_device(network, torch.device("cpu"), {8})(torch.zeros(1, 3, 5, 5)).shape == (1, 2)

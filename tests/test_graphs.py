"""CUDA graphs of passes, and norm, activation and pooling as one operation. Most of it needs a GPU."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from apportion._device import FastNetwork, channels_last
from apportion._graphs import WARMUP, Graphed
from apportion._random import stream
from apportion.errors import ApportionWarning
from apportion.methods.protocol import frozen, frozen_batch_norm
from apportion.networks import resnet9
from apportion.networks.fused_norm import FusedSequential, max_pool, norm_leaky_relu

CUDA = torch.device("cuda")


def images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=stream(seed, "images")).to(memory_format=torch.channels_last)


def layers(kind: type[nn.Sequential] = nn.Sequential) -> nn.Sequential:
    return kind(
        nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.LeakyReLU(0.1), nn.MaxPool2d(2),
        nn.Conv2d(5, 4, 1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.MaxPool2d(2), nn.BatchNorm2d(4), nn.Flatten(),
    )  # fmt: skip


# --- norm, activation and pooling


@pytest.mark.parametrize("training", [True, False])
def test_on_a_cpu_fused_layers_are_torchs_own(training):
    plain = layers().train(training)
    fused = layers(FusedSequential).train(training)
    fused.load_state_dict(plain.state_dict())  # the same names
    x = images(6, 3, 14, 14)
    outputs = [each(x) for each in (plain, fused)]
    assert torch.equal(*outputs)
    for each, output in zip((plain, fused), outputs, strict=True):
        output.square().sum().backward()
        assert all(p.grad is not None for p in each.parameters())
    for one, other in zip(plain.parameters(), fused.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)  # type: ignore[arg-type]
    for one, other in zip(plain.buffers(), fused.buffers(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("slope", [0.0, 0.1])
@pytest.mark.parametrize(
    ("shape", "pool"),
    [((64, 32, 16, 16), False), ((64, 32, 16, 16), True), ((37, 100, 10, 14), True), ((3, 7, 5, 3), False)],
)
def test_on_a_gpu_fused_layers_agree_with_torch_in_double_precision(shape, pool, slope, dtype):
    x = (2 * images(*shape) + 3 * images(1, shape[1], 1, 1, seed=1)).to(CUDA, dtype)
    norm = nn.BatchNorm2d(shape[1]).to(CUDA)
    with torch.no_grad():
        norm.weight.normal_(1, 0.3)
        norm.bias.normal_()
    found = []
    for each, input in ((norm, x), (copy.deepcopy(norm).double(), x.double())):
        input = input.detach().requires_grad_()
        if input.dtype == torch.float64:  # torch's layers
            y = F.leaky_relu(each(input), slope)
            y = F.max_pool2d(y, 2) if pool else y
        else:
            y = norm_leaky_relu(each, input, slope, pool)
        y.backward(images(*y.shape, seed=2).to(y))
        assert y.is_contiguous(memory_format=torch.channels_last)
        buffers = [each.running_mean, each.running_var, each.num_batches_tracked]
        found.append([y.detach(), input.grad, each.weight.grad, each.bias.grad, *buffers])
    for one, other in zip(*found, strict=True):
        # rounding may move a value across zero, where the slope changes, so single elements may differ
        difference = (one.double() - other.double()).norm() / other.double().norm()
        assert float(difference) < (5e-3 if dtype == torch.bfloat16 else 2e-4)


@pytest.mark.gpu
def test_on_a_gpu_evaluation_and_frozen_statistics_agree_with_torch():
    x = images(16, 6, 4, 4).to(CUDA)
    norm = nn.BatchNorm2d(6).to(CUDA)
    norm_leaky_relu(norm, x, 0.1)
    before = [b.clone() for b in norm.buffers()]
    with frozen_batch_norm(norm):
        torch.testing.assert_close(norm_leaky_relu(norm, x, 0.1), F.leaky_relu(norm(x), 0.1))
    assert all(torch.equal(*pair) for pair in zip(before, norm.buffers(), strict=True))
    norm.eval()
    with torch.no_grad():
        torch.testing.assert_close(norm_leaky_relu(norm, x, 0.1), F.leaky_relu(norm(x), 0.1))
    gradient = images(16, 6, 4, 4, seed=1).to(CUDA)
    norm_leaky_relu(norm, x, 0.1).backward(gradient)  # through running statistics: torch's own layers
    assert norm.weight.grad is not None


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(33, 70, 8, 12), (4, 3, 5, 7)])
def test_on_a_gpu_pooling_is_torchs_own(shape):
    found = []
    for pool in (max_pool, lambda x: F.max_pool2d(x, 2)):
        x = images(*shape).round(decimals=1).to(CUDA).requires_grad_()  # with ties
        y = pool(x)
        y.backward(images(*y.shape, seed=1).to(CUDA))
        found.append((y.detach(), x.grad))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


# --- graphs


def train_steps(network, head, fast, n: int) -> list[torch.Tensor]:
    """The losses and final weights of some steps of SGD on random images, with dropout."""
    losses = []
    weights = [*network.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(weights, lr=0.05)
    for i in range(n):
        torch.manual_seed(i)
        x = images(8, 3, 16, 16, seed=i).to(CUDA)
        optimizer.zero_grad()
        loss = head(fast(x)).logsumexp(1).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return [*losses, *(p.detach() for p in weights), *network.buffers()]


@pytest.mark.gpu
def test_recorded_steps_are_plain_steps():
    found = []
    for recorded in (False, True):
        torch.manual_seed(0)
        network = channels_last(nn.Sequential(resnet9((3, 16, 16), 4, width=8)[0], nn.Dropout(0.3)).to(CUDA))
        head = nn.Linear(64, 4).to(CUDA)
        fast = FastNetwork(network, {8} if recorded else set(), use_bfloat16=False)
        found.append(train_steps(network, head, fast, WARMUP + 4))
        if recorded:
            assert isinstance(fast.fast, Graphed)
            assert len(fast.fast.recordings) == 1
    for plain, graphed in zip(*found, strict=True):
        torch.testing.assert_close(plain, graphed, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_gradients_of_inputs_and_frozen_weights_are_recorded_apart():
    """As LLP-VAT calls a network: plainly, then for the gradient of its input, then without statistics."""
    network = channels_last(layers(FusedSequential).to(CUDA))
    graphed = Graphed(network, [network])
    for i in range(WARMUP + 3):
        x = images(8, 3, 14, 14, seed=i).to(CUDA)
        plain = copy.deepcopy(network)
        for each, model in ((graphed, network), (plain, plain)):
            model.zero_grad()
            output = each(x)
            direction = x.clone().requires_grad_()
            with frozen(model):
                (gradient,) = torch.autograd.grad(each(direction).square().sum(), direction)
            with frozen_batch_norm(model):
                (output - each(x + gradient)).square().sum().backward()
        for one, other in zip(network.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-3)
        for one, other in zip(network.buffers(), plain.buffers(), strict=True):
            torch.testing.assert_close(one, other)
    assert len(graphed.recordings) == 3


@pytest.mark.gpu
def test_two_calls_before_a_backward_pass_do_not_mix():
    network = nn.Linear(3, 3).to(CUDA)
    graphed = Graphed(lambda x: network(x).square(), [network])
    x = torch.randn(2, WARMUP + 3, 4, 3, device=CUDA)
    for one, other in zip(*x, strict=True):
        network.zero_grad()
        (graphed(one) * graphed(other)).sum().backward()
        found = network.weight.grad.clone()  # type: ignore[union-attr]
        network.zero_grad()
        (network(one).square() * network(other).square()).sum().backward()
        torch.testing.assert_close(found, network.weight.grad)


@pytest.mark.gpu
def test_a_backward_pass_after_the_next_call_is_refused():
    network = nn.Linear(3, 3).to(CUDA)
    graphed = Graphed(network, [network])
    x = torch.randn(4, 3, device=CUDA)
    for _ in range(WARMUP + 1):
        loss = graphed(x).sum()
        loss.backward(retain_graph=True)
    graphed(x)
    with pytest.raises(RuntimeError, match="overwritten"):
        loss.backward()


@pytest.mark.gpu
def test_a_function_that_waits_for_the_device_runs_without_a_graph():
    network = nn.Linear(3, 3).to(CUDA)

    def waits(x):
        return network(x) * (2.0 if float(x.sum()) > 0 else 3.0)

    graphed = Graphed(waits, [network])
    x = torch.randn(WARMUP + 4, 4, 3, device=CUDA)
    for each in x[:WARMUP]:
        torch.testing.assert_close(graphed(each), waits(each))
    with pytest.warns(ApportionWarning, match="without a CUDA graph"):
        graphed(x[WARMUP])
    for each in x[WARMUP:]:
        torch.testing.assert_close(graphed(each), waits(each))
        network.zero_grad()
        graphed(each).sum().backward()
    assert list(graphed.recordings.values()) == [None]
    # random numbers are drawn as before: a failed recording must not keep the generator
    torch.nn.functional.dropout(x, 0.5)
    torch.cuda.synchronize()


@pytest.mark.gpu
def test_gradients_of_two_calls_are_added():
    torch.manual_seed(0)
    network = nn.Linear(3, 1).to(CUDA)
    graphed = Graphed(network, [network])
    x = torch.randn(WARMUP + 2, 4, 3, device=CUDA)
    for each in x:
        network.zero_grad()
        graphed(each).sum().backward()
    graphed(x[0]).sum().backward()  # added to that of the last one
    expected = x[-1].sum(0) + x[0].sum(0)
    torch.testing.assert_close(network.weight.grad, expected[None])


def test_on_a_cpu_nothing_is_recorded():
    network = nn.Linear(3, 3)
    graphed = Graphed(network, [network])
    for _ in range(WARMUP + 2):
        assert torch.equal(graphed(torch.ones(2, 3)), network(torch.ones(2, 3)))
    assert not graphed.recordings


@pytest.mark.gpu
def test_a_recording_follows_weights_that_are_replaced():
    network = nn.Linear(3, 3).to(CUDA)
    graphed = Graphed(network, [network])
    x = torch.randn(4, 3, device=CUDA)
    for i in range(2 * WARMUP + 4):
        if i == WARMUP + 2:
            network.weight = nn.Parameter(torch.randn(3, 3, device=CUDA))
        with torch.no_grad():
            network.bias.add_(1)  # in place: the recording reads it
            torch.testing.assert_close(graphed(x), network(x))

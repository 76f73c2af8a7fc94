"""Which device is used, what it is asked for, and the plain network behind a fast one."""

import copy
import inspect

import numpy as np
import pytest
import torch
from torch import nn

from apportion import ProportionClassifier
from apportion._device import (
    FastNetwork,
    catch_out_of_memory,
    cuda_works,
    deterministic_algorithms,
    find_device,
    graph_part,
    graphs_for,
    has_bfloat16,
    plain_network,
    resolve_device,
    supports_triton,
    to_device,
    usual_batch_lengths,
)
from apportion._graphs import Graphed
from apportion._random import reseed, stream
from apportion.augment import views
from apportion.bags.bags import Bags
from apportion.cli import tables
from apportion.cli.options import TrainingOptions
from apportion.errors import SettingsError
from apportion.evaluate import predict_log_proba_on
from apportion.methods.protocol import frozen, frozen_batch_norm
from apportion.networks import conv13, mlp
from apportion.optim import orthogonalize

# importing torch's compiler warns about torch's own use of torch.jit
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
ROWS, IMAGES = torch.zeros(1, 5), torch.zeros(1, 3, 8, 8, dtype=torch.uint8)


@pytest.fixture
def gpu(monkeypatch):
    """A machine that seems to have a GPU of some generation; torch is deceived as well, so none may train."""

    def pretend(generation: tuple[int, int], triton: bool = True, compiler: bool = True) -> None:
        monkeypatch.setattr("apportion._device.cuda_works", cuda_works)
        monkeypatch.setattr("apportion._device._try_cuda", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: generation)
        monkeypatch.setattr("apportion._device.find_spec", lambda name: object() if triton else None)
        monkeypatch.setattr("apportion._device.which", lambda name: "/bin/" + name if compiler else None)
        monkeypatch.delenv("CC", raising=False)

    return pretend


# --- which device


def test_a_device_that_is_not_there_is_refused():
    for find in (find_device, lambda name: resolve_device(name, ROWS)):
        with pytest.raises(SettingsError):
            find("tpu")
    assert find_device("auto").type in ("cuda", "mps", "cpu")


def test_auto_is_the_gpu_for_images_and_the_cpu_for_rows(gpu):
    gpu((9, 0))
    assert resolve_device("auto", IMAGES).type == "cuda"
    assert resolve_device("auto", IMAGES.float()).type == "cuda"
    assert resolve_device("auto", torch.zeros(1, 7, 2)).type == "cuda"  # for a network of the user's own
    assert resolve_device("auto", ROWS).type == "cpu"
    assert resolve_device("cuda:0", ROWS) == torch.device("cuda:0")
    assert resolve_device("cpu", IMAGES).type == "cpu"


@pytest.mark.parametrize("message", ["no kernel image is available", "CUDA in forked subprocess"])
def test_auto_is_the_cpu_where_the_gpu_fails_its_first_sum(gpu, monkeypatch, message):
    gpu((12, 0))

    def fails():
        raise RuntimeError(message)

    monkeypatch.setattr("apportion._device._try_cuda", fails)
    assert resolve_device("auto", IMAGES).type == "cpu"
    assert resolve_device("cuda", IMAGES).type == "cuda"  # who names it sees what torch says


def test_auto_is_the_cpu_for_images_where_there_is_no_cuda(monkeypatch):
    """Not MPS: the defaults are those of a GPU then, and a laptop would take hours."""
    monkeypatch.setattr("apportion._device.cuda_works", cuda_works)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert resolve_device("auto", IMAGES).type == "cpu"
    assert resolve_device("mps", IMAGES).type == "mps"


def test_auto_is_the_default_everywhere():
    for each in (ProportionClassifier, TrainingOptions, tables.predict, tables.diagnose):
        assert inspect.signature(each).parameters["device"].default == "auto"


def pictures(n: int = 8) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Dark and light images, their classes and their bags, which have different proportions."""
    y = np.arange(n) // 3 % 2
    x = np.random.default_rng(0).integers(0, 120, (n, 3, 16, 16)) + 130 * y[:, None, None, None]
    return x.astype(np.uint8), y, np.arange(n) // 4


def test_an_estimator_learns_and_predicts_on_its_device(monkeypatch):
    resolved, used = [], []

    def resolve(name, x):
        resolved.append((name, x.ndim))
        return torch.device("cpu:0")

    def watched(device, *args):
        used.append(str(device))
        return predict_log_proba_on(device, *args)

    monkeypatch.setattr("apportion.estimator.resolve_device", resolve)
    monkeypatch.setattr("apportion.estimator.predict_log_proba_on", watched)
    x, y, bags = pictures(24)
    model = ProportionClassifier(method="dllp", pseudo_labels=None, epochs=1, device="auto").fit(
        x, y, bags=bags
    )
    assert (model.device_, used) == ("cpu:0", ["cpu:0"])
    model.predict(x)
    assert resolved == [("auto", 4)] * 2
    assert used == ["cpu:0"] * 2


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["two_views", "dllp", "llp_gan"])
def test_images_are_learned_on_the_gpu_by_both_stages_unless_another_device_is_named(monkeypatch, method):
    monkeypatch.setattr("apportion._device.cuda_works", cuda_works)
    generator = np.random.default_rng(0)
    y, dark = generator.integers(0, 2, 256), generator.integers(0, 120, (256, 3, 16, 16))
    x = (dark + 130 * y[:, None, None, None]).astype(np.uint8)
    model = ProportionClassifier(
        method=method, pseudo_labels="soft", epochs=6, student_epochs=6, random_state=0
    )
    model.fit(x, y, bags=np.arange(256) // 4)
    assert model.device_ == "cuda"
    assert all("Muon" in words for words in model.optimizers_.values())
    assert (model.predict(x) == y).mean() > 0.9


# --- what it supports


@pytest.mark.parametrize(
    ("generation", "triton", "compiler", "has_triton", "bfloat16"),
    [
        ((9, 0), True, True, True, True),
        ((8, 0), True, True, True, True),
        ((8, 6), False, True, False, True),  # Windows
        ((9, 0), True, False, False, True),  # a small container
        ((7, 5), True, True, True, False),  # a T4
        ((7, 0), True, True, True, False),
        ((6, 1), True, True, False, False),
    ],
)
def test_a_gpu_is_asked_for_no_more_than_it_supports(
    gpu, monkeypatch, generation, triton, compiler, has_triton, bfloat16
):
    gpu(generation, triton, compiler)
    assert (supports_triton(CUDA), has_bfloat16(CUDA)) == (has_triton, bfloat16)
    if not compiler:
        monkeypatch.setattr("apportion._device.which", lambda name: name if name == "clang" else None)
        assert supports_triton(CUDA)
        monkeypatch.setattr("apportion._device.which", lambda name: None)
        monkeypatch.setenv("CC", "tcc")
        assert supports_triton(CUDA)


def test_the_cpu_is_asked_for_neither():
    assert not supports_triton(CPU)
    assert not has_bfloat16(CPU)


def test_muon_multiplies_in_bfloat16_where_the_device_has_it(monkeypatch):
    matrices, found = torch.randn(1, 3, 5, generator=stream(0)), []
    for able in (False, True):
        monkeypatch.setattr("apportion.optim.has_bfloat16", lambda device, able=able: able)
        found.append(orthogonalize(matrices).dtype)
    assert found == [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("exact", [True, False])
def test_deterministic_algorithms_are_restored_afterwards(exact):
    def state():
        return torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark

    before = state()
    with deterministic_algorithms(exact):
        assert state() == (exact, not exact)
    assert state() == before


# --- memory


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB."),
        RuntimeError("MPS backend out of memory (MPS allocated: 9.00 GB)"),
    ],
)
def test_a_device_without_memory_is_an_error_of_the_settings(error):
    with pytest.raises(SettingsError) as found, catch_out_of_memory(IMAGES, CUDA):
        raise error
    assert found.value.__cause__ is error


@pytest.mark.parametrize("error", [ZeroDivisionError(), RuntimeError("mat1 and mat2 cannot be multiplied")])
def test_other_errors_stay_as_they_are(error):
    with pytest.raises(type(error)) as found, catch_out_of_memory(IMAGES, CUDA):
        raise error
    assert found.value is error


def out_of_memory(*args, **named):
    yield from ()
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB.")


def test_training_says_what_to_change_if_the_device_is_too_small(monkeypatch):
    x, y, bags = pictures()
    monkeypatch.setattr("apportion.fitting.fit_two_stages", out_of_memory)
    with pytest.raises(SettingsError):
        ProportionClassifier(device="cpu").fit(x, y, bags=bags)
    monkeypatch.setattr("apportion.bags.bags.Bags.to", lambda self, device: next(out_of_memory()))
    with pytest.raises(SettingsError):  # of instances that do not fit, before any training
        ProportionClassifier(device="cpu").fit(x, y, bags=bags)


# --- fast networks


def test_a_network_on_the_cpu_is_left_as_it_is():
    network = mlp((2,), 2)
    assert to_device(network, CPU, {8}) is network
    assert plain_network(network) is network


@pytest.mark.parametrize(("generation", "bfloat16"), [((9, 0), True), ((7, 5), False), ((6, 1), False)])
def test_networks_are_made_fast_as_the_gpu_supports(gpu, monkeypatch, generation, bfloat16):
    gpu(generation)
    monkeypatch.setattr(nn.Module, "to", lambda self, *_, **__: self)  # there is no GPU on this machine
    network, single = mlp((2,), 2), nn.Linear(2, 2)
    two_parts, whole = to_device(network, CUDA, {4}), to_device(single, CUDA, {4})
    assert two_parts[1] is network[1]  # the last layer stays in float32
    for fast in (two_parts[0], whole):
        assert isinstance(fast, FastNetwork)
        assert (fast.lengths, fast.use_bfloat16) == ({4}, bfloat16)
        assert isinstance(fast.fast, Graphed)
    assert plain_network(whole) is single
    assert list(plain_network(two_parts).state_dict()) == list(network.state_dict())


class OfTheUser(nn.Linear):
    """A module that may do anything, such as wait for the device."""


def test_networks_with_modules_of_the_user_are_compiled_where_triton_works(gpu, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: "compiled")
    for triton in (True, False):
        gpu((9, 0), triton)
        network = FastNetwork(nn.Sequential(OfTheUser(2, 2)), {4})
        assert network.fast == ("compiled" if triton else network.run)
    plain = FastNetwork(nn.Sequential(OfTheUser(2, 2)), ())
    assert plain.fast == plain.run


def test_the_weights_of_a_fast_network_are_listed_once_under_their_plain_names():
    network = mlp((2,), 2)
    fast = nn.Sequential(FastNetwork(network[0], {8}), network[1])
    assert [id(p) for p in fast.parameters()] == [id(p) for p in network.parameters()]
    assert list(plain_network(fast).state_dict()) == list(network.state_dict())


def test_a_copy_of_a_fast_network_has_weights_of_its_own():
    fast = FastNetwork(mlp((2,), 2), {8})
    copied = copy.deepcopy(fast)
    assert {id(p) for p in copied.parameters()}.isdisjoint(id(p) for p in fast.parameters())
    assert copied.fast.networks[0] is copied.network  # type: ignore[attr-defined]


def test_a_batch_of_another_length_runs_plainly_and_in_bfloat16_if_that_is_used():
    network, x = mlp((2,), 2), torch.randn(3, 2, generator=stream(0))
    assert torch.equal(FastNetwork(network, {8}, use_bfloat16=False)(x), network(x))
    output = FastNetwork(network, {8})(x)
    assert output.dtype == torch.float32
    assert not torch.equal(output, network(x))
    torch.testing.assert_close(output, network(x), atol=0.02, rtol=0.02)


@pytest.mark.parametrize(
    ("sizes", "lengths"),
    [
        ([64] * 781 + [16], {1024}),
        ([100] * 500, {1024, 1000}),
        ([48] * 40 + [5], {1024, 1008}),
        ([3000] * 20, {1024}),
        ([1, 5, 9, 70, 3], {1024}),
        ([100] * 91 + list(range(1, 10)), {1024, 1000}),  # more than nine in ten are of one size
        ([100] * 89 + list(range(1, 12)), {1024}),
    ],
)
def test_the_usual_lengths_are_those_of_most_batches(sizes, lengths):
    sizes = torch.tensor(sizes)
    assert usual_batch_lengths(sizes, 1024) == lengths
    if len(sizes) > 10 and len(sizes.unique()) < 3:
        n = int(sizes.sum())
        bags = Bags(torch.zeros(n, 1), sizes, torch.ones(len(sizes), 1), torch.arange(n), range(len(sizes)))
        usual = [len(batch.x) in lengths for batch in bags.batches(1024, stream(0), by="bag")]
        assert sum(usual) >= len(usual) - 2


def test_a_part_is_recorded_for_its_lengths_and_either_parts_or_networks_are(monkeypatch):
    recorded = []

    def recorder(part, networks):
        recorded.append(networks)
        return lambda x, *more: ("recorded", *more)

    def part(x, *more):
        return ("plain", *more)

    monkeypatch.setattr("apportion._device.Graphed", recorder)
    fast = graph_part(part, [nn.Linear(1, 1)], device=CUDA, lengths={4, 6})
    found = [fast(torch.zeros(n), 7) for n in (4, 6, 5)]
    assert found == [("recorded", 7)] * 2 + [("plain", 7)]
    assert len(recorded) == 1
    assert graph_part(part, device=CUDA, lengths=()) is part
    assert graph_part(part, device=CPU, lengths={4}) is part
    for parts, lengths in ((True, [(), {4}]), (False, [{4}, ()])):
        functions = graphs_for(CUDA, {4}, parts)
        assert [each.keywords["lengths"] for each in functions] == lengths  # type: ignore[attr-defined]


def test_the_two_views_of_an_image_compile_as_one_graph():
    """Where the compiler had to break off, or to wait for a number, nothing would be gained."""
    augment, _ = views((0.5,) * 3, (0.25,) * 3, CPU, "weak+strong")
    whole = torch.compile(augment, backend="eager", dynamic=False, fullgraph=True)
    x = torch.randint(0, 256, (4, 3, 32, 32), generator=stream(0), dtype=torch.uint8)
    found = []
    for view in (augment, whole):
        reseed(0, "view")
        found.append(view(x))
    assert torch.equal(*found)


def test_what_is_frozen_for_a_while_is_frozen_in_compiled_code_too():
    """Compiled code must notice whether statistics move and weights learn (VAT, GAN, two views)."""
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    compiled = torch.compile(network, backend="eager", dynamic=False)
    x = torch.randn(8, 3, generator=stream(0))

    def moves() -> bool:
        before = network[1].running_mean.clone()
        compiled(x).sum().backward()
        return not torch.equal(before, network[1].running_mean)

    def learns() -> bool:
        network.zero_grad()
        compiled(x.requires_grad_()).square().sum().backward()
        return network[0].weight.grad is not None

    assert moves()
    assert learns()
    with frozen_batch_norm(network):
        assert not moves()
    with frozen(network):
        assert not learns()
    assert moves()
    assert learns()


# --- channels last


def test_convolutions_use_channels_last_on_a_cpu_and_compute_the_same():
    network = conv13((3, 16, 16), 4, dropout=0.0).eval()
    x = torch.randn(5, 3, 16, 16, generator=stream(0))
    with torch.no_grad():
        before = network(x)
        to_device(network, CPU, {8})
        assert network[0][0].weight.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(network(x), before)


class UsesView(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.layer(x).view(len(x), -1)


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(UsesView(), nn.Linear(36, 2)),
        nn.Sequential(nn.LazyConv2d(4, 3), nn.Flatten(), nn.LazyLinear(2)),
    ],
    ids=["a module of the user's own", "a layer without a shape"],
)
def test_networks_that_could_not_use_it_are_left_alone(network):
    assert to_device(network, CPU, {8})(torch.zeros(2, 3, 5, 5)).shape == (2, 2)

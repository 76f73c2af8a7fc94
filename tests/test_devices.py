"""Which device is taken, and what is asked of it."""

import numpy as np
import pytest
import torch
from torch import nn

from apportion import ProportionClassifier
from apportion.backbones import mlp
from apportion.devices import (
    DeviceError,
    compiles,
    cuda_works,
    device_for,
    has_bfloat16,
    pick_device,
    room_for,
)
from apportion.muon import orthogonal
from apportion.randomness import stream
from apportion.speed import Fast, placed, quick

# importing torch's compiler warns about torch's own use of torch.jit
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")

CUDA = torch.device("cuda")
ROWS, IMAGES = torch.zeros(1, 5), torch.zeros(1, 3, 8, 8, dtype=torch.uint8)


@pytest.fixture
def gpu(monkeypatch):
    """A machine that has, or seems to have, a GPU of some generation."""

    def there(generation: tuple[int, int], triton: bool = True) -> None:
        monkeypatch.setattr("apportion.devices.cuda_works", cuda_works)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: generation)
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_90a", "sm_120", "compute_120"])
        monkeypatch.setattr("apportion.devices.find_spec", lambda name: object() if triton else None)

    return there


def test_a_device_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(DeviceError, match="no device 'tpu' on this machine; there is .*cpu, and auto picks"):
        pick_device("tpu")
    with pytest.raises(DeviceError, match="no device 'tpu'"):
        device_for("tpu", ROWS)


def test_auto_is_a_device_of_this_machine():
    assert pick_device("auto").type in ("cuda", "mps", "cpu")


def test_auto_is_the_gpu_for_images_and_the_cpu_for_rows(gpu):
    gpu((9, 0))
    assert device_for("auto", IMAGES).type == "cuda"
    assert device_for("auto", IMAGES.float()).type == "cuda"
    assert device_for("auto", ROWS).type == "cpu"
    assert device_for("cuda:0", ROWS) == torch.device("cuda:0")
    assert device_for("cpu", IMAGES).type == "cpu"


def test_auto_is_the_cpu_where_torch_has_no_kernels_for_the_gpu(gpu, monkeypatch):
    for generation, found in (((7, 5), "cuda"), ((12, 0), "cuda"), ((6, 1), "cpu")):
        gpu(generation)
        assert device_for("auto", IMAGES).type == found
    assert device_for("cuda", IMAGES).type == "cuda"  # who names it sees what torch says
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["gfx90a", "gfx1100"])
    assert device_for("auto", IMAGES).type == "cuda"


def test_auto_is_the_cpu_for_images_where_there_is_no_cuda(monkeypatch):
    """Not MPS, whose settings are those of a GPU: laptops would take hours."""
    monkeypatch.setattr("apportion.devices.cuda_works", cuda_works)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert device_for("auto", IMAGES).type == "cpu"
    assert device_for("mps", IMAGES).type == "mps"


def test_an_estimator_of_rows_stays_on_the_cpu_beside_a_gpu_and_says_so(gpu):
    gpu((9, 0))
    x = np.random.default_rng(0).normal(size=(40, 2))
    model = ProportionClassifier(first_epochs=1, second_epochs=1, random_state=0)
    model.fit(x, (x[:, 0] > 0).astype(int), bags=np.arange(40) // 10)
    assert model.device_ == "cpu"
    assert model.predict(x).shape == (40,)


@pytest.mark.parametrize(
    ("generation", "triton", "compiled", "halved"),
    [
        ((9, 0), True, True, True),
        ((8, 0), True, True, True),
        ((8, 6), False, False, True),  # Windows
        ((7, 5), True, True, False),  # a T4
        ((7, 0), True, True, False),
        ((6, 1), True, False, False),
    ],
)
def test_a_gpu_is_asked_for_no_more_than_its_generation_can(gpu, generation, triton, compiled, halved):
    gpu(generation, triton)
    assert (compiles(CUDA), has_bfloat16(CUDA)) == (compiled, halved)
    assert (quick(abs, CUDA, {4}) is abs) is not compiled


def test_the_cpu_is_asked_for_neither():
    cpu = torch.device("cpu")
    assert not compiles(cpu)
    assert not has_bfloat16(cpu)


@pytest.mark.parametrize(
    ("generation", "lengths", "halved"), [((9, 0), {4}, True), ((7, 5), {4}, False), ((6, 1), set(), False)]
)
def test_networks_are_placed_as_the_gpu_can(gpu, monkeypatch, generation, lengths, halved):
    gpu(generation)
    monkeypatch.setattr(nn.Module, "to", lambda self, *_, **__: self)  # there is none on this machine
    monkeypatch.setattr(torch, "compile", lambda network, **_: network)
    network = mlp((2,), 2)
    two_parts, whole = placed(network, CUDA, {4}), placed(nn.Linear(2, 2), CUDA, {4})
    assert isinstance(two_parts[0], Fast)
    assert two_parts[1] is network[1]
    for fast in (two_parts[0], whole):
        assert (fast.lengths, fast.halved) == (lengths, halved)


def test_without_bfloat16_a_fast_network_answers_as_the_plain_one_does():
    network, x = mlp((2,), 2), torch.randn(4, 2, generator=stream(0))
    assert torch.equal(Fast(network, (), halved=False)(x), network(x))
    assert not torch.equal(Fast(network, ())(x), network(x))


def test_muons_products_are_in_bfloat16_where_the_device_has_it(monkeypatch):
    matrices, found = torch.randn(1, 3, 5, generator=stream(0)), []
    for able in (False, True):
        monkeypatch.setattr("apportion.muon.has_bfloat16", lambda device, able=able: able)
        found.append(orthogonal(matrices).dtype)
    assert found == [torch.float32, torch.bfloat16]


def test_a_gpu_that_is_too_small_says_so_with_what_to_change(monkeypatch):
    x = np.zeros((8, 3, 16, 16), dtype=np.uint8)

    def too_large(*given, **settings):
        yield from ()
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB.")

    monkeypatch.setattr("apportion.estimators.two_stages", too_large)
    said = r"the memory of cpu does not hold .* \(3, 16, 16\); a smaller instances_per_batch, smaller"
    with pytest.raises(DeviceError, match=said) as found:
        ProportionClassifier(device="cpu").fit(x, np.arange(8) // 3 % 2, bags=np.arange(8) // 4)
    assert isinstance(found.value.__cause__, torch.OutOfMemoryError)
    with pytest.raises(ZeroDivisionError), room_for(ROWS):  # all else is as it was
        _ = 1 / 0


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["two-views", "dllp", "gan"])
def test_images_are_learnt_on_the_gpu_by_both_stages_unless_another_is_named(monkeypatch, method):
    monkeypatch.setattr("apportion.devices.cuda_works", cuda_works)
    generator = np.random.default_rng(0)
    y, dark = generator.integers(0, 2, 256), generator.integers(0, 120, (256, 3, 16, 16))
    x = (dark + 130 * y[:, None, None, None]).astype(np.uint8)
    model = ProportionClassifier(method, "plot", first_epochs=6, second_epochs=6, random_state=0)
    model.fit(x, y, bags=np.arange(256) // 4)
    assert model.device_ == "cuda"
    assert all("Muon" in words for words in model.optimizers_.values())
    assert (model.predict(x) == y).mean() > 0.9

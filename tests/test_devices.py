"""Which device is taken, and what is asked of it."""

import importlib
import inspect

import numpy as np
import pytest
import torch
from torch import nn

from apportion import ProportionClassifier
from apportion._device import (
    Fast,
    catch_out_of_memory,
    compiles,
    copied_to,
    cuda_works,
    find_device,
    has_bfloat16,
    quick,
    resolve_device,
    to_device,
)
from apportion._random import stream
from apportion.bags.simulate import make_bags
from apportion.errors import SettingsError
from apportion.evaluate import predict, predict_on
from apportion.networks import mlp
from apportion.optim import orthogonal
from apportion.selection.crossfit import out_of_fold_log_proba
from apportion.tabular.fit import train_table

# importing torch's compiler warns about torch's own use of torch.jit
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
ROWS, IMAGES = torch.zeros(1, 5), torch.zeros(1, 3, 8, 8, dtype=torch.uint8)


@pytest.fixture
def gpu(monkeypatch):
    """A machine that seems to have a GPU of some generation; torch is deceived as well, so none may train."""

    def there(generation: tuple[int, int], triton: bool = True, compiler: bool = True) -> None:
        monkeypatch.setattr("apportion._device.cuda_works", cuda_works)
        monkeypatch.setattr("apportion._device.answers", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: generation)
        monkeypatch.setattr("apportion._device.find_spec", lambda name: object() if triton else None)
        monkeypatch.setattr("apportion._device.which", lambda name: "/bin/" + name if compiler else None)
        monkeypatch.delenv("CC", raising=False)

    return there


def test_a_device_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(
        SettingsError, match="no device 'tpu' on this machine; there is .*cpu, and auto takes what is"
    ):
        find_device("tpu")
    with pytest.raises(SettingsError, match="no device 'tpu'"):
        resolve_device("tpu", ROWS)


def test_auto_is_a_device_of_this_machine():
    assert find_device("auto").type in ("cuda", "mps", "cpu")


def test_auto_is_the_gpu_for_images_and_the_cpu_for_rows(gpu):
    gpu((9, 0))
    assert resolve_device("auto", IMAGES).type == "cuda"
    assert resolve_device("auto", IMAGES.float()).type == "cuda"
    assert resolve_device("auto", torch.zeros(1, 7, 2)).type == "cuda"  # a network of the user's own, surely
    assert resolve_device("auto", ROWS).type == "cpu"
    assert resolve_device("cuda:0", ROWS) == torch.device("cuda:0")
    assert resolve_device("cpu", IMAGES).type == "cpu"


@pytest.mark.parametrize("wrong", ["no kernel image is available for execution", "CUDA in forked subprocess"])
def test_auto_is_the_cpu_where_the_gpu_fails_its_first_sum(gpu, monkeypatch, wrong):
    """One older or newer than torch was built for, or lost to a fork."""
    gpu((12, 0))
    assert resolve_device("auto", IMAGES).type == "cuda"

    def fails():
        raise RuntimeError(wrong)

    monkeypatch.setattr("apportion._device.answers", fails)
    assert resolve_device("auto", IMAGES).type == "cpu"
    assert resolve_device("cuda", IMAGES).type == "cuda"  # who names it sees what torch says


def test_auto_is_the_cpu_for_images_where_there_is_no_cuda(monkeypatch):
    """Not MPS, whose settings are those of a GPU: laptops would take hours."""
    monkeypatch.setattr("apportion._device.cuda_works", cuda_works)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert resolve_device("auto", IMAGES).type == "cpu"
    assert resolve_device("mps", IMAGES).type == "mps"


def test_an_estimator_of_rows_stays_on_the_cpu_beside_a_gpu_and_says_so(monkeypatch):
    monkeypatch.setattr("apportion._device.cuda_works", lambda: True)
    x = np.random.default_rng(0).normal(size=(40, 2))
    model = ProportionClassifier(first_epochs=1, second_epochs=1, random_state=0)
    model.fit(x, (x[:, 0] > 0).astype(int), bags=np.arange(40) // 10)
    assert model.device_ == "cpu"
    assert model.predict(x).shape == (40,)


@pytest.mark.parametrize(
    ("generation", "triton", "compiler", "compiled", "halved"),
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
def test_a_gpu_is_asked_for_no_more_than_it_can(
    gpu, monkeypatch, generation, triton, compiler, compiled, halved
):
    gpu(generation, triton, compiler)
    assert (compiles(CUDA), has_bfloat16(CUDA)) == (compiled, halved)
    assert (quick(abs, CUDA, {4}) is abs) is not compiled
    if not compiler:
        monkeypatch.setattr("apportion._device.which", lambda name: name if name == "clang" else None)
        assert compiles(CUDA)
        monkeypatch.setattr("apportion._device.which", lambda name: None)
        monkeypatch.setenv("CC", "tcc")
        assert compiles(CUDA)


def test_the_cpu_is_asked_for_neither():
    assert not compiles(CPU)
    assert not has_bfloat16(CPU)


@pytest.mark.parametrize(
    ("generation", "lengths", "halved"), [((9, 0), {4}, True), ((7, 5), {4}, False), ((6, 1), set(), False)]
)
def test_networks_are_placed_as_the_gpu_can(gpu, monkeypatch, generation, lengths, halved):
    gpu(generation)
    monkeypatch.setattr(nn.Module, "to", lambda self, *_, **__: self)  # there is none on this machine
    monkeypatch.setattr(torch, "compile", lambda network, **_: network)
    network = mlp((2,), 2)
    two_parts, whole = to_device(network, CUDA, {4}), to_device(nn.Linear(2, 2), CUDA, {4})
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
        monkeypatch.setattr("apportion.optim.has_bfloat16", lambda device, able=able: able)
        found.append(orthogonal(matrices).dtype)
    assert found == [torch.float32, torch.bfloat16]


# --- memory


def too_small(*given, **settings):
    yield from ()
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB.")


SAID = (
    r"the memory of cpu does not do for instances of shape \(3, 16, 16\); fewer instances per batch, smaller"
)


def pictures(n: int = 8) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Dark and light ones, their classes and bags, of which each has another share."""
    y = np.arange(n) // 3 % 2
    x = np.random.default_rng(0).integers(0, 120, (n, 3, 16, 16)) + 130 * y[:, None, None, None]
    return x.astype(np.uint8), y, np.arange(n) // 4


def test_a_gpu_that_is_too_small_says_so_with_what_to_change(monkeypatch):
    x, y, bags = pictures()
    made, _ = make_bags(torch.from_numpy(x), torch.from_numpy(y), 4, 2, stream(0))
    for where in ("estimators", "tabular.fit", "selection.crossfit"):
        monkeypatch.setattr(f"apportion.{where}.two_stages", too_small)
    with pytest.raises(SettingsError, match=SAID) as found:
        ProportionClassifier(device="cpu").fit(x, y, bags=bags)
    assert isinstance(found.value.__cause__, torch.OutOfMemoryError)
    with pytest.raises(SettingsError, match=SAID):
        next(train_table(made, "cpu", {}))
    with pytest.raises(SettingsError, match=SAID):
        out_of_fold_log_proba(made, {}, folds=2)
    with pytest.raises(ZeroDivisionError), catch_out_of_memory(ROWS, CPU):  # all else is as it was
        _ = 1 / 0


def test_instances_that_do_not_fit_on_the_device_are_told_of_before_any_training(monkeypatch):
    x, y, bags = pictures()
    monkeypatch.setattr("apportion.bags.bags.Bags.to", lambda self, device: next(too_small()))
    with pytest.raises(SettingsError, match=SAID):
        ProportionClassifier(device="cpu").fit(x, y, bags=bags)


def test_predictions_for_which_a_device_has_no_room_are_the_cpus_and_nothing_is_lost(monkeypatch, caplog):
    class Full(nn.Linear):
        """On a device other than the CPU, which "meta" stands for, it has no room."""

        def forward(self, x):
            if x.is_meta:
                raise torch.OutOfMemoryError
            return super().forward(x)

    network, x = Full(2, 2), torch.randn(5, 2, generator=stream(0))
    with caplog.at_level("WARNING", "apportion"):
        found = predict_on(torch.device("meta"), network, x)
    assert torch.equal(found, predict(network, x))
    assert "meta has no memory left; the CPU predicts, slowly" in caplog.text


def test_a_network_is_copied_to_another_device_and_stays_where_it_is():
    network = mlp((2,), 2)
    there = copied_to(network, torch.device("meta"))
    assert {p.device.type for p in there.parameters()} == {"meta"}
    assert {p.device.type for p in network.parameters()} == {"cpu"}
    assert copied_to(network, CPU) is network


def test_instances_go_to_the_device_a_few_at_a_time(monkeypatch):
    seen = []

    class Watched(torch.Tensor):
        def to(self, *given, **named):
            seen.append(len(self))
            return self.as_subclass(torch.Tensor)

    predict_on(CPU, nn.Linear(2, 2), torch.zeros(2500, 2).as_subclass(Watched))
    assert seen == [1024, 1024, 452]


# --- who asks for which


def test_auto_is_what_nobody_has_to_name():
    commands = (importlib.import_module(f"apportion.cli.{name}") for name in ("fit", "diagnose", "predict"))
    for each in (ProportionClassifier, *(module.command for module in commands)):
        assert inspect.signature(each).parameters["device"].default == "auto"


def test_an_estimator_learns_and_predicts_on_its_device(monkeypatch):
    asked, used = [], []

    def chosen(name, x):
        asked.append((name, x.ndim))
        return torch.device("cpu:0")

    def watched(device, *given):
        used.append(str(device))
        return predict_on(device, *given)

    monkeypatch.setattr("apportion.estimators.resolve_device", chosen)
    monkeypatch.setattr("apportion.estimators.predict_on", watched)
    x, y, bags = pictures(24)
    model = ProportionClassifier("dllp", None, first_epochs=1, device="auto").fit(x, y, bags=bags)
    assert (model.device_, used) == ("cpu:0", ["cpu:0"])
    model.predict(x)
    assert asked == [("auto", 4)] * 2
    assert used == ["cpu:0"] * 2


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["two-views", "dllp", "gan"])
def test_images_are_learnt_on_the_gpu_by_both_stages_unless_another_is_named(monkeypatch, method):
    monkeypatch.setattr("apportion._device.cuda_works", cuda_works)
    generator = np.random.default_rng(0)
    y, dark = generator.integers(0, 2, 256), generator.integers(0, 120, (256, 3, 16, 16))
    x = (dark + 130 * y[:, None, None, None]).astype(np.uint8)
    model = ProportionClassifier(method, "plot", first_epochs=6, second_epochs=6, random_state=0)
    model.fit(x, y, bags=np.arange(256) // 4)
    assert model.device_ == "cuda"
    assert all("Muon" in words for words in model.optimizers_.values())
    assert (model.predict(x) == y).mean() > 0.9

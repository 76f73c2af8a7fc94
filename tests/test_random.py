"""Random streams by purpose."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from apportion import ProportionClassifier
from apportion._random import as_seed, derive_seed, preserve_random_state, reseed, stream

CPU = torch.device("cpu")


def test_streams_depend_on_the_seed_and_on_every_word_of_their_purpose():
    purposes = [(1, "bags", 64), (2, "bags", 64), (1, "bag", 64), (1, "bags", 32), (1, "bags", "64")]
    assert len({derive_seed(*purpose) for purpose in purposes}) == len(purposes)
    assert derive_seed(1, "bags", 64) == 2946094588232197227  # on every machine
    assert torch.equal(torch.rand(3, generator=stream(1, "a")), torch.rand(3, generator=stream(1, "a")))


@pytest.mark.parametrize("seven", [np.int64(7), np.arange(9)[7], np.uint8(7)])
def test_an_integer_of_numpy_is_the_same_seed(seven):
    assert derive_seed(seven, "bags", 64) == derive_seed(7, "bags", 64)
    assert derive_seed(1, "epoch", seven) == derive_seed(1, "epoch", 7)


def test_reseeding_sets_the_global_generator_and_returns_another():
    order = reseed(0, "first", 1)
    drawn = torch.rand(3)
    assert torch.equal(torch.rand(3, generator=stream(0, "first", 1)), drawn)
    again = reseed(0, "first", 1)
    torch.rand(100, generator=again)
    assert torch.equal(torch.rand(3), drawn)  # what the other has drawn does not matter
    assert order.initial_seed() == again.initial_seed() != torch.initial_seed()


def test_the_random_state_is_preserved():
    before = torch.get_rng_state()
    with preserve_random_state(CPU):
        reseed(0, "first", 1)
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_random_state_of_scikit_learn_becomes_a_seed():
    assert as_seed(7) == as_seed(np.int64(7)) == 7
    assert as_seed(np.random.RandomState(3)) == as_seed(np.random.RandomState(3))
    state = np.random.get_state()[1].copy()  # type: ignore[index]  # noqa: NPY002
    assert as_seed(None) != as_seed(None)
    assert (np.random.get_state()[1] == state).all()  # type: ignore[index]  # noqa: NPY002


def dropout_network(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 32), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, n_classes))


@pytest.mark.parametrize(("network", "method"), [(dropout_network, "dllp"), ("mlp", "llp_vat")])
def test_fits_in_threads_have_the_bits_of_fits_one_by_one(network, method):
    """Dropout and adversarial noise draw from torch's global generator, which all threads share."""
    random = np.random.default_rng(0)
    x = random.normal(size=(600, 4)).astype(np.float32)
    data = {"bags": np.arange(600) % 30}
    data["proportions"] = {i: [1 - p, p] for i, p in enumerate(random.random(30))}
    settings = {"epochs": 15, "batch_size": 60, "random_state": 1}

    def fit(_: int) -> np.ndarray:
        return ProportionClassifier(network, method, None, **settings).fit(x, **data).predict_proba(x)

    def fit_linear(_: int) -> None:  # must not draw from it, since it takes no turns
        for _ in range(5):
            ProportionClassifier("linear", random_state=0).fit(x, **data)

    alone = fit(0)
    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(fit_linear, i) for i in range(4)]
        found = list(pool.map(fit, range(6)))
        for other in others:
            other.result()
    for probabilities in found:
        np.testing.assert_array_equal(probabilities, alone)

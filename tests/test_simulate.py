"""Bags made from labeled data: disjoint, complete, counted, and apart from their labels."""

import pytest
import torch
from conftest import moon_bags
from hypothesis import given
from hypothesis import strategies as st

from apportion._random import stream
from apportion.bags.simulate import BAG_KINDS, dirichlet_bag_ids, make_bags
from apportion.datasets.synthetic import blobs
from apportion.errors import DataError, SettingsError


def labeled(n: int, k: int, seed: int = 0):
    generator = stream(seed, "labeled")
    return torch.randn(n, 2, generator=generator), torch.randint(k, (n,), generator=generator)


@pytest.mark.parametrize("kind", ["random", "dirichlet"])
@given(n=st.integers(1, 60), k=st.integers(2, 5), size=st.integers(1, 25), seed=st.integers(0, 3))
def test_bags_are_disjoint_complete_and_counted_and_the_remainder_is_one_smaller_bag(kind, n, k, size, seed):
    x, y = labeled(n, k, seed)
    bags, hidden = make_bags(x, y, size, k, stream(seed), kind)
    assert sorted(bags.source.tolist()) == list(range(n))
    assert bags.sizes.tolist() == [size] * (n // size) + ([n % size] if n % size else [])
    assert torch.equal(bags.x, x[bags.source])
    assert torch.equal(hidden, y[bags.source])
    for labels, shares in zip(hidden.split(bags.sizes.tolist()), bags.proportions, strict=True):
        counted = [float((labels == c).sum()) / len(labels) for c in range(k)]
        torch.testing.assert_close(shares, torch.tensor(counted))


@pytest.mark.parametrize("kind", BAG_KINDS)
def test_bags_depend_on_the_generator_alone(kind):
    data = blobs(0, 300)
    first, again, other = (
        make_bags(data.x, data.y, 25, 4, stream(seed), kind)[0].source for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("kind", ["random", "cluster", "kmeans"])
def test_random_and_cluster_bags_do_not_look_at_the_labels(kind):
    data = blobs(0, 300)
    one = make_bags(data.x, data.y, 25, 4, stream(0), kind)[0]
    other = make_bags(data.x, data.y.flip(0), 25, 4, stream(0), kind)[0]
    assert torch.equal(one.source, other.source)


def spread(values: torch.Tensor) -> float:
    return float(values.std(0).sum())


def test_dirichlet_bags_are_more_skewed_than_random_ones_and_less_so_at_high_concentration():
    data = blobs(0, 2000)

    def skew(**options) -> float:
        bag = torch.from_numpy(dirichlet_bag_ids(data.x, data.y, 40, stream(0), **options))
        labels = torch.nn.functional.one_hot(data.y, 4).float()
        return spread(torch.stack([labels[bag == i].mean(0) for i in range(50)]))

    random = spread(make_bags(data.x, data.y, 40, 4, stream(0))[0].proportions)
    assert skew() > 2 * random
    assert skew(concentration=100.0) < 1.5 * random


def test_cluster_bags_differ_more_from_one_another_than_random_ones():
    data = blobs(0, 1000)

    def apart(kind) -> float:
        bags, _ = make_bags(data.x, data.y, 50, 4, stream(0), kind)
        return spread(torch.stack([part.mean(0) for part in bags.x.split(50)]))

    assert apart("cluster") > 2 * apart("random")


def test_kmeans_bags_are_the_clusters_themselves():
    """Every row is nearest to the mean of its own bag, but for the last step of k-means in small batches."""
    data = blobs(0, 1000)
    bags, _ = make_bags(data.x, data.y, 100, 4, stream(0), "kmeans")
    assert 5 <= len(bags.sizes) <= 10
    assert len(bags.sizes.unique()) > 1
    means = torch.stack([part.mean(0) for part in bags.x.split(bags.sizes.tolist())])
    nearest = torch.cdist(bags.x, means).argmin(1)
    own = torch.repeat_interleave(bags.sizes)
    assert float((nearest == own).float().mean()) > 0.9


def test_wide_instances_are_reduced_before_they_are_clustered():
    x, y = torch.rand(120, 3, 8, 8, generator=stream(0)), torch.arange(120) % 2
    bags, _ = make_bags(x, y, 30, 2, stream(0), "cluster")
    assert bags.sizes.tolist() == [30] * 4


def test_one_bag_may_hold_everything():
    x, y = labeled(30, 3)
    bags, _ = make_bags(x, y, 1000, 3, stream(0))
    assert bags.sizes.tolist() == [30]


def test_bags_of_one_know_their_label():
    bags, hidden = moon_bags(40, 1)
    assert torch.equal(bags.proportions, torch.nn.functional.one_hot(hidden, 2).float())


def test_float64_instances_become_float32():
    x, y = labeled(10, 2)
    assert make_bags(x.double(), y, 5, 2, stream(0))[0].x.dtype == torch.float32
    assert make_bags(x.numpy(), y, 5, 2, stream(0))[0].x.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int32, torch.float32])
def test_labels_of_any_type_make_the_same_bags(dtype):
    x, y = labeled(30, 2)
    bags, hidden = make_bags(x, y, 7, 2, stream(0, "bags"))
    for given_x, given_y in (
        (x, y.to(dtype)),
        (x.numpy(), y.to(dtype).numpy()),
        (x.tolist(), y.to(dtype).tolist()),
    ):
        same, labels = make_bags(given_x, given_y, 7, 2, stream(0, "bags"))
        assert torch.equal(same.proportions, bags.proportions)
        assert torch.equal(labels, hidden)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"size": 0}, SettingsError, "size is 0"),
        ({"n_classes": 1, "y": [0, 0, 0, 0]}, SettingsError, "n_classes is 1"),
        ({"kind": "even"}, SettingsError, "kind is 'even'"),
        ({"y": [0, 1, 2, 0]}, DataError, "2 in row 2"),
        ({"y": [0, -1, 1, 0]}, DataError, "-1 in row 1"),
        ({"y": [0.5, 1, 1, 0]}, DataError, "0.5 in row 0"),
        ({"y": [0, 1, 1]}, DataError, r"shape \(3,\) for 4"),
        ({"y": [[0], [1], [1], [0]]}, DataError, r"shape \(4, 1\)"),
    ],
)
def test_what_cannot_be_put_in_bags_is_refused(change, error, message):
    settings = {"x": torch.zeros(4, 2), "y": [0, 1, 1, 0], "size": 2, "n_classes": 2, "kind": "random"}
    with pytest.raises(error, match=message):
        make_bags(**settings | change, generator=stream(0))

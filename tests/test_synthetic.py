"""Data that needs no file: the same for a seed, in train and test parts that do not overlap."""

import pytest
import torch

from apportion.data import SOURCES
from apportion.data.synthetic import blobs, digits, moons

MADE = ("moons", "blobs", "digits")


@pytest.mark.parametrize("name", MADE)
def test_instances_are_float32_points_with_whole_labels_of_every_class(name):
    data = SOURCES[name](None, 1)
    assert data.x.dtype == data.test_x.dtype == torch.float32
    assert data.y.dtype == torch.int64
    for labels in (data.y, data.test_y):
        assert sorted(labels.unique().tolist()) == list(range(data.n_classes))
    assert len(data.x) == len(data.y)
    assert data.x.abs().max() < 10


@pytest.mark.parametrize("name", MADE)
def test_the_seed_decides(name):
    one, again, other = (SOURCES[name](None, seed) for seed in (1, 1, 2))
    assert torch.equal(one.x, again.x)
    assert torch.equal(one.test_y, again.test_y)
    assert not torch.equal(one.x, other.x)


@pytest.mark.parametrize("name", MADE)
def test_no_test_instance_is_a_training_instance(name):
    data = SOURCES[name](None, 1)
    known = {tuple(row) for row in data.x.tolist()}
    assert not any(tuple(row) in known for row in data.test_x.tolist())


def test_two_moons_are_two_thousand_points_and_as_many_fresh_ones():
    data = moons(1)
    assert len(data.x) == len(data.test_x) == 2000
    assert abs(float(data.y.float().mean()) - 0.5) < 0.05


def test_a_quarter_of_the_digits_is_for_testing_and_pixels_lie_between_zero_and_one():
    data = digits(1)
    assert (len(data.x), len(data.test_x)) == (1347, 450)
    assert (data.x.min(), data.x.max()) == (0.0, 1.0)


def test_blobs_may_have_any_number_of_classes_and_are_of_zero_mean_and_unit_variance():
    data = blobs(0, 500, classes=7)
    assert data.n_classes == 7
    torch.testing.assert_close(data.x.mean(0), torch.zeros(2), rtol=0, atol=1e-4)
    torch.testing.assert_close(data.x.std(0), torch.ones(2), rtol=1e-2, atol=0)

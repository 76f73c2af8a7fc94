"""Bags and batches: an epoch is every instance once, and a learner sees no label."""

from dataclasses import FrozenInstanceError, fields, replace

import pytest
import torch
from conftest import ragged
from hypothesis import example, given
from hypothesis import strategies as st

from apportion._random import stream
from apportion.bags.bags import BagBatch, Bags, _index_add_means, bag_means

some_sizes = st.lists(st.integers(1, 7), min_size=1, max_size=12)


@given(some_sizes, st.integers(7, 20), st.integers(0, 5))
def test_an_epoch_is_every_instance_once(sizes, instances, seed):
    batches = list(ragged(sizes).batches(instances, stream(seed)))
    assert sorted(torch.cat([batch.row for batch in batches]).tolist()) == list(range(sum(sizes)))


@given(some_sizes, st.integers(7, 20), st.integers(0, 5))
def test_a_batch_is_whole_bags_end_to_end_with_their_own_proportions(sizes, instances, seed):
    bags = ragged(sizes)
    owner = torch.repeat_interleave(bags.sizes)
    for batch in bags.batches(instances, stream(seed)):
        assert torch.equal(batch.x, bags.x[batch.row])
        assert len(batch.sizes) == len(batch.proportions)
        parts = batch.row.split(batch.sizes.tolist())
        for rows, proportions in zip(parts, batch.proportions, strict=True):
            bag = int(owner[rows[0]])
            assert torch.equal(rows, (owner == bag).nonzero().flatten())
            assert torch.equal(proportions, bags.proportions[bag])


@given(some_sizes, st.integers(7, 20))
@example([7, 1], 7)
@example([7, 1, 7], 7)
def test_a_batch_is_filled_until_the_next_bag_would_not_fit(sizes, instances):
    batches = list(ragged(sizes).batches(instances, stream(0)))
    assert all(len(batch.x) <= instances + 2 for batch in batches)  # a lone row may join it at either end
    for batch, following in zip(batches, batches[1:], strict=False):
        assert len(batch.x) + int(following.sizes[0]) > instances


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 8), st.integers(0, 5))
@example([1, 7], 7, 0)
@example([7, 1, 9, 1, 9], 7, 0)
def test_no_batch_but_the_only_one_is_a_row_alone(sizes, instances, seed):
    lengths = [len(batch.x) for batch in ragged(sizes).batches(instances, stream(seed))]
    assert instances == 1 or lengths == [1] or min(lengths) > 1


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(1, 10))
@example([30, 1], 7)
def test_a_bag_larger_than_a_batch_is_sampled_without_repeats_in_a_batch_of_its_own(sizes, instances):
    bags = ragged(sizes)
    owner = torch.repeat_interleave(bags.sizes)
    seen = torch.zeros(len(sizes), dtype=torch.int64)
    for batch in bags.batches(instances, stream(0)):
        assert len(batch.x) <= instances + 2
        assert len(batch.row.unique()) == len(batch.row)
        seen += torch.bincount(owner[batch.row], minlength=len(sizes))
    assert seen.tolist() == [min(size, instances) for size in sizes]


def test_the_sample_of_a_large_bag_changes_from_epoch_to_epoch():
    bags = ragged((100,))
    one, other = (next(iter(bags.batches(10, stream(seed)))).row.tolist() for seed in (0, 1))
    assert sorted(one) != sorted(other)


def test_the_order_of_bags_depends_on_the_generator_alone():
    bags = ragged((2,) * 20)
    orders = [[b.row.tolist() for b in bags.batches(8, stream(seed))] for seed in (0, 0, 1)]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


def test_take_and_select_give_the_same_bags_in_the_order_asked_for():
    bags = ragged((1, 3, 2, 4))
    which = torch.tensor([3, 1])
    batch, chosen = bags.take(which), bags.select(which)
    assert batch.row.tolist() == [6, 7, 8, 9, 1, 2, 3]
    assert batch.sizes.tolist() == [4, 3]
    assert torch.equal(batch.x, chosen.x)
    assert torch.equal(batch.proportions, chosen.proportions)
    assert chosen.sizes.tolist() == [4, 3]
    assert chosen.source.tolist() == batch.row.tolist()
    assert chosen.ids == ["bag 3", "bag 1"]


def test_bag_means_equal_an_explicit_loop():
    sizes, values = [1, 4, 2], torch.randn(7, 3, generator=stream(0))
    got = bag_means(values, torch.tensor(sizes))
    for mean, rows in zip(got, values.split(sizes), strict=True):
        torch.testing.assert_close(mean, sum(rows) / len(rows))


def test_the_gradient_of_bag_means_is_a_share_of_the_bags():
    sizes, values = torch.tensor([1, 4, 2]), torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: bag_means(v, sizes), values)


def test_bag_means_are_the_same_on_a_device_without_segments(monkeypatch):
    sizes, values = torch.tensor([1, 4, 2]), torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(_index_add_means(values, sizes), bag_means(values, sizes))
    assert torch.autograd.gradcheck(lambda v: _index_add_means(v, sizes), values)
    # the meta device has no numbers, but takes that way
    taken = []
    monkeypatch.setattr("apportion.bags.bags._index_add_means", lambda *given: taken.append(given))
    bag_means(torch.empty(7, 3, device="meta"), torch.tensor([1, 4, 2], device="meta"))
    assert len(taken) == 1


def test_what_a_learner_receives_has_no_label_field():
    assert {f.name for f in fields(Bags)} == {
        "x", "sizes", "proportions", "source", "ids", "grouping", "precision", "pure",
    }  # fmt: skip
    assert {f.name for f in fields(BagBatch)} == {"x", "sizes", "proportions", "row", "left"}


def test_bags_are_frozen():
    with pytest.raises(FrozenInstanceError):
        ragged().x = torch.zeros(6, 2)


def test_parts_that_do_not_fit_are_refused_with_their_numbers():
    with pytest.raises(
        ValueError, match=r"3 sizes, 3 rows of proportions, 2 ids.*use build_bags or make_bags"
    ):
        replace(ragged(), ids=["a", "b"])
    with pytest.raises(ValueError, match="the sizes sum to 5, but there are 6 instances"):
        replace(ragged(), sizes=torch.tensor([1, 2, 2]))


def test_an_empty_bag_is_refused_by_name():
    with pytest.raises(ValueError, match="bag 'bag 1' has no instance; drop it"):
        replace(ragged(), sizes=torch.tensor([3, 0, 3]))

"""Bags and batches: an epoch is every row once, and a learner sees no label."""

import math
from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest
import torch
from conftest import moon_bags, ragged
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import chisquare

from apportion._random import stream
from apportion.bags.bags import (
    BagBatch,
    Bags,
    RowBatch,
    bag_means,
    bag_slices,
    bag_sums,
    exact_bag_means,
    index_add_bag_sums,
)
from apportion.errors import DataError, SettingsError

some_sizes = st.lists(st.integers(1, 7), min_size=1, max_size=12)


def annotated() -> Bags:
    """Four bags of two groupings, one of rows with a known label, one uncertain, one without proportions."""
    bags = ragged((1, 3, 2, 4))
    proportions = bags.proportions.clone()
    proportions[1] = math.nan
    return replace(
        bags,
        proportions=proportions,
        grouping=["town", "town", "age", "age"],
        precision=torch.tensor([math.inf, 1.0, 2.0, 3.0], dtype=torch.float64),
        pure=torch.tensor([True, False, False, False]),
        weight=torch.arange(1.0, 11),
    )


# --- bags


def test_what_a_learner_receives_has_no_label_field():
    assert {f.name for f in fields(Bags)} == {
        "x", "sizes", "proportions", "source", "ids", "grouping", "precision", "pure", "weight",
    }  # fmt: skip
    assert {f.name for f in fields(BagBatch)} == {"x", "sizes", "proportions", "row", "undrawn", "weight"}
    assert {f.name for f in fields(RowBatch)} == {"x", "row", "bag", "weight"}
    with pytest.raises(FrozenInstanceError):
        ragged().x = torch.zeros(6, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"ids": ["a", "b"]}, {"proportions": torch.ones(2, 3)}, {"source": torch.arange(5)},
        {"sizes": torch.tensor([1, 2, 2])}, {"sizes": torch.tensor([3, 0, 3])}, {"grouping": ["a"]},
        {"precision": torch.ones(2)}, {"pure": torch.ones(4, dtype=torch.bool)},
    ],
)  # fmt: skip
def test_parts_that_do_not_match_are_refused(change):
    with pytest.raises(DataError):
        replace(ragged(), **change)


def test_an_empty_bag_is_refused_by_name():
    with pytest.raises(DataError, match="bag 'bag 1' has no instance"):
        replace(ragged(), sizes=torch.tensor([3, 0, 3]))


def test_a_bag_is_called_by_its_id_and_its_grouping():
    assert ragged().name(2) == "bag 'bag 2'"
    assert annotated().name(2) == "bag 'bag 2' of grouping 'age'"


def test_take_and_select_give_the_same_bags_in_the_order_asked_for():
    bags = annotated()
    which = torch.tensor([3, 1])
    batch, selected = bags.take(which), bags.select(which)
    assert batch.row.tolist() == [6, 7, 8, 9, 1, 2, 3]
    assert batch.sizes.tolist() == [4, 3]
    assert torch.equal(batch.x, selected.x)
    assert torch.equal(batch.proportions[0], selected.proportions[0])
    assert selected.sizes.tolist() == [4, 3]
    assert selected.source.tolist() == batch.row.tolist()
    assert selected.ids == ["bag 3", "bag 1"]
    assert selected.grouping == ["age", "town"]
    assert selected.precision.tolist() == [3.0, 1.0]
    assert selected.pure.tolist() == [False, False]
    plain = ragged((1, 3)).select(torch.tensor([1]))
    assert (plain.grouping, plain.precision, plain.pure) == (None, None, None)


def test_known_bags_are_those_with_proportions():
    assert annotated().known().ids == ["bag 0", "bag 2", "bag 3"]
    bags = ragged()
    assert bags.known() is bags


def test_moving_to_a_device_keeps_everything_else():
    bags = annotated().to("meta")
    assert (bags.x.device.type, bags.proportions.device.type) == ("meta", "meta")
    assert (bags.sizes.device.type, bags.precision.device.type, bags.pure.device.type) == ("cpu",) * 3
    assert bags.grouping == annotated().grouping


def test_overall_proportions_weight_bags_by_their_rows():
    bags = replace(ragged((1, 3)), proportions=torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    assert bags.overall.tolist() == [0.25, 0.75, 0.0]
    assert bags.overall.dtype == torch.float64


# --- batches of bags


@given(some_sizes, st.integers(7, 20), st.integers(0, 5))
def test_an_epoch_is_every_row_once_in_whole_bags_with_their_own_proportions(sizes, batch_size, seed):
    bags = ragged(sizes)
    owner = torch.repeat_interleave(bags.sizes)
    rows = []
    for batch in bags.batches(batch_size, stream(seed)):
        assert torch.equal(batch.x, bags.x[batch.row])
        assert len(batch.sizes) == len(batch.proportions)
        assert batch.undrawn == 0.0
        for part, proportions in zip(batch.row.split(batch.sizes.tolist()), batch.proportions, strict=True):
            bag = int(owner[part[0]])
            assert torch.equal(part, (owner == bag).nonzero().flatten())
            assert torch.equal(proportions, bags.proportions[bag])
        rows += batch.row.tolist()
    assert sorted(rows) == list(range(sum(sizes)))


@given(some_sizes, st.integers(7, 20))
@example([7, 1], 7)
@example([7, 1, 7], 7)
def test_a_batch_is_filled_until_the_next_bag_does_not_fit(sizes, batch_size):
    batches = list(ragged(sizes).batches(batch_size, stream(0)))
    assert all(len(batch.x) <= batch_size + 2 for batch in batches)  # a single row may join it at either end
    for batch, following in zip(batches, batches[1:], strict=False):
        assert len(batch.x) + int(following.sizes[0]) > batch_size


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 8), st.integers(0, 5),
    st.sampled_from(["bag", "row"]),
)  # fmt: skip
@example([1, 7], 7, 0, "bag")
@example([7, 1, 9, 1, 9], 7, 0, "bag")
def test_no_batch_but_the_only_one_is_a_single_row(sizes, batch_size, seed, by):
    lengths = [len(batch.x) for batch in ragged(sizes).batches(batch_size, stream(seed), by=by)]
    if batch_size == 1:
        assert set(lengths) == {1}
    else:
        assert lengths == [1] or min(lengths) > 1


@pytest.mark.parametrize("by", ["bag", "row"])
def test_the_order_depends_on_the_generator_alone(by):
    bags = ragged((2,) * 20)
    orders = [[b.row.tolist() for b in bags.batches(8, stream(seed), by=by)] for seed in (0, 0, 1)]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


@pytest.mark.parametrize(("batch_size", "by"), [(0, "bag"), (0, "row"), (8, "instance")])
def test_batches_that_cannot_be_are_refused(batch_size, by):
    with pytest.raises(SettingsError):
        ragged().batches(batch_size, stream(0), by=by)


# --- bags larger than a batch


def one_bag(n: int) -> Bags:
    """A bag of as many rows as one likes: all are the same place in memory."""
    rows = torch.zeros(1, 1).expand(n, 1)
    return Bags(rows, torch.tensor([n]), torch.ones(1, 2) / 2, rows[:, 0], ["all"])


def drawn(n: int, batch_size: int, seed: int) -> torch.Tensor:
    return next(one_bag(n).batches(batch_size, stream(seed))).row


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(1, 10))
@example([30, 1], 7)
def test_of_a_larger_bag_a_batch_is_drawn_without_repeats(sizes, batch_size):
    bags = ragged(sizes)
    owner = torch.repeat_interleave(bags.sizes)
    seen = torch.zeros(len(sizes), dtype=torch.int64)
    for batch in bags.batches(batch_size, stream(0)):
        assert len(batch.x) <= batch_size + 2
        assert len(batch.row.unique()) == len(batch.row)
        seen += torch.bincount(owner[batch.row], minlength=len(sizes))
    assert seen.tolist() == [min(size, batch_size) for size in sizes]


def test_every_row_is_drawn_as_often_as_another_and_epochs_draw_others():
    seen = np.zeros(30, int)
    for seed in range(1000):
        seen[drawn(30, 7, seed).numpy()] += 1
    # rows of one draw exclude each other, which makes counts a little more even than the test expects
    assert chisquare(seen).pvalue > 0.001
    assert sorted(drawn(100, 10, 0).tolist()) != sorted(drawn(100, 10, 1).tolist())
    assert drawn(30, 30, 0).sort().values.tolist() == list(range(30))


def test_a_draw_needs_memory_for_the_drawn_rows_only():
    """A permutation of so many rows would take 8 TB."""
    assert len(drawn(10**12, 1000, 0).unique()) == 1000


def test_batches_say_what_fraction_of_a_bag_was_not_drawn():
    bags = ragged((3, 200, 5, 40), k=2)
    for batch in bags.batches(16, stream(2)):
        size = int(bags.sizes[torch.bucketize(batch.row[0], bags.sizes.cumsum(0), right=True)])
        if size > 16:
            assert len(batch.sizes) == 1
        assert batch.undrawn == pytest.approx(max(0.0, 1 - 16 / size))
    assert not any(batch.undrawn for batch in bags.batches(200, stream(2)))


# --- batches of rows


@given(some_sizes, st.integers(2, 20), st.integers(0, 5))
def test_an_epoch_of_row_batches_is_every_row_once_with_its_bag(sizes, batch_size, seed):
    bags = ragged(sizes)
    owner = torch.repeat_interleave(bags.sizes)
    batches = list(bags.batches(batch_size, stream(seed), by="row"))
    assert sorted(torch.cat([batch.row for batch in batches]).tolist()) == list(range(sum(sizes)))
    for batch in batches:
        assert torch.equal(batch.x, bags.x[batch.row])
        assert torch.equal(batch.bag, owner[batch.row])
    assert all(len(batch.row) == batch_size for batch in batches[:-1] if len(batches[-1].row) <= batch_size)


def test_row_batches_mix_bags_and_a_single_last_row_joins_the_batch_before():
    bags, _ = moon_bags(400, 100)
    batches = list(bags.batches(64, stream(0), by="row"))
    assert [len(batch.row) for batch in batches] == [64] * 6 + [16]
    assert all(len(batch.bag.unique()) == 4 for batch in batches)
    bags = ragged((33,), k=2)
    assert [len(batch.row) for batch in bags.batches(8, stream(0), by="row")] == [8, 8, 8, 9]
    assert [len(batch.row) for batch in bags.batches(32, stream(0), by="row")] == [33]


# --- means


@pytest.mark.parametrize("sums", [bag_sums, index_add_bag_sums])
def test_bag_sums_and_means_equal_an_explicit_loop_and_so_do_their_gradients(sums):
    sizes, values = [1, 4, 2], torch.randn(7, 3, generator=stream(0), dtype=torch.float64)
    for reduce, over in ((sums, sum), (bag_means, lambda rows: sum(rows) / len(rows))):
        got = reduce(values.detach(), torch.tensor(sizes))
        for result, rows in zip(got, values.detach().split(sizes), strict=True):
            torch.testing.assert_close(result, over(rows))
        assert torch.autograd.gradcheck(
            lambda v, reduce=reduce: reduce(v, torch.tensor(sizes)), values.requires_grad_()
        )


def test_devices_other_than_the_cpu_add_up_rows():
    """The meta device has no numbers, and no segment_reduce either."""
    means = bag_means(torch.empty(7, 3, device="meta"), torch.tensor([1, 4, 2], device="meta"))
    assert (means.shape, means.device.type) == ((3, 3), "meta")


def test_means_of_millions_of_rows_keep_their_digits():
    values = torch.full((2**24 + 2, 1), 0.1)
    exact = exact_bag_means(values, torch.tensor([2**24, 2]))
    assert exact.dtype == torch.float64
    torch.testing.assert_close(exact, torch.full((2, 1), float(values[0]), dtype=torch.float64))


@pytest.mark.parametrize("n_rows", [1, 4, 100])
def test_slices_of_bags_cover_all_rows_once(n_rows):
    sizes = torch.tensor([3, 1, 7, 2, 2])
    values = torch.arange(15.0).unsqueeze(1)
    slices = list(bag_slices(sizes, n_rows))
    parts = [bag_means(values[rows], sizes[some]) for some, rows in slices]
    torch.testing.assert_close(torch.cat(parts), bag_means(values, sizes))
    assert all(some.stop - some.start == 1 or rows.stop - rows.start <= n_rows for some, rows in slices)

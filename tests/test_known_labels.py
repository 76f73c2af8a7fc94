"""Known labels: rows go to pure bags, and every bag keeps the proportions of the rows that are left."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from apportion.bags.build import build_bags
from apportion.bags.known_labels import read_known_labels
from apportion.bags.proportions import Proportions
from apportion.errors import DataError

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(400, 2))
TRUTH = RANDOM.integers(2, size=400)
TOWN = np.arange(400) % 20
COUNTS = Proportions(np.stack([np.bincount(TOWN, c == TRUTH) for c in (0, 1)], 1), "counts")


def build(labels, **options):
    return build_bags(X, bags=TOWN, proportions=options.get("proportions", COUNTS), known_labels=labels).bags


def test_known_labels_are_pure_bags_and_the_others_have_what_is_left():
    labels = {int(i): int(TRUTH[i]) for i in (0, 20, 7, 399)}
    bags = build(labels)
    ones = sum(labels.values())
    n_pure = (ones > 0) + (ones < 4)
    assert bags.pure.tolist() == [False] * 20 + [True] * n_pure
    assert bags.sizes.tolist() == [18, *[20] * 6, 19, *[20] * 11, 19, *[n for n in (4 - ones, ones) if n]]
    assert sorted(bags.source.tolist()) == list(range(400))
    assert sorted(bags.source[-4:].tolist()) == [0, 7, 20, 399]
    for rows, shares in zip(bags.source.split(bags.sizes.tolist()), bags.proportions, strict=True):
        truth = np.bincount(TRUTH[rows], minlength=2) / len(rows)
        np.testing.assert_allclose(shares, truth, atol=1e-5)
    np.testing.assert_array_equal(bags.x, X[bags.source].astype(np.float32))


def test_pure_bags_are_as_large_as_the_others():
    bags = build({i: int(TRUTH[i]) for i in range(100)})
    sizes = bags.sizes[bags.pure]
    assert sizes.sum() == 100
    assert sizes.max() == 20


def test_a_bag_without_other_rows_is_gone():
    bags = build({int(i): int(TRUTH[i]) for i in np.flatnonzero(TOWN == 5)})
    assert 5 not in bags.ids
    assert not bags.pure[:19].any()


def test_noisy_bags_keep_their_precision_and_pure_bags_are_exact():
    noisy = Proportions(COUNTS.table + 1.0, "counts", std=1.0)
    bags = build({0: int(TRUTH[0])}, proportions=noisy)
    plain = build(None, proportions=noisy)
    assert bags.precision[:-1].tolist() == plain.precision.tolist()
    assert bags.precision[-1] == math.inf
    wrong = {int(i): 0 for i in np.flatnonzero(TOWN == 2)}
    build(wrong, proportions=noisy)  # noise may explain it
    with pytest.raises(DataError) as error:
        build(wrong)
    assert error.value.bag == 2


def test_unknown_bags_stay_unknown():
    table = np.where(np.arange(20)[:, None] == 0, np.nan, COUNTS.table)
    bags = build({0: int(TRUTH[0])}, proportions=Proportions(table, "counts", missing_bags="allow"))
    assert bags.proportions[0].isnan().all()
    assert bags.proportions[-1].tolist() == [1 - TRUTH[0], TRUTH[0]]


@pytest.mark.parametrize(
    "labels",
    [pd.Series({3: 0, 7: 1}), {3.0: 0, 7.0: 1}, {np.int64(3): 0, np.float32(7): np.int64(1)}],
    ids=["series", "floats", "numpy"],
)
def test_rows_are_whole_numbers_of_any_type(labels):
    assert read_known_labels(labels, X, TOWN, 400) == {3: 0, 7: 1}


@pytest.mark.parametrize(
    "labels",
    [{400: 0}, {-1: 0}, {"r3": 0}, {3.5: 0}, {math.nan: 0}, {True: 0}, [0, 1], {1: 2}, {1: "0"}],
    ids=str,
)
def test_rows_and_classes_that_are_not_there_are_refused(labels):
    with pytest.raises(DataError):
        build(labels)


ORDER = np.random.default_rng(5).permutation(400)
FRAME = pd.DataFrame(X, columns=["a", "b"]).assign(town=TOWN, y=TRUTH).iloc[ORDER]


@pytest.mark.parametrize(
    "known", [FRAME["y"].iloc[:30], FRAME["y"].where(np.arange(400) < 30)], ids=["few", "gaps"]
)
@pytest.mark.parametrize("indexed", ["X", "bags", "both", "texts", "groupings"])
def test_a_series_is_matched_by_the_index_of_the_rows(known, indexed):
    x, towns = FRAME[["a", "b"]], FRAME["town"]
    if indexed == "texts":
        names = [f"row {i}" for i in x.index]
        x = x.set_axis(names)
        known = known.set_axis([f"row {i}" for i in known.index])
    bags = {
        "X": towns.to_numpy(), "texts": towns.to_numpy(), "bags": towns, "both": towns,
        "groupings": {"a": towns.to_numpy(), "b": towns},
    }[indexed]  # fmt: skip
    x = x.to_numpy() if indexed in ("bags", "groupings") else x
    found = read_known_labels(known, x, bags, 400)
    assert found == dict(enumerate(FRAME["y"].iloc[:30]))


def test_a_series_that_matches_no_row_or_one_twice_is_refused():
    x, towns = FRAME[["a", "b"]], FRAME["town"].to_numpy()
    for labels, rows in ((pd.Series({400: 1}), x), (pd.Series([0, 1], index=[7, 7]), x), (FRAME["y"], X)):
        with pytest.raises(DataError):
            read_known_labels(labels, rows, towns, 400)
    same = x.set_axis(["row"] * 400)
    with pytest.raises(DataError):
        read_known_labels(FRAME["y"].iloc[:30].set_axis(["row"] * 30), same, towns, 400)
    assert read_known_labels(pd.Series({400: None, ORDER[3]: 1}, dtype=object), x, towns, 400) == {3: 1}
    whole = pd.Series(TRUTH, dtype="Int64").where(TOWN == 0)  # in the order of the rows
    assert read_known_labels(whole, X, TOWN, 400) == {int(i): TRUTH[i] for i in np.flatnonzero(TOWN == 0)}


def test_known_labels_are_pure_in_every_grouping():
    age = (np.arange(400) // 7) % 4
    ages = Proportions(np.stack([np.bincount(age, c == TRUTH) for c in (0, 1)], 1), "counts")
    bags = build_bags(
        X, bags={"town": TOWN, "age": age}, proportions={"town": COUNTS, "age": ages},
        known_labels={3: int(TRUTH[3]), 70: int(TRUTH[70])},
    ).bags  # fmt: skip
    pure = [name for name, is_pure in zip(bags.grouping, bags.pure, strict=True) if is_pure]
    assert set(pure) == {"town", "age"}
    assert torch.bincount(bags.source).tolist() == [2] * 400

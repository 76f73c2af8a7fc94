"""Users' ids and tables: every form gives the same bags, every refusal names bag, value and remedy."""

import math

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from conftest import learner_of, network, trained
from hypothesis import given
from hypothesis import strategies as st

from apportion.errors import DataError
from apportion.intake.forms import bags_from, expand_proportions
from apportion.intake.grouping import build_bags
from apportion.intake.ids import keys_of

X = np.arange(12.0).reshape(6, 2)
IDS = ["b", "a", "b", "c", "a", "b"]
SHARES = {"a": [0.5, 0.5], "b": [1 / 3, 2 / 3], "c": [0.0, 1.0]}
FRAME = pd.DataFrame.from_dict(SHARES, orient="index")


def same(one, other):
    assert list(one.ids) == list(other.ids)
    for name in ("x", "sizes", "proportions", "source"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name


def test_a_bag_is_one_run_of_rows_in_the_users_order_and_source_says_where_they_came_from():
    bags = build_bags(X, IDS, SHARES)
    assert list(bags.ids) == ["a", "b", "c"]
    assert bags.sizes.tolist() == [2, 3, 1]
    assert bags.source.tolist() == [1, 4, 0, 2, 5, 3]
    assert torch.equal(bags.x, torch.from_numpy(X).float()[bags.source])
    torch.testing.assert_close(bags.proportions, torch.tensor([SHARES[i] for i in "abc"]))


@pytest.mark.parametrize(
    "table",
    [
        FRAME,
        FRAME.iloc[[2, 0, 1]],
        np.array([SHARES[i] for i in "abc"]),
        torch.tensor([SHARES[i] for i in "abc"], dtype=torch.float64),
        [SHARES[i] for i in "abc"],
        {i: np.array(SHARES[i]) for i in "cab"},
    ],
    ids=["frame", "frame in another order", "array", "tensor", "list", "dict of arrays"],
)
def test_every_form_of_the_table_gives_the_same_bags(table):
    same(build_bags(X, IDS, table), build_bags(X, IDS, SHARES))


def test_a_frame_may_name_its_bags_in_a_column():
    frame = FRAME.rename_axis("town").reset_index().iloc[::-1]
    same(build_bags(X, IDS, frame, bag_column="town"), build_bags(X, IDS, SHARES))


def test_counts_are_the_same_as_their_proportions():
    counts = {"a": [1, 1], "b": [1, 2], "c": [0, 1]}
    same(build_bags(X, IDS, counts=counts), build_bags(X, IDS, SHARES))


@given(st.permutations(list("abc")))
def test_the_order_of_the_table_does_not_matter(order):
    same(build_bags(X, IDS, {i: SHARES[i] for i in order}), build_bags(X, IDS, SHARES))


@pytest.mark.parametrize(
    "names",
    [
        [7, -3, 1000],
        [2.5, 0.5, 1.5],
        [("north", 1), ("south", 1), ("north", 2)],
        [True, "x", None.__class__],
        [3, "3", (3,)],
        [frozenset({1}), frozenset({2}), frozenset({3})],
        [pd.Timestamp("2020-01-02"), pd.Timestamp("2020-01-01"), pd.Timestamp("2021-01-01")],
    ],
    ids=["whole", "float", "tuple", "mixed", "alike", "set", "date"],
)
def test_ids_may_be_of_any_hashable_kind(names):
    ids = [names[i] for i in (0, 1, 0, 2, 1, 0)]
    table = {names[0]: [0.2, 0.8], names[1]: [0.4, 0.6], names[2]: [1.0, 0.0]}
    bags = build_bags(X, ids, table)
    assert set(bags.ids) == set(names)
    start = 0
    for name, size, shares in zip(bags.ids, bags.sizes.tolist(), bags.proportions, strict=True):
        assert [ids[row] for row in bags.source[start : start + size]] == [name] * size
        torch.testing.assert_close(shares, torch.tensor(table[name]))
        start += size


def test_ids_may_come_as_array_tensor_or_series():
    numbers = [1, 0, 1, 2, 0, 1]
    table = {0: SHARES["a"], 1: SHARES["b"], 2: SHARES["c"]}
    expected = build_bags(X, numbers, table)
    for ids in (np.array(numbers), torch.tensor(numbers), pd.Series(numbers, index=[5, 4, 3, 2, 1, 0])):
        same(build_bags(X, ids, table), expected)
    same(build_bags(X, np.array(IDS), FRAME), build_bags(X, IDS, SHARES))


def test_whole_numbers_of_a_series_or_a_tensor_are_kept_in_an_array():
    ids = np.array([3, 1, 3], np.int32)
    for given_ in (ids, pd.Series(ids), pd.Index(ids), pl.Series(ids), torch.from_numpy(ids)):
        found = keys_of(given_)
        assert isinstance(found, np.ndarray)
        assert found.tolist() == [3, 1, 3]
    for missing in (pl.Series([1, None, 2]), pd.Series([1, pd.NA, 2], dtype="Int64")):
        with pytest.raises(DataError, match="instance 1 has no bag id"):
            keys_of(missing)


def test_a_bag_is_asked_for_alone_only_where_all_together_are_no_numbers(monkeypatch):
    asked = []
    monkeypatch.setattr("apportion.intake.grouping.numbers_of", lambda values, who: asked.append(who))
    build_bags(X, IDS, SHARES)
    assert asked == []


def test_masked_values_are_no_instances_and_in_a_table_they_are_missing():
    masked = np.ma.masked_array(X, np.zeros(X.shape, bool))
    same(build_bags(masked, IDS, SHARES), build_bags(X, IDS, SHARES))
    masked[4, 1] = np.ma.masked
    with pytest.raises(DataError, match=r"row 4 has a masked value; fill it in, .* or drop the row"):
        build_bags(masked, IDS, SHARES)
    rows = np.ma.masked_array([SHARES[i] for i in "abc"], [[False] * 2, [True] * 2, [False] * 2])
    for table in (rows, dict(zip("abc", rows, strict=True))):
        with pytest.raises(DataError, match="bag 'b' has nan as the proportion of class 0"):
            build_bags(X, IDS, table)


def test_counts_in_place_of_proportions_are_told_so():
    with pytest.raises(
        DataError, match="has 2 as the proportion of class 1, .*these are counts: pass counts="
    ):
        build_bags(X, IDS, {"a": [1, 1], "b": [1, 2], "c": [0, 1]})


def test_a_frame_of_two_index_levels_names_bags_by_tuples():
    names = [("a", 1), ("a", 2)]
    frame = pd.DataFrame([[0.5, 0.5], [0.25, 0.75]], index=pd.MultiIndex.from_tuples(names))
    assert build_bags(X[:3], [names[1], names[0], names[1]], frame).ids == names


def test_rows_of_an_array_follow_the_sorted_ids_or_else_their_first_appearance():
    rows = [[0.1, 0.9], [0.2, 0.8], [0.3, 0.7], [0.4, 0.6]]
    assert build_bags(X[:4], [3, 1, 4, 2], rows).ids == [1, 2, 3, 4]
    mixed = [3, 1, 2, "a"]  # a sort that fails half-way must not leave its traces
    assert build_bags(X[:4], mixed, rows).ids == mixed


def test_float64_and_whole_numbers_become_float32_and_bytes_stay_bytes():
    assert build_bags(X, IDS, SHARES).x.dtype == torch.float32
    assert build_bags(X.astype(int), IDS, SHARES).x.dtype == torch.float32
    assert build_bags(X.astype(bool), IDS, SHARES).x.dtype == torch.float32
    assert build_bags(X.astype(np.uint8).reshape(6, 1, 1, 2), IDS, SHARES).x.dtype == torch.uint8


@pytest.mark.parametrize("kind", [torch.uint8, torch.float16, torch.bfloat16, torch.bool, torch.int16])
def test_tables_of_any_numbers_go_through_a_first_stage(kind):
    bags = build_bags(torch.from_numpy(X).to(kind), IDS, SHARES)
    assert bags.x.dtype == torch.float32
    assert len(trained(learner_of("dllp", network()), bags, epochs=1)) == 1


@pytest.mark.parametrize("kind", [">f4", np.longdouble, object, np.uint32])
def test_numbers_that_torch_does_not_have_are_read(kind):
    assert torch.equal(build_bags(X.astype(kind), IDS, SHARES).x, build_bags(X, IDS, SHARES).x)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.nan, "instance 4 has the value nan; fill it in, or drop the instance"),
        (-np.inf, "instance 4 has the value -inf; fill it in"),
        ("tall", "instance 4 has the value 'tall', which is no number; encode texts"),
        (None, "instance 4 has the value nan; fill it in"),
    ],
)
def test_instances_that_are_no_numbers_are_named(value, message):
    table = X.astype(object if isinstance(value, str | None) else float)
    table[4, 1] = value
    with pytest.raises(DataError, match=message):
        build_bags(table, IDS, SHARES)


def test_texts_and_dates_are_no_instances():
    with pytest.raises(DataError, match="instance 0 has the value .*'a'.*, which is no number"):
        build_bags(np.full((6, 2), "a"), IDS, SHARES)
    with pytest.raises(DataError, match="values of type <U1; pass numbers"):
        build_bags(np.full((6, 2), "1"), IDS, SHARES)
    with pytest.raises(DataError, match="which is no number|of type datetime64"):
        build_bags(np.full((6, 2), np.datetime64("2020-01-01")), IDS, SHARES)


def test_large_finite_numbers_are_not_taken_for_infinite():
    assert build_bags(np.full((6, 2), 3e38), IDS, SHARES).x.isfinite().all()


def test_a_series_is_a_table_only_where_its_values_are_vectors():
    vectors = pd.Series({name: np.array(row) for name, row in SHARES.items()})
    assert torch.equal(build_bags(X, IDS, vectors).proportions, build_bags(X, IDS, SHARES).proportions)
    numbers = pd.Series({name: row[0] for name, row in SHARES.items()})
    with pytest.raises(DataError, match="a series has one number a bag; pass a table with a column"):
        build_bags(X, IDS, numbers)
    with pytest.raises(DataError, match="a series has one number a bag; pass a table with a column"):
        bags_from(X, ids=IDS, proportions=numbers)


def test_instances_may_come_in_a_frame_and_in_arrays_that_cannot_be_written():
    locked = X.astype(np.float32)
    locked.setflags(write=False)
    for x in (pd.DataFrame(X.astype(np.float32)), pd.DataFrame(X), locked, X.tolist()):
        same(build_bags(x, IDS, SHARES), build_bags(X, IDS, SHARES))


def test_the_bags_do_not_share_memory_with_the_users_array():
    x = X.astype(np.float32).copy()
    bags = build_bags(x, IDS, SHARES)
    x[:] = 0
    assert torch.equal(bags.x, build_bags(X, IDS, SHARES).x)


def test_normalise_rescales_percentages():
    percent = {name: [100 * v for v in row] for name, row in SHARES.items()}
    torch.testing.assert_close(
        build_bags(X, IDS, percent, normalize=True).proportions, build_bags(X, IDS, SHARES).proportions
    )


def test_proportions_printed_with_four_digits_are_taken_for_rounded_and_sum_to_one():
    bags = build_bags(X, IDS, SHARES | {"b": [0.3333, 0.6666]})
    torch.testing.assert_close(bags.proportions.sum(1), torch.ones(3))


REFUSED = {
    "sum below one": (
        {"b": [0.3, 0.68]},
        r"bag 'b' has proportions summing to 0.98; rescale them; normalize=True does$",
    ),
    "sum above one": (
        {"b": [0.3, 0.8]},
        r"bag 'b' has proportions summing to 1.1; rescale them; normalize=True does$",
    ),
    "negative": (
        {"c": [-0.25, 1.25]},
        r"bag 'c' has -0.25 as the proportion of class 0, which is negative; give a number from 0 to 1",
    ),
    "not a number": (
        {"a": [0.5, float("nan")]},
        r"bag 'a' has no number for 1 of its 2 classes; give all",
    ),
    "no number at all": (
        {"a": [float("nan")] * 2},
        r"bag 'a' has nan as the proportion of class 0, which.*give.*or drop",
    ),
    "infinite": (
        {"a": [0.5, float("inf")]},
        r"bag 'a' has inf as the proportion of class 1, which.*give.*or drop",
    ),
    "more than one": (
        {"a": [0, 50]},
        r"bag 'a' has 50 as the proportion of class 1, which is more than one; divide perc",
    ),
    "another width": ({"c": [0, 0, 1]}, r"bag 'c' has 3 classes, others have 2; give all"),
    "a bare number": ({"b": 0.3}, r"bag 'b' has 0.3 for proportions; give a number for each class, such as"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_table_that_cannot_be_right_is_refused_with_bag_value_and_remedy(what):
    change, message = REFUSED[what]
    with pytest.raises(DataError, match=message):
        build_bags(X, IDS, SHARES | change)


@pytest.mark.parametrize("more", [{"d": [0.5, 0.5]}, {"d": [math.nan, 0.5]}, {"d": [50, 50]}])
def test_a_table_may_have_bags_of_which_no_row_is_there(more):
    whole, part = build_bags(X, IDS, SHARES | more), build_bags(X, IDS, SHARES)
    assert whole.ids == part.ids
    assert torch.equal(whole.proportions, part.proportions)
    np.testing.assert_array_equal(expand_proportions(SHARES | more, IDS), expand_proportions(SHARES, IDS))


def test_a_bag_missing_from_the_table_is_refused():
    with pytest.raises(
        DataError,
        match="bag 'c' has instances but no row in the table; add it or drop its instances; without shares",
    ):
        build_bags(X, IDS, {i: SHARES[i] for i in "ab"})


def test_a_bag_that_stands_twice_is_refused():
    with pytest.raises(DataError, match="bag 'a' stands twice in the table; keep one row a bag; if"):
        build_bags(X, IDS, FRAME.loc[["a", "b", "c", "a"]])


def test_all_zero_proportions_are_refused_even_where_they_would_be_rescaled():
    with pytest.raises(DataError, match="bag 'b' has proportions that are all zero; drop the bag"):
        build_bags(X, IDS, SHARES | {"b": [0, 0]}, normalize=True)


def test_one_class_is_refused():
    with pytest.raises(DataError, match=r"proportions have shape \(3, 1\);.*at least two classes"):
        build_bags(X, IDS, {i: [1.0] for i in "abc"})


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([3, 4], r"bag 'b' has counts that sum to 7 but 3 instances; rescale counts of a larger group"),
        ([0, 2], r"bag 'b' has counts that sum to 2 but 3 instances"),
        ([-1, 4], r"bag 'b' has -1 as the count of class 0, which is negative; give 0 or more"),
        ([0, 0], r"bag 'b' has counts that are all zero; drop the bag"),
        ([float("nan"), 3], r"bag 'b' has no number for 1 of its 2 classes"),
        ([float("nan")] * 2, r"bag 'b' has nan as the count of class 0, which is not a number"),
    ],
)
def test_counts_that_cannot_be_right_are_refused(counts, message):
    with pytest.raises(DataError, match=message):
        build_bags(X, IDS, counts={"a": [1, 1], "b": counts, "c": [0, 1]})


@pytest.mark.parametrize("bad", [[-1, 4], [0, 0], [np.nan, np.nan], [np.inf, 1]])
def test_counts_of_a_larger_group_are_told_of_as_counts(bad):
    with pytest.raises(DataError, match=rf"bag 'b' has .*(counts|{bad[0]:g} as the count of class 0)"):
        build_bags(X, IDS, counts={"a": [5, 5], "b": bad, "c": [0, 9]}, normalize=True)


@pytest.mark.parametrize("normalize", [False, True])
def test_shares_in_place_of_counts_are_told_so(normalize):
    with pytest.raises(
        DataError, match=r"bag 'b' has \[0.3333, 0.6667\] as counts of its 3.*pass proportions="
    ):
        build_bags(X, IDS, counts=SHARES, normalize=normalize)
    ones = {"a": [0, 1], "b": [1, 0], "c": [0, 1]}  # counts of a sample of one each
    assert build_bags(X, IDS, counts=ones, normalize=True).proportions.tolist() == [[0, 1], [1, 0], [0, 1]]


def test_texts_of_numbers_do_not_order_the_rows_of_an_array():
    rows, ids = [[0.1, 0.9], [0.2, 0.8], [0.3, 0.7]], ["10", "2", "9", "10"]
    with pytest.raises(
        DataError, match=r"'10' comes before '2'; pass a dict, a DataFrame .* or ids as numbers"
    ):
        build_bags(X[:4], ids, rows)
    named = dict(zip(["10", "2", "9"], rows, strict=True))
    assert build_bags(X[:4], ids, named).ids == ["10", "2", "9"]
    assert build_bags(X[:3], ["2", "9", "3"], rows).ids == ["2", "3", "9"]
    assert build_bags(X[:3], ["02", "10", "x1"], rows).ids == ["02", "10", "x1"]


@pytest.mark.parametrize(
    ("ids", "pair"),
    [
        (["b1", "b10", "b2"], "'b10' comes before 'b2'"),
        (["10 north", "9 north", "a"], "'10 north' comes before '9 north'"),
        (["b10", "b1x", "b2"], "'b10' comes before 'b2'"),
    ],
)
def test_texts_that_count_do_not_order_the_rows_of_an_array(ids, pair):
    rows = [[0.1, 0.9], [0.2, 0.8], [0.3, 0.7]]
    with pytest.raises(DataError, match=f"{pair}; pass a dict"):
        build_bags(X[:3], ids, rows)
    assert build_bags(X[:3], ids, dict(zip(ids, rows, strict=True))).ids == ids


@pytest.mark.parametrize("ids", [["a b", "a1", "ab"], ["b01", "b02", "b10"], ["12a3", "1a23", "1b2"]])
def test_texts_in_an_order_of_their_own_do(ids):
    assert build_bags(X[:3], ids, [[0.1, 0.9], [0.2, 0.8], [0.3, 0.7]]).ids == ids


def test_what_rounding_leaves_of_a_share_is_nought_and_less_is_refused():
    left = [0.9, 0.6, 0.8]
    table = pd.DataFrame({"x": left, "y": [1 - a for a in left]}, index=list("abc"))
    table["z"] = 1 - table["x"] - table["y"] - 1e-16
    assert (table["z"] < 0).all()
    assert build_bags(X, IDS, table).proportions[:, 2].tolist() == [0, 0, 0]
    assert bags_from(X, expand_proportions(table, IDS), IDS)[0].proportions[:, 2].tolist() == [0, 0, 0]
    table["z"] = -1e-6
    with pytest.raises(DataError, match="has -1e-06 as the proportion of class 'z', which is negative"):
        build_bags(X, IDS, table)


def test_a_flat_table_is_refused_for_proportions_and_for_counts():
    with pytest.raises(DataError, match=r"have shape \(3,\); pass a row a bag and at least two classes"):
        build_bags(X, IDS, [0.5, 0.5, 0.5])
    with pytest.raises(DataError, match=r"have shape \(3,\); pass a row a bag and at least two classes"):
        build_bags(X, IDS, counts=[2, 3, 1])


def test_an_array_with_a_row_too_many_is_refused():
    with pytest.raises(DataError, match="there are 3 bags but 4 rows; pass a dict to name them"):
        build_bags(X, IDS, np.full((4, 2), 0.5))


def test_either_proportions_or_counts_must_be_given():
    for given_ in ({}, {"proportions": SHARES, "counts": SHARES}):
        with pytest.raises(DataError, match="pass either proportions or counts"):
            build_bags(X, IDS, **given_)


def test_ids_and_instances_must_be_as_many():
    with pytest.raises(DataError, match="there are 6 instances but 5 bag ids; pass one id an instance"):
        build_bags(X, IDS[:5], SHARES)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, r"instance 2 has no bag id \(None\); name its bag or drop the instance"),
        (float("nan"), r"instance 2 has no bag id \(nan\)"),
        (pd.NA, r"instance 2 has no bag id \(<NA>\)"),
        (pd.NaT, r"instance 2 has no bag id \(NaT\)"),
        ([1, 2], r"instance 2 has a bag id that cannot be hashed \(\[1, 2\]\); use a string or a number"),
        (([1], 2), r"instance 2 has a bag id that cannot be hashed \(\(\[1\], 2\)\)"),
    ],
)
def test_an_instance_without_a_usable_id_is_refused(value, message):
    with pytest.raises(DataError, match=message):
        build_bags(X, ["b", "a", value, "c", "a", "b"], SHARES)


def test_instances_in_one_row_are_refused_with_the_remedy():
    with pytest.raises(DataError, match=r"instances have shape \(6,\);.*x.reshape\(-1, 1\)"):
        build_bags(X[:, 0], IDS, SHARES)


# --- instances in a mapped file


def mapped(tmp_path, values: np.ndarray) -> np.memmap:
    np.save(tmp_path / "x.npy", values)
    return np.load(tmp_path / "x.npy", mmap_mode="r")


def test_instances_of_a_mapped_file_that_lie_bag_after_bag_stay_there(tmp_path):
    values = np.random.default_rng(0).random((6, 3), dtype=np.float32)
    ids, shares = np.array([1, 1, 4, 4, 4, 9]), np.full((3, 2), 0.5)
    file = mapped(tmp_path, values)
    bags = build_bags(file, ids, shares)
    assert bags.x.data_ptr() == file.ctypes.data  # the file's own memory, not a copy
    held = build_bags(values.copy(), ids.tolist(), shares)
    assert torch.equal(bags.x, held.x)
    assert torch.equal(bags.sizes, held.sizes)
    assert bags.ids == held.ids == [1, 4, 9]


def test_instances_of_a_mapped_file_in_another_order_are_copied_into_that_of_their_bags(tmp_path):
    values = np.arange(12, dtype=np.float32).reshape(6, 2)
    bags = build_bags(mapped(tmp_path, values), np.array([2, 1, 2, 1, 2, 1]), np.full((2, 2), 0.5))
    assert bags.x[:, 0].tolist() == [2, 6, 10, 0, 4, 8]


def test_what_is_no_number_in_a_mapped_file_is_named(tmp_path):
    values = np.zeros((4, 2), np.float32)
    values[2, 1] = np.nan
    with pytest.raises(DataError, match="instance 2 has the value nan"):
        build_bags(mapped(tmp_path, values), np.array([0, 0, 1, 1]), np.full((2, 2), 0.5))


@pytest.mark.parametrize(
    "form",
    [lambda ids: pd.DataFrame({"b": ids}), lambda ids: pl.DataFrame({"b": ids}), lambda ids: ids[:, None]],
    ids=["pandas", "polars", "array"],
)
def test_ids_in_a_table_of_one_column_are_ids(form):
    assert build_bags(X, form(np.array(IDS)), SHARES).ids == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ("town", r"bags is the text 'town'; pass the ids themselves, such as X.pop\('town'\)"),
        (pd.DataFrame({"a": IDS, "b": IDS}), r"shape \(6, 2\); pass a column of them, or pandas.MultiIndex"),
        (np.array([IDS, IDS]).T, r"shape \(6, 2\); pass one id an instance"),
    ],
)
def test_what_are_no_ids_is_refused_with_what_to_pass(ids, message):
    with pytest.raises(DataError, match=message):
        build_bags(X, ids, SHARES)


def test_one_share_a_bag_is_refused_with_those_of_both():
    with pytest.raises(DataError, match=r"shape \(3,\); .*numpy.column_stack\(\[1 - s, s\]\)"):
        build_bags(X, IDS, np.array([0.1, 0.2, 0.3]))


def test_a_frame_whose_rows_only_count_themselves_does_not_name_bags_that_are_counted_otherwise():
    table = pd.DataFrame([[0.1, 0.9], [0.2, 0.8], [0.3, 0.7]])
    assert build_bags(X[:4], [0, 1, 2, 2], table).ids == [0, 1, 2]
    for ids in ([1, 2, 1, 2], [1, 2, 3, 3]):
        with pytest.raises(DataError, match=r"rows are numbered 0 to 2, and the bags are not.*set_index"):
            build_bags(X[:4], ids, table)
    assert build_bags(X[:4], [1, 2, 1, 2], table.rename_axis("town")).ids == [1, 2]


def test_a_bag_of_others_may_stand_twice_in_a_table():
    total = pd.DataFrame([[0.5, 0.5]] * 2, index=["Total"] * 2)
    table = pd.concat([pd.DataFrame.from_dict(SHARES, orient="index"), total])
    assert build_bags(X, IDS, table).ids == ["a", "b", "c"]


@pytest.mark.parametrize("table", [{}, {"a": None, "b": None, "c": None}])
def test_a_table_without_any_number_is_told_so(table):
    with pytest.raises(DataError, match="no bag has proportions, so that there is nothing to learn from"):
        build_bags(X, IDS, table)

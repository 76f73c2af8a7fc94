"""build_bags: every accepted form of the same proportions gives the same bags; features keep their rows."""

import math

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apportion.bags.build import build_bags, expand_proportions, group_rows
from apportion.bags.instances import check_row_order
from apportion.bags.proportions import Proportions
from apportion.errors import DataError, SettingsError

X = np.arange(12.0).reshape(6, 2)
IDS = ["b", "a", "b", "c", "a", "b"]
SHARES = pd.DataFrame({"no": [0.5, 1 / 3, 1.0], "yes": [0.5, 2 / 3, 0.0]}, index=list("abc"))
COUNTS = pd.DataFrame({"no": [1, 1, 1], "yes": [1, 2, 0]}, index=list("abc"))
LABELS = np.array(["no", "no", "yes", "no", "yes", "yes"])  # with these counts
NAMES = ["no", "yes"]
VECTORS = {bag: row.tolist() for bag, row in zip("abc", SHARES.to_numpy(), strict=True)}
BY_LABEL = pd.Series(LABELS, name="vote").groupby(pd.Series(IDS, name="bag"))

FORMS = {
    "frame": SHARES,
    "frame in another order": SHARES.iloc[[2, 0, 1], ::-1],
    "frame with the bags in a column": SHARES.rename_axis("town").reset_index(),
    "frame with a named key": Proportions(SHARES.rename_axis("town").reset_index()[::-1], key="town"),
    "frame with other columns": Proportions(SHARES.assign(area=[3.0, 4, 5]), classes=["yes", "no"]),
    "frame with other bags": pd.concat([SHARES, pd.DataFrame(50, ["d"], NAMES)]),
    "polars": pl.DataFrame({"town": list("cab"), "yes": [0.0, 0.5, 2 / 3], "no": [1.0, 0.5, 1 / 3]}),
    "series by bag and class": BY_LABEL.value_counts(normalize=True),
    "dict of dicts": SHARES.to_dict("index"),
    "dict of dicts without zeros": {"c": {"no": 1.0}, "b": {"yes": 2 / 3, "no": 1 / 3}, "a": SHARES.loc["a"]},
    "dict of series": {bag: row.sort_values() for bag, row in SHARES.iterrows()},
    "dict of vectors": Proportions(VECTORS, classes=NAMES),
    "dict of arrays": Proportions({bag: np.array(row) for bag, row in VECTORS.items()}, classes=NAMES),
    "series of vectors": Proportions(pd.Series(VECTORS), classes=NAMES),
    "array": Proportions(SHARES.to_numpy(), classes=NAMES),
    "array with columns in another order": Proportions(SHARES.to_numpy()[:, ::-1], classes=NAMES[::-1]),
    "list": Proportions(SHARES.to_numpy().tolist(), classes=NAMES),
    "tensor": Proportions(torch.tensor(SHARES.to_numpy()), classes=NAMES),
    "counts": Proportions(COUNTS, "counts"),
    "counts of every bag": Proportions({bag: part.value_counts() for bag, part in BY_LABEL}, "counts"),
    "counts by bag and class": Proportions(BY_LABEL.value_counts(), "counts"),
    "percent": Proportions(100 * SHARES, "percent"),
    "rescaled": Proportions(1000 * SHARES, normalize=True),
    "larger counts": Proportions(7 * COUNTS, "counts", normalize=True),
    "without the rest": Proportions(SHARES[["no"]], rest="yes"),
    "percent without the rest": Proportions(100 * SHARES[["yes"]], "percent", rest="no"),
    "counts without the rest": Proportions(COUNTS[["yes"]], "counts", rest="no"),
    "a missing cell": Proportions(SHARES.assign(yes=[0.5, math.nan, 0]), missing_cells="impute"),
    "no noise": Proportions(SHARES, std=0.0),
}


def check_same(one, other):
    assert list(one.bags.ids) == list(other.bags.ids)
    assert one.classes.tolist() == other.classes.tolist()
    for name in ("x", "sizes", "source"):
        assert torch.equal(getattr(one.bags, name), getattr(other.bags, name)), name
    torch.testing.assert_close(one.bags.proportions, other.bags.proportions)
    assert one.bags.precision is other.bags.precision is None
    assert one.bags.pure is None


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_same_proportions_gives_the_same_bags(form):
    check_same(build_bags(X, bags=IDS, proportions=FORMS[form]), build_bags(X, LABELS, bags=IDS))


@pytest.mark.parametrize(
    "form", ["frame", "polars", "counts", "array", "percent", "counts without the rest", "a missing cell"]
)
def test_proportions_row_by_row_give_the_same_bags(form):
    rows = expand_proportions(FORMS[form], IDS)
    assert isinstance(rows, pl.DataFrame | pd.DataFrame) == (form != "array")
    built = build_bags(X, rows, bags=IDS)
    if form == "array":  # which has no names
        assert built.classes.tolist() == [0, 1]
        built = type(built)(built.bags, np.array(NAMES))
    check_same(built, build_bags(X, LABELS, bags=IDS))


def test_columns_in_another_order_are_read_by_name():
    rows = expand_proportions(SHARES, IDS)[["yes", "no"]]
    check_same(build_bags(X, rows, bags=IDS), build_bags(X, LABELS, bags=IDS))


def test_expanded_proportions_keep_the_index_of_the_bags():
    bags = pd.Series(IDS, index=[f"row {i}" for i in range(6)])
    rows = expand_proportions(SHARES, bags)
    pd.testing.assert_index_equal(rows.index, bags.index)
    np.testing.assert_allclose(rows, SHARES.loc[IDS])


@pytest.mark.parametrize("options", [{"std": 0.1}, {"missing_bags": "allow"}])
def test_proportions_row_by_row_cannot_be_uncertain_or_unknown(options):
    with pytest.raises(SettingsError):
        expand_proportions(Proportions(SHARES, **options), IDS)


@given(st.permutations(range(6)))
def test_bags_are_runs_of_rows_and_source_tells_where_each_came_from(order):
    ids = [IDS[i] for i in order]
    bags = build_bags(X[list(order)], bags=ids, proportions=SHARES).bags
    assert list(bags.ids) == ["a", "b", "c"]
    assert bags.sizes.tolist() == [2, 3, 1]
    assert [ids[i] for i in bags.source] == list("aabbbc")
    np.testing.assert_array_equal(bags.x, X[list(order)][bags.source].astype(np.float32))
    for run in bags.source.split(bags.sizes.tolist()):
        assert run.tolist() == sorted(run.tolist())  # rows keep their order in a bag


def test_rows_that_are_sorted_by_bag_are_not_copied(tmp_path):
    x = np.random.default_rng(0).random((6, 3), dtype=np.float32)
    np.save(tmp_path / "x.npy", x)
    for rows in (x, np.load(tmp_path / "x.npy", mmap_mode="r")):
        bags = build_bags(rows, bags=np.array([1, 1, 4, 4, 4, 9]), proportions=SHARES.to_numpy()).bags
        assert bags.x.data_ptr() == rows.ctypes.data
        assert bags.ids == [1, 4, 9]


def test_other_rows_share_no_memory_with_the_users_array():
    x = X.astype(np.float32)
    bags = build_bags(x, bags=IDS, proportions=SHARES).bags
    before = bags.x.clone()
    x[:] = 0
    assert torch.equal(bags.x, before)


# --- bag ids


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
def test_ids_may_be_of_any_hashable_type(names):
    ids = [names[i] for i in (0, 1, 0, 2, 1, 0)]
    table = {names[0]: [0.2, 0.8], names[1]: [0.4, 0.6], names[2]: [1.0, 0.0]}
    bags = build_bags(X, bags=ids, proportions=table).bags
    assert set(bags.ids) == set(names)
    for name, rows, shares in zip(
        bags.ids, bags.source.split(bags.sizes.tolist()), bags.proportions, strict=True
    ):
        assert [ids[row] for row in rows] == [name] * len(rows)
        torch.testing.assert_close(shares, torch.tensor(table[name]))


@pytest.mark.parametrize(
    "make",
    [
        np.array, tuple, pd.Series, pl.Series, pd.Index, lambda ids: np.array(ids)[:, None],
        lambda ids: pd.DataFrame({"b": ids}), lambda ids: pl.DataFrame({"b": ids}),
        lambda ids: pd.Series(ids, dtype="category"), lambda ids: pd.Series(ids, dtype=object),
    ],
)  # fmt: skip
@pytest.mark.parametrize("ids", [IDS, [1, 0, 1, 12, 0, 1], [1.5, 0.0, 1.5, 12.0, 0.0, 1.5]])
def test_ids_come_in_any_container(make, ids):
    check_groups(group_rows(make(ids), 6), ids)


def test_ids_may_be_categories_of_polars_and_a_tensor():
    check_groups(group_rows(pl.Series(IDS).cast(pl.Categorical), 6), IDS)
    check_groups(group_rows(torch.tensor([1, 0, 1, 12, 0, 1]), 6), [1, 0, 1, 12, 0, 1])


def check_groups(groups, ids):
    assert list(groups.names) == sorted(set(ids))
    assert [groups.names[i] for i in groups.number] == ids
    assert groups.sizes.tolist() == [2, 3, 1]


def test_millions_of_text_ids_are_numbered_without_a_python_object_each():
    ids = np.array([f"bag {i:04d}" for i in range(1000)])[
        np.random.default_rng(0).integers(1000, size=20_000)
    ]
    expected = group_rows(ids.tolist(), len(ids))
    for series in (pd.Series(ids), pl.Series(ids.tolist()), ids):
        found = group_rows(series, len(ids))
        assert list(found.names) == list(expected.names)
        np.testing.assert_array_equal(found.number, expected.number)


@pytest.mark.parametrize("missing", [None, math.nan, pd.NA, pd.NaT, [1, 2], ([1], 2)])
def test_a_row_without_a_usable_id_is_named(missing):
    with pytest.raises(DataError, match="row 2 "):
        group_rows(["b", "a", missing, "c"], 4)


@pytest.mark.parametrize("series", [pl.Series([1, None, 2]), pd.Series([1, pd.NA, 2], dtype="Int64"),
                                    pd.Series(["a", None, "b"]), pl.Series(["a", None, "b"])])  # fmt: skip
def test_a_gap_in_a_series_of_ids_is_named(series):
    with pytest.raises(DataError, match="row 1 has no bag id"):
        group_rows(series, 3)


@pytest.mark.parametrize(
    "ids", ["town", {"a": 1}, np.array([IDS, IDS]).T, pd.DataFrame({"a": IDS, "b": IDS}), IDS[:5]]
)
def test_what_are_no_ids_of_the_rows_is_refused(ids):
    with pytest.raises(DataError):
        build_bags(X, bags=ids, proportions=SHARES)


@pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame, pl.LazyFrame])
def test_bags_may_be_a_column_of_a_frame_and_it_is_no_feature(library):
    frame = library({"u": X[:, 0], "town": IDS, "v": X[:, 1]})
    if library is not pl.LazyFrame:
        built = build_bags(frame, bags="town", proportions=SHARES)
        check_same(built, build_bags(X, bags=IDS, proportions=SHARES))
    with pytest.raises(DataError, match="did you mean 'town'"):
        build_bags(frame, bags="towns", proportions=SHARES)


def test_pandas_rows_in_another_order_are_refused_and_other_indices_are_positions():
    x = pd.DataFrame(X, index=[10, 11, 12, 13, 14, 15])
    bags = pd.Series(IDS, index=x.index)
    expected = build_bags(X, bags=IDS, proportions=SHARES)
    for same in (bags, bags[::-1].loc[x.index], bags.to_numpy(), bags.reset_index(drop=True)):
        check_same(build_bags(x, bags=same, proportions=SHARES), expected)
    with pytest.raises(DataError, match="another order"):
        build_bags(x, bags=bags[::-1], proportions=SHARES)
    with pytest.raises(DataError, match=r"bags\['age'\] has the rows of bags\['town'\] in another order"):
        check_row_order(X, {"town": bags, "age": bags[::-1]})
    check_row_order(x.reset_index(drop=True), bags.reset_index(drop=True)[::-1], counted_index=False)


# --- y


def test_labels_alone_are_bags_of_one_row():
    built = build_bags(X, LABELS)
    assert built.bags.sizes.tolist() == [1] * 6
    assert built.classes[built.bags.proportions.argmax(1)].tolist() == LABELS.tolist()


@pytest.mark.parametrize(
    "call",
    [
        {},  # nothing
        {"bags": IDS},
        {"y": LABELS, "bags": IDS, "proportions": SHARES},  # two sources
        {"proportions": SHARES},  # no bags
        {"y": SHARES.loc[IDS].to_numpy()},
        {"y": LABELS[:5], "bags": IDS},
        {"y": ["no"] * 6, "bags": IDS},  # one class
        {"y": SHARES.loc[IDS].to_numpy()[:5], "bags": IDS},
        {"y": SHARES.loc[IDS[::-1]].to_numpy(), "bags": IDS},  # rows of a bag disagree
        {"y": np.full((6, 2), 0.7), "bags": IDS},
    ],
)
def test_what_says_nothing_of_the_bags_is_refused(call):
    with pytest.raises(DataError):
        build_bags(X, **call)


def test_masked_labels_are_refused():
    with pytest.raises(DataError, match="row 3 has a masked value"):
        build_bags(X, np.ma.masked_array(LABELS, np.arange(6) == 3), bags=IDS)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_whole_numbers_are_grouped_as_by_sorting_wherever_they_lie(kind):
    random = np.random.default_rng(0)
    about = np.iinfo(kind)
    for low, high in ((about.min, about.min + 9), (about.max - 9, about.max), (about.min, about.max)):
        ids = random.integers(low, high, 500, dtype=kind, endpoint=True)
        groups = group_rows(ids, len(ids))
        names, number = np.unique(ids, return_inverse=True)
        assert list(groups.names) == names.tolist()
        np.testing.assert_array_equal(groups.number, number)

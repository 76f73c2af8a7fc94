"""Proportions: options that cannot be, and tables that cannot be read, are refused with the place named."""

import math

import numpy as np
import pandas as pd
import polars as pl
import pytest

from apportion.bags.proportions import Proportions, align, check_classes, key_by_name
from apportion.errors import DataError, SettingsError

BAGS = list("abc")
SIZES = np.array([2, 3, 1])
SHARES = pd.DataFrame({"no": [0.5, 1 / 3, 1.0], "yes": [0.5, 2 / 3, 0.0]}, index=BAGS)


def values_of(table, bags=BAGS, subset=False, **options):
    return align(Proportions(table, **options), bags, np.ones(len(bags), int), subset=subset).values


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "count"},
        {"kind": None},
        {"normalize": "no"},
        {"missing_bags": True},
        {"missing_cells": "drop"},
        {"std": "much"},
        {"std": True},
        {"std": -1.0},
        {"std": math.inf},
        {"std": "estimate", "normalize": True},
        {"std": "estimate", "rest": "other"},
        {"rest": "other", "normalize": True},
        {"rest": "other", "missing_cells": "impute"},
        {"kind": "counts", "normalize": True, "missing_cells": "impute"},
        {"classes": "no"},
    ],
    ids=str,
)
def test_options_that_cannot_be_or_contradict_each_other_are_refused(options):
    with pytest.raises(SettingsError):
        Proportions(SHARES, **options)


def test_a_kind_that_is_nearly_right_is_suggested():
    with pytest.raises(SettingsError, match="did you mean 'counts'"):
        Proportions(SHARES, "count")


UNREADABLE = {
    "empty": {},
    "nothing known": {"a": None, "b": None},
    "one number per bag": {"a": 0.5, "b": 0.4, "c": 0.3},
    "a series of numbers": SHARES["yes"],
    "a polars series": pl.Series([0.1, 0.2, 0.3]),
    "a text": {"a": ["50%", "50%"], "b": [0, 1], "c": [0, 1]},
    "a column of texts": SHARES.assign(mayor=["x", "y", "z"]),
    "vectors of several lengths": {"a": [0.5, 0.5], "b": [1.0], "c": [0, 1]},
    "intervals": {bag: [[0.1, 0.3], [0.7, 0.9]] for bag in BAGS},
    "intervals in an array": np.full((3, 2, 2), 0.5),
    "bags and classes exchanged": SHARES.to_dict(),
    "the bags twice": SHARES.assign(town=BAGS),
    "no bags in polars": pl.DataFrame({"no": [0.5], "yes": [0.5]}),
    "a class twice": pd.concat([SHARES, SHARES[["no"]]], axis=1),
    "too many rows": np.full((4, 2), 0.5),
    "one dimension": np.array([0.1, 0.2, 0.3]),
    "rows that only count": SHARES.reset_index(drop=True),
    "classes of several types": SHARES.set_axis(["no", 1], axis=1),
    "true and two": SHARES.set_axis([True, 2], axis=1),
    "a class without a name": SHARES.set_axis(["no", None], axis=1),
    "a class named None": SHARES.set_axis(pd.Index(["no", None], dtype=object), axis=1),
    "names in two levels": SHARES.set_axis(pd.MultiIndex.from_tuples([("v", "no"), ("v", "yes")]), axis=1),
    "proportions in proportions": Proportions(SHARES),
    "a number": 0.5,
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_tables_that_cannot_be_read_are_refused(case):
    with pytest.raises(DataError):
        values_of(UNREADABLE[case])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"classes": ["no", "Yes"]}, "did you mean 'yes'"),
        ({"key": "twon"}, "did you mean 'town'"),
        ({"classes": ["no", "yes", "perhaps"]}, "'perhaps'"),
        ({"rest": "no"}, "'no'"),
    ],
)
def test_names_that_are_not_in_the_table_are_refused(options, words):
    with pytest.raises(DataError, match=words):
        values_of(SHARES.assign(town=[7, 8, 9]), **options)


def test_errors_carry_the_bag_and_the_value():
    with pytest.raises(DataError) as error:
        values_of({"a": [0.5, 0.5], "b": [0.5, 0.3, 0.2], "c": [1, 0]})
    assert (error.value.bag, error.value.value) == ("b", 3)
    with pytest.raises(DataError) as error:
        values_of({"a": ["50%", "50%"], "b": [0, 1], "c": [0, 1]})
    assert error.value.value == "50%"


@pytest.mark.parametrize("kind", ["Int64", object])
@pytest.mark.parametrize("column", [False, True], ids=["index", "column"])
def test_na_of_pandas_is_missing(kind, column):
    table = pd.DataFrame({"no": [1, 1, 1], "yes": [1, 2, 0]}, index=BAGS).astype(kind).rename_axis("town")
    table.loc["b", "yes"] = pd.NA
    values = values_of(table.reset_index() if column else table, kind="counts")
    np.testing.assert_array_equal(values, [[1, 1], [1, math.nan], [1, 0]])


def test_masked_numbers_are_missing():
    masked = np.ma.masked_array(SHARES.to_numpy(), [[False] * 2, [True] * 2, [False] * 2])
    for table in (masked, dict(zip(BAGS, masked, strict=True))):
        assert np.isnan(values_of(table)).tolist() == [[False] * 2, [True] * 2, [False] * 2]


def test_a_class_that_a_bag_does_not_name_has_zero_or_what_is_left():
    table = {"a": {"no": 0.4, "yes": 0.6}, "b": {"yes": 1.0}, "c": {"no": 0.3}}
    np.testing.assert_array_equal(values_of(table), [[0.4, 0.6], [0, 1], [0.3, 0]])
    gaps = values_of(table, missing_cells="impute")
    assert np.isnan(gaps).tolist() == [[False, False], [True, False], [False, True]]


def test_rows_of_an_array_follow_the_sorted_ids():
    rows = np.array([[0.1, 0.9], [0.2, 0.8], [0.3, 0.7]])
    np.testing.assert_array_equal(values_of(rows, [1, 2, 10]), rows)
    for bags in (["10", "2", "9"], ["b1", "b10", "b2"], ["10 north", "9 north", "a"], ["b10", "b1x", "b2"]):
        with pytest.raises(DataError):  # texts that sort otherwise than people count
            values_of(rows, bags)
        assert len(values_of(dict(zip(bags, rows, strict=True)), bags)) == 3
    for bags in (["a b", "a1", "ab"], ["b01", "b02", "b10"], ["12a3", "1a23", "1b2"]):
        assert len(values_of(rows, bags)) == 3


def test_the_row_of_each_bag_in_the_table_is_known():
    aligned = align(SHARES.iloc[[2, 0, 1]], [*BAGS, "d"], np.array([2, 3, 1, 1]))
    assert aligned.rows.tolist() == [1, 2, 0, -1]
    assert aligned.classes.tolist() == ["no", "yes"]


def test_a_column_of_the_bags_is_found_beside_an_index_that_only_counts():
    for order in ([0, 1, 2], [2, 0, 1]):
        table = SHARES.assign(town=range(3)).iloc[order].reset_index(drop=True)
        np.testing.assert_array_equal(values_of(table, [0, 1, 2]), SHARES)
    named = SHARES.reset_index(drop=True).rename_axis("town")  # an index with a name names bags
    np.testing.assert_array_equal(values_of(named, [1, 2]), SHARES.iloc[1:])
    counts = pd.DataFrame({"no": [2, 0, 1], "yes": [0, 3, 0]})  # named as a class, it is one
    np.testing.assert_array_equal(values_of(counts, [0, 1, 2], kind="counts", classes=["no", "yes"]), counts)


@pytest.mark.parametrize("lost", [0, 3, 5])
@pytest.mark.parametrize("text", [True, False], ids=["texts", "numbers"])
@pytest.mark.parametrize("library", [pd, pl])
def test_a_column_of_bags_is_found_though_one_is_missing(lost, text, library):
    names = [f"t{i}" if text else i for i in range(6)]
    there = [name for i, name in enumerate(names) if i != lost]
    no = [0.1, 0.2, 0.3, 0.4, 0.5]
    table = library.DataFrame({"town": there, "no": no, "yes": [1 - share for share in no]})
    aligned = align(table, names, np.ones(6, int))
    assert (aligned.rows < 0).nonzero()[0].tolist() == [lost]


def test_a_few_bags_of_a_large_table_are_found():
    shares = pd.DataFrame(np.random.default_rng(3).dirichlet([2, 2, 2], 12), columns=list("ABC"))
    column = shares.assign(town=range(12)).sample(frac=1, random_state=0).reset_index(drop=True)
    polars = pl.DataFrame({name: column[name].to_list() for name in column})
    for some in ([3, 8, 11], [8], list(range(12))):
        for table in (shares, shares.to_dict("index"), column, polars):
            values = values_of(table, some, subset=True, classes=list("ABC"))
            np.testing.assert_allclose(values, shares.loc[some])
    with pytest.raises(DataError, match="key='town'"):  # the row numbers may name the bags as well
        values_of(column, [1, 2], subset=True)


def test_classes_are_sorted_as_numbers_texts_and_truth_values():
    for classes in ([5, 10], [0.5, 10.0], [-2, -1], [False, True], ["a", "b"]):
        assert check_classes(classes, 2).tolist() == classes
        turned = align(SHARES.set_axis(classes[::-1], axis=1), BAGS, SIZES)
        assert turned.classes.tolist() == classes
        np.testing.assert_array_equal(turned.values, SHARES.to_numpy()[:, ::-1])


def test_rounding_leaves_no_negative_share():
    left = np.array([0.9, 0.6, 0.8])
    table = pd.DataFrame({"x": left, "y": 1 - left, "z": 1 - left - (1 - left) - 1e-16}, index=BAGS)
    assert (values_of(table) >= 0).all()
    assert values_of(table.assign(z=-1e-6))[0, 2] == -1e-6


def test_rest_is_what_the_columns_leave_of_each_total():
    sizes = np.array([4, 10, 5])
    counts = pd.DataFrame({"yes": [1, 0, 5]}, index=BAGS)
    aligned = align(Proportions(counts, "counts", rest="not"), BAGS, sizes)
    assert aligned.classes.tolist() == ["not", "yes"]
    assert aligned.values.tolist() == [[3, 1], [10, 0], [0, 5]]
    shares = Proportions(100 * counts.div(sizes, axis=0), "percent", rest="zero")
    assert align(shares, BAGS, sizes).values.tolist() == [[25, 75], [0, 100], [100, 0]]


def table_of_towns():
    """Shares of six towns, numbered from one, in an index that only counts."""
    no = np.linspace(0.1, 0.6, 6)
    return pd.DataFrame({"town": range(1, 7), "no": no, "yes": 1 - no})


MOVED = {
    "one left out": lambda table: table[table.town != 3],
    "sorted": lambda table: table.sort_values("no", ascending=False),
    "drawn": lambda table: table.sample(frac=1, random_state=0),
    "as it is": lambda table: table,
    "with a total": lambda table: pd.concat([table, table.tail(1).assign(town=99)]),
}


@pytest.mark.parametrize("case", MOVED)
def test_the_column_with_the_name_of_the_bags_has_their_ids(case):
    table = table_of_towns()
    expected = table.set_index("town")[["no", "yes"]]
    towns = pd.Series([1, 2, 3, 4, 5, 6], name="town")
    given = Proportions(MOVED[case](table), classes=["no", "yes"], missing_bags="allow")
    for names in (towns, towns.to_frame(), pl.Series("town", towns.to_list())):
        aligned = align(key_by_name(given, names), towns.tolist(), np.ones(6, int))
        known = aligned.rows >= 0
        np.testing.assert_array_equal(aligned.values[known], expected[known])
    assert key_by_name(given, towns.to_numpy(), "town").key == "town"  # the name of a grouping
    assert key_by_name(given, towns.rename("no")).key is None  # a class holds no ids
    assert key_by_name(Proportions(table, key="no"), towns).key == "no"


@pytest.mark.parametrize("case", ["one left out", "sorted", "drawn"])
@pytest.mark.parametrize("subset", [False, True])
@pytest.mark.parametrize("key", ["number", "text", "letters"])
def test_row_numbers_are_no_ids_beside_a_column_that_may_name_the_bags(case, subset, key):
    table = MOVED[case](table_of_towns())
    table["town"] = table.town.map(
        {"number": int, "text": "{:03d}".format, "letters": "abcdefg".__getitem__}[key]
    )
    table.index = pd.Index(table.index.tolist())  # pandas may sort a RangeIndex to another one
    with pytest.raises(DataError) as error:
        values_of(table, [1, 2, 3, 4, 5], subset=subset, classes=["no", "yes"], missing_bags="allow")
    assert error.value.value == "town"


def test_an_index_of_whole_numbers_has_the_ids_if_it_has_a_name_or_no_column_can():
    table = table_of_towns().drop(columns="town").set_axis([4, 1, 6, 2, 3, 5])
    expected = table.sort_index().to_numpy()
    np.testing.assert_array_equal(values_of(table, range(1, 7)), expected)
    more = table.assign(turnout=[0.71, 0.72, 0.73, 0.74, 0.75, 0.76], county=[1, 1, 1, 2, 2, 2])
    np.testing.assert_array_equal(values_of(more, range(1, 7), classes=["no", "yes"]), expected)
    named = table.rename_axis("town").assign(total=[10, 20, 30, 40, 50, 60])
    np.testing.assert_array_equal(values_of(named, range(1, 7), classes=["no", "yes"]), expected)

"""Tables whose columns or keys have names: each number goes to the class that its name says."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from apportion import build_bags, diagnose, expand_proportions
from apportion.errors import DataError
from apportion.intake.beside import beside
from apportion.intake.forms import bags_from, groups_of, table_shares
from apportion.intake.mending import mended_bags

TOWNS = ["a", "a", "b", "b", "b", "c"]
SHARES = pd.DataFrame({"no": [0.5, 1 / 3, 1.0], "yes": [0.5, 2 / 3, 0.0]}, index=list("abc"))
COUNTS = pd.DataFrame({"no": [1, 1, 1], "yes": [1, 2, 0]}, index=list("abc"))


def read(table, classes=None, counts=None):
    return table_shares(table, counts, groups_of(TOWNS, 6), classes)


@pytest.mark.parametrize(
    "table",
    {
        "a DataFrame": SHARES,
        "columns in another order": SHARES[["yes", "no"]],
        "a dict of dicts": SHARES.to_dict("index"),
        "a dict of dicts whose keys come in another order": {
            "c": {"no": 1.0}, "b": {"yes": 2 / 3, "no": 1 / 3}, "a": {"yes": 0.5, "no": 0.5},
        },
        "a dict of series by frequency": {
            bag: row.sort_values(ascending=False)[lambda s: s > 0] for bag, row in SHARES.iterrows()
        },
        "bags in a column": SHARES.rename_axis("town").reset_index(),
        "polars": pl.DataFrame({"town": list("abc"), **SHARES.to_dict("list")}),
        "polars, the bags last": pl.DataFrame({**SHARES.to_dict("list"), "town": list("abc")}),
    }.items(),
    ids=lambda item: item[0],
)  # fmt: skip
def test_every_form_with_names_gives_the_same_shares_by_class(table):
    shares, classes = read(table[1])
    assert classes.tolist() == ["no", "yes"]
    np.testing.assert_allclose(shares, SHARES.to_numpy())
    asked, named = read(table[1], classes=["yes", "no"])
    assert named.tolist() == ["no", "yes"]  # sorted, as scikit-learn has them
    np.testing.assert_allclose(asked, SHARES.to_numpy())


def test_value_counts_of_every_bag_are_a_table_of_counts():
    labels = pd.Series(["yes", "no", "yes", "no", "yes", "no"])
    counts = {bag: part.value_counts() for bag, part in labels.groupby(TOWNS)}
    shares, classes = read(None, counts=counts)
    assert classes.tolist() == ["no", "yes"]
    np.testing.assert_allclose(shares, SHARES.to_numpy())


def test_a_series_of_value_counts_by_bag_is_a_table():
    labels = pd.Series(["yes", "no", "yes", "no", "yes", "no"], name="vote")
    grouped = labels.groupby(pd.Series(TOWNS, name="town"))
    for series in (grouped.value_counts(normalize=True), grouped.value_counts(normalize=True)[::-1]):
        shares, classes = read(series)
        assert classes.tolist() == ["no", "yes"]
        np.testing.assert_allclose(shares, SHARES.to_numpy())
    np.testing.assert_allclose(read(None, counts=grouped.value_counts())[0], SHARES.to_numpy())
    twice = pd.concat([grouped.value_counts(), grouped.value_counts()])
    with pytest.raises(DataError, match=r"\('a', '(no|yes)'\) stands twice in the series of \(bag, class\)"):
        read(None, counts=twice)
    tuples = pd.Series([0.5, 0.2], index=pd.MultiIndex.from_tuples([("a", 1), ("b", 1)]))
    with pytest.raises(DataError, match="a series has one number a bag"):
        expand_proportions(tuples, [("a", 1), ("b", 1)])


@pytest.mark.parametrize("kind", ["Int64", object])
@pytest.mark.parametrize("column", [False, True], ids=["index", "column"])
def test_what_pandas_has_not_is_missing(kind, column):
    gaps = COUNTS.astype(kind).rename_axis("town")
    gaps.loc["b", "yes"] = pd.NA
    table = gaps.reset_index() if column else gaps
    with pytest.raises(DataError, match="bag 'b' has no number for 1 of its 2 classes"):
        read(None, counts=table)
    found = mended_bags(np.zeros((6, 2)), ids=TOWNS, counts=table, fill=True).bags
    np.testing.assert_allclose(found.proportions, SHARES.to_numpy(), rtol=1e-6)


STRANGERS = {
    "turnout": (lambda t: t.assign(turnout=[0.42, 0.61, 0.08]), ["turnout"]),
    "percentages and a year": (lambda t: (t * 100).round(1).assign(year=2020), ["year"]),
    "a year, a population, turnout": (
        lambda t: t.assign(year=2020, people=[1200, 900, 77], turnout=[0.4, 0.6, 0.5]),
        ["year", "people", "turnout"],
    ),
}


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("what", STRANGERS)
def test_what_stands_beside_shares_that_are_whole_is_no_class(what, normalize):
    """With normalize, which an error recommended, turnout would have become a class."""
    change, names = STRANGERS[what]
    table, x = change(SHARES), np.zeros((6, 2))
    listed = ", ".join(map(repr, names))
    words = rf"bag 'a' sums to .* without the columns? {listed}, as nearly all bags do; drop (it|them), or"
    with pytest.raises(DataError, match=rf"{words} pass classes=\['no', 'yes'\]"):
        mended_bags(x, ids=TOWNS, proportions=table, normalize=normalize)
    with pytest.raises(DataError, match=words):
        build_bags(x, TOWNS, table, normalize=normalize)
    kept = mended_bags(x, ids=TOWNS, proportions=table, normalize=True, classes=["no", "yes"])
    np.testing.assert_allclose(kept.bags.proportions, SHARES.to_numpy(), atol=1e-3)
    insisted = mended_bags(x, ids=TOWNS, proportions=table, normalize=True, classes=list(table.columns))
    assert insisted.classes.tolist() == sorted(table.columns)  # who insists is believed


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("values", [[5, 4, 8], [1, 1, 2], [2020, 2020, 2020]])
def test_what_stands_beside_counts_of_all_rows_is_no_class(values, normalize):
    x, table = np.zeros((6, 2)), COUNTS.assign(more=values)
    words = "bag 'a' of 2 rows sums to .*, and to 2 without the column 'more'"
    with pytest.raises(DataError, match=words):
        mended_bags(x, ids=TOWNS, counts=table, normalize=normalize)
    with pytest.raises(DataError, match=r"without the column 2, as nearly all bags do; drop it; classes="):
        mended_bags(x, ids=TOWNS, counts=table.to_numpy(), normalize=normalize)


def test_a_few_bags_that_are_no_whole_and_small_shares_hide_no_stranger():
    m = 40
    parts = np.random.default_rng(0).dirichlet([3, 3], m)
    parts[7] *= 0.9
    assert beside(np.column_stack([parts, np.full(m, 0.02)])) == [2]
    assert beside(np.column_stack([parts[:, 0], np.linspace(0.3, 0.7, m), parts[:, 1]])) == [1]
    assert beside(np.column_stack([parts * 0.98, np.full(m, 0.02)])) == []  # whole with it


@pytest.mark.parametrize("step", [0.01, 0.05, 0.1])
def test_rounded_and_noisy_shares_are_all_classes(step):
    random = np.random.default_rng(1)
    for m in (3, 12, 50):
        for weights in ([5, 3, 0.2], [1, 1, 1, 1], [10, 0.1, 0.1]):
            parts = random.dirichlet(weights, m)
            assert beside(np.rint(parts / step) * step) == []
            assert beside(100 * parts + random.normal(0, 100 * step, parts.shape)) == []
            counts = random.multinomial(60, parts[0], m)
            assert beside(counts, random.integers(5, 30, m)) == []


def test_numbers_without_names_go_by_their_place():
    by_place = {bag: pd.Series(row.to_list()) for bag, row in SHARES.iterrows()}
    shares, classes = read(by_place, classes=["no", "yes"])
    assert classes.tolist() == ["no", "yes"]
    np.testing.assert_allclose(shares, SHARES.to_numpy())


def test_a_total_is_no_class_unless_it_is_said_to_be():
    table = COUNTS.assign(total=COUNTS.sum(axis=1))
    with pytest.raises(
        DataError, match=r"column 'total' is the sum of the others.*pass classes=\['no', 'yes'\]"
    ):
        read(None, counts=table)
    assert read(None, counts=table, classes=["no", "yes"])[1].tolist() == ["no", "yes"]
    halves = pd.DataFrame({"control": 0.5, "x": [0.1, 0.2, 0.3], "y": [0.4, 0.3, 0.2]}, index=list("abc"))
    assert read(halves, classes=["control", "x", "y"])[1].tolist() == ["control", "x", "y"]


def test_a_total_beside_rounded_percentages_is_no_class():
    percent = pd.DataFrame(
        {"x": [33.3, 20.0, 10.1], "y": [33.3, 30.0, 9.9], "z": [33.3, 50.0, 80.0]}, list("abc")
    )
    with pytest.raises(DataError, match="column 'total' is the sum of the others"):
        read(percent.assign(total=100.0))


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_a_column_of_the_bags_is_found_beside_an_index_that_only_counts_the_rows(order):
    table = SHARES.assign(town=range(3)).iloc[order].reset_index(drop=True)
    groups = groups_of([0, 0, 1, 1, 1, 2], 6)
    shares, classes = table_shares(table, None, groups, None)
    assert classes.tolist() == ["no", "yes"]
    np.testing.assert_allclose(shares, SHARES.to_numpy())
    counts = pd.DataFrame({"no": [2, 0, 1], "yes": [0, 3, 0]})  # named as a class, it is one
    assert table_shares(None, counts, groups, ["no", "yes"])[0].tolist() == [[1, 0], [0, 1], [1, 0]]


def test_classes_may_be_true_and_false():
    table = SHARES.set_axis([False, True], axis=1)
    for classes in (None, [False, True]):
        shares, found = read(table, classes=classes)
        assert found.tolist() == [False, True]
        np.testing.assert_allclose(shares, SHARES.to_numpy())
    found = diagnose(np.full((6, 2), 0.5), TOWNS, table, classes=[False, True])
    assert found.bag_errors.tolist() == pytest.approx([0, 1 / 6, 1 / 2])


def test_ids_that_differ_by_their_unicode_form_are_told_so():
    one, other = "\u00e9", "e\u0301"
    for name, ids in ((one, [other, "b"]), (one, [other, other]), (other, [one, "b"])):
        table = {name: [0.5, 0.5], "b": [0.5, 0.5]}
        with pytest.raises(DataError, match=r"other Unicode characters.*normalize\('NFC', id\)"):
            build_bags(np.zeros((2, 2)), ids, table)


def test_ids_with_zeros_of_their_own_are_told_with_their_twins():
    table = {"1": [0.5, 0.5], "10": [0.5, 0.5]}
    with pytest.raises(DataError, match="bag '1' of the table is '01' among the instances; write both alike"):
        build_bags(np.zeros((2, 2)), ["01", "10"], table)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (SHARES.to_dict(), r"the table's keys are classes, and theirs are bags; .*to_dict\('index'\)"),
        (SHARES.assign(town=SHARES.index), r"the column 'town' repeats the names.*set_index\('town'\)"),
        (pl.DataFrame({"no": [0.5], "yes": [0.5]}), "no column of the polars table names the bags"),
        ({1: [0.5, 0.5]}, r"no bag of the table is one of the instances': 1 \(int\) there, 'a' \(str\) here"),
        ({"a": ["50%", "50%"], "b": [0, 1], "c": [0, 1]}, "bag 'a' has '50%' where a number should be"),
        (SHARES.assign(mayor=["x", "y", "z"]), r"column 'mayor' has 'x' where a number should be.*set_index"),
        ({"a": 0.5, "b": 0.4, "c": 0.3}, r"bag 'a' has 0.5 for proportions; .* such as \[1 - 0.5, 0.5\]"),
        (pd.concat([SHARES, SHARES[["no"]]], axis=1), "the column 'no' stands twice in the table"),
        (SHARES["yes"], r"one number a bag; pass a table .* pandas.DataFrame\(\{'no': 1 - s, 'yes': s\}\)"),
        (SHARES.assign(yes=[5, 0, 0]), "bag 'a' has 5 as the proportion of class 'yes', which is more"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_read_says_what_to_pass(table, words):
    with pytest.raises(DataError, match=words):
        expand_proportions(table, TOWNS)


@pytest.mark.parametrize(
    "table",
    [
        SHARES.to_dict("index"),
        SHARES.rename_axis("town").reset_index(),
        pl.DataFrame({"town": list("abc"), **SHARES.to_dict("list")}),
    ],
    ids=["dict of dicts", "bags in a column", "polars"],
)
def test_group_bags_reads_the_tables_that_fit_does_in_the_order_of_their_columns(table):
    bags = build_bags(np.zeros((6, 2)), TOWNS, table)
    np.testing.assert_allclose(bags.proportions, SHARES.to_numpy(), rtol=1e-6)
    turned = build_bags(np.zeros((6, 2)), TOWNS, SHARES[["yes", "no"]])
    np.testing.assert_allclose(turned.proportions, SHARES[["yes", "no"]].to_numpy(), rtol=1e-6)
    with pytest.raises(DataError, match=r"there is no column 'where' in the table; it has \['no', 'yes'\]"):
        build_bags(np.zeros((6, 2)), TOWNS, SHARES, bag_column="where")


@pytest.mark.parametrize("lost", [0, 3, 5])
@pytest.mark.parametrize("text", [True, False], ids=["texts", "numbers"])
@pytest.mark.parametrize("library", [pd, pl])
def test_the_one_bag_that_a_table_lacks_is_named(lost, text, library):
    names = [f"t{i}" if text else i for i in range(6)]
    there = [name for i, name in enumerate(names) if i != lost]
    shares = [0.1, 0.2, 0.3, 0.4, 0.5]
    table = library.DataFrame({"town": there, "no": shares, "yes": [1 - share for share in shares]})
    words = (
        f"bag {names[lost]!r} has instances but no row in the table; add it, or leave its rows out of folds"
    )
    with pytest.raises(DataError, match=words):
        expand_proportions(table, names * 2)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["a", 1], r"the classes \['a', 1\] are of several types; write all alike"),
        ([True, 2], "are of several types"),
        (["a", None], "a class is named (nan|None); give every column a name"),
    ],
)
def test_classes_without_a_name_or_a_common_order_are_refused(columns, words):
    with pytest.raises(DataError, match=words):
        expand_proportions(SHARES.set_axis(columns, axis=1), TOWNS)


def test_numbers_in_errors_are_as_long_as_people_write_them():
    with pytest.raises(DataError, match="bag 'a' has 55 for proportions; give a number for each class$"):
        expand_proportions(dict.fromkeys("abc", 100 * 0.55), TOWNS)


def test_group_bags_takes_a_polars_table_and_counts_of_a_larger_group():
    x = np.zeros((6, 2))
    table = pl.DataFrame({"town": list("abc"), **SHARES.to_dict("list")})
    bags = build_bags(x, TOWNS, table, bag_column="town")
    np.testing.assert_allclose(bags.proportions, SHARES.to_numpy(), rtol=1e-6)
    larger = {bag: 10 * row for bag, row in zip("abc", COUNTS.to_numpy(), strict=True)}
    with pytest.raises(
        DataError, match="bag 'a' has counts that sum to 20 but 2 instances; rescale counts of a larger group"
    ):
        build_bags(x, TOWNS, counts=larger)
    bags = build_bags(x, TOWNS, counts=larger, normalize=True)
    np.testing.assert_allclose(bags.proportions, SHARES.to_numpy(), rtol=1e-6)


def test_names_in_several_levels_and_names_that_polars_would_give_are_told_apart():
    shares = np.array([[0.2, 0.8], [0.2, 0.8], [0.7, 0.3], [0.7, 0.3]])
    x, ids = np.arange(8.0).reshape(4, 2), ["a", "a", "b", "b"]
    levels = pd.DataFrame(shares, columns=pd.MultiIndex.from_tuples([("vote", "no"), ("vote", "yes")]))
    with pytest.raises(DataError, match="give every column a name, and one alone"):
        bags_from(x, levels, ids)
    named = pd.DataFrame(shares, columns=["column_0", "column_1"])
    assert bags_from(x, named, ids)[1].tolist() == ["column_0", "column_1"]

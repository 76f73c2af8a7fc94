"""Tables: transforms as scikit-learn has them, proportions in every form, everything wrong told at once."""

import json
import math
import runpy
import sys
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pl = pytest.importorskip("polars")
from sklearn.impute import SimpleImputer  # noqa: E402
from sklearn.preprocessing import OneHotEncoder, StandardScaler  # noqa: E402

from apportion.tables import reading  # noqa: E402
from apportion.tables.asking import Asked, Found  # noqa: E402
from apportion.tables.checking import check, refuse  # noqa: E402
from apportion.tables.columns import KEPT, Column, TableError, from_values, to_values  # noqa: E402
from apportion.tables.holding import hold, hold_parts  # noqa: E402
from apportion.tables.reading import open_table, save_table  # noqa: E402
from apportion.tables.transforms import features_of, fit_column, read_as, spoilt  # noqa: E402

RANDOM = np.random.default_rng(0)


def features(column: Column, *values: Any) -> list[list[float]]:
    return features_of([column], pl.DataFrame({column.name: list(values)})).tolist()


# --- transforms


def test_numbers_are_imputed_flagged_and_standardised_as_scikit_learn_does():
    raw = RANDOM.lognormal(3, 2, 501)
    raw[RANDOM.random(501) < 0.2] = np.nan
    column = fit_column(pl.Series("a", raw), "number")
    imputer = SimpleImputer(strategy="median", add_indicator=True)
    filled = imputer.fit_transform(raw[:, None])
    filled[:, :1] = (scaler := StandardScaler()).fit_transform(filled[:, :1])
    np.testing.assert_allclose(features_of([column], pl.DataFrame({"a": raw})), filled, atol=1e-5)
    new = np.array([[np.nan], [7.5], [-1e6]])
    later = imputer.transform(new)
    later[:, :1] = scaler.transform(later[:, :1])
    np.testing.assert_allclose(features(column, *new[:, 0]), later, rtol=1e-5)


def test_null_and_nan_are_missing_alike():
    assert fit_column(pl.Series("a", [1.0, None, 3.0]), "number") == fit_column(
        pl.Series("a", [1.0, math.nan, 3.0]), "number"
    )


@pytest.mark.parametrize("value", [0.0, 5.0, 0.1, 1e9 + 0.1])
def test_a_number_that_never_changes_becomes_zero_and_not_nan(value):
    column = fit_column(pl.Series("a", [value] * 7), "number")
    assert column.scale == 1.0
    assert features(column, value)[0][0] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("dtype", [pl.Int8, pl.UInt64, pl.Float32, pl.Decimal(10, 2)])
def test_numbers_of_all_types_are_numbers(dtype):
    column = fit_column(pl.Series("a", [1, 2, 6]).cast(dtype), "number")
    assert (column.fill, column.mean) == (2.0, 3.0)


def test_categories_are_one_hot_as_scikit_learn_has_them_with_the_rare_ones_together():
    names = [f"c{i:02d}" for i in range(KEPT + 5)]
    weights = np.arange(3, len(names) + 3)
    raw = np.repeat(names, weights)
    column = fit_column(pl.Series("a", raw), "category")
    encoder = OneHotEncoder(
        max_categories=KEPT + 1, handle_unknown="infrequent_if_exist", sparse_output=False
    )
    expected = encoder.fit_transform(raw[:, None])
    np.testing.assert_array_equal(features_of([column], pl.DataFrame({"a": raw})), expected)
    new = np.array(["c30", "c00", "unheard of"])
    np.testing.assert_array_equal(features(column, *new), encoder.transform(new[:, None]))


def test_missing_categories_have_a_flag_where_training_had_some_and_are_other_where_not():
    flagged = fit_column(pl.Series("a", ["x", None, "y"]), "category")
    assert flagged.features == ["a = x", "a = y", "a = other", "a is missing"]
    assert features(flagged, "y", None, "z") == [[0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]
    whole = fit_column(pl.Series("a", ["x", "y"]), "category")
    assert features(whole, "x", None) == [[1, 0, 0], [0, 0, 1]]


def test_numbers_can_be_categories():
    column = fit_column(pl.Series("a", [10, 9, 9]), "category")
    assert column.categories == ("10", "9")
    assert features(column, 9) == [[0, 1, 0]]


def test_booleans_are_zero_and_one_and_imputed_as_scikit_learn_does():
    raw = [True, True, False, None]
    column = fit_column(pl.Series("a", raw), "boolean")
    objects = np.array([[1.0], [1.0], [0.0], [np.nan]])
    expected = SimpleImputer(strategy="most_frequent", add_indicator=True).fit_transform(objects)
    np.testing.assert_array_equal(features(column, *raw), expected)


def test_dates_are_days_standardised_and_a_place_in_the_year():
    days = [date(1999, 1, 1), date(2001, 6, 30), None, date(2020, 2, 29)]
    column = fit_column(pl.Series("a", days), "date")
    numbers = np.array([10592.0, 11503.0, np.nan, 18321.0])
    expected = StandardScaler().fit_transform(
        SimpleImputer(strategy="median").fit_transform(numbers[:, None])
    )
    got = np.array(features(column, *days))
    np.testing.assert_allclose(got[:, 0], expected[:, 0], atol=1e-6)
    turn = 2 * np.pi * numbers / 365.2425
    np.testing.assert_allclose(got[[0, 1, 3], 1:3], np.c_[np.sin(turn), np.cos(turn)][[0, 1, 3]], atol=1e-6)
    assert got[2].tolist() == [pytest.approx(expected[2, 0]), 0, 0, 1]


def test_a_moment_with_a_time_zone_is_the_moment_in_utc():
    there = pl.Series("a", [datetime(2020, 1, 1, 12), datetime(2021, 1, 1, 12)])
    berlin = there.dt.replace_time_zone("UTC").dt.convert_time_zone("Europe/Berlin")
    assert fit_column(there, "date") == fit_column(berlin, "date")


@pytest.mark.parametrize(
    ("kind", "texts", "values"),
    [
        ("number", ["1", "2.5", None, "x"], [1.0, 2.5, None, None]),
        ("boolean", ["true", "FALSE", "1", "0", "maybe"], [True, False, True, False, None]),
        ("date", ["2020-01-02", "nonsense"], [datetime(2020, 1, 2), None]),
    ],
)
def test_texts_are_read_as_the_kind_and_what_is_not_of_it_is_found(kind, texts, values):
    series = pl.Series("a", texts)
    assert read_as(series, kind).to_list() == values
    assert spoilt(series, kind).tolist() == [len(texts) - 1]


def test_values_of_another_type_than_in_training_are_spoilt():
    assert spoilt(pl.Series("a", [date(2020, 1, 1)]), "number").tolist() == [0]
    assert spoilt(pl.Series("a", [3]), "date").tolist() == [0]
    assert spoilt(pl.Series("a", [1.0, math.inf]), "number").tolist() == [1]


def test_fitted_columns_go_to_json_and_back():
    columns = (
        fit_column(pl.Series("n", [0.1, None, 1e-300]), "number"),
        fit_column(pl.Series("c", ["ü", None, "|"]), "category"),
        fit_column(pl.Series("b", [True, False]), "boolean"),
        fit_column(pl.Series("d", [date(2000, 1, 1), date(2000, 1, 2)]), "date"),
    )
    assert from_values(json.loads(json.dumps(to_values(columns)))) == columns


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        ({"extra": 1}, "a column has the keys name, kind"),
        ({"kind": "python"}, "'a' is of kind 'python'; there are number"),
        ({"mean": "0"}, "fill, mean and scale"),
        ({"mean": math.nan}, "fill, mean and scale"),
        ({"mean": 10**400}, "fill, mean and scale"),
        ({"categories": ["\ud800"]}, "a list of texts"),
        ({"name": "\udfff"}, "is of kind"),
        ({"scale": 0.0}, "scale > 0"),
        ({"categories": [1]}, "a list of texts"),
        ({"categories": ["b", "a"]}, "unsorted"),
        ({"flag": 1}, "neither true nor false"),
        ({"name": 3}, "column 3"),
    ],
)
def test_columns_from_a_stranger_are_refused(change, pattern):
    with pytest.raises(TableError, match=pattern):
        from_values([to_values([Column("a", "category", categories=("x",))])[0] | change])


def test_a_list_of_columns_has_some_and_each_once():
    with pytest.raises(TableError, match="at least one"):
        from_values([])
    with pytest.raises(TableError, match="'a' stands twice"):
        from_values(to_values([Column("a", "number")] * 2))


def test_transforms_know_nothing_of_the_rows_that_are_held_out(tmp_path):
    bag, value = [i // 4 for i in range(20)], [float(i) for i in range(20)]
    value[3::4] = [1e6] * 5  # rows of all bags
    table = pl.DataFrame({"bag": bag, "a": value, "b": [None if i < 4 else f"c{i % 4}" for i in range(20)]})
    table.write_parquet(tmp_path / "people.parquet")
    shares = pl.DataFrame({"bag": range(5), "no": [0.0, 0.25, 0.5, 0.75, 1.0]})
    shares.with_columns(yes=1 - pl.col("no")).write_csv(tmp_path / "shares.csv")
    question = Asked(tmp_path / "people.parquet", "bag", tmp_path / "shares.csv")
    (learnt, held), columns = hold_parts(
        question,
        check(question),
        lambda bags: [bags.select(torch.tensor(which)) for which in ([3, 1], [0, 2, 4])],
    )
    rows = [12, 13, 14, 15, 4, 5, 6, 7]
    assert learnt.source.tolist() == rows
    assert columns == (
        fit_column(pl.Series("a", [value[i] for i in rows]), "number"),
        fit_column(table["b"][rows], "category"),
    )
    assert not columns[1].flag  # values are missing in held-out rows alone
    for part in (learnt, held):
        expected = features_of(columns, table[part.source.tolist()])
        np.testing.assert_array_equal(part.x.numpy(), expected)


# --- files


def put(path: Path, **columns: Any) -> Path:
    save_table(pl.DataFrame(columns).lazy(), path)
    return path


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_table_is_read_as_it_was_written(tmp_path, ending):
    frame = pl.DataFrame(
        {"t": ["a,b", None], "n": [1.5, None], "i": [1, 2], "b": [True, None], "d": [date(2020, 1, 1), None]}
    )
    save_table(frame.lazy(), tmp_path / f"t.{ending}")
    assert open_table(tmp_path / f"t.{ending}").collect().equals(frame)
    assert [path.name for path in tmp_path.iterdir()] == [f"t.{ending}"]


def test_ids_of_a_csv_that_look_like_numbers_keep_their_zeros(tmp_path):
    path = put(tmp_path / "t.csv", town=["007", "7"], a=[1, 2])
    assert open_table(path, texts=["town"]).collect()["town"].to_list() == ["007", "7"]


@pytest.mark.parametrize(
    ("name", "text", "pattern"),
    [
        ("t.xlsx", "", "does not end in .csv, .parquet"),
        ("none.csv", None, "there is no file"),
        ("t.csv", "", "cannot be read as csv"),
        ("t.parquet", "no parquet at all", "cannot be read as parquet"),
        ("t.csv", "a,b\n1\n2,3,4\n", "cannot be read as csv"),
    ],
)
def test_files_that_are_no_tables_are_refused(tmp_path, name, text, pattern):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(TableError, match=pattern):
        open_table(tmp_path / name)


def test_without_polars_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(TableError, match=r"read with polars; pip install 'apportion\[tables\]'"):
        runpy.run_path(str(reading.__file__))


# --- check and hold


def people(folder: Path, ending: str = "parquet", **changes: Any) -> Path:
    columns = {"town": ["b", "a", "b", "c", "a", "b"], "age": [30.0, 40.0, None, 60.0, 50.0, 20.0]}
    columns |= {"job": ["x", "y", "x", None, "y", "x"], "owner": [True, False, True, True, False, True]}
    return put(folder / f"people.{ending}", **(columns | changes))


def shares(folder: Path, name: str = "shares.csv", **changes: Any) -> Path:
    columns = {"town": ["a", "b", "c"], "left": [0.5, 1 / 3, 1.0], "right": [0.5, 2 / 3, 0.0]}
    return put(folder / name, **(columns | changes))


def asked(folder: Path, **changes: Any) -> Asked:
    given = {"table": folder / "people.parquet", "bag": "town", "proportions": folder / "shares.csv"}
    if not (folder / "people.parquet").exists():
        people(folder)
    if not (folder / "shares.csv").exists():
        shares(folder)
    return Asked(**(given | changes))


def problems(*args: Any, **changes: Any) -> list[str]:
    return check(asked(*args, **changes)).problems


SHARES = [[0.5, 0.5], [1 / 3, 2 / 3], [1.0, 0.0]]


def test_sound_tables_give_sorted_bags_with_sizes_shares_and_kinds(tmp_path):
    found = check(asked(tmp_path))
    assert found.problems == []
    assert found.names.to_list() == ["a", "b", "c"]
    assert found.sizes.tolist() == [2, 3, 1]
    np.testing.assert_allclose(found.shares, SHARES)
    assert found.classes == ("left", "right")
    assert found.kinds == {"age": "number", "job": "category", "owner": "boolean"}
    assert "6 rows in 3 bags of 1 to 3 rows" in found.notes[0]
    assert "column 'age' is missing in 1 of 6 rows" in found.notes


@pytest.mark.parametrize("batch", [2, 250_000])
def test_bags_hold_the_features_of_their_own_rows_in_order(tmp_path, monkeypatch, batch):
    monkeypatch.setattr(reading, "BATCH", batch)
    question = asked(tmp_path)
    bags, columns = hold(question, check(question))
    assert bags.ids == ["a", "b", "c"]
    assert bags.source.tolist() == [1, 4, 0, 2, 5, 3]
    rows = pl.read_parquet(question.table)
    np.testing.assert_array_equal(bags.x.numpy(), features_of(columns, rows)[bags.source.numpy()])
    np.testing.assert_allclose(bags.proportions.numpy(), SHARES, rtol=1e-6)


def test_rows_of_the_second_table_may_come_in_any_order(tmp_path):
    shares(tmp_path, town=["c", "a", "b"], left=[1.0, 0.5, 1 / 3], right=[0.0, 0.5, 2 / 3])
    found = check(asked(tmp_path))
    assert found.names.to_list() == ["a", "b", "c"]
    np.testing.assert_allclose(found.shares, SHARES)


def test_counts_are_shares_of_the_rows(tmp_path):
    shares(tmp_path, "counts.csv", left=[1, 1, 1], right=[1, 2, 0])
    found = check(asked(tmp_path, proportions=None, counts=tmp_path / "counts.csv"))
    assert found.problems == []
    np.testing.assert_allclose(found.shares, SHARES)


def test_counts_of_a_larger_group_are_shares_where_asked(tmp_path):
    shares(tmp_path, "counts.csv", left=[50, 100, 3], right=[50, 200, 0])
    question = {"proportions": None, "counts": tmp_path / "counts.csv"}
    assert "row 1, bag 'a', sums to 100 but has 2 rows" in problems(tmp_path, **question)[0]
    found = check(asked(tmp_path, **question, normalise=True))
    np.testing.assert_allclose(found.shares, SHARES)


def test_shares_may_stand_in_the_table_itself(tmp_path):
    left = [1 / 3, 0.5, 1 / 3, 1.0, 0.5, 1 / 3]
    people(tmp_path, left=left, right=[1 - share for share in left])
    found = check(asked(tmp_path, proportions=None, shares=("left", "right")))
    assert found.problems == []
    np.testing.assert_allclose(found.shares, SHARES)
    assert "left" not in found.kinds


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        ([2, 1, 2, 3, 1, 2], [1, 2, 3]),
        (["02", "01", "02", "03", "01", "02"], ["01", "02", "03"]),
        ([2.5, 1.5, 2.5, 3.5, 1.5, 2.5], [1.5, 2.5, 3.5]),
        ([True, False, True, True, False, True], [False, True]),
        ([date(2020, 1, d) for d in (2, 1, 2, 3, 1, 2)], [date(2020, 1, d) for d in (1, 2, 3)]),
        (pl.Series([2, 1, 2, 3, 1, 2], dtype=pl.UInt8), [1, 2, 3]),
        (pl.Series(["b", "a", "b", "c", "a", "b"], dtype=pl.Categorical), ["a", "b", "c"]),
    ],
)
@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("other", ["csv", "parquet"])
def test_ids_of_any_type_meet_across_formats(tmp_path, inside, outside, ending, other):
    table = people(tmp_path, ending, town=inside)
    values = [0.5, 1 / 3, 1.0][: len(outside)]
    right = [1 - value for value in values]
    second = put(tmp_path / f"s.{other}", town=outside, left=values, right=right)
    question = asked(tmp_path, table=table, proportions=second)
    found = check(question)
    assert found.problems == []
    np.testing.assert_allclose(found.shares[:, 0], values)
    bags, _ = hold(question, found)
    assert bags.sizes.tolist() == found.sizes.tolist()


def test_the_bags_column_may_have_another_name_and_other_columns_may_stand_by(tmp_path):
    second = put(
        tmp_path / "s.csv", id=["a", "b", "c"], mayor=["x", "y", "z"], left=[0.5, 0, 1], right=[0.5, 1, 0]
    )
    found = check(asked(tmp_path, proportions=second, key="id", classes=("right", "left")))
    assert (found.problems, found.classes) == ([], ("right", "left"))
    assert found.shares[1].tolist() == [1, 0]


def test_columns_without_information_are_left_out_and_noted(tmp_path):
    people(tmp_path, same=["q"] * 6, one=[1] * 6)
    found = check(asked(tmp_path))
    assert set(found.kinds) == {"age", "job", "owner"}
    assert "column 'same' has the same value in all rows; it is left out" in found.notes
    assert "column 'one' has the same value in all rows; it is left out" in found.notes


def test_many_categories_are_noted(tmp_path):
    n = KEPT + 2
    people(
        tmp_path, town=["a", "b"] * (n // 2), age=range(n), job=[f"j{i}" for i in range(n)], owner=[True] * n
    )
    second = shares(tmp_path, town=["a", "b"], left=[0.0, 1.0], right=[1.0, 0.0])
    notes = check(asked(tmp_path, proportions=second)).notes
    assert any(f"'job' has {n} different texts; the {KEPT} most frequent" in note for note in notes)


# --- what is wrong


def told(pattern: str, folder: Path, **changes: Any) -> None:
    found = problems(folder, **changes)
    assert any(pattern in problem for problem in found), found


def test_everything_that_is_wrong_is_told_at_once(tmp_path):
    people(
        tmp_path,
        age=[30.0, math.inf, None, 1.0, 2.0, 3.0],
        town=["b", "a", "b", "c", None, "e"],
        extra=[[1]] * 6,
    )
    shares(tmp_path, town=["a", "a", "b", "d"], left=[0.5, 0.5, -0.25, 0.5], right=[0.5, 0.5, 1.25, 0.4])
    found = check(asked(tmp_path, drop=("nothing",)))
    text = "\n".join(found.problems)
    for part in (
        "people.parquet has no column 'nothing' (--drop)",
        "column 'extra' has values of type List(Int64)",
        "people.parquet, row 2, bag 'a', column 'age', has inf",
        "people.parquet has 1 rows without a bag, first row 5",
        "shares.csv, row 3, bag 'b', has -0.25 for class 'left': proportions are not negative",
        "shares.csv, row 3, bag 'b', has 1.25 for class 'right': divide percentages by 100",
        "shares.csv, row 1, bag 'a'; shares.csv, row 2, bag 'a': these bags stand in several rows",
        "bag 'c' (1 rows of people.parquet, first row 4); bag 'e'",
        "shares.csv, row 4, bag 'd': no row in people.parquet",
    ):
        assert part in text
    assert len(found.problems) == 9
    with pytest.raises(TableError, match="9 things are wrong; nothing was written\n  people"):
        refuse(found)


def test_only_the_first_cases_of_a_thing_are_named_and_all_are_counted(tmp_path):
    names = [f"t{i}" for i in range(20)]
    people(tmp_path, town=names, age=range(20), job=["x", "y"] * 10, owner=[True, False] * 10)
    shares(tmp_path, town=names, left=[0.7] * 20, right=[0.7] * 20)
    (problem,) = problems(tmp_path)
    assert problem.count("sums to 1.4") == 3
    assert "; and 17 more: mend them, or pass --normalise" in problem


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({"left": [50.0, 0.3, 1.0]}, "row 1, bag 'a', has 50 for class 'left': divide percentages by 100"),
        ({"left": [None, 1 / 3, 1.0]}, "row 1, bag 'a', has nan for class 'left': give a number, or pass"),
        ({"left": ["half", "0.3", "1"]}, "row 1, bag 'a', has 'half' for class 'left': give a number"),
        ({"left": [0.4, 1 / 3, 1.0]}, "row 1, bag 'a', sums to 0.9: mend them, or pass --normalise"),
        ({"left": [0.0, 1 / 3, 1.0], "right": [0.0, 2 / 3, 0]}, "row 1, bag 'a': all classes are zero"),
        ({"left": [0.5] * 3, "right": [0.5] * 3}, "all bags have the same proportions"),
        ({"town": ["a", None, "c"]}, "row 2, has bag None: give a bag's id, of type String"),
        ({"town": ["a", "b", "B"]}, "bag 'c' (1 rows of people.parquet, first row 4): no row in shares.csv"),
    ],
)  # fmt: skip
def test_shares_that_cannot_be_are_told_with_row_and_bag(tmp_path, changes, pattern):
    shares(tmp_path, **changes)
    told(pattern, tmp_path)


def test_a_text_among_numbers_is_told_once(tmp_path):
    shares(tmp_path, left=["half", "0.3333333", "1"])
    assert len(problems(tmp_path)) == 1


def test_counts_are_whole(tmp_path):
    shares(tmp_path, "counts.csv", left=[1.5, 1, 1], right=[0.5, 2, 0])
    (problem,) = problems(tmp_path, proportions=None, counts=tmp_path / "counts.csv")
    assert "row 1, bag 'a', has 1.5 for class 'left'; " in problem
    assert problem.endswith("counts are whole; pass shares by --proportions")


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({"bag": "city"}, "people.parquet has no column 'city' (--bag); it has 'town', 'age'"),
        ({"categorical": ("nope",)}, "has no column 'nope' (--categorical)"),
        ({"shares": ("nope",), "proportions": None}, "has no column 'nope' (--shares)"),
        ({"proportions": None}, "come from 0 places: pass one of --proportions"),
        ({"shares": ("age",)}, "come from 2 places"),
        ({"classes": ("left", "middle")}, "shares.csv has no column 'middle' for that class"),
        ({"classes": ("left",)}, "shares.csv has 1 class (left): give a column for each class"),
        ({"classes": ("left", "left")}, "a column is named twice"),
        ({"key": "id"}, "shares.csv has no column 'id' but 'town', 'left', 'right': rename"),
        ({"proportions": Path("gone.csv")}, "there is no file gone.csv"),
        ({"drop": ("age", "job", "owner")}, "people.parquet has no column for features"),
    ],
)
def test_questions_that_the_tables_cannot_answer_are_told(tmp_path, changes, pattern):
    told(pattern, tmp_path, **changes)


def test_a_table_without_rows_is_told(tmp_path):
    put(tmp_path / "people.parquet", town=pl.Series([], dtype=pl.String), age=pl.Series([], dtype=pl.Float64))
    told("people.parquet has no rows", tmp_path)


def test_columns_without_any_value_are_told(tmp_path):
    people(tmp_path, age=pl.Series([None] * 6, dtype=pl.Float64))
    told("column 'age' has no value in any row: leave it out with --drop age", tmp_path)


def test_numbers_spoilt_by_texts_are_told_and_the_remedies_work(tmp_path):
    table = people(tmp_path, "csv", age=["1", "2", "NA", "4", "5", "6"])
    told("people.csv, row 3, bag 'b', column 'age', has 'NA': most are numbers", tmp_path, table=table)
    found = check(asked(tmp_path, table=table, missing=("NA",)))
    assert (found.problems, found.kinds["age"]) == ([], "number")
    found = check(asked(tmp_path, table=table, categorical=("age",)))
    assert (found.problems, found.kinds["age"]) == ([], "category")


def test_rows_of_a_bag_that_disagree_are_told(tmp_path):
    left = [1 / 3, 0.5, 0.25, 1.0, 0.5, 1 / 3]
    people(tmp_path, left=left, right=[1 - share for share in left])
    question: dict[str, Any] = {"proportions": None, "shares": ("left", "right")}
    told("row 3, bag 'b', has 0.25 for class 'left' where the bag's first row has 0.33", tmp_path, **question)
    people(tmp_path, left=[None, 0.5, None, 1.0, 0.5, None], right=[2 / 3, 0.5, 2 / 3, 0.0, 0.5, 2 / 3])
    told("row 1, bag 'b', has nan for class 'left'", tmp_path, **question)


def test_nothing_is_refused_where_nothing_is_wrong():
    refuse(Found())

"""What `check` finds in a table and in the file with the proportions of its bags."""

import math
import subprocess
import sys
from datetime import date, datetime
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import pytest

pl = pytest.importorskip("polars")

from apportion.bags.problems import Problem  # noqa: E402
from apportion.encoding import MAX_CATEGORIES, kind_of  # noqa: E402
from apportion.errors import DataError  # noqa: E402
from apportion.tables import features  # noqa: E402
from apportion.tables.check import CheckedTable, cast_ids, check  # noqa: E402
from apportion.tables.read import write_table  # noqa: E402
from apportion.tables.spec import BagColumn, TableSpec  # noqa: E402


def put(path: Path, **columns: Any) -> Path:
    write_table(pl.DataFrame(columns).lazy(), path)
    return path


def people(folder: Path, suffix: str = "parquet", **changes: Any) -> Path:
    columns = {"town": ["b", "a", "b", "c", "a", "b"], "age": [30.0, 40.0, None, 60.0, 50.0, 20.0]}
    columns |= {"job": ["x", "y", "x", None, "y", "x"], "owner": [True, False, True, True, False, True]}
    return put(folder / f"people.{suffix}", **(columns | changes))


def shares(folder: Path, name: str = "shares.csv", **changes: Any) -> Path:
    columns = {"town": ["a", "b", "c"], "left": [0.5, 1 / 3, 1.0], "right": [0.5, 2 / 3, 0.0]}
    return put(folder / name, **(columns | changes))


def checked(
    folder: Path,
    *,
    learn: bool = True,
    bag: str = "town",
    file: Any = ...,
    key: str | None = None,
    std: Any = None,
    **changes: Any,
) -> CheckedTable:
    """The check of a table and a file, which are written if they are not there."""
    table = changes.pop("table", folder / "people.parquet")
    if not table.exists():
        people(folder)
    if file is ...:
        file = folder / "shares.csv"
        if not file.exists():
            shares(folder)
    return check(TableSpec(table, (BagColumn(bag, file, key, std),), **changes), learn=learn)


def problems(*args: Any, **changes: Any) -> list[Problem]:
    return checked(*args, **changes).report.problems


def rules(*args: Any, **changes: Any) -> list[str]:
    return [problem.rule for problem in problems(*args, **changes)]


def notes(*args: Any, **changes: Any) -> str:
    report = checked(*args, **changes).report
    assert report.problems == []
    return "\n".join(report.notes)


def crowd(folder: Path, **columns: Any) -> Path:
    """Forty people of two towns."""
    shares(folder, town=["a", "b"], left=[0.25, 0.75], right=[0.75, 0.25])
    age = [20 + i % 7 for i in range(40)]
    return put(folder / "people.csv", town=["a", "b"] * 20, age=age, **columns)


# --- tables without problems


def test_a_sound_table(tmp_path):
    found = checked(tmp_path)
    assert found.report.problems == []
    assert found.classes == ("left", "right")
    assert found.report.kinds == {"age": "number", "job": "category", "owner": "boolean"}
    assert "6 rows in 3 bags of 1 to 3 rows" in found.report.notes[0]
    found.report.raise_problems()


def test_all_forms_of_the_same_proportions(tmp_path):
    left = [1 / 3, 0.5, 1 / 3, 1.0, 0.5, 1 / 3]
    columns = pl.read_parquet(people(tmp_path)).to_dict()
    both = put(tmp_path / "both.parquet", **columns, left=left, right=[1 - share for share in left])
    counts = shares(tmp_path, "counts.csv", left=[1, 1, 1], right=[1, 2, 0])
    larger = shares(tmp_path, "larger.csv", left=[50, 50, 50], right=[50, 100, 0])
    percent = shares(tmp_path, "percent.csv", left=[50.0, 33.333333, 100.0], right=[50.0, 66.666667, 0.0])
    other = shares(tmp_path, "other.csv", mayor=["x", "y", "z"])
    for changes in (
        {"file": counts, "kind": "counts"},
        {"file": larger, "kind": "counts", "normalize": True},
        {"file": percent, "kind": "percent"},
        {"file": other, "classes": ("left", "right")},
        {"file": None, "table": both, "shares": ("left", "right")},
    ):
        found = checked(tmp_path, **changes)
        assert found.report.problems == [], changes
        assert found.classes == ("left", "right")
        assert found.report.kinds == {"age": "number", "job": "category", "owner": "boolean"}


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
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("other", ["csv", "parquet"])
def test_ids_of_any_type_match_across_formats(tmp_path, inside, outside, suffix, other):
    table = people(tmp_path, suffix, town=inside)
    values = [0.5, 1 / 3, 1.0][: len(outside)]
    file = put(tmp_path / f"s.{other}", town=outside, left=values, right=[1 - value for value in values])
    assert problems(tmp_path, table=table, file=file) == []


def test_ids_are_not_rounded():
    assert cast_ids(pl.Series([1.0, 1.5]), pl.Int64()).to_list() == [1, None]
    assert cast_ids(pl.Series(["1", "2.5"]), pl.Int64()).to_list() == [1, None]
    assert cast_ids(pl.Series([0.1, 0.5]), pl.Float32()).to_list() == pytest.approx([0.1, 0.5])
    times = pl.Series([datetime(2020, 1, 2), datetime(2020, 1, 3, 7)])
    assert cast_ids(times, pl.Date()).to_list() == [date(2020, 1, 2), None]
    assert cast_ids(pl.Series(["2020-01-02", "soon"]), pl.Date()).to_list() == [date(2020, 1, 2), None]
    assert cast_ids(pl.Series(["soon"]), pl.Date()).to_list() == [None]


def test_bags_that_the_table_does_not_have_are_ignored_even_if_they_are_wrong(tmp_path):
    file = shares(
        tmp_path, town=["a", "b", "c", "z"], left=["0.5", "0.25", "1", "?"], right=[0.5, 0.75, 0, 9]
    )
    assert "shares.csv has 1 bag ('z'), which people.parquet" in notes(tmp_path, file=file)
    names = [*"abczyxw"]
    many = shares(
        tmp_path, "many.csv", town=names, left=[0.5, 0.25, 1, 0, 0, 0, 0], right=[0.5, 0.75, 0, 9, 9, 9, 9]
    )
    assert "4 bags ('z', 'y', 'x', …)" in notes(tmp_path, file=many)


@pytest.mark.parametrize("padded", ["table", "file", "neither"])
def test_ids_of_texts_that_differ_by_zeros_in_front_are_matched(tmp_path, padded):
    inside, outside = (
        [f"{i:03d}" if padded == each else str(i) for i in (2, 1, 3)] for each in ("table", "file")
    )
    table = people(tmp_path, "csv", town=[inside[0], inside[1], inside[0], inside[2], inside[1], inside[0]])
    file = shares(tmp_path, town=[outside[1], outside[0], outside[2]])
    found = checked(tmp_path, table=table, file=file)
    assert found.report.problems == []
    assert found.aligned["town"].bags == sorted(inside)
    assert found.aligned["town"].values[:, 0].tolist() == pytest.approx([0.5, 1 / 3, 1.0])
    assert any("zeros" in note for note in found.report.notes) == (padded != "neither")


def test_ids_that_are_the_same_number_are_not_matched(tmp_path):
    table = people(tmp_path, "csv", town=["1", "01", "1", "3", "01", "1"])
    file = shares(tmp_path, town=["001", "02", "3"])
    assert "spelling" in rules(tmp_path, table=table, file=file)
    file = shares(tmp_path, town=["1x", "01", "001"])
    assert "missing bag" in rules(tmp_path, table=people(tmp_path, "csv", town=[*"121211"]), file=file)


def test_columns_are_checked_although_ids_do_not_match(tmp_path):
    towns = [f"T{i}" for i in range(8)]
    table = put(tmp_path / "eight.csv", town=towns * 9, age=[20 + i % 7 for i in range(72)])
    left = [3, 2, 1, 4, 7, 6, 5, 8]
    columns = {"left": left, "right": [9 - n for n in left], "all": [9] * 8}
    columns["turnout"] = [71.5, 62.5, 77.0, 81.5, 66.5, 59.5, 73.5, 70.5]
    for names in (towns, [name.lower() for name in towns], [f"x{i}" for i in range(8)]):
        file = put(tmp_path / "counts.csv", town=names, **columns)
        found = problems(tmp_path, table=table, file=file, kind="counts")
        strays = {problem.class_name for problem in found if problem.rule == "stray column"}
        assert strays == ({"all", "turnout"} if names[0] != "x0" else set())
        assert [problem.rule for problem in found].count("spelling") == (names[0] == "t0")
        percent = {"left": [100 * n / 9 for n in left], "right": [100 - 100 * n / 9 for n in left]}
        file = put(tmp_path / "shares.csv", town=names, **percent)
        assert "kind" in rules(tmp_path, table=table, file=file)
        file = put(tmp_path / "shares.csv", town=names, **percent, all=[100.0] * 8)
        found = problems(tmp_path, table=table, file=file, kind="percent")
        assert [problem.class_name for problem in found if problem.rule == "stray column"] == ["all"]


# --- problems


def test_all_problems_are_reported_at_once(tmp_path):
    people(
        tmp_path,
        age=[30.0, math.inf, None, 1.0, 2.0, 3.0],
        town=["b", "a", "b", "c", None, "e"],
        extra=[[1]] * 6,
    )
    shares(tmp_path, town=["a", "a", "b", "d"], left=[0.5, 0.5, -0.25, 0.5], right=[0.5, 0.5, 1.25, 0.4])
    found = checked(tmp_path)
    assert {problem.rule for problem in found.report.problems} >= {
        "type",
        "infinite",
        "no bag",
        "repeated bag",
        "missing bag",
    }
    assert {problem.bag for problem in found.report.problems} >= {"a", "b", "c", "e"}
    with pytest.raises(DataError) as caught:
        found.report.raise_problems()
    assert list(caught.value.problems) == found.report.problems
    for part in (
        "row 2, bag 'a', column 'age', has inf",
        "1 rows without a bag, first row 5",
        "shares.csv: bag 'c'",
    ):
        assert part in str(caught.value)


def test_rows_without_a_bag_are_counted_as_rows_whatever_they_weigh(tmp_path):
    people(tmp_path, town=["b", "a", "b", "c", None, None], people=[1.0, 1.0, 1.0, 1.0, 0.25, 0.25])
    shares(tmp_path, left=[1, 1, 1], right=[0, 1, 0])
    report = checked(tmp_path, kind="counts", weight="people").report
    assert any("2 rows without a bag, first row 5" in str(problem) for problem in report.problems)


def test_the_first_three_cases_are_named_and_all_are_counted(tmp_path):
    names = [f"t{i}" for i in range(20)]
    people(tmp_path, town=names, age=range(20), job=["x", "y"] * 10, owner=[True, False] * 10)
    shares(tmp_path, town=names, left=[0.7 + i / 100 for i in range(20)], right=[0.7] * 20)
    report = checked(tmp_path).report
    assert len(report.problems) == 3
    (group,) = report.groups.values()
    assert group.n_cases == 20
    assert "and 17 more" in "\n".join(group.lines())


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"left": ["half", "0.3", "1"]}, "number"),
        ({"town": ["a", None, "c"]}, "no bag"),
        ({"": [0, 1, 2]}, "column"),
        ({"Unnamed: 0": ["x", "y", "z"]}, "column"),
        ({"left": [0.5] * 3, "right": [0.5] * 3}, "identical bags"),
        ({"left": [0.4, 1 / 3, 1.0]}, "sum"),
        ({"town": ["a", "b", "B"]}, "missing bag"),
        ({"total": [1.0, 1.0, 1.0]}, "stray column"),
        ({"town": ["x", "y", "z"]}, "no common bag"),
    ],
)
def test_problems_with_proportions(tmp_path, changes, rule):
    shares(tmp_path, **changes)
    assert rule in rules(tmp_path)


def test_no_hint_recommends_an_option_that_was_passed(tmp_path):
    shares(tmp_path, left=[0.4, 0.1, 1.0], right=[0.1, 0.1, 0.8])
    file = shares(tmp_path, "gaps.csv", left=[0.4, None, 1.0])
    for changes in (
        {"normalize": True},
        {"std": 0.01},
        {"missing_bags": "allow"},
        {"missing_cells": "impute", "file": file},
    ):
        report = checked(tmp_path, **changes).report
        assert report.groups
        (option,) = (name for name in changes if name != "file")
        assert not any(f"--{option.replace('_', '-')}" in hint for hint in report.groups)


@pytest.mark.parametrize(
    ("texts", "hint"),
    [
        (["0,5", "35%", "1"], "write 0,35 or 35% as 0.35"),
        (["0.3-0.5", "0.2", "1"], "--std"),
        (["half", "0.2", "1"], "--classes"),
    ],
)
def test_texts_among_shares_have_a_hint_that_fits(tmp_path, texts, hint):
    shares(tmp_path, left=texts)
    (problem,) = [each for each in problems(tmp_path) if each.rule == "number"][:1]
    assert hint in problem.text("cli")


@pytest.mark.parametrize("many", ["8,000", "1,234,567", "8 000"])
def test_counts_with_thousands_separators(tmp_path, many):
    file = shares(tmp_path, "counts.csv", left=[many, "900", "1"], right=[1, 2, 0])
    (problem,) = problems(tmp_path, file=file, kind="counts", normalize=True)
    assert (problem.rule, problem.hint) == ("number", "write 12,345 as 12345")


@pytest.mark.parametrize("separator", [";", ","])
def test_counts_with_thousands_points(tmp_path, separator):
    text = "town;left;right\na;1.837;2.068\nb;1.250;2\nc;1;0\n".replace(";", separator)
    (tmp_path / "counts.csv").write_text(text)
    assert rules(tmp_path, file=tmp_path / "counts.csv", kind="counts")[0] == "thousands"
    (tmp_path / "counts.csv").write_text("town,left,right\na,1.000,1.000\nb,1.000,2.000\nc,1.000,0.000\n")
    assert problems(tmp_path, file=tmp_path / "counts.csv", kind="counts") == []


@pytest.mark.parametrize("gap", [None, math.nan, 0.25])
def test_rows_of_a_bag_that_disagree(tmp_path, gap):
    people(tmp_path, left=[1 / 3, 0.5, gap, 1.0, 0.5, 1 / 3], right=[2 / 3, 0.5, 2 / 3, 0.0, 0.5, 2 / 3])
    found = problems(tmp_path, file=None, shares=("left", "right"))
    assert found[0].rule == "rows disagree"


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"bag": "twon"}, ["'twon'", "'town'"]),
        ({"drop": ("ages",)}, ["'ages'", "'age'"]),
        ({"categorical": ("nope",)}, ["'nope'"]),
        ({"known_labels": "nope"}, ["'nope'"]),
        ({"image": "nope"}, ["'nope'"]),
        ({"file": None, "shares": ("nope",)}, ["'nope'"]),
        ({"classes": ("left", "rigth")}, ["'rigth'", "'right'"]),
        ({"key": "town_id"}, ["'town_id'", "'town'"]),
        ({"keep": ("age",)}, ["'age'"]),
        ({"keep": ("town",), "drop": ("town",)}, ["'town'"]),
        ({"file": Path("gone.csv")}, ["gone.csv"]),
        ({"drop": ("age", "job", "owner")}, ["people.parquet"]),
    ],
)
def test_options_that_do_not_fit_the_files(tmp_path, changes, names):
    found = problems(tmp_path, **changes)
    assert all(name in str(found) for name in names), found


def test_a_table_without_rows(tmp_path):
    put(tmp_path / "people.parquet", town=pl.Series([], dtype=pl.String), age=pl.Series([], dtype=pl.Float64))
    assert rules(tmp_path) == ["no rows"]
    (tmp_path / "people.csv").write_text("town,age,job\n")
    assert rules(tmp_path, table=tmp_path / "people.csv") == ["no rows"]


def test_a_table_in_which_no_row_has_a_bag(tmp_path):
    (tmp_path / "people.csv").write_text("town,age,job\n,3,x\n")
    assert "no bag" in rules(tmp_path, table=tmp_path / "people.csv")


def test_known_labels_are_classes(tmp_path):
    people(tmp_path, vote=["left", None, "middle", None, None, "right"])
    (problem,) = problems(tmp_path, known_labels="vote")
    assert problem.rule == "known label"
    assert "row 3" in problem.message
    people(tmp_path, vote=["left", None, None, None, None, "right"])
    found = checked(tmp_path, known_labels="vote")
    assert "vote" not in found.report.kinds
    assert found.report.problems == []


# --- features


def test_columns_are_taken_for_what_the_encoder_takes_them_for():
    numbers = [pl.Int8, pl.UInt64, pl.Float32, pl.Decimal(10, 2)]
    times = [pl.Date, pl.Time, pl.Duration, pl.Datetime("ns"), pl.Datetime("us", "UTC")]
    texts = [pl.String, pl.Categorical, pl.Enum(["a"]), pl.Binary]
    nested = [pl.List(pl.Int8), pl.Struct({"a": pl.Int8})]
    for dtype in [*numbers, *times, *texts, *nested, pl.Boolean, pl.Null, pl.Object]:
        empty = nw.from_native(pl.DataFrame(schema={"a": dtype}))
        assert features.polars_kind(pl.DataFrame(schema={"a": dtype}).schema["a"]) == kind_of(
            empty.schema["a"]
        )
    assert features.MAX_CATEGORIES == MAX_CATEGORIES


def test_a_check_does_not_import_torch_or_scikit_learn():
    program = (
        "import sys, apportion.tables.check; print({'torch', 'sklearn', 'pandas', 'PIL'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_columns_without_any_value_are_a_problem(tmp_path):
    empty = pl.Series([None] * 6, dtype=pl.Float64)
    people(tmp_path, **dict.fromkeys(("age", "a,b", "c", "d"), empty))
    (group,) = checked(tmp_path).report.groups.values()
    assert group.n_cases == 4
    assert group.hint.endswith("""--drop 'age,"a,b",c,d'""")


def test_constant_columns_are_left_out_unless_all_are(tmp_path):
    people(tmp_path, same=["q"] * 6, one=[1] * 6)
    found = checked(tmp_path)
    assert set(found.report.kinds) == {"age", "job", "owner"}
    assert any("'same', 'one'" in note for note in found.report.notes)
    people(tmp_path, age=[1] * 6, job=["q"] * 6, owner=[True] * 6)
    assert rules(tmp_path) == ["constant features"]


def test_dates_alone_are_a_problem(tmp_path):
    days = [date(2020, 1, d) for d in range(1, 7)]
    put(tmp_path / "people.parquet", town=["b", "a", "b", "c", "a", "b"], day=days)
    assert rules(tmp_path) == ["dates only"]


@pytest.mark.parametrize("gap", ["NA", "nan", "NAN", "NULL"])
def test_texts_among_numbers_and_the_hint_works(tmp_path, gap):
    table = people(tmp_path, "csv", age=["1", "2", gap, "4", "5", "6"])
    (problem,) = problems(tmp_path, table=table)
    assert problem.rule == "text among numbers"
    assert "row 3" in problem.message
    assert f"--missing={gap}" in problem.text("cli")
    for changes, kind in (({"missing": (gap,)}, "number"), ({"categorical": ("age",)}, "category")):
        found = checked(tmp_path, table=table, **changes)
        assert (found.report.problems, found.report.kinds["age"]) == ([], kind)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("{},5", "1,5 as 1.5"),
        ("-1.234,{}", "1,5 as 1.5"),
        ("{},345", "12,345 as 12345"),
        ("1 2{}", "12,345 as 12345"),
        ("${}00", "$1200 as 1200"),
        ("{}00,50 €", "$1200 as 1200"),
        ("USD {},000", "$1200 as 1200"),
        ("{}%", "35% as 35"),
        (" {}", "without spaces"),
        ("{} Dec 2020", "2020-12-25"),
        ("December {}, 2020", "2020-12-25"),
        ("12/{}/2020", "2020-12-25"),
    ],
)
def test_texts_that_look_like_numbers_or_dates_are_noted(tmp_path, suffix, text, hint):
    table = crowd(tmp_path, odd=[text.format(10 + i % 18) for i in range(38)] + ["none of these"] * 2)
    if suffix == "parquet":
        frame = pl.read_csv(table, schema_overrides={"town": pl.String})
        frame.write_parquet(table := tmp_path / "people.parquet")
    (note,) = (line for line in notes(tmp_path, table=table).splitlines() if "'odd'" in line)
    assert hint in note
    assert "odd" not in notes(tmp_path, table=table, categorical=("odd",))


def test_words_and_codes_do_not_look_like_numbers(tmp_path):
    words = {"word": ["may", "june"] * 20, "code": [f"A{i}" for i in range(40)], "half": ["35%", "low"] * 20}
    said = notes(tmp_path, table=crowd(tmp_path, **words))
    assert "look like" not in said
    assert f"40 different texts; the {MAX_CATEGORIES} most frequent" in said


def thousands(folder: Path, head: str, *rows: str, **changes: Any) -> tuple[list[str], str]:
    """Rules and notes of a table with semicolons."""
    lines = [f"town;{head}", *(f"{town};{row}" for town, row in zip("aabb", rows, strict=True)), ""]
    (folder / "people.csv").write_text("\n".join(lines))
    shares(folder, town=["a", "b"], left=[0.25, 0.75], right=[0.75, 0.25])
    report = checked(folder, table=folder / "people.csv", **changes).report
    return [problem.rule for problem in report.problems], "\n".join(report.notes)


def test_thousands_points_are_never_taken_for_decimal_points(tmp_path):
    for values in (
        ("2.340", "2.332", "921", "1.000"),
        ("1.002.341", "2.332.001", "1.000.921", "17"),
        ("1.002.341", "2.332.001", "1.000.921", "1.002.341"),
    ):
        assert thousands(tmp_path, "salary", *values)[0] == ["thousands"]
        assert thousands(tmp_path, "salary", *values, categorical=("salary",))[0] == []
    both = ("2.341;-0,13", "2.332;1,5", "2.001;0,25", "1.001;2")  # decimal commas next to it
    assert thousands(tmp_path, "salary;score", *both)[0] == ["thousands"]


def test_three_digits_alone_are_noted_and_decimal_points_are_not(tmp_path):
    found, said = thousands(tmp_path, "wage", "2.341", "2.332", "921", "17")
    assert found == []
    assert "'2.341' is read with a decimal point" in said
    for values in (
        ("2.34", "2.332", "921", "1"),
        ("0.125", "2", "3", "4"),
        ("2.341", "2", "3", "4000"),
        ("2.000", "3.000", "17", "5"),
        ("1.250", "2.500", "0", "3.750"),
    ):
        found, said = thousands(tmp_path, "wage", *values)
        assert (found, "point" in said) == ([], False)
    assert thousands(tmp_path, "kg", "2.107", "1.350", "NA", "3.125", missing=("NA",))[0] == []


def test_codes_and_dates_that_were_read_as_numbers_are_noted(tmp_path):
    table = crowd(tmp_path, zip=[f"0{i:03d}" for i in range(40)], day=[20200101 + i % 28 for i in range(40)])
    said = notes(tmp_path, table=table)
    assert "--categorical zip" in said
    assert "'day': numbers such as 20200101 may be dates" in said


def test_nameless_columns_are_left_out(tmp_path):
    found = checked(tmp_path, table=crowd(tmp_path, **{"": range(40)}))
    assert list(found.report.kinds) == ["age"]
    assert any("without a name" in note for note in found.report.notes)


# --- features that give too much away


def test_features_that_give_a_class_or_a_bag_away_are_noted(tmp_path):
    vote = ["left", "Right ", None, "left"] * 10
    table = crowd(
        tmp_path,
        Left=[0.25, 0.75] * 20,
        vote=vote,
        wing=["left", "middle"] * 20,
        gap=[None, 1.5] * 20,
        name=["Ayton", "Beeton"] * 20,
        id=np.random.default_rng(0).permutation(40),
        wage=np.arange(40) + 0.5,
    )
    said = notes(tmp_path, table=table)
    for option in ("--drop Left if", "--drop vote if", "--drop wing,gap,name if", "--drop id if"):
        assert option in said
    assert "'wage'" not in said
    assert "Left" not in notes(tmp_path, table=table, drop=("Left",))


def test_columns_whose_values_occur_in_few_bags_are_noted(tmp_path):
    random = np.random.default_rng(0)
    town = random.integers(0, 40, 4000)
    columns = {
        "station": 100 * town + random.integers(0, 10, 4000),
        "postcode": 52_000 + 10 * (town // 4) + random.integers(0, 5, 4000),
        "ward": [f"w{i}" for i in 3 * town + random.integers(0, 3, 4000)],
        "age": random.integers(18, 90, 4000),
        "rent": (random.normal(700, 20, 4000) + town).round(),
        "income": random.lognormal(size=4000),
        "farm": town + random.normal(0, 0.1, 4000),
        "job": [f"j{i}" for i in random.integers(0, 30, 4000)],
    }
    table = put(tmp_path / "people.csv", town=[f"t{i:02d}" for i in town], **columns)
    left = random.uniform(0.2, 0.8, 40)
    file = shares(tmp_path, town=[f"t{i:02d}" for i in range(40)], left=left, right=1 - left)
    said = notes(tmp_path, table=table, file=file)
    assert "--drop station,postcode,ward if" in said
    assert "--categorical station,postcode for" in said
    assert "'rent'" not in said
    assert "few bags" not in notes(tmp_path, table=table, file=file, drop=("station", "postcode", "ward"))


def test_bags_of_one_row_are_not_noted_as_constant(tmp_path):
    put(tmp_path / "people.csv", town=["a", "b", "c"], age=[1.5, 2.5, 4.5])
    assert "same value" not in notes(tmp_path, table=tmp_path / "people.csv")


def test_what_the_first_rows_suggest_is_checked_in_all_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(features, "PROBED_ROWS", 34)
    monkeypatch.setattr(features, "COLUMNS_AT_ONCE", 1)
    late = {"size": [1, 2] * 19 + [1, 1], "id": [*range(39), 3], "real": list(range(1, 41))}
    said = notes(tmp_path, table=crowd(tmp_path, **late))
    assert "'size'" not in said
    assert "'id'" not in said
    assert "'real'" in said


def test_bags_that_teach_little_are_noted(tmp_path):
    towns = [f"t{i:02d}" for i in range(20)]
    table = put(tmp_path / "people.csv", town=towns * 30, age=[20 + i % 7 for i in range(600)])
    alike = shares(tmp_path, town=towns, left=[14, 15] * 10, right=[16, 15] * 10)
    assert "differ less" in notes(tmp_path, table=table, file=alike, kind="counts")
    assert "differ" not in notes(tmp_path, table=table, file=alike, kind="counts", std=1.0)
    varied = shares(tmp_path, town=towns, left=[3, 28] * 10, right=[27, 2] * 10)
    assert "differ" not in notes(tmp_path, table=table, file=varied, kind="counts")
    three = shares(tmp_path, "three.csv", left=[1, 1, 1], right=[1, 2, 0])
    assert "few" in notes(tmp_path, table=people(tmp_path), file=three, kind="counts")


# --- several groupings


def test_groupings_are_checked_together(tmp_path):
    table = people(tmp_path, "csv", age=[1, 2, 1, 2, 1, 2])
    ages = put(tmp_path / "ages.csv", age=[1, 2], left=[0.5, 2 / 3], right=[0.5, 1 / 3])
    spec = TableSpec(table, (BagColumn("town", shares(tmp_path)), BagColumn("age", ages)))
    found = check(spec)
    assert found.report.problems == []
    assert "age" not in found.report.kinds
    assert len(found.report.notes) >= 2
    assert set(found.proportions) == {"town", "age"}
    kept = check(TableSpec(table, spec.bags, keep=("age",)))
    assert kept.report.kinds["age"] == "category"
    put(tmp_path / "ages.csv", age=[1, 2], left=[0.5, 0.7], rest=[0.5, 0.3])
    assert [problem.rule for problem in check(spec).report.problems] == ["classes"]


def test_hostile_names_do_not_reach_the_terminal_as_they_are(tmp_path):
    evil = "\x1b[2J\x1b]0;owned\x07"
    table = people(tmp_path, **{evil: [None] * 6, f"x{evil}": [[1]] * 6})
    with pytest.raises(DataError) as caught:
        checked(tmp_path, table=table).report.raise_problems()
    assert "\x1b" not in str(caught.value)
    assert "\x07" not in str(caught.value)

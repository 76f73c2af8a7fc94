"""Tables: transforms as scikit-learn has them, proportions in every form, everything wrong told at once."""

import json
import math
import runpy
import subprocess
import sys
import time
import warnings
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pl = pytest.importorskip("polars")
from sklearn.impute import SimpleImputer  # noqa: E402
from sklearn.preprocessing import OneHotEncoder, StandardScaler  # noqa: E402

from apportion.errors import DataError  # noqa: E402
from apportion.tables import reading, texts  # noqa: E402
from apportion.tables.asking import Asked, Found  # noqa: E402
from apportion.tables.checking import check, refuse  # noqa: E402
from apportion.tables.columns import KEPT, Column, from_values, to_values  # noqa: E402
from apportion.tables.holding import hold, hold_parts  # noqa: E402
from apportion.tables.reading import open_table, save_table  # noqa: E402
from apportion.tables.shares import _as_ids  # noqa: E402
from apportion.tables.transforms import features_of, fit_column, read_as, spoilt  # noqa: E402

RANDOM = np.random.default_rng(0)


def features(column: Column, *values: Any) -> list[list[float]]:
    return features_of([column], pl.DataFrame({column.name: list(values)})).tolist()


# --- transforms


def test_numbers_are_imputed_flagged_and_standardized_as_scikit_learn_does():
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


def test_missing_categories_have_a_flag_where_training_had_some_and_are_unknown_where_not():
    flagged = fit_column(pl.Series("a", ["x", None, "y"]), "category")
    assert flagged.features == ["a = x", "a = y", "a = other", "a is missing"]
    assert features(flagged, "y", None, "z") == [[0, 1, 0, 0], [0, 0, 0, 1], [0.5, 0.5, 0, 0]]
    whole = fit_column(pl.Series("a", ["x", "y"]), "category")
    assert features(whole, "x", None) == [[1, 0, 0], [0.5, 0.5, 0]]


def test_an_unknown_category_is_other_where_training_had_others():
    many = fit_column(pl.Series("a", [str(i) for i in range(10, 60)]), "category")
    assert features(many, "z") == features(many, "59") == [[0] * KEPT + [1]]
    never = fit_column(pl.Series("a", [None, None], dtype=pl.String), "category")
    assert features(never, "z", None) == [[1, 0], [0, 1]]


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


def test_dates_are_days_standardized_and_a_place_in_the_year():
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
    with pytest.raises(DataError, match=pattern):
        from_values([to_values([Column("a", "category", categories=("x",))])[0] | change])


def test_a_list_of_columns_has_some_and_each_once():
    with pytest.raises(DataError, match="at least one"):
        from_values([])
    with pytest.raises(DataError, match="'a' stands twice"):
        from_values(to_values([Column("a", "number")] * 2))


def test_transforms_know_nothing_of_the_rows_that_are_held_out(tmp_path):
    bag, value = [i // 4 for i in range(20)], [float(i) for i in range(20)]
    value[3::4] = [1e6] * 5  # rows of all bags
    table = pl.DataFrame({"bag": bag, "a": value, "b": [None if i < 4 else f"c{i % 4}" for i in range(20)]})
    table.write_parquet(tmp_path / "people.parquet")
    shares = pl.DataFrame({"bag": range(5), "no": [0.0, 0.25, 0.5, 0.75, 1.0]})
    shares.with_columns(yes=1 - pl.col("no")).write_csv(tmp_path / "shares.csv")
    question = Asked(tmp_path / "people.parquet", "bag", tmp_path / "shares.csv")
    (learned, held), columns = hold_parts(
        [question],
        [check(question)],
        lambda groupings: [groupings[0].select(torch.tensor(which)) for which in ([3, 1], [0, 2, 4])],
    )
    rows = [12, 13, 14, 15, 4, 5, 6, 7]
    assert learned.source.tolist() == rows
    assert columns == (
        fit_column(pl.Series("a", [value[i] for i in rows]), "number"),
        fit_column(table["b"][rows], "category"),
    )
    assert not columns[1].flag  # values are missing in held-out rows alone
    for part in (learned, held):
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
        ("t.xlsx", "", "does not end in .csv, .tsv, .txt, .parquet"),
        ("none.csv", None, "there is no file"),
        ("t.csv", "", "cannot be read as csv"),
        ("t.parquet", "no parquet at all", "cannot be read as parquet"),
        ("t.csv", "a,b\n1\n2,3,4\n", "cannot be read as csv"),
    ],
)
def test_files_that_are_no_tables_are_refused(tmp_path, name, text, pattern):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=pattern):
        open_table(tmp_path / name)


EUROPE = "town;age;job\nb;1,5;x\na;-2;y, z\nb;;x\nc;3,25;\na;1,5;y, z\nb;0,5;x\n"


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("separator", [";", "\t"])
def test_semicolons_and_tabs_with_decimal_commas_are_read_as_commas_with_points_are(
    tmp_path, separator, mark
):
    (tmp_path / "people.csv").write_text(mark + EUROPE.replace(";", separator), encoding="utf-8")
    (tmp_path / "s.csv").write_text("town;left;right\na;0,5;0,5\nb;0,25;0,75\nc;1;0\n")
    question = asked(tmp_path, table=tmp_path / "people.csv", proportions=tmp_path / "s.csv")
    found = check(question)
    assert found.problems == []
    assert found.kinds == {"age": "number", "job": "category"}
    assert found.shares.tolist() == [[0.5, 0.5], [0.25, 0.75], [1, 0]]
    job, age = ["x", "y, z", "x", None, "y, z", "x"], [1.5, -2, None, 3.25, 1.5, 0.5]
    plain = put(tmp_path / "plain.csv", town=["b", "a", "b", "c", "a", "b"], age=age, job=job)
    same = asked(tmp_path, table=plain, proportions=tmp_path / "s.csv")
    np.testing.assert_array_equal(hold(question, found)[0].x, hold(same, check(same))[0].x)


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ("a;b\n1.5;2\n", {"a": pl.Float64, "b": pl.Int64}),  # points, though semicolons
        ("a;b\n1,5;2.5\n", {"a": pl.String, "b": pl.Float64}),  # both: commas are told of as texts
        ('"a;b",c\n1,2\n', {"a;b": pl.Int64, "c": pl.Int64}),
        ('"a,b";c\n1;2\n', {"a,b": pl.Int64, "c": pl.Int64}),
        ("a;b,c\n1;2,3\n", {"a;b": pl.String, "c": pl.Int64}),  # a comma in the header is what separates
    ],
)
def test_the_header_says_what_separates(tmp_path, text, schema):
    (tmp_path / "t.csv").write_text(text)
    assert dict(open_table(tmp_path / "t.csv").collect_schema()) == schema


@pytest.mark.parametrize("texts", [(), None])
@pytest.mark.parametrize(
    ("text", "encoding", "what"),
    [
        ("town,age\nKöln,1\n", "latin-1", "is not UTF-8 but Latin-1 or Windows-1252 perhaps"),
        ("größe,age\na,1\n", "cp1252", "is not UTF-8 but Latin-1 or Windows-1252 perhaps"),
        ("town,age\nKöln,1\n", "utf-16", "is not UTF-8 but UTF-16;"),
        ("town,age\nKöln,1\n", "utf-16-le", "is not UTF-8 but UTF-16-LE;"),
    ],
)
def test_other_encodings_are_named_and_the_remedy_works(tmp_path, text, encoding, what, texts):
    (tmp_path / "t.csv").write_bytes(text.encode(encoding))
    with pytest.raises(DataError, match=what) as caught:
        open_table(tmp_path / "t.csv", texts=texts)
    program = str(caught.value).split('python -c "')[1].removesuffix('"')
    subprocess.run([sys.executable, "-c", program], check=True)
    assert open_table(tmp_path / "t-utf8.csv").collect().columns[1] == "age"


def as_polars(path: Path, missing: tuple[str, ...] = ()) -> pl.DataFrame:
    """Dates tried on every text of the file, which takes sixty times as long."""
    return pl.read_csv(path, infer_schema_length=None, try_parse_dates=True, null_values=list(missing))


DATES = ["2020-01-01", "2021-12-31"]
TIMES = ["2020-01-01T10:00:00", "2020-01-01 23:59:59.5"]
POOLS = [
    DATES, TIMES, ["2020-01-01T10:00:00Z"], ["10:00:00", "23:59"], ["31/12/2020", "1/2/2020"], ["31.12.2020"],
    ["2020", "1999"], ["2020-01"], ["2020-02-30"], ["a", "Jan 2020", "x, y"], ["1.5", "2"], ["true", "false"],
    ["nan", "NA"], ["", ""], [" 2020-01-01"], ["-2020-01-01"], ["0001-01-01", "9999-12-31"],
]  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_dates_are_those_of_polars_whatever_stands_before_and_after_them(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(texts, "FIRST", 3)
    random, path = np.random.default_rng(seed), tmp_path / "t.csv"
    for _ in range(40):
        columns = []
        for _ in range(4):
            pools = [POOLS[i] for i in random.integers(0, len(POOLS), random.integers(1, 3))]
            values = [str(random.choice(pools[random.integers(len(pools))])) for _ in range(9)]
            quoted = random.random() < 0.3
            columns.append([f'"{v}"' if quoted or "," in v else v for v in sorted(values)])
        rows = [",".join(row) for row in zip(*columns, strict=True)]
        path.write_text("\n".join(["a,b,c,d", *rows, "x,x,x,x" if random.random() < 0.1 else ",,,1", ""]))
        missing = ("NA",) if random.random() < 0.5 else ()
        try:
            expected = as_polars(path, missing)
        except pl.exceptions.PolarsError:
            with pytest.raises(DataError, match="has dates or times that are written in several ways"):
                open_table(path, missing=missing)
            continue
        found = open_table(path, missing=missing).collect()
        assert found.schema == expected.schema
        assert found.equals(expected)


def test_texts_are_not_tried_as_dates_one_by_one(tmp_path):
    random, path = np.random.default_rng(0), tmp_path / "t.csv"
    columns = {f"t{i}": random.choice(["red", "green", "x y"], 20_000) for i in range(8)}
    put(path, **columns, day=[date(2020, 1, 1)] * 20_000)
    started = time.process_time()
    pl.read_csv(path, infer_schema_length=None)
    alone = time.process_time() - started
    started = time.process_time()
    assert open_table(path).collect().schema["day"] == pl.Date
    assert time.process_time() - started < 6 * alone + 0.1  # as dates each they take twenty times as long


def test_types_of_a_large_file_are_found_once_and_anew_where_it_has_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "SMALL", 0)
    path = tmp_path / "t.csv"
    for text, kind in (("a,b\n1,2\n", pl.Int64), ("a,b\n1.25,2\n", pl.Float64)):
        path.write_text(text)
        for _ in range(2):
            assert open_table(path).collect().schema["a"] == kind
    texts._remembered.cache_clear()
    open_table(path)
    open_table(path)
    assert texts._remembered.cache_info()[:2] == (1, 1)


def test_line_ends_of_old_macs_are_read(tmp_path):
    (tmp_path / "t.csv").write_bytes(b'a;b\r1,5;"x\n"\r2,5;y\r\r')
    assert open_table(tmp_path / "t.csv").collect().rows() == [(1.5, "x\n"), (2.5, "y")]


def test_a_comma_in_a_header_of_semicolons_separates_nothing(tmp_path):
    text = "town;Labour;People's Party, New;c\na;0,25;0,75;0\nb;0,5;0,5;0\n"
    (tmp_path / "t.csv").write_text(text)
    found = open_table(tmp_path / "t.csv").collect()
    assert found.columns == ["town", "Labour", "People's Party, New", "c"]
    assert found.row(0) == ("a", 0.25, 0.75, 0)
    (tmp_path / "t.csv").write_text("a;b,c\n1,2\n1\n")  # lines too short for either
    assert open_table(tmp_path / "t.csv").collect().columns == ["a;b", "c"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty CSV; it has no header; write it anew"),
        ('a,b\n1,"2\n3,4\n', "close the double quote that is open there"),
        ("# of 2026\na,b\n1,2\n", "has 2 fields where the header has 1; delete the first line, if it is no"),
    ],
)
def test_what_a_reader_cannot_read_has_a_remedy(tmp_path, text, words):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=words):
        open_table(tmp_path / "t.csv")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_file_that_ends_within_a_row_is_refused(tmp_path, end):
    path, whole = tmp_path / "t.csv", end.join(['a,"b, c",d', '1,"2, 3",4', '5,"6, 7",8'])
    for text in (
        whole,
        whole + end,
        whole[:-2] + end,
        whole + end + ",," + end,
    ):  # last fields may be left out
        path.write_text(text, newline="")
        assert open_table(path).collect()["a"].to_list() == [1, 5]
    path.write_text(whole[:-2], newline="")
    with pytest.raises(DataError, match="ends within a row: the last line has 2 fields, the header 3; copy"):
        open_table(path)
    for text in (["a,b,", "1,2", "5,6"], ["a,b,c", "1,2,3", "5,6,7", ","], ["a,b", "1,2", "5,6", "\x1a"]):
        path.write_text(end.join(text), newline="")
        open_table(path)
    path.write_text(end.join(["a,b,c", '1,"2', '3",4']), newline="")  # a text of two lines
    assert open_table(path).collect().row(0)[::2] == (1, 4)
    path.write_text(end.join(["a,b", f"1,{'x' * 200_000}"]), newline="")  # too long for Python's reader
    assert open_table(path).collect().height == 1


def test_a_row_with_too_many_fields_is_named(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n1,5,2\n")
    with pytest.raises(
        DataError, match="row 2, has 3 fields where the header has 2; put values that have ','"
    ):
        open_table(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text("sep=;\na;b\n1;2\n")
    with pytest.raises(DataError, match="begins with a line 'sep=;' for Excel; delete that line"):
        open_table(tmp_path / "t.csv")


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_header_that_stands_twice_is_refused_and_one_that_only_looks_so_is_not(tmp_path, mark):
    (tmp_path / "t.csv").write_text(f'{mark}"b";c;b\n1;2;3\n', encoding="utf-8")
    for kept in ((), None):
        with pytest.raises(DataError, match="has 2 columns 'b'; name each once"):
            open_table(tmp_path / "t.csv", texts=kept)
    (tmp_path / "t.csv").write_text(f"{mark}b,b_duplicated_0\n1,2\n", encoding="utf-8")
    assert open_table(tmp_path / "t.csv").collect().columns == ["b", "b_duplicated_0"]


def test_bars_between_fields_are_read(tmp_path):
    (tmp_path / "t.csv").write_text("town|left, right|a\nx|no, yes|1,5\n".replace(", ", " "))
    assert open_table(tmp_path / "t.csv").collect().rows() == [("x", "no yes", 1.5)]


def test_without_polars_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(DataError, match=r"read with polars; pip install 'apportion\[tables\]'"):
        runpy.run_path(str(texts.__file__))


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
    found = check(asked(tmp_path, **question, normalize=True))
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


def notes_of(folder: Path, **changes: Any) -> str:
    found = check(asked(folder, **changes))
    assert found.problems == []
    return "\n".join(found.notes)


def crowd(folder: Path, **columns: Any) -> Path:
    """Forty people of two towns."""
    shares(folder, town=["a", "b"], left=[0.25, 0.75], right=[0.75, 0.25])
    age = [20 + i % 7 for i in range(40)]
    return put(folder / "people.csv", town=["a", "b"] * 20, age=age, **columns)


def test_a_feature_named_as_a_class_is_noted_once_and_not_where_it_is_dropped(tmp_path):
    table = crowd(tmp_path, Left=[0.25, 0.75] * 20)
    notes = notes_of(tmp_path, table=table)
    assert "column 'Left': named as a class and taken as a feature; --drop Left if it holds shares" in notes
    assert notes.count("'Left'") == 1
    assert "Left" not in notes_of(tmp_path, table=table, drop=("Left",))


def test_a_column_of_labels_is_noted(tmp_path):
    vote = ["left", "Right ", None, "left"] * 10
    table = crowd(tmp_path, vote=vote, wing=["left", "middle"] * 20, other=[*vote[:39], "none"])
    notes = notes_of(tmp_path, table=table)
    what = "column 'vote': the classes are its values, and it is taken as a feature; --drop vote if it holds"
    assert what in notes
    assert "'wing': the classes" not in notes
    assert "'other': the classes" not in notes


def test_a_feature_with_one_value_a_bag_is_noted(tmp_path):
    gap = {"gap": [None, 1.5] * 20, "name": ["Ayton", "Beeton"] * 20, "day": [date(2020, 1, 1), None] * 20}
    table = crowd(tmp_path, **gap, **{"own money": [1, 2] * 20})
    notes = notes_of(tmp_path, table=table)
    assert (
        "column 'gap'; column 'name'; column 'day'; and 1 more: the same value in all rows of a bag" in notes
    )
    assert "held-out bags are told too well; --drop 'gap,name,day,own money' if" in notes
    assert "'age'" not in notes


def test_one_value_a_bag_is_no_news_of_bags_of_one_row(tmp_path):
    put(tmp_path / "people.csv", town=["a", "b", "c"], age=[1.5, 2.5, 4.5])
    assert "same value" not in notes_of(tmp_path, table=tmp_path / "people.csv")


def test_what_the_first_rows_suggest_is_asked_of_all_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("apportion.tables.giveaways.PROBED", 34)
    monkeypatch.setattr("apportion.tables.giveaways.AT_ONCE", 1)
    late = {"size": [1, 2] * 19 + [1, 1], "id": [*range(39), 3], "real": list(range(1, 41))}
    notes = notes_of(tmp_path, table=crowd(tmp_path, **late))
    assert "'size'" not in notes
    assert "'id'" not in notes
    assert "'real'" in notes


def test_a_different_whole_number_in_every_row_is_noted(tmp_path):
    order = RANDOM.permutation(40)
    table = crowd(tmp_path, id=order, real=order * 1.0, wage=order + 0.5, gap=[None, *range(39)])
    notes = notes_of(tmp_path, table=table)
    assert (
        "column 'id'; column 'real': another whole number in every row; --drop id,real if it counts" in notes
    )
    assert "'wage'" not in notes
    assert "column 'gap':" not in notes


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("text", "look", "remedy"),
    [
        ("{},5", "numbers with decimal commas, such as '10,5'", "write 1,5 as 1.5"),
        ("-1.234,{}", "numbers with decimal commas", "write 1,5 as 1.5"),
        ("{},345", "numbers with separators of thousands", "write 12,345 as 12345"),
        ("1 2{}", "numbers with separators of thousands", "write 12,345 as 12345"),
        ("${}00", "amounts of money", "write $1200 as 1200"),
        ("{}00,50 €", "amounts of money", "write $1200 as 1200"),
        ("USD {},000", "amounts of money", "write $1200 as 1200"),
        ("{}%", "percentages", "write 35% as 35"),
        ("{},5 %", "percentages", "write 35% as 35"),
        (" {}", "numbers with spaces beside them", "write them without spaces"),
        ("{} Dec 2020", "dates", "write them as 2020-12-25"),
        ("December {}, 2020", "dates", "write them as 2020-12-25"),
        ("12/{}/2020", "dates", "write them as 2020-12-25"),
    ],
)
def test_texts_that_look_like_numbers_or_dates_are_noted(tmp_path, ending, text, look, remedy):
    table = crowd(tmp_path, odd=[text.format(10 + i % 18) for i in range(38)] + ["none of these"] * 2)
    if ending == "parquet":
        frame = pl.read_csv(table, schema_overrides={"town": pl.String})
        frame.write_parquet(table := tmp_path / "people.parquet")
    notes = notes_of(tmp_path, table=table)
    assert f"column 'odd' becomes categories; most texts look like {look}" in notes
    assert f": {remedy}, or --categorical odd if they are categories" in notes
    assert "odd" not in notes_of(tmp_path, table=table, categorical=("odd",))


def test_numbers_with_three_decimals_have_decimal_commas_where_one_has_fewer(tmp_path):
    odd = [f"{1 + i % 9},{100 + i}" for i in range(38)] + ["0,5", "0,125"]
    assert "look like numbers with decimal commas" in notes_of(tmp_path, table=crowd(tmp_path, odd=odd))


def points(folder: Path, *lines: str, **changes: Any) -> tuple[list[str], str]:
    """The problems and notes of a table with semicolons, a line a row of the towns a, a, b and b."""
    head, *rows = lines
    text = [f"town;{head}", *(f"{town};{row}" for town, row in zip("aabb", rows, strict=True)), ""]
    (folder / "people.csv").write_text("\n".join(text))
    shares(folder, town=["a", "b"], left=[0.25, 0.75], right=[0.75, 0.25])
    found = check(asked(folder, table=folder / "people.csv", **changes))
    return found.problems, "\n".join(found.notes)


def test_points_that_separate_thousands_are_told_and_never_taken_for_decimals(tmp_path):
    (problem,), _ = points(tmp_path, "salary", "2.340", "2.332", "921", "1.000")
    what = "people.csv, column 'salary', has '2.340': its points look like separators of thousands; "
    remedy = "write 2.340 as 2340, or 921 beside it as 921.000 if its point is a decimal one"
    assert problem == what + remedy
    assert points(tmp_path, "salary", "2.340", "2.332", "921", "1.000", categorical=("salary",))[0] == []
    told, notes = points(tmp_path, "salary;score", "2.341;-0,13", "2.332;1,5", "2.001;0,25", "1.001;2")
    assert told == [what.replace("2.340", "2.341") + remedy]
    assert "column 'score' becomes categories; most texts look like numbers with decimal commas" in notes
    for last in ("17", "1.002.341"):
        (problem,), _ = points(tmp_path, "salary", "1.002.341", "2.332.001", "1.000.921", last)
        assert "look like separators of thousands" in problem


def test_three_digits_alone_are_noted_and_other_decimals_are_not(tmp_path):
    told, notes = points(tmp_path, "wage", "2.341", "2.332", "921", "17")
    assert told == []
    assert (
        "people.csv, column 'wage', has '2.341': read as a decimal point, with three digits after it" in notes
    )
    for values in (("2.34", "2.332", "921", "1"), ("0.125", "2", "3", "4"), ("2.341", "2", "3", "4000")):
        assert "point" not in str(points(tmp_path, "wage", *values))
    assert "point" not in str(points(tmp_path, "wage", "2.000", "3.000", "17", "5"))
    assert "point" not in str(points(tmp_path, "wage", "1.250", "2.500", "0", "3.750"))


def test_a_text_that_means_missing_and_one_comma_elsewhere_make_no_thousands(tmp_path):
    assert points(tmp_path, "kg", "2.107", "1.350", "NA", "3.125", missing=("NA",))[0] == []
    told, _ = points(tmp_path, "lat;note", "48.340;a", "48.137;1,5", "48.250;b", "48.001;c")
    assert told == []


@pytest.mark.parametrize("mark", [";", ","])
def test_counts_with_separators_of_thousands_are_told_so(tmp_path, mark):
    text = "town;left;right\na;1.837;2.068\nb;1.250;2\nc;1;0\n".replace(";", mark)
    (tmp_path / "counts.csv").write_text(text)
    (problem,) = problems(tmp_path, proportions=None, counts=tmp_path / "counts.csv")
    what = "counts.csv, column 'left', has '1.837'; counts.csv, column 'right', has '2.068': its points look"
    assert problem.startswith(what)
    (tmp_path / "counts.csv").write_text("town,left,right\na,1.000,1.000\nb,1.000,2.000\nc,1.000,0.000\n")
    assert problems(tmp_path, proportions=None, counts=tmp_path / "counts.csv") == []


def test_numbers_among_more_gaps_are_noted_and_the_remedy_works(tmp_path):
    odd = [str(i) if i % 5 == 0 else ("n.a." if i % 5 == 1 else "-") for i in range(40)]
    table = crowd(tmp_path, odd=odd)
    notes = notes_of(tmp_path, table=table)
    assert (
        "column 'odd' becomes categories; '-', 'n.a.' beside numbers: --missing=- --missing=n.a. if" in notes
    )
    found = check(asked(tmp_path, table=table, missing=("-", "n.a.")))
    assert (found.problems, found.kinds["odd"]) == ([], "number")


def test_words_codes_and_lone_gaps_look_like_nothing_else(tmp_path):
    words = {"word": ["may", "june"] * 20, "code": [f"A{i}" for i in range(40)], "gap": ["NA", "yes"] * 20}
    notes = notes_of(tmp_path, table=crowd(tmp_path, **words))
    assert "look like" not in notes
    assert "'code' has 40 different texts" in notes


def test_a_few_thousands_among_numbers_are_told_with_their_remedy(tmp_path):
    table = crowd(tmp_path, odd=[str(100 + i) for i in range(38)] + ["1,005", "1,006"])
    told(
        "most are numbers; most texts look like numbers with separators of thousands, such as '1,005'",
        tmp_path,
        table=table,
    )


def test_a_column_without_a_name_is_left_out_and_noted(tmp_path):
    found = check(asked(tmp_path, table=crowd(tmp_path, **{"": range(40)})))
    assert list(found.kinds) == ["age"]
    assert "people.csv has a column without a name; it is left out" in found.notes


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
        "shares.csv, row 1, bag 'a'; shares.csv, row 2, bag 'a': these bags stand in several rows; keep",
        "bag 'c' (1 rows of people.parquet, first row 4); bag 'e'",
    ):
        assert part in text
    assert len(found.problems) == 8
    note = "shares.csv has 1 rows of bags that people.parquet has not, such as 'd'; they are left out"
    assert note in found.notes
    with pytest.raises(DataError, match="8 things are wrong; nothing was written\n  people"):
        refuse(found)


def test_only_the_first_cases_of_a_thing_are_named_and_all_are_counted(tmp_path):
    names = [f"t{i}" for i in range(20)]
    people(tmp_path, town=names, age=range(20), job=["x", "y"] * 10, owner=[True, False] * 10)
    shares(tmp_path, town=names, left=[0.7] * 20, right=[0.7] * 20)
    (problem,) = problems(tmp_path)
    assert problem.count("sums to 1.4") == 3
    assert "; and 17 more: mend them, or pass --normalize" in problem


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({"left": [50.0, 0.3, 1.0]}, "row 1, bag 'a', has 50 for class 'left': divide percentages by 100"),
        ({"left": [None, 1 / 3, 1.0]}, "row 1, bag 'a', has nan for class 'left': give a number, or pass"),
        ({"left": ["half", "0.3", "1"]}, "row 1, bag 'a', has 'half' for class 'left': give a number"),
        ({"left": ["0,5", "0.3", "1"]}, "row 1, bag 'a', has '0,5' for class 'left': write 0,35 or 35% as"),
        ({"left": [0.4, 1 / 3, 1.0]}, "row 1, bag 'a', sums to 0.9: mend them, or pass --normalize"),
        ({"left": [0.0, 1 / 3, 1.0], "right": [0.0, 2 / 3, 0]}, "row 1, bag 'a': all classes are zero"),
        ({"left": [0.5] * 3, "right": [0.5] * 3}, "all bags have the same proportions"),
        ({"town": ["a", None, "c"]}, "row 2, has bag None: give a bag's id, of type String"),
        ({"town": ["a", "b", "B"]}, "bag 'c' (1 rows of people.parquet, first row 4): no row in shares.csv"),
        ({"town": ["a", "b", "B"]}, "add it, leave these rows out, or pass --unlabeled"),
    ],
)  # fmt: skip
def test_shares_that_cannot_be_are_told_with_row_and_bag(tmp_path, changes, pattern):
    shares(tmp_path, **changes)
    told(pattern, tmp_path)


@pytest.mark.parametrize("many", ["8,000", "1,234,567", "8 000"])
def test_counts_with_separators_of_thousands_are_not_to_become_fractions(tmp_path, many):
    counts = shares(tmp_path, "counts.csv", left=[many, "900", "1"], right=[1, 2, 0])
    question: dict[str, Any] = {"proportions": None, "counts": counts, "normalize": True}
    told(f"row 1, bag 'a', has '{many}' for class 'left': write 12,345 as 12345", tmp_path, **question)
    noisy = shares(tmp_path, "counts.csv", left=["8,5", "0.3", "1"], right=[1, 2, 0])
    told("has '8,5' for class 'left': write 0,35 or 35% as 0.35", tmp_path, **question | {"counts": noisy})


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        (
            {"total": [2, 3, 1]},
            "counts.csv, column 'total', is the sum of 'left', 'right' in every row: leave",
        ),
        ({"at": [0, 1, 2]}, "counts.csv, column 'at', numbers the rows, which is no class: leave it out"),
        ({"": [0, 1, 2]}, "counts.csv, column 4, has no name (''); it may be an index of pandas"),
        ({"Unnamed: 0": ["x", "y", "z"]}, "counts.csv, column 4, has no name ('Unnamed: 0')"),
    ],
)
def test_columns_of_the_shares_that_are_no_class_are_told_alone(tmp_path, changes, pattern, normalize):
    counts = shares(tmp_path, "counts.csv", left=[1, 1, 1], right=[1, 2, 0], **changes)
    question: dict[str, Any] = {"proportions": None, "counts": counts, "normalize": normalize}
    (problem,) = problems(tmp_path, **question)
    assert problem.startswith(pattern)
    assert problem.endswith("leave it out of the file, or name the classes with --classes")
    found = check(asked(tmp_path, **question, classes=("left", "right")))
    assert found.problems == []
    np.testing.assert_allclose(found.shares, SHARES)


@pytest.mark.parametrize("normalize", [False, True])
def test_clicks_beside_conversions_are_a_total(tmp_path, normalize):
    counts = shares(tmp_path, "counts.csv", left=[2, 3, 1], right=[1, 3, 1]).rename(tmp_path / "clicks.csv")
    text = counts.read_text().replace("left", "clicks").replace("right", "conversions")
    counts.write_text(text)
    question: dict[str, Any] = {"proportions": None, "counts": counts, "normalize": normalize}
    total, one = problems(tmp_path, **question)
    assert total == (
        "clicks.csv, column 'clicks', is the number of rows of every bag, a total and no class: "
        "leave it out of the file, or name the classes with --classes"
    )
    assert one.endswith("add one such as 'not conversions', which is the bag's rows minus 'conversions'")
    assert len(problems(tmp_path, **question, classes=("clicks", "conversions"))) == (not normalize)


def test_a_column_that_repeats_the_bags_is_no_class(tmp_path):
    people(tmp_path, town=[20, 10, 20, 30, 10, 20])
    shares(tmp_path, town=[10, 20, 30], town_id=[10, 20, 30])
    (problem,) = problems(tmp_path, normalize=True)
    assert problem.startswith("shares.csv, column 'town_id', repeats the ids of the bags, which is no class")


def test_a_total_is_found_beside_gaps_and_rounded_shares(tmp_path):
    shares(tmp_path, left=[33.3, None, 50.0], middle=[33.3, 20.0, 50.0], right=[33.3, 30.0, 0.0], n=[100] * 3)
    told("shares.csv, column 'n', is the sum of 'left', 'right', 'middle'", tmp_path, normalize=True)


@pytest.mark.parametrize("unit", [1, 100])
def test_a_year_and_a_population_beside_whole_shares_are_no_classes(tmp_path, unit):
    parts = {"left": [0.334, 0.2, 0.1], "middle": [0.333, 0.3, 0.1], "right": [0.332, 0.5, 0.8]}
    parts = {name: [unit * share for share in column] for name, column in parts.items()}
    more = {"year": [2020] * 3, "population": [1200, 3500, 800]}
    for names in (["year"], ["population"], ["year", "population"]):
        shares(tmp_path, **parts, **{name: more[name] for name in names})
        for normalize in (True, False):
            for name in names:
                what = (
                    f"column '{name}', is beside 'left', 'right', 'middle', which are whole without it: leave"
                )
                told(what, tmp_path, normalize=normalize)
    assert problems(tmp_path, normalize=True, classes=("left", "middle", "right")) == []
    shares(tmp_path, **parts)
    assert problems(tmp_path, normalize=True) == []


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("more", [[4, 5, 3], [1, 1, 2], [2020] * 3], ids=["registered", "abstained", "year"])
def test_what_stands_beside_counts_of_all_rows_is_no_class(tmp_path, more, normalize):
    counts = shares(tmp_path, "counts.csv", left=[1, 1, 1], right=[1, 2, 0], more=more)
    question: dict[str, Any] = {"proportions": None, "counts": counts, "normalize": normalize}
    assert problems(tmp_path, **question) == [
        "counts.csv, column 'more', is beside 'left', 'right', which are whole without it: "
        "leave it out of the file, or name the classes with --classes"
    ]
    assert problems(tmp_path, **question, classes=("left", "right")) == []


def test_a_class_that_is_the_same_in_every_bag_is_noted_where_sums_do_not_tell(tmp_path):
    counts = shares(tmp_path, "counts.csv", left=[5, 20, 7], right=[5, 10, 0], year=[2020] * 3)
    notes = notes_of(tmp_path, proportions=None, counts=counts, normalize=True)
    assert "counts.csv, column 'year', has 2020 in every row and is taken as a class; if it is none:" in notes


def test_classes_that_fit_their_bags_are_classes_though_one_is_half_of_each(tmp_path):
    shares(tmp_path, left=[0.5] * 3, middle=[0.2, 0.3, 0.4], right=[0.3, 0.2, 0.1])
    assert problems(tmp_path) == problems(tmp_path, normalize=True) == []
    counts = shares(tmp_path, "counts.csv", town=["c", "a", "b"], left=[0, 1, 2], right=[1, 1, 1])
    assert problems(tmp_path, proportions=None, counts=counts) == []  # though 0, 1, 2 counts the rows


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("unlabeled", [False, True])
def test_ids_that_never_meet_are_told_once_with_one_of_each_side(tmp_path, ending, unlabeled):
    table = people(tmp_path, ending, town=[1, 0, 1, 2, 0, 1])
    shares(tmp_path, town=["0.0", "1.0", "2.0"])
    (problem,) = problems(tmp_path, table=table, unlabeled=unlabeled)
    one = "'0'" if ending == "csv" else "0"
    assert problem.startswith(f"no bag of {table.name} is in shares.csv: the one has {one}, the other '0.0'")
    assert "write the ids alike in both (pandas writes 1.0 for 1 where an id is missing" in problem
    assert problem.endswith("or name the right columns with --bag and --key")


def test_a_bag_without_a_row_is_one_without_proportions_where_asked(tmp_path):
    shares(tmp_path, town=["c", "a"], left=[1.0, 0.5], right=[0.0, 0.5])
    told("bag 'b' (3 rows of people.parquet, first row 1): no row in shares.csv; add it, leave", tmp_path)
    found = check(asked(tmp_path, unlabeled=True))
    assert found.problems == []
    np.testing.assert_allclose(found.shares, [[0.5, 0.5], [np.nan, np.nan], [1, 0]])
    assert "1 bags have no row in shares.csv; they are without proportions" in found.notes
    counts = shares(tmp_path, "counts.csv", town=["c", "a"], left=[1, 1], right=[0, 1])
    found = check(asked(tmp_path, proportions=None, counts=counts, unlabeled=True))
    np.testing.assert_allclose(found.shares, [[0.5, 0.5], [np.nan, np.nan], [1, 0]])


def test_infinite_and_huge_counts_are_told_without_warnings(tmp_path):
    counts = shares(tmp_path, "counts.csv", left=[math.inf, 1e308, 1.0], right=[1.0, 1e308, 0.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told("bag 'a', has inf for class 'left': give a finite", tmp_path, proportions=None, counts=counts)
        for options in ({"normalize": True}, {"noise": "0.1"}, {"noise": "estimate"}):
            told("bag 'a', has inf for class 'left': give a finite", tmp_path, proportions=counts, **options)


def test_of_one_class_the_other_column_is_named(tmp_path):
    rate = put(tmp_path / "rate.csv", town=["a", "b", "c"], yes=[0.5, 0.25, 1.0])
    told("rate.csv has 1 class (yes)", tmp_path, proportions=rate)
    told("add one such as 'not yes', which is 1 minus 'yes'", tmp_path, proportions=rate)
    counts = put(tmp_path / "counts.csv", town=["a", "b", "c"], yes=[1, 2, 1])
    told("which is the bag's rows minus 'yes'", tmp_path, proportions=None, counts=counts)
    rare = put(tmp_path / "rare.csv", town=["a", "b", "c"], yes=[0, 2, 0])
    (problem,) = problems(tmp_path, proportions=None, counts=rare)  # bags of zero have the other class
    assert problem.startswith("rare.csv has 1 class (yes)")


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


def test_two_sources_of_proportions_are_told_alone(tmp_path):
    (problem,) = problems(tmp_path, counts=shares(tmp_path))
    assert problem.startswith("the proportions of the bags come from 2 places: pass one of --proportions")


def test_a_table_without_rows_is_told(tmp_path):
    put(tmp_path / "people.parquet", town=pl.Series([], dtype=pl.String), age=pl.Series([], dtype=pl.Float64))
    told("people.parquet has no rows", tmp_path)
    (tmp_path / "people.csv").write_text("town,age,job\n")
    (problem,) = problems(tmp_path, table=tmp_path / "people.csv")
    assert problem == "people.csv has no rows: give a row an instance"


def test_columns_without_any_value_are_told(tmp_path):
    people(tmp_path, age=pl.Series([None] * 6, dtype=pl.Float64))
    told("column 'age': no value in any row; leave it out with --drop age", tmp_path)
    people(tmp_path, **{n: pl.Series([None] * 6, dtype=pl.Float64) for n in ("age", "a,b", "c", "d")})
    (problem,) = problems(tmp_path)
    assert problem.startswith("column 'age'; column 'a,b'; column 'c'; and 1 more: no value in any row;")
    assert problem.endswith("""--drop 'age,"a,b",c,d'""")


def test_numbers_spoilt_by_texts_are_told_and_the_remedies_work(tmp_path):
    table = people(tmp_path, "csv", age=["1", "2", "NA", "4", "5", "6"])
    told("people.csv, row 3, bag 'b', column 'age', has 'NA': most are numbers", tmp_path, table=table)
    found = check(asked(tmp_path, table=table, missing=("NA",)))
    assert (found.problems, found.kinds["age"]) == ([], "number")
    found = check(asked(tmp_path, table=table, categorical=("age",)))
    assert (found.problems, found.kinds["age"]) == ([], "category")


@pytest.mark.parametrize("gap", ["nan", "NAN", "NULL"])
def test_texts_for_gaps_beside_numbers_are_told_in_whatever_case(tmp_path, gap):
    table = people(tmp_path, "csv", age=["1", "2", gap, "4", "5", "6"])
    told(f"row 3, bag 'b', column 'age', has '{gap}': most are numbers", tmp_path, table=table)
    found = check(asked(tmp_path, table=table, missing=(gap,)))
    assert (found.problems, found.kinds["age"]) == ([], "number")


def test_sums_that_noise_does_not_explain_are_told(tmp_path):
    percent = shares(tmp_path, left=[50.0, 33.3, 100.0], right=[50.0, 66.6, 0.0])
    remedy = "does not explain it; mend them, or divide percentages by 100, and --noise with them"
    for noise in ("0.03", "1.44", "estimate"):
        told("row 1, bag 'a', sums to 100;", tmp_path, proportions=percent, noise=noise)
        told(remedy, tmp_path, proportions=percent, noise=noise)
    counts = shares(tmp_path, "counts.csv", left=[100.5, 201.0, 99.0], right=[99.0, 402.0, 1.5])
    question: dict[str, Any] = {"proportions": None, "counts": counts}
    told("bag 'a', sums to 199.5 but has 2 rows", tmp_path, **question, noise="1.4")
    rest = shares(tmp_path, "rest.csv", left=[1.5, -6.5, 1.2], right=[0.5, 9.5, -0.2])
    told(
        "bag 'b', has -6.5 for class 'left' and 3 for all",
        tmp_path,
        **question | {"counts": rest},
        noise="0.7",
    )
    for noise, remedy in (
        ("0.7", "give the deviation that the noise has"),
        ("estimate", "sums do not show it"),
    ):
        told(remedy, tmp_path, **question | {"counts": rest}, noise=noise)
    assert problems(tmp_path, **question | {"counts": rest}, noise="4") == []
    near = shares(tmp_path, "near.csv", left=[1.5, -0.7, 1.2], right=[0.9, 3.1, -0.4])
    assert problems(tmp_path, proportions=None, counts=near, noise="1.4") == []


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({"noise": "0.01", "normalize": True}, "--noise is of the numbers as they stand in the file"),
        ({"noise": "2.8"}, "--noise is 2.8, but it is the standard deviation of a share, 0.5 at most"),
        ({"fill": True, "normalize": True}, "--fill gives what is left of a bag's total"),
    ],
)
def test_options_that_do_not_go_together_are_told(tmp_path, changes, pattern):
    counts = shares(tmp_path, "counts.csv", left=[1, 1, 1], right=[1, 2, 0])
    form: dict[str, Any] = {"proportions": None, "counts": counts} if "fill" in changes else {}
    told(pattern, tmp_path, **form, **changes)
    assert problems(tmp_path, **form) == []


def test_percentages_are_not_filled_up_to_one(tmp_path):
    shares(tmp_path, left=[0.5, 33.0, 90.0], right=[None, 67.0, 10.0])
    told("has 33 for class 'left'", tmp_path, fill=True, normalize=True)
    told("divide percentages by 100", tmp_path, fill=True, normalize=True)


def test_ids_that_differ_by_their_unicode_form_are_told_so(tmp_path):
    one, other = "\u00e9", "e\u0301"
    table = people(tmp_path, "csv", town=["b", one, "b", "c", one, "b"])
    shares(tmp_path, town=[other, "b", "c"])
    for unlabeled in (False, True):
        (problem,) = problems(tmp_path, table=table, unlabeled=unlabeled)
        assert problem.startswith(f"bag {other!r} of shares.csv has other Unicode characters")
        assert "in people.csv: write both alike" in problem


def test_ids_with_zeros_case_or_spaces_of_their_own_are_told_of_with_their_twins(tmp_path):
    table = people(tmp_path, "csv", town=["b", "007", "b", "North", "007", "b"])
    shares(tmp_path, town=["7", "b", " north "])
    for unlabeled in (False, True):
        (problem,) = problems(tmp_path, table=table, unlabeled=unlabeled)
        first, second = "bag '7' of shares.csv is '007'", "bag ' north ' of shares.csv is 'North'"
        assert problem == f"{first} in people.csv; {second} in people.csv: write both alike"
    people(tmp_path, "csv", town=["b", "007", "b", "7", "007", "b"])  # both are there, and are two bags
    shares(tmp_path, town=["7", "b", "007"])
    assert problems(tmp_path, table=table) == []


def test_rows_of_a_bag_that_disagree_are_told(tmp_path):
    left = [1 / 3, 0.5, 0.25, 1.0, 0.5, 1 / 3]
    people(tmp_path, left=left, right=[1 - share for share in left])
    question: dict[str, Any] = {"proportions": None, "shares": ("left", "right")}
    told("row 3, bag 'b', has 0.25 for class 'left' where the bag's first row has 0.33", tmp_path, **question)
    people(tmp_path, left=[None, 0.5, None, 1.0, 0.5, None], right=[2 / 3, 0.5, 2 / 3, 0.0, 0.5, 2 / 3])
    told("row 1, bag 'b', has nan for class 'left'", tmp_path, **question)


def test_nothing_is_refused_where_nothing_is_wrong():
    refuse(Found())


@pytest.mark.parametrize("gap", ["", "nan"])
def test_a_row_without_the_share_that_its_bags_first_row_has_is_told(tmp_path, gap):
    from apportion.tables.asking import Asked
    from apportion.tables.checking import check

    rows = f"bag,x,left,right\na,1,0.5,0.5\na,2,{gap},0.5\nb,3,0.2,0.8\nb,4,0.2,0.8\n"
    (tmp_path / "t.csv").write_text(rows)
    found = check(Asked(tmp_path / "t.csv", "bag", shares=("left", "right")))
    assert any("row 2, bag 'a', has None for class 'left'" in problem for problem in found.problems)


@pytest.mark.parametrize(("share", "fine"), [(0.5001, True), (0.5002, False), (0.505, False)])
def test_shares_sum_to_one_up_to_four_printed_digits(tmp_path, share, fine):
    from apportion.tables.asking import Asked
    from apportion.tables.checking import check

    (tmp_path / "t.csv").write_text("bag,x\na,1\na,2\nb,3\nb,4\n")
    (tmp_path / "p.csv").write_text(f"bag,left,right\na,{share},0.49999\nb,0.2,0.8\n")
    found = check(Asked(tmp_path / "t.csv", "bag", proportions=tmp_path / "p.csv"))
    assert any("sums to" in problem for problem in found.problems) != fine


def test_a_look_that_only_half_of_the_texts_have_is_not_that_of_most():
    import polars as pl

    from apportion.tables.looks import PERCENT, seen_in

    assert seen_in(pl.LazyFrame({"x": ["35%", "low"]}), "x").look is None
    assert seen_in(pl.LazyFrame({"x": ["35%", "40%", "low"]}), "x").look is PERCENT


def test_a_column_of_which_half_are_numbers_is_told_of(tmp_path):
    from apportion.tables.asking import Asked
    from apportion.tables.checking import check

    (tmp_path / "t.csv").write_text("bag,x,z\na,1,1\na,low,2\nb,3,3\nb,high,4\n")
    (tmp_path / "p.csv").write_text("bag,left,right\na,0.5,0.5\nb,0.2,0.8\n")
    found = check(Asked(tmp_path / "t.csv", "bag", proportions=tmp_path / "p.csv"))
    assert any("column 'x', has 'low'" in problem for problem in found.problems)


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["08-01-2020", "09-02-2020"], True),
        (["8/1/2020", ""], True),
        (["08-01-2020", "25-12-2020"], False),  # which shows that the day is first
        (["2020-08-01", "2020-09-02"], False),
    ],
)
def test_dates_that_do_not_show_what_is_first_are_told_of(tmp_path, caplog, texts, told):
    (tmp_path / "t.csv").write_text("bag,when\n" + "".join(f"a,{text}\n" for text in texts))
    for _ in range(2):
        assert open_table(tmp_path / "t.csv").collect()["when"].dtype.is_temporal()
    said = [f"has dates such as {texts[0]}, and none shows" in message for message in caplog.messages]
    assert said == [True] * told  # once


def test_texts_of_which_none_is_a_date_are_all_spoilt():
    texts = pl.Series("when", ["20200102", "soon", None])
    assert read_as(texts, "date").to_list() == [None, None, None]
    assert spoilt(texts, "date").tolist() == [0, 1]


def test_a_column_of_categories_may_be_named_count():
    column = fit_column(pl.Series("count", ["a", "b", "a"]), "category")
    assert column.categories == ("a", "b")


@pytest.mark.parametrize(("key", "fine"), [([1.0, 2.0], True), ([1.0, 2.5], False), ([1.5, 2.5], False)])
def test_ids_with_a_fraction_are_no_whole_ones(tmp_path, key, fine):
    pl.DataFrame({"bag": [1, 1, 2, 2], "x": [0.1, 0.2, 0.3, 0.4]}).write_parquet(tmp_path / "t.parquet")
    table = pl.DataFrame({"bag": key, "left": [0.5, 0.2], "right": [0.5, 0.8]})
    table.write_parquet(tmp_path / "p.parquet")
    found = check(Asked(tmp_path / "t.parquet", "bag", proportions=tmp_path / "p.parquet"))
    assert (found.problems == []) == fine


def test_times_are_no_ids_of_days(tmp_path):
    days = [date(2020, 1, day) for day in (2, 2, 3, 3)]
    pl.DataFrame({"bag": days, "x": [0.1, 0.2, 0.3, 0.4]}).write_parquet(tmp_path / "t.parquet")
    for hour, fine in ((0, True), (7, False)):
        times = [datetime(2020, 1, 2), datetime(2020, 1, 3, hour)]
        table = pl.DataFrame({"bag": times, "left": [0.5, 0.2], "right": [0.5, 0.8]})
        table.write_parquet(tmp_path / "p.parquet")
        found = check(Asked(tmp_path / "t.parquet", "bag", proportions=tmp_path / "p.parquet"))
        assert (found.problems == []) == fine


def test_ids_that_single_precision_has_not_are_those_that_it_has_nearest():
    assert _as_ids(pl.Series([0.1, 0.5]), pl.Float32()).to_list() == pytest.approx([0.1, 0.5])
    assert _as_ids(pl.Series(["1", "2.5"]), pl.Int64()).to_list() == [1, None]

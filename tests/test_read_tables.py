"""CSV and Parquet files: separators, decimal marks, types, dates, and files that are damaged or no tables."""

import math
import subprocess
import sys
import time
import zipfile
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pl = pytest.importorskip("polars")

from apportion.errors import ApportionWarning, DataError  # noqa: E402
from apportion.tables import read  # noqa: E402
from apportion.tables.read import read_table, write_table  # noqa: E402


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def collect(path: Path, **options: Any) -> Any:
    return read_table(path, **options).collect()


@pytest.mark.parametrize("suffix", ["csv", "parquet", "xlsx"])
def test_a_table_is_read_as_it_was_written(tmp_path, suffix):
    frame = pl.DataFrame(
        {"t": ["a,b", None], "n": [1.5, None], "i": [1, 2], "b": [True, None], "d": [date(2020, 1, 1), None]}
    )
    write_table(frame.lazy(), tmp_path / f"t.{suffix}")
    assert collect(tmp_path / f"t.{suffix}").equals(frame)
    assert [path.name for path in tmp_path.iterdir()] == [f"t.{suffix}"]


def test_named_columns_stay_texts(tmp_path):
    path = write(tmp_path / "t.csv", "town,a\n007,1\n7,2\n")
    assert collect(path, texts=["town"]).to_dict(as_series=False) == {"town": ["007", "7"], "a": [1, 2]}
    assert collect(path, texts=None)["a"].to_list() == ["1", "2"]


def test_texts_for_missing_values(tmp_path):
    path = write(tmp_path / "t.csv", "a,b\n1,x\nNA,\n")
    assert collect(path, missing=["NA"])["a"].to_list() == [1, None]
    assert collect(path)["a"].to_list() == ["1", "NA"]


EUROPE = "town;age;job\nb;1,5;x\na;-2;y, z\nb;;x\nc;3,25;\n"


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_decimal_commas(tmp_path, separator, mark):
    path = write(tmp_path / "t.csv", mark + EUROPE.replace(";", separator))
    expected = [("b", 1.5, "x"), ("a", -2.0, "y, z"), ("b", None, "x"), ("c", 3.25, None)]
    assert collect(path).columns == ["town", "age", "job"]
    assert collect(path).rows() == expected


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ("a;b\n1.5;2\n", {"a": pl.Float64, "b": pl.Int64}),  # decimal points, although semicolons
        ("a;b\n1,5;2.5\n", {"a": pl.String, "b": pl.Float64}),  # both: numbers with commas stay texts
        ('"a;b",c\n1,2\n', {"a;b": pl.Int64, "c": pl.Int64}),
        ('"a,b";c\n1;2\n', {"a,b": pl.Int64, "c": pl.Int64}),
        ("a;b,c\n1;2,3\n", {"a;b": pl.String, "c": pl.Int64}),
        ("a;b, or c;d\n1;2;3\n4;5;6\n", {"a": pl.Int64, "b, or c": pl.Int64, "d": pl.Int64}),
        ('"say ""hi""",b\n1,2\n', {'say "hi"': pl.Int64, "b": pl.Int64}),
    ],
)
def test_the_header_decides_the_separator(tmp_path, text, schema):
    assert dict(collect(write(tmp_path / "t.csv", text)).schema) == schema


def test_rows_without_any_value_at_the_end_are_dropped(tmp_path):
    text = "a,b\n1,2\n,\n3,4\n"
    for end in ("", ",\n", "\n\n,\n", ",\n,"):
        assert collect(write(tmp_path / "t.csv", text + end)).rows() == [(1, 2), (None, None), (3, 4)]
    assert collect(write(tmp_path / "t.csv", "a,b\n,\n,\n")).height == 0


POOLS = [
    ["2020-01-01", "2021-12-31"], ["2020-01-01T10:00:00", "2020-01-01 23:59:59.5"],
    ["2020-01-01T10:00:00Z"], ["10:00:00", "23:59"], ["31/12/2020", "13/2/2020"], ["31.12.2020"],
    ["2020", "1999"], ["2020-01"], ["2020-02-30"], ["a", "Jan 2020", "x, y"], ["1.5", "2"], ["true", "false"],
    ["nan", "NA"], ["", ""], [" 2020-01-01"], ["-2020-01-01"], ["0001-01-01", "9999-12-31"],
]  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_types_are_those_that_polars_finds_in_all_rows(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(read, "FIRST_ROWS", 3)
    rng = np.random.default_rng(seed)
    path = tmp_path / "t.csv"
    for _ in range(40):
        columns = []
        for _ in range(4):
            pools = [POOLS[i] for i in rng.integers(0, len(POOLS), rng.integers(1, 3))]
            values = [str(rng.choice(pools[rng.integers(len(pools))])) for _ in range(9)]
            columns.append([f'"{value}"' if "," in value else value for value in sorted(values)])
        rows = [",".join(row) for row in zip(*columns, strict=True)]
        path.write_text("\n".join(["a,b,c,d", *rows, "x,x,x,x" if rng.random() < 0.1 else ",,,1", ""]))
        try:
            expected = pl.read_csv(path, infer_schema_length=None, try_parse_dates=True)
        except pl.exceptions.PolarsError:
            with pytest.raises(DataError):
                collect(path)
            continue
        assert collect(path).equals(expected)
        assert collect(path).schema == expected.schema


def test_texts_are_not_parsed_as_dates_one_by_one(tmp_path):
    texts = np.random.default_rng(0).choice(["red", "green", "x y"], (20_000, 8))
    path = tmp_path / "t.csv"
    frame = pl.DataFrame({f"t{i}": texts[:, i] for i in range(8)} | {"day": [date(2020, 1, 1)] * 20_000})
    frame.write_csv(path)
    start = time.process_time()
    pl.read_csv(path, infer_schema_length=None)
    plain = time.process_time() - start
    start = time.process_time()
    assert collect(path).schema["day"] == pl.Date
    assert time.process_time() - start < 8 * plain + 0.2  # one by one they take twenty times as long


@pytest.mark.parametrize(
    ("texts", "ambiguous"),
    [
        (["08-01-2020", "09-02-2020"], True),
        (["8/1/2020", ""], True),
        (["08-01-2020", "25-12-2020"], False),  # shows that the day is first
        (["2020-08-01", "2020-09-02"], False),
    ],
)
def test_dates_whose_order_is_ambiguous_are_warned_about(tmp_path, recwarn, texts, ambiguous):
    path = write(tmp_path / "t.csv", "bag,when\n" + "".join(f"a,{text}\n" for text in texts))
    recwarn.clear()
    if ambiguous:
        with pytest.warns(ApportionWarning, match="'when'"):
            frame = collect(path)
    else:
        frame = collect(path)
    assert frame["when"].dtype.is_temporal()


# --- files that cannot be used


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.xlsx", ""),
        ("t.csv.gz", ""),
        ("gone.csv", None),
        ("t.csv", ""),
        ("t.parquet", "not parquet"),
        ("t.csv", 'a,b\n1,"2\n3,4\n'),  # an open quote
        ("t.csv", "# of 2026\na,b\n1,2\n"),
        ("t.csv", "b,c,b\n1,2,3\n"),  # a name twice
        ("t.csv", "town,age\nKöln,1\n".encode("latin-1")),
        ("t.csv", "größe,age\na,1\n".encode("cp1252")),
        ("t.csv", "town,age\nKöln,1\n".encode("utf-16")),
        ("t.csv", "town,age\nKöln,1\n".encode("utf-16-le")),
        ("t.csv", b"\x1f\x8b\x08\x00rest"),
        ("t.csv", "a,b,c\n1,2,3\n5,6"),  # cut off within a row
    ],
)
@pytest.mark.parametrize("texts", [(), None])
def test_files_that_are_no_tables_are_errors_that_name_them(tmp_path, name, content, texts):
    if content is not None:
        write(tmp_path / name, content)
    with pytest.raises(DataError, match=name.split(".")[0]):
        collect(tmp_path / name, texts=texts)


@pytest.mark.parametrize(
    "text",
    [
        "a,b,\n1,2\n5,6",
        "a,b,c\n1,2,3\n5,6,7\n,",
        "a,b\n1,2\n5,6",
        'a,b,c\n1,2,3\n5,"6\n6",7',
        "a,b,c\n1,2,3\n5,6\n",
    ],
)
def test_files_without_a_last_line_break_are_whole_if_their_last_row_is(tmp_path, text):
    assert collect(write(tmp_path / "t.csv", text))[:, 0].to_list() == [1, 5]


def test_the_row_with_too_many_fields_is_named(tmp_path):
    with pytest.raises(DataError, match="row 2 has 3 fields"):
        collect(write(tmp_path / "t.csv", "a,b\n1,2\n1,5,2\n"))


def test_damaged_parquet_is_an_error_wherever_the_damage_is(tmp_path):
    path = tmp_path / "t.parquet"
    pl.DataFrame({"a": range(500), "b": [f"t{i}" for i in range(500)]}).write_parquet(path)
    whole = path.read_bytes()
    messages = []
    rng = np.random.default_rng(0)
    for _ in range(150):
        damaged = bytearray(whole)
        for at in rng.integers(0, len(whole), 3):
            damaged[at] = rng.integers(256)
        path.write_bytes(damaged[: rng.integers(len(whole) // 2, len(whole) + 1)])
        try:
            with read.clean_errors(path):
                collect(path)
        except DataError as problem:
            messages.append(str(problem))
    assert len(messages) > 20
    assert all("t.parquet" in message for message in messages)


def test_small_files_that_claim_to_be_huge_are_refused_unread(tmp_path):
    write(tmp_path / "wide.csv", ",".join(f"c{i}" for i in range(3_001)) + "\n")
    write(tmp_path / "long.csv", ",".join(f"c{i}" for i in range(2_900)) + "\n" * 60_000)
    pl.DataFrame({"a": pl.repeat(0, 100_000_000, dtype=pl.Int8, eager=True)}).write_parquet(
        tmp_path / "rle.parquet"
    )
    for name in ("wide.csv", "long.csv", "rle.parquet"):
        with pytest.raises(DataError, match=name):
            read_table(tmp_path / name)


def test_a_huge_line_does_not_make_a_huge_message(tmp_path):
    line = "x" * 5_000_000
    for text in (
        f'a,b\n1,"{line}',
        f"a,b\n1,2,{line}\n",
        f'"{line}",b,b\n',
        f"{line},{line}\n1,2\n",
        f"{line}\0\n",
    ):
        with pytest.raises(DataError) as caught:
            collect(write(tmp_path / "t.csv", text))
        assert len(str(caught.value)) < 2_000


def test_what_cannot_be_written_leaves_nothing(tmp_path):
    frame = pl.LazyFrame({"a": [1], "b": [[1]]})  # a CSV has no lists
    with pytest.raises(DataError, match="out.csv"):
        write_table(frame, tmp_path / "out.csv")
    with pytest.raises(DataError, match="out.json"):
        write_table(frame, tmp_path / "out.json")
    assert list(tmp_path.iterdir()) == []


# --- Excel


def test_texts_in_excel_are_neither_formulas_nor_links_nor_other_missing_values(tmp_path):
    path = tmp_path / "t.xlsx"
    texts = ["=1+1", "https://example.org", "007", "NA", "-"]
    frame = pl.DataFrame(
        {"<b>": texts, "n": [1.5, 2.0, math.nan, None, 4.0], "odd": ["1", "2", "NA", "4", "5"]}
    )
    write_table(frame.lazy(), path)
    assert collect(path)["<b>"].to_list() == texts
    assert collect(path)["n"].to_list() == [1.5, 2.0, None, None, 4.0]
    assert collect(path, missing=["NA"])["odd"].to_list() == [1, 2, None, 4, 5]


def test_damaged_or_huge_excel_files_and_a_missing_extra_are_errors(tmp_path, monkeypatch):
    with pytest.raises(DataError):
        read_table(write(tmp_path / "t.xlsx", b"no zip"))
    with zipfile.ZipFile(tmp_path / "empty.xlsx", "w") as archive:
        archive.writestr("a.txt", "b")
    with pytest.raises(DataError):
        read_table(tmp_path / "empty.xlsx")
    monkeypatch.setattr(read, "MAX_EXCEL", 100)
    write_table(pl.LazyFrame({"a": [1]}), tmp_path / "fine.xlsx")
    with pytest.raises(DataError):
        read_table(tmp_path / "fine.xlsx")
    monkeypatch.setitem(sys.modules, "fastexcel", None)
    monkeypatch.setitem(sys.modules, "xlsxwriter", None)
    for use in (read_table, read.check_output_suffix):
        with pytest.raises(DataError, match=r"apportion\[excel\]"):
            use(tmp_path / "fine.xlsx")


@pytest.mark.parametrize("suffix", ["csv", "parquet", "xlsx"])
def test_a_table_for_which_there_is_no_memory_is_an_error_and_not_an_abort(tmp_path, monkeypatch, suffix):
    """Polars ends the process when an allocation fails, as under `ulimit -v`."""
    write_table(pl.LazyFrame({"a": [1.5, 2.5]}), tmp_path / f"t.{suffix}")
    monkeypatch.setattr(read, "MEMORY_OF_POLARS", 1 << 60)
    with pytest.raises(DataError, match="memory"):
        read_table(tmp_path / f"t.{suffix}")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a limit of the address space")
def test_under_a_limit_of_memory_polars_is_not_started(tmp_path):
    """It starts threads with the first table that it reads, and ends the process if they get no memory."""
    write_table(pl.LazyFrame({"a": [1.5, 2.5]}), tmp_path / "t.parquet")
    code = """if True:
        import resource, sys
        from pathlib import Path
        from apportion.errors import DataError
        from apportion.tables import read
        held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + (40 << 20),) * 2)
        try:
            read.read_table(Path(sys.argv[1])).collect()
        except DataError as problem:
            print(problem)
    """
    command = [sys.executable, "-c", code, tmp_path / "t.parquet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "needs about 1.0 GiB of memory, more than is left; raise the limit" in done.stdout

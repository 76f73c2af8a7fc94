"""Files that mean harm, or that were cut, padded and scrambled: only errors of our own may come of them."""

import gzip
import json
import zlib
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from readers import PEOPLE, READERS, SHARES, parquet

from apportion.errors import DataError


@st.composite
def scrambled(draw: st.DrawFn, good: bytes) -> bytes:
    """Good bytes with a few of them changed, cut out, doubled, or nothing good at all."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=300))
    data = bytearray(good)
    reach = draw(
        st.sampled_from([32, 300, len(good)])
    )  # most of what matters is at the beginning or at the end
    for place in draw(st.lists(st.integers(-reach, reach - 1), min_size=0, max_size=4)):
        data[place % len(data)] = draw(st.integers(0, 255))
    start, stop = sorted(draw(st.tuples(*[st.integers(0, len(data))] * 2)))
    kind = draw(st.sampled_from(["keep", "keep", "cut", "drop", "double"]))
    return bytes(
        {
            "keep": data,
            "cut": data[:stop],
            "drop": data[:start] + data[stop:],
            "double": data[:stop] + data[start:],
        }[kind]
    )


@pytest.mark.parametrize("name", READERS)
def test_a_good_file_is_read(name):
    good, read, _ = READERS[name]
    read(good)


# polars ends the process on some damaged Parquet files; test_read_tables.py damages one that it survives
IN_PROCESS = [name for name in READERS if "parquet" not in name]


@pytest.mark.parametrize("name", IN_PROCESS)
def test_scrambled_bytes_raise_only_our_own_errors(name):
    good, read, error = READERS[name]

    @settings(max_examples=80, deadline=None, database=None, derandomize=True)
    @given(scrambled(good))
    def holds(data: bytes) -> None:
        with suppress(error):
            read(data)

    holds()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def tampered(draw: st.DrawFn, good: bytes) -> bytes:
    """Good JSON of which a few values are others, or gone."""
    values = json.loads(good)
    for _ in range(draw(st.integers(1, 3))):
        place = values
        while isinstance(place, dict | list) and place:
            key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
            if not isinstance(place[key], dict | list) or draw(st.integers(0, 2)) == 0:
                if draw(st.booleans()):
                    place[key] = draw(VALUES)
                else:
                    del place[key]
                break
            place = place[key]
    return json.dumps(values).encode()


JSON = ["result", "where", "recipe file", "recipe"]
JSON += [name for name in ("model",) if name in READERS]
WHOLE_LINES = ("adult", "log", "csv", "predicted")  # half of these may be a good file


@pytest.mark.parametrize("name", JSON)
def test_wrong_values_in_valid_json_raise_only_our_own_errors(name):
    good, read, error = READERS[name]

    @settings(max_examples=150, deadline=None, database=None, derandomize=True)
    @given(tampered(good))
    def holds(data: bytes) -> None:
        with suppress(error):
            read(data)

    holds()


def test_wrong_values_in_a_checkpoint_raise_only_our_own_errors():
    good, read, error = READERS["checkpoint"]
    length = int.from_bytes(good[:8], "little")
    header = json.loads(good[8 : 8 + length])

    @settings(max_examples=150, deadline=None, database=None, derandomize=True)
    @given(tampered(header["__metadata__"]["state"].encode()))
    def holds(data: bytes) -> None:
        changed = json.dumps(header | {"__metadata__": {"state": data.decode()}}).encode()
        with suppress(error):
            read(len(changed).to_bytes(8, "little") + changed + good[8 + length :])

    holds()


@pytest.mark.parametrize("name", [name for name in READERS if name not in WHOLE_LINES])
def test_a_file_cut_short_is_an_error(name):
    good, read, error = READERS[name]
    with pytest.raises(error):
        read(good[: len(good) // 2])


# --- tables


@pytest.fixture
def read_people(tmp_path):
    """Reads a table of people, beside which good proportions lie, and returns the error."""
    pytest.importorskip("polars")
    (tmp_path / "it.csv").write_bytes(PEOPLE)
    (tmp_path / "shares.csv").write_bytes(SHARES)

    def read(table: str = "it.csv", shares: str = "shares.csv") -> str:
        from apportion.encoding import TableEncoder
        from apportion.tables.check import check
        from apportion.tables.fit import feature_columns
        from apportion.tables.read import clean_errors
        from apportion.tables.spec import BagColumn, TableSpec

        spec = TableSpec(tmp_path / table, (BagColumn("bag", tmp_path / shares),))
        try:
            checked = check(spec)
            checked.report.raise_problems()
            with clean_errors(tmp_path / table):
                TableEncoder().fit(checked.frame.select(feature_columns(spec, checked)))
        except DataError as problem:
            return str(problem)
        return ""

    return read


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress, lambda data: b"\x28\xb5\x2f\xfd" + data])
def test_a_compressed_table_is_refused_unread(read_people, tmp_path, pack):
    (tmp_path / "it.csv").write_bytes(pack(PEOPLE))
    assert "it.csv" in read_people()


def test_proportions_without_a_row_are_refused(read_people, tmp_path):
    (tmp_path / "shares.csv").write_bytes(b"bag,no,yes\n")
    assert "bag 'a'" in read_people()


def test_a_panic_of_polars_is_an_error_of_ours(read_people, tmp_path):
    import polars as pl

    days = pl.Series([2**31 - 1, 5], dtype=pl.Int32).cast(pl.Date)  # a date that polars cannot print
    pl.DataFrame({"bag": days, "no": [0.5, 0.25], "yes": [0.5, 0.75]}).write_parquet(tmp_path / "s.parquet")
    assert "s.parquet" in read_people(shares="s.parquet")


def test_damage_that_shows_only_when_rows_are_read_is_an_error_of_ours(read_people, tmp_path):
    data = bytearray(parquet(PEOPLE))
    data[4:40] = bytes(36)  # the first page; the table of contents at the end is whole
    (tmp_path / "it.parquet").write_bytes(data)
    assert "it.parquet" in read_people("it.parquet")


def test_numbers_too_large_to_be_standardized_are_refused(read_people, tmp_path):
    (tmp_path / "it.csv").write_bytes(b"bag,n\na,1e308\na,-1e308\nb,1e308\nb,0\n")
    assert "'n'" in read_people()

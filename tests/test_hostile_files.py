"""Files that mean harm, or that were cut, padded and scrambled: only errors of our own may come of them."""

import base64
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


@pytest.mark.parametrize("name", READERS)
def test_nothing_but_an_error_of_our_own_comes_of_scrambled_bytes(name):
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
WHOLE_LINES = ("adult", "log", "csv", "scored")  # half of these may be a good file


@pytest.mark.parametrize("name", JSON)
def test_nothing_but_an_error_of_our_own_comes_of_other_values_in_good_json(name):
    good, read, error = READERS[name]

    @settings(max_examples=150, deadline=None, database=None, derandomize=True)
    @given(tampered(good))
    def holds(data: bytes) -> None:
        with suppress(error):
            read(data)

    holds()


def test_nothing_but_an_error_of_our_own_comes_of_other_values_in_a_checkpoint():
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


@pytest.fixture
def people(tmp_path):
    """A good table and good shares; what is asked of them."""
    pytest.importorskip("polars")
    from apportion.tables.asking import Asked

    (tmp_path / "it.csv").write_bytes(PEOPLE)
    (tmp_path / "it.parquet").write_bytes(parquet(PEOPLE))
    (tmp_path / "shares.csv").write_bytes(SHARES)
    return lambda name, shares="shares.csv": Asked(tmp_path / name, "bag", proportions=tmp_path / shares)


def refused(asked) -> str:
    from apportion.tables.checking import check, refuse
    from apportion.tables.holding import hold

    try:
        found = check(asked)
        refuse(found)
        hold(asked, found)
    except DataError as problem:
        return str(problem)
    pytest.fail("it was not refused")


def test_a_table_that_unpacks_to_far_more_than_its_file_is_refused(people, tmp_path):
    import polars as pl

    zeros = pl.zeros(40_000_000, dtype=pl.UInt8, eager=True)
    pl.DataFrame({"bag": zeros, "n": zeros}).write_parquet(tmp_path / "it.parquet")
    assert (tmp_path / "it.parquet").stat().st_size < 200_000
    assert "40,000,000 rows of 2 columns in" in refused(people("it.parquet"))
    (tmp_path / "it.csv").write_text("bag" + ",n" * 2000 + "\n" + "\n" * 200_000)  # short lines are filled up
    assert "200,001 rows of 2,001 columns in" in refused(people("it.csv"))
    (tmp_path / "it.csv").write_text(",".join(f"n{i}" for i in range(3001)))
    assert "has 3,001 columns, more than 3,000" in refused(people("it.csv"))


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress, lambda data: b"\x28\xb5\x2f\xfd" + data])
def test_a_table_that_is_compressed_is_refused_unread(people, tmp_path, pack):
    (tmp_path / "it.csv").write_bytes(pack(PEOPLE))
    assert refused(people("it.csv")).endswith("it.csv is compressed; unpack it first")


def test_shares_without_a_row_are_refused(people, tmp_path):
    (tmp_path / "shares.csv").write_bytes(b"bag,no,yes\n")
    assert "shares.csv has no row with a bag of it.csv" in refused(people("it.csv"))


def test_a_panic_of_the_reader_is_an_error_of_ours(people, tmp_path, capfd):
    import polars as pl

    days = pl.Series([2**31 - 1, 5], dtype=pl.Int32).cast(pl.Date)  # a date that polars cannot print
    pl.DataFrame({"bag": days, "no": [0.5, 0.25], "yes": [0.5, 0.75]}).write_parquet(tmp_path / "s.parquet")
    assert "out-of-range date" in refused(people("it.csv", "s.parquet"))


def test_damage_that_shows_only_when_rows_are_read_is_an_error_of_ours(people, tmp_path):
    data = bytearray(parquet(PEOPLE))
    data[4:40] = bytes(36)  # the first page; the table of contents at the end is whole
    (tmp_path / "it.parquet").write_bytes(data)
    assert "it.parquet cannot be read as parquet: " in refused(people("it.parquet"))


CRASH = """
UEFSMRUEFRQVJkwVBBUAAAAotS/9IApRAAABAAAAYQEAAABiFQAVEhUkLBUIFRAVBhUGHDYAKAFiGAFhAAAAKLUv/SAJSQAAAgAA
AAgBAQMMFQwZNQAGEBkYA2JhZxUMFggWdhaaASZIJggcNgAoAWIYAWEAABUAFTwVRiwVCBUAFQYVBhw2AigIAAAAAAAAHEAYCAAA
AAAAAPg/AAAAKLUv/SAe1QAAmAIAAAADDQD4PwBAAAAAAAAAHEACAGDGBYwVChklAAYZGAFuFQwWCBaOARaYASbsATw2AigIAAAA
AAAAHEAYCAAAAAAAAPg/AAAVBBUUFSZMFQQVAAAAKLUv/SAKUQAAAQAAAHgBAAAAeRUAFRIVJCwVDxUQFQYVBhw2AigBeRgBeAAA
ACi1L/0gCUkAAAIAAAADBwEDAhUMGTUABhAZGBUCGUxIBHJvb3QVBgAVDCUCGANiYWclAEwcAAAAFQolAhgBbgAVDCUCGAFjJQBM
HAAAABYIGRwZPCbiARwVDBk1AAYQGRgDYmFnFQwWCBZ2FpoBJkgmCBw2ACgBYhgBYQAAFsoGFRQWyAUVIgAmhAMcFQoZJQAGGRgB
bhUMFggWjgEWmAEm7AE8NgIoCAAAAAAAABxAGAgAAAAAAAD4PwAAFt4GFRgW6gUVPgAmvgUcFQwZNQAGEBkYAWMVDBYIFnYWmgEm
pAQm5AMcNgIoAXkYAXgAABb2BhUWFqgGFSIAFvoCFggmCBbMAxQAABkcGAxBUlJPVzpzY2hlbWEYkAIvLy8vLzhRQUFBQUVBQUFB
OHYvLy94UUFBQUFFQUFFQUFBQUtBQXNBQ0FBS0FBUUErUC8vL3d3QUFBQUlBQWdBQUFBRUFBTUFBQUJjQUFBQUxBQUFBQVFBQUFD
Yy8vLy9HQUFBQUJBQUFBQUlBQUFBQVJRQUFBQUFBQUNjLy8vL0FRQUFBR01BQUFEQS8vLy9JQUFBQUJBQUFBQUlBQUFBQVFNQUFB
QUFBQUQ2Ly8vL0FnQUdBQVlBQkFBQkFBQUFiZ0FBQU96Ly8vOHNBQUFBSUFBQUFCZ0FBQUFCRkFBQUVBQVNBQVFBRUFBUkFBZ0FB
QUFNQUFBQUFBRDgvLy8vQkFBRUFBTUFBQUJpWVdjQQAYTlBvbGFycyAocHl0aG9uKSB2ZXJzaW9uIDIuMS4wIChidWlsZCA3Zjkw
MmJkM2ZmZDI3ZmY4MmQxNDI3OGEwOWEyOTVmZjJmN2FlZDkyKRk8HAAAHAAAHAAAAG0CAABQQVIx
"""


def test_a_file_on_which_the_reader_would_abort_is_refused_and_the_next_one_is_read(people, tmp_path):
    """Found by fuzzing: polars wants two exabytes of memory for it, and aborts."""
    (tmp_path / "it.parquet").write_bytes(base64.b64decode(CRASH))
    assert "its reader crashed" in refused(people("it.parquet"))
    READERS["parquet"].read(READERS["parquet"].good)


HIDDEN = """
UEFSMRUEFRQVJkwVBBUAAAAotS/9IApRAAABAAAAYQEAAABiFQAVEhUkLBUIFRAVBhUGHDYAKAFiGAFhAAAAKLUv/SAJSQAAAgAAAAgB
IQMMFQwZNQAGEBkYA2JhZxUMFggWdhaaASZIJggcNgAoAWIYAWEAABUAFTwVRiwVCBUAFQYVBhw2AigIAAAAAAAAHEAYCAAAAAAAAPg/
AAAAKLUv/SAe1QAAmAIAAAADDQD4PwBAAAAAAAAAHEACAGDGBYwVChklAAYZGAFuFQwWCBaOARaYASbsATw2AigIAAAAAAAAHEAYCAAA
AAAAAPg/AAAVBBUUFSZMFQQVAAAAKLUv/SAKUQAAAQAAAHgBAAAAeRUAFRIVJCwVAxUQFQYVBhw2AigBeRgBeAAAACi1L/0gCUkAAAIA
AAADBwEDAhUMGTUABhAZGBUCGUxIBHJvb3QVBgAVDCUCGANiYWclAEwcAAAAFQolAhgBbgAVDCUCGAFjJQBMHAAAABYIGRwZPCbiARwV
DBk1AAYQGRgDYmFnFQwWCBZ2FpoBJkgmCBw2ACgBYhgBYQAAFsoGFRQWyAUVIgAmhAMcFQoZJQAGGRgBbhUMFggWjgEWmAEm7AE8NgIo
CAAAAAAAABxAGAgAAAAAAAD4PwAAFt4GFRgW6gUVPgAmvgUcFQwZNQAGEBkYAWMVDBYIFnYWmgEmpAQm5AMcNgIoAXkYAXgAABb2BhUW
FqgGFSIAFvoCFggmCBbMAxQAABkcGAxBUlJPVzpzY2hlbWEYkAIvLy8vLzhRQUFBQUVBQUFBOHYvLy94UUFBQUFFQUFFQUFBQUtBQXNB
Q0FBS0FBUUErUC8vL3d3QUFBQUlBQWdBQUFBRUFBTUFBQUJjQUFBQUxBQUFBQVFBQUFDYy8vLy9HQUFBQUJBQUFBQUlBQUFBQVJRQUFB
QUFBQUNjLy8vL0FRQUFBR01BQUFEQS8vLy9JQUFBQUJBQUFBQUlBQUFBQVFNQUFBQUFBQUQ2Ly8vL0FnQUdBQVlBQkFBQkFBQUFiZ0FB
QU96Ly8vOHNBQUFBSUFBQUFCZ0FBQUFCRkFBQUVBQVNBQVFBRUFBUkFBZ0FBQUFNQUFBQUFBRDgvLy8vQkFBRUFBTUFBQUJpWVdjQQAY
TlBvbGFycyAocHl0aG9uKSB2ZXJzaW9uIDIuMS4wIChidWlsZCA3ZjkwMmJkM2ZmZDI3ZmY4MmQxNDI3OGEwOWEyOTVmZjJmN2FlZDky
KRk8HAAAHAAAHAAAAG0CAABQQVIx
"""


def test_a_file_whose_first_column_hides_that_the_reader_would_abort_is_refused(people, tmp_path):
    """Found by fuzzing: polars panics and says nothing of it in one column, and aborts in another."""
    (tmp_path / "it.parquet").write_bytes(base64.b64decode(HIDDEN))
    assert "it has 0 of the 4 rows that it speaks of" in refused(people("it.parquet"))
    READERS["scored parquet"].read(READERS["scored parquet"].good)


def test_a_table_that_ends_before_its_end_is_an_error_and_not_a_shorter_table(tmp_path):
    import polars as pl

    from apportion.tables.reading import batches

    class Short:
        """A table that says that it has three rows, and gives two."""

        def select(self, what: object) -> "pl.LazyFrame":
            whole = pl.LazyFrame({"a": [1, 2, 3]})
            return whole.select(pl.len()) if isinstance(what, pl.Expr) else whole.head(2)

    with pytest.raises(DataError, match="the table ends 1 rows before its end; it is damaged"):
        list(batches(Short(), ["a"]))


def test_numbers_too_large_to_be_standardized_are_refused(people, tmp_path):
    (tmp_path / "it.csv").write_bytes(b"bag,n\na,1e308\na,-1e308\nb,1e308\nb,0\n")
    assert "column 'n' has numbers too large" in refused(people("it.csv"))


def test_a_row_that_a_model_cannot_score_is_named(tmp_path):
    pytest.importorskip("polars")
    read, error = READERS["scored"].read, READERS["scored"].error
    with pytest.raises(error, match=r"row 2, has no probabilities.*too large"):
        read(b"bag,n,c\na,1,x\na,1e300,y\n")

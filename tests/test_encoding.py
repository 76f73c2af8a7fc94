"""TableEncoder: equal to scikit-learn's transformers, the same for every kind of frame, safe to read back."""

import json
import pickle
from datetime import UTC, date, datetime, timedelta
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from apportion.encoding import BATCH, MAX_CATEGORIES, TableEncoder, bound_tails
from apportion.errors import DataError

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")


def encode(values: Any, new: Any = None, **options: Any) -> np.ndarray:
    encoder = TableEncoder(**options).fit(pl.DataFrame({"a": values}))
    return encoder.transform(pl.DataFrame({"a": values if new is None else new}))


def mixed_table(n: int) -> dict[str, list[Any]]:
    """A column of every kind, with and without missing values."""
    rng = np.random.default_rng(7)
    days = [date(2020, 1, 1) + timedelta(days=int(day)) for day in rng.integers(-20_000, 900, n)]
    return {
        "number": (rng.standard_normal(n) * 3 + 7).tolist(),
        "number with gaps": [None if value < -1 else value for value in rng.standard_normal(n).tolist()],
        "integer": rng.integers(0, 9, n).tolist(),
        "rare texts": [f"c{value}" for value in rng.integers(0, 50, n)],
        "text with gaps": [None if value == 2 else f"c{value}" for value in rng.integers(0, 5, n)],
        "boolean": (rng.random(n) < 0.3).tolist(),
        "boolean with gaps": [None if value == 2 else bool(value) for value in rng.integers(0, 3, n)],
        "date": days,
        "time with gaps": [
            None if day.day == 1 else datetime(day.year, day.month, day.day, 7) for day in days
        ],
        "constant": [3.3] * n,
    }


# --- oracles


def test_numbers_equal_scikit_learn():
    rng = np.random.default_rng(0)
    raw = rng.lognormal(3, 2, 501)
    raw[rng.random(501) < 0.2] = np.nan
    new = np.array([np.nan, 7.5, -1e6])
    imputer, scaler = SimpleImputer(strategy="median", add_indicator=True), StandardScaler()
    expected = imputer.fit_transform(raw[:, None])
    expected[:, :1] = bound_tails(scaler.fit_transform(expected[:, :1]))
    expected_new = imputer.transform(new[:, None])
    expected_new[:, :1] = bound_tails(scaler.transform(expected_new[:, :1]))
    np.testing.assert_allclose(encode(raw), expected, atol=1e-5)
    np.testing.assert_allclose(encode(raw, new), expected_new, rtol=1e-5)


def test_tails_are_bounded_smoothly_and_keep_their_order():
    z = np.array([-1e308, -50.0, -3.0, -0.1, 0.0, 0.1, 3.0, 50.0, 1e308])
    bounded = bound_tails(z)
    assert (np.diff(bounded) >= 0).all()
    np.testing.assert_allclose(bounded, -bounded[::-1])
    np.testing.assert_allclose(bounded[4:], [0, 0.1 / np.hypot(1, 0.1 / 3), 3 / 2**0.5, 2.9946, 3], rtol=1e-4)


@pytest.mark.parametrize("values", [[0, 1], [0.0, 1.0], [1, 2], [-7.5, 100.0]])
def test_numbers_with_two_values_become_zero_and_one(values):
    raw = [*values, None, values[1], values[1]]
    features = encode(pl.Series(raw), [*values, None])
    assert features.tolist() == [[0, 0], [1, 0], [1, 1]]  # missing: the more frequent value, and a flag


def test_categories_equal_scikit_learn_with_the_rare_ones_together():
    names = [f"c{i:02d}" for i in range(MAX_CATEGORIES + 5)]
    raw = np.repeat(names, np.arange(3, len(names) + 3))
    oracle = OneHotEncoder(
        max_categories=MAX_CATEGORIES + 1, handle_unknown="infrequent_if_exist", sparse_output=False
    )
    np.testing.assert_array_equal(encode(raw), oracle.fit_transform(raw[:, None]))
    new = np.array(["c30", "c00", "unseen"])
    np.testing.assert_array_equal(encode(raw, new), oracle.transform(new[:, None]))


def test_booleans_equal_scikit_learn():
    raw = [True, True, False, None]
    floats = np.array([[1.0], [1.0], [0.0], [np.nan]])
    oracle = SimpleImputer(strategy="most_frequent", add_indicator=True)
    np.testing.assert_array_equal(encode(raw), oracle.fit_transform(floats))


def test_dates_are_standardized_days_and_a_point_on_the_circle_of_the_year():
    days = [date(1999, 1, 1), date(2001, 6, 30), date(2020, 2, 29)]
    features = encode(days, [*days, None])
    number = np.array([(day - date(1970, 1, 1)).days for day in days], float)
    np.testing.assert_allclose(features[:3, 0], (number - number.mean()) / number.std(), rtol=1e-5)
    np.testing.assert_allclose((features[:3, 1:] ** 2).sum(1), 1, rtol=1e-6)
    assert features[0, 2] == pytest.approx(1, abs=1e-3)  # the cosine on the first of January
    assert features[3, 1:].tolist() == [0, 0]


def test_a_time_with_a_zone_is_its_moment_in_utc():
    moment = datetime(2020, 5, 1, 12, tzinfo=UTC)
    zoned = pl.Series([moment]).dt.convert_time_zone("Asia/Tokyo")
    other = [datetime(2020, 5, 1), datetime(2020, 5, 3)]
    expected = encode(other, [moment.replace(tzinfo=None)])
    np.testing.assert_array_equal(encode(other, zoned), expected)


def test_missing_and_unseen_categories():
    flagged = TableEncoder().fit(pl.DataFrame({"a": ["x", None, "y"]}))
    assert flagged.get_feature_names_out().tolist() == ["a = x", "a = y", "a = other", "a is missing"]
    new = pl.DataFrame({"a": ["y", None, "z"]})
    assert flagged.transform(new).tolist() == [[0, 1, 0, 0], [0, 0, 0, 1], [0.5, 0.5, 0, 0]]
    # without missing values in fit, a missing value is unseen; nothing was learned about "other"
    assert encode(["x", "y"], ["x", None]).tolist() == [[1, 0, 0], [0.5, 0.5, 0]]
    # with more categories than features, "other" was seen
    many = [str(i) for i in range(10, 60)]
    assert encode(many, ["z", "59"]).tolist() == [[0] * MAX_CATEGORIES + [1]] * 2


@pytest.mark.parametrize("value", [0.0, 5.0, 0.1, 1e9 + 0.1])
def test_a_constant_becomes_zero(value):
    assert encode([value] * 7) == pytest.approx(np.zeros((7, 1)), abs=1e-6)


@pytest.mark.parametrize("dtype", [pl.Int8, pl.UInt64, pl.Float32, pl.Decimal(10, 2)])
def test_all_types_of_numbers_are_numbers(dtype):
    expected = encode([1.0, 2.0, 6.0])
    np.testing.assert_array_equal(encode(pl.Series([1, 2, 6]).cast(dtype)), expected)


def test_numbers_can_be_categories():
    encoder = TableEncoder(categorical=["a"]).fit(pl.DataFrame({"a": [10, 9, 9]}))
    assert encoder.columns_[0].categories == ("10", "9")


# --- frames


def frames(table: dict[str, list[Any]]) -> dict[str, Any]:
    polars = pl.DataFrame(table)
    texts = [name for name, dtype in polars.schema.items() if dtype == pl.String]
    made = {
        "polars": polars,
        "polars, lazy": polars.lazy(),
        "polars, categorical": polars.with_columns(pl.col(texts).cast(pl.Categorical)),
        "pandas": pd.DataFrame(table),
        "pandas, nullable": pd.DataFrame(table).convert_dtypes(),
        "pandas, categorical": pd.DataFrame(table).astype(dict.fromkeys(texts, "category")),
        "pandas, with an index": pd.DataFrame(table, index=range(5, 5 + polars.height)),
    }
    if find_spec("pyarrow") is not None:
        made["pandas, pyarrow"] = pd.DataFrame(table).convert_dtypes(dtype_backend="pyarrow")
    return made


def test_every_kind_of_frame_has_the_same_features_bit_for_bit():
    seen, new = frames(mixed_table(3_000)), frames(mixed_table(1_000))
    rows = np.random.default_rng(0).random(3_000) < 0.7
    encoders = {kind: TableEncoder().fit(frame, rows=rows) for kind, frame in seen.items()}
    expected = encoders["polars"].transform(new["polars"])
    assert np.isfinite(expected).all()
    for kind, encoder in encoders.items():
        assert encoder.columns_ == encoders["polars"].columns_, kind
        assert encoder.transform(new[kind]).tobytes() == expected.tobytes(), kind


def test_only_the_selected_rows_are_learned_from():
    table = mixed_table(400)
    rows = np.arange(400) % 3 > 0
    part = pl.DataFrame(table).filter(pl.Series(rows))
    assert TableEncoder().fit(pl.DataFrame(table), rows=rows).columns_ == TableEncoder().fit(part).columns_


def test_rows_are_written_to_their_places():
    n = BATCH + 100_000  # more than one batch, and more than one slice
    frame = pl.DataFrame({"a": np.arange(n), "b": np.arange(n) % 5 == 0})
    encoder = TableEncoder().fit(frame)
    features = encoder.transform(frame)
    places = np.random.default_rng(0).permutation(n)
    for kind in (frame, frame.lazy()):
        out = np.empty_like(features)
        assert encoder.transform(kind, out=out, places=places) is out
        np.testing.assert_array_equal(out[places], features)


def test_whole_numbers_with_few_values_also_get_an_indicator_each():
    raw = [3, 1, 2, 2, None]
    encoder = TableEncoder().fit(pl.DataFrame({"a": raw}))
    assert encoder.get_feature_names_out().tolist() == ["a", "a = 1", "a = 2", "a = 3", "a is missing"]
    features = encoder.transform(pl.DataFrame({"a": [1, 3, 7, None]}))
    assert features[:, 1:].tolist() == [[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1]]
    assert features[3, 0] == encode(raw)[2, 0]  # the median
    for many in (np.arange(11), np.arange(5) + 0.5, np.r_[np.arange(5), 0.5]):
        assert encode(many).shape == (len(many), 1)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int16, bool])
def test_an_array_has_the_features_of_a_frame_of_numbers_bit_for_bit(dtype):
    raw = np.random.default_rng(0).lognormal(2, 2, (5_000, 4)).astype(dtype)
    raw[:, 1] = raw[:, 1] > 0
    raw[:, 3] = np.arange(5_000) % 4
    if raw.dtype.kind == "f":
        raw[::7, 2] = np.nan
    rows, places = np.arange(5_000) % 3 > 0, np.random.default_rng(1).permutation(5_000)
    frame = pl.DataFrame(raw.astype(float), schema=["x0", "x1", "x2", "x3"])
    one, other = TableEncoder().fit(raw, rows=rows), TableEncoder().fit(frame, rows=rows)
    assert one.columns_ == other.columns_
    assert one.get_feature_names_out().tolist() == other.get_feature_names_out().tolist()
    expected = other.transform(frame)
    np.testing.assert_array_equal(one.transform(raw), expected)
    out = np.empty_like(expected)
    one.transform(raw, out=out, places=places)
    np.testing.assert_array_equal(out[places], expected)
    copy = TableEncoder.from_json(json.loads(json.dumps(one.to_json())))
    np.testing.assert_array_equal(copy.transform(raw), expected)
    for wrong in (frame, raw[:, :3], raw[:, 0]):
        with pytest.raises(DataError):
            copy.transform(wrong)


def test_other_columns_are_ignored_and_their_order_is_free():
    frame = pl.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]})
    encoder = TableEncoder().fit(frame)
    other = frame.select("b", pl.lit("p1").alias("precinct"), "a")
    np.testing.assert_array_equal(encoder.transform(other), encoder.transform(frame))


# --- as a scikit-learn transformer


def test_it_can_be_cloned_pickled_and_put_in_a_pipeline():
    frame = pd.DataFrame(mixed_table(50))
    encoder = TableEncoder(categorical=["integer"]).fit(frame)
    features = encoder.transform(frame)
    assert features.dtype == np.float32
    assert features.shape == (50, len(encoder.get_feature_names_out()))
    copy = clone(encoder)
    assert copy.get_params() == {"categorical": ["integer"]}
    with pytest.raises(NotFittedError):
        copy.transform(frame)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(encoder)).transform(frame), features)  # noqa: S301
    np.testing.assert_array_equal(make_pipeline(encoder, "passthrough").fit_transform(frame), features)
    named = TableEncoder().set_output(transform="pandas").fit_transform(frame)
    assert list(named.columns) == TableEncoder().fit(frame).get_feature_names_out().tolist()


# --- errors


@pytest.mark.parametrize(
    ("fitted", "new", "name"),
    [
        ([1.0, 2.0], ["x", "y"], "text for a number"),
        ([1.0, 2.0], [True, False], "boolean for a number"),
        ([True, False], [0, 1], "number for a boolean"),
        ([1.0, 2.0], [1.0, np.inf], "infinite, later"),
        ([1.0, -np.inf], None, "infinite, in fit"),
        ([1e300, -1e300, 0.0], None, "too large to be squared"),
        ([[1], [2]], None, "lists"),
        (pl.Series([None, None], dtype=pl.Float64), None, "no value at all"),
    ],
)
def test_values_that_cannot_be_encoded_are_errors(fitted, new, name):
    with pytest.raises(DataError, match="'a'"):
        encode(fitted, new)


def test_missing_columns_and_other_objects_are_errors():
    encoder = TableEncoder().fit(pl.DataFrame({"a": [1, 2]}))
    with pytest.raises(DataError, match="'a'"):
        encoder.transform(pl.DataFrame({"b": [1, 2]}))
    with pytest.raises(DataError, match="'c'"):
        TableEncoder(categorical=["c"]).fit(pl.DataFrame({"b": [1, 2]}))
    for wrong in ([[1, 2]], np.array([["a"]]), np.zeros(3), np.zeros((3, 0))):
        with pytest.raises(DataError):
            TableEncoder().fit(wrong)
    with pytest.raises(DataError):
        TableEncoder(categorical=["x0"]).fit(np.zeros((3, 1)))
    with pytest.raises(DataError):
        TableEncoder().fit(pl.DataFrame())


# --- JSON


def test_the_state_goes_through_json():
    frame = pl.DataFrame(mixed_table(200))
    encoder = TableEncoder(categorical=["integer"]).fit(frame)
    copy = TableEncoder.from_json(json.loads(json.dumps(encoder.to_json())))
    assert copy.columns_ == encoder.columns_
    assert copy.get_params() == {"categorical": ("integer",)}
    np.testing.assert_array_equal(copy.transform(frame), encoder.transform(frame))


@pytest.mark.parametrize(
    "change",
    [
        {"name": 3},
        {"name": "\ud800"},
        {"kind": "__class__"},
        {"kind": ["number"]},
        {"fill": "0"},
        {"fill": float("nan")},
        {"mean": 10**400},
        {"mean": True},
        {"scale": 0.0},
        {"scale": -1.0},
        {"categories": "ab"},
        {"categories": ["b", "a"]},
        {"categories": ["a", "a"]},
        {"categories": [f"{i:02d}" for i in range(MAX_CATEGORIES + 1)]},
        {"indicator": 1},
        {"bounded": "yes"},
        {"levels": "12"},
        {"levels": [1, "2"]},
        {"levels": [2.0, 1.0]},
        {"levels": [0.5]},
        {"levels": [float("nan")]},
        {"levels": list(range(11))},
        {"kind": "boolean", "levels": [1]},
        {"more": 0},
    ],
)
def test_a_hostile_state_is_refused(change):
    state = TableEncoder().fit(pl.DataFrame({"a": [1.0, 2.0]})).to_json()
    state["columns"][0] |= change
    with pytest.raises(DataError):
        TableEncoder.from_json(state)


@pytest.mark.parametrize("change", [{"named": 1}, {"categorical": "a"}, {"named": False, "more": 0}])
def test_a_hostile_state_of_the_whole_is_refused(change):
    state = TableEncoder().fit(pl.DataFrame({"a": ["x", "y"]})).to_json()
    for other in (change, {"named": False}):  # the columns of an array are numbers
        with pytest.raises(DataError):
            TableEncoder.from_json(state | other)


@pytest.mark.parametrize(
    "state", [None, [], {}, {"categorical": [], "columns": [], "named": True}, {"columns": [{}]}]
)
def test_a_state_of_another_shape_is_refused(state):
    with pytest.raises(DataError):
        TableEncoder.from_json(state)
    twice = TableEncoder().fit(pl.DataFrame({"a": [1.0, 2.0]})).to_json()
    twice["columns"] *= 2
    with pytest.raises(DataError):
        TableEncoder.from_json(twice)

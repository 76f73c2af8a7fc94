"""Tables larger than memory: arrays in files give the same model to the last bit, and leave nothing."""

import hashlib
import os
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

pl = pytest.importorskip("polars")

from apportion import ProportionClassifier, Proportions, _scratch, decisions, encoding, fitting  # noqa: E402
from apportion.bags import instances  # noqa: E402
from apportion.bags.build import sort_rows  # noqa: E402
from apportion.encoding import TableEncoder  # noqa: E402
from apportion.errors import ApportionWarning, DataError  # noqa: E402
from apportion.methods import linear  # noqa: E402

N = 1500


def table() -> tuple[pl.DataFrame, dict[str, Any]]:
    """Columns of every kind, and the shares of bags whose rows are in random order.

    The last third has numbers where there were none, fractions where numbers were whole, and new categories.
    """
    random = np.random.default_rng(0)
    bag = random.permutation(N) // 50
    x = random.normal(size=(N, 3))
    x[:, 0] += np.sin(bag)
    late = np.arange(N) >= 2 * N // 3
    yes = x[:, 0] + random.normal(size=N) > 0
    share = np.bincount(bag, yes) / 50
    columns = {
        "bag": [f"b{i}" for i in bag],
        "plain": x[:, 0],
        "gaps": np.where((random.random(N) < 0.3) & (bag < 20), np.nan, x[:, 1]),
        "late number": np.where(late, x[:, 2], np.nan),
        "late fraction": np.where(late, x[:, 2], random.integers(0, 4, N)),
        "level": random.integers(0, 4, N).astype(np.int8),
        "town": [("late" if each else "early") + str(i % 3) for i, each in enumerate(late)],
        "name": [f"n{i}" for i in random.integers(0, 300, N)],
        "flag": random.random(N) < 0.3,
        "day": random.integers(0, 9000, N).astype(np.int32),
    }
    frame = pl.DataFrame(columns).with_columns(
        pl.col("gaps", "late number").fill_nan(None),
        pl.col("town").cast(pl.Categorical),
        pl.col("day").cast(pl.Date),
        pl.when(late).then(pl.col("name")).alias("name"),
    )
    return frame, {f"b{i}": {"no": 1 - p, "yes": p} for i, p in enumerate(share)}


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    """One split, and one ensemble of trees, as for large tables."""
    monkeypatch.setattr(fitting, "MOST_ROWS_FOR_PARTS", 0)


@pytest.fixture
def no_memory(monkeypatch, tmp_path):
    """Returns a function after which arrays lie in files, in `tmp_path`, and are put into order in blocks."""

    def start() -> None:
        monkeypatch.setattr(_scratch, "SMALL", 0)
        monkeypatch.setattr(_scratch, "available_memory", lambda: 0)
        monkeypatch.setattr(_scratch, "temporary_folder", lambda: tmp_path)
        monkeypatch.setattr(instances, "BLOCK", 20_000)
        monkeypatch.setattr(encoding, "BATCH", 130)

    return start


def digest(model: ProportionClassifier) -> str:
    parts = [value.numpy().tobytes() for _, value in sorted(model.model_.state_dict().items())]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def fit(X: Any, model: str, **data: Any) -> ProportionClassifier:
    epochs = {"epochs": 2, "student_epochs": 1} if model == "mlp" else {}
    return ProportionClassifier(model, random_state=0, **epochs).fit(X, **data)


def assert_same(found: ProportionClassifier, expected: ProportionClassifier) -> None:
    assert digest(found) == digest(expected)
    assert found.encoder_.to_json() == expected.encoder_.to_json()
    assert (found.transduction_ == expected.transduction_).all()
    assert (found.share_prices_ == expected.share_prices_).all()


@pytest.mark.parametrize("model", ["linear", "trees", "mlp"])
@pytest.mark.parametrize("known", ["all", "most", "validation"])
def test_arrays_in_files_give_the_same_model(model, known, tmp_path, no_memory):
    frame, shares = table()
    proportions: Any = shares
    if known == "most":
        some = {bag: None if i < 7 else share for i, (bag, share) in enumerate(shares.items())}
        proportions = Proportions(some, missing_bags="allow")
    path = tmp_path / "rows.parquet"
    frame.write_parquet(path, row_group_size=170)
    expected = fit(frame, model, bags="bag", proportions=proportions)
    no_memory()
    slow = pytest.warns(ApportionWarning, match="random order") if model == "mlp" else nullcontext()
    with slow:
        found = fit(pl.scan_parquet(path), model, bags="bag", proportions=proportions)
    assert_same(found, expected)
    rows = frame.drop("bag")
    assert (found.predict_proba(rows) == expected.predict_proba(rows)).all()
    assert os.listdir(tmp_path) == ["rows.parquet"]


@pytest.mark.filterwarnings("ignore:groupings")  # have different overall shares
def test_groupings_known_labels_weights_and_arrays_in_files(tmp_path, no_memory):
    frame, shares = table()
    X = np.memmap(tmp_path / "rows", np.float32, "w+", shape=(N, 2))
    X[:] = frame.select("plain", pl.col("level").cast(pl.Float32)).to_numpy()
    bags = frame["bag"].to_numpy()
    other = np.arange(N) % 30
    twice = {"bag": bags, "other": other}
    half = {"no": 0.5, "yes": 0.5}
    counts = {i: {"no": 0.4 + 0.01 * i, "yes": 0.6 - 0.01 * i} if i % 2 else half for i in range(30)}
    several = {"bags": twice, "proportions": {"bag": shares, "other": counts}}
    one = {"bags": bags, "proportions": shares}
    cases = [
        ("linear", one | {"sample_weight": 1.0 + np.arange(N) % 3}),
        ("trees", one | {"known_labels": {5: "yes", 1001: "no"}}),
        ("linear", several),
    ]
    expected = [fit(np.array(X), model, **data) for model, data in cases]
    no_memory()
    found = [fit(X, model, **data) for model, data in cases]
    for one_found, one_expected in zip(found, expected, strict=True):
        assert_same(one_found, one_expected)


@pytest.mark.parametrize("rows", [1, 7, 100, 170, N])
def test_an_encoder_does_not_depend_on_the_number_of_pieces(rows, tmp_path, monkeypatch):
    frame = table()[0].drop("bag")
    monkeypatch.setattr(encoding, "BATCH", max(rows, 5))
    frame = frame.tail(300) if rows == 1 else frame
    frame.write_parquet(tmp_path / "rows.parquet", row_group_size=rows)
    lazy = pl.scan_parquet(tmp_path / "rows.parquet")
    expected, found = TableEncoder().fit(frame), TableEncoder().fit(lazy)
    assert found.to_json() == expected.to_json()
    assert (found.transform(lazy) == expected.transform(frame)).all()
    filtered = lazy.filter(pl.col("plain") > 0)  # cannot be read slice by slice
    assert (found.transform(filtered) == expected.transform(frame.filter(pl.col("plain") > 0))).all()


def test_means_deviations_and_medians_are_those_of_numpy():
    x = np.random.default_rng(0).gamma(1.0, size=5001)
    column = TableEncoder().fit(x[:, None]).columns_[0]
    assert (column.mean, column.scale, column.fill) == (x.mean(), x.std(), np.median(x))


def test_files_have_no_name_while_a_model_is_fitted(tmp_path, no_memory):
    frame, shares = table()
    no_memory()
    array = _scratch.empty_array((7, 3), np.int16)
    mapped = [array, _scratch.empty_array(5, "<U3")]
    assert all(map(_scratch.is_mapped, mapped))
    array[:] = 3
    assert array.sum() == 63
    states = ProportionClassifier("linear", random_state=0).iter_fit(frame, bags="bag", proportions=shares)
    next(states)
    assert os.listdir(tmp_path) == []
    states.close()


def test_a_disk_without_room_is_an_error_before_anything_is_encoded(tmp_path, no_memory, monkeypatch):
    frame, shares = table()
    no_memory()
    monkeypatch.setattr(TableEncoder, "transform", lambda *_, **__: pytest.fail("encoded"))
    usage = os.statvfs(tmp_path)
    free = usage.f_bavail * usage.f_frsize
    monkeypatch.setattr(_scratch.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(DataError, match="TMPDIR"):
        fit(frame, "linear", bags="bag", proportions=shares)
    if hasattr(os, "posix_fallocate"):
        with pytest.raises(DataError, match="TMPDIR"):
            _scratch.empty_array(4 * free, np.float64)


def test_memory_within_the_limits_of_cgroups(tmp_path):
    own = tmp_path / "own"
    own.write_text("5:cpu,memory:/job/step\n0::/user/session\n")
    levels = {
        "user": {"memory.max": "1000", "memory.current": "700", "memory.stat": "anon 600\ninactive_file 50"},
        "user/session": {"memory.max": "max", "memory.current": "10", "memory.stat": ""},
        "memory/job/step": {
            "memory.limit_in_bytes": "5000",
            "memory.usage_in_bytes": "4000",
            "memory.stat": "active_file 1\ntotal_active_file 30\ntotal_inactive_file 4",
        },
    }
    for level, files in levels.items():
        (tmp_path / level).mkdir(parents=True)
        for name, text in files.items():
            (tmp_path / level / name).write_text(text)
    assert sorted(_scratch._cgroup_rooms(tmp_path, own)) == [350, 1034]
    assert _scratch._cgroup_rooms(tmp_path, tmp_path / "none") == []
    assert 0 < _scratch.available_memory() < 1 << 50


def test_arrays_are_mapped_before_memory_is_full(monkeypatch, tmp_path):
    room = 1 << 20
    monkeypatch.setattr(_scratch, "SMALL", 1 << 10)
    monkeypatch.setattr(_scratch, "available_memory", lambda: room)
    monkeypatch.setattr(_scratch, "temporary_folder", lambda: tmp_path)
    held = []
    for _ in range(50):
        array = _scratch.empty_array(100_000, np.uint8)
        if not _scratch.is_mapped(array):
            room -= array.nbytes
            held.append(array)
    assert 1 <= len(held) <= 5
    assert not _scratch.is_mapped(_scratch.empty_array(1000, np.uint8))


def test_rows_are_sorted_by_bag_in_their_order(monkeypatch):
    number = np.random.default_rng(0).integers(0, 40, 5000).astype(np.int32)
    monkeypatch.setattr(_scratch, "PIECE", 333)
    source = sort_rows(number, np.bincount(number))
    assert (source == np.argsort(number, kind="stable")).all()


def test_a_bag_larger_than_a_piece_has_the_same_loss(monkeypatch):
    from apportion.bags.bags import Bags

    x = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
    sizes = torch.tensor([300, 150, 50])
    shares = torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1], [0.1, 0.1, 0.8]])
    bags = Bags(x, sizes, shares, torch.arange(500), range(3), weight=torch.rand(500) + 0.1)
    weights = np.random.default_rng(0).normal(size=15)
    expected = linear.bag_loss(weights, bags, 0.1)
    monkeypatch.setattr(linear, "MOST_ROWS_AT_ONCE", 41)
    found = linear.bag_loss(weights, bags, 0.1)
    assert found[0] == pytest.approx(expected[0], rel=1e-12)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
def test_prices_of_very_many_rows_come_from_some_of_them(weighted, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    log_probs = torch.randn(20_000, 3, generator=generator).log_softmax(1)
    weight = torch.rand(20_000, generator=generator) if weighted else torch.ones(20_000)
    shares = torch.tensor([0.5, 0.4, 0.1], dtype=torch.float64)
    monkeypatch.setattr(decisions, "MOST_ROWS_FOR_PRICES", 4_000)
    prices = decisions.share_prices(log_probs, shares, weight if weighted else None)
    codes = torch.from_numpy(decisions.decide_by_prices(log_probs.exp().numpy(), prices))
    predicted = torch.bincount(codes, weight.double()) / weight.sum()
    torch.testing.assert_close(predicted, shares, atol=0.02, rtol=0)

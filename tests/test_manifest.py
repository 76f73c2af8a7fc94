"""A manifest and the data make the same bags again, to the bit, and nothing else does."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apportion._random import stream
from apportion.bags.simulate import make_bags
from apportion.errors import DataError
from apportion.intake.grouping import build_bags
from apportion.intake.manifest import load_manifest, save_manifest


def made(n: int = 20, size: int = 7, k: int = 3, seed: int = 0):
    x = torch.randn(n, 2, generator=stream(seed, "x"))
    y = torch.randint(k, (n,), generator=stream(seed, "y"))
    return x, make_bags(x, y, size, k, stream(seed))[0]


@given(n=st.integers(1, 40), size=st.integers(1, 40), k=st.integers(2, 30), seed=st.integers(0, 20))
def test_saved_and_loaded_bags_are_the_same_to_the_bit(tmp_path_factory, n, size, k, seed):
    path = tmp_path_factory.getbasetemp() / "bags.json"
    x, bags = made(n, size, k, seed)
    save_manifest(bags, path)
    loaded = load_manifest(path, x)
    for name in ("x", "sizes", "proportions", "source"):
        assert torch.equal(getattr(loaded, name), getattr(bags, name)), name
    assert list(loaded.ids) == list(bags.ids)


@pytest.mark.parametrize("names", [["a", "b"], [3, 1], [0.5, 1.5], list(np.array(["a", "b"]))])
def test_names_of_bags_survive(tmp_path, names):
    x = np.eye(3)
    bags = build_bags(x, [names[0], names[1], names[0]], {names[0]: [0.5, 0.5], names[1]: [1, 0]})
    save_manifest(bags, tmp_path / "bags.json")
    assert load_manifest(tmp_path / "bags.json", x).ids == list(bags.ids)


def test_float64_data_and_bytes_are_recognized(tmp_path):
    for x in (np.random.default_rng(0).random((6, 2)), np.arange(6, dtype=np.uint8).reshape(6, 1, 1, 1)):
        bags = build_bags(x, [0, 1] * 3, [[0.5, 0.5]] * 2)
        save_manifest(bags, tmp_path / "bags.json")
        assert torch.equal(load_manifest(tmp_path / "bags.json", x).x, bags.x)


def test_other_data_is_refused(tmp_path):
    x, bags = made()
    save_manifest(bags, tmp_path / "bags.json")
    with pytest.raises(DataError, match="was made for other data; the same instances in the same order"):
        load_manifest(tmp_path / "bags.json", x.flip(0))
    with pytest.raises(DataError, match="names row 19, but the data has 19 rows"):
        load_manifest(tmp_path / "bags.json", x[:-1])


def test_bags_named_by_what_json_cannot_hold_are_refused_before_anything_is_written(tmp_path):
    bags = build_bags(np.eye(2), [("a", 1), ("a", 2)], [[0.5, 0.5]] * 2)
    with pytest.raises(DataError, match="strings and numbers only; rename the bags"):
        save_manifest(bags, tmp_path / "bags.json")
    assert not (tmp_path / "bags.json").exists()


def tampered(change):
    def act(text: str) -> str:
        values = json.loads(text)
        change(values)
        return json.dumps(values)

    return act


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "is not a bag manifest"),
        (lambda text: "[]", "is not a bag manifest"),
        (lambda text: "{}", "is not a bag manifest: 'bags'"),
        (tampered(lambda v: v.update(format="apportion bags 2")), "is not a bag manifest of format 1"),
        (tampered(lambda v: v["bags"].clear()), "is not a bag manifest"),
        (tampered(lambda v: v["bags"][0].update(rows="abc")), "is not a bag manifest"),
        (tampered(lambda v: v["bags"][0]["proportions"].pop()), "is not a bag manifest"),
        (
            tampered(lambda v: v["bags"][0].update(proportions=[1, 1, 0])),
            "bag 0 has proportions summing to 2",
        ),
        (tampered(lambda v: v["bags"][0].update(rows=[-1])), "names row -1, but the data has 20 rows"),
        (tampered(lambda v: v["bags"][0].update(rows=[])), "bag 0 has no instance"),
        (tampered(lambda v: v["bags"][0].update(rows=[0.5])), "the rows of a bag are .0.5., not a list of"),
        (tampered(lambda v: v["bags"][0].update(rows=[True])), "not a list of whole numbers"),
        (
            tampered(lambda v: v["bags"][1]["rows"].append(v["bags"][0]["rows"][0])),
            r"names row \d+ more than once; a row is in one bag",
        ),
        (
            tampered(lambda v: v["bags"][0]["rows"].append(v["bags"][0]["rows"][0])),
            "more than once; a row is",
        ),
        (tampered(lambda v: v["bags"][1].update(id=0)), "has the bag 0 more than once; give each a name"),
        (tampered(lambda v: v["bags"][0].update(rows=[2**70])), "is not a bag manifest"),
        (tampered(lambda v: v["bags"][0].update(id=["a"])), "a bag is named .'a'., not by a string"),
        (lambda text: "[" * 100_000, "is not a bag manifest"),
        (lambda text: '{"bags": ' + "9" * 10_000, "is not a bag manifest"),
    ],
)
def test_a_damaged_manifest_is_refused(tmp_path, damage, message):
    x, bags = made()
    path = tmp_path / "bags.json"
    save_manifest(bags, path)
    path.write_text(damage(path.read_text()))
    with pytest.raises(DataError, match=message):
        load_manifest(path, x)


def test_a_manifest_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataError, match="cannot be read: No such file"):
        load_manifest(tmp_path / "none.json", np.eye(2))

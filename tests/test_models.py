"""Models as folders: the same predictions after, nothing executed, nothing unknown accepted."""

import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import network
from safetensors.torch import load_file, save_file

from apportion._device import channels_last
from apportion._random import reseed
from apportion.errors import ModelError
from apportion.models import Facts, Model, load_model, save_model
from apportion.networks import NETWORKS, mlp
from apportion.tables.columns import Column, from_values

SHAPES = {
    "mlp": (5,),
    "conv13": (3, 32, 32),
    "wrn_28_2": (3, 32, 32),
    "resnet18": (3, 32, 32),
    "resnet9": (3, 32, 32),
}
COLUMNS = (Column("age", "number", 40, 41, 9), Column("job", "category", categories=("a", "b")))


def model(name: str = "mlp", **changes: Any) -> Model:
    reseed(0, "weights")
    network = channels_last(NETWORKS[name](SHAPES[name], 3).eval())  # as it comes from training
    given = {"settings": {"second_stage": "plot"}, "data": {"rows": 9}, "quality": {"error": 0.25}}
    return Model(network, name, SHAPES[name], ("no", "perhaps", "yes"), **(given | changes))


def written(folder: Path, **changes: Any) -> Path:
    """A model's folder whose config.json was changed by a stranger."""
    save_model(model(), folder)
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v != "DROP"}))
    return folder


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_comes_back_to_the_bit(tmp_path, name):
    before = model(name)
    save_model(before, tmp_path / "m")
    after = load_model(tmp_path / "m")
    x = torch.randn(2, *SHAPES[name])
    with torch.no_grad():
        assert torch.equal(before.network(x), after.network(x))
    assert not after.network.training
    state = after.network.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in before.network.state_dict().items())


@pytest.mark.parametrize("classes", [("a", "b"), (-1, 1), (0.5, 2.5), (False, True)])
def test_all_that_a_model_knows_comes_back(tmp_path, classes):
    before = model(columns=COLUMNS, feature_names=("a", "b"))
    before = replace(before, network=mlp((4,), 2), shape=(4,), classes=classes)
    save_model(before, tmp_path / "m")
    after = load_model(tmp_path / "m")
    assert {**vars(after), "network": None} == {**vars(before), "network": None}


def test_a_model_is_three_files_without_pickle(tmp_path):
    save_model(model(), tmp_path / "m")
    assert sorted(os.listdir(tmp_path / "m")) == ["README.md", "config.json", "model.safetensors"]
    assert os.listdir(tmp_path) == ["m"]


def test_the_card_tells_data_method_settings_quality_and_privacy(tmp_path):
    classes = ("a|b", "c", "d")
    save_model(
        Model(mlp((4,), 3), "mlp", (4,), classes, columns=COLUMNS, quality={"error": 0.25}), tmp_path / "m"
    )
    text = (tmp_path / "m" / "README.md").read_text()
    for part in (r"# A classifier of a\|b, c, d", "## Data", "## Method", "## Quality", "| error | 0.25 |"):
        assert part in text
    assert "| age | number | mean 41, scale 9, missing is 40 |" in text
    assert "| job | category | 2 categories and 'other' |" in text
    assert "never seen the class of a single individual" in text.split("## Privacy")[1]


def test_a_card_says_what_cannot_be_told_and_no_name_breaks_it(tmp_path):
    told = model(
        quality={"bag correlation, training bags": None},
        settings={"first_epochs": None, "choose": None, "missing": ["?"]},
    )
    save_model(replace(told, classes=("no\nway", "a|b", "<i>")), tmp_path / "model")
    lines = (tmp_path / "model" / "README.md").read_text().splitlines()
    assert lines[0] == r"# A classifier of no way, a\|b, \<i\>, learned from the shares of groups"
    assert "| bag correlation, training bags | cannot be told: all bags have the same shares |" in lines
    assert "| first_epochs | by the sizes of the bags |" in lines
    assert "| choose | none |" in lines
    assert "| missing | '?' |" in lines


def test_a_folder_that_is_there_is_not_overwritten(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "thesis.tex").write_text("years of work")
    with pytest.raises(ModelError, match="is there already; name another folder"):
        save_model(model(), tmp_path / "m")
    assert os.listdir(tmp_path / "m") == ["thesis.tex"]


def test_what_json_cannot_hold_is_refused_and_leaves_nothing(tmp_path):
    with pytest.raises(ModelError, match="must be texts, numbers or truth values"):
        save_model(model(settings={"rate": math.nan}), tmp_path / "m")
    with pytest.raises(ModelError, match="no name that a file could give; there are mlp"):
        save_model(Model(mlp((5,), 3), "mine", (5,), ("a", "b", "c")), tmp_path / "m")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({"format": 1}, "is of format 1; this is apportion .*, which reads format 2"),
        ({"format": "DROP"}, "is of format None"),
        ({"hook": "os.system"}, "has a key 'hook' that is not known"),
        ({"classes": "DROP"}, "lacks the key 'classes'"),
        ({"backbone": "os:system"}, "has the network 'os:system'; there are mlp, conv13"),
        ({"backbone": ["mlp"]}, "has the network"),
        ({"options": {"widths": [8], "code": "x"}}, "mlp has widths, dropout"),
        ({"options": {"widths": "wide"}}, "describes a network that cannot be built"),
        ({"options": {"widths": [8, 8]}}, "does not fit its config.json"),
        ({"shape": [10**15]}, "does not fit its config.json"),
        ({"shape": [-5]}, "a shape is a list of whole numbers"),
        ({"shape": []}, "a shape is a list of whole numbers"),
        ({"classes": ["a"]}, "two texts or numbers at least"),
        ({"classes": [{}, "a", "b"]}, "two texts or numbers at least"),
        ({"classes": ["a", "b"]}, "does not fit its config.json"),
        ({"classes": [1, "a", 2]}, "two texts or numbers at least"),
        ({"classes": ["a", "b", "a"]}, "two texts or numbers at least"),
        ({"classes": [1, 2, 10**400]}, "two texts or numbers at least"),
        ({"classes": [1.0, 2.0, math.inf]}, "two texts or numbers at least"),
        ({"classes": ["a", "b", "\ud800"]}, "two texts or numbers at least"),
        ({"options": {"widths": [8] * 1001}}, "cannot be built: more than 1000 values for widths"),
        ({"columns": [{"name": "x"}]}, "a column has the keys"),
        ({"feature_names": [1]}, "a list of texts, or null"),
        ({"settings": [1]}, "has no table in 'settings'"),
    ],
)
def test_a_strangers_config_is_refused(tmp_path, changes, pattern):
    with pytest.raises(ModelError, match=pattern):
        load_model(written(tmp_path / "m", **changes))


def test_columns_that_do_not_make_the_shape_are_refused(tmp_path):
    save_model(Model(mlp((4,), 2), "mlp", (4,), ("a", "b"), columns=COLUMNS), tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    config = json.loads(path.read_text())
    config["columns"][1]["categories"] = ["a"]
    path.write_text(json.dumps(config))
    with pytest.raises(ModelError, match="columns that do not make instances of shape"):
        load_model(tmp_path / "m")


@pytest.mark.parametrize(
    ("file", "content", "pattern"),
    [
        ("config.json", b"{", "is no JSON"),
        ("config.json", b"[" * 100_000, "is no JSON"),
        ("config.json", b"[]", "is no table of settings"),
        ("config.json", b"\xff", "is no JSON"),
        ("config.json", None, "holds no model: there is no config.json"),
        ("model.safetensors", b"\x80\x04c__builtin__\neval\n.", "cannot be read"),
        ("model.safetensors", None, "cannot be read"),
    ],
)
def test_damaged_files_are_refused(tmp_path, file, content, pattern):
    folder = written(tmp_path / "m")
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_bytes(content)
    with pytest.raises(ModelError, match=pattern):
        load_model(folder)


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        (lambda w: w | {"more": torch.zeros(1)}, "it has more of"),
        (lambda w: {k: v for k, v in w.items() if k != "1.bias"}, "it has 1.bias of None"),
        (lambda w: w | {"1.bias": w["1.bias"].half()}, "float16"),
        (lambda w: w | {"1.bias": torch.full_like(w["1.bias"], math.nan)}, "1.bias that are not finite"),
    ],
)
def test_weights_of_another_network_are_refused(tmp_path, change, pattern):
    folder = written(tmp_path / "m")
    save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors")
    with pytest.raises(ModelError, match=pattern):
        load_model(folder)


# --- ONNX


def test_onnx_gives_the_same_probabilities_for_any_number_of_rows(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    from apportion.models.exporting import export_onnx

    small = Model(mlp((4,), 3, (8,)), "mlp", (4,), ("a", "b", "c"), {"widths": [8]})
    export_onnx(small, tmp_path / "new" / "m.onnx")
    assert os.listdir(tmp_path / "new") == ["m.onnx"]
    session = runtime.InferenceSession(tmp_path / "new" / "m.onnx")
    for n in (1, 7):
        x = torch.randn(n, 4)
        (got,) = session.run(["probabilities"], {"features": x.numpy()})
        np.testing.assert_allclose(got, small.network(x).softmax(1).detach().numpy(), atol=1e-4)


def test_onnx_says_which_classes_and_features_it_has_and_how_these_are_made(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    from apportion.models.exporting import export_onnx

    columns = (
        Column("age", "number", 40.0, 41.0, 9.0, flag=True),
        Column("sex", "category", categories=("f", "m")),
    )
    names = [name for column in columns for name in column.features]
    model = Model(mlp((5,), 2, (8,)), "mlp", (5,), ("no", "yes"), {"widths": [8]}, columns)
    export_onnx(model, tmp_path / "m.onnx")
    said = runtime.InferenceSession(tmp_path / "m.onnx").get_modelmeta().custom_metadata_map
    assert json.loads(said["classes"]) == ["no", "yes"]
    assert (
        json.loads(said["features"])
        == names
        == ["age", "age is missing", "sex = f", "sex = m", "sex = other"]
    )
    assert from_values(json.loads(said["columns"])) == columns


def test_a_card_of_a_model_whose_optimisers_are_not_known_names_none_and_none_breaks_it(tmp_path):
    save_model(model(), tmp_path / "old")
    assert "learned the shares of the bags. Settings:" in (tmp_path / "old" / "README.md").read_text()
    save_model(model(facts=Facts(first_optimizer="a|b\n")), tmp_path / "odd")
    assert r"learned the shares of the bags (a\|b). Settings:" in (tmp_path / "odd" / "README.md").read_text()


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"temperature": "hot"}, "has 'hot' for 'temperature'; it is a float"),
        ({"temperature": math.nan}, "has the temperature nan; it is above zero"),
        ({"bytes": 1}, "has 1 for 'bytes'; it is a bool"),
        ({"epoch": -1}, "has counts below zero"),
        ({"weight": 1}, "has a fact 'weight' that is not known; there are rows, bags, "),
        ([], "has no table in 'facts'"),
    ],
)
def test_facts_of_a_stranger_are_checked(tmp_path, facts, words):
    with pytest.raises(ModelError, match=re.escape(words)):
        load_model(written(tmp_path / "m", facts=facts))


def test_a_fact_that_is_missing_is_younger_than_the_model(tmp_path):
    facts = load_model(written(tmp_path / "m", facts={"rows": 9})).facts
    assert facts == Facts(rows=9)
    assert facts.device == ""  # nobody knows


@pytest.mark.skipif(__import__("os").name != "posix", reason="modes of files")
def test_a_models_folder_can_be_read_by_others(tmp_path):
    from apportion.models import Model, save_model

    save_model(Model(network(), "mlp", (2,), ("a", "b"), {"widths": [32, 32]}), tmp_path / "model")
    assert (tmp_path / "model").stat().st_mode & 0o777 == 0o755

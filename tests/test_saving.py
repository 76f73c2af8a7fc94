"""Model folders: the same predictions after, nothing executed, nothing unknown accepted, nothing lost."""

import json
import math
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import apportion
from apportion import ProportionClassifier
from apportion.datasets.synthetic import moons
from apportion.errors import ApportionWarning, ModelError
from apportion.networks import NETWORKS, mlp
from apportion.saving import About, load, save, save_nearby
from apportion.saving import model_folder as folder

DATA = moons(1, 200)
X, TRUTH = DATA.x.numpy(), np.array(["left", "right"])[DATA.y.numpy()]
BAGS = np.arange(200) // 20
IMAGES = np.random.default_rng(0).integers(0, 256, (8, 3, 16, 16)).astype(np.uint8)
ABOUT = About(
    10, "abc", 2, "def", 1, True, ("?", "none"), "file", True, {"table": "people|<i>.csv"}, {"error": None}
)


def fitted(**parameters: Any) -> ProportionClassifier:
    quick = {"epochs": 2, "student_epochs": 1, "random_state": 0}
    return ProportionClassifier(**(quick | parameters)).fit(X, TRUTH, bags=BAGS)


@pytest.fixture(scope="module")
def model() -> ProportionClassifier:
    return fitted()


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("models") / "m"
    save(model, place)
    return place


@pytest.fixture
def copy(saved, tmp_path) -> Path:
    """A model folder to be changed."""
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def change(place: Path, path: str, value: Any) -> None:
    """Another value for "part.key" of model.json; ... takes it away."""
    values = json.loads((place / "model.json").read_text())
    part = values
    *outer, key = path.split(".")
    for name in outer:
        part = part[name]
    if value is ...:
        del part[key]
    else:
        part[key] = value
    (place / "model.json").write_text(json.dumps(values))


# --- what comes back


@pytest.mark.parametrize(
    "parameters",
    [
        {}, {"model": mlp}, {"model": partial(mlp, widths=(8, 4), dropout=0.5)},
        {"horizontal_flip": np.bool_(False), "random_state": np.random.RandomState(0)},
        {"validation_fraction": 0.3, "select_by": "likelihood", "calibrate": True},
    ],
)  # fmt: skip
def test_a_loaded_classifier_predicts_the_same_and_can_be_fitted_and_saved_again(tmp_path, parameters):
    before = fitted(**parameters)
    save(before, tmp_path / "one")
    after = load(tmp_path / "one")
    save(after, tmp_path / "two")
    for again in (after, load(tmp_path / "two")):
        assert np.array_equal(again.predict_proba(X), before.predict_proba(X))
        for decide in ("argmax", "shares"):
            assert np.array_equal(again.predict(X, decide=decide), before.predict(X, decide=decide))
        assert again.never_predicted_ == before.never_predicted_
        assert again.n_features_in_ == 2
        assert (again.best_epoch_, again.temperature_) == (before.best_epoch_, before.temperature_)
        assert again.bag_scores_ == before.bag_scores_
        kept = {"model": None, "random_state": None}
        assert again.get_params() | kept == before.get_params() | kept
    assert (tmp_path / "one" / "model.json").read_bytes() == (tmp_path / "two" / "model.json").read_bytes()
    assert after.fit(X, TRUTH).score(X, TRUTH) > 0


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_comes_back_to_the_bit(tmp_path, name):
    x = np.random.default_rng(0).random((8, 5)) if name == "mlp" else IMAGES
    before = ProportionClassifier(model=name, epochs=1, pseudo_labels=None, random_state=0)
    before.fit(x, [0, 1] * 4)
    save(before, tmp_path / "m")
    after = load(tmp_path / "m")
    assert np.array_equal(after.predict_proba(x), before.predict_proba(x))
    state = after.model_.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in before.model_.state_dict().items())


def people(library: str) -> Any:
    """A data frame with numbers, gaps, texts and the bag of each row."""
    ages = [None if i % 17 == 0 else float(x) for i, x in enumerate(X[:, 0])]
    cities = [("Bern", "Wien", "Oslo")[i % 3] for i in range(len(X))]
    columns = {"age": ages, "city": cities, "precinct": BAGS}
    return pytest.importorskip(library).DataFrame(columns)


SHARES = {bag: {name: float((TRUTH[bag == BAGS] == name).mean()) for name in set(TRUTH)} for bag in set(BAGS)}


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_classifier_of_data_frames_comes_back(tmp_path, library):
    frame = people(library)
    before = ProportionClassifier(epochs=1, student_epochs=1, random_state=0)
    before.fit(frame, bags="precinct", proportions=SHARES)
    save(before, tmp_path / "one")
    save(load(tmp_path / "one"), tmp_path / "two")
    for name in ("one", "two"):
        after = load(tmp_path / name)
        assert np.array_equal(after.predict_proba(frame), before.predict_proba(frame))
        assert after.feature_names_in_.tolist() == ["age", "city"]
        assert after.encoder_.to_json() == before.encoder_.to_json()
    card = (tmp_path / "one" / "README.md").read_text()
    assert "| city | category | 3 categories and 'other' |" in card
    values = json.loads((tmp_path / "one" / "model.json").read_text())
    for change_it in (
        lambda columns: columns.pop(),
        lambda columns: columns[1]["categories"].pop(),
        lambda columns: columns[0].update(mean=math.nan),
        lambda columns: columns[0].update(code="x"),
    ):
        changed = json.loads(json.dumps(values["encoder"]))
        change_it(changed["columns"])
        change(tmp_path / "one", "encoder", changed)
        with pytest.raises(ModelError, match="one"):
            load(tmp_path / "one")


@pytest.mark.parametrize("classes", [["a", "b"], [-1, 1], [1.0, 2.0], [False, True]])
def test_classes_keep_their_type(tmp_path, classes):
    before = ProportionClassifier(epochs=1, student_epochs=0, random_state=0)
    before.fit(X[:20], np.asarray(classes)[np.arange(20) % 2])
    save(before, tmp_path / "m")
    assert load(tmp_path / "m").classes_.tolist() == before.classes_.tolist() == classes


def test_what_programs_know_about_the_data_comes_back(tmp_path, model):
    save(model, tmp_path / "one", about=ABOUT)
    after = load(tmp_path / "one")
    assert after.about_ == ABOUT
    save(after, tmp_path / "two")
    assert load(tmp_path / "two").about_ == ABOUT


def test_the_losses_of_training_come_back_and_those_that_are_not_finite_as_none(tmp_path):
    model = fitted()
    model.history_[0]["proportion"] = math.nan
    save(model, tmp_path / "m")
    first, *rest = load(tmp_path / "m").history_
    assert first == model.history_[0] | {"proportion": None}
    assert rest == model.history_[1:]


def test_a_model_older_than_a_parameter_has_its_default(copy):
    change(copy, "parameters.horizontal_flip", ...)
    assert load(copy).horizontal_flip is True


def test_a_model_is_three_files_that_others_can_read(saved):
    assert sorted(os.listdir(saved)) == ["README.md", "model.json", "model.safetensors"]
    assert os.listdir(saved.parent) == ["m"]
    values = json.loads((saved / "model.json").read_text())
    assert (values["apportion"], values["torch"]) == (apportion.__version__, str(torch.__version__))
    if os.name == "posix":
        umask = os.umask(0)
        os.umask(umask)
        assert saved.stat().st_mode & 0o777 == 0o777 & ~umask


def test_the_card_tells_data_method_quality_and_privacy_and_no_name_breaks_it(tmp_path, model):
    save(model, tmp_path / "m", about=ABOUT)
    text = (tmp_path / "m" / "README.md").read_text()
    parts = ("# A classifier of left, right", "## Data", "## Method", "## Quality", "## Privacy", "## Use")
    assert [part for part in parts if part not in text] == []
    assert r"| table | people\|\<i\>.csv |" in text
    assert "never seen the class of a single individual" in text.split("## Privacy")[1]


# --- what is refused before anything is written


def own(shape: Any, n_classes: int) -> torch.nn.Module:
    return mlp(shape, n_classes)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fitted(model=own), "state_dict"),
        (lambda: make_pipeline(StandardScaler(), fitted()), r"pipeline\[-1\]"),
    ],
)
def test_what_has_no_name_in_a_file_is_refused_with_what_to_do(tmp_path, make, words):
    with pytest.raises(ModelError, match=words):
        save(make(), tmp_path / "m")
    assert os.listdir(tmp_path) == []


def test_nothing_is_overwritten(tmp_path, model):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "thesis.tex").write_text("years of work")
    with pytest.raises(ModelError, match="not empty"):
        save(model, tmp_path / "m")
    assert os.listdir(tmp_path / "m") == ["thesis.tex"]


@pytest.mark.skipif(os.name != "posix", reason="links of POSIX")
def test_a_model_that_cannot_be_saved_is_saved_next_to_its_place(tmp_path, model):
    (tmp_path / "m").symlink_to(tmp_path / "gone")
    (tmp_path / "m-2").write_text("taken")
    with pytest.warns(ApportionWarning, match="m is a symbolic link.*the model is in .*m-3"):
        assert save_nearby(model, tmp_path / "m") == tmp_path / "m-3"
    assert np.array_equal(load(tmp_path / "m-3").predict(X), model.predict(X))
    assert save_nearby(model, tmp_path / "free") == tmp_path / "free"


@pytest.mark.skipif(os.name != "posix", reason="processes are forked")
def test_a_save_that_was_killed_leaves_no_model_and_is_cleared_by_the_next(tmp_path, model, monkeypatch):
    def die(values: Any) -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        return ""

    with monkeypatch.context() as patch:
        patch.setattr(folder, "card", die)
        process = multiprocessing.get_context("fork").Process(target=save, args=(model, tmp_path / "m"))
        process.start()
        process.join()
    assert process.exitcode == -signal.SIGKILL
    left = os.listdir(tmp_path)
    assert left != ["m"]
    assert not any(name.startswith(".") for name in left)
    save(model, tmp_path / "m")
    assert os.listdir(tmp_path) == ["m"]


# --- what strangers may send


HOSTILE: list[tuple[str, Any]] = [
    ("format", 2), ("format", ...), ("format", "3"), ("classes", ...),
    ("network.name", "os:system"), ("network.name", ["mlp"]), ("network.options", {"code": "x"}),
    ("network.options", {"widths": "wide"}), ("network.options", {"widths": [1e30]}),
    ("network.options", {"widths": [10**12]}), ("network.options", {"widths": [8] * 1001}),
    ("network.options", {"widths": [8, 8]}), ("network.options", {"widths": [True]}),
    ("network.options", {"dropout": math.nan}), ("network.options", {"dropout": "0.5"}),
    ("network.options", {"dropout": 2}),
    ("input.shape", [10**15]), ("input.shape", [-5]), ("input.shape", []), ("input.shape", [2, 2, 2, 2]),
    ("input.bytes", 1),
    ("classes", ["a"]), ("classes", [{}, "a"]), ("classes", ["a", "b", "c"]), ("classes", [1, "a"]),
    ("classes", ["a", "a"]), ("classes", [1, 10**400]), ("classes", [1.0, math.inf]),
    ("classes", ["a", "\ud800"]),
    ("encoder", {"columns": []}), ("feature_names", [1]), ("parameters", [1]), ("parameters.color", 1),
    ("parameters.epochs", 10**9), ("parameters.reg", {}),
    ("fit.temperature", "hot"), ("fit.temperature", math.nan), ("fit.temperature", 0), ("fit.epoch", -1),
    ("fit.rows", 1.5), ("fit.optimizers", {"first": 1}), ("about", []), ("about.missing", "?"),
    ("about.quality", {"error": [1]}),
    ("fit.share_prices", [1.0]), ("fit.share_prices", [0.0, math.nan]), ("fit.class_shares", [0, 10**400]),
    ("fit.predicted_shares", "half"), ("fit.never_predicted", 1),
    ("fit.bag_scores", {"train": {"proportion_error": "0"}}), ("fit.bag_scores", {"train": {}}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), HOSTILE)
def test_a_strangers_model_is_refused_with_its_file(copy, path, value):
    load(copy)
    change(copy, path, value)
    with pytest.raises(ModelError, match=str(copy)):
        load(copy)


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        (lambda w: w | {"more": torch.zeros(1)}, "more"),
        (lambda w: {k: v for k, v in w.items() if k != "1.bias"}, "1.bias"),
        (lambda w: w | {"1.bias": w["1.bias"].half()}, "1.bias"),
        (lambda w: w | {"1.bias": torch.full_like(w["1.bias"], math.nan)}, "1.bias"),
    ],
)
def test_weights_of_another_network_are_refused(copy, changed, name):
    load(copy)
    save_file(changed(load_file(copy / "model.safetensors")), copy / "model.safetensors")
    with pytest.raises(ModelError, match=name):
        load(copy)


@pytest.mark.skipif(os.name != "posix", reason="links and pipes of POSIX")
@pytest.mark.parametrize("file", ["model.json", "model.safetensors"])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "device", "nothing"])
def test_files_that_are_none_are_refused_and_never_waited_for(copy, file, kind):
    load(copy)
    good = (copy / file).rename(copy / "elsewhere")
    make: dict[str, Callable[[], Any]] = {
        "link": lambda: (copy / file).symlink_to(good),
        "pipe": lambda: os.mkfifo(copy / file),
        "folder": (copy / file).mkdir,
        "device": lambda: (copy / file).symlink_to("/dev/zero"),
        "nothing": lambda: None,
    }
    make[kind]()
    with pytest.raises(ModelError, match=str(copy)):
        load(copy)


def places(values: Any, path: str = "") -> Iterator[str]:
    """Every "part.key" of nested tables."""
    for key, value in values.items():
        yield f"{path}{key}"
        if isinstance(value, dict):
            yield from places(value, f"{path}{key}.")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.data())
def test_a_model_with_other_values_is_refused_or_predicts(saved, tmp_path_factory, data):
    copy = Path(shutil.copytree(saved, tmp_path_factory.mktemp("changed") / "m"))
    known = sorted(places(json.loads((saved / "model.json").read_text())))
    change(copy, data.draw(st.sampled_from(known)), data.draw(VALUES | st.just(...)))
    try:
        found = load(copy)
    except ModelError:
        return
    found.predict_proba(X)


@given(st.data())
def test_a_model_with_other_bytes_is_refused_or_predicts(saved, tmp_path_factory, data):
    copy = Path(shutil.copytree(saved, tmp_path_factory.mktemp("changed") / "m"))
    file = copy / data.draw(st.sampled_from(["model.json", "model.safetensors"]))
    content = bytearray(file.read_bytes())
    reach = data.draw(st.sampled_from([32, 300, len(content)]))
    for place in data.draw(st.lists(st.integers(0, reach - 1), max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)) | st.just(len(content)))
    file.write_bytes(content[:cut])
    try:
        found = load(copy)
    except ModelError:
        return
    found.predict_proba(X)

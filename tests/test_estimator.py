"""ProportionClassifier: scikit-learn's contract, forms of fit, honesty, frames, images, refusals."""

import math
import pickle
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
import torch
from sklearn import config_context
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import load_digits, make_moons
from sklearn.exceptions import NotFittedError
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import get_scorer
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

from apportion import (
    BagCorrelation,
    BagScore,
    ProportionClassifier,
    Proportions,
    condition_on_proportions,
    expand_proportions,
)
from apportion.encoding import TableEncoder
from apportion.errors import ApportionWarning, DataError, SettingsError
from apportion.estimator import describe_epoch, seconds_left
from apportion.methods import DLLP
from apportion.networks import mlp, resnet9
from apportion.pipeline import EpochState
from apportion.training import Epoch

X, TRUTH = make_moons(240, noise=0.1, random_state=0)
TOWNS = np.array([f"town {i:02d}" for i in np.random.default_rng(0).integers(24, size=240)])
TABLE = pd.crosstab(TOWNS, TRUTH, normalize="index")
COUNTS = pd.crosstab(TOWNS, TRUTH)
NAMED = TABLE.set_axis(["no", "yes"], axis=1)
SMALL = partial(mlp, widths=(16,))


def quick(**settings: Any) -> ProportionClassifier:
    given = {"epochs": 4, "student_epochs": 4, "batch_size": 64, "random_state": 0, "model": SMALL}
    return ProportionClassifier(**given | settings)


def good(**settings: Any) -> ProportionClassifier:
    """Enough training for two moons, in a second or two."""
    return quick(model="mlp", epochs=50, student_epochs=10, learning_rate=5e-3, **settings)


def own_small(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """The same network as a function of the user's own, which takes arrays as they are."""
    return SMALL(shape, n_classes)


def weights(classifier: Any) -> list[torch.Tensor]:
    return list(classifier.model_.state_dict().values())


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


# --- scikit-learn's contract


@pytest.mark.filterwarnings("ignore::apportion.errors.ApportionWarning")
def test_every_check_of_scikit_learn_passes():
    # as scikit-learn's own networks: batches of weighted rows are not those of repeated rows
    repeated = {"check_sample_weight_equivalence_on_dense_data": "batches differ"}
    found = check_estimator(
        quick(model="mlp", epochs=20, student_epochs=2, learning_rate=5e-3),
        on_skip=None,
        expected_failed_checks=repeated,
    )
    others = {
        r["check_name"]: r["status"]
        for r in found
        if r["status"] != "passed" and r["check_name"] not in repeated
    }
    # this one runs only where scipy's switch was set before its first import, or in scikit-learn before 1.9
    assert others.items() <= {("check_array_api_input", "skipped")}
    assert len(found) > 50


def test_a_pipeline_a_clone_and_a_pickle_predict_the_same():
    model = make_pipeline(StandardScaler(), quick())
    told = {"proportionclassifier__bags": TOWNS, "proportionclassifier__proportions": TABLE}
    expected = model.fit(X, **told).predict_proba(X)
    np.testing.assert_array_equal(clone(model).fit(X, **told).predict_proba(X), expected)
    copied = pickle.loads(pickle.dumps(model))  # noqa: S301
    np.testing.assert_array_equal(copied.predict_proba(X), expected)


def test_nothing_is_predicted_before_fit():
    with pytest.raises(NotFittedError):
        quick().predict(X)


def test_an_interrupted_fit_leaves_no_model():
    model = quick().fit(X, TRUTH, bags=TOWNS)
    epochs = model.iter_fit(-X, TRUTH, bags=TOWNS)
    next(epochs)
    with pytest.raises(NotFittedError):
        model.predict(X)
    epochs.close()
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_iter_fit_is_fit_epoch_by_epoch():
    model = quick()
    stages = [(state.stage, state.epoch.number) for state in model.iter_fit(X, TRUTH, bags=TOWNS)]
    assert stages == [(stage, number) for stage in ("first", "second") for number in (1, 2, 3, 4)]
    assert [(line["stage"], line["epoch"]) for line in model.history_] == stages
    assert same(model, quick().fit(X, TRUTH, bags=TOWNS))


# --- what fit learns from


@pytest.mark.parametrize(
    "call",
    [
        {"proportions": TABLE},
        {"proportions": {town: row.tolist() for town, row in TABLE.iterrows()}},
        {"proportions": TABLE.to_numpy()},
        {"proportions": Proportions(COUNTS, "counts")},
        {"proportions": Proportions(100 * TABLE, "percent")},
        {"proportions": Proportions(TABLE[[0]], rest=1)},
        {"proportions": {"town": Proportions(COUNTS, "counts")}, "bags": {"town": TOWNS}},
        {"y": expand_proportions(TABLE, TOWNS)},
        {"y": expand_proportions(NAMED, TOWNS)[["yes", "no"]]},
        {"y": expand_proportions(Proportions(COUNTS, "counts"), TOWNS)},
    ],
)
def test_every_form_of_proportions_trains_the_same_network(call):
    assert same(quick().fit(X, **{"bags": TOWNS} | call), quick().fit(X, TRUTH, bags=TOWNS))


def test_labels_alone_are_supervised_learning():
    alone = quick().fit(X, TRUTH)
    assert same(alone, quick().fit(X, TRUTH, bags=np.arange(240)))
    np.testing.assert_array_equal(alone.transduction_, TRUTH)
    fresh, truth = make_moons(500, noise=0.1, random_state=1)
    assert good(pseudo_labels=None).fit(X, TRUTH).score(fresh, truth) > 0.99


def test_two_moons_are_found_from_proportions_alone():
    (x, truth), (fresh, answer) = (make_moons(800, noise=0.1, random_state=seed) for seed in (0, 1))
    town = [f"town {i % 80}" for i in range(800)]  # no two neighboring rows share a bag
    model = ProportionClassifier("mlp", random_state=0).fit(x, truth, bags=town)
    assert model.score(fresh, answer) > 0.98
    assert get_scorer("roc_auc")(model, fresh, answer) > 0.99
    assert (model.transduction_ == truth).mean() > 0.98


def test_classes_keep_their_type_and_are_sorted():
    names = np.array(["yes", "no"])[TRUTH]
    model = quick().fit(X, names, bags=[("county", town) for town in TOWNS])
    assert model.classes_.tolist() == ["no", "yes"]
    assert set(model.predict(X)) <= {"no", "yes"}
    assert quick().fit(X, TRUTH.astype(bool)).classes_.tolist() == [False, True]
    assert quick().fit(X, bags=TOWNS, proportions=NAMED[["yes", "no"]]).classes_.tolist() == ["no", "yes"]


def test_the_transduction_has_the_counts_of_every_bag():
    for settings in ({}, {"pseudo_labels": "hard"}, {"pseudo_labels": None}, {"validation_fraction": 0.3}):
        model = quick(**settings).fit(X, bags=TOWNS, proportions=TABLE)
        found = pd.crosstab(TOWNS, model.transduction_).reindex_like(COUNTS).fillna(0)
        np.testing.assert_array_equal(found, COUNTS)


def test_noisy_unknown_and_known_ones_are_learned_from_together():
    x, truth = make_moons(400, noise=0.1, random_state=0)
    town = np.arange(400) % 20
    counts = np.stack([np.bincount(town, c == truth) for c in (0, 1)], 1)
    noisy = counts + np.random.default_rng(0).laplace(0, 1, counts.shape)
    noisy[4] = np.nan
    labels = {i: int(truth[i]) for i in range(0, 400, 25)}
    model = quick(epochs=60, student_epochs=20, learning_rate=5e-3, model=partial(mlp, widths=(32, 32)))
    table = Proportions(noisy, "counts", std=math.sqrt(2), missing_bags="allow")
    model.fit(x, bags=town, proportions=table, known_labels=labels)
    assert all(model.transduction_[i] == label for i, label in labels.items())
    assert model.score(x, truth) > 0.85


def test_known_labels_in_a_series_are_matched_by_the_index_of_a_frame():
    frame = pd.DataFrame(X, columns=["up", "along"]).assign(town=TOWNS).sample(frac=1, random_state=0)
    known = pd.Series(TRUTH)[:40]
    model = quick().fit(frame, bags="town", proportions=Proportions(COUNTS, "counts"), known_labels=known)
    places = frame.index.get_indexer(known.index)
    np.testing.assert_array_equal(model.transduction_[places], known)


def uneven_bags() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, bags and noisy counts: 400 bags of 20 rows and two of 5,000."""
    random, sizes = np.random.default_rng(0), np.r_[[20] * 400, [5000] * 2]
    bag = np.repeat(np.arange(402), sizes)
    y = random.random(len(bag)) < np.r_[random.beta(1, 8, 400), 0.05, 0.5][bag]
    x = random.normal(size=(len(bag), 3)).astype(np.float32)
    x[:, 0] += y
    positive = np.bincount(bag, weights=y)
    return x, bag, np.c_[sizes - positive, positive] + random.laplace(0, 2, (402, 2))


def test_large_bags_are_met_beside_small_ones_whose_counts_are_mostly_noise():
    x, bag, noisy = uneven_bags()
    model = quick(epochs=2, student_epochs=1, model="auto", batch_size=None)
    labels = model.fit(x, bags=bag, proportions=Proportions(noisy, "counts", std=2.83)).transduction_
    assert np.abs(np.bincount(bag, weights=labels) - noisy[:, 1])[-2:].max() < 10


# --- honesty and randomness


def test_permuting_labels_inside_bags_changes_no_weight():
    random, moved = np.random.default_rng(2), TRUTH.copy()
    for town in TABLE.index:
        here = np.flatnonzero(town == TOWNS)
        moved[here] = TRUTH[random.permutation(here)]
    assert (moved != TRUTH).any()
    assert same(quick().fit(X, TRUTH, bags=TOWNS), quick().fit(X, moved, bags=TOWNS))


def test_fit_leaves_the_callers_randomness_and_threads_alone():
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    before, numbers = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    for state in (None, 3):
        quick(random_state=state).fit(X, TRUTH)
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(np.random.get_state()[1], numbers)  # noqa: NPY002
    assert torch.get_num_threads() == 1


def test_a_random_state_decides_everything():
    torch.manual_seed(1)
    one = quick(random_state=7).fit(X, TRUTH, bags=TOWNS)
    torch.manual_seed(2)
    assert same(one, quick(random_state=np.int64(7)).fit(X, TRUTH, bags=TOWNS))
    assert not same(one, quick(random_state=8).fit(X, TRUTH, bags=TOWNS))
    assert not same(*(quick(random_state=None).fit(X, TRUTH, bags=TOWNS) for _ in range(2)))
    drawn = quick(random_state=np.random.RandomState(7)).fit(X, TRUTH, bags=TOWNS)
    assert same(drawn, quick(random_state=np.random.RandomState(7)).fit(X, TRUTH, bags=TOWNS))


# --- stages, history, validation


@pytest.mark.parametrize("method", ["dllp", "count_likelihood", "llp_vat", "llp_gan", "rot"])
def test_every_method_runs(method):
    lines = quick(method=method, pseudo_labels=None).fit(X, TRUTH, bags=TOWNS).history_
    assert [(line["stage"], line["epoch"]) for line in lines] == [("first", i) for i in (1, 2, 3, 4)]


@pytest.mark.parametrize("labels", ["hard", "soft", "predicted", "argmax"])
def test_every_kind_of_pseudo_labels_runs(labels):
    lines = quick(pseudo_labels=labels).fit(X, TRUTH, bags=TOWNS).history_
    assert [line["stage"] for line in lines] == ["first"] * 4 + ["second"] * 4
    assert all(np.isfinite(line["labels"]) for line in lines[4:])


def test_a_student_of_no_epochs_is_no_student():
    assert same(quick(student_epochs=0).fit(X, TRUTH), quick(pseudo_labels=None).fit(X, TRUTH))


def test_auto_is_dllp_soft_labels_and_an_mlp_for_rows():
    plain = quick(model="auto").fit(X, TRUTH, bags=TOWNS)
    named = quick(
        model="mlp", method="dllp", pseudo_labels="soft", learning_rate=2e-3, student_learning_rate=1e-3
    )
    assert same(plain, named.fit(X, TRUTH, bags=TOWNS))
    assert plain.resolved_ == {"model": "mlp", "method": "dllp", "pseudo_labels": "soft"}


def test_validation_bags_choose_the_epoch_and_the_temperature():
    model = quick(epochs=9, validation_fraction=0.4, select_by="likelihood", calibrate=True)
    model.fit(X, TRUTH, bags=TOWNS)
    scores = [line["validation_likelihood"] for line in model.history_]
    best = model.history_[int(np.argmax(scores))]
    assert model.best_epoch_ == (best["stage"], best["epoch"])
    assert model.temperature_ > 0
    assert model.temperature_ != 1


def test_encoders_learn_nothing_from_validation_bags():
    frame = pd.DataFrame({"x": np.where(TOWNS < "town 03", 1e6, X[:, 0]), "y": X[:, 1]})
    model = quick(validation_fraction=0.5, random_state=0)
    model.fit(frame, TRUTH, bags=TOWNS)
    part = quick(random_state=0).fit(frame, TRUTH, bags=TOWNS)
    assert model.encoder_.columns_ != part.encoder_.columns_


def state_of(number: int, seconds: float, last: bool = False) -> EpochState:
    epoch = Epoch(number, 40, {"proportion": 0.5}, seconds)
    return EpochState("first", epoch, DLLP(nn.Linear(1, 2)), [], last=last)


def test_a_line_tells_how_long_a_stage_takes():
    assert seconds_left(state_of(30, 2.0)) == 20
    assert seconds_left(state_of(30, 2.0, last=True)) == 0
    entry = {"stage": "first", "epoch": 4, "proportion": 0.5, "seconds": 70.0, "validation_likelihood": -2.0}
    line = describe_epoch(state_of(4, 70.0), entry)
    for part in ("first", "4 of 40", "proportion 0.5", "validation_likelihood -2", "42 minutes"):
        assert part in line


def test_verbose_prints_a_line_per_epoch(capsys):
    quick().fit(X, TRUTH)
    assert capsys.readouterr().out == ""
    quick(verbose=1).fit(X, TRUTH)
    assert len(capsys.readouterr().out.splitlines()) == 8


def test_a_long_stage_is_warned_of_once(monkeypatch):
    monkeypatch.setattr("apportion.estimator.LONG_STAGE", -1.0)
    with pytest.warns(ApportionWarning, match="verbose=1") as found:
        quick().fit(X, TRUTH)
    assert len(found) == 2  # once per stage


# --- data frames


FRAME = pd.DataFrame({
    "age": 20 + 10 * X[:, 0], "town": TOWNS, "income": 1e5 * X[:, 1],
    "color": np.array(["red", "green", "blue"])[np.arange(240) % 3],
    "since": pd.to_datetime("2020-01-01") + pd.to_timedelta(np.arange(240) % 50, unit="D"),
})  # fmt: skip
FRAME.loc[::17, "age"] = np.nan
POLARS = pl.DataFrame({name: FRAME[name].to_numpy() for name in FRAME})


@pytest.mark.parametrize("frame", [POLARS, POLARS.lazy()], ids=["polars", "lazy"])
def test_frames_of_all_libraries_are_the_same_to_the_bit(frame):
    one = quick().fit(FRAME, bags="town", proportions=NAMED)
    other = quick().fit(frame, bags="town", proportions=NAMED)
    assert same(one, other)
    np.testing.assert_array_equal(one.predict_proba(FRAME), other.predict_proba(frame))
    assert (
        one.feature_names_in_.tolist()
        == other.feature_names_in_.tolist()
        == ["age", "income", "color", "since"]
    )
    assert other.n_features_in_ == 4


def test_a_frame_is_its_encoded_columns():
    rows = FRAME.drop(columns="town")
    encoded = TableEncoder().fit_transform(rows)
    model = quick().fit(FRAME, bags="town", proportions=NAMED)
    plain = quick(model=own_small).fit(encoded, bags=TOWNS, proportions=NAMED)
    assert same(model, plain)
    expected = plain.predict_proba(encoded)
    np.testing.assert_array_equal(model.predict_proba(FRAME), expected)
    np.testing.assert_array_equal(model.predict_proba(rows), expected)  # the column of bags may be missing


def test_frames_in_several_groupings_are_encoded_once():
    age = np.arange(240) % 4
    tables = {"town": NAMED, "age": pd.crosstab(age, np.array(["no", "yes"])[TRUTH], normalize="index")}
    named = quick().fit(FRAME.assign(group=age), bags=["town", "group"], proportions={
        "town": NAMED, "group": tables["age"],
    })  # fmt: skip
    encoded = TableEncoder().fit_transform(FRAME.drop(columns="town"))
    plain = quick(model=own_small).fit(encoded, bags={"town": TOWNS, "age": age}, proportions=tables)
    assert same(named, plain)
    assert "group" not in named.feature_names_in_


def test_columns_are_those_of_fit():
    model = quick().fit(FRAME, bags="town", proportions=NAMED)
    reverse = POLARS.columns[::-1]
    for wrong in (
        FRAME.rename(columns={"age": "years"}),
        FRAME.drop(columns="age"),
        FRAME.iloc[:, ::-1],
        POLARS.rename({"age": "years"}),
        POLARS.drop("age"),
        POLARS.select(reverse),
        POLARS.lazy().drop("age"),
    ):
        with pytest.raises(ValueError, match="feature names should match"):
            model.predict(wrong)
    numbers = FRAME[["age", "income"]].fillna(0)
    model = quick().fit(numbers, TRUTH)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        found = model.predict_proba(numbers.to_numpy())
    np.testing.assert_array_equal(found, model.predict_proba(numbers))


@pytest.mark.parametrize(
    "x", [np.zeros((240, 3)), np.full((240, 1, 8, 8), 7, np.uint8), FRAME[["color"]][:1].iloc[[0] * 240]]
)
def test_instances_that_are_all_the_same_are_refused(x):
    with pytest.raises(DataError, match="equal"):
        quick(model="auto").fit(x, bags=TOWNS, proportions=TABLE)


def test_a_frame_of_dates_alone_is_refused():
    with pytest.raises(DataError, match="since"):
        quick().fit(FRAME[["since", "town"]], bags="town", proportions=NAMED)


@pytest.mark.parametrize("bags", [np.zeros(240, int), TOWNS], ids=["one bag", "equal bags"])
def test_bags_that_do_not_differ_are_refused(bags):
    table = dict.fromkeys(np.unique(bags).tolist(), [0.5, 0.5])
    with pytest.raises(DataError) as error:
        quick().fit(X, bags=bags, proportions=table)
    assert error.value.problems[0].rule == "identical bags"
    quick().fit(X, bags=bags, proportions=table, known_labels={3: 0, 7: 1})  # which differ
    quick().fit(  # beside another grouping they do no harm
        X, bags={"town": TOWNS, "other": bags}, proportions={"town": TABLE, "other": table}
    )


# --- features


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.uint8])
def test_rows_of_numbers_are_encoded_like_a_frame_of_them(dtype):
    x = (10 * (X - X.min(0)) + 0.5).astype(dtype)
    model = quick().fit(x, TRUTH, bags=TOWNS)
    frame = quick().fit(pd.DataFrame(x, columns=["x0", "x1"]), TRUTH, bags=TOWNS)
    assert same(model, frame)
    assert model.encoder_.columns_ == frame.encoder_.columns_
    assert model.n_features_in_ == 2
    np.testing.assert_array_equal(model.predict_proba(x), model.predict_proba(x.tolist()))


def test_the_scale_of_features_does_not_matter():
    expected = quick().fit(X, TRUTH, bags=TOWNS).predict_proba(X)
    for factor in (2.0**-30, 2.0**30):
        np.testing.assert_allclose(
            quick().fit(factor * X, TRUTH, bags=TOWNS).predict_proba(factor * X), expected, atol=1e-5
        )


def test_a_network_of_the_users_own_takes_arrays_as_they_are():
    class Codes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(9, 4)
            self.head = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(x.long()).mean(1))

    codes = np.random.default_rng(0).integers(0, 9, (240, 3))
    model = quick(model=lambda shape, k: Codes()).fit(codes, TRUTH, bags=TOWNS)
    assert model.encoder_ is None
    assert np.isfinite(model.predict_proba(codes)).all()
    with pytest.raises(ValueError, match="NaN"):
        quick(model=lambda shape, k: Codes()).fit(np.full((240, 3), np.nan), TRUTH, bags=TOWNS)


def test_missing_numbers_in_an_array_are_a_feature():
    x = np.where(np.random.default_rng(0).random(X.shape) < 0.2, np.nan, X)
    model = quick().fit(x, TRUTH, bags=TOWNS)
    assert model.instance_shape_ == (4,)
    assert np.isfinite(model.predict_proba(x)).all()


@pytest.mark.parametrize(
    "x",
    [
        scipy.sparse.csr_array(X),
        [f"text {i}" for i in range(240)],
        np.array([f"text {i}" for i in range(240)]),
        pd.Series([f"text {i}" for i in range(240)]),
        ["b/a.PNG"] * 240,
        pd.Series(list(X)),
        pl.Series(X.tolist()),
        np.where(np.arange(240) == 7, np.inf, X.T).T,
        np.ma.masked_array(X, np.arange(480).reshape(240, 2) == 14),
        X[:, 0],
    ],
    ids=[
        "sparse",
        "texts",
        "text array",
        "text series",
        "files",
        "vectors",
        "polars vectors",
        "infinite",
        "masked",
        "flat_then_linear",
    ],
)
def test_what_are_no_rows_of_numbers_is_refused(x):
    with pytest.raises(ValueError):  # noqa: PT011  scikit-learn has its own words for some
        quick().fit(x, bags=TOWNS, proportions=TABLE)


@pytest.mark.parametrize(
    "y",
    [
        None,
        TABLE.loc[TOWNS, 1].to_numpy(),  # the share of one class
        np.where(np.arange(240) == 7, None, np.array(["no", "yes"])[TRUTH]),
        np.ma.masked_array(TRUTH, np.arange(240) == 9),
        TABLE.loc[TOWNS].set_axis(["no", 1], axis=1),
        TABLE.loc[TOWNS].set_axis(["no", "no"], axis=1),
    ],
)
def test_what_are_no_labels_and_no_proportions_is_refused(y):
    with pytest.raises(ValueError):  # noqa: PT011
        quick().fit(X, y, bags=TOWNS)


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "dlpp"}, {"model": "mpl"}, {"pseudo_labels": "none"}, {"reg": 0}, {"epochs": 0},
        {"batch_size": 0}, {"validation_fraction": 1.0}, {"select_by": "likelihood"}, {"calibrate": True},
        {"horizontal_flip": "no"},
        {"model": nn.Linear(2, 2)}, {"device": "tpu"},
    ],
    ids=str,
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(settings):
    with pytest.raises(SettingsError):
        quick(**settings).fit(X, TRUTH, bags=TOWNS)


def linear(shape: tuple[int, ...], k: int, *, shared: nn.Module | None = None) -> nn.Module:
    return shared or nn.Linear(2, k)


@pytest.mark.parametrize(
    "model",
    [
        partial(linear, shared=nn.Linear(2, 2)),
        lambda shape, k: nn.Sequential(nn.Linear(2, k), nn.Softmax(1)),
        lambda shape, k: nn.Linear(2, k).requires_grad_(False),
        lambda shape, k: nn.Linear(2, k + 1),
    ],
    ids=["shared weights", "probabilities", "frozen", "too many scores"],
)
def test_networks_that_cannot_learn_are_refused(model):
    with pytest.raises(ValueError):  # noqa: PT011
        quick(model=model).fit(X, TRUTH)


# --- score and searches


def test_accuracy_is_of_labels_and_likelihood_of_proportions():
    model = quick().fit(X, bags=TOWNS, proportions=TABLE)
    assert model.score(X, TRUTH) == (model.predict(X) == TRUTH).mean()
    rows = expand_proportions(TABLE + np.arange(24)[:, None] * [1e-7, -1e-7], TOWNS)  # all different
    expected = BagScore()(model, X, rows, bags=TOWNS)
    assert model.score(X, rows) == pytest.approx(expected, rel=1e-4)
    with pytest.raises(DataError):
        model.score(X, np.full((240, 3), 1 / 3))


def test_a_search_without_routing_chooses_by_the_likelihood_of_proportions():
    rows = expand_proportions(NAMED, TOWNS)
    scores = cross_val_score(
        good(pseudo_labels=None), X, rows, groups=TOWNS, cv=GroupKFold(3), params={"bags": TOWNS}
    )
    assert scores.shape == (3,)
    assert (scores < 0).all()


def test_a_search_with_proportions_raises_before_it_scores_nan():
    search = GridSearchCV(make_pipeline(StandardScaler(), quick()), {}, cv=GroupKFold(3))
    told = {"proportionclassifier__bags": TOWNS, "proportionclassifier__proportions": NAMED}
    with pytest.raises(ValueError, match="expand_proportions"):
        search.fit(X, groups=TOWNS, **told)

    class OwnProportions(ClassifierMixin, BaseEstimator):
        """Counts the labels of its fold, which is no table cut into folds."""

        def fit(self, X, y):
            bags = np.arange(len(y)) // 8
            table = pd.crosstab(bags, y, normalize="index")
            self.model_ = quick().fit(X, bags=bags, proportions=table)
            self.classes_ = self.model_.classes_
            return self

        def predict(self, X):
            return self.model_.predict(X)

    assert cross_val_score(OwnProportions(), X, TRUTH, cv=2).min() > 0
    rows = expand_proportions(NAMED, TOWNS)
    found = GridSearchCV(quick(), {"reg": [0.5, 1.0]}, cv=GroupKFold(3), refit=False)
    found.fit(X, rows, bags=TOWNS, groups=TOWNS)
    assert np.isfinite(found.cv_results_["mean_test_score"]).all()


def test_permutation_importance_and_partial_dependence():
    frame = pd.DataFrame(X, columns=["x", "y"]).assign(noise=0.1 * X[:, 0], kind=TOWNS)
    frame["noise"] = np.random.default_rng(0).normal(size=240)
    frame["kind"] = np.array(["a", "b"])[np.arange(240) % 2]
    model = good(pseudo_labels=None).fit(frame, bags=TOWNS, proportions=NAMED)
    labels = np.array(["no", "yes"])[TRUTH]
    for y in (labels, expand_proportions(NAMED, TOWNS)):
        found = permutation_importance(model, frame, y, n_repeats=3, random_state=0).importances_mean
        assert found.argmax() < 2
        assert found[:2].min() > found[2:].max()
    curve = partial_dependence(model, frame, ["y"], grid_resolution=5)["average"][0]
    assert curve.shape == (5,)
    assert curve[0] > curve[-1] + 0.3  # the upper moon is "no"
    kinds = partial_dependence(model, frame, ["kind"], categorical_features=["kind"])["average"][0]
    assert kinds.shape == (2,)
    np.testing.assert_allclose(model.predict_log_proba(frame), np.log(model.predict_proba(frame)))


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_search_with_routing_keeps_the_names_of_the_classes(library):
    table = (
        NAMED
        if library == "pandas"
        else pl.DataFrame({"town": NAMED.index.to_list(), **NAMED.to_dict("list")})
    )
    rows = expand_proportions(table, TOWNS)
    with config_context(enable_metadata_routing=True):
        search = GridSearchCV(
            good(pseudo_labels=None), {}, cv=GroupKFold(3), scoring=BagCorrelation(), error_score="raise"
        )
        search.fit(X, rows, bags=TOWNS, groups=TOWNS)
        with pytest.raises(TypeError):  # a table has no row for each row of X
            search.fit(X, bags=TOWNS, groups=TOWNS, proportions=table)
    assert search.best_score_ > 0.7
    assert search.classes_.tolist() == ["no", "yes"]


def test_digits_are_learned_from_bags_nearly_as_well_as_from_labels():
    """The statistical band: real data, bags of ten, against logistic regression on all labels."""
    digits, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = digits[order] / 16, y[order]
    model = ProportionClassifier("mlp", random_state=0).fit(x[:1500], y[:1500], bags=np.arange(1500) // 10)
    bound = LogisticRegression(max_iter=1000).fit(x[:1500], y[:1500]).score(x[1500:], y[1500:])
    assert model.score(x[1500:], y[1500:]) > bound - 0.06


# --- images


def bars(n: int, seed: int = 0, size: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """Noisy gray images with a bright bar: upright, lying, or none."""
    random = np.random.default_rng(seed)
    classes = random.integers(3, size=n)
    images = random.integers(0, 90, (n, 1, size, size))
    for image, kind in zip(images, classes, strict=True):
        at = random.integers(4, size - 6)
        if kind == 0:
            image[0, :, at : at + 2] += 150
        if kind == 1:
            image[0, at : at + 2] += 150
    return images.astype(np.uint8), classes


def slopes(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Noisy gray images with a bright diagonal, falling or rising: each is the other's mirror image."""
    random = np.random.default_rng(seed)
    classes = random.integers(2, size=n)
    images = random.integers(0, 90, (n, 1, 16, 16))
    falling = np.eye(16, k=0, dtype=int) + np.eye(16, k=1, dtype=int)
    for image, kind in zip(images, classes, strict=True):
        image[0] += 150 * (falling[:, ::-1] if kind else falling)
    return images.astype(np.uint8), classes


def small(shape: tuple[int, ...], n_classes: int) -> nn.Sequential:
    body = nn.Sequential(
        nn.Conv2d(shape[0], 16, 5, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(),
    )  # fmt: skip
    return nn.Sequential(body, nn.Linear(16, n_classes))


def flat(shape: tuple[int, ...], n_classes: int) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), n_classes))


def of_images(**settings: Any) -> ProportionClassifier:
    given = {"method": "dllp", "pseudo_labels": None, "model": flat, "epochs": 1, "random_state": 0}
    return ProportionClassifier(**given | settings)


def test_auto_is_two_views_and_a_narrow_resnet9_for_images_on_a_cpu():
    images, classes = bars(48, size=12)
    model = ProportionClassifier(epochs=1, random_state=0).fit(images, classes, bags=np.arange(48) // 8)
    assert set(model.history_[0]) == {"stage", "epoch", "proportion", "labels", "contrast", "seconds"}
    assert (model.resolved_["model"].func, model.resolved_["model"].keywords) == (resnet9, {"width": 8})
    assert model.get_params()["model"] == "auto"
    assert not model.model_.training


@pytest.mark.parametrize("settings", [{}, {"method": "dllp", "pseudo_labels": "hard"}], ids=str)
def test_images_in_bags_are_learned(settings):
    images, classes = bars(400)
    model = ProportionClassifier(
        **settings, model=small, epochs=40, student_epochs=20, batch_size=100, random_state=0
    ).fit(images, classes, bags=np.arange(400) // 10)
    unseen, truth = bars(300, seed=1)
    assert model.score(unseen, truth) > 0.9


@pytest.mark.parametrize("method", ["dllp", "two_views"])
def test_classes_that_mirror_each_other_are_learned_without_flips(method):
    images, classes = slopes(300)
    unseen, truth = slopes(200, seed=1)
    settings = {"method": method, "model": small, "epochs": 30, "batch_size": 100}
    model = of_images(**settings, horizontal_flip=False).fit(images, classes, bags=np.arange(300) // 10)
    assert model.score(unseen, truth) > 0.9
    if method == "dllp":  # two views would make up their mind, one way or the other
        model.set_params(horizontal_flip=True).fit(images, classes, bags=np.arange(300) // 10)
        assert np.abs(model.predict_proba(unseen)[:, 1] - 0.5).mean() < 0.15


@pytest.mark.parametrize("channels", [1, 3, 4, 13])
def test_channels_may_be_last(channels):
    images = np.random.default_rng(0).integers(0, 256, (12, channels, 16, 16), dtype=np.uint8)
    last = np.moveaxis(images, 1, 3)
    classes = np.arange(12) % 2
    expected = of_images().fit(images, classes)
    for x in (last, list(last), torch.from_numpy(last.copy())):
        model = of_images().fit(x, classes)
        assert model.instance_shape_ == (channels, 16, 16)
        assert same(model, expected)
        np.testing.assert_array_equal(model.predict_proba(x), expected.predict_proba(images))
    np.testing.assert_array_equal(expected.predict_proba(last), expected.predict_proba(images))


def test_a_list_a_tensor_and_pictures_are_their_array():
    pictures = pytest.importorskip("PIL.Image")
    images, classes = bars(24, size=12)
    expected = of_images().fit(images, classes).predict_proba(images)
    for x in (list(images), torch.from_numpy(images), [pictures.fromarray(each[0]) for each in images]):
        np.testing.assert_array_equal(of_images().fit(x, classes).predict_proba(x), expected)
    turned = images[:, :, ::-1]
    found = of_images().fit(turned, classes).predict_proba(turned)
    np.testing.assert_array_equal(found, of_images().fit(turned.copy(), classes).predict_proba(turned))


@pytest.mark.parametrize(
    ("shape", "dtype", "model"),
    [
        ((12, 12), np.uint8, "auto"),  # gray images without a channel
        ((12, 12), np.uint8, "resnet9"),
        ((1, 12, 12), np.float32, "auto"),  # floats
        ((2, 1, 12, 12), np.uint8, "auto"),  # several images per row
        ((1, 12, 12), np.uint8, "mlp"),
        ((12,), np.float32, "resnet9"),
    ],
)
def test_instances_that_the_network_does_not_take_are_refused(shape, dtype, model):
    x = np.random.default_rng(0).integers(0, 256, (6, *shape)).astype(dtype)
    with pytest.raises(DataError) as error:
        of_images(model=model, method="auto").fit(x, np.arange(6) % 2)
    assert error.value.value == shape


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[0],
        lambda x: x.astype(np.int64),
        lambda x: x.astype(np.float32),
        lambda x: x[:, :, 1:],
        lambda x: x[:, :1],
        lambda x: [*x[:3], x[3][:, :4]],
    ],
    ids=["one image", "whole numbers", "floats", "smaller", "one channel", "several sizes"],
)
def test_images_unlike_those_of_fit_are_refused(change):
    images = np.random.default_rng(0).integers(0, 256, (6, 3, 9, 8)).astype(np.uint8)
    model = of_images().fit(images, np.arange(6) % 2)
    with pytest.raises(DataError):
        model.predict(change(images))


def test_a_model_of_floats_takes_no_bytes():
    images = np.random.default_rng(0).integers(0, 256, (6, 3, 9, 8)).astype(np.uint8)
    model = of_images().fit(images / 255, np.arange(6) % 2)
    with pytest.raises(DataError):
        model.predict(images)


def test_batches_of_one_image_are_refused_where_batch_norm_cannot_learn_from_them():
    images, classes = bars(9, size=12)
    model = of_images(model="auto", method="auto", batch_size=1)
    with pytest.raises(ValueError, match="batch_size is 1"):
        model.fit(images, classes)
    assert model.history_ == []
    assert (
        len(model.set_params(batch_size=2).fit(images, classes).history_) == 1
    )  # the last row joins a batch


def test_the_examples_in_docstrings_run():
    import doctest

    import apportion.estimator

    found = doctest.testmod(apportion.estimator)
    assert found.attempted > 5
    assert found.failed == 0


# --- tensors, and frames with two columns of one name


def test_tensors_with_gradients_or_of_bfloat16_are_read_as_arrays():
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0)).bfloat16().float()
    bags = torch.arange(60) % 10
    shares = torch.rand(10, generator=torch.Generator().manual_seed(1)).double()
    table = torch.stack([1 - shares, shares], 1)
    model = ProportionClassifier("mlp", "dllp", None, epochs=1, random_state=0)
    expected = clone(model).fit(x.numpy(), bags=bags.numpy(), proportions=table.numpy())
    p = expected.predict_proba(x.numpy())
    for X, ids, known in (
        (x.clone().requires_grad_(), bags.float().requires_grad_(), table.clone().requires_grad_()),
        (x.bfloat16(), bags.bfloat16(), dict(enumerate(table.clone().requires_grad_()))),
    ):
        found = clone(model).fit(X, bags=ids, proportions=known)
        np.testing.assert_array_equal(found.predict_proba(X), p)
    rows = table[bags]
    assert expected.score(x, rows.clone().requires_grad_()) == expected.score(x.numpy(), rows.numpy())
    conditioned = condition_on_proportions(torch.from_numpy(p).requires_grad_(), bags, table)
    np.testing.assert_allclose(conditioned, condition_on_proportions(p, bags.numpy(), table.numpy()))


def test_two_columns_of_one_name_are_an_error():
    frame = pd.DataFrame(np.zeros((4, 3)), columns=["a", "b", "b"])
    model = ProportionClassifier(epochs=1)
    with pytest.raises(DataError) as found:
        model.fit(frame, [0, 1, 0, 1], bags=[0, 0, 1, 1])
    assert found.value.value == "b"
    with pytest.raises(DataError):
        TableEncoder().fit(frame)

"""The estimator: scikit-learn's checks, the four forms of fit, routing, honesty, randomness left alone."""

import math
import os
import pickle
import re
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
import torch
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_digits, make_moons
from sklearn.exceptions import NotFittedError
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import get_scorer
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

from apportion import (
    BagCorrelation,
    Bags,
    BagScore,
    ProportionClassifier,
    build_bags,
    diagnose,
    expand_proportions,
)
from apportion.errors import DataError, SettingsError
from apportion.fitting import two_stages
from apportion.fitting.telling import tell, words_of
from apportion.intake.forms import bags_from
from apportion.methods import DLLP
from apportion.networks import mlp
from apportion.pipeline import EpochState
from apportion.pseudo_labels import soft_labels
from apportion.training import Epoch

X, TRUTH = make_moons(240, noise=0.1, random_state=0)
TOWNS = np.array([f"town {i:02d}" for i in np.random.default_rng(0).integers(24, size=240)])
TABLE = {town: [(TRUTH[town == TOWNS] == c).mean() for c in (0, 1)] for town in np.unique(TOWNS).tolist()}
COUNTS = {town: [(TRUTH[town == TOWNS] == c).sum() for c in (0, 1)] for town in TABLE}
FRAME = pd.DataFrame.from_dict(TABLE, orient="index", columns=["no", "yes"])
SMALL = partial(mlp, widths=(16,))


def quick(**settings: Any) -> ProportionClassifier:
    given = {"first_epochs": 4, "second_epochs": 4, "batch_size": 64, "random_state": 0}
    return ProportionClassifier(**given | {"backbone": SMALL} | settings)


def good(**settings: Any) -> ProportionClassifier:
    """Enough training for two moons, in a second or two."""
    return quick(backbone="mlp", first_epochs=50, second_epochs=10, rate=5e-3, **settings)


def weights(classifier: Any) -> list[torch.Tensor]:
    return list(classifier.classifier_.state_dict().values())


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


# --- scikit-learn's own checks


def test_every_check_of_scikit_learn_passes():
    found = check_estimator(quick(backbone="mlp", first_epochs=20, second_epochs=2, rate=5e-3), on_skip=None)
    others = {r["check_name"]: r["status"] for r in found if r["status"] != "passed"}
    # scipy's switch is read when it is first imported, so this one check runs only where it was set
    optional = {} if os.environ.get("SCIPY_ARRAY_API") else {"check_array_api_input": "skipped"}
    assert others == optional
    assert len(found) > 50


def test_a_pipeline_a_clone_and_a_pickle_predict_the_same():
    model = make_pipeline(StandardScaler(), quick())
    model.fit(X, proportionclassifier__bags=TOWNS, proportionclassifier__proportions=TABLE)
    again = clone(model)
    again.fit(X, proportionclassifier__bags=TOWNS, proportionclassifier__proportions=TABLE)
    expected = model.predict_proba(X)
    np.testing.assert_array_equal(again.predict_proba(X), expected)
    copied = pickle.loads(pickle.dumps(model))  # noqa: S301
    np.testing.assert_array_equal(copied.predict_proba(X), expected)


def test_frames_keep_their_feature_names():
    frame = pd.DataFrame(X, columns=["east", "north"])
    model = quick().fit(frame, bags=pd.Series(TOWNS), proportions=FRAME)
    assert model.feature_names_in_.tolist() == ["east", "north"]
    assert model.n_features_in_ == 2
    assert model.predict(frame).shape == (240,)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame.rename(columns={"east": "west"}))


def test_nothing_is_predicted_before_fit():
    with pytest.raises(NotFittedError):
        quick().predict(X)


# --- the four forms of fit


def test_labels_in_bags_shares_a_row_and_tables_of_all_kinds_train_the_same_network():
    counted = quick().fit(X, TRUTH, bags=TOWNS)
    array = np.array([TABLE[town] for town in sorted(TABLE)])
    for model in (
        quick().fit(X, bags=TOWNS, proportions=TABLE),
        quick().fit(X, bags=TOWNS.tolist(), proportions=FRAME),
        quick().fit(X, bags=TOWNS, proportions=array),
        quick().fit(X, bags=TOWNS, counts=COUNTS),
        quick().fit(X, bags=TOWNS, counts=pd.DataFrame(COUNTS).T),
        quick().fit(X, expand_proportions(TABLE, TOWNS), bags=TOWNS),
        quick().fit(X, expand_proportions(None, TOWNS, counts=COUNTS), bags=TOWNS),
    ):
        assert same(model, counted)


def test_labels_alone_are_bags_of_one():
    alone = quick().fit(X, TRUTH)
    assert same(alone, quick().fit(X, TRUTH, bags=np.arange(240)))
    np.testing.assert_array_equal(alone.transduction_, TRUTH)


def test_on_bags_of_one_it_is_as_good_as_a_supervised_network():
    fresh, truth = make_moons(500, noise=0.1, random_state=1)
    assert good(second_stage=None).fit(X, TRUTH).score(fresh, truth) > 0.99


def test_two_moons_are_found_from_shares_alone_and_answers_keep_the_order_of_the_rows():
    (x, truth), (fresh, answer) = (make_moons(800, noise=0.1, random_state=seed) for seed in (0, 1))
    town = [f"town {i % 80}" for i in range(800)]  # no two neighboring rows share a bag
    model = ProportionClassifier(random_state=0).fit(x, truth, bags=town)
    assert model.score(fresh, answer) > 0.98
    assert get_scorer("roc_auc")(model, fresh, answer) > 0.99
    assert (model.transduction_ == truth).mean() > 0.98


def test_string_classes_and_ids_of_any_type():
    names = np.array(["yes", "no"])[TRUTH]
    model = quick().fit(X, names, bags=[("county", town) for town in TOWNS])
    assert model.classes_.tolist() == ["no", "yes"]
    assert set(model.predict(X)) <= {"no", "yes"}
    assert quick().fit(X, TRUTH.astype(bool)).classes_.tolist() == [False, True]


def test_columns_follow_the_sorted_classes_whatever_their_order_was():
    turned = FRAME[["yes", "no"]]
    expected = quick().fit(X, bags=TOWNS, proportions=FRAME)
    by_name = quick().fit(X, bags=TOWNS, proportions=turned)
    by_position = quick().fit(X, bags=TOWNS, proportions=turned.to_numpy(), classes=["yes", "no"])
    chosen = quick().fit(X, bags=TOWNS, proportions=FRAME.assign(area=1.0), classes=["yes", "no"])
    for model in (by_name, by_position, chosen):
        assert model.classes_.tolist() == ["no", "yes"]
        assert same(model, expected)
    np.testing.assert_array_equal(expand_proportions(turned, TOWNS), expand_proportions(FRAME, TOWNS))


ROWS_OF = FRAME.loc[TOWNS].reset_index(drop=True)
TURNED = ROWS_OF[["yes", "no"]]
FRAMES = {
    "pandas": TURNED,
    "in their order": ROWS_OF,
    "polars": pl.DataFrame({name: TURNED[name].to_list() for name in TURNED}),
}


@pytest.mark.parametrize("y", FRAMES.values(), ids=FRAMES)
@pytest.mark.parametrize("classes", [None, ["no", "yes"], ["yes", "no"]], ids=str)
def test_shares_of_rows_are_read_by_the_names_of_their_columns(y, classes):
    model = quick().fit(X, y, bags=TOWNS, classes=classes)
    assert model.classes_.tolist() == ["no", "yes"]
    assert same(model, quick().fit(X, bags=TOWNS, proportions=FRAME))
    for score in (BagCorrelation(), BagScore("correlation"), BagScore()):
        assert score(model, X, y, bags=TOWNS) == score(model, X, expand_proportions(FRAME, TOWNS), bags=TOWNS)


def test_columns_that_only_count_themselves_go_by_their_place():
    rows = expand_proportions(FRAME, TOWNS).to_numpy()
    for y in (pd.DataFrame(rows), pl.DataFrame(rows)):
        assert quick().fit(X, y, bags=TOWNS).classes_.tolist() == [0, 1]
        assert quick().fit(X, y, bags=TOWNS, classes=["no", "yes"]).classes_.tolist() == ["no", "yes"]
    plain, truths = pd.DataFrame(rows), pd.DataFrame(rows[:, ::-1], columns=[True, False])  # equal 1 and 0
    model = quick().fit(X, truths, bags=TOWNS)
    assert model.classes_.tolist() == [False, True]
    assert same(model, quick().fit(X, plain, bags=TOWNS))


def test_names_of_shares_and_classes_that_differ_are_refused():
    words = r"Y has the columns \['yes', 'no'\], but the classes are \['a', 'b'\]; name the same, each once"
    refusal(words, X, TURNED, bags=TOWNS, classes=["a", "b"])
    refusal("but the classes are", X, TURNED, bags=TOWNS, classes=["no", "perhaps", "yes"])
    refusal("each once", X, TURNED.set_axis(["no", "no"], axis=1), bags=TOWNS)
    refusal("are of several types", X, TURNED.set_axis(["no", 1], axis=1), bags=TOWNS)
    model = quick().fit(X, expand_proportions(FRAME, TOWNS).to_numpy(), bags=TOWNS)
    with pytest.raises(DataError, match="the classes"):
        BagScore()(model, X, TURNED, bags=TOWNS)


def test_a_search_keeps_the_names_of_shares():
    with config_context(enable_metadata_routing=True):
        search = GridSearchCV(
            good(second_stage=None), {}, cv=GroupKFold(3), scoring=BagCorrelation(), error_score="raise"
        )
        search.fit(X, TURNED, bags=TOWNS, groups=TOWNS)
    assert search.best_score_ > 0.7
    assert search.classes_.tolist() == ["no", "yes"]


def test_masked_values_are_not_trained_on():
    masked = np.ma.masked_array(X, np.zeros(X.shape, bool))
    masked[7, 0] = np.ma.masked
    refusal("row 7 has a masked value; fill it in", masked, TRUTH)
    refusal("row 9 has a masked value", X, np.ma.masked_array(TRUTH, np.arange(240) == 9))


def test_a_class_without_any_instance_keeps_its_column():
    model = quick().fit(X, TRUTH, bags=TOWNS, classes=[0, 1, 2])
    assert model.predict_proba(X).shape == (240, 3)
    assert 2 not in model.transduction_


def test_the_transduction_has_every_bags_counts_with_soft_labels_too():
    for settings in ({}, {"labels": "hard"}, {"second_stage": None}):
        model = quick(**settings).fit(X, bags=TOWNS, proportions=TABLE)
        for town, counts in COUNTS.items():
            found = model.transduction_[town == TOWNS]
            assert [(found == c).sum() for c in (0, 1)] == counts


def test_rows_that_are_sorted_by_bag_are_not_copied():
    x = np.sort(X.astype(np.float32), axis=0)
    data, _ = bags_from(x, TRUTH, np.sort(TOWNS))
    assert data.x.data_ptr() == torch.from_numpy(x).data_ptr()


# --- honesty and randomness


def test_permuting_labels_inside_bags_changes_no_weight():
    random, moved = np.random.default_rng(2), TRUTH.copy()
    for town in TABLE:
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


# --- networks, stages, history


def test_images_and_bytes_go_to_any_network_of_ones_own():
    digits, classes = load_digits(return_X_y=True)
    images = digits.reshape(-1, 1, 8, 8)[:200].astype(np.uint8)

    def network(shape, n_classes):
        body = nn.Sequential(nn.Conv2d(shape[0], 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
        return nn.Sequential(body, nn.Linear(8 * 36, n_classes))

    model = quick(backbone=network).fit(images, classes[:200], bags=np.arange(200) // 4)
    assert model.predict_proba(images[:5]).shape == (5, 10)
    assert not model.classifier_.training
    with pytest.raises(ValueError, match=r"instances of shape \(1, 8, 7\), fit had \(1, 8, 8\)"):
        model.predict(images[:, :, :, :7])


def test_every_first_stage_and_every_kind_of_labels_runs():
    for method in ("dllp", "llp_vat", "llp_gan", "rot"):
        lines = quick(first_stage=method, second_stage=None).fit(X, TRUTH, bags=TOWNS).history_
        assert [line["epoch"] for line in lines] == [1, 2, 3, 4]
        assert {line["stage"] for line in lines} == {"first"}
    for labels in ("hard", "soft", "predicted", "argmax"):
        lines = quick(labels=labels).fit(X, TRUTH, bags=TOWNS).history_
        assert [line["stage"] for line in lines] == ["first"] * 4 + ["second"] * 4
        assert all(np.isfinite(line["labels"]) for line in lines[4:])


def test_no_epoch_of_the_second_stage_is_the_first_stage():
    assert same(quick(second_epochs=0).fit(X, TRUTH), quick(second_stage=None).fit(X, TRUTH))


def test_verbose_writes_a_line_an_epoch(capsys):
    quick().fit(X, TRUTH)
    assert capsys.readouterr().out == ""
    quick(verbose=True).fit(X, TRUTH)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8
    assert re.fullmatch(r"first stage, epoch 1 of \d: proportion 0\.\d+", lines[0])
    assert lines[-1].startswith("second stage, epoch ")


def moment_of(number: int, seconds: float, last: bool = False) -> EpochState:
    return EpochState(
        "first", Epoch(number, 40, {"proportion": 0.5}, seconds), DLLP(nn.Linear(1, 2)), [], last=last
    )


def test_a_line_tells_the_time_that_is_left():
    assert words_of(moment_of(1, 0.1), {}) == "first stage, epoch 1 of 40: proportion 0.5"
    assert words_of(moment_of(30, 2.0), {}).endswith("proportion 0.5; 20 s left")
    said = {"held-out likelihood": -2.0}
    assert words_of(moment_of(4, 70.0), said).endswith(
        "proportion 0.5, held-out likelihood -2; 42 minutes left"
    )
    assert words_of(moment_of(4, 70.0, last=True), {}).endswith("proportion 0.5")


def test_a_long_wait_without_a_word_is_told_of_once(caplog):
    for number, seconds in ((1, 70.0), (2, 70.0), (3, 70.0), (2, 1.0)):
        tell(moment_of(number, seconds), {}, verbose=False)
    (message,) = caplog.messages
    assert message.startswith("the first stage has 40 epochs of 70 s, 44 minutes more; verbose=True")


def test_both_stages_run_without_scikit_learn_and_can_be_left_early():
    bags, _ = bags_from(X, TRUTH, TOWNS)
    asked = {"label": soft_labels, "first_epochs": 2, "second_epochs": 2, "batch_size": 64}
    seen = [(m.stage, m.epoch.number) for m in two_stages(bags, SMALL, **asked)]
    assert seen == [("first", 1), ("first", 2), ("second", 1), ("second", 2)]
    assert isinstance(bags, Bags)


# --- searching without labels


def test_a_search_over_groups_routes_bags_and_scores_without_labels():
    known = expand_proportions(TABLE, TOWNS)
    with config_context(enable_metadata_routing=True):
        search = GridSearchCV(
            good(), {"second_stage": [None, "plot"]}, cv=GroupKFold(3), scoring=BagCorrelation(),
            error_score="raise",
        )  # fmt: skip
        search.fit(X, known, bags=TOWNS, groups=TOWNS, classes=["no", "yes"])
    assert search.best_score_ > 0.7
    assert search.predict(X).shape == (240,)
    assert search.classes_.tolist() == ["no", "yes"]


def test_labels_can_be_scored_beside_bags_with_several_scores():
    with config_context(enable_metadata_routing=True):
        found = cross_validate(
            make_pipeline(StandardScaler(), good(second_stage=None)), X, TRUTH,
            params={"bags": TOWNS, "groups": TOWNS}, cv=GroupKFold(3), error_score="raise",
            scoring={"bags": BagCorrelation(), "auc": "roc_auc"},
        )  # fmt: skip
    assert found["test_bags"].min() > 0.5
    assert found["test_auc"].min() > 0.9


@pytest.mark.parametrize("name", ["proportions", "counts"])
def test_a_table_is_refused_in_routing(name):
    with config_context(enable_metadata_routing=True):
        with pytest.raises(TypeError, match="proportions|counts"):
            GridSearchCV(quick(), {}, cv=GroupKFold(3)).fit(
                X, TRUTH, groups=TOWNS, **{"bags": TOWNS, name: TABLE}
            )
        with pytest.raises(TypeError, match=name):
            quick().set_fit_request(**{name: True})


class Fixed:
    """A classifier that has its answer."""

    def __init__(self, shares: np.ndarray) -> None:
        self.shares, self.classes_ = shares, np.arange(shares.shape[1])

    def predict_proba(self, X: Any) -> np.ndarray:
        return self.shares


def test_the_correlation_is_one_for_the_truth_and_zero_for_the_overall_shares():
    known, score = expand_proportions(TABLE, TOWNS), BagCorrelation()
    overall = np.tile([[1 - TRUTH.mean(), TRUTH.mean()]], (240, 1))
    assert score(Fixed(known), X, known, bags=TOWNS) == pytest.approx(1)
    assert score(Fixed(np.eye(2)[TRUTH]), X, TRUTH, bags=TOWNS) == pytest.approx(1)
    assert score(Fixed(known[:, ::-1]), X, known, bags=TOWNS) == pytest.approx(-1)
    assert score(Fixed(overall), X, known, bags=TOWNS) == pytest.approx(0, abs=1e-9)


def test_the_correlation_is_that_of_numpy_for_two_classes():
    fitted = LogisticRegression().fit(X, TRUTH)
    order = sorted(TABLE)
    predicted = [fitted.predict_proba(X[town == TOWNS])[:, 1].mean() for town in order]
    expected = np.corrcoef(predicted, [TABLE[town][1] for town in order])[0, 1]
    assert BagCorrelation()(fitted, X, TRUTH, bags=TOWNS) == pytest.approx(expected, abs=1e-5)


# --- refusals


def refusal(pattern: str, *args: Any, **given: Any) -> None:
    with pytest.raises(ValueError, match=pattern):
        quick(**given.pop("settings", {})).fit(*args, **given)


def test_what_cannot_be_used_is_refused_by_name_and_with_a_remedy():
    off = expand_proportions(TABLE, TOWNS)
    off[7] = [0.25, 0.75]
    town = TOWNS[7]
    refusal(
        rf"bag '{town}' has rows that disagree: .*0.25, 0.75\]; .* see expand_proportions", X, off, bags=TOWNS
    )
    refusal(
        rf"bag '{town}' has proportions summing to 1.5", X, bags=TOWNS, proportions=TABLE | {town: [0.5, 1.0]}
    )
    refusal(rf"bag '{town}' has counts that sum to 999", X, bags=TOWNS, counts=COUNTS | {town: [0, 999]})
    refusal("there are 240 instances but 3 bag ids", X, TRUTH, bags=["a", "b", "c"])
    refusal("pass bags=, the bag id of every row", X, expand_proportions(TABLE, TOWNS))
    refusal("pass bags=, the bag id of every row", X, proportions=TABLE)
    refusal("both of y and a table", X, TRUTH, bags=TOWNS, proportions=TABLE)
    refusal("either proportions or counts", X, bags=TOWNS, proportions=TABLE, counts=COUNTS)
    refusal("requires y to be passed", X, bags=TOWNS)
    refusal("instance 239 has no bag id", X, TRUTH, bags=[*TOWNS[:-1], None])


def test_classes_that_do_not_fit_are_refused():
    refusal(r"all labels are of one class, \[0\]; pass classes=", X, np.zeros(240, int))
    refusal(r"the label 1 is not among the classes \[0, 5\]", X, TRUTH, classes=[0, 5])
    refusal(r"2 columns of shares but the classes \['a'\]", X, bags=TOWNS, proportions=TABLE, classes=["a"])
    refusal("name each once", X, bags=TOWNS, proportions=TABLE, classes=["a", "a"])
    refusal(
        r"order columns and classes as \['a', 'b'\]",
        X,
        expand_proportions(TABLE, TOWNS),
        bags=TOWNS,
        classes=["b", "a"],
    )
    missing = r"class 'maybe' has no column in the table; it has \['no', 'yes'\]"
    refusal(missing, X, bags=TOWNS, proportions=FRAME, classes=["no", "maybe"])


@pytest.mark.parametrize(
    "settings",
    [
        {"first_stage": "dlp"}, {"second_stage": "plott"}, {"labels": "firm"}, {"backbone": "cnn"},
        {"backbone": ["mlp"]}, {"first_epochs": 0}, {"rate": -1}, {"second_rate": np.inf}, {"reg": "much"},
        {"backbone": mlp((2,), 2)}, {"backbone": lambda s, k: mlp(s, 3)},
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(settings):
    with pytest.raises(SettingsError):
        quick(**settings).fit(X, TRUTH)


def test_bags_alike_cannot_be_scored():
    with pytest.raises(ValueError, match="have the same proportions"):
        BagCorrelation()(Fixed(np.full((240, 2), 0.5)), X, np.full((240, 2), 0.5), bags=TOWNS)


def test_a_fit_that_is_interrupted_leaves_no_model_and_not_half_of_two(monkeypatch):
    model = ProportionClassifier(first_epochs=2, second_epochs=1, random_state=0).fit(X, TRUTH, bags=TOWNS)

    def stopped(*given, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr("apportion.estimators.two_stages", stopped)
    with pytest.raises(KeyboardInterrupt):
        model.fit(-X, TRUTH, bags=TOWNS)
    with pytest.raises(NotFittedError):
        model.predict(X)
    fresh = ProportionClassifier()
    with pytest.raises(KeyboardInterrupt):
        fresh.fit(X, TRUTH, bags=TOWNS)
    with pytest.raises(NotFittedError):
        fresh.predict(X)


@pytest.mark.parametrize(
    ("bags", "words"),
    [
        (np.zeros(240), "there is one bag, so that nothing"),
        (TOWNS, "all [0-9]+ bags have the same proportions"),
    ],
)
def test_bags_that_are_all_alike_are_refused(bags, words):
    shares = dict.fromkeys(np.asarray(bags).tolist(), [0.5, 0.5])
    with pytest.raises(DataError, match=words):
        ProportionClassifier().fit(X, bags=bags, proportions=shares)


@pytest.mark.parametrize("values", [pd.Timestamp("2020-01-01"), "u", pd.Timedelta("1D")])
def test_a_column_without_numbers_is_named(values):
    frame = pd.DataFrame(X, columns=["up", "along"]).assign(since=values)
    with pytest.raises(DataError, match=r"column 'since' of X has .*, and no numbers; encode it, by"):
        ProportionClassifier().fit(frame, bags=TOWNS, proportions=[[0.5, 0.5]])


def test_what_is_wrong_with_numbers_is_told_as_scikit_learn_does():
    frame = pd.DataFrame(X, columns=["up", "along"]).assign(since=np.inf)
    with pytest.raises(ValueError, match="Input X contains infinity"):
        ProportionClassifier().fit(frame, TRUTH)


def test_a_row_without_a_label_is_named():
    labels = np.where(np.arange(len(X)) == 7, None, np.array(["no", "yes"])[TRUTH])
    with pytest.raises(DataError, match="y has no label in row 7; leave such rows out, or pass bags"):
        ProportionClassifier().fit(X, labels)


def test_bags_with_the_rows_of_x_in_another_order_are_refused_and_other_indices_are_places():
    x = pd.DataFrame({"a": [0.0, 1.0, 2.0, 3.0]}, index=[10, 11, 12, 13])
    bags, shares = pd.Series([0, 0, 1, 1], index=x.index), [[0.5, 0.5], [1.0, 0.0]]
    model = ProportionClassifier(first_epochs=1, second_stage=None, random_state=0)

    def fitted(bags):
        return model.fit(x, bags=bags, proportions=shares).predict_proba(x)

    with pytest.raises(DataError, match=r"bags has the rows of X in another order, 13 first; pass bags.loc"):
        fitted(bags[::-1])
    plain = fitted(bags)
    for same in (bags[::-1].loc[x.index], bags.to_numpy(), bags.reset_index(drop=True)):
        np.testing.assert_array_equal(fitted(same), plain)


def test_given_labels_in_a_series_go_to_the_rows_of_its_index():
    bag = np.arange(len(X)) // 10
    frame = (
        pd.DataFrame(X, columns=["up", "along"]).assign(bag=bag, truth=TRUTH).sample(frac=1, random_state=0)
    )
    some = frame["truth"].iloc[:40]
    model = quick().fit(
        frame[["up", "along"]], bags=frame["bag"].to_numpy(), counts=pd.crosstab(bag, TRUTH), given=some
    )
    assert np.array_equal(model.transduction_[:40], some.to_numpy())


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_search_over_shares_from_a_frame_keeps_the_names_of_the_classes(library):
    bag = np.arange(len(X)) // 10
    table = pd.crosstab(bag, np.array(["no", "yes"])[TRUTH], normalize="index")
    frame = table if library == "pandas" else pl.from_pandas(table.rename_axis("bag").reset_index())
    shares = expand_proportions(frame, bag)
    assert type(shares) is type(frame)
    assert list(shares.columns) == ["no", "yes"]
    np.testing.assert_array_equal(np.asarray(shares), expand_proportions(table.to_numpy(), bag))
    with config_context(enable_metadata_routing=True):
        search = GridSearchCV(
            quick(), {"reg": [1.0]}, cv=GroupKFold(2), scoring=BagScore(), error_score="raise"
        )
        search.fit(X, shares, bags=bag, groups=bag)
    assert set(search.predict(X)) <= {"no", "yes"}


def test_permutation_importance_takes_a_scorer_that_knows_the_bags():
    bag = np.arange(len(X)) // 10
    shares = expand_proportions(pd.crosstab(bag, TRUTH, normalize="index"), bag)
    found = permutation_importance(
        quick().fit(X, shares, bags=bag), X, shares, n_repeats=1,
        scoring=lambda model, x, y: BagScore()(model, x, y, bags=bag),
    )  # fmt: skip
    assert found.importances_mean.shape == (2,)


# --- as many bags in a batch as their shares need


def test_large_random_bags_are_learnt_by_the_default():
    """With a bag or two a batch the network names the largest class for every row."""
    rng = np.random.default_rng(1)
    bag = np.repeat(np.arange(120), 200)
    x = rng.normal(size=(len(bag), 4)).astype(np.float32)
    y = (x @ rng.normal(size=(4, 3)) * 2 + rng.gumbel(size=(len(bag), 3))).argmax(1)
    model = ProportionClassifier(random_state=0, second_stage=None)
    right = (model.fit(x, y, bags=bag).predict(x) == y).mean()
    assert right > np.bincount(y).max() / len(y) + 0.2


# --- networks of one's own


def test_a_backbone_whose_networks_share_what_they_learn_is_refused():
    network, trunk = nn.Linear(2, 2), nn.Linear(2, 8)
    for backbone in (lambda shape, k: network, lambda shape, k: nn.Sequential(trunk, nn.Linear(8, k))):
        with pytest.raises(ValueError, match="share weights"):
            quick(backbone=backbone).fit(X, TRUTH)
    trunk.requires_grad_(False)
    quick(backbone=lambda shape, k: nn.Sequential(trunk, nn.Linear(8, k))).fit(X, TRUTH)


def test_a_backbone_that_ends_in_a_softmax_is_refused():
    with pytest.raises(ValueError, match="probabilities"):
        quick(backbone=lambda shape, k: nn.Sequential(nn.Linear(2, k), nn.Softmax(1))).fit(X, TRUTH)


def test_a_backbone_of_frozen_weights_is_refused():
    with pytest.raises(ValueError, match="no weight"):
        quick(backbone=lambda shape, k: nn.Linear(2, k).requires_grad_(False)).fit(X, TRUTH)


def test_shares_have_no_accuracy_and_the_error_says_what_scores_them():
    model = quick().fit(X, TRUTH)
    assert model.score(X, TRUTH) > 0.5
    with pytest.raises(DataError, match=r"y has shares of 2 classes, and accuracy wants labels; .*BagScore"):
        model.score(X, np.eye(2)[TRUTH])


# --- features that no network learns from


@pytest.mark.parametrize(
    ("factors", "name"),
    [((1e-6, 1e-6), "up"), ((1e-3, 1e-3), "up"), ((1.0, 100.0), "along"), ((1.0, 1e6), "along")],
)
def test_features_of_a_size_that_no_network_learns_from_are_warned_of(factors, name, caplog):
    frame = pd.DataFrame(X * factors, columns=["up", "along"])
    size = float(np.sqrt((frame[name] ** 2).mean()))
    quick(backbone="mlp").fit(frame, TRUTH, bags=TOWNS)
    quick(backbone="mlp").fit(frame.to_numpy(), TRUTH, bags=TOWNS)
    named, to_device = (record.getMessage() for record in caplog.records)
    what = f"the largest, has a root mean square of {size:.3g}: a network learns badly from it; scale the"
    assert named.startswith(f"feature {name!r} of X, {what}")
    assert to_device.startswith(f"feature {int(name == 'along')} of X, {what}")


def test_features_of_a_usual_size_or_for_a_network_of_ones_own_are_not(caplog):
    pixels = np.random.default_rng(0).integers(256, size=X.shape, dtype=np.uint8)
    for x in (X, 20 * X, X / 100, X * 0, pixels):
        quick(backbone="mlp").fit(x, TRUTH, bags=TOWNS)
    quick().fit(1e6 * X, TRUTH, bags=TOWNS)
    model = make_pipeline(StandardScaler(), quick(backbone="mlp"))
    model.fit(1e6 * X, TRUTH, proportionclassifier__bags=TOWNS)
    assert caplog.records == []


def test_the_share_of_one_class_on_every_row_is_refused_with_those_of_both():
    share = np.array([TABLE[town][1] for town in TOWNS.tolist()])
    with pytest.raises(DataError, match=r"the shares of one class; pass those of both, numpy.column_stack"):
        quick().fit(X, share, bags=TOWNS)


@pytest.mark.parametrize("table", [TABLE, FRAME.set_axis([0, 1], axis=1)], ids=["dict", "frame"])
@pytest.mark.parametrize("score", [BagScore(), BagCorrelation()], ids=["likelihood", "correlation"])
def test_a_score_takes_a_table_of_the_bags(table, score):
    model, rows, some = quick().fit(X, TRUTH, bags=TOWNS), expand_proportions(TABLE, TOWNS), TOWNS < "town 12"
    for part in (slice(None), some):
        given = X[part], rows[part]
        right = score(model, *given, bags=TOWNS[part])
        assert score(model, X[part], table, bags=TOWNS[part]) == pytest.approx(right)


def test_a_bag_that_the_table_lacks_or_has_none_for_is_without_shares_where_that_is_allowed():
    first, *_ = sorted(TABLE)
    rows = TABLE | {first: [math.nan, math.nan]}
    right = quick(unlabeled=True).fit(X, bags=TOWNS, proportions=rows)
    lacking = {town: shares for town, shares in TABLE.items() if town != first}
    for table in (lacking, lacking | {first: None}, FRAME.drop(first).set_axis([0, 1], axis=1)):
        assert same(quick(unlabeled=True).fit(X, bags=TOWNS, proportions=table), right)
    refusal(f"bag '{first}' has instances but no row in the table", X, bags=TOWNS, proportions=lacking)
    strange = {town.upper(): shares for town, shares in TABLE.items()}
    refusal("write both alike", X, bags=TOWNS, proportions=strange, settings={"unlabeled": True})


def test_sparse_matrices_and_texts_are_refused_with_what_makes_rows_of_them():
    sparse, wide = scipy.sparse.csr_array(X), scipy.sparse.csr_array((len(X), 5_000))
    refusal(r"X is a sparse matrix of 2 columns.*pass X.toarray\(\)", sparse, TRUTH, bags=TOWNS)
    refusal(r"X is a sparse matrix of 5,000 columns.*TruncatedSVD\(50\)", wide, TRUTH, bags=TOWNS)
    refusal("Expected 2D array, got scalar array", np.array(5.0), TRUTH, bags=TOWNS)
    texts = [f"text {i}" for i in range(len(X))]
    for given in (texts, tuple(texts), np.array(texts), pd.Series(texts, index=range(1, 241))):
        refusal(r"X has texts, such as 'text 0'; .*TfidfVectorizer\(\), Trunc", given, TRUTH, bags=TOWNS)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([0.5, 0.6], "summing to 1.1; divide them by their sum"),
        ([math.nan, math.nan], "leave its rows out of folds and searches, .* with unlabeled=True"),
    ],
)
def test_shares_that_folds_cannot_take_are_refused_with_what_can_be_done(row, message):
    with pytest.raises(DataError, match=message):
        expand_proportions(TABLE | {str(TOWNS[0]): row}, TOWNS)
    lacking = {town: shares for town, shares in TABLE.items() if town != TOWNS[0]}
    with pytest.raises(DataError, match="no row in the table; add it, or leave its rows out of folds"):
        expand_proportions(lacking, TOWNS)


def test_a_score_tells_a_table_from_shares_of_rows_where_every_row_is_a_bag():
    model, ids = quick().fit(X, TRUTH, bags=TOWNS), [f"{i:02d}" for i in range(12)][::-1]
    rows = np.random.default_rng(0).dirichlet([1, 1], 12)
    table = pd.DataFrame(rows, index=ids).sort_index()  # in another order than the rows
    right = BagScore()(model, X[:12], rows, bags=ids)
    assert BagScore()(model, X[:12], table, bags=ids) == pytest.approx(right)
    assert BagScore()(model, X[:12], dict(zip(ids, rows, strict=True)), bags=ids) == pytest.approx(right)
    with pytest.raises(DataError, match="there are 12 rows but 10 labels"):
        BagScore()(model, X[:12], TRUTH[:10], bags=ids)


@pytest.mark.parametrize("kind", ["array", "pandas", "polars"])
def test_a_column_of_vectors_is_refused_with_the_remedy(kind):
    rows = np.empty(240, object)
    rows[:] = list(X)
    given = {"array": rows, "pandas": pd.Series(list(X)), "polars": pl.Series(X.tolist())}[kind]
    with pytest.raises(DataError, match=r"X is a column of vectors of 2 numbers; pass numpy.stack\(X\)"):
        quick().fit(given, bags=TOWNS, proportions=TABLE)


def test_bags_in_another_order_than_predictions_are_refused_by_all_who_take_both():
    model = quick().fit(X, bags=TOWNS, proportions=TABLE)
    frame = pd.DataFrame(model.predict_proba(X), columns=model.classes_)
    bags = pd.Series(
        TOWNS, index=np.roll(np.arange(240), 7)
    )  # in the order of the predictions, who count theirs
    frame.index = [f"row {i}" for i in range(240)]
    bags.index = frame.index
    moved = bags.sample(frac=1, random_state=1)
    for ask in (diagnose,):
        with pytest.raises(DataError, match="rows of probabilities in another order, .* pass bags.loc"):
            ask(frame, moved, TABLE)
    moved = pd.Series(TOWNS).sample(frac=1, random_state=1)
    with pytest.raises(DataError, match="bags has the rows of X in another order"):
        BagScore()(model, pd.DataFrame(X), TABLE, bags=moved)
    with pytest.raises(DataError, match="bags has the rows of x in another order"):
        build_bags(pd.DataFrame(X), moved, TABLE)


def test_noise_is_a_number_and_not_true():
    with pytest.raises(DataError, match="noise is True; give a standard deviation, or 'estimate'"):
        quick(noise=True).fit(X, bags=TOWNS, counts=COUNTS)

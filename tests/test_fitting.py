"""Linear models, trees, their average with an mlp, and classifiers of scikit-learn, through the estimator."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import check_estimator

from apportion import ProportionClassifier, Proportions
from apportion._random import stream
from apportion.bags.simulate import make_bags
from apportion.errors import ModelError, SettingsError
from apportion.fitting import choose_factors, weighted
from apportion.networks.trees import BoostedTrees
from apportion.saving import load, save
from apportion.selection.held_out import effective_bags

MODELS = ["linear", "trees", "average"]


def people(n: int = 1200, n_bags: int = 60, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """A frame of numbers and categories, the class of each row, and random bags."""
    random = np.random.default_rng(seed)
    age = random.integers(18, 90, n)
    town = random.choice(["Bern", "Graz", "Oslo"], n)
    income = random.lognormal(10, 1, n)
    score = (age - 50) / 15 + 2 * (town == "Bern") - 1 + 0.5 * random.normal(size=n)
    frame = pd.DataFrame(
        {"age": age, "town": town, "income": np.where(random.random(n) < 0.1, np.nan, income)}
    )
    return frame, np.where(score > 0, "yes", "no"), random.permutation(n) % n_bags


FRAME, TRUTH, BAGS = people()
SHARES = pd.crosstab(BAGS, TRUTH, normalize="index")


def fitted(model: Any, **settings: Any) -> ProportionClassifier:
    if model == "average":
        settings = {"epochs": 10, "student_epochs": 5} | settings
    classifier = ProportionClassifier(model, random_state=0, **settings)
    return classifier.fit(FRAME, bags=BAGS, proportions=SHARES)


@pytest.fixture(scope="module")
def classifiers() -> dict[str, ProportionClassifier]:
    return {model: fitted(model) for model in MODELS}


def test_bags_count_by_the_rows_they_have():
    assert effective_bags(torch.tensor([7] * 30)) == pytest.approx(30)
    assert effective_bags(torch.tensor([1000] + [1] * 40)) == pytest.approx(1, abs=0.1)
    assert effective_bags(torch.tensor([], dtype=torch.int64)) == 0


def test_a_bag_with_most_of_the_rows_chooses_neither_settings_nor_weights():
    bags = np.where(np.arange(len(BAGS)) % 10 == 0, BAGS, -1)  # 60 bags, one of which has nine rows of ten
    shares = pd.crosstab(bags, TRUTH, normalize="index")
    classifier = ProportionClassifier("average", epochs=10, student_epochs=5, random_state=0)
    found = classifier.fit(FRAME, bags=bags, proportions=shares).selection_
    assert found["held_out_bags"] == 0
    assert found["candidates"]["linear"] == {"l2": 1e-3, "weight": 0.5}
    assert list(found["candidates"]) == ["linear", "mlp"]


@pytest.mark.parametrize("model", MODELS)
def test_every_model_learns_and_says_what_held_out_bags_chose(classifiers, model):
    classifier = classifiers[model]
    assert (classifier.predict(FRAME) == TRUTH).mean() > 0.85
    candidates = classifier.selection_["candidates"]
    assert set(candidates) == ({"linear", "trees", "mlp"} if model == "average" else {model})
    assert sum(found["weight"] for found in candidates.values()) == pytest.approx(1)
    assert classifier.selection_["held_out_bags"] == 60
    assert classifier.selection_["score"] > classifier.selection_["score_of_overall_shares"]
    assert classifier.best_epoch_ == (model, 1)
    assert {entry["stage"] for entry in classifier.history_} >= set(candidates) - {"mlp"} | {model}
    counts = pd.crosstab(BAGS, classifier.transduction_)
    np.testing.assert_array_equal(counts, pd.crosstab(BAGS, TRUTH))


@pytest.mark.parametrize("model", ["linear", "trees"])
def test_a_fit_is_repeatable(classifiers, model):
    again = fitted(model)
    np.testing.assert_array_equal(again.predict_proba(FRAME), classifiers[model].predict_proba(FRAME))


@pytest.mark.parametrize("model", MODELS)
def test_models_come_back_from_a_folder(classifiers, model, tmp_path):
    save(classifiers[model], tmp_path / "model")
    loaded = load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(FRAME), classifiers[model].predict_proba(FRAME))
    assert loaded.get_params()["model"] == model
    assert loaded.selection_ == classifiers[model].selection_
    save(loaded, tmp_path / "again")


def test_trees_say_which_features_matter(classifiers):
    importances = pd.Series(
        classifiers["trees"].feature_importances_, classifiers["trees"].encoder_.get_feature_names_out()
    )
    assert importances.sum() == pytest.approx(1)
    assert importances.idxmax() == "age"
    with pytest.raises(AttributeError):
        _ = classifiers["linear"].feature_importances_


def test_calibration_scales_any_model(classifiers):
    for model in ("linear", "trees"):
        classifier = fitted(model, validation_fraction=0.2, calibrate=True)
        assert classifier.temperature_ != 1
        assert isinstance(classifier.model_, BoostedTrees if model == "trees" else torch.nn.Linear)


def test_rows_are_averaged_unless_a_setting_asks_for_a_network():
    small = FRAME[["age"]][:100]
    few = BAGS[:100] % 10
    shares = pd.crosstab(few, TRUTH[:100], normalize="index")
    for settings, model in (({}, "average"), ({"epochs": 1, "student_epochs": 1}, "mlp")):
        classifier = ProportionClassifier(random_state=0, **settings).fit(small, bags=few, proportions=shares)
        assert classifier.resolved_["model"] == model
    assert classifier.selection_ is None


def test_few_bags_are_all_learned_from_with_equal_weights():
    few = BAGS % 8
    shares = pd.crosstab(few, TRUTH, normalize="index")
    classifier = ProportionClassifier("average", epochs=5, student_epochs=5, random_state=0)
    classifier.fit(FRAME, bags=few, proportions=shares)
    assert classifier.selection_["held_out_bags"] == 0
    weights = {name: found["weight"] for name, found in classifier.selection_["candidates"].items()}
    assert weights == {"linear": 0.5, "mlp": 0.5}


@pytest.mark.parametrize("model", ["linear", "trees", LogisticRegression()])
def test_unknown_and_noisy_proportions_known_labels_and_groupings(model):
    classifier = ProportionClassifier(model, random_state=0)
    known = {row: TRUTH[row] for row in range(40)}
    counts = pd.crosstab(BAGS, TRUTH) + np.random.default_rng(0).laplace(scale=1, size=(60, 2))
    table = Proportions(counts[10:], kind="counts", std=1.4, missing_bags="allow")
    classifier.fit(FRAME, bags=BAGS, proportions=table, known_labels=known)
    assert (classifier.predict(FRAME) == TRUTH).mean() > 0.8
    other = FRAME["town"].to_numpy()
    groups = {"precinct": SHARES, "town": pd.crosstab(other, TRUTH, normalize="index")}
    classifier.fit(FRAME, bags={"precinct": BAGS, "town": other}, proportions=groups)
    assert (classifier.predict(FRAME) == TRUTH).mean() > 0.8


@pytest.mark.parametrize("model", ["linear", "trees"])
def test_noise_is_not_predicted_with_more_confidence_than_the_overall_shares(model):
    random = np.random.default_rng(0)
    X, y, bags = random.normal(size=(2000, 10)), random.random(2000) < 0.2, np.arange(2000) // 20
    classifier = ProportionClassifier(model, random_state=0).fit(X, y, bags=bags)
    fresh = random.normal(size=(2000, 10))
    loss = -(
        0.2 * np.log(classifier.predict_proba(fresh)[:, 1])
        + 0.8 * np.log(classifier.predict_proba(fresh)[:, 0])
    )
    overall = -(0.2 * math.log(0.2) + 0.8 * math.log(0.8))
    assert loss.mean() < 1.03 * overall


def test_factors_follow_strong_evidence_and_stay_equal_without():
    y = (torch.rand(8000, generator=stream(0, "y")) < 0.4).long()
    good = 3.0 * (y - 0.5) + torch.randn(8000, generator=stream(1, "good"))
    x = torch.stack([torch.zeros(8000), good, good.flip(0)], 1)
    bags, _ = make_bags(x, y, 16, 2, stream(0, "bags"))
    base = bags.overall.log()
    right, wrong = (torch.stack([0 * bags.x[:, 0], 3 * bags.x[:, j]], 1).double() for j in (1, 2))
    assert choose_factors([right, right], base, bags) == pytest.approx([0.5, 0.5], rel=0.5)
    factors = choose_factors([right, wrong], base, bags)
    assert factors[1] < 0.05 * factors[0]
    assert sum(choose_factors([wrong], base, bags)) < 0.3
    few = bags.select(torch.arange(3))
    shares = choose_factors([right[:48], wrong[:48]], base, few)
    assert shares[1] > 0.5 * shares[0]
    shifted = weighted([0.0, 0.0], [right, wrong], base)
    torch.testing.assert_close(shifted.exp().mean(0), bags.overall)


@pytest.mark.parametrize("student", [LogisticRegression(), RandomForestClassifier(5, min_samples_leaf=20)])
def test_any_classifier_with_sample_weights_is_a_student(student, tmp_path):
    classifier = fitted(student)
    assert (classifier.predict(FRAME) == TRUTH).mean() > 0.85
    assert [entry["stage"] for entry in classifier.history_[-4:]] == ["second"] * 4
    np.testing.assert_array_equal(fitted(student).predict(FRAME), classifier.predict(FRAME))
    assert not hasattr(student, "classes_")  # a clone was fitted
    with pytest.raises(ModelError):
        save(classifier, tmp_path / "model")


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "linear", "epochs": 5},
        {"model": "trees", "method": "rot"},
        {"model": "trees", "pseudo_labels": "hard"},
        {"model": "linear", "batch_size": 64},
        {"model": "average", "select_by": "likelihood", "validation_fraction": 0.2},
        {"model": "trees", "select_by": "likelihood", "validation_fraction": 0.2},
        {"model": KNeighborsClassifier()},
        {"model": LinearSVC()},
        {"model": LogisticRegression(), "method": "dllp"},
        {"model": LogisticRegression(), "learning_rate": 0.1},
        {"model": LogisticRegression(), "pseudo_labels": None},
        {"model": "forest"},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(SettingsError):
        ProportionClassifier(**settings).fit(FRAME, bags=BAGS, proportions=SHARES)


@pytest.mark.filterwarnings("ignore::apportion.errors.ApportionWarning")
@pytest.mark.parametrize(
    "model",
    [
        "linear",
        pytest.param("trees", marks=pytest.mark.slow),
        pytest.param("average", marks=pytest.mark.slow),
        pytest.param(LogisticRegression(), marks=pytest.mark.slow),
    ],
)
def test_every_check_of_scikit_learn_passes(model):
    settings = {"epochs": 4, "student_epochs": 2} if model == "average" else {}
    # other rows are other bags, of which others are held out; test_weights.py has the laws of weights
    repeated = {"check_sample_weight_equivalence_on_dense_data": "other bags are held out"}
    found = check_estimator(
        ProportionClassifier(model, random_state=0, **settings),
        on_skip=None,
        expected_failed_checks=repeated,
    )
    others = {
        r["check_name"]: r["status"]
        for r in found
        if r["status"] != "passed" and r["check_name"] not in repeated
    }
    assert others.items() <= {("check_array_api_input", "skipped")}  # runs only where scipy is told to
    assert len(found) > 50

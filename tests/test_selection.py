"""Selection without labels: scores of held-out bags, the epoch and temperature they choose, cross-fitting."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import learner_of, moon_bags, network, ragged, same_bits, weights_of
from scipy.linalg import null_space
from scipy.stats import multinomial, multivariate_normal
from sklearn import clone, config_context
from sklearn.datasets import make_moons
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from torch import Tensor, nn

from apportion import BagCorrelation, BagScore, ProportionClassifier
from apportion._random import stream
from apportion.bags.arrays import as_floats
from apportion.bags.bags import Bags
from apportion.errors import DataError, SettingsError
from apportion.estimator import check_selection
from apportion.evaluate import calibration, predict_log_proba
from apportion.methods import DLLP
from apportion.methods.count_likelihood import count_log_likelihood
from apportion.networks import mlp
from apportion.optim import constant, make_optimizer
from apportion.pipeline import EpochState, first_stage
from apportion.selection.calibration import fit_temperature, scale_temperature
from apportion.selection.crossfit import assign_folds, cross_fit
from apportion.selection.epochs import EpochSelector
from apportion.selection.held_out import hold_out, split_bags
from apportion.selection.scores import SCORES
from apportion.training import Epoch


def calibrated_bags(m: int, n: int, k: int, seed: int = 0, scale: float = 2.0) -> tuple[Tensor, Tensor, Bags]:
    """True log-probabilities, labels drawn from them, and bags with the counts of those labels."""
    generator = stream(seed, "calibrated")
    log_probs = (scale * torch.randn(m * n, k, generator=generator, dtype=torch.float64)).log_softmax(1)
    labels = torch.multinomial(log_probs.exp(), 1, generator=generator).squeeze(1)
    counts = nn.functional.one_hot(labels, k).view(m, n, k).sum(1)
    bags = Bags(log_probs, torch.full((m,), n), (counts / n).float(), torch.arange(m * n), list(range(m)))
    return log_probs, labels, bags


def epoch_state(network: nn.Module, number: int = 1, stage: str = "first") -> EpochState:
    return EpochState(stage, Epoch(number, 100, {}, 0.0), DLLP(network), [])


# --- the likelihood of counts


def test_the_likelihood_is_that_of_a_sum_of_unequal_coins():
    """The oracle multiplies out the generating function of the counts."""
    log_probs, _, bags = calibrated_bags(20, 60, 2, scale=1.0)
    found = count_log_likelihood(log_probs, bags.sizes, bags.proportions)
    for i, part in enumerate(log_probs.exp().split(60)):
        law = np.ones(1)
        for p in part[:, 1].tolist():
            law = np.convolve(law, [1 - p, p])
        exact = math.log(law[round(60 * float(bags.proportions[i, 1]))])
        assert found[i] == pytest.approx(exact, rel=0.03, abs=0.02)


def test_the_likelihood_of_identical_rows_is_the_multinomial_one():
    p = np.array([0.5, 0.3, 0.2])
    counts = np.array([[150, 90, 60], [160, 80, 60], [140, 95, 65]])
    log_probs = torch.from_numpy(np.log(p)).expand(900, 3)
    found = count_log_likelihood(log_probs, torch.full((3,), 300), torch.from_numpy(counts / 300))
    np.testing.assert_allclose(found, multinomial(300, p).logpmf(counts), atol=0.05)


def test_the_likelihood_is_a_normal_density_on_the_plane_of_counts_blurred_by_one_cell():
    """The oracle has axes of its own in the plane; a number spread over a width of one varies by 1/12."""
    log_probs, _, bags = calibrated_bags(6, 5, 4, scale=3.0)
    found = count_log_likelihood(log_probs, bags.sizes, bags.proportions)
    axes = null_space(np.ones((1, 4)))
    for i, p in enumerate(log_probs.exp().numpy().reshape(6, 5, 4)):
        counts = np.round(5 * bags.proportions[i].double().numpy())
        covariance = np.diag(p.sum(0)) - p.T @ p + np.eye(4) / 12
        law = multivariate_normal(p.sum(0) @ axes, axes.T @ covariance @ axes)
        assert found[i] == pytest.approx(law.logpdf(counts @ axes) + math.log(4) / 2, abs=1e-5)


def test_certain_predictions_have_a_finite_likelihood():
    log_probs = torch.log(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])).repeat(2, 1)
    shares = torch.tensor([[2 / 3, 1 / 3], [1 / 3, 2 / 3]])
    right, wrong = count_log_likelihood(log_probs, torch.tensor([3, 3]), shares).tolist()
    assert right == pytest.approx(math.log(12 / math.pi) / 2, abs=1e-5)
    assert wrong == pytest.approx(right - 12, abs=1e-5)


# --- scores


def test_true_probabilities_are_likelier_than_sharper_and_vaguer_ones():
    log_probs, _, bags = calibrated_bags(400, 16, 3)
    temperatures = (0.5, 0.7, 1.0, 1.5, 3.0)
    scores = [SCORES["likelihood"]((log_probs / t).log_softmax(1), bags) for t in temperatures]
    assert temperatures[int(np.argmax(scores))] == 1.0


def test_the_likelihood_counts_every_row_alike():
    log_probs, _, bags = calibrated_bags(4, 6, 3)
    uneven = replace(bags, sizes=torch.tensor([2, 4, 12, 6]))
    by_bag = count_log_likelihood(log_probs, uneven.sizes, bags.proportions)
    assert SCORES["likelihood"](log_probs, uneven) == pytest.approx(float(by_bag.sum()) / 24)


@pytest.mark.parametrize("name", SCORES)
def test_every_score_prefers_the_truth_to_a_vague_guess(name):
    _, labels, bags = calibrated_bags(40, 10, 3)
    truth = nn.functional.one_hot(labels, 3) * 20.0
    vague = 0.01 * torch.randn(400, 3, generator=stream(1, "vague"))
    assert SCORES[name](truth.log_softmax(1), bags) > SCORES[name](vague.log_softmax(1), bags)


def test_hard_scores_count_the_most_probable_classes_and_margins_stay_finite():
    log_probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]]).log()
    half = torch.full((2, 2), 0.5)
    bags = Bags(torch.zeros(4, 1), torch.tensor([2, 2]), half, torch.arange(4), ["a", "b"])
    assert SCORES["hard_error"](log_probs, bags) == pytest.approx(-(0.5 + 0.0) / 2)
    pure = replace(bags, proportions=torch.eye(2))
    assert math.isfinite(SCORES["margin"](log_probs, pure))


# --- scorers for scikit-learn

X, LABELS = make_moons(400, noise=0.2, random_state=0)
TOWN = np.arange(400) % 20


class KnowsProportions:
    """A classifier that predicts the proportions of every row's bag."""

    def __init__(self, proportions: np.ndarray) -> None:
        self.proportions = proportions
        self.classes_ = np.arange(proportions.shape[1])

    def predict_proba(self, X: Any) -> np.ndarray:
        return self.proportions


def test_a_search_takes_a_score_of_bags():
    with config_context(enable_metadata_routing=True):
        search = GridSearchCV(
            LogisticRegression(),
            {"C": [1e-6, 1.0]},
            cv=GroupKFold(3),
            scoring=BagScore(),
            error_score="raise",
        )
        search.fit(X, LABELS, bags=TOWN, groups=TOWN)
    assert search.best_params_ == {"C": 1.0}


@pytest.mark.parametrize("scorer", [BagCorrelation(), BagScore()])
def test_a_score_without_bags_is_an_error(scorer):
    with pytest.raises(SettingsError):
        cross_val_score(DummyClassifier(), X, LABELS, scoring=scorer, cv=2, error_score="raise")


def test_an_unknown_score_is_an_error():
    with pytest.raises(SettingsError):
        BagScore("luck")


TABLE = np.array([[0.1, 0.9], [0.5, 0.5], [0.7, 0.3]])
BAG_OF_ROW = np.repeat([3, 5, 8], 4)
OF_ROWS = TABLE.repeat(4, 0)
PROPORTIONS = {
    "rows": OF_ROWS,
    "table": TABLE,
    "dict": dict(zip([3, 5, 8], TABLE.tolist(), strict=True)),
    "frame of bags": pd.DataFrame(TABLE, index=[3, 5, 8])[::-1],
    "frame of rows": pd.DataFrame(OF_ROWS, index=np.roll(np.arange(12), 5)),  # as a search leaves them
}


@pytest.mark.parametrize("proportions", PROPORTIONS.values(), ids=PROPORTIONS)
def test_scorers_take_proportions_by_row_or_by_bag(proportions):
    model = KnowsProportions(OF_ROWS)
    assert BagScore("error")(model, None, proportions, bags=BAG_OF_ROW) == pytest.approx(0, abs=1e-6)
    assert BagCorrelation()(model, None, proportions, bags=BAG_OF_ROW) == pytest.approx(1)


def test_a_frame_with_one_row_per_bag_is_read_by_its_index():
    order = np.array([8, 3, 5])
    model = KnowsProportions(TABLE[[2, 0, 1]])
    frame = pd.DataFrame(TABLE, index=[3, 5, 8])
    assert BagScore("error")(model, None, frame, bags=order) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("table", [np.array([[3.0, 2.0]] * 3), np.array([[0.59, 0.4]] * 3)])
def test_scorers_refuse_what_are_no_proportions(table):
    with pytest.raises(DataError):
        BagScore("error")(KnowsProportions(OF_ROWS), None, table, bags=BAG_OF_ROW)


def test_the_bag_correlation_of_bags_that_are_all_alike_is_an_error():
    with pytest.raises(DataError):
        BagCorrelation()(KnowsProportions(OF_ROWS), None, np.full((3, 2), 0.5), bags=BAG_OF_ROW)


def test_means_of_huge_bags_are_exact():
    table = np.array([[0.2, 0.8], [0.7, 0.3], [0.45, 0.55]], np.float32)
    sizes = [100, 4_000_000, 100]
    model, bags = KnowsProportions(table.repeat(sizes, 0)), np.repeat([0, 1, 2], sizes)
    known = dict(enumerate(table.tolist()))
    for scorer in (BagCorrelation(), BagScore("correlation")):
        assert scorer(model, None, known, bags=bags) == pytest.approx(1, abs=1e-6)


# --- validation bags


def test_validation_bags_are_apart_and_the_seed_decides_which():
    bags, _ = moon_bags(400)
    training, validation = split_bags(bags, 0.2, 1)
    assert len(validation.sizes) == 4
    assert sorted([*training.ids, *validation.ids]) == sorted(bags.ids)
    again, other = split_bags(bags, 0.2, 1)[1], split_bags(bags, 0.2, 2)[1]
    assert list(again.ids) == list(validation.ids) != list(other.ids)


def test_only_bags_that_measure_something_are_held_out():
    bags = ragged([5] * 20)
    proportions = bags.proportions.clone()
    proportions[:10] = math.nan
    bags = replace(bags, proportions=proportions, pure=torch.arange(20) >= 14)
    for seed in range(5):
        training, validation = hold_out(bags, 2, seed)
        assert set(validation.ids) < set(bags.ids[10:14])
        assert len(training.sizes) == 18
    assert len(split_bags(bags, 0.5, 0)[1].sizes) == 2
    with pytest.raises(DataError):  # one of four would be left
        split_bags(bags, 0.7, 0)


def test_bags_that_are_left_must_differ():
    bags = ragged([5] * 20)
    odd = [bags.ids.index(name) for name in hold_out(bags, 4, 0)[1].ids]
    alike = torch.full((20, 3), 1 / 3)
    alike[odd] = torch.tensor([1.0, 0.0, 0.0])
    with pytest.raises(DataError):
        split_bags(replace(bags, proportions=alike), 0.2, 0)


def test_a_correlation_needs_six_bags():
    """For two bags and two classes it is 1 or -1, whatever is predicted."""
    bags = ragged([5] * 20)
    with pytest.raises(DataError):
        split_bags(bags, 0.05, 0, "correlation")
    split_bags(bags, 0.05, 0, "likelihood")
    split_bags(bags, 0.3, 0, "correlation")


@pytest.mark.parametrize(
    "settings",
    [
        (0.0, "likelihood", False),
        (0.0, None, True),
        (0.1, "luck", False),
        (1.0, None, False),
        (-0.1, None, False),
        ("a", None, False),
        (None, None, False),
        (0.1, None, "no"),
    ],
)
def test_impossible_settings_are_errors(settings):
    with pytest.raises(SettingsError):
        check_selection(*settings)
    check_selection(0.1, "likelihood", True)
    check_selection(0.0, None, False)


# --- the epoch


@pytest.mark.parametrize("name", ["likelihood", "correlation"])
def test_the_network_is_that_of_the_best_epoch(name):
    bags, _ = moon_bags(400)
    training, validation = split_bags(bags, 0.3, 0, name)
    learner = learner_of("dllp", network())
    # a rate so large that the last epoch is not the best
    optimizers = [make_optimizer(learner.classifier, "adam", 0.1)]
    selector = EpochSelector(validation, name)
    lines, weights = [], []
    for state in first_stage(
        learner, training, optimizers, epochs=12, schedule=constant, seed=0, batch_size=64
    ):
        lines.append(selector.update(state)[f"validation_{name}"])
        weights.append(weights_of(learner.classifier))
    best = int(np.argmax(lines))
    assert best < 11
    assert (selector.stage, selector.epoch) == ("first", best + 1)
    chosen, temperature = selector.best_network()
    assert same_bits(weights_of(chosen), weights[best])
    assert temperature == 1.0
    again = SCORES[name](predict_log_proba(chosen, validation.x, as_floats), validation)
    assert again == pytest.approx(max(lines), abs=1e-5)


def test_without_a_score_the_last_epoch_is_kept():
    selector = EpochSelector(ragged(k=2), None)
    first, second = network(seed=0), network(seed=1)
    assert selector.update(epoch_state(first, 3)) == {}
    assert selector.update(epoch_state(second, 2, "second")) == {}
    assert (selector.stage, selector.epoch) == ("second", 2)
    assert same_bits(weights_of(selector.best_network()[0]), weights_of(second))


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [([math.nan, 1.0, 0.5], 2), ([0.5, 0.5, 0.5], 1), ([math.nan, math.nan], 1), ([0.5, math.nan, 0.6], 3)],
)
def test_the_first_of_equal_epochs_is_chosen_and_a_nan_only_until_there_is_a_number(
    monkeypatch, scores, chosen
):
    remaining = iter(scores)
    monkeypatch.setitem(SCORES, "likelihood", lambda log_probs, bags: next(remaining))
    selector, net = EpochSelector(ragged(k=2), "likelihood"), network()
    for number in range(1, len(scores) + 1):
        selector.update(epoch_state(net, number))
    assert selector.epoch == chosen


class OnAnotherDevice(torch.Tensor):
    """A tensor on a device that is not here: `cpu` alone reads it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func in (torch.Tensor.cpu, torch.Tensor.__len__), f"{func} mixes devices"
        with torch._C.DisableTorchFunctionSubclass():
            found = func(*args)
            return found.as_subclass(torch.Tensor) if func is torch.Tensor.cpu else found


@pytest.mark.parametrize("name", SCORES)
def test_scores_are_computed_on_the_cpu_and_rows_are_predicted_where_the_network_is(monkeypatch, name):
    """The device "meta" stands for a GPU: what is mixed with it is an error."""
    log_probs, _, bags = calibrated_bags(8, 10, 2)
    net = mlp((2,), 2)

    def predicted(network: nn.Module, x: Tensor, view: Any) -> Tensor:
        assert x.device == next(network.parameters()).device
        return log_probs

    monkeypatch.setattr("apportion.selection.epochs.predict_log_proba", predicted)
    expected = {f"validation_{name}": SCORES[name](log_probs, bags)}
    away = replace(bags, x=bags.x.to("meta"), proportions=bags.proportions.as_subclass(OnAnotherDevice))
    for device, validation in (("cpu", bags), ("meta", bags), ("meta", away)):
        net.to(device)
        assert EpochSelector(validation, name).update(epoch_state(net)) == expected


# --- the temperature


def calibration_error(log_probs: Tensor, labels: Tensor) -> float:
    bins = calibration(log_probs, labels, 15)
    return sum(n * abs(confidence - correct) for n, confidence, correct in bins) / len(labels)


@pytest.mark.parametrize("wrong", [0.4, 1.0, 3.0])
@pytest.mark.parametrize("k", [2, 5])
def test_the_temperature_that_distorted_probabilities_is_found_from_bags_alone(wrong, k):
    log_probs, labels, bags = calibrated_bags(500, 16, k, seed=3)
    distorted = (log_probs * wrong).log_softmax(1)
    found = fit_temperature(distorted, bags.sizes, bags.proportions)
    assert found == pytest.approx(wrong, rel=0.15)
    if wrong != 1.0:
        corrected = calibration_error((distorted / found).log_softmax(1), labels)
        assert corrected < 0.4 * calibration_error(distorted, labels)


def test_few_bags_are_weighed_against_a_temperature_of_one():
    """Log-temperature has a normal prior of deviation one; the oracle looks at every temperature."""
    log_probs, _, bags = calibrated_bags(3, 8, 2, seed=1)
    distorted = (4 * log_probs).log_softmax(1)
    grid = np.linspace(math.log(0.05), math.log(20), 2001)
    scaled = ((distorted / math.exp(at)).log_softmax(1) for at in grid)
    likely = np.array([float(count_log_likelihood(s, bags.sizes, bags.proportions).sum()) for s in scaled])
    found = math.log(fit_temperature(distorted, bags.sizes, bags.proportions))
    assert found == pytest.approx(grid[np.argmax(likely - grid**2 / 2)], abs=5e-3)
    assert abs(found - grid[np.argmax(likely)]) > 0.1


def test_of_two_minima_the_deeper_one_is_found(monkeypatch):
    def likelihood(
        log_probs, sizes, proportions, weight
    ):  # of a logarithm of -2, in a narrow valley, or of 1
        at = -math.log(float(log_probs[0, 0] - log_probs[0, 1]))
        return -torch.tensor([min((at - 1) ** 2, 20 * (at + 2) ** 2 - 5)])

    monkeypatch.setattr("apportion.selection.calibration.count_log_likelihood", likelihood)
    scores = torch.tensor([[1.0, 0.0]]).log_softmax(1)
    found = fit_temperature(scores, torch.tensor([1]), torch.tensor([[1.0, 0.0]]))
    assert math.log(found) == pytest.approx(-80 / 41, abs=1e-3)


def test_scaling_divides_the_logits_of_a_copy():
    x = torch.randn(7, 3, generator=stream(0, "x"))
    own = nn.Sequential(nn.Linear(3, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 2), nn.Identity()))
    for net in (mlp((3,), 4, widths=(8,)), own):
        before = net(x).detach()
        torch.testing.assert_close(scale_temperature(net, 2.5)(x), before / 2.5)
        torch.testing.assert_close(net(x), before)


def test_calibration_is_fitted_on_validation_bags_and_changes_no_class():
    log_probs, _, bags = calibrated_bags(200, 10, 2)
    bags = replace(bags, x=log_probs[:, :1].float())
    net = network(shape=(1,))
    selector = EpochSelector(bags, None)
    selector.update(epoch_state(net))
    plain, _ = selector.best_network()
    scaled, temperature = selector.best_network(calibrate=True)
    expected = fit_temperature(predict_log_proba(plain, bags.x), bags.sizes, bags.proportions)
    assert temperature == pytest.approx(expected)
    assert temperature != 1.0
    torch.testing.assert_close(scaled(bags.x) * temperature, plain(bags.x), rtol=1e-4, atol=1e-5)


# --- cross-fitting


class Remembering:
    """Remembers what it learned from and what it predicted, which follows the sum of a row."""

    log: list[tuple[Any, ...]]

    def __init__(self) -> None:
        self.log = []

    def __deepcopy__(self, memo: Any) -> "Remembering":
        copy = Remembering()
        copy.log = self.log
        return copy

    def fit(self, X: np.ndarray, *, bags: Any, proportions: Any) -> None:
        self.log.append(({tuple(row) for row in X.tolist()}, set(bags), proportions))

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        self.log[-1] += ({tuple(row) for row in X.tolist()},)
        p = 1 / (1 + np.exp(-X.sum(1)))
        return np.column_stack([p, 1 - p])


def test_no_bag_is_predicted_by_an_estimator_that_learned_from_it():
    bags, _ = moon_bags(200)
    model = Remembering()
    table = dict(zip(bags.ids, bags.proportions.numpy(), strict=True))
    out = np.full((200, 2), np.nan)
    assert [fold for fold, _ in cross_fit(model, bags.x.numpy(), bags, table, out, folds=3)] == [0, 1, 2]
    predicted = [each[3] for each in model.log]
    for learned, ids, proportions, rows in model.log:
        assert not learned & rows
        assert len(ids) < len(bags.ids)
        assert proportions is table
    assert set.union(*predicted) == {tuple(row) for row in bags.x.tolist()}
    np.testing.assert_array_equal(out, Remembering.predict_proba(model, bags.x.numpy()))  # in order
    for folds in (1, len(bags.ids) + 1):
        with pytest.raises(SettingsError):
            assign_folds(bags, folds, 0)


def test_cross_fitting_trains_on_all_rows_and_steps_of_pipelines():
    bags, _ = moon_bags(200)
    table = dict(zip(bags.ids, bags.proportions.numpy(), strict=True))
    plain = ProportionClassifier(epochs=2, pseudo_labels=None, random_state=0)
    choosing = clone(plain).set_params(validation_fraction=0.3, select_by="likelihood")
    outs = []
    for model in (plain, choosing, make_pipeline(FunctionTransformer(), plain)):
        out = np.empty((200, 2))
        for _ in cross_fit(model, bags.x.numpy(), bags, table, out, folds=2):
            pass
        outs.append(out)
    np.testing.assert_array_equal(outs[0], outs[1])
    np.testing.assert_array_equal(outs[0], outs[2])

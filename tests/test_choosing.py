"""Held-out bags: the likelihood of counts, scores, the epoch they choose, the temperature they fit."""

import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ragged
from scipy.linalg import null_space
from scipy.stats import multinomial, multivariate_normal
from sklearn import config_context
from sklearn.datasets import make_moons
from sklearn.model_selection import GridSearchCV, GroupKFold
from torch import Tensor, nn

from apportion import BagScore, DataError, ProportionClassifier, expand_proportions
from apportion.bags.bags import Bags
from apportion.evaluate import calibration
from apportion.intake.given import GivenBag
from apportion.intake.mending import mended_bags
from apportion.judging.bag_scores import SCORES
from apportion.judging.calibration import cooled, fitted_temperature
from apportion.judging.choosing import Chosen, part_of, split
from apportion.methods import DLLP
from apportion.methods.count_likelihood import count_log_likelihood
from apportion.networks import mlp
from apportion.pipeline import EpochState
from apportion.training import Epoch

X, TRUTH = make_moons(400, noise=0.2, random_state=0)
TOWN = np.arange(400) % 20
SHARES = np.stack([np.bincount(TOWN, c == TRUTH) for c in (0, 1)], 1) / 20


def bags_of(m: int, n: int, k: int, seed: int = 0, sure: float = 2.0) -> tuple[Tensor, Tensor, Bags]:
    """True log-probabilities, labels drawn from them, and the bags of those labels."""
    generator = torch.Generator().manual_seed(seed)
    log_probs = (sure * torch.randn(m * n, k, generator=generator, dtype=torch.float64)).log_softmax(1)
    labels = torch.multinomial(log_probs.exp(), 1, generator=generator).squeeze(1)
    counts = torch.nn.functional.one_hot(labels, k).view(m, n, k).sum(1)
    sizes, shares = torch.full((m,), n), (counts / n).float()
    return log_probs, labels, Bags(log_probs, sizes, shares, torch.arange(m * n), list(range(m)))


# --- the likelihood of counts


def test_the_likelihood_is_that_of_a_sum_of_unequal_coins():
    """The oracle multiplies out the generating function of the counts."""
    log_probs, _, bags = bags_of(20, 60, 2, sure=1.0)
    found = count_log_likelihood(log_probs, bags.sizes, bags.proportions)
    for i, part in enumerate(log_probs.exp().split(60)):
        law = np.ones(1)
        for p in part[:, 1].tolist():
            law = np.convolve(law, [1 - p, p])
        exact = math.log(law[round(60 * float(bags.proportions[i, 1]))])
        assert found[i] == pytest.approx(exact, rel=0.03, abs=0.02)


def test_the_likelihood_of_rows_that_are_all_alike_is_the_multinomial_one():
    p = np.array([0.5, 0.3, 0.2])
    counts = np.array([[150, 90, 60], [160, 80, 60], [140, 95, 65]])
    log_probs = torch.from_numpy(np.log(p)).expand(900, 3)
    found = count_log_likelihood(log_probs, torch.full((3,), 300), torch.from_numpy(counts / 300))
    np.testing.assert_allclose(found, multinomial(300, p).logpmf(counts), atol=0.05)


def test_the_likelihood_is_the_normal_density_on_the_plane_of_counts_blurred_by_a_cell_of_width_one():
    """The oracle has axes of its own in the plane; a number spread over a width of one varies by 1/12."""
    log_probs, _, bags = bags_of(6, 5, 4, sure=3.0)
    found = count_log_likelihood(log_probs, bags.sizes, bags.proportions)
    axes = null_space(np.ones((1, 4)))
    for i, p in enumerate(log_probs.exp().numpy().reshape(6, 5, 4)):
        counts = np.round(5 * bags.proportions[i].double().numpy())
        covariance = np.diag(p.sum(0)) - p.T @ p + np.eye(4) / 12
        law = multivariate_normal(p.sum(0) @ axes, axes.T @ covariance @ axes)
        assert found[i] == pytest.approx(law.logpdf(counts @ axes) + math.log(4) / 2, abs=1e-5)


def test_sure_predictions_have_the_likelihood_of_a_cell_alone():
    log_probs = torch.log(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])).repeat(2, 1)
    shares = torch.tensor([[2 / 3, 1 / 3], [1 / 3, 2 / 3]])
    right, wrong = count_log_likelihood(log_probs, torch.tensor([3, 3]), shares).tolist()
    assert right == pytest.approx(math.log(12 / math.pi) / 2, abs=1e-5)
    assert wrong == pytest.approx(right - 12, abs=1e-5)


def test_true_probabilities_are_likelier_than_sharper_and_than_vaguer_ones():
    log_probs, _, bags = bags_of(400, 16, 3)
    scores = {
        t: SCORES["likelihood"]((log_probs / t).log_softmax(1), bags) for t in (0.5, 0.7, 1.0, 1.5, 3.0)
    }
    assert max(scores, key=lambda t: scores[t]) == 1.0


def test_sure_and_wrong_predictions_have_a_likelihood_too():
    log_probs = torch.log(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    found = count_log_likelihood(log_probs, torch.tensor([2]), torch.tensor([[0.0, 1.0]]))
    assert torch.isfinite(found).all()
    assert found < count_log_likelihood(log_probs, torch.tensor([2]), torch.tensor([[1.0, 0.0]]))


# --- scores


def test_the_likelihood_is_by_row_and_not_by_bag():
    log_probs, _, bags = bags_of(4, 6, 3)
    sizes = torch.tensor([2, 4, 12, 6])
    uneven = replace(bags, sizes=sizes)
    found = count_log_likelihood(log_probs, sizes, bags.proportions)
    assert SCORES["likelihood"](log_probs, uneven) == pytest.approx(float(found.sum()) / 24)
    assert SCORES["likelihood"](log_probs, uneven) != pytest.approx(float((found / sizes).mean()), rel=1e-3)


@pytest.mark.parametrize("name", SCORES)
def test_every_score_prefers_the_truth_to_a_vague_guess(name):
    _, labels, bags = bags_of(40, 10, 3)
    truth = torch.nn.functional.one_hot(labels, 3) * 20.0
    vague = 0.01 * torch.randn(400, 3, generator=torch.Generator().manual_seed(1))
    assert SCORES[name](truth.log_softmax(1), bags) > SCORES[name](vague.log_softmax(1), bags)


def test_a_search_over_groups_takes_any_score_and_unknown_ones_are_refused():
    with config_context(enable_metadata_routing=True):
        search = GridSearchCV(
            quick(), {"first_epochs": [1, 20]}, cv=GroupKFold(3), scoring=BagScore(), error_score="raise"
        )
        search.fit(X, expand_proportions(SHARES, TOWN), bags=TOWN, groups=TOWN)
    assert search.best_params_ == {"first_epochs": 20}
    with pytest.raises(ValueError, match="there is no score 'luck'; there are likelihood, correlation"):
        BagScore("luck")


# --- held-out bags


def quick(**settings: Any) -> ProportionClassifier:
    given: dict[str, Any] = {"first_epochs": 12, "second_epochs": 4, "batch_size": 64, "rate": 2e-2}
    return ProportionClassifier(
        **given | {"backbone": partial(mlp, widths=(16,)), "random_state": 0} | settings
    )


def test_held_out_bags_are_apart_and_the_seed_decides_which():
    bags = mended_bags(X, None, TOWN, proportions=SHARES).bags
    learned, held = part_of(bags, 0.2, 1)
    assert held is not None
    assert len(held.sizes) == 4
    assert sorted([*learned.ids, *held.ids]) == sorted(bags.ids)
    assert list(part_of(bags, 0.2, 1)[1].ids) == list(held.ids) != list(split(bags, 4, 2)[1].ids)  # type: ignore
    assert part_of(bags, 0.0, 1) == (bags, None)


def test_only_bags_that_can_judge_are_held_out():
    missing = SHARES.copy()
    missing[:15] = np.nan
    given = {int(i): int(TRUTH[i]) for i in range(0, 400, 5)}
    bags = mended_bags(X, None, TOWN, proportions=missing, unlabeled=True, given=given).bags
    for seed in range(5):
        held = split(bags, 4, seed)[1]
        assert bool(held.proportions.isfinite().all())
        assert not any(str(name).startswith("given") for name in held.ids)
    learned, held = part_of(bags, 0.6, 0)
    assert held is not None
    assert len(held.sizes) == 2  # a share of the four that can judge: all rows of bag 15 are given
    assert int(learned.proportions.isfinite().all(1).sum()) == 2 + sum(
        str(name).startswith("given") for name in learned.ids
    )
    with pytest.raises(DataError, match="of 4 bags with proportions 3 would be held out; leave two at least"):
        part_of(bags, 0.7, 0)


def test_bags_whose_names_look_like_those_of_given_labels_are_held_out_too():
    names = np.array([f"given labels {i}" for i in TOWN])
    shares = {f"given labels {i}": row for i, row in enumerate(SHARES)}
    bags = mended_bags(X, None, names, proportions=shares, given={0: int(TRUTH[0])}).bags
    learned, held = part_of(bags, 0.5, 0)
    assert held is not None
    assert len(held.sizes) == 10
    assert sum(isinstance(name, GivenBag) for name in learned.ids) == 1
    assert repr(bags.ids[-1]) == "given labels 0"


def test_what_is_left_to_learn_from_has_proportions_and_these_differ():
    missing = SHARES.copy()
    missing[5:] = np.nan
    with pytest.raises(
        DataError, match="of 5 bags with proportions 2 would .* correlation; choose by likelih"
    ):
        quick(held_out=0.2, choose="correlation", unlabeled=True).fit(X, bags=TOWN, proportions=missing)
    missing[3:] = np.nan
    with pytest.raises(DataError, match="of 3 bags with proportions 2 would be held out; leave two at least"):
        quick(held_out=0.2, unlabeled=True).fit(X, bags=TOWN, proportions=missing)
    alike = np.tile([0.5, 0.5], (20, 1))
    bags = mended_bags(X, None, TOWN, proportions=SHARES).bags
    odd = next(i for i, name in enumerate(bags.ids) if name in split(bags, 4, 0)[1].ids)
    alike[odd] = [0.25, 0.75]
    with pytest.raises(
        DataError, match="once 4 of 20 bags are held out, all 16 bags have the same proportio"
    ):
        quick(held_out=0.2).fit(X, bags=TOWN, proportions=alike)


class Away(torch.Tensor):
    """Numbers on a device that is not here: `cpu` alone reads them."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func in (torch.Tensor.cpu, torch.Tensor.__len__), f"{func} mixes devices"
        with torch._C.DisableTorchFunctionSubclass():
            found = func(*args)
            return found.as_subclass(torch.Tensor) if func is torch.Tensor.cpu else found


@pytest.mark.parametrize("name", SCORES)
def test_scores_are_counted_on_the_cpu_and_rows_go_to_the_network(monkeypatch, name):
    """The device "meta" stands for a GPU: what is mixed with it is an error."""
    log_probs, _, held = bags_of(8, 10, 2)
    net = mlp((2,), 2)
    epoch_state = EpochState("first", Epoch(1, 1, {}, 0.0), DLLP(net), [])

    def predicted(network: nn.Module, x: Tensor, view: Any) -> Tensor:
        assert x.device == next(network.parameters()).device
        return log_probs

    monkeypatch.setattr("apportion.judging.choosing.predict", predicted)
    expected = SCORES[name](log_probs, held)
    gpu = replace(held, x=held.x.to("meta"), proportions=held.proportions.as_subclass(Away))
    for where, given in (("cpu", held), ("meta", held), ("meta", gpu)):  # as at home, as in fit's two doors
        net.to(where)
        assert Chosen(given, name).see(epoch_state) == {f"held-out {name}": expected}


def test_the_temperature_is_fitted_on_the_cpu(monkeypatch):
    log_probs, _, held = bags_of(20, 10, 2)
    monkeypatch.setattr("apportion.judging.choosing.predict", lambda network, x, view: log_probs)
    found = []
    for proportions in (held.proportions, held.proportions.as_subclass(Away)):
        chosen = Chosen(replace(held, proportions=proportions), None)
        chosen.see(EpochState("first", Epoch(1, 1, {}, 0.0), DLLP(mlp((2,), 2)), []))
        found.append(chosen.network(calibrate=True)[1])
    assert found[0] == found[1] != 1.0


def test_no_weight_depends_on_the_rows_of_held_out_bags():
    settings = {"held_out": 0.25, "choose": None}
    one = quick(**settings).fit(X, bags=TOWN, proportions=SHARES)
    names = split(mended_bags(X, None, TOWN, proportions=SHARES).bags, 5, 0)[1].ids
    moved = X.copy()
    moved[np.isin(TOWN, names)] += 100
    other = quick(**settings).fit(moved, bags=TOWN, proportions=SHARES)
    for a, b in zip(one.classifier_.parameters(), other.classifier_.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["likelihood", "correlation"])
def test_the_network_is_that_of_the_best_epoch(name):
    model = quick(held_out=0.3, choose=name, first_epochs=25).fit(X, bags=TOWN, proportions=SHARES)
    scores = [line[f"held-out {name}"] for line in model.history_]
    held = split(mended_bags(X, None, TOWN, proportions=SHARES).bags, 6, 0)[1]
    again = SCORES[name](torch.from_numpy(model.predict_proba(held.x)).log(), held)
    assert again == pytest.approx(max(scores), abs=1e-5)
    best = model.history_[int(np.argmax(scores))]
    assert model.chosen_ == (best["stage"], best["epoch"])
    assert max(scores) > scores[-1]  # else the test would not know it from the last epoch
    assert len(model.transduction_) == 400


def test_without_a_choice_the_last_epoch_is_kept_and_nothing_is_scored():
    model = quick().fit(X, bags=TOWN, proportions=SHARES)
    assert model.chosen_ == ("second", 4)
    assert model.temperature_ == 1.0
    assert not any("held-out" in key for line in model.history_ for key in line)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"choose": "likelihood"}, "choose goes by bags that are held out: pass held_out=0.1"),
        ({"calibrate": True}, "calibrate goes by bags that are held out: pass held_out=0.1"),
        ({"held_out": 0.1, "choose": "luck"}, "choose is 'luck'; there are likelihood, correlation"),
        ({"held_out": 1.0}, "held_out is 1.0; it is a share of the bags"),
        ({"held_out": "a"}, "held_out is 'a'; it is a share of the bags"),
        ({"held_out": None}, "held_out is None; it is a share of the bags"),
        ({"held_out": 0.1, "calibrate": "no"}, "calibrate is 'no'; it must be True or False"),
        ({"held_out": 0.95}, "of 20 bags 19 would be held out; leave two at least to learn from"),
    ],
)
def test_choices_that_cannot_be_are_refused_before_training(settings, message):
    with pytest.raises(DataError, match=message):
        quick(**settings).fit(X, bags=TOWN, proportions=SHARES)


# --- temperature


def calibration_error(log_probs: Tensor, labels: Tensor) -> float:
    bins = calibration(log_probs, labels, 15)
    return sum(n * abs(sure - right) for n, sure, right in bins) / len(labels)


@pytest.mark.parametrize("wrong", [0.4, 1.0, 3.0])
@pytest.mark.parametrize("k", [2, 5])
def test_the_temperature_that_made_probabilities_wrong_is_found_from_bags_alone(wrong, k):
    log_probs, labels, bags = bags_of(500, 16, k, seed=3)
    spoilt = (log_probs * wrong).log_softmax(1)
    found = fitted_temperature(spoilt, bags.sizes, bags.proportions)
    assert found == pytest.approx(wrong, rel=0.15)
    if wrong != 1.0:
        mended = calibration_error((spoilt / found).log_softmax(1), labels)
        assert mended < 0.4 * calibration_error(spoilt, labels)


def test_few_bags_are_weighed_against_a_temperature_of_one():
    """Log-temperature has a normal prior of deviation one: the oracle looks at every temperature."""
    log_probs, _, bags = bags_of(3, 8, 2, seed=1)
    spoilt = (4 * log_probs).log_softmax(1)
    grid = np.linspace(math.log(0.05), math.log(20), 2001)
    tempered = ((spoilt / math.exp(at)).log_softmax(1) for at in grid)
    likely = np.array([float(count_log_likelihood(s, bags.sizes, bags.proportions).sum()) for s in tempered])
    found = math.log(fitted_temperature(spoilt, bags.sizes, bags.proportions))
    assert found == pytest.approx(grid[np.argmax(likely - grid**2 / 2)], abs=5e-3)
    assert abs(found - grid[np.argmax(likely)]) > 0.1


def test_a_cooled_network_divides_its_scores_and_leaves_the_first_one_alone():
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    own = nn.Sequential(nn.Linear(3, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 2), nn.Identity()))
    for network in (mlp((3,), 4, widths=(8,)), own):
        before = network(x).detach()
        torch.testing.assert_close(cooled(network, 2.5)(x), before / 2.5)
        torch.testing.assert_close(network(x), before)


def test_calibration_moves_probabilities_and_no_class():
    plain = quick(held_out=0.25).fit(X, bags=TOWN, proportions=SHARES)
    made = quick(held_out=0.25, calibrate=True).fit(X, bags=TOWN, proportions=SHARES)
    assert made.temperature_ != 1.0
    np.testing.assert_array_equal(made.predict(X), plain.predict(X))
    odds = [np.log(m.predict_proba(X)[:, 1] / m.predict_proba(X)[:, 0]) for m in (plain, made)]
    np.testing.assert_allclose(odds[1] * made.temperature_, odds[0], rtol=1e-3, atol=1e-3)


def test_a_score_that_is_no_number_is_chosen_only_until_there_is_one(monkeypatch):
    scores = iter([math.nan, 1.0, 0.5])
    monkeypatch.setitem(SCORES, "likelihood", lambda log_probs, held: next(scores))
    net = mlp((2,), 2)
    held = Bags(torch.zeros(2, 2), torch.tensor([2]), torch.tensor([[0.5, 0.5]]), torch.arange(2), ["a"])
    chosen = Chosen(held, "likelihood")
    for number in (1, 2, 3):
        chosen.see(EpochState("first", Epoch(number, 100, {}, 0.0), DLLP(net), []))
    assert chosen.epoch == 2


def test_a_correlation_of_few_bags_chooses_nothing():
    """Of two bags and two classes it is 1 or -1, whatever the network says."""
    words = "of 20 bags 2 would be held out, too few for a correlation; hold out 6 at least, held_out=0.3"
    with pytest.raises(DataError, match=words):
        quick(held_out=0.05, choose="correlation").fit(X, bags=TOWN, proportions=SHARES)
    assert quick(held_out=0.05, choose="likelihood").fit(X, bags=TOWN, proportions=SHARES).chosen_[1] > 0


def test_of_two_valleys_the_deeper_temperature_is_found(monkeypatch):
    from apportion.judging import calibration as judge

    def likelihood(log_probs, sizes, proportions):  # of a logarithm of -2, in a narrow valley, or of 1
        at = -math.log(float(log_probs[0, 0] - log_probs[0, 1]))
        return -torch.tensor([min((at - 1) ** 2, 20 * (at + 2) ** 2 - 5)])

    monkeypatch.setattr(judge, "count_log_likelihood", likelihood)
    scores = torch.tensor([[1.0, 0.0]]).log_softmax(1)
    found = judge.fitted_temperature(scores, torch.tensor([1]), torch.tensor([[1.0, 0.0]]))
    assert math.log(found) == pytest.approx(-80 / 41, abs=1e-3)


def test_of_epochs_with_one_score_the_first_is_chosen(monkeypatch):
    monkeypatch.setitem(SCORES, "flat", lambda log_probs, bags: 0.5)
    chosen, net = Chosen(ragged(), "flat"), nn.Linear(2, 3)
    for number in (1, 2):
        learner, epoch = SimpleNamespace(classifier=net), SimpleNamespace(number=number)
        epoch_state = SimpleNamespace(learner=learner, stage="first", epoch=epoch, optimizers=[])
        chosen.see(epoch_state)
    assert chosen.epoch == 1


def test_scores_of_sure_labels_and_of_most_probable_classes_have_their_unit():
    from apportion.bags.bags import Bags

    scores = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]]).log()
    x, sizes = torch.zeros(4, 1), torch.tensor([2, 2])
    known = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    bags = Bags(x, sizes, known, torch.arange(4), ["a", "b"])
    assert SCORES["hard error"](scores, bags) == pytest.approx(-(0.5 + 0.0) / 2)  # one row of the first bag
    pure = Bags(x, sizes, torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.arange(4), ["a", "b"])
    assert SCORES["margin"](scores, pure) == 100  # and not infinite: all labels are certain

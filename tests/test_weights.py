"""A row of weight w is w equal rows: in means, losses, labels, scores, tables by group and the diagnosis."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import BaseEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression

from apportion import (
    ProportionClassifier,
    Proportions,
    condition_on_proportions,
    diagnose,
    diagnose_predictions,
    tabulate,
)
from apportion._random import stream
from apportion.bags.bags import Bags, bag_means
from apportion.bags.build import build_bags_without_features
from apportion.decisions import decide_by_prices, share_prices
from apportion.errors import ApportionWarning, DataError, SettingsError
from apportion.losses import effective_sizes, proportion_loss
from apportion.pseudo_labels import hard_labels, relaxed_proportions, soft_labels, transduce
from apportion.selection.scores import SCORES
from apportion.transport import assign_weighted

SIZES = torch.tensor([1, 7, 2, 20])


def weighted_bags(k: int = 3) -> Bags:
    """Bags of random rows with whole weights."""
    n = int(SIZES.sum())
    shares = torch.rand(len(SIZES), k, generator=stream(1)) + 0.1
    return Bags(
        torch.randn(n, 2, generator=stream(0)),
        SIZES,
        shares / shares.sum(1, keepdim=True),
        torch.arange(n),
        ids=range(len(SIZES)),
        weight=torch.randint(1, 5, (n,), generator=stream(2)).float(),
    )


def repeated(bags: Bags) -> tuple[Bags, torch.Tensor]:
    """The same bags with every row as often as it weighs, and the row of `bags` that each one repeats."""
    times = bags.weight.long()
    row = torch.arange(len(bags.x)).repeat_interleave(times)
    sizes = torch.stack([part.sum() for part in times.split(bags.sizes.tolist())])
    return Bags(bags.x[row], sizes, bags.proportions, torch.arange(len(row)), bags.ids), row


def test_means_masses_and_overall_proportions():
    bags = weighted_bags()
    copies, row = repeated(bags)
    torch.testing.assert_close(bag_means(bags.x, SIZES, bags.weight), bag_means(copies.x, copies.sizes))
    torch.testing.assert_close(bags.mass, copies.sizes.double())
    torch.testing.assert_close(bags.overall, copies.overall)
    torch.testing.assert_close(bags.select(torch.tensor([3, 1])).mass, copies.sizes[[3, 1]].double())
    equal = torch.full((len(bags.x),), 2.5)
    torch.testing.assert_close(bag_means(bags.x, SIZES, equal), bag_means(bags.x, SIZES))
    torch.testing.assert_close(effective_sizes(equal, SIZES), SIZES.float())


def test_batches_carry_the_weights_of_their_rows():
    bags = weighted_bags()
    for by in ("bag", "row"):
        for batch in bags.batches(16, stream(0), by=by):
            torch.testing.assert_close(batch.weight, bags.weight[batch.row])


def test_the_bag_loss_and_its_gradient():
    bags = weighted_bags()
    copies, row = repeated(bags)
    logits = torch.randn(len(bags.x), 3, generator=stream(3)).requires_grad_()
    loss = proportion_loss(logits, SIZES, bags.proportions, weight=bags.weight)
    expected = proportion_loss(logits[row], copies.sizes, bags.proportions)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(*(torch.autograd.grad(value, logits)[0] for value in (loss, expected)))


# --- labels


def predictions(bags: Bags, k: int = 3) -> torch.Tensor:
    return torch.randn(len(bags.x), k, generator=stream(4), dtype=torch.float64).log_softmax(1)


def test_soft_labels_and_relaxed_proportions():
    bags = weighted_bags()
    copies, row = repeated(bags)
    log_probs = predictions(bags)
    soft = soft_labels(log_probs, SIZES, bags.proportions, reg=0.7, weight=bags.weight)
    expected = soft_labels(log_probs[row], copies.sizes, bags.proportions, reg=0.7)
    torch.testing.assert_close(soft[row], expected, atol=1e-5, rtol=0)
    proportions = bags.proportions.clone()
    proportions[1] = torch.nan
    precision = torch.tensor([torch.inf, 2.0, 3.0, 0.5], dtype=torch.float64)
    relaxed = relaxed_proportions(log_probs, SIZES, proportions, precision, bags.weight)
    expected = relaxed_proportions(log_probs[row], copies.sizes, proportions, precision)
    torch.testing.assert_close(relaxed, expected, atol=1e-5, rtol=0)


def test_hard_labels_have_the_counts_of_the_copies_and_split_few_rows():
    bags = weighted_bags()
    copies, row = repeated(bags)
    log_probs = predictions(bags)
    labels = hard_labels(log_probs, SIZES, bags.proportions, weight=bags.weight)
    expected = hard_labels(log_probs[row], copies.sizes, bags.proportions)
    counts = torch.stack([part.sum(0) for part in expected.split(copies.sizes.tolist())])
    masses = torch.stack(
        [
            (w.unsqueeze(1) * part).sum(0)
            for part, w in zip(labels.split(SIZES.tolist()), bags.weight.split(SIZES.tolist()), strict=True)
        ]
    )
    torch.testing.assert_close(masses, counts)
    value = (bags.weight.unsqueeze(1) * labels * log_probs).sum()
    torch.testing.assert_close(value, (expected * log_probs[row]).sum())
    classes = transduce(log_probs, bags)
    whole = labels.max(1).values == 1
    assert (torch.from_numpy(classes)[whole] == labels.argmax(1)[whole]).all()
    assert int((~whole).sum()) <= 2 * len(SIZES)


def test_weights_that_are_not_whole_give_exact_masses():
    bags = weighted_bags()
    bags = replace(bags, weight=bags.weight * 0.37 + 0.01)
    labels = hard_labels(predictions(bags), SIZES, bags.proportions, weight=bags.weight)
    torch.testing.assert_close(bag_means(labels, SIZES, bags.weight).float(), bags.proportions)


# --- scores, decisions, conditioning


@pytest.mark.parametrize("name", ["likelihood", "correlation", "hard_correlation", "error", "hard_error"])
def test_scores(name):
    bags = weighted_bags()
    copies, row = repeated(bags)
    log_probs = predictions(bags)
    expected = SCORES[name](log_probs[row], copies)
    assert SCORES[name](log_probs, bags) == pytest.approx(expected, rel=1e-6)


def test_prices_give_the_weighted_shares():
    weight = torch.randint(1, 5, (500,), generator=stream(2)).float()
    log_probs = torch.randn(500, 3, generator=stream(4), dtype=torch.float64).log_softmax(1)
    shares = torch.tensor([0.6, 0.3, 0.1])
    codes = decide_by_prices(log_probs.exp().numpy(), share_prices(log_probs, shares, weight))
    found = np.bincount(codes, weight.numpy(), 3) / float(weight.sum())
    np.testing.assert_allclose(found, shares, atol=0.02)


def test_conditioned_probabilities():
    bags = weighted_bags()
    copies, row = repeated(bags)
    probabilities = predictions(bags).exp().numpy()
    ids = np.repeat(np.arange(4), SIZES)
    table = dict(
        enumerate(bags.proportions.double().numpy() / bags.proportions.double().sum(1, True).numpy())
    )
    one = condition_on_proportions(probabilities, ids, table, weight=bags.weight.numpy())
    other = condition_on_proportions(probabilities[row], ids[row], table)
    np.testing.assert_allclose(one[row], other, atol=1e-5)
    weights = bags.weight.numpy()
    for b in range(4):
        here = ids == b
        np.testing.assert_allclose(np.average(one[here], axis=0, weights=weights[here]), table[b], atol=1e-5)
    groups = np.arange(30) % 2
    both = {"a": ids, "b": groups}
    tables = {"a": Proportions(table, std=0.1), "b": Proportions({0: [0.2, 0.3, 0.5], 1: [0.4, 0.3, 0.3]})}
    one = condition_on_proportions(probabilities, both, tables, weight=weights)
    other = condition_on_proportions(probabilities[row], {"a": ids[row], "b": groups[row]}, tables)
    np.testing.assert_allclose(one[row], other, atol=2e-3)


# --- building and fitting


def rows(n: int = 300) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows, labels, bags and whole weights."""
    random = np.random.default_rng(0)
    x = random.normal(size=(n, 2))
    return x, (x[:, 0] > 0).astype(int), np.arange(n) % 20, random.integers(1, 4, n)


def test_labels_counts_and_known_labels_are_counted_with_weights():
    _, y, bags, weight = rows()
    copy = np.repeat(np.arange(len(y)), weight)
    counts = {b: np.bincount(y[bags == b], weight[bags == b], 2).tolist() for b in range(20)}
    w = weight.astype(float)
    expected = build_bags_without_features(len(copy), y[copy], bags=bags[copy]).bags
    for call in ({"y": y}, {"proportions": Proportions(counts, "counts")}):
        built = build_bags_without_features(len(y), bags=bags, weight=w, **call).bags
        torch.testing.assert_close(built.proportions, expected.proportions)
        torch.testing.assert_close(built.mass, expected.mass)
    known = build_bags_without_features(len(y), y, bags=bags, weight=w, known_labels={0: int(y[0])}).bags
    assert float(known.mass[0]) == float(expected.mass[0]) - weight[0]
    torch.testing.assert_close(known.overall, expected.overall, atol=1e-6, rtol=0)


SHORT = {"epochs": 8, "student_epochs": 3, "random_state": 0, "batch_size": 64, "model": "mlp"}


def test_equal_weights_are_no_weights_and_a_column_is_an_array():
    x, y, bags, weight = rows()
    plain = ProportionClassifier(**SHORT).fit(x, y, bags=bags)
    equal = ProportionClassifier(**SHORT).fit(x, y, bags=bags, sample_weight=np.full(300, 2.5))
    np.testing.assert_allclose(equal.predict_proba(x), plain.predict_proba(x), atol=1e-3)
    weighted = ProportionClassifier(**SHORT).fit(x, y, bags=bags, sample_weight=weight)
    assert np.abs(weighted.predict_proba(x) - plain.predict_proba(x)).max() > 1e-2
    frame = pd.DataFrame(x, columns=["x0", "x1"]).assign(people=weight)
    named = ProportionClassifier(**SHORT).fit(frame, y, bags=bags, sample_weight="people")
    np.testing.assert_array_equal(named.predict_proba(frame), weighted.predict_proba(x))
    shares = np.bincount(y, weight) / weight.sum()
    np.testing.assert_allclose(weighted.class_shares_, shares, atol=1e-6)
    counts = np.stack([np.bincount(y[bags == b], weight[bags == b], 2) for b in range(20)])
    found = np.stack(
        [np.bincount(weighted.transduction_[bags == b], weight[bags == b], 2) for b in range(20)]
    )
    assert np.abs(counts - found).max() <= 2  # the largest weight is 3, and one row of a bag is split


def test_rows_of_weight_zero_are_not_learned_from():
    x, y, bags, _ = rows()
    moved = x.copy()
    moved[::3] += 0.5
    weight = np.where(np.arange(300) % 3 == 0, 0.0, 1.0)
    settings = SHORT | {"model": own_network}
    one, other = (
        ProportionClassifier(**settings).fit(each, y, bags=bags, sample_weight=weight) for each in (x, moved)
    )
    np.testing.assert_allclose(one.predict_proba(x), other.predict_proba(x), atol=1e-4)
    assert len(one.transduction_) == 300


def own_network(shape: tuple[int, ...], n_classes: int) -> torch.nn.Module:
    """A linear one, without batch statistics, to which rows of weight zero would matter."""
    return torch.nn.Linear(shape[0], n_classes)


def test_a_validated_calibrated_fit_and_a_score_take_weights():
    x, y, bags, weight = rows()
    model = ProportionClassifier(**SHORT, validation_fraction=0.4, select_by="likelihood", calibrate=True)
    model.fit(x, y, bags=bags, sample_weight=weight)
    assert np.isfinite(model.history_[-1]["validation_likelihood"])
    shares = np.stack([1 - y, y], 1) * 0.5 + 0.25
    copy = np.repeat(np.arange(300), weight)
    expected = model.score(x[copy], shares[copy])
    assert model.score(x, shares, sample_weight=weight) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("weight", [[1.0], np.full(300, -1.0), np.full(300, np.nan), np.zeros(300)])
def test_weights_that_do_not_fit_are_errors(weight):
    x, y, bags, _ = rows()
    with pytest.raises(DataError, match="sample_weight"):
        ProportionClassifier(**SHORT).fit(x, y, bags=bags, sample_weight=weight)


@pytest.mark.parametrize("model", ["linear", LogisticRegression()])
def test_a_linear_model_and_a_classifier_of_scikit_learn_equal_those_of_repeated_rows(model):
    x, y, bags, weight = rows()
    copy = np.repeat(np.arange(300), weight)
    scale = 1 / 10  # so that no encoding differs: two values stay two values
    x = np.sign(x) * scale
    one = ProportionClassifier(model, random_state=0).fit(x, y, bags=bags, sample_weight=weight)
    other = ProportionClassifier(model, random_state=0).fit(x[copy], y[copy], bags=bags[copy])
    np.testing.assert_allclose(one.predict_proba(x), other.predict_proba(x), atol=1e-3)


def test_the_average_of_tables_leaves_trees_out():
    x, y, bags, weight = rows()
    model = ProportionClassifier(**SHORT | {"model": "average"}).fit(x, y, bags=bags, sample_weight=weight)
    assert set(model.selection_["candidates"]) == {"linear", "mlp"}


def test_models_and_methods_that_do_not_use_weights_refuse_them():
    x, y, bags, weight = rows()
    with pytest.raises(SettingsError, match="trees"):
        ProportionClassifier("trees").fit(x, y, bags=bags, sample_weight=weight)
    with pytest.raises(SettingsError, match="dllp"):
        ProportionClassifier(**SHORT, method="llp_gan").fit(x, y, bags=bags, sample_weight=weight)


# --- tables by group and the diagnosis


class BagRegression(BaseEstimator):
    """Shares of bags are linear in the means of their rows, weighted as the bags are."""

    def fit(self, X, *, bags, proportions, sample_weight=None):
        x, bags = np.asarray(X, float), np.asarray(bags)
        w = np.ones(len(x)) if sample_weight is None else np.asarray(sample_weight, float)
        names, bag = np.unique(bags, return_inverse=True)
        mass = np.bincount(bag, w)
        means = np.stack([np.bincount(bag, w * column) / mass for column in x.T], 1)
        table = proportions.table if isinstance(proportions, Proportions) else proportions
        shares = np.array([table[name] for name in names.tolist()])
        self.classes_ = np.arange(shares.shape[1])
        self.model_ = LinearRegression().fit(means, shares, sample_weight=mass)
        return self

    def predict_proba(self, X):
        p = self.model_.predict(np.asarray(X, float)).clip(0.01, 0.99)
        return p / p.sum(1, keepdims=True)


class WithoutWeights(BagRegression):
    def fit(self, X, *, bags, proportions):
        return super().fit(X, bags=bags, proportions=proportions)


def people(seed: int = 0, n: int = 800, m: int = 40):
    """Rows that stand for one to four people each, whose classes are their own: x, bag, weight, shares."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 2))
    weight = random.integers(1, 5, n)
    bag = np.arange(n) % m
    left = random.binomial(weight, 1 / (1 + np.exp(-3 * x[:, 0])))
    counts = np.bincount(bag, left) / np.bincount(bag, weight)
    return x, bag, weight, {i: [1 - p, p] for i, p in enumerate(counts.tolist())}


def test_a_table_by_group_is_that_of_repeated_rows():
    x, bag, weight, shares = people()
    copy = np.repeat(np.arange(len(x)), weight)
    old = x[:, 1] > 0.3
    fitted = BagRegression().fit(x, bags=bag, proportions=shares)
    for replicates, model in ((2, BagRegression()), (0, fitted)):
        options = {"bags": bag, "proportions": shares, "replicates": replicates}
        one = tabulate(model, x, {"old": old}, sample_weight=weight, **options)
        options["bags"] = bag[copy]
        other = tabulate(model, x[copy], {"old": old[copy]}, **options)
        assert one["rows"] == other["rows"]
        for name in set(one) - {"old", "class"}:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-4, atol=1e-3)
    alone = tabulate(fitted, x, {"old": old}, sample_weight=weight)
    copies = tabulate(fitted, x[copy], {"old": old[copy]})
    np.testing.assert_allclose(alone["count"], copies["count"])


FIGURES = (
    "supported", "accuracy", "accuracy_low", "accuracy_high", "accuracy_min", "accuracy_max",
    "accuracy_if_unrelated", "differences", "p_chance", "p_classes", "spread", "spread_tolerance",
    "correlation", "critical_correlation", "p_value", "largest_class", "agreement", "entropy",
)  # fmt: skip


def assert_same_figures(one, other, *, rounded=True):
    """Not `rounded`: counts of classes are whole in one of them only, which moves transported labels."""
    assert (one.supported, one.differences) == (other.supported, other.differences)
    assert one.agreement == pytest.approx(other.agreement, abs=1e-6 if rounded else 0.005)
    for name in set(FIGURES) - {"supported", "differences", "agreement"}:
        value = getattr(other, name)
        assert getattr(one, name) == pytest.approx(value, rel=1e-5, abs=1e-6, nan_ok=True), name
    torch.testing.assert_close(one.bag_errors, other.bag_errors)


@pytest.mark.parametrize("kind", ["chance", "classes", "more"])
def test_a_diagnosis_is_that_of_repeated_rows(kind):
    x, bag, weight, shares = people()
    if kind != "chance":
        order = np.argsort(x[:, 0] + 2 * np.random.default_rng(1).normal(size=len(x)))
        bag[order] = np.arange(len(x)) // 20
        place = x[:, 1 if kind == "more" else 0].argsort().argsort()
        bag = bag if kind == "classes" else place // 20
        left = np.random.default_rng(2).binomial(weight, 1 / (1 + np.exp(-3 * x[:, 0])))
        rate = np.bincount(bag, left) / np.bincount(bag, weight)
        shares = {i: [1 - p, p] for i, p in enumerate(rate.tolist())}
    copy = np.repeat(np.arange(len(x)), weight)
    p = BagRegression().fit(x, bags=bag, proportions=shares, sample_weight=weight).predict_proba(x)
    one = diagnose_predictions(
        p, bag, shares, origin="held_out", features=x, sample_weight=weight, n_permutations=499
    )
    other = diagnose_predictions(
        p[copy], bag[copy], shares, origin="held_out", features=x[copy], n_permutations=499
    )
    assert_same_figures(one, other)


def test_a_model_is_cross_fitted_and_diagnosed_as_with_repeated_rows():
    x, bag, weight, shares = people()
    copy = np.repeat(np.arange(len(x)), weight)
    one = diagnose(BagRegression(), x, bag, shares, sample_weight=weight)
    assert one.supported
    assert_same_figures(one, diagnose(BagRegression(), x[copy], bag[copy], shares))
    frame = pd.DataFrame(x).assign(people=weight)
    assert_same_figures(diagnose(BagRegression(), frame, bag, shares, sample_weight="people"), one)


def test_weights_of_one_are_no_weights_to_the_bit():
    x, bag, _, shares = people()
    settings = {**SHORT, "model": "average"}
    ones = np.ones(len(x))
    plain, equal = (
        diagnose(ProportionClassifier(**settings), x, bag, shares, sample_weight=weight, folds=2)
        for weight in (None, ones)
    )
    for name in FIGURES:
        assert repr(getattr(plain, name)) == repr(getattr(equal, name))
    assert torch.equal(plain.margins, equal.margins)
    groups = {"old": x[:, 1] > 0}
    model = ProportionClassifier(**SHORT).fit(x, bags=bag, proportions=shares)
    options = {"bags": bag, "proportions": shares, "replicates": 2}
    with pytest.warns(ApportionWarning, match="all that arithmetic allows"):  # after a few epochs
        tables = [tabulate(model, x, groups, sample_weight=weight, **options) for weight in (None, ones)]
    assert tables[0] == tables[1]


def test_rows_of_weight_zero_are_as_good_as_absent():
    x, bag, weight, shares = people()
    weight = np.where(np.arange(len(x)) % 7 == 0, 0, weight)
    there = weight > 0
    p = BagRegression().fit(x, bags=bag, proportions=shares).predict_proba(x)
    options = {"origin": "held_out", "n_permutations": 499}
    one = diagnose_predictions(p, bag, shares, features=x, sample_weight=weight, **options)
    other = diagnose_predictions(
        p[there], bag[there], shares, features=x[there], sample_weight=weight[there], **options
    )
    assert_same_figures(one, other, rounded=False)
    weight[bag == 3] = 0
    with pytest.raises(DataError) as problem:
        diagnose_predictions(p, bag, shares, features=x, sample_weight=weight, **options)
    assert problem.value.bag == 3


def test_weights_cannot_make_a_diagnosis_more_certain_than_its_rows():
    """Rows of equal weight count as one person each at least: shares of a population are small numbers."""
    x, bag, weight, shares = people()
    p = BagRegression().fit(x, bags=bag, proportions=shares).predict_proba(x)
    options = {"origin": "held_out", "features": x, "n_permutations": 499}
    plain = diagnose_predictions(p, bag, shares, **options)
    tiny = diagnose_predictions(p, bag, shares, sample_weight=np.full(len(x), 1e-4), **options)
    assert_same_figures(tiny, plain, rounded=False)
    one, other = (
        diagnose_predictions(p, bag, shares, sample_weight=weight * scale, **options)
        for scale in (1e-3, 1e-6)
    )
    assert_same_figures(one, other)


def test_margins_of_weighted_rows_bound_what_another_class_costs():
    """For one row at a time: the best labels of its bag in which no part of it has its class."""
    random = np.random.default_rng(0)
    for _ in range(20):
        p = random.dirichlet([1, 1, 1], 5)
        weight = random.integers(1, 4, 5).astype(float)
        counts = np.bincount(random.integers(3, size=int(weight.sum())), minlength=3)
        bag, shares = np.zeros(5, int), {0: (counts / counts.sum()).tolist()}
        found = diagnose_predictions(
            p, bag, shares, origin="held_out", sample_weight=weight, n_permutations=499
        )
        log_probs, sizes = torch.from_numpy(np.log(p)), torch.tensor([5])
        masses, w = torch.from_numpy(counts).double()[None], torch.from_numpy(weight)
        best = (w[:, None] * assign_weighted(log_probs, sizes, masses, w) * log_probs).sum()
        for i in range(5):
            without = log_probs.clone()
            without[i, found.classes[i]] = -1e3
            labels = assign_weighted(without, sizes, masses, w)
            if labels[i, found.classes[i]] < 1e-9:
                cost = float(best - (w[:, None] * labels * log_probs).sum())
                assert weight[i] * float(found.margins[i]) <= cost + 1e-6


def test_estimators_without_weights_and_weights_that_do_not_fit_are_refused():
    x, bag, weight, shares = people()
    with pytest.raises(SettingsError, match="sample_weight"):
        diagnose(WithoutWeights(), x, bag, shares, sample_weight=weight)
    with pytest.raises(SettingsError, match="sample_weight"):
        tabulate(WithoutWeights(), x, {"all": bag * 0}, bags=bag, proportions=shares, sample_weight=weight)
    for wrong in (weight[1:], -weight):
        with pytest.raises(DataError, match="sample_weight"):
            diagnose(BagRegression(), x, bag, shares, sample_weight=wrong)
        with pytest.raises(DataError, match="sample_weight"):
            tabulate(BagRegression(), x, {"all": bag * 0}, bags=bag, proportions=shares, sample_weight=wrong)

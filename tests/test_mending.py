"""Proportions as they really are: each option does what it says, and the error names the one that lacks."""

import math
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import ragged
from sklearn.datasets import make_moons

from apportion import ProportionClassifier
from apportion.errors import DataError
from apportion.intake.beside import beside
from apportion.intake.filling import filled, strayed
from apportion.intake.given import placed_labels
from apportion.intake.mending import believed, denoised, mended_bags, on_belief
from apportion.intake.weights import weights_of
from apportion.networks import mlp
from apportion.pseudo_labels import hard_labels, soft_labels

X, TRUTH = make_moons(400, noise=0.1, random_state=0)
TOWN = np.arange(400) % 20
COUNTS = np.stack([np.bincount(TOWN, c == TRUTH) for c in (0, 1)], 1)
SHARES = COUNTS / 20


def random_counts(m: int, size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).multinomial(size, [0.6, 0.3, 0.1], m).astype(float)


# --- noise


@pytest.mark.parametrize("spread", ["random", "skewed"])
def test_denoised_shares_are_nearer_to_the_truth_than_what_was_given(spread):
    random = np.random.default_rng(1)
    counts = random_counts(400, 64)
    if spread == "skewed":
        counts = np.stack([random.multinomial(64, random.dirichlet([1, 1, 1])) for _ in range(400)]).astype(
            float
        )
    noisy = counts + random.laplace(0, 2, counts.shape)
    shares, relax = denoised(noisy, np.full(400, 64), 2 * math.sqrt(2), whole=True)
    np.testing.assert_allclose(shares.sum(1), 1)
    assert (shares > 0).all()
    assert relax.shape == (400,)
    assert ((relax > 0) & (relax < math.inf)).all()
    clipped = np.clip(noisy, 0, 64)
    plain = clipped / clipped.sum(1, keepdims=True)
    errors = [np.sqrt(((s - counts / 64) ** 2).mean()) for s in (shares, plain)]
    assert errors[0] < (0.9 if spread == "random" else 1.0) * errors[1]


@pytest.mark.parametrize("seed", range(4))
def test_how_much_bags_differ_is_not_told_by_the_noise_of_the_smallest(seed):
    random = np.random.default_rng(seed)
    sizes = np.repeat([1, 3, 1000], [150, 150, 100])
    right = np.clip(random.normal(0.3, 0.05, 400), 0, 1)
    right = random.binomial(sizes, right)
    counts = np.stack([sizes - right, right], 1) + random.laplace(0, 3, (400, 2))
    shares, relax = denoised(counts, sizes, 3 * math.sqrt(2), whole=True)
    small, truth = sizes < 1000, right / sizes
    assert abs(shares[small, 1] - 0.3).mean() < 0.07  # a count of one row that is off by four tells nothing
    assert abs(shares[~small, 1] - truth[~small]).mean() < 0.003
    assert relax[~small].min() > 100 > 2 > relax[small].max()


def test_a_rest_has_the_noise_of_the_count_that_it_is_left_by():
    random = np.random.default_rng(0)
    true = random.binomial(50, 0.3, 2000)
    noisy = true + random.normal(0, 6, 2000)
    shares, relax = denoised(np.stack([noisy, 50 - noisy], 1), np.full(2000, 50), 6.0, whole=True)
    chance, error = 0.3 * 0.7 / 50, (6 / 50) ** 2
    np.testing.assert_allclose(relax, 1 + chance / error, rtol=0.1)
    assert ((shares[:, 0] - true / 50) ** 2).mean() < chance  # naming the overall shares has that


def test_without_noise_nothing_is_drawn_anywhere():
    counts = random_counts(50, 30)
    shares, relax = denoised(counts, np.full(50, 30), 0.0, whole=True)
    np.testing.assert_allclose(shares, counts / 30)
    assert (relax == math.inf).all()


def test_noise_is_estimated_from_how_far_the_totals_are_off():
    counts, random = random_counts(2000, 64), np.random.default_rng(2)
    noisy = counts + random.normal(0, 3, counts.shape)
    given, _ = denoised(noisy, np.full(2000, 64), 3.0, whole=True)
    guessed, _ = denoised(noisy, np.full(2000, 64), "estimate", whole=True)
    np.testing.assert_allclose(guessed, given, atol=0.01)


def test_endless_noise_leaves_the_overall_shares_alone():
    counts = random_counts(200, 20)
    shares, _ = denoised(counts, np.full(200, 20), 1e6, whole=True)
    np.testing.assert_allclose(shares, np.broadcast_to(counts.sum(0) / counts.sum(), shares.shape), atol=1e-3)


def test_labels_under_noise_are_whole_counts_of_the_relaxed_masses():
    generator = torch.Generator().manual_seed(0)
    log_probs = torch.randn(60, 3, generator=generator).log_softmax(1)
    sizes, shares = torch.full((3,), 20), torch.full((3, 3), 1 / 3)
    shares[0] = torch.tensor([0.9, 0.05, 0.05])
    ways = [believed(log_probs, sizes, shares, relax) for relax in (1e-6, 1.0, 1e6)]
    means = log_probs.exp().view(3, 20, 3).mean(1)
    torch.testing.assert_close(ways[0], means, atol=1e-3, rtol=0)  # no weight: the predictions' own
    torch.testing.assert_close(ways[2], shares, atol=1e-3, rtol=0)  # all weight: the given ones
    between = (ways[1][0, 0] - means[0, 0]) / (0.9 - means[0, 0])
    assert 0.1 < between < 0.9
    labels = on_belief(hard_labels, ragged(), 1.0)(log_probs, sizes, shares)
    torch.testing.assert_close(labels.view(3, 20, 3).mean(1), ways[1], atol=0.05, rtol=0)


# --- bags without proportions


def test_a_bag_without_proportions_keeps_its_predictions_and_teaches_no_first_stage():
    table = SHARES.copy()
    table[3] = np.nan
    bags, _, relax = mended_bags(X, ids=TOWN, proportions=table, unlabeled=True)
    assert relax == math.inf
    assert bags.proportions[3].isnan().all()
    assert bags.known().ids == [i for i in range(20) if i != 3]
    log_probs = torch.randn(400, 2, generator=torch.Generator().manual_seed(0)).log_softmax(1)
    labels = on_belief(partial(soft_labels, reg=1.0), bags, math.inf)(log_probs, bags.sizes, bags.proportions)
    torch.testing.assert_close(labels[60:80], log_probs[60:80].exp(), atol=1e-4, rtol=0)
    torch.testing.assert_close(labels[:20].mean(0), bags.proportions[0], atol=1e-4, rtol=0)


# --- given labels


def test_given_labels_are_in_bags_of_one_class_and_the_other_counts_are_what_is_left():
    given = {int(i): int(TRUTH[i]) for i in (0, 20, 7, 399)}
    bags, classes, _ = mended_bags(X, ids=TOWN, counts=COUNTS, given=given)
    assert classes.tolist() == [0, 1]
    ones = sum(given.values())
    assert bags.sizes.tolist() == [18, *[20] * 6, 19, *[20] * 11, 19, *[n for n in (4 - ones, ones) if n]]
    assert sorted(bags.source[-4:].tolist()) == [0, 7, 20, 399]
    hidden = torch.from_numpy(TRUTH)[bags.source]
    start = 0
    for size, shares in zip(bags.sizes.tolist(), bags.proportions, strict=True):
        truth = torch.bincount(hidden[start : start + size], minlength=2) / size
        torch.testing.assert_close(shares, truth, atol=1e-5, rtol=0)
        start += size
    np.testing.assert_allclose(bags.x.numpy(), X[bags.source].astype(np.float32))


def test_a_bag_whose_rows_are_all_given_is_gone():
    given = {int(i): int(TRUTH[i]) for i in np.flatnonzero(TOWN == 5)}
    bags, _, _ = mended_bags(X, ids=TOWN, counts=COUNTS, given=given)
    assert len(bags.sizes) == 19 + 2
    assert 5 not in bags.ids


@pytest.mark.parametrize(
    "given",
    [pd.Series({3: 0, 7: 1}), {3.0: 0, 7.0: 1}, {np.int64(3): 0, np.float32(7): np.int64(1)}],
    ids=["series", "floats", "numpy's"],
)
def test_given_labels_come_in_every_form_of_a_dict(given):
    bags = mended_bags(X, ids=TOWN, counts=COUNTS, given=given).bags
    plain = mended_bags(X, ids=TOWN, counts=COUNTS, given={3: 0, 7: 1}).bags
    assert torch.equal(bags.source, plain.source)
    assert torch.equal(bags.proportions, plain.proportions)


ROWS = np.random.default_rng(5).permutation(400)
SHUFFLED = pd.DataFrame(X, columns=["a", "b"]).assign(town=TOWN, y=TRUTH).iloc[ROWS]


@pytest.mark.parametrize("known", [SHUFFLED["y"].iloc[:30], SHUFFLED["y"].where(np.arange(400) < 30)])
@pytest.mark.parametrize("indexed", ["x", "bags", "both", "texts", "twice"])
def test_a_series_of_given_labels_is_read_by_the_index_of_the_rows(known, indexed):
    """Its labels were taken for places, and so went to other rows."""
    table, towns = SHUFFLED[["a", "b"]], SHUFFLED["town"]
    if indexed in ("texts", "twice"):
        name = "row {}" if indexed == "texts" else "row"
        table = table.set_axis([name.format(i) for i in table.index])
        known = known.set_axis([name.format(i) for i in known.index])
    if indexed == "twice" and len(known) < 400:
        with pytest.raises(
            DataError, match="the index of X has 'row' twice, and given is found by it; pass re"
        ):
            mended_bags(table, ids=towns, counts=COUNTS, given=known)
        return
    x = table.to_numpy() if indexed == "bags" else table
    ids = towns.to_numpy() if indexed == "x" else towns
    found = mended_bags(x, ids=ids, counts=COUNTS, given=known).bags
    plain = mended_bags(
        table.to_numpy(), ids=towns.to_numpy(), counts=COUNTS, given=dict(enumerate(SHUFFLED["y"].iloc[:30]))
    ).bags
    assert torch.equal(found.source, plain.source)
    assert torch.equal(found.proportions, plain.proportions)


def test_labels_that_a_series_gives_to_no_row_or_to_one_twice_are_told():
    table, towns = SHUFFLED[["a", "b"]], SHUFFLED["town"].to_numpy()
    with pytest.raises(
        DataError, match="for row 400, which is not in the index of X; drop it, or pass {row: c"
    ):
        placed_labels(pd.Series({400: 1}), table, towns)
    assert placed_labels(pd.Series({400: None, ROWS[3]: 1}, dtype=object), table, towns) == {3: 1}
    with pytest.raises(DataError, match="given has row 7 twice in its index"):
        placed_labels(pd.Series([0, 1], index=[7, 7]), table, towns)
    with pytest.raises(DataError, match="given has all 400 rows, but X has no index to find .*reset_index"):
        placed_labels(SHUFFLED["y"], X, TOWN)
    whole = pd.Series(TRUTH, dtype="Int64").where(TOWN == 0)  # in order, as a column of a table has them
    assert placed_labels(whole, X, TOWN) == {int(i): TRUTH[i] for i in np.flatnonzero(TOWN == 0)}
    assert placed_labels({3: 1}, table, towns) == {3: 1}


def test_a_table_by_name_keeps_its_bags_under_an_option_though_their_texts_sort_otherwise():
    table = {str(i): 100 * row for i, row in enumerate(SHARES)}
    bags = mended_bags(X, ids=TOWN.astype(str), proportions=table, normalize=True).bags
    for name, shares in zip(bags.ids, bags.proportions, strict=True):
        np.testing.assert_allclose(shares, SHARES[int(str(name))], atol=1e-6)


def test_counts_beside_an_option_are_told_of_as_they_were_given():
    bad = COUNTS * 3
    bad[4] = [-1, 61]
    with pytest.raises(
        DataError, match="bag 4 has -1 as the count of class 0, which is negative; give 0 or m"
    ):
        mended_bags(X, ids=TOWN, counts=bad, normalize=True)
    with pytest.raises(DataError, match="bag 0 has counts that sum to 60 but 20 instances"):
        mended_bags(X, ids=TOWN, counts=COUNTS * 3, unlabeled=True)
    with pytest.raises(DataError, match=r"have shape \(20,\); pass a row a bag and at least two classes"):
        mended_bags(X, ids=TOWN, counts=COUNTS[:, 0], unlabeled=True)


def quick(**settings: Any) -> ProportionClassifier:
    given = {"first_epochs": 60, "second_epochs": 20, "batch_size": 64, "rate": 5e-3}
    return ProportionClassifier(
        **given | {"random_state": 0, "backbone": partial(mlp, widths=(32, 32))} | settings
    )


def test_the_estimator_learns_from_noisy_partial_and_given_ones_together():
    noisy = COUNTS + np.random.default_rng(0).laplace(0, 1, COUNTS.shape)
    noisy[4] = np.nan
    given = {int(i): int(TRUTH[i]) for i in range(0, 400, 25)}
    model = quick(noise=math.sqrt(2), unlabeled=True).fit(X, bags=TOWN, counts=noisy, given=given)
    assert all(model.transduction_[i] == label for i, label in given.items())
    assert (model.predict(X) == TRUTH).mean() > 0.85


# --- errors that name the option


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "negative": (
        {},
        {"counts": COUNTS * [[1, -1]]},
        r"bag 0 has -11 as the count of class 1.* taken by .*\(noise=\)",
    ),
    "negative share": (
        {},
        {"proportions": SHARES * 6 - 2.5},
        r"if noise was added, it is taken by ProportionClassifier\(noise=\)",
    ),
    "missing": ({}, {"proportions": np.where(TOWN[:20, None] == 3, np.nan, SHARES)}, "unlabeled=True"),
    "missing in noise": (
        {"noise": 1.0},
        {"counts": np.where(TOWN[:20, None] == 3, np.nan, COUNTS)},
        "unlabeled=True",
    ),
    "missing in noise, by name": (
        {"noise": 1.0},
        {"counts": np.where(TOWN[:20, None] == 3, np.nan, COUNTS)},
        r"bag 3 has \[nan, nan\]",
    ),
    "other totals": ({}, {"counts": COUNTS * 3}, "larger group"),
    "other totals in noise": (
        {"noise": 1.0},
        {"counts": COUNTS * 10},
        "bag 0 has counts that sum to 200 but 20",
    ),
    "other totals to estimate from": (
        {"noise": "estimate"},
        {"counts": COUNTS * 10},
        "sum to 200 but 20 inst",
    ),
    "a rest, of noise to be estimated": (
        {"noise": "estimate"},
        {"counts": COUNTS + [[0.37, -0.37]]},
        "bag 0 has .* and 20 for all, which noise='estimate' does not explain; sums do not show it.* rest",
    ),
    "a count below nought": (
        {"noise": 0.5},
        {"counts": COUNTS - COUNTS[0] * [[1, -1]] - [[9, -9]]},
        "bag 0 has -9 for a class and 20 for all, which noise=0.5 does not explain; .* deviation",
    ),
    "percentages in noise": (
        {"noise": 1.44},
        {"proportions": SHARES * 100},
        "bag 0 has proportions summing to 100, which noise=1.44 does not explain; divide percentages",
    ),
    "percentages to estimate from": (
        {"noise": "estimate"},
        {"proportions": SHARES * 100},
        "divide percentages",
    ),
    "no deviation of shares": ({"noise": 2.8}, {"proportions": SHARES}, "the standard deviation of a share"),
    "estimated, rescaled": (
        {"noise": "estimate", "normalize": True},
        {"counts": COUNTS},
        "give its standard dev",
    ),
    "nothing to rescale": (
        {"noise": 1.0, "normalize": True},
        {"counts": COUNTS - 20},
        "bag 0 sums to -20, which",
    ),
    "filled, of another total": (
        {"fill": True, "normalize": True},
        {"counts": COUNTS * 1.0},
        "fill gives what is left of a bag's total.* for counts pass one of them",
    ),
    "percentages to fill": (
        {"fill": True, "normalize": True},
        {"proportions": SHARES * [[100, np.nan]]},
        "bag 0 has .* more than 1 for all; divide percentages by 100",
    ),
    "a class left out": (
        {},
        {"proportions": {i: {"a": 0.5, "b": 0.5} if i else {"a": 0.5} for i in range(20)}},
        "bag 0 has proportions summing to 0.5; rescale them; .*normalize=True.*fill=True",
    ),
    "a flag in words": ({"normalize": "no"}, {"counts": COUNTS}, "normalize is 'no'; it must be True or Fal"),
    "a flag that is none": ({"fill": None}, {"counts": COUNTS}, "fill is None; it must be True or False"),
    "no table": ({"noise": 1.0}, {"y": TRUTH}, "noise, normalize, unlabeled, fill are for tables"),
    "no noise": ({"noise": "much"}, {"counts": COUNTS}, "noise is 'much'; give a standard deviation"),
    "nothing": ({"unlabeled": True}, {"proportions": SHARES * np.nan}, "no bag has proportions"),
    "no such row": ({}, {"counts": COUNTS, "given": {400: 0}}, "row 400, but there are 400 rows"),
    "a row before the first": ({}, {"counts": COUNTS, "given": {-1: 0}}, "row -1, but there are 400 rows"),
    "a row by name": (
        {},
        {"counts": COUNTS, "given": {"r3": 0}},
        "for row 'r3'; name rows by their place, from 0",
    ),
    "half a row": ({}, {"counts": COUNTS, "given": {3.5: 0}}, "for row 3.5; name rows by their place"),
    "no row": ({}, {"counts": COUNTS, "given": {math.nan: 0}}, "for row nan; name rows by their place"),
    "labels without rows": ({}, {"counts": COUNTS, "given": [0, 1]}, "given is a list; pass {row: class}"),
    "no such class": ({}, {"counts": COUNTS, "given": {1: 2}}, "class 2, which is not among"),
    "too many given": (
        {},
        {"counts": COUNTS, "given": {int(i): 0 for i in np.flatnonzero(TOWN == 2)}},
        "bag 2 has 20 rows that are given as 0, more",
    ),
    "too many given, by name": (
        {},
        {
            "proportions": pd.DataFrame(SHARES, columns=["Other", "Us"]),
            "given": {int(i): "Other" for i in np.flatnonzero(TOWN == 2)},
        },
        "bag 2 has 20 rows that are given as 'Other', more",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_needs_an_option_is_refused_with_its_name(what):
    settings, given, message = REFUSED[what]
    with pytest.raises(DataError, match=message):
        quick(**settings).fit(X, **{"bags": TOWN} | given)


def test_a_gap_names_the_bag_of_its_row_and_counts_no_column_of_bags():
    gaps = SHARES.copy()
    gaps[3, 1] = np.nan
    names = np.array([f"town {i + 10}" for i in TOWN])
    with pytest.raises(DataError, match="bag 'town 13' has no number for 1 of its 2 classes"):
        mended_bags(X, ids=names, proportions=gaps)
    column = pd.DataFrame(gaps, columns=["no", "yes"]).assign(town=np.arange(20))[::-1].reset_index(drop=True)
    with pytest.raises(DataError, match="bag 3 has no number for 1 of its 2 classes"):
        mended_bags(X, ids=TOWN, proportions=column)


def test_noisy_numbers_of_another_total_are_rescaled_with_their_noise():
    noisy = COUNTS + np.random.default_rng(0).normal(0, 1, COUNTS.shape)
    plain = denoised(
        noisy * 20 / noisy.sum(1, keepdims=True),
        np.full(20, 20),
        20 / noisy.sum(1, keepdims=True),
        whole=True,
    )
    for factor in (1, 10, 0.1):
        bags, _, relax = mended_bags(X, ids=TOWN, counts=noisy * factor, noise=factor, normalize=True)
        np.testing.assert_allclose(bags.proportions, plain[0], atol=1e-6)
        assert list(relax.values()) == pytest.approx(plain[1].tolist())
    percent, rounded = (
        mended_bags(X, ids=TOWN, proportions=f * SHARES, noise=f * 0.01, normalize=True) for f in (100, 1)
    )
    torch.testing.assert_close(percent.bags.proportions, rounded.bags.proportions)
    assert percent.relax == pytest.approx(rounded.relax)


def test_noise_that_leaves_a_class_nothing_still_weighs_something():
    values = np.array([[9.0, 1.0], [12.0, -2.5]] * 5)
    shares, relax = denoised(values, np.full(10, 10), 1.4, whole=True)
    assert (relax > 0).all()
    assert (shares > 0).all()


@pytest.mark.parametrize("scale", [0.5, 2.0, 8.0])
def test_what_noise_does_in_thousands_of_bags_is_explained_by_it(scale):
    noise = np.random.default_rng(0).laplace(0, scale, (20_000, 2))
    values, totals = noise + [[10, 10]], np.full(20_000, 20.0)
    assert len(strayed(values, totals, scale * math.sqrt(2))) == 0
    assert len(strayed(values, totals, "estimate")) == 0
    assert len(strayed(values * 10, totals, "estimate")) == 20_000


def test_a_class_that_a_bag_does_not_name_has_what_is_left_where_that_is_asked():
    table = {i: {"no": row[0], "yes": row[1]} if i % 2 else {"no": row[0]} for i, row in enumerate(SHARES)}
    bags, classes, _ = mended_bags(X, ids=TOWN, proportions=table, fill=True)
    assert classes.tolist() == ["no", "yes"]
    torch.testing.assert_close(bags.proportions, torch.from_numpy(SHARES).float())


def test_counts_of_a_larger_group_are_rescaled_when_asked():
    bags, _, _ = mended_bags(X, ids=TOWN, counts=COUNTS * 3, normalize=True)
    torch.testing.assert_close(bags.proportions, torch.from_numpy(SHARES).float())


# --- classes without a number, intervals


def test_one_missing_class_has_exactly_what_is_left():
    whole = random_counts(50, 20)
    gaps = whole.copy()
    gaps[np.arange(50), np.arange(50) % 3] = np.nan
    np.testing.assert_allclose(filled(gaps, np.full(50, 20.0)), whole)
    np.testing.assert_allclose(filled(gaps / 20, np.ones(50)), whole / 20)


def test_several_missing_classes_share_what_is_left_as_they_are_overall():
    shares = np.array([[0.5, 0.4, 0.1], [0.5, 0.2, 0.3], [0.4, np.nan, np.nan], [np.nan] * 3])
    found = filled(shares, np.ones(4))
    np.testing.assert_allclose(found[2], [0.4, 0.6 * 0.6, 0.6 * 0.4])  # overall 0.3 to 0.2
    assert np.isnan(found[3]).all()
    np.testing.assert_array_equal(found[:2], shares[:2])
    never = filled(np.array([[0.2, np.nan, np.nan], [0.6, np.nan, np.nan]]), np.ones(2))
    np.testing.assert_allclose(never, [[0.2, 0.4, 0.4], [0.6, 0.2, 0.2]])


def test_filled_shares_train_as_the_whole_ones_where_one_class_is_missing():
    gaps = SHARES.copy()
    gaps[::2, 1] = np.nan
    small: dict[str, Any] = {"backbone": partial(mlp, widths=(8,)), "first_epochs": 2, "second_epochs": 1}
    models = [
        ProportionClassifier(fill=fill, random_state=0, **small).fit(X, bags=TOWN, proportions=table)
        for fill, table in ((False, SHARES), (True, gaps))
    ]
    one, other = (model.predict_proba(X) for model in models)
    np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("as_dict", [False, True])
def test_gaps_and_intervals_are_refused_with_what_to_pass(as_dict):
    def told(table: np.ndarray, pattern: str, **given: Any) -> None:
        with pytest.raises(DataError, match=pattern):
            mended_bags(X, None, TOWN, proportions=dict(enumerate(table)) if as_dict else table, **given)

    gaps = SHARES.copy()
    gaps[3, 1] = np.nan
    told(gaps, "bag 3 has no number for 1 of its 2 classes.*(fill=True.) gives these what is left")
    told(
        gaps,
        "bag 3 has no number for 1 of its 2 classes.*(fill=True.) gives these what is left",
        unlabeled=True,
    )
    gaps[4] = [1.2, np.nan]
    told(gaps, "bag 4 has 1.2 for some of its classes, more than 1 for all; mend it", fill=True)
    wide = np.stack([SHARES - 0.1, SHARES + 0.1], 2)
    told(
        wide, r"(bag|row) \d+ has intervals for shares, up to 0.2 wide; pass their middles with noise=0.0577"
    )
    with pytest.raises(DataError, match="unlabeled, fill are for tables"):
        mended_bags(X, TRUTH, TOWN, fill=True)


def test_rows_repeated_by_their_weight_make_shares_of_areas_those_of_rows():
    """The remedy of docs/real-proportions.md: counts of repeated rows are the areas of the classes."""
    areas = np.random.default_rng(3).integers(1, 5, 400)
    shares = np.stack([np.bincount(TOWN, areas * (c == TRUTH)) for c in (0, 1)], 1).astype(float)
    shares /= shares.sum(1, keepdims=True)
    bags = mended_bags(np.repeat(X, areas, axis=0), None, np.repeat(TOWN, areas), proportions=shares).bags
    counted = mended_bags(np.repeat(X, areas, axis=0), np.repeat(TRUTH, areas), np.repeat(TOWN, areas)).bags
    torch.testing.assert_close(bags.proportions, counted.proportions)


def test_the_shares_of_a_huge_bag_without_proportions_are_summed_exactly():
    """In single precision the sum of five million small shares strays by some hundredths of itself."""
    n, rare = 5_000_000, 0.0281
    log_probs = torch.tensor([1 - rare, rare]).log().expand(n, 2)
    (shares,) = believed(log_probs, torch.tensor([n]), torch.full((1, 2), math.nan))
    assert float(shares[1]) == pytest.approx(rare, rel=1e-5)


# --- totals


SIZES = np.random.default_rng(4).integers(10, 30, 20)
CLICKS = np.repeat(np.arange(20), SIZES)
CONVERSIONS = SIZES // 3


@pytest.mark.parametrize("settings", [{}, {"normalize": True}, {"noise": 1.0}], ids=str)
def test_conversions_of_clicks_are_no_two_classes(settings):
    """With normalize, which an error recommended, clicks would have become a class."""
    x = np.random.default_rng(0).random((len(CLICKS), 2))
    table = pd.DataFrame({"clicks": SIZES, "conv": CONVERSIONS})
    words = r"column 'clicks' is the number of rows of every bag.*table\['clicks'\] - table\['conv'\]"
    with pytest.raises(DataError, match=words):
        quick(**settings).fit(x, bags=CLICKS, counts=table)
    with pytest.raises(DataError, match="the column 0 is the number of rows of every bag, a total"):
        quick(**settings).fit(x, bags=CLICKS, counts=table.to_numpy())
    rest = table.assign(clicks=table["clicks"] - table["conv"])
    assert mended_bags(x, ids=CLICKS, counts=rest, **settings).classes.tolist() == ["clicks", "conv"]


def test_a_number_that_is_the_size_of_bags_of_one_size_may_be_a_class():
    larger = np.stack([np.full(20, 20), np.arange(20) + 1], 1)
    assert mended_bags(X, ids=TOWN, counts=larger, normalize=True).classes.tolist() == [0, 1]
    with pytest.raises(DataError, match="the column 0 is the number of rows of every bag, a total"):
        mended_bags(X, ids=TOWN, counts=larger)
    named = pd.DataFrame({"clicks": SIZES, "conv": CONVERSIONS})
    x = np.zeros((len(CLICKS), 2))  # who insists is believed
    found = mended_bags(x, ids=CLICKS, counts=named, normalize=True, classes=["clicks", "conv"])
    assert found.classes.tolist() == ["clicks", "conv"]


def test_percentages_of_which_some_are_not_told_of_and_rare_classes_are_taken():
    """Without the large columns two rare classes happen to sum to one."""
    table = np.array([[50, 42, 1, 0], [44, 50, 0, 1], [52, 41, 1, 0], [40, 53, 0, 1], [47, 46, 0, 1]], float)
    assert beside(table) == []
    assert beside(np.array([[4, 1, 0], [5, 0, 1], [3, 1, 0], [4, 0, 1], [6, 1, 0]], float), np.ones(5)) == []
    assert beside(
        np.column_stack([table[:, :2] / table[:, :2].sum(1, keepdims=True), table[:, 0] + 2000])
    ) == [2]


def uneven_bags() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows, bags, classes and noisy counts: 400 bags of 20 and two of 5,000."""
    random, sizes = np.random.default_rng(0), np.r_[[20] * 400, [5000] * 2]
    bag = np.repeat(np.arange(402), sizes)
    y = random.random(len(bag)) < np.r_[random.beta(1, 8, 400), 0.05, 0.5][bag]
    x = random.normal(size=(len(bag), 3)).astype(np.float32)
    x[:, 0] += y
    positive = np.bincount(bag, weights=y)
    return x, bag, y, np.c_[sizes - positive, positive] + random.laplace(0, 2, (402, 2))


def test_large_bags_are_met_beside_small_ones_whose_counts_are_mostly_noise():
    x, bag, _, told = uneven_bags()
    model = ProportionClassifier(noise=2.83, first_epochs=2, second_epochs=1, random_state=0)
    labels = model.fit(x, bags=bag, counts=told).transduction_
    labeled = np.bincount(bag, weights=labels)
    assert np.abs(labeled - told[:, 1])[-2:].max() < 10
    relax = mended_bags(x, ids=bag, counts=told, noise=2.83).relax
    assert min(relax[400], relax[401]) > 1000 * max(relax[i] for i in range(400))


def test_rounded_shares_of_large_bags_that_differ_are_met_up_to_their_rounding():
    random, bag = np.random.default_rng(0), np.repeat(np.arange(20), 1000)
    y = random.random(20_000) < random.beta(0.7, 0.7, 20)[bag]
    x = random.normal(size=(20_000, 3)).astype(np.float32)
    x[:, 0] += y
    shares = np.round(np.bincount(bag, weights=y) / 1000 * 20) / 20
    model = ProportionClassifier(noise=0.05 / 12**0.5, first_epochs=2, second_epochs=1, random_state=0)
    labels = model.fit(x, bags=bag, proportions=np.c_[1 - shares, shares]).transduction_
    assert np.abs(np.bincount(bag, weights=labels) / 1000 - shares).max() < 0.05


def test_weights_go_with_the_names_of_bags():
    bags = ragged((2, 3, 4))
    assert weights_of(bags, 2.0) == 2.0
    some = {bags.ids[2]: 5.0, bags.ids[0]: 3.0, "another": 1.0}
    assert weights_of(bags, some).tolist() == [3.0, math.inf, 5.0]
    assert weights_of(bags.select(torch.tensor([2, 1])), some).tolist() == [5.0, math.inf]


def test_ends_of_intervals_are_not_taken_for_shares_of_two_classes():
    ends = {town: (0.03 * i, 0.03 * i + 0.1) for i, town in enumerate(np.unique(TOWN).tolist())}
    with pytest.raises(DataError, match=r"the ends of an interval\? pass \[1 - middle, middle\]"):
        ProportionClassifier().fit(X, bags=TOWN, proportions=ends)


def test_a_class_that_no_bag_names_is_told_how_it_gets_what_is_left():
    table = {town: {"a": 0.01 * i, "b": 0.3} for i, town in enumerate(np.unique(TOWN).tolist())}
    with pytest.raises(DataError, match="or fill=True what a class lacks that has a column of NaN"):
        ProportionClassifier(fill=True).fit(X, bags=TOWN, proportions=table)
    names = np.array(["a", "b", "other"])
    with pytest.raises(DataError, match=r"class 'other' has no column .*: give it one, of NaN if what is"):
        ProportionClassifier(fill=True).fit(X, bags=TOWN, proportions=table, classes=names)
    whole = {town: row | {"other": math.nan} for town, row in table.items()}
    bags, classes, _ = mended_bags(X, ids=TOWN, proportions=whole, fill=True)
    assert classes.tolist() == ["a", "b", "other"]
    assert bags.proportions[:, 2].tolist() == pytest.approx([0.7 - 0.01 * i for i in range(20)])


def test_shares_without_noise_are_not_called_noisy():
    assert mended_bags(X, ids=TOWN, proportions=SHARES, noise=0.0).relax == math.inf
    assert mended_bags(X, ids=TOWN, counts=COUNTS, noise="estimate").relax == math.inf

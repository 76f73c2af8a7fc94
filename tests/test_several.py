"""Rows in several groupings: what the estimator and meet make of them, and what is refused."""

import logging

import numpy as np
import pandas as pd
import pytest
import torch

from apportion import ProportionClassifier, build_bags, diagnose, expand_proportions, load, meet, save
from apportion.errors import DataError
from apportion.intake.given import GivenBag
from apportion.intake.joining import BagOf, groupings_in, joined, transduced
from apportion.intake.several import mended_bags
from apportion.selection.epochs import split_bags

FAST = {"first_epochs": 6, "second_epochs": 3, "random_state": 0}


class World:
    """600 people in towns and age groups, of three classes that both differ in."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.x = rng.normal(size=(600, 4)).astype(np.float32)
        scores = np.stack([self.x[:, 0] * 2, self.x[:, 1] * 2, 0.4 * self.x[:, 2]], 1)
        self.y = (scores + rng.gumbel(size=scores.shape)).argmax(1)
        self.town = np.array(
            [f"town {i}" for i in np.floor(self.x[:, 0] * 2 + rng.normal(size=600)).astype(int) % 9]
        )
        self.age = np.floor(self.x[:, 1] + rng.normal(size=600)).astype(int) % 4 * 20
        self.bags = {"town": self.town, "age": self.age}
        self.shares = {name: pd.crosstab(ids, self.y, normalize="index") for name, ids in self.bags.items()}
        self.counts = {name: pd.crosstab(ids, self.y) for name, ids in self.bags.items()}


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def plain(world: World, **options):
    told = {"proportions": world.shares, "counts": None, "classes": None} | options
    return mended_bags(world.x, None, world.bags, **told)


# --- bags


def test_every_row_appears_once_a_grouping_with_its_own_features(world):
    bags, classes, relax = plain(world)
    assert classes.tolist() == [0, 1, 2]
    assert relax == np.inf
    assert sorted(bags.source.tolist()) == sorted([*range(600)] * 2)
    np.testing.assert_array_equal(bags.x.numpy(), world.x[bags.source.numpy()])
    which = groupings_in(bags)
    assert [len(each.sizes) for each in which] == [len(np.unique(world.town)), 4]
    assert all(sorted(each.source.tolist()) == [*range(600)] for each in which)
    for i, bag in enumerate(bags.ids):
        rows = bags.source[bags.sizes[:i].sum() : bags.sizes[: i + 1].sum()].numpy()
        assert set(world.bags[bag.grouping][rows]) == {bag.name}
        assert bags.proportions[i].numpy() == pytest.approx(
            world.shares[bag.grouping].loc[bag.name].to_numpy()
        )
    assert repr(bags.ids[0]) == "'town 0' of 'town'"


def test_one_grouping_is_what_it_is_without_a_name(world):
    one = mended_bags(
        world.x,
        None,
        {"town": world.town},
        proportions={"town": world.shares["town"]},
        counts=None,
        classes=None,
    )
    other = mended_bags(
        world.x, None, world.town, proportions=world.shares["town"], counts=None, classes=None
    )
    assert list(one.bags.ids) == list(other.bags.ids)
    np.testing.assert_array_equal(one.bags.x, other.bags.x)


def test_counts_shares_and_labels_are_the_same_bags(world):
    mixed = plain(world, proportions={"town": world.shares["town"]}, counts={"age": world.counts["age"]})
    counted = mended_bags(world.x, world.y, world.bags, proportions=None, counts=None, classes=None)
    for other in (mixed, counted):
        np.testing.assert_allclose(other.bags.proportions, plain(world).bags.proportions, atol=1e-6)
        np.testing.assert_array_equal(other.bags.source, plain(world).bags.source)


def test_given_labels_are_known_in_every_grouping_and_never_held_out(world):
    given = {3: int(world.y[3]), 70: int(world.y[70])}
    bags = plain(world, given=given).bags
    pure = [bag for bag in bags.ids if isinstance(bag.name, GivenBag)]
    assert {bag.grouping for bag in pure} == {"town", "age"}
    _, held = split_bags(bags, 0.5, 0)
    assert not any(isinstance(bag.name, GivenBag) for bag in held.ids)


def test_noise_weighs_the_bags_of_each_grouping_by_their_own_names(world):
    noisy = plain(world, proportions=None, counts=world.counts, noise=2.0)
    assert set(noisy.relax) == set(noisy.bags.ids)
    assert all(isinstance(bag, BagOf) for bag in noisy.relax)


# --- the estimator


@pytest.mark.parametrize("second", [None, "plot"])
def test_two_groupings_teach_more_than_either(second):
    world, new = World(1), World(2)
    right = {}
    for names in (("town",), ("age",), ("town", "age")):
        model = ProportionClassifier(second_stage=second, random_state=0)
        bags, shares = ({name: each[name] for name in names} for each in (world.bags, world.shares))
        model.fit(world.x, bags=bags, proportions=shares)
        right[names] = (model.predict(new.x) == new.y).mean()
    assert right["town", "age"] > 0.02 + max(right["town",], right["age",])


def test_the_transduction_has_the_first_counts_exactly_and_the_others_nearly(world):
    model = ProportionClassifier(**FAST).fit(world.x, bags=world.bags, counts=world.counts)
    assert model.n_rows_ == len(model.transduction_) == 600
    off = {
        name: np.abs(pd.crosstab(ids, model.transduction_) - world.counts[name]).to_numpy().sum() / 2
        for name, ids in world.bags.items()
    }
    alone = (
        ProportionClassifier(**FAST).fit(world.x, bags=world.town, counts=world.counts["town"]).transduction_
    )
    assert off["town"] == 0
    assert off["age"] <= 10
    assert np.abs(pd.crosstab(world.age, alone) - world.counts["age"]).to_numpy().sum() / 2 > 20


def test_the_transduction_keeps_given_labels_and_fills_bags_without_shares(world):
    given = {i: int(world.y[i]) for i in range(20)}
    lacking = world.counts | {"town": world.counts["town"].iloc[1:]}
    model = ProportionClassifier(unlabeled=True, **FAST)
    model.fit(world.x, bags=world.bags, counts=lacking, given=given)
    assert (model.transduction_[:20] == world.y[:20]).all()
    known = world.town != lacking["town"].index.symmetric_difference(world.counts["town"].index)[0]
    found = pd.crosstab(world.town[known], model.transduction_[known])
    pd.testing.assert_frame_equal(found, lacking["town"], check_names=False)


def test_hidden_labels_cannot_reach_the_weights(world):
    """Labels that are permuted inside every cell of town and age change no table, and no weight."""
    rng, moved = np.random.default_rng(0), world.y.copy()
    for cell in {*zip(world.town, world.age, strict=True)}:
        rows = np.flatnonzero((world.town == cell[0]) & (world.age == cell[1]))
        moved[rows] = rng.permutation(moved[rows])
    assert (moved != world.y).any()
    weights = [
        next(ProportionClassifier(**FAST).fit(world.x, y, bags=world.bags).classifier_.parameters())
        for y in (world.y, moved)
    ]
    assert bool((weights[0] == weights[1]).all())


def test_frames_are_read_by_their_index_in_every_grouping(world):
    frame = pd.DataFrame(world.x, index=np.arange(600) + 1000)
    bags = {name: pd.Series(ids, index=frame.index) for name, ids in world.bags.items()}
    given = pd.Series({1003: world.y[3]})
    ProportionClassifier(**FAST).fit(frame, bags=bags, proportions=world.shares, given=given)
    turned = bags | {"age": bags["age"].iloc[::-1]}
    with pytest.raises(DataError, match="bags has the rows of X in another order"):
        ProportionClassifier(**FAST).fit(frame, bags=turned, proportions=world.shares)


# --- meet


def test_meet_has_the_shares_of_all_groupings_and_is_likelier_for_it():
    world = World(3)
    scores = np.stack([world.x[:, 0] * 2, *np.zeros((2, 600))], 1)  # which knows of one feature alone
    probs = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    found = {
        "neither": probs,
        "town": meet(probs, world.town, world.shares["town"]),
        "both": meet(probs, world.bags, world.shares),
    }
    for name, ids in world.bags.items():
        means = pd.DataFrame(found["both"]).groupby(ids).mean()
        np.testing.assert_allclose(means, world.shares[name], atol=1e-4)
    loss = {name: -np.log(each[np.arange(600), world.y]).mean() for name, each in found.items()}
    assert loss["both"] < loss["town"] - 0.005 < loss["neither"] - 0.01
    order = np.random.default_rng(0).permutation(600)
    turned = meet(probs[order], {name: ids[order] for name, ids in world.bags.items()}, world.shares)
    np.testing.assert_allclose(turned, found["both"][order], atol=1e-6)


def test_meet_of_one_named_grouping_is_meet(world):
    probs = np.random.default_rng(0).dirichlet([1, 1, 1], 600)
    one = meet(probs, {"town": world.town}, {"town": world.shares["town"]})
    np.testing.assert_allclose(one, meet(probs, world.town, world.shares["town"]), atol=1e-6)


def test_meet_refuses_tables_of_other_classes(world):
    named = {
        name: table.set_axis(list(classes), axis=1)
        for (name, table), classes in zip(world.shares.items(), ("abc", "abd"), strict=True)
    }
    with pytest.raises(
        DataError, match=r"'town' has the classes \['a', 'b', 'c'\], 'age' has \['a', 'b', 'd'\]"
    ):
        meet(np.full((600, 3), 1 / 3), world.bags, named)
    with pytest.raises(DataError, match="grouping 'age': "):
        meet(np.full((600, 3), 1 / 3), world.bags, named, classes=list("abc"))


def test_meet_refuses_groupings_that_contradict_each_other_and_takes_rounded_ones(world):
    probs = np.full((600, 3), 1 / 3)
    rounded = {name: table.round(2) for name, table in world.shares.items()}
    rounded = {name: table.div(table.sum(axis=1), axis=0) for name, table in rounded.items()}
    meet(probs, world.bags, rounded)
    wrong = world.shares | {"age": world.shares["age"].iloc[:, [1, 2, 0]].set_axis([0, 1, 2], axis=1)}
    with pytest.raises(DataError, match=r"bag .* of '\w+' is 0\.\d+ off .*groupings contradict each other"):
        meet(probs, world.bags, wrong)


# --- refusals


def test_groupings_and_tables_are_matched_by_name(world):
    fit = ProportionClassifier(**FAST).fit
    with pytest.raises(
        DataError, match=r"bags has the groupings \['town', 'age'\]; pass proportions=\{'town': t"
    ):
        fit(world.x, bags=world.bags, proportions=world.shares["town"])
    with pytest.raises(DataError, match=r"groupings \['town', 'age'\]; pass counts"):
        fit(world.x, bags=world.bags, counts=world.counts | {"region": world.counts["age"]})
    with pytest.raises(DataError, match="grouping 'age' has not just one of proportions and counts"):
        fit(world.x, bags=world.bags, proportions={"town": world.shares["town"]})
    with pytest.raises(DataError, match="grouping 'town' has not just one"):
        fit(world.x, bags=world.bags, proportions=world.shares, counts={"town": world.counts["town"]})
    with pytest.raises(DataError, match="leave tables out where labels are counted"):
        fit(world.x, world.y, bags=world.bags, proportions=world.shares)
    with pytest.raises(DataError, match="bags is an empty dict"):
        fit(world.x, bags={}, proportions={})
    with pytest.raises(DataError, match="y has shares of one bag a row"):
        fit(world.x, expand_proportions(world.shares["town"], world.town), bags=world.bags)


def test_errors_name_the_grouping_and_its_bag(world):
    fit = ProportionClassifier(**FAST).fit
    spoilt = world.counts["age"].copy()
    spoilt.iloc[2, 0] += 5
    with pytest.raises(DataError, match=r"grouping 'age': bag 40 .*sum"):
        fit(world.x, bags=world.bags, counts=world.counts | {"age": spoilt})
    with pytest.raises(DataError, match="grouping 'age': there are 600 instances but 599 bag ids"):
        fit(world.x, bags=world.bags | {"age": world.age[1:]}, counts=world.counts)
    named = {
        "town": world.shares["town"].set_axis(list("abc"), axis=1),
        "age": world.shares["age"].set_axis(list("abd"), axis=1),
    }
    with pytest.raises(
        DataError, match=r"'town' has the classes \['a', 'b', 'c'\], 'age' has \['a', 'b', 'd'\]"
    ):
        fit(world.x, bags=world.bags, proportions=named)


def test_overall_shares_that_cannot_both_be_are_told_of(world, caplog):
    other = world.shares | {"age": world.shares["age"].iloc[:, [1, 2, 0]].set_axis([0, 1, 2], axis=1)}
    with caplog.at_level(logging.WARNING, "apportion"):
        plain(world)
        assert not caplog.records
        plain(world, proportions=other)
    assert "the groupings 'town' and 'age' have" in caplog.text


def test_what_takes_one_grouping_alone_says_so(world):
    frame = pd.DataFrame(world.bags)
    for call in (
        lambda bags: build_bags(world.x, bags, world.shares),
        lambda bags: expand_proportions(world.shares["town"], bags),
        lambda bags: diagnose(np.full((600, 3), 1 / 3), bags, world.shares),
    ):
        with pytest.raises(
            DataError, match=r"bags is a dict, which names several groupings, \['town', 'age'\]"
        ):
            call(world.bags)
    with pytest.raises(DataError, match=r"dict\(bags\), with a table of each, if rows"):
        ProportionClassifier(**FAST).fit(world.x, bags=frame, proportions=world.shares)
    ProportionClassifier(**FAST).fit(world.x, bags=dict(frame), proportions=world.shares)


def test_bags_of_one_grouping_are_joined_to_themselves(world):
    bags = plain(world).bags
    assert joined({"only": bags}) is bags


# --- what a review has found


def labels_of(world: World, log_probs: np.ndarray, alone: bool = False, **options) -> np.ndarray:
    """The transduction of predictions, by both groupings or by towns alone."""
    bags = {"town": world.town} if alone else world.bags
    tables = options.pop("tables", world.shares)
    tables = {name: tables[name] for name in bags}
    told = {"proportions": tables, "counts": None, "classes": None} | options
    found = mended_bags(world.x, None, bags, **told)
    return transduced(torch.from_numpy(log_probs)[found.bags.source], found.bags, found.relax)


def scores(world: World, scale: float = 1.0) -> np.ndarray:
    """Log-probabilities of the world's own law, surer or vaguer."""
    found = scale * np.stack([world.x[:, 0] * 2, world.x[:, 1] * 2, 0.4 * world.x[:, 2]], 1).astype(
        np.float64
    )
    return found - np.log(np.exp(found).sum(1, keepdims=True))


def test_the_transduction_is_likely_and_labels_stay_with_their_rows(world):
    found, log_probs = labels_of(world, scores(world)), scores(world)
    chance = np.random.default_rng(0).permutation(found)
    likely, unlikely = (log_probs[np.arange(600), each].mean() for each in (found, chance))
    assert likely > unlikely + 0.5
    assert (found == world.y).mean() > 0.65
    best = log_probs[np.arange(600), labels_of(world, log_probs, alone=True)].mean()
    assert best - 0.06 < likely <= best + 1e-9  # to meet more costs a little, and no more


def test_bags_without_shares_are_as_predicted_in_the_transduction_and_not_of_one_class():
    world = World(5)
    tables = {name: table.iloc[2:] for name, table in world.shares.items()}
    found = labels_of(world, scores(world), tables=tables, unlabeled=True)
    unknown = ~np.isin(world.town, tables["town"].index)
    shares = np.bincount(found[unknown], minlength=3) / unknown.sum()
    assert np.abs(shares - np.exp(scores(world))[unknown].mean(0)).max() < 0.06


def test_noisy_shares_are_denoised_in_the_transduction_of_several_groupings_as_of_one():
    world, rng, off = World(6), np.random.default_rng(0), {}
    tables = {name: table + 0.08 * rng.normal(size=table.shape) for name, table in world.shares.items()}
    for alone in (True, False):
        found = labels_of(world, scores(world), alone, tables=tables, noise=0.08)
        made = pd.crosstab(world.town, found, normalize="index")
        off[alone] = np.sqrt(((made - world.shares["town"]) ** 2).to_numpy().mean())
    table = np.sqrt(((tables["town"] - world.shares["town"]) ** 2).to_numpy().mean())
    assert off[False] < 1.15 * off[True] < 0.9 * table
    sure = labels_of(world, scores(world), tables=tables, noise={"age": 0.08}, normalize=True)
    wanted = tables["town"].clip(0).div(tables["town"].clip(0).sum(axis=1), axis=0)
    counts = pd.crosstab(world.town, sure)
    assert (
        counts - wanted.mul(counts.sum(axis=1), axis=0)
    ).abs().to_numpy().max() < 1.01  # of towns it is exact


def test_rows_that_are_alike_meet_the_second_grouping_too():
    world, off = World(7), {}
    kinds = np.log(np.random.default_rng(0).dirichlet([2, 2, 2], 3))
    for alone in (True, False):
        found = labels_of(world, kinds[np.arange(600) % 3], alone)
        off[alone] = np.abs(pd.crosstab(world.age, found) - world.counts["age"]).to_numpy().sum() / 2
    assert off[False] <= 12 < off[True]


def test_groupings_are_in_one_order_among_themselves(world):
    town = pd.Series(world.town, index=np.arange(600) + 7)
    turned = pd.Series(world.age, index=town.index).sample(frac=1, random_state=0)
    for call in (
        lambda bags: meet(np.full((600, 3), 1 / 3), bags, world.shares),
        lambda bags: ProportionClassifier(**FAST).fit(world.x, bags=bags, proportions=world.shares),
    ):
        with pytest.raises(DataError, match=r"bags\['age'\] has the rows of bags\['town'\] in another order"):
            call({"town": town, "age": turned})
        call({"town": town, "age": turned.sort_index()})


def test_given_labels_are_placed_by_the_first_grouping_that_has_an_index(world):
    bags = {"town": world.town, "age": pd.Series(world.age, index=[f"r{i}" for i in range(600)])}
    model = ProportionClassifier(**FAST)
    model.fit(world.x, bags=bags, proportions=world.shares, given=pd.Series({"r3": world.y[3]}))
    assert model.transduction_[3] == world.y[3]


def test_a_grouping_that_tells_nothing_does_no_harm_beside_one_that_does(world):
    sex = np.arange(600) % 2
    even = {0: [0.4, 0.3, 0.3], 1: [0.4, 0.3, 0.3]}
    ProportionClassifier(**FAST).fit(
        world.x,
        bags={"town": world.town, "sex": sex},
        proportions={"town": world.shares["town"], "sex": even},
    )
    with pytest.raises(DataError, match="have the same proportions"):
        ProportionClassifier(**FAST).fit(
            world.x, bags={"sex": sex, "odd": 1 - sex}, proportions={"sex": even, "odd": even}
        )


def test_nothing_is_said_of_totals_that_are_unknown_or_noisy(world, caplog):
    lacking = world.shares | {"age": world.shares["age"].iloc[1:]}
    with caplog.at_level(logging.WARNING, "apportion"):
        plain(world, proportions=lacking, unlabeled=True)
        plain(world, proportions=world.shares | {"age": world.shares["age"] + 0.02}, noise={"age": 0.05})
    assert not caplog.records


def test_meet_takes_noise_by_grouping_and_the_exact_one_is_met(world, caplog):
    probs = np.exp(scores(world, 0.7))
    shifted = world.shares["age"] + np.array([0.06, -0.03, -0.03])
    wrong = world.shares | {"age": shifted}
    with pytest.raises(DataError, match="pass noise= of those that are inexact"):
        meet(probs, world.bags, wrong)
    found = meet(probs, world.bags, wrong, noise={"age": 0.05})
    means = pd.DataFrame(found).groupby(world.town).mean()
    np.testing.assert_allclose(means, world.shares["town"], atol=1e-3)
    near = world.shares | {"age": world.shares["age"] + np.array([0.01, -0.01, 0.0])}
    with caplog.at_level(logging.WARNING, "apportion"):
        found = meet(probs, world.bags, near)
    assert "the first grouping is met" in caplog.text
    np.testing.assert_allclose(
        pd.DataFrame(found).groupby(world.town).mean(), world.shares["town"], atol=1e-4
    )
    with pytest.raises(DataError, match="noise is that of the grouping 'sex'"):
        meet(probs, world.bags, wrong, noise={"sex": 0.1})


def test_noise_of_one_grouping_draws_predictions_part_of_the_way(world):
    probs = np.exp(scores(world, 0.3))
    exact = meet(probs, world.town, world.shares["town"])
    noisy = meet(probs, world.town, world.shares["town"], noise=0.1)
    counted = meet(probs, world.town, counts=world.counts["town"], noise=0.1)
    off = {
        name: np.abs(pd.DataFrame(each).groupby(world.town).mean() - world.shares["town"]).to_numpy().mean()
        for name, each in {"as predicted": probs, "noisy": noisy, "counted": counted, "exact": exact}.items()
    }
    assert off["exact"] < off["counted"] < off["noisy"] < off["as predicted"]
    with pytest.raises(DataError, match="noise is {'town': 0.1}, by grouping, and bags are of one"):
        meet(probs, world.town, world.shares["town"], noise={"town": 0.1})


def test_sure_predictions_are_raked_where_shares_are_those_of_one_labeling(caplog):
    rng = np.random.default_rng(0)
    for _ in range(20):
        y, guess = rng.integers(3, size=(2, 400))
        bags = {"a": rng.integers(6, size=400), "b": rng.integers(5, size=400)}
        shares = {name: pd.crosstab(ids, y, normalize="index") for name, ids in bags.items()}
        with caplog.at_level(logging.WARNING, "apportion"):
            found = meet(np.eye(3)[np.where(rng.random(400) < 0.7, y, guess)], bags, shares)
        for name, ids in bags.items():
            np.testing.assert_allclose(pd.DataFrame(found).groupby(ids).mean(), shares[name], atol=2e-3)
    assert not caplog.records


def test_predictions_of_nought_are_raked_without_a_word(world):
    probs = np.tile([1.0, 0.0, 0.0], (600, 1))
    found = meet(probs, world.bags, world.shares)
    np.testing.assert_allclose(
        pd.DataFrame(found).groupby(world.town).mean(), world.shares["town"], atol=1e-3
    )


def test_meet_takes_counts_as_noise_left_them(world):
    probs, rng = np.exp(scores(world, 0.3)), np.random.default_rng(0)
    noisy = world.counts["town"] + rng.normal(
        0, 3, world.counts["town"].shape
    )  # some below nought, no sum right
    level = {noise: meet(probs, world.town, counts=noisy, noise=noise) for noise in (3.0, "estimate")}
    off = [
        np.abs(pd.DataFrame(each).groupby(world.town).mean() - world.shares["town"]).to_numpy().mean()
        for each in (probs, level[3.0], level["estimate"])
    ]
    assert max(off[1:]) < 0.8 * off[0]
    with pytest.raises(DataError, match="found from the sums of counts"):
        meet(probs, world.town, world.shares["town"], noise="estimate")


def test_ids_may_be_tuples_of_any_length(world):
    ids = [("x",) if i % 2 else ("y", i % 3) for i in range(600)]
    table = {bag: np.bincount(world.y[[each == bag for each in ids]], minlength=3) for bag in set(ids)}
    probs = np.full((600, 3), 1 / 3)
    meet(probs, ids, counts=table)
    meet(probs, {"tuple": ids, "age": world.age}, counts={"tuple": table, "age": world.counts["age"]})


def test_classes_that_only_one_grouping_names_are_nought_in_the_other(world):
    rare, names, early = (
        np.where(np.arange(600) < 3, 3, world.y),
        np.array(["a", "b", "c", "zz"]),
        np.arange(600) < 3,
    )
    bags = {"town": world.town, "early": early}
    tables = {
        name: {
            bag: pd.Series(names[rare[ids == bag]]).value_counts().to_dict()
            for bag in np.unique(ids).tolist()
        }
        for name, ids in bags.items()
    }
    assert "zz" not in tables["early"][False]
    assert "a" not in tables["early"][True]
    model = ProportionClassifier(**FAST).fit(world.x, bags=bags, counts=tables)
    assert model.classes_.tolist() == ["a", "b", "c", "zz"]


@pytest.mark.parametrize(
    ("bags", "message"),
    [
        (lambda world: dict(enumerate(world.town)), "bags is a dict with an id for each key"),
        (lambda world: world.town, "there is a whole table for 'town', but the bags are of one grouping"),
        (
            lambda world: pytest.importorskip("polars").DataFrame(world.bags),
            r"bags.to_dict\(\), with a table of each",
        ),
    ],
)
def test_likely_mistakes_have_a_remedy_in_few_words(world, bags, message):
    with pytest.raises(DataError, match=message) as problem:
        ProportionClassifier(**FAST).fit(world.x, bags=bags(world), proportions=world.shares)
    assert len(str(problem.value)) < 400


def test_noise_by_grouping_survives_saving(world, tmp_path):
    model = ProportionClassifier(noise={"age": 0.05}, **FAST)
    save(model.fit(world.x, bags=world.bags, proportions=world.shares), tmp_path / "model")
    assert load(tmp_path / "model").noise == {"age": 0.05}

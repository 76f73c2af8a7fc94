"""Rows in several groupings: what the estimator and meet make of them, and what is refused."""

import logging

import numpy as np
import pandas as pd
import pytest

from apportion import BagError, ProportionClassifier, diagnose, expand, group_bags, meet
from apportion.intake.given import GivenBag
from apportion.intake.joining import BagOf, groupings_in, joined
from apportion.intake.several import mended_bags
from apportion.judging.choosing import part_of

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
    _, held = part_of(bags, 0.5, 0)
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
    assert off["age"] <= 6
    assert np.abs(pd.crosstab(world.age, alone) - world.counts["age"]).to_numpy().sum() / 2 > 20


def test_the_transduction_keeps_given_labels_and_fills_bags_without_shares(world):
    given = {i: int(world.y[i]) for i in range(20)}
    lacking = world.counts | {"town": world.counts["town"].iloc[1:]}
    model = ProportionClassifier(unlabelled=True, **FAST)
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
    with pytest.raises(BagError, match="bags has the rows of X in another order"):
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
        BagError, match=r"'town' has the classes \['a', 'b', 'c'\], 'age' has \['a', 'b', 'd'\]"
    ):
        meet(np.full((600, 3), 1 / 3), world.bags, named)
    with pytest.raises(BagError, match="grouping 'age': "):
        meet(np.full((600, 3), 1 / 3), world.bags, named, classes=list("abc"))


def test_meet_refuses_groupings_that_contradict_each_other_and_takes_rounded_ones(world):
    probs = np.full((600, 3), 1 / 3)
    rounded = {name: table.round(2) for name, table in world.shares.items()}
    rounded = {name: table.div(table.sum(axis=1), axis=0) for name, table in rounded.items()}
    meet(probs, world.bags, rounded)
    wrong = world.shares | {"age": world.shares["age"].iloc[:, [1, 2, 0]].set_axis([0, 1, 2], axis=1)}
    with pytest.raises(BagError, match=r"bag .* of '\w+' is 0\.\d+ off .*groupings contradict each other"):
        meet(probs, world.bags, wrong)


# --- refusals


def test_groupings_and_tables_are_matched_by_name(world):
    fit = ProportionClassifier(**FAST).fit
    with pytest.raises(
        BagError, match=r"bags has the groupings \['town', 'age'\]; pass proportions=\{'town': t"
    ):
        fit(world.x, bags=world.bags, proportions=world.shares["town"])
    with pytest.raises(BagError, match=r"groupings \['town', 'age'\]; pass counts"):
        fit(world.x, bags=world.bags, counts=world.counts | {"region": world.counts["age"]})
    with pytest.raises(BagError, match="grouping 'age' has not just one of proportions and counts"):
        fit(world.x, bags=world.bags, proportions={"town": world.shares["town"]})
    with pytest.raises(BagError, match="grouping 'town' has not just one"):
        fit(world.x, bags=world.bags, proportions=world.shares, counts={"town": world.counts["town"]})
    with pytest.raises(BagError, match="leave tables out where labels are counted"):
        fit(world.x, world.y, bags=world.bags, proportions=world.shares)
    with pytest.raises(BagError, match="bags is an empty dict"):
        fit(world.x, bags={}, proportions={})
    with pytest.raises(BagError, match="y has shares of one bag a row"):
        fit(world.x, expand(world.shares["town"], world.town), bags=world.bags)


def test_errors_name_the_grouping_and_its_bag(world):
    fit = ProportionClassifier(**FAST).fit
    spoilt = world.counts["age"].copy()
    spoilt.iloc[2, 0] += 5
    with pytest.raises(BagError, match=r"grouping 'age': bag 40 .*sum"):
        fit(world.x, bags=world.bags, counts=world.counts | {"age": spoilt})
    with pytest.raises(BagError, match="grouping 'age': there are 600 instances but 599 bag ids"):
        fit(world.x, bags=world.bags | {"age": world.age[1:]}, counts=world.counts)
    named = {
        "town": world.shares["town"].set_axis(list("abc"), axis=1),
        "age": world.shares["age"].set_axis(list("abd"), axis=1),
    }
    with pytest.raises(
        BagError, match=r"'town' has the classes \['a', 'b', 'c'\], 'age' has \['a', 'b', 'd'\]"
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
        lambda bags: group_bags(world.x, bags, world.shares),
        lambda bags: expand(world.shares["town"], bags),
        lambda bags: diagnose(np.full((600, 3), 1 / 3), bags, world.shares),
    ):
        with pytest.raises(
            BagError, match=r"bags is a dict, which names several groupings, \['town', 'age'\]"
        ):
            call(world.bags)
    with pytest.raises(BagError, match=r"dict\(bags\), with a table of each, if rows"):
        ProportionClassifier(**FAST).fit(world.x, bags=frame, proportions=world.shares)
    ProportionClassifier(**FAST).fit(world.x, bags=dict(frame), proportions=world.shares)


def test_bags_of_one_grouping_are_joined_to_themselves(world):
    bags = plain(world).bags
    assert joined({"only": bags}) is bags

"""Rows in several groupings: what the estimator makes of them, and what is refused."""

import logging

import numpy as np
import pandas as pd
import pytest
import torch

from apportion import ProportionClassifier, build_bags, diagnose, expand_proportions, load, save
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

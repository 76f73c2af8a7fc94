"""Several groupings are learned from together; raking against the dual that scipy minimizes."""

import math
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from apportion import ProportionClassifier, Proportions, build_bags
from apportion.bags.build import build_bags_without_features
from apportion.bags.groupings import Margin, join_groupings, rake, split_groupings
from apportion.errors import ApportionWarning, DataError
from apportion.pseudo_labels import transduce
from apportion.transport import entropic_plan


class World:
    """600 people in towns and age groups, of three classes that both differ in."""

    def __init__(self, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.x = random.normal(size=(600, 4)).astype(np.float32)
        scores = np.stack([self.x[:, 0] * 2, self.x[:, 1] * 2, 0.4 * self.x[:, 2]], 1)
        self.y = (scores + random.gumbel(size=scores.shape)).argmax(1)
        town = np.floor(self.x[:, 0] * 2 + random.normal(size=600)).astype(int) % 9
        self.town = np.array([f"town {i}" for i in town])
        self.age = np.floor(self.x[:, 1] + random.normal(size=600)).astype(int) % 4 * 20
        self.bags = {"town": self.town, "age": self.age}
        self.shares = {name: pd.crosstab(ids, self.y, normalize="index") for name, ids in self.bags.items()}
        self.counts = {name: pd.crosstab(ids, self.y) for name, ids in self.bags.items()}

    def counted(self, **options: Any) -> dict[str, Proportions]:
        return {name: Proportions(table, "counts", **options) for name, table in self.counts.items()}

    def build(self, tables: Any = None, **more: Any):
        return build_bags(self.x, bags=self.bags, proportions=tables or self.shares, **more)

    def log_probs(self, scale: float = 1.0) -> Tensor:
        """Log-probabilities of the law that labels are drawn from, surer or vaguer."""
        scores = np.stack([self.x[:, 0] * 2, self.x[:, 1] * 2, 0.4 * self.x[:, 2]], 1)
        return torch.from_numpy(scale * scores.astype(np.float64)).log_softmax(1)

    def transduce(self, log_probs: Tensor, tables: Any = None) -> np.ndarray:
        bags = self.build(tables).bags
        return transduce(log_probs[bags.source], bags)


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def fit(world: World, tables: Any = None, bags: Any = None, **more: Any) -> ProportionClassifier:
    settings = {"epochs": 6, "student_epochs": 3, "random_state": 0}
    model = ProportionClassifier(**settings)
    return model.fit(world.x, bags=bags or world.bags, proportions=tables or world.counted(), **more)


# --- bags


def test_every_row_appears_once_per_grouping_with_its_own_features(world):
    built = world.build()
    bags = built.bags
    assert built.classes.tolist() == [0, 1, 2]
    assert torch.bincount(bags.source).tolist() == [2] * 600
    np.testing.assert_array_equal(bags.x, world.x[bags.source])
    parts = split_groupings(bags)
    assert [len(part.sizes) for part in parts] == [len(np.unique(world.town)), 4]
    assert all(sorted(part.source.tolist()) == [*range(600)] for part in parts)
    for i, rows in enumerate(bags.source.split(bags.sizes.tolist())):
        name, bag = bags.grouping[i], bags.ids[i]
        assert set(world.bags[name][rows]) == {bag}
        np.testing.assert_allclose(bags.proportions[i], world.shares[name].loc[bag], rtol=1e-6)


def test_one_grouping_is_what_it_is_without_a_name(world):
    one = build_bags(world.x, bags={"town": world.town}, proportions={"town": world.shares["town"]}).bags
    other = build_bags(world.x, bags=world.town, proportions=world.shares["town"]).bags
    assert list(one.ids) == list(other.ids)
    assert one.grouping is None
    assert torch.equal(one.x, other.x)
    assert join_groupings({"only": one}) is one


def test_counts_shares_labels_and_columns_are_the_same_bags(world):
    expected = world.build().bags
    frame = pd.DataFrame(world.x).assign(town=world.town, age=world.age)
    for built in (
        world.build(world.counted()),
        world.build({"town": world.shares["town"], "age": Proportions(world.counts["age"], "counts")}),
        build_bags(world.x, world.y, bags=world.bags),
        build_bags(frame, bags=["town", "age"], proportions=world.shares),
        build_bags(frame, bags={"town": "town", "age": "age"}, proportions=world.shares),
    ):
        torch.testing.assert_close(built.bags.proportions, expected.proportions)
        assert torch.equal(built.bags.source, expected.source)
        assert list(built.bags.grouping) == list(expected.grouping)


def test_precision_belongs_to_the_bags_of_a_noisy_grouping(world):
    tables = {"town": world.shares["town"], "age": Proportions(world.counts["age"] + 1, "counts", std=2.0)}
    bags = world.build(tables).bags
    noisy = np.array(bags.grouping) == "age"
    assert bags.precision.isfinite().tolist() == noisy.tolist()
    assert world.build().bags.precision is None


def test_a_class_that_only_one_grouping_names_is_zero_in_the_other(world):
    early = np.arange(600) < 3
    labels = np.array(["a", "b", "c", "zz"])[np.where(early, 3, world.y)]
    tables = {}
    for name, ids in {"town": world.town, "early": early}.items():
        parts = {bag: pd.Series(labels[ids == bag]) for bag in np.unique(ids).tolist()}
        counts = {bag: part.value_counts().to_dict() for bag, part in parts.items()}
        tables[name] = Proportions(counts, "counts")
    assert "zz" not in tables["early"].table[False]
    built = build_bags_without_features(600, bags={"town": world.town, "early": early}, proportions=tables)
    assert built.classes.tolist() == ["a", "b", "c", "zz"]


def test_overall_shares_that_cannot_both_be_right_are_warned_of(world):
    turned = world.shares["age"].iloc[:, [1, 2, 0]].set_axis([0, 1, 2], axis=1)
    with pytest.warns(ApportionWarning, match="'town' and 'age'"):
        world.build(world.shares | {"age": turned})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        world.build()
        missing = Proportions(world.shares["age"].iloc[1:], missing_bags="allow")
        world.build(world.shares | {"age": missing})
        world.build(world.shares | {"age": Proportions(world.shares["age"] + 0.02, std=0.05)})


def named(table: pd.DataFrame, names: str) -> pd.DataFrame:
    return table.set_axis(list(names), axis=1)


WRONG = {
    "one table": lambda w: {"proportions": w.shares["town"]},
    "a table too many": lambda w: {"proportions": w.shares | {"region": w.shares["age"]}},
    "a table missing": lambda w: {"proportions": {"town": w.shares["town"]}},
    "labels and tables": lambda w: {"y": w.y, "proportions": w.shares},
    "rows of proportions": lambda w: {"y": w.shares["town"].loc[w.town].to_numpy()},
    "no grouping": lambda w: {"bags": {}, "proportions": {}},
    "ids by row": lambda w: {"bags": dict(enumerate(w.town)), "proportions": w.shares},
    "tables for one grouping": lambda w: {"bags": w.town, "proportions": w.shares},
    "too few ids": lambda w: {"bags": w.bags | {"age": w.age[1:]}, "proportions": w.shares},
    "other classes": lambda w: {
        "proportions": {"town": named(w.shares["town"], "abc"), "age": named(w.shares["age"], "abd")}
    },
}


@pytest.mark.parametrize("case", WRONG)
def test_groupings_and_tables_that_do_not_match_are_refused(world, case):
    with pytest.raises(DataError):
        build_bags(world.x, **{"bags": world.bags} | WRONG[case](world))


def test_errors_name_the_grouping_and_carry_its_bag(world):
    wrong = world.counts["age"].copy()
    wrong.iloc[2, 0] += 5
    with pytest.raises(DataError, match="'age'") as error:
        world.build({"town": world.shares["town"], "age": Proportions(wrong, "counts")})
    assert error.value.bag == 40


# --- learning and transduction


@pytest.mark.parametrize("pseudo_labels", [None, "soft"])
def test_two_groupings_teach_more_than_either(pseudo_labels):
    world, new = World(1), World(2)
    right = {}
    for names in (("town",), ("age",), ("town", "age")):
        model = ProportionClassifier(
            pseudo_labels=pseudo_labels, epochs=30, student_epochs=20, random_state=0
        )
        bags, shares = ({name: each[name] for name in names} for each in (world.bags, world.shares))
        right[names] = model.fit(world.x, bags=bags, proportions=shares).score(new.x, new.y)
    assert right["town", "age"] > 0.02 + max(right["town",], right["age",])


def misplaced(world: World, labels: np.ndarray, name: str) -> float:
    return np.abs(pd.crosstab(world.bags[name], labels) - world.counts[name]).to_numpy().sum() / 2


def test_the_first_grouping_has_its_counts_exactly_and_the_others_nearly(world):
    model = fit(world)
    assert misplaced(world, model.transduction_, "town") == 0
    assert misplaced(world, model.transduction_, "age") <= 10
    alone = fit(world, {"town": Proportions(world.counts["town"], "counts")}, {"town": world.town})
    assert misplaced(world, alone.transduction_, "age") > 20


def test_the_transduction_keeps_known_labels_and_predicts_unknown_bags(world):
    known = {i: int(world.y[i]) for i in range(20)}
    lost = world.counts["town"].index[0]
    tables = world.counted(missing_bags="allow")
    tables["town"] = Proportions(world.counts["town"].drop(lost), "counts", missing_bags="allow")
    labels = fit(world, tables, known_labels=known).transduction_
    assert (labels[:20] == world.y[:20]).all()
    there = world.town != lost
    found = pd.crosstab(world.town[there], labels[there])
    pd.testing.assert_frame_equal(found, world.counts["town"].drop(lost), check_names=False)


def test_hidden_labels_cannot_reach_the_weights(world):
    """Labels that are permuted inside every cell of town and age change no table, and no weight."""
    random, moved = np.random.default_rng(0), world.y.copy()
    for cell in {*zip(world.town, world.age, strict=True)}:
        rows = np.flatnonzero((world.town == cell[0]) & (world.age == cell[1]))
        moved[rows] = random.permutation(moved[rows])
    assert (moved != world.y).any()
    model = ProportionClassifier(epochs=2, student_epochs=1, random_state=0)
    one, other = (
        list(model.fit(world.x, y, bags=world.bags).model_.state_dict().values()) for y in (world.y, moved)
    )
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_the_transduction_is_likely(world):
    log_probs = world.log_probs()
    labels = world.transduce(log_probs)
    likely = log_probs[np.arange(600), labels].mean()
    chance = log_probs[np.arange(600), np.random.default_rng(0).permutation(labels)].mean()
    assert likely > chance + 0.5
    assert (labels == world.y).mean() > 0.65


def test_unknown_bags_are_as_predicted_and_not_of_one_class():
    world = World(5)
    tables = {name: Proportions(table.iloc[2:], missing_bags="allow") for name, table in world.shares.items()}
    labels = world.transduce(world.log_probs(), tables)
    unknown = ~np.isin(world.town, world.shares["town"].index[2:])
    shares = np.bincount(labels[unknown], minlength=3) / unknown.sum()
    assert np.abs(shares - world.log_probs()[unknown].exp().mean(0).numpy()).max() < 0.06


def test_noisy_shares_are_denoised_in_the_transduction():
    world, random = World(6), np.random.default_rng(0)
    noisy = {name: table + 0.08 * random.normal(size=table.shape) for name, table in world.shares.items()}
    labels = world.transduce(world.log_probs(), {name: Proportions(t, std=0.08) for name, t in noisy.items()})
    made = pd.crosstab(world.town, labels, normalize="index")
    error, before = (
        np.sqrt(((table - world.shares["town"]) ** 2).to_numpy().mean()) for table in (made, noisy["town"])
    )
    assert error < before


def test_rows_with_equal_predictions_meet_the_second_grouping_too():
    world = World(7)
    kinds = torch.from_numpy(np.log(np.random.default_rng(0).dirichlet([2, 2, 2], 3)))
    assert misplaced(world, world.transduce(kinds[np.arange(600) % 3]), "age") <= 12


# --- raking


def groups(sizes: list[int], generator: torch.Generator) -> list[Tensor]:
    """For each number of bags, the bag of every row."""
    n = 240
    return [
        torch.cat([torch.arange(m), torch.randint(m, (n - m,), generator=generator)])[
            torch.randperm(n, generator=generator)
        ]
        for m in sizes
    ]


def margin(bag: Tensor, labels: Tensor, k: int, precision: float = math.inf) -> Margin:
    """Of labels that are counted, so that margins of the same labels agree."""
    counts = torch.zeros(int(bag.max()) + 1, k, dtype=torch.float64).index_put_(
        (bag, labels), torch.ones(len(bag), dtype=torch.float64), accumulate=True
    )
    sizes = counts.sum(1).long()
    return Margin(bag.argsort(stable=True), sizes, counts / sizes.unsqueeze(1), precision)


def drawn(seed: int, bags: list[int], k: int) -> tuple[Tensor, list[Tensor], list[Margin]]:
    generator = torch.Generator().manual_seed(seed)
    log_probs = (1.5 * torch.randn(240, k, generator=generator)).log_softmax(1)
    labels = torch.multinomial(log_probs.exp(), 1, generator=generator).flatten()
    which = groups(bags, generator)
    return log_probs, which, [margin(bag, labels, k) for bag in which]


@pytest.mark.parametrize(("bags", "k"), [([7, 5], 2), ([12, 3], 4), ([6, 5, 4], 3)])
def test_every_bag_of_every_grouping_has_its_shares(bags, k):
    log_probs, which, margins = drawn(0, bags, k)
    plan = rake(log_probs, margins, tol=1e-8)
    assert plan.mass.sum(1) == pytest.approx(np.ones(240))
    assert float(plan.error.max()) < 2e-6
    for bag, (_, _, shares, *_) in zip(which, margins, strict=True):
        for i, known in enumerate(shares):
            assert plan.mass[bag == i].mean(0) == pytest.approx(known.numpy(), abs=2e-6)


def test_it_is_the_nearest_to_the_predictions_as_scipy_finds_it():
    log_probs, which, margins = drawn(1, [4, 3], 3)
    predicted = log_probs.double().numpy()
    totals = np.concatenate([(m.proportions * m.sizes.unsqueeze(1)).numpy() for m in margins])

    def dual(prices: np.ndarray) -> tuple[float, np.ndarray]:
        """Minus the Lagrange dual of the least KL divergence under the shares, and its gradient."""
        table = prices.reshape(-1, 3)
        scores = predicted + table[which[0].numpy()] + table[4 + which[1].numpy()]
        most = scores.max(1, keepdims=True)
        sums = np.exp(scores - most).sum(1, keepdims=True)
        mass = np.exp(scores - most) / sums
        found = np.zeros_like(table)
        np.add.at(found, which[0].numpy(), mass)
        np.add.at(found, 4 + which[1].numpy(), mass)
        return float((np.log(sums) + most).sum() - (totals * table).sum()), (found - totals).ravel()

    found = minimize(
        dual,
        np.zeros(21),
        jac=True,
        method="L-BFGS-B",
        options={"ftol": 1e-15, "gtol": 1e-9, "maxiter": 5000},
    )
    table = found.x.reshape(-1, 3)
    oracle = torch.from_numpy(predicted + table[which[0].numpy()] + table[4 + which[1].numpy()]).softmax(1)
    assert rake(log_probs, margins, tol=1e-9).mass == pytest.approx(oracle.numpy(), abs=1e-5)


def test_one_grouping_is_entropic_transport_and_none_of_a_row_leaves_it_alone():
    log_probs, _, (one, _) = drawn(2, [7, 5], 3)
    plan = entropic_plan(log_probs[one.rows], one.sizes, one.proportions, reg=1.0)
    assert rake(log_probs, [one]).mass[one.rows] == pytest.approx(plan.mass.double().numpy(), abs=1e-6)
    few = Margin(one.rows[: int(one.sizes[0])], one.sizes[:1], one.proportions[:1])
    others = one.rows[int(one.sizes[0]) :]
    assert rake(log_probs, [few]).mass[others] == pytest.approx(log_probs[others].exp().numpy(), abs=1e-6)


def test_the_order_of_the_groupings_changes_nothing():
    log_probs, _, margins = drawn(3, [8, 6, 3], 3)
    one, other = (rake(log_probs, each, tol=1e-9).mass for each in (margins, margins[::-1]))
    assert one == pytest.approx(other.numpy(), abs=1e-5)


def test_a_relaxed_grouping_gives_way_and_is_met_in_the_limit():
    log_probs, _, (one, other) = drawn(4, [7, 5], 3)
    free, held = (
        rake(log_probs, [one, other._replace(precision=precision)], tol=1e-8) for precision in (1e-6, 1e7)
    )
    alone, both = rake(log_probs, [one]).mass, rake(log_probs, [one, other], tol=1e-8).mass
    assert free.mass == pytest.approx(alone.numpy(), abs=1e-4)
    assert held.mass == pytest.approx(both.numpy(), abs=1e-4)
    middle = rake(log_probs, [one, other._replace(precision=3.0)], tol=1e-8)
    assert float(middle.error[:7].max()) < 1e-5  # of the grouping that is not relaxed
    assert float(held.error[7:].max()) < float(middle.error[7:].max()) < float(free.error[7:].max())


def test_a_smaller_reg_makes_rows_of_one_class():
    log_probs, _, margins = drawn(5, [7, 5], 3)
    soft, sharp = (rake(log_probs, margins, reg=reg) for reg in (1.0, 0.01))
    assert (
        float((sharp.mass.amax(1) > 0.99).double().mean())
        > 0.9
        > float((soft.mass.amax(1) > 0.99).double().mean())
    )
    assert float(sharp.error.max()) < 1e-4


def test_groupings_that_contradict_each_other_have_an_error_and_no_infinity():
    half = torch.tensor([3, 3])
    one = Margin(torch.arange(6), half, torch.eye(2, dtype=torch.float64))
    other = one._replace(proportions=torch.eye(2, dtype=torch.float64).flip(0))
    plan = rake(torch.zeros(6, 2), [one, other])
    assert bool(plan.mass.isfinite().all())
    assert float(plan.error.max()) > 0.4

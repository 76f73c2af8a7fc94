"""Bags that are remembered: batches of rows from all bags learn what whole bags would teach."""

import copy
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from conftest import moon_bags, normed, ragged, same_bits, steady, two_views, weights_of
from torch import nn

from apportion import ProportionClassifier
from apportion._random import reseed, stream
from apportion.bags.bags import Bags, RowBatch, bag_means
from apportion.bags.simulate import make_bags
from apportion.errors import SettingsError
from apportion.evaluate import accuracy, predict_log_proba
from apportion.experiment.run import run
from apportion.experiment.task import load_task
from apportion.grid import RECIPES
from apportion.losses import proportion_loss
from apportion.methods import DLLP, TwoViews
from apportion.methods.plot import PLOT, bag_weights
from apportion.methods.prediction_memory import PredictionMemory
from apportion.methods.two_views import make_projector
from apportion.networks import mlp, resnet9
from apportion.optim import make_optimizer
from apportion.pipeline import first_stage
from apportion.pseudo_labels import hard_labels
from apportion.recipes import First, Second
from apportion.recipes.building import build_learner
from apportion.recipes.checks import check
from apportion.transport import round_to_counts


def seen(remembered: PredictionMemory, logits: torch.Tensor) -> None:
    """A round in which every row was given these logits, in two batches of scattered rows."""
    for row in torch.randperm(len(logits), generator=stream(7)).split(-(-len(logits) // 2)):
        remembered.loss(logits[row], row)
        remembered.update(logits[row], row)


# --- scattered bags


def test_an_epoch_of_scattered_bags_has_every_row_once_in_batches_that_mix_bags():
    bags, _ = moon_bags(400, 100)
    batches = list(bags.batches(64, stream(0), by="row"))
    assert sorted(torch.cat([batch.row for batch in batches]).tolist()) == list(range(400))
    assert [len(batch.row) for batch in batches] == [64] * 6 + [16]
    assert all(len((batch.row // 100).unique()) == 4 for batch in batches)


def test_a_last_batch_of_one_row_joins_the_one_before():
    bags = ragged((33,), k=2)
    assert [len(batch.row) for batch in bags.batches(8, stream(0), by="row")] == [8, 8, 8, 9]
    assert [len(batch.row) for batch in bags.batches(32, stream(0), by="row")] == [33]
    assert [len(batch.row) for batch in ragged((1,), k=2).batches(8, stream(0))] == [1]


def test_a_lone_row_joins_a_bag_of_which_rows_were_drawn_and_keeps_its_loss():
    bags = ragged((20, 1), k=2)
    bags = replace(bags, proportions=torch.tensor([[0.4, 0.6], [0.0, 1.0]]))
    for epoch in range(8):
        (batch,) = bags.batches(8, stream(epoch))
        assert sorted(batch.sizes.tolist()) == [1, 8]
        assert batch.left == pytest.approx(0.6)
        logits = torch.randn(9, 2, generator=stream(epoch))
        parts = zip(logits.split(batch.sizes.tolist()), batch.sizes.split(1), batch.proportions, strict=True)
        apart = [
            proportion_loss(rows, size, shares[None], 0.0 if size == 1 else batch.left)
            for rows, size, shares in parts
        ]
        together = proportion_loss(logits, batch.sizes, batch.proportions, batch.left)
        torch.testing.assert_close(together, torch.stack(apart) @ (batch.sizes / 9))


# --- the loss


@pytest.mark.parametrize("sizes", [(20,) * 6, (40, 5, 30, 25, 1, 19)])
def test_of_whole_bags_value_and_gradient_are_those_of_dllp(sizes):
    bags = ragged(sizes, k=2)
    remembered = PredictionMemory(bags)
    seen(remembered, torch.randn(120, 2, generator=stream(1)))
    row = torch.arange(sizes[0], sum(sizes[:4]))  # three whole bags
    one = torch.randn(len(row), 2, generator=stream(2), requires_grad=True)
    two = one.detach().clone().requires_grad_()
    mine, theirs = remembered.loss(one, row), proportion_loss(two, bags.sizes[1:4], bags.proportions[1:4])
    torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(*pair)[0] for pair in ((mine, one), (theirs, two))))


def test_of_bags_of_one_row_it_is_cross_entropy():
    bags = ragged((1,) * 30, k=4)
    remembered = PredictionMemory(bags)
    seen(remembered, torch.randn(30, 4, generator=stream(1)))
    logits, row = torch.randn(9, 4, generator=stream(2)), torch.arange(3, 30, 3)
    expected = -(bags.proportions[row] * logits.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(remembered.loss(logits, row), expected)


def test_the_gradients_of_an_epoch_sum_to_that_of_all_bags_at_once():
    bags, _ = moon_bags(120, 20)
    logits = torch.randn(120, 2, generator=stream(1)).requires_grad_()
    remembered, total = PredictionMemory(bags), torch.zeros(120, 2)
    seen(remembered, logits.detach())
    for row in torch.randperm(120, generator=stream(3)).split(30):
        (gradient,) = torch.autograd.grad(remembered.loss(logits[row], row), logits)
        total += gradient / 4
        remembered.update(logits[row], row)
    (whole,) = torch.autograd.grad(proportion_loss(logits, bags.sizes, bags.proportions), logits)
    torch.testing.assert_close(total, whole)


def test_a_class_that_seems_to_have_less_than_nothing_has_a_thousandth_of_its_share():
    bags, _ = moon_bags(120, 20)
    remembered = PredictionMemory(bags)
    sure = torch.tensor([[30.0, 0.0]]).repeat(120, 1)
    seen(remembered, sure)
    row, logits = torch.arange(10), -sure[:10]  # the class of every row turns over at once
    means = remembered.means(logits.softmax(1), row)
    least = 1e-3 * float(bags.overall[0])
    torch.testing.assert_close(means[3:, 0], torch.full((3,), least))
    logits.requires_grad_()
    assert torch.isfinite(torch.autograd.grad(remembered.loss(logits, row), logits)[0]).all()


def test_a_class_rarer_than_any_floor_is_left_as_it_is_where_it_is_right():
    shares = torch.tensor([0.0004, 0.9996])
    one = ragged((1000,) * 6, k=2)
    remembered = PredictionMemory(replace(one, proportions=shares.repeat(6, 1)))
    logits = shares.log().repeat(6000, 1)
    seen(remembered, logits)
    row = torch.arange(0, 6000, 50)
    given = logits[row].requires_grad_()
    (gradient,) = torch.autograd.grad(remembered.loss(given, row), given)
    assert gradient.abs().max() < 1e-6 * shares[0] * len(row)


@pytest.mark.parametrize("gap", [95.0, 110.0, 1000.0])
def test_whole_bags_that_are_sure_and_wrong_have_the_loss_of_dllp_and_a_finite_gradient(gap):
    bags = replace(ragged((4,) * 3, k=2), proportions=torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]]))
    remembered = PredictionMemory(bags)
    logits = torch.tensor([[gap, 0.0]]).repeat(12, 1).requires_grad_()
    loss = remembered.loss(logits, torch.arange(12))
    torch.testing.assert_close(loss, proportion_loss(logits, bags.sizes, bags.proportions))
    assert torch.isfinite(torch.autograd.grad(loss, logits)[0]).all()


# --- the means


def test_after_a_round_the_means_are_those_of_the_bags():
    bags = ragged((7, 1, 30, 4), k=3)
    logits, remembered = torch.randn(42, 3, generator=stream(1)), PredictionMemory(bags)
    seen(remembered, logits)
    row = torch.tensor([3, 8, 20])
    remembered.loss(logits[row], row)  # begins a round
    means = remembered.means(logits[row].softmax(1), row)
    torch.testing.assert_close(means, bag_means(logits.softmax(1), bags.sizes))


def test_what_moves_all_rows_alike_is_known_of_rows_that_were_not_seen_again():
    # otherwise a class that all rows gain is noticed an epoch late, and training swings
    bags, _ = moon_bags(120, 20)
    remembered, before, after = PredictionMemory(bags), torch.zeros(120, 2), torch.tensor([[0.2, 0.0]])
    seen(remembered, before)
    order = torch.randperm(120, generator=stream(3))
    for i, row in enumerate(order.split(30)):
        now = after.repeat(120, 1) * (1 + i)  # and goes on moving within the epoch
        remembered.loss(now[row], row)
        means = remembered.means(now[row].softmax(1), row)
        overall = (bags.sizes.unsqueeze(1) * means).sum(0) / 120
        torch.testing.assert_close(overall, now[0].softmax(0))
        remembered.update(now[row], row)


def test_before_anything_was_seen_all_bags_have_the_overall_shares():
    bags = ragged((7, 1, 30, 4), k=3)
    remembered = PredictionMemory(bags)
    row, even = torch.tensor([3]), bags.overall.float().unsqueeze(0)
    remembered.loss(even.log(), row)
    torch.testing.assert_close(remembered.means(even, row), even.expand(4, 3))


# --- labels


def test_the_labels_at_the_prices_of_a_round_are_those_of_exact_transport():
    bags = ragged((7, 1, 30, 4), k=4)
    logits, remembered = torch.randn(42, 4, generator=stream(1)), PredictionMemory(bags, transport=True)
    row = torch.arange(42)
    before = remembered.adjusted_scores(logits, row)
    absent = round_to_counts(bags.proportions, bags.sizes)[torch.repeat_interleave(bags.sizes)] == 0
    assert torch.equal(before, logits.masked_fill(absent, -math.inf))
    seen(remembered, logits)
    scores = remembered.adjusted_scores(logits, row)
    exact = hard_labels(logits.log_softmax(1), bags.sizes, bags.proportions).argmax(1)
    doubtful = scores.argmax(1) != exact  # at the margin two classes cost the same
    assert doubtful.sum() <= 3 * 4
    first, second = scores[doubtful].topk(2).values.T
    torch.testing.assert_close(first, second)
    prices = remembered.prices.clone()
    seen(remembered, torch.randn(42, 4, generator=stream(2)))
    assert not torch.equal(remembered.prices, prices)  # every round has its own


# --- in the loop


def dllp(bags: Bags, batches: str | None, batch: int, epochs: int) -> nn.Module:
    reseed(0, "weights")
    net = mlp(bags.x.shape[1:], bags.n_classes, widths=(32,))
    learner = build_learner(First(batches=batches), net, bags)
    optimizers = [make_optimizer(p, "adam", 5e-3) for p in learner.networks()]
    for _ in first_stage(
        learner,
        bags,
        optimizers,
        epochs=epochs,
        schedule=steady,
        seed=0,
        batch_size=batch,
        by="row" if batches else "bag",
    ):
        pass
    return learner.classifier


def test_large_bags_are_learnt_in_batches_that_hold_one_of_them():
    generator = stream(5)
    x = torch.randn(10_240, 6, generator=generator)
    y = (x @ torch.randn(6, 5, generator=generator)).argmax(1)
    bags, hidden = make_bags(x, y, 512, 5, generator)
    right = {
        how: accuracy(predict_log_proba(dllp(bags, how, 512, 60), bags.x), hidden)
        for how in (None, "scattered")
    }
    assert right["scattered"] > 0.75
    assert right["scattered"] > right[None] + 0.1


def views_learner(bags: Bags) -> TwoViews:
    reseed(0, "projector")
    return TwoViews(normed(), normed(), make_projector(16), memory=PredictionMemory(bags, transport=True))


def epoch_states(method, bags, epochs=4, resume=None):
    optimizers = [make_optimizer(p, "sgd", 0.05, weight_decay=5e-4, clip=5.0) for p in method.networks()]
    return first_stage(
        method, bags, optimizers, by="row", epochs=epochs, schedule=steady, seed=0, batch_size=64,
        augment=two_views, resume=resume,
    )  # fmt: skip


def test_interrupted_it_ends_with_the_same_bits():
    bags, state = moon_bags()[0], None
    whole = list(epoch_states(views_learner(bags), bags))
    for epoch_state in epoch_states(views_learner(bags), bags):
        if epoch_state.epoch.number == 2:
            state = copy.deepcopy(epoch_state.state())
    rest = list(epoch_states(views_learner(bags), bags, resume=state))
    assert [m.epoch.terms for m in rest] == [m.epoch.terms for m in whole[2:]]
    assert same_bits(weights_of(*whole[-1].learner.networks()), weights_of(*rest[-1].learner.networks()))


def test_two_views_take_the_remembered_loss_and_labels_and_remember_after_the_step():
    bags = moon_bags()[0]
    method = views_learner(bags)
    batch = next(bags.batches(64, stream(0), by="row"))
    reseed(0, "views")
    batch = replace(batch, x=two_views(batch.x))
    other = PredictionMemory(bags)
    steps = method.losses(batch, 0.5)
    terms = next(steps)
    logits = normed()(batch.x[:, 0])
    torch.testing.assert_close(terms["proportion"], 5.0 * other.loss(logits, batch.row))
    before = method.memory.log_probs.clone()
    assert list(steps) == []
    torch.testing.assert_close(method.memory.log_probs[batch.row], logits.log_softmax(1))
    others = torch.ones(len(before), dtype=torch.bool).index_fill_(0, batch.row, False)
    assert torch.equal(method.memory.log_probs[others], before[others])


def test_the_same_learner_goes_on_from_a_checkpoint_after_an_epoch_that_was_cut():
    bags, state = moon_bags()[0], None
    whole = list(epoch_states(views_learner(bags), bags))
    method = views_learner(bags)
    for epoch_state in epoch_states(method, bags):
        if epoch_state.epoch.number == 2:
            state = copy.deepcopy(epoch_state.state())
            break
    batch = next(bags.batches(64, stream(9), by="row"))
    list(method.losses(replace(batch, x=two_views(batch.x)), 0.6))  # part of an epoch that is lost
    rest = list(epoch_states(method, bags, resume=state))
    assert same_bits(weights_of(*whole[-1].learner.networks()), weights_of(*rest[-1].learner.networks()))


def test_two_views_label_at_the_prices_of_a_rows_bag():
    bags = moon_bags()[0]
    method, row = views_learner(bags), torch.arange(8)
    batch = RowBatch(bags.x[row], row, torch.zeros(8, dtype=torch.int64))
    method.memory.prices[0] = torch.tensor([9.0, 0.0])
    classes, priced = method.labels(torch.tensor([[5.0, 0.0]]).repeat(8, 1), batch, None)
    assert classes.tolist() == [1] * 8
    torch.testing.assert_close(priced[0], torch.tensor([-4.0, 0.0]))


def test_dllp_remembers_what_it_said():
    bags = moon_bags()[0]
    method = DLLP(normed(), PredictionMemory(bags))
    batch = next(bags.batches(64, stream(0), by="row"))
    list(method.losses(batch, 0.0))
    said = normed()(batch.x).log_softmax(1)
    torch.testing.assert_close(method.memory.log_probs[batch.row], said)


@pytest.fixture
def rows_seen(monkeypatch):
    """The (memory, rows) of every loss that is asked for."""
    asked, loss = [], PredictionMemory.loss

    def noted(self, logits, row):
        asked.append((self, row))
        return loss(self, logits, row)

    monkeypatch.setattr(PredictionMemory, "loss", noted)
    return asked


def bags_in(asked) -> set[int]:
    return {len(memory.bag[row].unique()) for memory, row in asked}


@pytest.mark.parametrize("transport", [True, False])
def test_a_recipe_runs_on_rows_of_all_bags_and_prices_follow_transport(tmp_path, rows_seen, transport):
    plain = RECIPES["digits/dllp/16"]
    first = First("two_views", epochs=2, batches="scattered", options={"transport": transport})
    recipe = replace(
        plain, data=replace(plain.data, bag_size=400), first=first, augment="weak+strong",
        batch_size=200,
    )  # fmt: skip
    assert len(list(run(recipe, tmp_path / "run", device="cpu"))) == 2
    assert bags_in(rows_seen) == {len(rows_seen[0][0].sizes)}
    assert {memory.transport for memory, _ in rows_seen} == {transport}


def test_a_second_stage_after_it_has_every_row_in_an_epoch_and_weighs_bags_by_all_of_theirs(
    tmp_path, monkeypatch
):
    seen, losses = [], PLOT.losses

    def watched(self: PLOT, batch: RowBatch, progress: float):
        seen.append((batch.row, self.weights))
        return losses(self, batch, progress)

    monkeypatch.setattr(PLOT, "losses", watched)
    plain = RECIPES["digits/dllp/16"]
    recipe = replace(
        plain, data=replace(plain.data, bag_size=400), first=First(epochs=1, batches="scattered"),
        second=Second(epochs=1, hold=1, weighting="bag"), batch_size=200,
    )  # fmt: skip
    list(run(replace(recipe, second=None), tmp_path / "first", device="cpu"))
    list(run(recipe, tmp_path / "second", teacher=tmp_path / "first", device="cpu"))
    task = load_task(recipe, torch.device("cpu"))
    rows = torch.cat([row for row, _ in seen])
    assert torch.equal(rows.sort().values, torch.arange(len(task.bags.x)))
    assert torch.equal(seen[0][1], bag_weights(task.bags.sizes, len(task.bags.x)))
    assert len(task.bags.sizes.unique()) == 2  # the last bag is smaller, and its rows weigh more


def test_the_estimator_scatters_images_of_bags_that_have_proportions_in_batches_of_its_own_size(rows_seen):
    generator = np.random.default_rng(0)
    x = generator.integers(0, 255, (1200, 1, 8, 8), dtype=np.uint8)
    shares = np.array([[0.3, 0.7], [0.6, 0.4], [np.nan, np.nan]])
    model = ProportionClassifier(
        backbone=partial(resnet9, width=2), first_epochs=1, unlabeled=True, random_state=0
    )
    model.fit(x, bags=np.arange(1200) // 400, proportions=shares, classes=["a", "b"])
    assert {len(row) for _, row in rows_seen} == {256, 800 - 3 * 256}
    assert bags_in(rows_seen) == {2}
    assert all(torch.isfinite(memory.proportions).all() for memory, _ in rows_seen)


# --- refusals


def test_methods_that_need_whole_bags_and_several_processes_refuse_rows():
    recipe = RECIPES["beyond-resnet9/two-views/256"]
    assert recipe.first.batches == "scattered"
    check(recipe)
    plain = RECIPES["digits/dllp/16"]
    for first, words in (
        (replace(plain.first, method="llp_vat", batches="scattered"), "set the method to dllp or two_views"),
        (replace(plain.first, batches="whole"), "is 'whole'; set scattered, or null for whole bags"),
        (replace(plain.first, batches=""), "is ''; set scattered, or null for whole bags"),
    ):
        with pytest.raises(SettingsError, match=words):
            check(replace(plain, first=first))
    with pytest.raises(SettingsError, match="counts is of whole bags"):
        check(replace(recipe, first=replace(recipe.first, options={"counts": True})))
    with pytest.raises(SettingsError, match="no setting 'first.options.memory'; there are none"):
        check(replace(plain, first=replace(plain.first, options={"memory": True})))
    bags = moon_bags()[0]
    for priced, options in ((True, {"transport": False}), (False, {}), (True, {"counts": True})):
        with pytest.raises(ValueError, match="memory"):
            TwoViews(normed(), normed(), make_projector(16), memory=PredictionMemory(bags, priced), **options)


def test_a_bag_of_millions_does_not_move_the_means_of_others():
    shares, sizes = torch.tensor([[0.9, 0.1]] * 2), torch.tensor([2_000_000, 1000])
    bags = Bags(torch.zeros(2_001_000, 1), sizes, shares, torch.arange(2_001_000), ["large", "small"])
    rows = torch.arange(1_999_990, 2_000_010)
    means = PredictionMemory(bags).means(shares[0].repeat(20, 1), rows)
    torch.testing.assert_close(means, shares, atol=1e-4, rtol=0)

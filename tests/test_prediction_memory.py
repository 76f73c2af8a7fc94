"""PredictionMemory: batches of rows from all bags learn what whole bags would teach."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from conftest import moon_bags, normed, ragged, same_bits, steady, two_views, weights_of
from torch import nn

from apportion._random import reseed, stream
from apportion.bags.bags import Bags, RowBatch, bag_means
from apportion.bags.simulate import make_bags
from apportion.evaluate import accuracy, predict_log_proba
from apportion.losses import proportion_loss
from apportion.methods import DLLP, TwoViews, make_learner
from apportion.methods.prediction_memory import PredictionMemory
from apportion.methods.two_views import make_projector
from apportion.networks import mlp
from apportion.optim import make_optimizer
from apportion.pipeline import first_stage
from apportion.pseudo_labels import hard_labels
from apportion.transport import round_to_counts


def remember(memory: PredictionMemory, logits: torch.Tensor) -> None:
    """One round, in two batches: every row has these logits."""
    for row in torch.randperm(len(logits), generator=stream(7)).split(-(-len(logits) // 2)):
        memory.loss(logits[row], row)
        memory.update(logits[row], row)


# --- the loss


@pytest.mark.parametrize("sizes", [(20,) * 6, (40, 5, 30, 25, 1, 19)])
def test_for_whole_bags_value_and_gradient_are_those_of_the_proportion_loss(sizes):
    bags = ragged(sizes, k=2)
    memory = PredictionMemory(bags)
    remember(memory, torch.randn(120, 2, generator=stream(1)))
    row = torch.arange(sizes[0], sum(sizes[:4]))  # three whole bags
    logits = torch.randn(len(row), 2, generator=stream(2), requires_grad=True)
    other = logits.detach().clone().requires_grad_()
    loss = memory.loss(logits, row)
    expected = proportion_loss(other, bags.sizes[1:4], bags.proportions[1:4])
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, logits)[0], torch.autograd.grad(expected, other)[0])


def test_for_bags_of_one_row_it_is_cross_entropy():
    bags = ragged((1,) * 30, k=4)
    memory = PredictionMemory(bags)
    remember(memory, torch.randn(30, 4, generator=stream(1)))
    logits, row = torch.randn(9, 4, generator=stream(2)), torch.arange(3, 30, 3)
    expected = -(bags.proportions[row] * logits.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(memory.loss(logits, row), expected)


def test_the_gradients_of_an_epoch_sum_to_that_of_all_bags_at_once():
    bags, _ = moon_bags(120, 20)
    logits = torch.randn(120, 2, generator=stream(1)).requires_grad_()
    memory, total = PredictionMemory(bags), torch.zeros(120, 2)
    remember(memory, logits.detach())
    for row in torch.randperm(120, generator=stream(3)).split(30):
        (gradient,) = torch.autograd.grad(memory.loss(logits[row], row), logits)
        total += gradient / 4
        memory.update(logits[row], row)
    (whole,) = torch.autograd.grad(proportion_loss(logits, bags.sizes, bags.proportions), logits)
    torch.testing.assert_close(total, whole)


@pytest.mark.parametrize("gap", [95.0, 110.0, 1000.0])
def test_confident_wrong_predictions_have_a_finite_gradient(gap):
    bags = replace(ragged((4,) * 3, k=2), proportions=torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]]))
    memory = PredictionMemory(bags)
    logits = torch.tensor([[gap, 0.0]]).repeat(12, 1).requires_grad_()
    loss = memory.loss(logits, torch.arange(12))
    torch.testing.assert_close(loss, proportion_loss(logits, bags.sizes, bags.proportions))
    assert torch.isfinite(torch.autograd.grad(loss, logits)[0]).all()


def test_a_very_rare_class_that_is_predicted_right_has_no_gradient():
    proportions = torch.tensor([0.0004, 0.9996])
    memory = PredictionMemory(replace(ragged((1000,) * 6, k=2), proportions=proportions.repeat(6, 1)))
    logits = proportions.log().repeat(6000, 1)
    remember(memory, logits)
    row = torch.arange(0, 6000, 50)
    batch = logits[row].requires_grad_()
    (gradient,) = torch.autograd.grad(memory.loss(batch, row), batch)
    assert gradient.abs().max() < 1e-6 * proportions[0] * len(row)


# --- the means


def test_after_a_round_means_are_those_of_the_bags():
    bags = ragged((7, 1, 30, 4), k=3)
    logits, memory = torch.randn(42, 3, generator=stream(1)), PredictionMemory(bags)
    remember(memory, logits)
    row = torch.tensor([3, 8, 20])
    means = memory.means(logits[row].softmax(1), row)
    torch.testing.assert_close(means, bag_means(logits.softmax(1), bags.sizes))


def test_before_the_first_round_all_bags_have_the_overall_proportions():
    bags = ragged((7, 1, 30, 4), k=3)
    memory = PredictionMemory(bags)
    row, overall = torch.tensor([3]), bags.overall.float().unsqueeze(0)
    torch.testing.assert_close(memory.means(overall, row), overall.expand(4, 3))


def test_a_shift_that_all_rows_share_is_known_for_rows_outside_the_batch():
    """Otherwise a class that all rows gain is noticed an epoch late, and training oscillates."""
    bags, _ = moon_bags(120, 20)
    memory, step = PredictionMemory(bags), torch.tensor([[0.2, 0.0]])
    remember(memory, torch.zeros(120, 2))
    for i, row in enumerate(torch.randperm(120, generator=stream(3)).split(30)):
        logits = (step * (1 + i)).repeat(120, 1)  # which keep moving within the epoch
        means = memory.means(logits[row].softmax(1), row)
        overall = (bags.sizes.unsqueeze(1) * means).sum(0) / 120
        torch.testing.assert_close(overall, logits[0].softmax(0))
        memory.update(logits[row], row)


def test_a_class_keeps_a_thousandth_of_its_overall_proportion():
    bags, _ = moon_bags(120, 20)
    memory = PredictionMemory(bags)
    confident = torch.tensor([[30.0, 0.0]]).repeat(120, 1)
    remember(memory, confident)
    row, logits = torch.arange(10), -confident[:10]  # all of the batch change their class at once
    means = memory.means(logits.softmax(1), row)
    least = 1e-3 * float(bags.overall[0])
    torch.testing.assert_close(means[3:, 0], torch.full((3,), least))
    logits.requires_grad_()
    assert torch.isfinite(torch.autograd.grad(memory.loss(logits, row), logits)[0]).all()


def test_a_bag_of_millions_does_not_blur_the_means_of_others():
    shares, sizes = torch.tensor([[0.9, 0.1]] * 2), torch.tensor([2_000_000, 1000])
    bags = Bags(torch.zeros(2_001_000, 1), sizes, shares, torch.arange(2_001_000), ["large", "small"])
    rows = torch.arange(1_999_990, 2_000_010)
    means = PredictionMemory(bags).means(shares[0].repeat(20, 1), rows)
    torch.testing.assert_close(means, shares, atol=1e-4, rtol=0)


# --- labels


def test_adjusted_scores_give_the_labels_of_exact_transport_of_the_last_round():
    bags = ragged((7, 1, 30, 4), k=4)
    logits, memory = torch.randn(42, 4, generator=stream(1)), PredictionMemory(bags, transport=True)
    row = torch.arange(42)
    absent = round_to_counts(bags.proportions, bags.sizes)[torch.repeat_interleave(bags.sizes)] == 0
    assert torch.equal(memory.adjusted_scores(logits, row), logits.masked_fill(absent, -math.inf))
    remember(memory, logits)
    scores = memory.adjusted_scores(logits, row)
    exact = hard_labels(logits.log_softmax(1), bags.sizes, bags.proportions).argmax(1)
    ties = scores.argmax(1) != exact  # at the margin two classes cost the same
    assert ties.sum() <= 3 * 4
    first, second = scores[ties].topk(2).values.T
    torch.testing.assert_close(first, second)
    prices = memory.prices.clone()
    remember(memory, torch.randn(42, 4, generator=stream(2)))
    assert not torch.equal(memory.prices, prices)  # every round has its own


# --- in training


def test_large_bags_are_learned_in_batches_that_hold_one_of_them():
    generator = stream(5)
    x = torch.randn(10_240, 6, generator=generator)
    y = (x @ torch.randn(6, 5, generator=generator)).argmax(1)
    bags, hidden = make_bags(x, y, 512, 5, generator)
    right = {}
    for by in ("bag", "row"):
        reseed(0, "weights")
        learner = make_learner("dllp", mlp((6,), 5, widths=(32,)), bags, by=by)
        optimizers = [make_optimizer(each, "adam", 5e-3) for each in learner.networks()]
        for _ in first_stage(
            learner, bags, optimizers, epochs=60, schedule=steady, seed=0, batch_size=512, by=by
        ):
            pass
        right[by] = accuracy(predict_log_proba(learner.classifier, bags.x), hidden)
    assert right["row"] > 0.75
    assert right["row"] > right["bag"] + 0.1


def two_views_learner(bags: Bags) -> TwoViews:
    reseed(0, "projector")
    memory = PredictionMemory(bags, transport=True)
    return TwoViews(normed(), normed(), make_projector(16), memory=memory)


def training(learner: TwoViews, bags: Bags, resume=None):
    optimizers = [
        make_optimizer(each, "sgd", 0.05, weight_decay=5e-4, clip=5.0) for each in learner.networks()
    ]
    return first_stage(
        learner, bags, optimizers, epochs=4, schedule=steady, seed=0, batch_size=64, by="row",
        augment=two_views, resume=resume,
    )  # fmt: skip


@pytest.mark.parametrize("same_learner", [False, True])
def test_training_resumes_to_the_same_bits_even_after_part_of_an_epoch(same_learner):
    bags = moon_bags()[0]
    whole = list(training(two_views_learner(bags), bags))
    learner = two_views_learner(bags)
    states = training(learner, bags)
    next(states)
    state = copy.deepcopy(next(states).state())
    if same_learner:
        batch = next(bags.batches(64, stream(9), by="row"))
        list(learner.losses(replace(batch, x=two_views(batch.x)), 0.6))  # an epoch that is interrupted
    rest = list(training(learner if same_learner else two_views_learner(bags), bags, resume=state))
    assert [each.epoch.terms for each in rest] == [each.epoch.terms for each in whole[2:]]
    assert same_bits(weights_of(*whole[-1].learner.networks()), weights_of(*rest[-1].learner.networks()))


def test_methods_update_the_memory_after_their_step():
    bags = moon_bags()[0]
    batch = next(bags.batches(64, stream(0), by="row"))
    logits = normed()(batch.x)
    dllp = DLLP(normed(), PredictionMemory(bags))
    views = two_views_learner(bags)
    both_views = replace(batch, x=torch.stack([batch.x, batch.x], 1))
    for learner, seen, weight in ((dllp, batch, 1.0), (views, both_views, 5.0)):
        before = learner.memory.log_probs.clone()
        turns = learner.losses(seen, 0.5)
        terms = next(turns)
        expected = PredictionMemory(bags).loss(logits, batch.row)
        torch.testing.assert_close(terms["proportion"], weight * expected)
        assert torch.equal(learner.memory.log_probs, before)
        assert list(turns) == []
        torch.testing.assert_close(learner.memory.log_probs[batch.row], logits.log_softmax(1))
        others = torch.ones(len(before), dtype=torch.bool).index_fill_(0, batch.row, False)
        assert torch.equal(learner.memory.log_probs[others], before[others])


def test_two_views_labels_by_the_prices_of_a_rows_bag():
    bags = moon_bags()[0]
    learner, row = two_views_learner(bags), torch.arange(8)
    batch = RowBatch(bags.x[row], row, torch.zeros(8, dtype=torch.int64))
    learner.memory.prices[0] = torch.tensor([9.0, 0.0])
    classes, scores = learner.labels(torch.tensor([[5.0, 0.0]]).repeat(8, 1), batch)
    assert classes.tolist() == [1] * 8
    torch.testing.assert_close(scores[0], torch.tensor([-4.0, 0.0]))


@pytest.mark.parametrize(
    ("transport", "options"), [(True, {"transport": False}), (False, {}), (True, {"counts": True})]
)
def test_two_views_and_its_memory_have_to_agree(transport, options):
    memory = PredictionMemory(moon_bags()[0], transport)
    with pytest.raises(ValueError, match="memory"):
        TwoViews(normed(), normed(), make_projector(16), memory=memory, **options)


def test_the_memory_is_no_weight_of_the_network():
    assert list(PredictionMemory(moon_bags()[0]).parameters()) == []
    assert isinstance(PredictionMemory(moon_bags()[0]), nn.Module)

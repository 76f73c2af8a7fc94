"""Counts: the loss of a bag is minus the log-likelihood of its counts, by instance."""

import pytest
import torch
from conftest import network, ragged, trained
from scipy.stats import multivariate_hypergeom, multivariate_normal

from apportion.bagging import make_bags
from apportion.data.synthetic import digits
from apportion.evaluate import accuracy, predict
from apportion.first_stage import DLLP, Counts
from apportion.likelihood import CELL, count_log_likelihood, count_loss


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_loss_is_the_likelihood_by_instance_of_bags_of_any_sizes():
    bags = ragged((4, 9, 2, 30))
    logits = 2 * torch.randn(45, 3, generator=stream(0))
    each = count_log_likelihood(logits.log_softmax(1), bags.sizes, bags.proportions)
    expected = -(each / bags.sizes).mean()
    torch.testing.assert_close(count_loss(logits, bags.sizes, bags.proportions), expected.float())


def test_gradients_are_those_of_differences():
    sizes, shares = torch.tensor([3, 5]), torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.4, 0.0]]).double()
    logits = torch.randn(8, 3, generator=stream(1)).double().requires_grad_()

    def loss(values: torch.Tensor) -> torch.Tensor:
        # float32 inside, so that steps are wide and the comparison is rough
        return count_loss(values, sizes, shares.float()).double()

    assert torch.autograd.gradcheck(loss, (logits,), eps=1e-2, atol=2e-3, rtol=2e-2)


def test_the_true_probabilities_are_where_the_gradient_is_nought_on_average():
    logits = torch.randn(24, 3, generator=stream(2)).requires_grad_()
    labels = torch.multinomial(logits.detach().softmax(1), 4000, replacement=True, generator=stream(3))
    shares = torch.stack([(labels == j).float().mean(0) for j in range(3)], 1)  # (4000, 3)
    sizes = torch.full((4000,), 24)
    (gradient,) = torch.autograd.grad(count_loss(logits.repeat(4000, 1), sizes, shares), logits)
    wrong = (logits.detach() + 0.5 * torch.randn(24, 3, generator=stream(4))).requires_grad_()
    (elsewhere,) = torch.autograd.grad(count_loss(wrong.repeat(4000, 1), sizes, shares), wrong)
    assert gradient.norm() < 0.15 * elsewhere.norm()


def test_of_predictions_with_the_right_mean_sure_ones_are_better_and_of_wrong_ones_worse():
    sure = torch.tensor([[6.0, -6.0], [-6.0, 6.0]]).repeat_interleave(10, 0)
    sizes, right, wrong = torch.tensor([20]), torch.tensor([[0.5, 0.5]]), torch.tensor([[0.8, 0.2]])
    vague = torch.zeros(20, 2)
    assert count_loss(sure, sizes, right) < count_loss(vague, sizes, right)
    assert count_loss(sure, sizes, wrong) > count_loss(vague, sizes, wrong)


def test_a_bag_that_was_drawn_from_may_be_off_as_draws_without_replacement_are():
    n, whole = 12, 60
    counts = torch.tensor([30, 18, 12])
    shares, logits = (counts / whole)[None], torch.randn(n, 3, generator=stream(5))
    probs = logits.softmax(1).double()
    own = torch.diag(probs.sum(0)) - probs.T @ probs
    # the law divides by whole - 1 where the loss divides by whole
    drawn = torch.from_numpy(multivariate_hypergeom(counts.numpy(), n).cov()) * (whole - 1) / whole
    off = n * shares[0].double() - probs.sum(0)
    spread = own + drawn + CELL * torch.eye(3)
    expected = -multivariate_normal(cov=spread.numpy()).logpdf(off.numpy()) / n
    found = [
        count_loss(logits, torch.tensor([n]), shares, torch.tensor([left])).item()
        for left in (1 - n / whole, 0.0)
    ]
    plain = count_loss(logits, torch.tensor([n]), shares).item()
    # the density of all three counts has the direction of their sum in it, which the loss leaves out
    sums = 0.5 * torch.tensor([2 * torch.pi * CELL * 3]).log().item() / n
    assert found[0] == pytest.approx(expected - sums, abs=1e-5)
    assert found[1] == pytest.approx(plain)


def test_random_bags_of_digits_are_learnt_and_better_than_by_proportions():
    data = digits(1)
    bags, _ = make_bags(data.x, data.y, 32, 10, stream(1))
    right = {}
    for method in (Counts, DLLP):
        learner = method(network(10, (64,), widths=(128, 128)))
        last = trained(learner, bags, epochs=40, instances_per_batch=128)[-1]
        assert set(last.terms) == {"counts" if method is Counts else "proportion"}
        right[method] = float(accuracy(predict(learner.classifier, data.test_x, lambda x: x), data.test_y))
    assert right[Counts] > 0.9
    assert right[Counts] > right[DLLP] + 0.01

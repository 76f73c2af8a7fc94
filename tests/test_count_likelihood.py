"""CountLikelihood: the loss of a bag is minus the log-likelihood of its counts, by instance."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from conftest import network, ragged, trained
from scipy.stats import multivariate_hypergeom, multivariate_normal

from apportion.bags.simulate import make_bags
from apportion.datasets.synthetic import digits
from apportion.evaluate import accuracy, predict_log_proba
from apportion.losses import proportion_loss
from apportion.methods import DLLP, CountLikelihood
from apportion.methods.count_likelihood import (
    CELL_VARIANCE,
    count_covariance,
    count_log_likelihood,
    count_loss,
    drawn_count_loss,
)


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def exact(logits: torch.Tensor, counts: list[int]) -> torch.Tensor:
    """Minus the log-probability of the counts of a bag, by instance: the sum over all labelings."""
    n, k = logits.shape
    labelings = torch.cartesian_prod(*[torch.arange(k)] * n).view(-1, n)
    fit = (F.one_hot(labelings, k).sum(1) == torch.tensor(counts)).all(1)
    chosen = labelings[fit].unsqueeze(2)
    log_probs = logits.log_softmax(1).expand(len(chosen), n, k)
    return -log_probs.gather(2, chosen).sum((1, 2)).logsumexp(0) / n


@pytest.mark.parametrize(
    ("n", "k", "scale"), [(4, 3, 1.0), (4, 3, 3.0), (7, 3, 2.0), (8, 2, 2.0), (6, 4, 2.0)]
)
def test_the_gradient_is_nearer_to_that_of_the_exact_likelihood_than_others_are(n, k, scale):
    off = {"counts": [], "normal": [], "dllp": []}
    for seed in range(8):
        logits = (scale * torch.randn(n, k, generator=stream(seed))).requires_grad_()
        labels = torch.multinomial(logits.detach().softmax(1), 1, generator=stream(seed)).flatten()
        counts, sizes = torch.bincount(labels, minlength=k), torch.tensor([n])
        shares = (counts / n)[None]
        (truth,) = torch.autograd.grad(exact(logits, counts.tolist()), logits)
        for name, loss in {
            "counts": count_loss(logits, sizes, shares),
            "normal": drawn_count_loss(logits, sizes, shares, 0.0),
            "dllp": proportion_loss(logits, sizes, shares),
        }.items():
            (gradient,) = torch.autograd.grad(loss, logits)
            off[name].append(float((gradient - truth).norm() / truth.norm()))
    means = {name: sum(each) / len(each) for name, each in off.items()}
    assert means["counts"] < 0.2
    assert means["counts"] < 0.6 * min(means["normal"], means["dllp"])


def test_a_bag_larger_than_a_batch_leaves_the_loss_of_the_others_as_it_is():
    """Only the bag that is drawn from takes the normal law."""
    bags = ragged((1,) * 20 + (300,), k=3)
    bags = replace(bags, proportions=F.one_hot(torch.arange(21) % 3, 3).float())
    seen: list[int] = []
    for batch in (batch for epoch in range(40) for batch in bags.batches(20, stream(epoch))):
        (terms,) = CountLikelihood(network(3)).losses(batch, 0.5)
        logits, sizes = network(3)(batch.x), batch.sizes.tolist()
        apart = [
            count_loss(rows, torch.tensor([size]), shares[None], batch.undrawn)
            if size > 1
            else F.cross_entropy(rows, shares[None])
            for rows, size, shares in zip(logits.split(sizes), sizes, batch.proportions, strict=True)
        ]
        by_rows = torch.stack(apart) @ (batch.sizes / batch.sizes.sum())
        torch.testing.assert_close(terms["counts"], by_rows)
        seen += [len(sizes)] if batch.undrawn else []
    assert set(seen) == {1, 2}  # alone, and with a lone row that has joined it


def test_for_bags_of_one_row_it_is_cross_entropy():
    logits = (3 * torch.randn(20, 4, generator=stream(0))).requires_grad_()
    labels = torch.randint(0, 4, (20,), generator=stream(1))
    loss = count_loss(logits, torch.ones(20, dtype=torch.int64), F.one_hot(labels, 4).float())
    plain = F.cross_entropy(logits, labels)
    torch.testing.assert_close(loss, plain)
    gradients = [torch.autograd.grad(each, logits)[0] for each in (loss, plain)]
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-3)


def test_for_large_bags_it_is_the_normal_approximation_up_to_a_constant():
    sizes = torch.tensor([600])
    found = []
    for seed in range(3):
        logits = torch.randn(600, 3, generator=stream(seed)) + torch.tensor([0.5, 0.0, -0.5])
        shares = logits.softmax(1).mean(0, keepdim=True) + torch.tensor([[0.01, -0.005, -0.005]])
        law = count_log_likelihood(logits.log_softmax(1), sizes, shares)
        found.append(600 * float(count_loss(logits, sizes, shares)) + float(law))
    assert max(found) - min(found) < 0.02
    assert found[0] == pytest.approx(math.log(3) / 2, abs=0.05)  # the plane of all counts, cut slantwise


def test_bags_of_any_sizes_are_the_mean_of_their_own_losses_by_rows():
    bags = ragged((4, 9, 2, 30, 1))
    logits = 2 * torch.randn(46, 3, generator=stream(0))
    parts = zip(logits.split(bags.sizes.tolist()), bags.sizes, bags.proportions, strict=True)
    each = [count_loss(part, size[None], shares[None]) for part, size, shares in parts]
    by_rows = torch.stack(each) @ (bags.sizes / bags.sizes.sum())
    torch.testing.assert_close(count_loss(logits, bags.sizes, bags.proportions), by_rows)


def test_a_number_added_to_all_classes_of_a_row_changes_nothing_and_values_on_the_host_are_taken():
    bags = ragged((4, 9, 2, 30, 1))
    logits = 2 * torch.randn(46, 3, generator=stream(0))
    loss = count_loss(logits, bags.sizes, bags.proportions)
    raised = logits + 50 * torch.randn(46, 1, generator=stream(1))
    torch.testing.assert_close(count_loss(raised, bags.sizes, bags.proportions), loss, atol=1e-5, rtol=1e-4)
    asked = []

    def there() -> list[torch.Tensor]:
        asked.append(1)
        return [logits.detach(), bags.sizes, bags.proportions]

    assert torch.equal(count_loss(logits, bags.sizes, bags.proportions, on_host=there), loss)
    assert asked == [1]


@pytest.mark.parametrize("lengths", [[3, 3], [1, 2, 900, 3, 4, 7, 8, 1, 16], [5]])
def test_the_covariance_of_counts_is_the_sum_over_the_rows_of_a_bag(lengths):
    probs = torch.randn(sum(lengths), 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    probs = probs.softmax(1)
    expected = [sum(torch.diag(p) - torch.outer(p, p) for p in part) for part in probs.split(lengths)]
    torch.testing.assert_close(count_covariance(probs, torch.tensor(lengths)), torch.stack(expected))


def test_certain_wrong_predictions_keep_a_gradient_and_a_finite_loss():
    for scale in (30.0, 300.0):
        logits = (scale * torch.tensor([[1.0, 0.0, 0.0]]).repeat(6, 1)).requires_grad_()
        loss = count_loss(logits, torch.tensor([6]), torch.tensor([[0.0, 0.5, 0.5]]))
        (gradient,) = torch.autograd.grad(loss, logits)
        assert loss.isfinite()
        assert gradient.isfinite().all()
        assert (gradient[:, 0] > 0.1 / 6).all()  # away from the class that the bag has none of


def test_gradients_equal_finite_differences():
    sizes, shares = torch.tensor([3, 5]), torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.4, 0.0]]).double()
    logits = torch.randn(8, 3, generator=stream(1)).double().requires_grad_()

    def loss(values: torch.Tensor) -> torch.Tensor:
        # float32 inside, so that steps are wide and the comparison is rough
        return count_loss(values, sizes, shares.float()).double()

    assert torch.autograd.gradcheck(loss, (logits,), eps=1e-2, atol=2e-3, rtol=2e-2)


def test_the_true_probabilities_are_where_the_gradient_is_zero_on_average():
    logits = torch.randn(24, 3, generator=stream(2)).requires_grad_()
    labels = torch.multinomial(logits.detach().softmax(1), 4000, replacement=True, generator=stream(3))
    shares = torch.stack([(labels == j).float().mean(0) for j in range(3)], 1)  # (4000, 3)
    sizes = torch.full((4000,), 24)
    (gradient,) = torch.autograd.grad(count_loss(logits.repeat(4000, 1), sizes, shares), logits)
    wrong = (logits.detach() + 0.5 * torch.randn(24, 3, generator=stream(4))).requires_grad_()
    (elsewhere,) = torch.autograd.grad(count_loss(wrong.repeat(4000, 1), sizes, shares), wrong)
    assert gradient.norm() < 0.15 * elsewhere.norm()


def test_certain_predictions_are_better_than_uncertain_ones_if_their_mean_is_right_and_worse_if_not():
    sure = torch.tensor([[6.0, -6.0], [-6.0, 6.0]]).repeat_interleave(10, 0)
    sizes, right, wrong = torch.tensor([20]), torch.tensor([[0.5, 0.5]]), torch.tensor([[0.8, 0.2]])
    vague = torch.zeros(20, 2)
    assert count_loss(sure, sizes, right) < count_loss(vague, sizes, right)
    assert count_loss(sure, sizes, wrong) > count_loss(vague, sizes, wrong)


def test_a_drawn_bag_varies_as_draws_without_replacement_do():
    n, whole = 12, 60
    counts = torch.tensor([30, 18, 12])
    shares, logits = (counts / whole)[None], torch.randn(n, 3, generator=stream(5))
    probs = logits.softmax(1).double()
    own = torch.diag(probs.sum(0)) - probs.T @ probs
    # the law divides by whole - 1 where the loss divides by whole
    drawn = torch.from_numpy(multivariate_hypergeom(counts.numpy(), n).cov()) * (whole - 1) / whole
    off = n * shares[0].double() - probs.sum(0)
    spread = own + drawn + CELL_VARIANCE * torch.eye(3)
    expected = -multivariate_normal(cov=spread.numpy()).logpdf(off.numpy()) / n
    found = count_loss(logits, torch.tensor([n]), shares, torch.tensor([1 - n / whole])).item()
    # the density of all three counts has the direction of their sum in it, which the loss leaves out
    sums = 0.5 * torch.tensor([2 * torch.pi * CELL_VARIANCE * 3]).log().item() / n
    assert found == pytest.approx(expected - sums, abs=1e-5)


def test_digits_are_learned_from_random_bags_and_better_than_by_dllp():
    data = digits(1)
    bags, _ = make_bags(data.x, data.y, 32, 10, stream(1))
    right = {}
    for method in (CountLikelihood, DLLP):
        learner = method(network(10, (64,), widths=(128, 128)))
        last = trained(learner, bags, epochs=40, batch_size=128)[-1]
        assert set(last.terms) == {"counts" if method is CountLikelihood else "proportion"}
        right[method] = float(
            accuracy(predict_log_proba(learner.classifier, data.test_x, lambda x: x), data.test_y)
        )
    assert right[CountLikelihood] > 0.9
    assert right[CountLikelihood] > right[DLLP] + 0.01

"""Raking: shares of several groupings at once, against the dual that scipy minimizes and by what it meets."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from apportion.bags.raking import Margin, rake
from apportion.transport import entropic_plan


def groups(sizes: list[int], generator: torch.Generator) -> list[Tensor]:
    """For each number of bags, the bag of every row."""
    n = 240
    return [
        torch.cat([torch.arange(m), torch.randint(m, (n - m,), generator=generator)])[
            torch.randperm(n, generator=generator)
        ]
        for m in sizes
    ]


def margin(bag: Tensor, labels: Tensor, k: int, relax: float = math.inf) -> Margin:
    """Of labels that are counted, so that margins of the same labels agree."""
    counts = torch.zeros(int(bag.max()) + 1, k, dtype=torch.float64).index_put_(
        (bag, labels), torch.ones(len(bag), dtype=torch.float64), accumulate=True
    )
    sizes = counts.sum(1).long()
    return Margin(bag.argsort(stable=True), sizes, counts / sizes.unsqueeze(1), relax)


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
    for bag, (_, _, shares, _) in zip(which, margins, strict=True):
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
    free, held = (rake(log_probs, [one, other._replace(relax=relax)], tol=1e-8) for relax in (1e-6, 1e7))
    alone, both = rake(log_probs, [one]).mass, rake(log_probs, [one, other], tol=1e-8).mass
    assert free.mass == pytest.approx(alone.numpy(), abs=1e-4)
    assert held.mass == pytest.approx(both.numpy(), abs=1e-4)
    middle = rake(log_probs, [one, other._replace(relax=3.0)], tol=1e-8)
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

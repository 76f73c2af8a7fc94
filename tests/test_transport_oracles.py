"""Transport against independent solvers: scipy's assignment for exact labels, plain Sinkhorn for soft."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from apportion.transport import assign_with_duals, entropic_plan

Problem = tuple[np.ndarray, np.ndarray, np.ndarray]


def random_problem(generator: np.random.Generator) -> Problem:
    """One bag: ties, absent classes, forbidden classes, all scales, either precision."""
    n, k = int(generator.integers(1, 40)), int(generator.integers(1, 14))
    scores = generator.normal(size=(n, k)) * generator.choice([1e-3, 1.0, 100.0])
    if generator.random() < 0.4:
        scores = np.round(scores)
    if generator.random() < 0.3:
        scores[generator.random((n, k)) < 0.2] = -np.inf
    if generator.random() < 0.5:
        scores = scores.astype(np.float32)
    counts = generator.multinomial(n, generator.dirichlet(np.full(k, generator.choice([0.2, 5.0]))))
    return scores, np.array([n]), counts[None]


def optimal_value(scores: np.ndarray, counts: np.ndarray) -> float | None:
    """The highest sum of scores with these counts, by scipy on repeated columns; None if there is none."""
    columns = scores[:, np.repeat(np.arange(len(counts)), counts)].astype(np.float64)
    try:
        rows, chosen = linear_sum_assignment(columns, maximize=True)
    except ValueError:
        return None
    total = columns[rows, chosen].sum()
    return total if np.isfinite(total) else None


def check(scores: np.ndarray, sizes: np.ndarray, counts: np.ndarray) -> bool:
    """Compares every bag with the oracle; returns whether the problem had a solution."""
    bags = np.split(scores, np.cumsum(sizes)[:-1])
    wanted = [optimal_value(bag, row) for bag, row in zip(bags, counts, strict=True)]
    if None in wanted:
        with pytest.raises(ValueError, match=f"bag {wanted.index(None)} cannot meet"):
            assign_with_duals(scores, sizes, counts)
        return False
    answer = assign_with_duals(scores, sizes, counts)
    classes = np.split(answer.classes.numpy(), np.cumsum(sizes)[:-1])
    for bag, chosen, row, best, gap in zip(bags, classes, counts, wanted, answer.gap.tolist(), strict=True):
        assert np.array_equal(np.bincount(chosen, minlength=len(row)), row)
        got = bag[np.arange(len(bag)), chosen].astype(np.float64).sum()
        assert math.isclose(
            got, best, rel_tol=1e-9, abs_tol=1e-9 * max(1e-3, np.abs(bag[bag > -np.inf]).max())
        )
        assert abs(gap) <= 1e-8 * max(1.0, abs(best))
    return True


def test_exact_labels_cost_what_scipy_says():
    generator = np.random.default_rng(0)
    solvable = sum(check(*random_problem(generator)) for _ in range(600))
    assert 400 < solvable < 600  # both kinds were met


def test_ragged_bags_together_cost_what_scipy_says_of_each():
    generator = np.random.default_rng(1)
    for k, largest in ((3, 300), (40, 120), (10, 2)):
        sizes = generator.integers(1, largest, 12)
        scores = 3 * generator.normal(size=(sizes.sum(), k))
        counts = np.stack([generator.multinomial(n, generator.dirichlet(np.ones(k))) for n in sizes])
        assert check(scores, sizes, counts)


def test_bags_of_few_kinds_of_rows_cost_what_scipy_says():
    generator = np.random.default_rng(3)
    for kinds, k in ((1, 3), (1, 9), (2, 5), (3, 8), (6, 4)):  # many left over move at once
        rows = 2 * generator.normal(size=(kinds, k))
        if kinds > 1:
            rows[0, 0] = -np.inf
        sizes = np.array([400, 7, 250])
        scores = rows[generator.integers(kinds, size=sizes.sum())]
        classes = np.array([generator.choice(np.flatnonzero(row > -np.inf)) for row in scores])
        counts = [np.bincount(part, minlength=k) for part in np.split(classes, np.cumsum(sizes)[:-1])]
        assert check(scores, sizes, np.stack(counts))


def test_a_large_bag_with_absent_classes_costs_what_scipy_says():
    generator = np.random.default_rng(2)
    scores = generator.normal(size=(1200, 70)).astype(
        np.float32
    )  # too large for absent classes to be left out
    counts = generator.multinomial(1200, generator.dirichlet(np.full(70, 0.3)))
    counts[0] += counts[5]
    counts[5] = 0
    assert check(scores, np.array([1200]), counts[None])


def plain_sinkhorn(
    log_probs: torch.Tensor, share: torch.Tensor, reg: float, relax: float, iterations: int = 20_000
) -> torch.Tensor:
    """The plan of one bag by alternating scaling in the log domain."""
    damp = 1.0 if math.isinf(relax) else relax / (relax + reg)
    kernel, g = log_probs / reg, torch.zeros_like(share)
    for _ in range(iterations):
        f = -torch.logsumexp(kernel + g, 1, keepdim=True)
        reach = torch.logsumexp(kernel + f, 0) - math.log(len(kernel))
        following = damp * (share.log() - reach)
        if (following - g)[share > 0].abs().max() < 1e-12:
            break
        g = following
    return (kernel + g).softmax(1)


@pytest.mark.parametrize("relax", [math.inf, 2.0, 0.1])
@pytest.mark.parametrize("reg", [10.0, 1.0, 0.2])
def test_soft_labels_are_those_of_plain_sinkhorn(reg: float, relax: float):
    generator = torch.Generator().manual_seed(0)
    for n, k in ((5, 3), (30, 6), (12, 12)):
        log_probs = torch.randn(n, k, generator=generator, dtype=torch.float64).log_softmax(1)
        share = torch.rand(k, generator=generator, dtype=torch.float64)
        share[0] = 0
        share /= share.sum()
        plan = entropic_plan(log_probs, [n], share[None], reg=reg, relax=relax, tol=1e-11)
        torch.testing.assert_close(plan.mass, plain_sinkhorn(log_probs, share, reg, relax), rtol=0, atol=1e-7)

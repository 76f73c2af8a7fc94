"""Transport: independent solvers, laws and limits of exact and soft labels, the paper on them, errors."""

import importlib
import math
import time
import tracemalloc
from collections.abc import Callable, Iterator
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from numba.core.caching import CacheImpl
from scipy.optimize import linear_sum_assignment, linprog
from torch import Tensor

from apportion._random import stream
from apportion.errors import ApportionWarning, DataError, SettingsError
from apportion.transport import (
    Plan,
    assign,
    assign_weighted,
    assign_weighted_with_duals,
    assign_with_duals,
    entropic_plan,
    round_to_counts,
)
from apportion.transport import _batched as batched
from apportion.transport import _newton as newton
from apportion.transport._exact import jit_kept
from apportion.transport._newton import residual
from apportion.transport.solvers import announce_compilation, chunk_edges, solve_entropic, solve_on_device


def problem(sizes: list[int], k: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities, sizes and proportions, in float64."""
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(sum(sizes), k, generator=generator, dtype=torch.float64)
    shares = torch.rand(len(sizes), k, generator=generator, dtype=torch.float64) + 0.05
    return scores.log_softmax(1), torch.tensor(sizes), shares / shares.sum(1, keepdim=True)


def counted(classes: Tensor, sizes: Tensor, k: int) -> Tensor:
    return torch.stack([torch.bincount(part, minlength=k) for part in classes.split(sizes.tolist())])


def cost(mass: Tensor, log_probs: Tensor) -> float:
    return -(mass * log_probs).sum().item() / len(mass)


def entropy(mass: Tensor) -> float:
    return -torch.special.xlogy(mass, mass).sum().item()


@pytest.fixture
def two_threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


RAGGED = [1, 7, 2, 40, 16]


def test_labels_have_the_counts_of_every_bag():
    log_probs, sizes, proportions = problem(RAGGED, 5)
    counts = round_to_counts(proportions, sizes)
    classes = assign(log_probs, sizes, counts)
    assert classes.dtype == torch.int64
    assert torch.equal(counted(classes, sizes, 5), counts)


def test_counts_of_the_argmax_give_back_the_argmax():
    log_probs, sizes, _ = problem(RAGGED, 5)
    best = log_probs.argmax(1)
    assert torch.equal(assign(log_probs, sizes, counted(best, sizes, 5)), best)


def test_a_constant_added_to_a_row_or_a_class_changes_no_label():
    log_probs, sizes, proportions = problem(RAGGED, 5)
    counts = round_to_counts(proportions, sizes)
    moved = log_probs + torch.randn(len(log_probs), 1) + torch.tensor([3.0, -2.0, 0.0, 7.0, 1.0])
    assert torch.equal(assign(moved, sizes, counts), assign(log_probs, sizes, counts))


def test_prices_prove_the_labels_optimal():
    log_probs, sizes, proportions = problem(RAGGED, 6)
    answer = assign_with_duals(log_probs, sizes, round_to_counts(proportions, sizes))
    prices = answer.prices.repeat_interleave(sizes, 0)
    value = log_probs - prices
    torch.testing.assert_close(value.gather(1, answer.classes[:, None]).squeeze(1), value.amax(1))
    assert answer.gap.abs().max() < 1e-9


def test_a_gap_shows_labels_that_are_not_optimal():
    log_probs, sizes, proportions = problem([30], 4)
    counts = round_to_counts(proportions, sizes)
    answer = assign_with_duals(log_probs, sizes, counts)
    worse = assign_with_duals(-log_probs, sizes, counts).classes
    bound = (log_probs - answer.prices).amax(1).sum() + (counts * answer.prices).sum()
    assert bound - log_probs.gather(1, worse[:, None]).sum() > 1


def test_a_warm_start_changes_no_label():
    log_probs, sizes, proportions = problem(RAGGED, 5)
    counts = round_to_counts(proportions, sizes)
    earlier = assign_with_duals(log_probs + 0.3 * torch.randn_like(log_probs), sizes, counts)
    assert torch.equal(
        assign_with_duals(log_probs, sizes, counts, prices=earlier.prices).classes,
        assign(log_probs, sizes, counts),
    )


def test_prices_that_prove_labels_already_leave_no_work_and_come_back_bit_for_bit():
    log_probs, sizes, _ = problem(RAGGED, 5)
    generator = torch.Generator().manual_seed(1)
    prices = torch.randn(len(RAGGED), 5, generator=generator, dtype=torch.float64)
    classes = (log_probs - prices.repeat_interleave(sizes, 0)).argmax(1)
    counts = counted(classes, sizes, 5)
    warm, cold = (
        assign_with_duals(log_probs, sizes, counts, prices=prices),
        assign_with_duals(log_probs, sizes, counts),
    )
    assert torch.equal(warm.classes, classes)
    assert torch.equal(warm.prices, prices.masked_fill(counts == 0, math.inf))
    assert torch.equal(cold.classes, classes)
    assert not torch.equal(cold.prices, warm.prices)


def test_single_and_double_precision_and_numpy_and_lists_agree():
    log_probs, sizes, proportions = problem(RAGGED, 5)
    log_probs = log_probs.float()
    counts = round_to_counts(proportions, sizes)
    classes = assign(log_probs, sizes, counts)
    for other in (log_probs.double(), log_probs.numpy(), log_probs.t().contiguous().t()):
        assert torch.equal(assign(other, sizes.tolist(), counts.numpy()), classes)
    mass = entropic_plan(log_probs, sizes, proportions, reg=0.5).mass
    assert mass.dtype == torch.float32
    torch.testing.assert_close(
        entropic_plan(log_probs.double(), sizes, proportions, reg=0.5).mass.float(), mass
    )


def test_bags_of_one_take_the_class_they_are_given():
    log_probs, sizes, _ = problem([1] * 6, 3)
    given = torch.tensor([0, 1, 2, 2, 1, 0])
    one_hot = torch.nn.functional.one_hot(given, 3)
    assert torch.equal(assign(log_probs, sizes, one_hot), given)
    torch.testing.assert_close(entropic_plan(log_probs, sizes, one_hot, reg=1.0).mass, one_hot.double())


def test_a_single_class_takes_all():
    log_probs, sizes, _ = problem(RAGGED, 1)
    assert assign(log_probs, sizes, sizes[:, None]).eq(0).all()
    assert entropic_plan(log_probs, sizes, torch.ones(5, 1), reg=1.0).mass.eq(1).all()


def test_two_classes_are_split_by_their_log_odds():
    log_probs, sizes, _ = problem([1000], 2)
    classes = assign(log_probs, sizes, torch.tensor([[300, 700]]))
    odds = log_probs[:, 0] - log_probs[:, 1]
    assert odds[classes == 0].min() >= odds[classes == 1].max()


def test_no_bag_at_all_is_no_label_at_all():
    nothing = torch.zeros(0, 3)
    assert assign(nothing, torch.zeros(0, dtype=torch.int64), torch.zeros(0, 3, dtype=torch.int64)).shape == (
        0,
    )
    plan = entropic_plan(nothing, torch.zeros(0, dtype=torch.int64), torch.zeros(0, 3), reg=1.0)
    assert plan.mass.shape == (0, 3)
    assert plan.iterations == 0


def test_a_class_of_minus_infinity_is_never_given():
    log_probs, sizes, _ = problem([40], 4)
    log_probs[::2, 1] = -math.inf
    classes = assign(log_probs, sizes, torch.tensor([[10, 15, 5, 10]]))
    assert log_probs.gather(1, classes[:, None]).isfinite().all()
    plan = entropic_plan(log_probs, sizes, torch.tensor([[0.25, 0.375, 0.125, 0.25]]), reg=0.1)
    assert plan.error.max() <= 1e-6
    assert plan.mass[::2, 1].eq(0).all()


def test_the_number_of_threads_changes_no_bit(two_threads: Callable[[int], None]):
    sizes = [3, 50, 17, 130] * 400
    log_probs, sizes_, proportions = problem(sizes, 4)
    counts = round_to_counts(proportions, sizes_)
    results = []
    for threads in (1, 2):
        two_threads(threads)
        results.append(
            (assign(log_probs, sizes_, counts), entropic_plan(log_probs, sizes_, proportions, reg=0.2).mass)
        )
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_chunks_are_never_empty_and_cover_every_bag():
    for sizes in ([5], [1, 1, 100, 1], [2] * 30):
        starts = np.concatenate([[0], np.cumsum(sizes)])
        edges = chunk_edges(starts, 8)
        assert edges[0] == 0
        assert edges[-1] == len(sizes)
        assert (np.diff(edges) > 0).all()


def test_rows_that_are_alike_move_together_and_not_one_by_one():
    n, k = 60_000, 10
    generator = np.random.default_rng(0)
    counts = np.full((1, k), n // k)

    def seconds(scores: np.ndarray) -> float:
        begun = time.process_time()
        assign(scores, [n], counts)
        return time.process_time() - begun

    differ = generator.normal(size=(n, k))
    alike = np.repeat(generator.normal(size=(1, k)), n, axis=0)
    seconds(differ)  # compiles
    # three or four times as long; several hundred times where one row an augmentation moves
    assert min(seconds(alike) for _ in range(3)) < 30 * min(seconds(differ) for _ in range(3))


def test_a_million_bags_of_two_and_one_bag_of_many():
    generator = torch.Generator().manual_seed(0)
    log_probs = torch.randn(2_000_000, 2, generator=generator)
    classes = assign(log_probs, torch.full((1_000_000,), 2), torch.ones(1_000_000, 2, dtype=torch.int64))
    first, second = log_probs.view(-1, 2, 2).unbind(1)
    swap = first[:, 1] + second[:, 0] > first[:, 0] + second[:, 1]
    assert torch.equal(classes.view(-1, 2)[:, 0] == 1, swap)
    answer = assign_with_duals(
        log_probs.view(-1, 8), [500_000], [[200_000, 0, 100_000, 50_000, 50_000, 50_000, 49_999, 1]]
    )
    assert answer.gap.abs().max() < 1e-3  # of a cost of some 1e5
    plan = entropic_plan(
        log_probs.view(-1, 8), [500_000], [[0.3, 0.0, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1]], reg=0.5
    )
    assert plan.error.max() <= 1e-6


@pytest.mark.parametrize("solver", ["exact", "entropic"])
def test_working_memory_is_below_half_of_the_input(solver: str):
    log_probs = torch.randn(500_000, 10)
    sizes = torch.full((5_000,), 100)
    counts = torch.full((5_000, 10), 10)
    if solver == "exact":
        run = lambda: assign(log_probs, sizes, counts)  # noqa: E731
    else:
        run = lambda: entropic_plan(log_probs, sizes, counts / 100, reg=1.0)  # noqa: E731
    run()
    tracemalloc.start()
    result = run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    output = result.mass.nbytes if isinstance(result, Plan) else result.nbytes
    assert peak - output <= 0.5 * log_probs.nbytes


@pytest.mark.parametrize("reg", [10.0, 1.0, 0.1, 0.01, 0.001])
@pytest.mark.parametrize("precision", [math.inf, 1.0])
def test_soft_labels_sum_to_one_and_the_error_is_the_one_reported(reg: float, precision: float):
    log_probs, sizes, proportions = problem(RAGGED, 5)
    plan = entropic_plan(log_probs, sizes, proportions, reg=reg, precision=precision)
    torch.testing.assert_close(plan.mass.sum(1), torch.ones(len(log_probs), dtype=torch.float64))
    assert plan.error.max() <= 1e-6
    if math.isinf(precision):
        means = torch.stack([part.mean(0) for part in plan.mass.split(sizes.tolist())])
        torch.testing.assert_close((means - proportions).abs().amax(1), plan.error, rtol=0, atol=1e-12)


@pytest.mark.parametrize("reg", [1.0, 0.1, 0.01])
def test_thirty_iterations_are_enough(reg: float):
    for sizes, k in (([16] * 60, 10), ([128] * 20, 10), ([128] * 4, 60)):
        log_probs, bag_sizes, proportions = problem(sizes, k)
        shares = round_to_counts(proportions, bag_sizes) / bag_sizes[:, None]
        plan = entropic_plan(log_probs, bag_sizes, shares, reg=reg)
        assert plan.error.max() <= 1e-6
        assert plan.iterations <= 30


def test_after_too_few_iterations_the_error_is_large():
    log_probs, sizes, proportions = problem(RAGGED, 5)
    plan = entropic_plan(log_probs, sizes, proportions, reg=0.1, max_iterations=1)
    assert plan.iterations == 1
    assert plan.error.max() > 1e-6


def test_a_bag_too_large_to_be_held_gets_the_same_plan(monkeypatch: pytest.MonkeyPatch):
    log_probs, sizes, proportions = problem([300, 20], 5)
    whole = entropic_plan(log_probs, sizes, proportions, reg=0.05)
    monkeypatch.setattr(newton, "HELD", 64)
    in_blocks = entropic_plan(log_probs, sizes, proportions, reg=0.05)
    torch.testing.assert_close(in_blocks.mass, whole.mass, rtol=0, atol=1e-5)


@pytest.mark.parametrize("precision", [math.inf, 0.5])
@pytest.mark.parametrize("reg", [1.0, 0.05])
def test_the_batched_solver_agrees_with_the_compiled_one(reg: float, precision: float):
    log_probs, sizes, proportions = problem(RAGGED, 5)
    log_probs[3, 1] = -math.inf
    proportions[3, 2] = 0
    proportions /= proportions.sum(1, keepdim=True)
    plan = entropic_plan(log_probs, sizes, proportions, reg=reg, precision=precision, tol=1e-9)
    mass, error, *_ = solve_on_device(log_probs, sizes, proportions, reg, precision, 1e-9, 200)
    assert error.max() <= 1e-9
    torch.testing.assert_close(mass, plan.mass, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["RANGE", "LOOSE", "RIDGE", "LONGEST"])
def test_the_batched_solver_has_the_constants_of_the_compiled_one(name: str):
    assert getattr(batched, name) == getattr(newton, name)


def test_the_batched_solver_works_in_full_precision_under_autocast():
    log_probs, sizes, proportions = problem(RAGGED, 5)
    with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
        _, error, *_ = solve_on_device(log_probs.float(), sizes, proportions, 0.1, math.inf, 1e-6, 200)
    assert error.max() <= 1e-6


# --- independent solvers: scipy's assignment for exact labels, plain Sinkhorn for soft ones

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
        with pytest.raises(DataError) as error:
            assign_with_duals(scores, sizes, counts)
        assert error.value.bag == wanted.index(None)
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
    log_probs: Tensor, share: Tensor, reg: float, precision: float, iterations: int = 20_000
) -> Tensor:
    """The plan of one bag by alternating scaling in the log domain."""
    damp = 1.0 if math.isinf(precision) else precision / (precision + reg)
    kernel, g = log_probs / reg, torch.zeros_like(share)
    for _ in range(iterations):
        f = -torch.logsumexp(kernel + g, 1, keepdim=True)
        reach = torch.logsumexp(kernel + f, 0) - math.log(len(kernel))
        following = damp * (share.log() - reach)
        if (following - g)[share > 0].abs().max() < 1e-12:
            break
        g = following
    return (kernel + g).softmax(1)


@pytest.mark.parametrize("precision", [math.inf, 2.0, 0.1])
@pytest.mark.parametrize("reg", [10.0, 1.0, 0.2])
def test_soft_labels_are_those_of_plain_sinkhorn(reg: float, precision: float):
    generator = torch.Generator().manual_seed(0)
    for n, k in ((5, 3), (30, 6), (12, 12)):
        log_probs = torch.randn(n, k, generator=generator, dtype=torch.float64).log_softmax(1)
        share = torch.rand(k, generator=generator, dtype=torch.float64)
        share[0] = 0
        share /= share.sum()
        plan = entropic_plan(log_probs, [n], share[None], reg=reg, precision=precision, tol=1e-11)
        torch.testing.assert_close(
            plan.mass, plain_sinkhorn(log_probs, share, reg, precision), rtol=0, atol=1e-7
        )


# --- the paper's statements


def test_strong_regularization_gives_the_product_of_the_marginals():
    log_probs, sizes, proportions = problem(RAGGED, 5)
    mass = entropic_plan(log_probs, sizes, proportions, reg=1e6).mass
    torch.testing.assert_close(mass, proportions.repeat_interleave(sizes, 0), rtol=0, atol=1e-4)


def test_weak_regularization_tends_to_the_exact_cost():
    log_probs, sizes, proportions = problem([24], 5)
    counts = round_to_counts(proportions, sizes)
    exact = torch.nn.functional.one_hot(assign(log_probs, sizes, counts), 5)
    gaps = []
    for reg in (1.0, 0.1, 0.01, 0.001):
        plan = entropic_plan(log_probs, sizes, counts / sizes[:, None], reg=reg, tol=1e-9)
        gaps.append(cost(plan.mass, log_probs) - cost(exact, log_probs))
        assert -1e-7 <= gaps[-1] <= reg * (math.log(24) + math.log(5))  # entropy of any plan is below that
    assert all(later <= earlier + 1e-7 for earlier, later in zip(gaps, gaps[1:], strict=False))
    assert gaps[0] > 0.01 > 1e-3 > gaps[-1]


def test_on_ties_weak_regularization_tends_to_the_optimal_plan_of_greatest_entropy():
    log_probs = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, -5.0], [-5.0, 0.0]], dtype=torch.float64)
    mass = entropic_plan(log_probs, [4], [[0.5, 0.5]], reg=0.01).mass
    # The last two have one optimal class each; the first two may split anyhow, and halves have most entropy.
    greatest = torch.tensor([[0.5, 0.5], [0.5, 0.5], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(mass, greatest, rtol=0, atol=1e-6)


def test_the_entropic_plan_is_unique_whatever_the_start():
    log_probs, sizes, proportions = problem(RAGGED, 5)
    plan = entropic_plan(log_probs, sizes, proportions, reg=0.2, tol=1e-10)
    for seed in range(4):  # a constant a class is a start from other potentials
        shift = 3 * torch.randn(5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        other = entropic_plan(log_probs + shift, sizes, proportions, reg=0.2, tol=1e-10)
        torch.testing.assert_close(other.mass, plan.mass, rtol=0, atol=1e-7)


@pytest.mark.parametrize("reg", [100.0, 1.0, 0.1, 0.01])
def test_entropy_never_exceeds_the_sum_of_the_marginal_entropies(reg: float):
    log_probs, sizes, proportions = problem([30], 5)
    coupling = entropic_plan(log_probs, sizes, proportions, reg=reg).mass / 30
    assert entropy(coupling) <= math.log(30) + entropy(proportions) + 1e-6


def test_the_objective_of_equation_four_is_cross_entropy_plus_the_stated_constant():
    log_probs, sizes, proportions = problem(RAGGED, 5)
    labels = entropic_plan(log_probs, sizes, proportions, reg=0.3).mass
    size = sizes.repeat_interleave(sizes)[:, None]
    coupling, probabilities = labels / size, log_probs.exp() / size
    objective = -(coupling * probabilities.log()).sum()
    bag_cross_entropy = -(labels * log_probs / size).sum()
    torch.testing.assert_close(objective, bag_cross_entropy + sizes.double().log().sum())


def test_infinite_precision_is_the_constraint_and_none_is_the_prediction():
    log_probs, sizes, proportions = problem(RAGGED, 5)
    hard = entropic_plan(log_probs, sizes, proportions, reg=1.0).mass
    torch.testing.assert_close(
        entropic_plan(log_probs, sizes, proportions, reg=1.0, precision=1e6).mass, hard, rtol=0, atol=1e-4
    )
    free = entropic_plan(log_probs, sizes, proportions, reg=1.0, precision=1e-6).mass
    torch.testing.assert_close(free, log_probs.exp(), rtol=0, atol=1e-4)


# --- whole counts


def test_counts_sum_to_the_sizes_and_are_within_one_of_the_quotas():
    _, sizes, proportions = problem(RAGGED * 20, 7)
    counts = round_to_counts(proportions, sizes)
    assert torch.equal(counts.sum(1), sizes)
    assert (counts - proportions * sizes[:, None]).abs().max() < 1


def test_counts_give_whole_quotas_back_in_either_precision():
    counts = torch.randint(0, 50, (200, 10), generator=torch.Generator().manual_seed(0))
    sizes = counts.sum(1)
    for kind in (torch.float32, torch.float64):
        assert torch.equal(round_to_counts(counts.to(kind) / sizes[:, None].to(kind), sizes), counts)


def test_counts_give_ties_to_the_lower_class():
    assert round_to_counts([[0.25, 0.25, 0.5]], [2]).tolist() == [[1, 0, 1]]
    assert round_to_counts([[1 / 3, 1 / 3, 1 / 3]], [10]).tolist() == [[4, 3, 3]]
    assert round_to_counts(torch.full((1, 3), 1 / 3), [11]).tolist() == [[4, 4, 3]]


@given(st.lists(st.integers(0, 12), min_size=2, max_size=5).filter(any), st.integers(1, 40))
@example([7, 5], 6)  # 3.5 and 2.5, which float64 rounds to two sides
def test_counts_are_those_of_fractions(parts, size):
    quotas = [Fraction(part * size, sum(parts)) for part in parts]
    counts = [math.floor(quota) for quota in quotas]
    order = sorted(range(len(parts)), key=lambda j: (counts[j] - quotas[j], j))
    for j in order[: size - sum(counts)]:
        counts[j] += 1
    shares = [[part / sum(parts) for part in parts]]
    assert round_to_counts(shares, [size]).tolist() == [counts]
    assert round_to_counts(torch.tensor(shares), [size]).tolist() == [counts]


# --- errors

TWO = torch.zeros(4, 2)
INF = math.inf


@pytest.mark.parametrize(
    ("arguments", "bag"),
    [
        ((TWO, [2, 2], [[1, 1], [2, 1]]), 1),
        ((TWO, [2, 2], [[1, 1], [3, -1]]), 1),
        ((TWO, [2, 2], [[1, 1], [1.5, 0.5]]), 1),
        ((TWO, [2, 1], [[1, 1], [1, 0]]), None),
        ((TWO, [4, 0], [[2, 2], [0, 0]]), 1),
        ((TWO, [4.0], [[2, 2]]), None),
        ((TWO, [4], [[2, 2, 0]]), None),
        ((TWO[0], [2], [[1, 1]]), None),
        (([[0, 0], [0, 0], [0, math.nan]], [2, 1], [[1, 1], [1, 0]]), 1),
        (([[0, 0], [0, 0], [0, INF]], [2, 1], [[1, 1], [1, 0]]), 1),
        (([[0, 0], [0, 0], [0, -INF]], [2, 1], [[1, 1], [0, 1]]), 1),
        (([[0, 0], [0, -INF], [0, -INF]], [1, 2], [[1, 0], [1, 1]]), 1),
    ],
)
def test_what_cannot_be_assigned_is_an_error_that_names_the_bag(arguments: tuple, bag: int | None):
    with pytest.raises(DataError) as error:
        assign(*arguments)
    assert error.value.bag == bag


@pytest.mark.parametrize(
    ("proportions", "bag"),
    [
        ([[0.5, 0.5], [0.5, 0.48]], 1),
        ([[0.5, 0.5], [1.5, -0.5]], 1),
        ([[0.5, 0.5], [math.nan, 0.5]], 1),
        ([[0.5, 0.5]], None),
    ],
)
def test_what_are_no_proportions_is_an_error_that_names_the_bag(proportions: list, bag: int | None):
    with pytest.raises(DataError) as error:
        entropic_plan(TWO, [2, 2], proportions, reg=1.0)
    assert error.value.bag == bag


@pytest.mark.parametrize(
    "settings",
    [
        {"reg": 0.0},
        {"reg": math.nan},
        {"reg": INF},
        {"reg": 1.0, "tol": 0.0},
        {"reg": 1.0, "max_iterations": 0},
        {"reg": 1.0, "precision": 0.0},
        {"reg": 1.0, "precision": [1.0, -1.0]},
        {"reg": 1.0, "precision": [1.0] * 3},
    ],
)
def test_settings_without_meaning_are_errors(settings: dict):
    with pytest.raises((SettingsError, DataError)):
        entropic_plan(TWO, [2, 2], [[0.5, 0.5]] * 2, **settings)


@pytest.mark.parametrize("solve", [solve_entropic, solve_on_device])
@pytest.mark.parametrize("value", [math.nan, -INF])
def test_soft_labels_need_usable_scores_too(solve: Callable, value: float):
    log_probs = TWO.clone()
    log_probs[2, 1] = value
    with pytest.raises(DataError) as error:
        solve(log_probs, [2, 2], [[0.5, 0.5], [0.0, 1.0]], 1.0, INF, 1e-6, 10)
    assert error.value.bag == 1


def test_a_row_that_can_be_of_no_class_is_found_however_large_its_bag_is():
    n = 1 << 17  # above what is held at once
    log_probs = torch.full((n, 2), math.log(0.5))
    log_probs[-1] = torch.tensor([0.0, -math.inf])
    with pytest.raises(DataError, match=f"row {n - 1} ") as error:
        entropic_plan(log_probs, [n], [[0.0, 1.0]], reg=1.0)
    assert error.value.bag == 0
    plan = entropic_plan(log_probs, [n], [[0.5, 0.5]], reg=1.0)
    assert float(plan.error) < 1e-6
    assert plan.mass[-1].tolist() == [1, 0]


def test_a_residual_that_is_no_number_is_not_hidden():
    share, mass = np.array([0.5, 0.5]), np.array([0.4, math.nan])
    for turn in (slice(None), slice(None, None, -1)):
        assert math.isnan(residual.py_func(2, share, np.zeros(2), 0.0, mass[turn], np.empty(2)))


def test_a_first_call_warns_that_it_compiles_and_later_ones_do_not(tmp_path):
    kernel = SimpleNamespace(overloads={}, stats=SimpleNamespace(cache_path=tmp_path), py_func=solve_entropic)
    with pytest.warns(ApportionWarning, match="compiling the exact transport solver .* once"):
        announce_compilation(kernel, "exact", seconds=15)
    (tmp_path / "solvers.solve_bags-1.py311.nbi").touch()  # as numba names what it keeps
    announce_compilation(kernel, "exact", seconds=15)


@pytest.mark.parametrize("name", ["exact", "newton"])
def test_what_numba_keeps_is_found_by_later_processes(name, recwarn):
    module = importlib.import_module(f"apportion.transport._{name}")
    log_probs, sizes, proportions = problem(RAGGED, 3)
    assign(log_probs, sizes, round_to_counts(proportions, sizes))
    entropic_plan(log_probs, sizes, proportions, reg=1.0)
    later = SimpleNamespace(overloads={}, stats=module.solve_bags.stats, py_func=module.solve_bags.py_func)
    recwarn.clear()
    announce_compilation(later, name, seconds=15)
    assert not recwarn.list


def test_where_no_cache_folder_can_be_written_solvers_are_compiled_without_one(monkeypatch):
    def following(x):
        return x + 1

    assert jit_kept(following).stats.cache_path is not None
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])  # as in a read-only container
    kernel = jit_kept(following)
    with pytest.warns(ApportionWarning, match="in every process, unless NUMBA_CACHE_DIR"):
        announce_compilation(kernel, "exact", seconds=15)
    assert kernel(2) == 3


# --- whole counts of huge bags, and a precision per bag


@pytest.mark.parametrize("k", [2, 3, 20, 100])
@pytest.mark.parametrize("size", [10**6, 3 * 10**6, 10**7])
def test_counts_of_huge_bags_sum_to_their_sizes_from_float32_proportions(k, size):
    shares = torch.rand(50, k, generator=torch.Generator().manual_seed(k)) + 0.01
    shares = torch.cat([shares, torch.ones(1, k)])
    counts = round_to_counts(shares / shares.sum(1, keepdim=True), torch.full((51,), size))
    assert (counts.sum(1) == size).all()
    assert (counts >= 0).all()


@pytest.mark.parametrize("on_device", [False, True])
def test_a_precision_per_bag_is_that_of_the_bag_alone(on_device):
    log_probs = torch.randn(60, 4, generator=stream(3), dtype=torch.float64).log_softmax(1)
    sizes, precision = torch.tensor([10, 30, 20]), torch.tensor([0.3, math.inf, 7.0])
    shares = torch.rand(3, 4, generator=stream(4), dtype=torch.float64)
    shares = shares / shares.sum(1, keepdim=True)
    solve = solve_on_device if on_device else solve_entropic
    mass, errors, *_ = solve(log_probs, sizes, shares, 0.5, precision, 1e-9, 200)
    assert float(errors.max()) < 1e-9
    for i, (part, own) in enumerate(
        zip(log_probs.split(sizes.tolist()), mass.split(sizes.tolist()), strict=True)
    ):
        alone = entropic_plan(
            part, sizes[i : i + 1], shares[i : i + 1], reg=0.5, precision=float(precision[i]), tol=1e-9
        )
        torch.testing.assert_close(own, alone.mass, atol=1e-7, rtol=0)


# --- weighted rows


def weighted_problem(k: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Log-probabilities, sizes, masses and weights of 30 bags, one of a single class."""
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 25, 30)
    scores = np.log(random.dirichlet(np.full(k, 0.5), sizes.sum()) + 1e-12)
    weight = random.gamma(1.0, 1.0, sizes.sum()) + 0.05
    total = np.add.reduceat(weight, sizes.cumsum() - sizes)
    mass = total[:, None] * random.dirichlet(np.ones(k), 30)
    mass[3] = total[3] * np.eye(k)[1]
    return scores, sizes, mass, weight


@pytest.mark.parametrize("k", [2, 5])
@pytest.mark.parametrize("few", [1000, 0], ids=["cold", "warm"])
def test_weighted_labels_are_optimal_have_the_masses_and_split_few_rows(monkeypatch, k, few):
    monkeypatch.setattr("apportion.transport.solvers.FEW_ROWS", few)
    scores, sizes, mass, weight = weighted_problem(k)
    labels = assign_weighted(scores, sizes, mass, weight).numpy()
    np.testing.assert_allclose(labels.sum(1), 1)
    ends = sizes.cumsum()
    for own, w, s, m in zip(
        np.split(labels, ends), np.split(weight, ends), np.split(scores, ends), mass, strict=False
    ):
        n = len(w)
        np.testing.assert_allclose(w @ own, m, atol=1e-7 * w.sum())
        assert ((own > 1e-9).sum(1) > 1).sum() <= k - 1
        margins = np.vstack([np.kron(np.eye(n), np.ones(k)), np.kron(np.ones(n), np.eye(k))])
        best = linprog(-s.ravel(), A_eq=margins, b_eq=np.r_[w, m])
        assert (w[:, None] * own * s).sum() == pytest.approx(-best.fun, abs=1e-6)


@pytest.mark.parametrize("k", [2, 5])
def test_prices_prove_weighted_labels_optimal(k):
    scores, sizes, mass, weight = weighted_problem(k)
    labels, prices = assign_weighted_with_duals(scores, sizes, mass, weight)
    assert torch.equal(labels, assign_weighted(scores, sizes, mass, weight))
    assert (prices.isinf().numpy() == (mass == 0)).all()
    value = torch.from_numpy(scores) - prices.repeat_interleave(torch.from_numpy(sizes), 0)
    best = value.amax(1, keepdim=True)
    assert bool(((value - best).abs() < 1e-9)[labels > 1e-9].all())  # complementary slackness


def test_weights_of_one_are_plain_assignment():
    log_probs, sizes, _ = problem(RAGGED, 4)
    counts = round_to_counts(problem(RAGGED, 4)[2], sizes)
    labels = assign_weighted(log_probs, sizes, counts, torch.ones(len(log_probs)))
    assert labels.argmax(1).tolist() == assign(log_probs, sizes, counts).tolist()
    assert labels.max(1).values.min() == 1


@pytest.mark.parametrize("precision", [math.inf, 2.0])
def test_a_weighted_row_of_an_entropic_plan_is_several_equal_rows(precision):
    log_probs, sizes, proportions = problem(RAGGED, 4)
    weight = torch.randint(1, 5, (len(log_probs),), generator=stream(0))
    plan = entropic_plan(log_probs, sizes, proportions, reg=0.5, precision=precision, weight=weight)
    totals = torch.stack([part.sum() for part in weight.split(sizes.tolist())])
    repeated = entropic_plan(
        log_probs.repeat_interleave(weight, 0), totals, proportions, reg=0.5, precision=precision
    )
    torch.testing.assert_close(plan.mass.repeat_interleave(weight, 0), repeated.mass, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("mass", "weight"),
    [
        ([[1.0, 2.0]], [1.0, 0.0]),
        ([[1.0, 2.0]], [1.0, math.nan]),
        ([[1.0, 2.0]], [1.0, 1.0]),
        ([[4.0, -1.0]], [1.0, 2.0]),
        ([[1.0, 2.0]], [1.0, 1.0, 1.0]),
        ([[3.0]], [1.0, 2.0]),
    ],
)
def test_masses_and_weights_that_do_not_fit_are_errors(mass, weight):
    with pytest.raises(DataError):
        assign_weighted(np.zeros((2, 2)), [2], mass, weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_classes_that_a_bag_does_not_have_change_nothing_and_take_no_memory(monkeypatch, dtype):
    generator = torch.Generator().manual_seed(0)
    sizes = torch.tensor([3, 1, 5, 4])
    scores = torch.randn(13, 40, generator=generator, dtype=dtype).log_softmax(1)
    labels = torch.randint(40, (13,), generator=generator)
    bag = torch.repeat_interleave(torch.arange(4), sizes)
    counts = torch.zeros(4, 40, dtype=torch.int64).index_put_((bag, labels), torch.tensor(1), accumulate=True)
    found = []
    for limit in (1024, 2):
        monkeypatch.setattr("apportion.transport.solvers.MANY_CLASSES", limit)
        exact = assign_with_duals(scores, sizes, counts)
        soft = entropic_plan(scores, sizes, counts / sizes[:, None], reg=1.0)
        again = assign_with_duals(scores, sizes, counts, prices=exact.prices)
        assert torch.equal(again.classes, exact.classes)
        found.append((exact.classes, exact.prices, exact.gap, soft.mass, assign(scores, sizes, counts)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


def test_a_hundred_thousand_classes_need_no_matrix_of_pairs():
    """The matrix of all pairs of classes would have 75 GiB."""
    k, sizes = 100_000, torch.tensor([6, 6])
    scores = torch.randn(12, k, generator=torch.Generator().manual_seed(0))
    counts = torch.zeros(2, k, dtype=torch.int64)
    counts[0, [5, 70_000]] = 3
    counts[1, [0, 99_999]] = torch.tensor([1, 5])
    classes = assign(scores, sizes, counts)
    assert torch.bincount(classes[:6], minlength=k).equal(counts[0])
    assert float(entropic_plan(scores, sizes, counts / 6, reg=1.0).error.max()) < 1e-6

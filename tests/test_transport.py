"""Transport: laws and limits of exact and entropic labels, the paper's statements on them, and errors."""

import logging
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
from torch import Tensor

from apportion._random import stream
from apportion.transport import Plan, assign, assign_with_duals, entropic_plan, round_to_counts
from apportion.transport._newton import residual
from apportion.transport._solve import announce, bounds, solve_entropic, solve_on_device


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


def test_labels_meet_the_counts_of_every_bag():
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


def test_prices_of_another_epoch_are_a_start_and_change_no_label():
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
        edges = bounds(starts, 8)
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


@pytest.mark.parametrize("solver", ["exact", "entropic_plan"])
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
@pytest.mark.parametrize("relax", [math.inf, 1.0])
def test_soft_labels_sum_to_one_and_the_error_is_the_one_reported(reg: float, relax: float):
    log_probs, sizes, proportions = problem(RAGGED, 5)
    plan = entropic_plan(log_probs, sizes, proportions, reg=reg, relax=relax)
    torch.testing.assert_close(plan.mass.sum(1), torch.ones(len(log_probs), dtype=torch.float64))
    assert plan.error.max() <= 1e-6
    if math.isinf(relax):
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


def test_too_few_iterations_are_told_by_the_error():
    log_probs, sizes, proportions = problem(RAGGED, 5)
    plan = entropic_plan(log_probs, sizes, proportions, reg=0.1, max_iterations=1)
    assert plan.iterations == 1
    assert plan.error.max() > 1e-6


def test_a_bag_too_large_to_be_held_gets_the_same_plan(monkeypatch: pytest.MonkeyPatch):
    from apportion.transport import _newton as newton

    log_probs, sizes, proportions = problem([300, 20], 5)
    whole = entropic_plan(log_probs, sizes, proportions, reg=0.05)
    monkeypatch.setattr(newton, "HELD", 64)
    in_blocks = entropic_plan(log_probs, sizes, proportions, reg=0.05)
    torch.testing.assert_close(in_blocks.mass, whole.mass, rtol=0, atol=1e-5)


@pytest.mark.parametrize("relax", [math.inf, 0.5])
@pytest.mark.parametrize("reg", [1.0, 0.05])
def test_the_batched_solver_agrees_with_the_compiled_one(reg: float, relax: float):
    log_probs, sizes, proportions = problem(RAGGED, 5)
    log_probs[3, 1] = -math.inf
    proportions[3, 2] = 0
    proportions /= proportions.sum(1, keepdim=True)
    plan = entropic_plan(log_probs, sizes, proportions, reg=reg, relax=relax, tol=1e-9)
    mass, error, _ = solve_on_device(log_probs, sizes, proportions, reg, relax, 1e-9, 200)
    assert error.max() <= 1e-9
    torch.testing.assert_close(mass, plan.mass, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["RANGE", "LOOSE", "RIDGE", "LONGEST"])
def test_the_batched_solver_has_the_constants_of_the_compiled_one(name: str):
    from apportion.transport import _batched as batched
    from apportion.transport import _newton as newton

    assert getattr(batched, name) == getattr(newton, name)


def test_the_batched_solver_works_in_full_precision_under_autocast():
    log_probs, sizes, proportions = problem(RAGGED, 5)
    with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
        _, error, _ = solve_on_device(log_probs.float(), sizes, proportions, 0.1, math.inf, 1e-6, 200)
    assert error.max() <= 1e-6


# The paper's statements on transport.


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


def test_relaxation_to_infinity_is_the_constraint_and_to_zero_is_the_prediction():
    log_probs, sizes, proportions = problem(RAGGED, 5)
    hard = entropic_plan(log_probs, sizes, proportions, reg=1.0).mass
    torch.testing.assert_close(
        entropic_plan(log_probs, sizes, proportions, reg=1.0, relax=1e6).mass, hard, rtol=0, atol=1e-4
    )
    free = entropic_plan(log_probs, sizes, proportions, reg=1.0, relax=1e-6).mass
    torch.testing.assert_close(free, log_probs.exp(), rtol=0, atol=1e-4)


# Whole counts.


def test_whole_counts_sum_to_the_sizes_and_are_within_one_of_the_quotas():
    _, sizes, proportions = problem(RAGGED * 20, 7)
    counts = round_to_counts(proportions, sizes)
    assert torch.equal(counts.sum(1), sizes)
    assert (counts - proportions * sizes[:, None]).abs().max() < 1


def test_whole_counts_give_whole_quotas_back_in_either_precision():
    counts = torch.randint(0, 50, (200, 10), generator=torch.Generator().manual_seed(0))
    sizes = counts.sum(1)
    for kind in (torch.float32, torch.float64):
        assert torch.equal(round_to_counts(counts.to(kind) / sizes[:, None].to(kind), sizes), counts)


def test_whole_counts_give_ties_to_the_lower_class():
    assert round_to_counts([[0.25, 0.25, 0.5]], [2]).tolist() == [[1, 0, 1]]
    assert round_to_counts([[1 / 3, 1 / 3, 1 / 3]], [10]).tolist() == [[4, 3, 3]]
    assert round_to_counts(torch.full((1, 3), 1 / 3), [11]).tolist() == [[4, 4, 3]]


@given(st.lists(st.integers(0, 12), min_size=2, max_size=5).filter(any), st.integers(1, 40))
@example([7, 5], 6)  # 3.5 and 2.5, which float64 rounds to two sides
def test_whole_counts_are_those_of_fractions(parts, size):
    quotas = [Fraction(part * size, sum(parts)) for part in parts]
    counts = [math.floor(quota) for quota in quotas]
    order = sorted(range(len(parts)), key=lambda j: (counts[j] - quotas[j], j))
    for j in order[: size - sum(counts)]:
        counts[j] += 1
    shares = [[part / sum(parts) for part in parts]]
    assert round_to_counts(shares, [size]).tolist() == [counts]
    assert round_to_counts(torch.tensor(shares), [size]).tolist() == [counts]


# Errors name the bag, the value and the remedy.

TWO = torch.zeros(4, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((TWO, [2, 2], [[1, 1], [2, 1]]), "bag 1 has counts summing to 3 but size 2"),
        ((TWO, [2, 2], [[1, 1], [3, -1]]), r"bag 1 has a negative count in \[ 3 -1\]"),
        ((TWO, [2, 2], [[1, 1], [1.5, 0.5]]), "bag 1 has counts .* not whole; see round_to_counts"),
        ((TWO, [2, 1], [[1, 1], [1, 0]]), "sizes sum to 3 but log_probs has 4 rows"),
        ((TWO, [4, 0], [[2, 2], [0, 0]]), "bag 1 has size 0"),
        ((TWO, [4.0], [[2, 2]]), "sizes must be"),
        ((TWO, [4], [[2, 2, 0]]), r"counts must have shape \(1, 2\)"),
        ((TWO[0], [2], [[1, 1]]), "log_probs must have shape"),
        (
            ([[0, 0], [0, 0], [0, math.nan]], [2, 1], [[1, 1], [1, 0]]),
            "bag 1 has log_probs of nan in row 2, class 1",
        ),
        (
            ([[0, 0], [0, 0], [0, math.inf]], [2, 1], [[1, 1], [1, 0]]),
            "bag 1 has log_probs of inf in row 2, class 1",
        ),
        (([[0, 0], [0, 0], [0, -math.inf]], [2, 1], [[1, 1], [0, 1]]), "bag 1 cannot meet .* row 2 has -inf"),
        (([[0, 0], [0, -math.inf], [0, -math.inf]], [1, 2], [[1, 0], [1, 1]]), "bag 1 cannot meet .* clamp"),
    ],
)
def test_what_cannot_be_assigned_is_an_error_that_says_why(arguments: tuple, message: str):
    with pytest.raises(ValueError, match=message):
        assign(*arguments)


@pytest.mark.parametrize(
    ("proportions", "settings", "message"),
    [
        ([[0.5, 0.5], [0.5, 0.48]], {"reg": 1.0}, "bag 1 has proportions summing to 0.98, not 1; divide"),
        ([[0.5, 0.5], [1.5, -0.5]], {"reg": 1.0}, "bag 1 has proportions .* 0 or more"),
        ([[0.5, 0.5], [math.nan, 0.5]], {"reg": 1.0}, "bag 1 has proportions .* finite"),
        ([[0.5, 0.5]], {"reg": 1.0}, r"proportions must have shape \(2, 2\)"),
        ([[0.5, 0.5]] * 2, {"reg": 0.0}, "reg is 0.0; it must be above zero"),
        ([[0.5, 0.5]] * 2, {"reg": math.nan}, "reg is nan"),
        ([[0.5, 0.5]] * 2, {"reg": 1.0, "relax": 0.0}, "relax is 0.0"),
        ([[0.5, 0.5]] * 2, {"reg": math.inf}, "reg is infinite"),
    ],
)
def test_what_cannot_be_regularized_is_an_error_that_says_why(
    proportions: list, settings: dict, message: str
):
    with pytest.raises(ValueError, match=message):
        entropic_plan(TWO, [2, 2], proportions, **settings)


@pytest.mark.parametrize("solve", [solve_entropic, solve_on_device])
@pytest.mark.parametrize(("value", "message"), [(math.nan, "row 2, class 1"), (-math.inf, "row 2 has -inf")])
def test_soft_labels_need_usable_scores_too(solve: Callable, value: float, message: str):
    log_probs = TWO.clone()
    log_probs[2, 1] = value
    shares = [[0.5, 0.5], [0.0, 1.0]]
    with pytest.raises(ValueError, match=f"bag 1 .*{message}"):
        solve(log_probs, [2, 2], shares, 1.0, math.inf, 1e-6, 10)


def test_a_row_that_can_be_of_no_class_is_found_however_large_its_bag_is():
    n = 1 << 17  # above what is held at once
    log_probs = torch.full((n, 2), math.log(0.5))
    log_probs[-1] = torch.tensor([0.0, -math.inf])
    with pytest.raises(ValueError, match=rf"bag 0 .*row {n - 1} has -inf"):
        entropic_plan(log_probs, [n], [[0.0, 1.0]], reg=1.0)
    plan = entropic_plan(log_probs, [n], [[0.5, 0.5]], reg=1.0)
    assert float(plan.error) < 1e-6
    assert plan.mass[-1].tolist() == [1, 0]


def test_a_residual_that_is_no_number_is_not_hidden():
    share, mass = np.array([0.5, 0.5]), np.array([0.4, math.nan])
    for turn in (slice(None), slice(None, None, -1)):
        assert math.isnan(residual.py_func(2, share, np.zeros(2), 0.0, mass[turn], np.empty(2)))


def test_a_first_call_says_that_it_compiles_and_later_ones_do_not(tmp_path, caplog: pytest.LogCaptureFixture):
    kernel = SimpleNamespace(signatures=[], stats=SimpleNamespace(cache_path=tmp_path))
    with caplog.at_level(logging.WARNING, logger="apportion"):
        announce(kernel, "exact", seconds=15)
        assert "compiling the exact transport solver" in caplog.text
        caplog.clear()
        (tmp_path / "exact.solve_bags-1.py311.nbi").touch()
        announce(kernel, "exact", seconds=15)
        assert not caplog.text


def test_where_no_cache_folder_can_be_written_solvers_are_compiled_without_one(monkeypatch, caplog):
    from numba.core.caching import CacheImpl

    from apportion.transport._exact import jit_kept

    def following(x):
        return x + 1

    assert jit_kept(following).stats.cache_path is not None
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])  # as in a read-only container
    kernel = jit_kept(following)
    with caplog.at_level(logging.WARNING, logger="apportion"):
        announce(kernel, "exact", seconds=15)
    assert "in every process, unless NUMBA_CACHE_DIR names a folder" in caplog.text
    assert kernel(2) == 3


@pytest.mark.parametrize("k", [2, 3, 20, 100])
@pytest.mark.parametrize("size", [10**6, 3 * 10**6, 10**7])
def test_whole_counts_of_huge_bags_sum_to_their_sizes_from_float32_proportions(k, size):
    shares = torch.rand(50, k, generator=torch.Generator().manual_seed(k)) + 0.01
    shares = torch.cat([shares, torch.ones(1, k)])
    counts = round_to_counts(shares / shares.sum(1, keepdim=True), torch.full((51,), size))
    assert (counts.sum(1) == size).all()
    assert (counts >= 0).all()


@pytest.mark.parametrize("on_device", [False, True])
def test_a_weight_of_each_bag_is_that_of_the_bag_alone(on_device):
    log_probs = torch.randn(60, 4, generator=stream(3), dtype=torch.float64).log_softmax(1)
    sizes, relax = torch.tensor([10, 30, 20]), torch.tensor([0.3, math.inf, 7.0])
    shares = torch.rand(3, 4, generator=stream(4), dtype=torch.float64)
    shares = shares / shares.sum(1, keepdim=True)
    solve = solve_on_device if on_device else solve_entropic
    mass, errors, _ = solve(log_probs, sizes, shares, 0.5, relax, 1e-9, 200)
    assert float(errors.max()) < 1e-9
    for i, (part, own) in enumerate(
        zip(log_probs.split(sizes.tolist()), mass.split(sizes.tolist()), strict=True)
    ):
        alone = entropic_plan(
            part, sizes[i : i + 1], shares[i : i + 1], reg=0.5, relax=float(relax[i]), tol=1e-9
        )
        torch.testing.assert_close(own, alone.mass, atol=1e-7, rtol=0)
    with pytest.raises(ValueError, match="relax is -1.0 for bag 1; it must be above zero"):
        entropic_plan(log_probs, sizes, shares, reg=1.0, relax=[1.0, -1.0, 2.0])
    with pytest.raises(ValueError, match=r"shape \(2,\); pass a number, or one for each of 3 bags"):
        entropic_plan(log_probs, sizes, shares, reg=1.0, relax=np.ones(2))

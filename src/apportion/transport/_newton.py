"""Compiled kernel of `entropic_plan`: damped Newton on the k class potentials of each bag.

Given potentials g, every row of the plan has a closed form, softmax(score / reg + g). What remains is a
smooth concave problem in k unknowns,

    maximize  p . g - mean over rows of logsumexp(score / reg + g)          (the dual of eq. 5)

whose gradient is p - s, with s the class masses, and whose Hessian is -(diag(s) - plan' plan / n). A finite
`precision` turns p into p exp(-rho g), rho = reg / precision, in the gradient. A small `reg` is reached in
stages: each has a quarter of the last, and starts from its potentials.

Plans are stored transposed, (classes, rows), so that inner loops run along rows and are vectorized. Bags too
large for that are processed in blocks, whose plan is recomputed from the scores each time. The line search
looks at the gradient alone: the objective is concave along a step, so its slope says whether the maximum was
passed, and no logarithm is needed.
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from apportion.transport._exact import INFEASIBLE, INNER, NOT_A_NUMBER, OK, all_usable, jit, jit_kept

HELD = 1 << 17  # entries of a plan that is stored whole: one megabyte, about the second-level cache
RANGE = 40.0  # mean range of scores / reg in a row up to which Newton's method starts well (measured)
LOOSE = 0.02  # error at which a stage ends, as a fraction of 1/classes (measured)
RIDGE = 1.0  # times the error: regularization of the Hessian, vanishing as the method converges (measured)
LONGEST = 8.0  # largest change of a potential in one step

jit_sums: Any = njit(nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"}, **INNER)


def bit_cast() -> Any:
    """A compiled function: the float64 with the bits of an int64."""

    @intrinsic
    def function(typingctx, bits):
        def codegen(context, builder, signature, args):
            return builder.bitcast(args[0], ir.DoubleType())

        return (types.float64(types.int64), codegen) if bits == types.int64 else None

    return function


float_of_bits = bit_cast()


@jit
def exp_nonpositive(x):
    """exp(x) for x <= 0, accurate to 1e-14; written out so that loops over it are vectorized."""
    x = x if x > -708.0 else -708.0
    whole = np.int64(x * 1.4426950408889634 - 0.5)  # rounds to nearest, since x is not positive
    r = x - whole * 0.6931471803691238 - whole * 1.9082149292705877e-10
    p = 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    return p * float_of_bits((whole + 1023) << 52)


@jit
def gather_scores(scores, row, n, scale, present, w, g, plan, top):
    """scale x score + g of n rows, transposed, and the highest of each row."""
    for i in range(n):
        top[i] = -math.inf
    for t in range(w):
        j, add = present[t], g[t]
        for i in range(n):
            x = scale * scores[row + i, j] + add
            plan[t, i] = x
            top[i] = x if x > top[i] else top[i]


@jit
def compute_plan(scores, row, n, scale, present, w, g, plan, top):
    """The unscaled plan exp(scale x score + g - highest of the row) of n rows, transposed."""
    gather_scores(scores, row, n, scale, present, w, g, plan, top)
    for t in range(w):
        for i in range(n):
            x = plan[t, i] - top[i]
            plan[t, i] = exp_nonpositive(x) if x > -700.0 else 0.0


@jit_sums
def normalize(plan, n, w, times, out, total, mass):
    """out = plan x times with every row summing to one; adds its class sums to mass."""
    for i in range(n):
        total[i] = 0.0
    for t in range(w):
        for i in range(n):
            total[i] += plan[t, i] * times[t]
    for i in range(n):
        total[i] = 1.0 / total[i]
    for t in range(w):
        sum_ = 0.0
        for i in range(n):
            x = plan[t, i] * times[t] * total[i]
            out[t, i] = x
            sum_ += x
        mass[t] += sum_


@jit_sums
def subtract_gram(plan, n, w, hessian):
    """Subtract plan' plan from the lower half of the Hessian, two rows by two, for half the loads."""
    for t in range(0, w, 2):
        t1 = min(t + 1, w - 1)
        for u in range(0, t + 1, 2):
            u1 = min(u + 1, w - 1)
            s00, s01, s10, s11 = 0.0, 0.0, 0.0, 0.0
            for i in range(n):
                s00 += plan[t, i] * plan[u, i]
                s01 += plan[t, i] * plan[u1, i]
                s10 += plan[t1, i] * plan[u, i]
                s11 += plan[t1, i] * plan[u1, i]
            hessian[t, u] -= s00
            if u1 > u:
                hessian[t, u1] -= s01
            if t1 > t:
                hessian[t1, u] -= s10
                hessian[t1, u1] -= s11


@jit_sums
def cholesky(matrix, w, floor):
    """Cholesky factor in place of the lower half; pivots are kept above the floor."""
    for t in range(w):
        for u in range(t):
            sum_ = 0.0
            for v in range(u):
                sum_ += matrix[t, v] * matrix[u, v]
            matrix[t, u] = (matrix[t, u] - sum_) * matrix[u, u]
        sum_ = 0.0
        for v in range(t):
            sum_ += matrix[t, v] * matrix[t, v]
        matrix[t, t] = 1.0 / math.sqrt(max(matrix[t, t] - sum_, floor))  # its inverse, for the division


@jit_sums
def cholesky_solve(matrix, w, x):
    """Solve with the Cholesky factor, in place."""
    for t in range(w):
        sum_ = 0.0
        for u in range(t):
            sum_ += matrix[t, u] * x[u]
        x[t] = (x[t] - sum_) * matrix[t, t]
    for t in range(w - 1, -1, -1):
        x[t] *= matrix[t, t]
        for u in range(t):
            x[u] -= matrix[t, u] * x[t]


@jit
def evaluate(scores, begin, n, scale, present, w, g, times, plan, out, hessian, mass, total):
    """Class masses of the plan at potentials g.

    A stored plan is rescaled by `times`. A large bag is processed in blocks, which also give its Hessian.
    """
    block = plan.shape[1]
    for t in range(w):
        mass[t] = 0.0
    if n <= block:
        normalize(plan, n, w, times, out, total, mass)
    else:
        for t in range(w):
            times[t] = 1.0
            for u in range(t + 1):
                hessian[t, u] = 0.0
        for first in range(0, n, block):
            rows = min(block, n - first)
            compute_plan(scores, begin + first, rows, scale, present, w, g, plan, total)
            normalize(plan, rows, w, times, plan, total, mass)
            subtract_gram(plan, rows, w, hessian)
    for t in range(w):
        mass[t] /= n


@jit
def residual(w, share, g, rho, mass, slope):
    """slope = wanted mass - mass, the gradient; returns its largest absolute entry."""
    worst = 0.0
    for t in range(w):
        wanted = share[t] if rho == 0.0 else share[t] * math.exp(-rho * g[t])
        slope[t] = wanted - mass[t]
        if not (abs(slope[t]) <= worst or math.isnan(worst)):  # a NaN is the worst and stays
            worst = abs(slope[t])
    return worst


@jit
def newton_step(n, w, share, rho, plan, hessian, mass, slope, error, step, held):
    """The regularized Newton step, no potential moving further than LONGEST."""
    if held:
        for t in range(w):
            for u in range(t + 1):
                hessian[t, u] = 0.0
        subtract_gram(plan, n, w, hessian)
    for t in range(w):
        for u in range(t + 1):
            # Balanced potentials are free up to a constant: the last term fixes it without moving the step.
            hessian[t, u] = hessian[t, u] / n + (share[t] * share[u] if rho == 0.0 else 0.0)
        hessian[t, t] += mass[t] * (1.0 + RIDGE * error) + rho * (slope[t] + mass[t])
        step[t] = slope[t]
    cholesky(hessian, w, 1e-14)
    cholesky_solve(hessian, w, step)
    longest = 0.0
    for t in range(w):
        longest = max(longest, abs(step[t]))
    shrink = LONGEST / longest if longest > LONGEST else 1.0
    along = 0.0
    for t in range(w):
        step[t] *= shrink
        along += step[t] * slope[t]
    return along


@jit
def newton_stage(scores, begin, n, scale, present, w, share, rho, tol, most, g, plans, hessian, vectors):
    """Newton's method at one regularization, potentials g in place; (error, iterations, which plan)."""
    mass, slope, step, trial, times, total = vectors
    held, now = n <= plans.shape[2], 0
    if held:
        compute_plan(scores, begin, n, scale, present, w, g, plans[0], total)
    for t in range(w):
        times[t] = 1.0
    evaluate(scores, begin, n, scale, present, w, g, times, plans[0], plans[0], hessian, mass, total)
    error, steps = residual(w, share, g, rho, mass, slope), 0
    while error > tol and steps < most:
        steps += 1
        along = newton_step(n, w, share, rho, plans[now], hessian, mass, slope, error, step, held)
        length = 1.0
        for _ in range(20):
            for t in range(w):
                trial[t] = g[t] + length * step[t]
                times[t] = math.exp(length * step[t])
            evaluate(
                scores,
                begin,
                n,
                scale,
                present,
                w,
                trial,
                times,
                plans[now],
                plans[1 - now],
                hessian,
                mass,
                total,
            )
            error = residual(w, share, trial, rho, mass, slope)
            after = 0.0
            for t in range(w):
                after += step[t] * slope[t]
            if after >= -0.5 * along or error <= tol:
                break
            length *= min(max(along / (along - after), 0.1), 0.5)
        for t in range(w):
            g[t] = trial[t]
        if held:
            now = 1 - now
    return error, steps, now


@jit
def count_stages(scores, begin, n, scale, present, w):
    """How many stages before the last make the range of rows moderate at first; -1 if a row has no possible
    class among those that are present."""
    total = 0.0
    for i in range(begin, begin + n):
        low, high = math.inf, -math.inf
        for t in range(w):
            x = scores[i, present[t]]
            if x > -math.inf:
                low, high = min(low, x), max(high, x)
        if high == -math.inf:
            return -1
        total += high - low
    spread, count = scale * total / n, 0
    while spread > RANGE:
        spread /= 4.0
        count += 1
    return count


@jit
def solve_bag(scores, begin, n, scale, present, w, share, rho, tol, most, g, plans, hessian, vectors):
    """All stages of one bag, potentials in place; (error, iterations, which plan is the last, status)."""
    ahead = count_stages(scores, begin, n, scale, present, w)
    if ahead < 0:
        return math.inf, 0, 0, INFEASIBLE
    error, steps, now = math.inf, 0, 0
    for t in range(w):
        g[t] = 0.0
    while ahead >= 0:
        part = 0.25**ahead
        goal = tol if ahead == 0 else max(LOOSE / w, tol)
        error, taken, now = newton_stage(
            scores,
            begin,
            n,
            scale * part,
            present,
            w,
            share,
            rho / part,
            goal,
            most - steps,
            g,
            plans,
            hessian,
            vectors,
        )
        steps += taken
        if ahead > 0:
            for t in range(w):
                g[t] *= 4.0
        ahead -= 1
    return error, steps, now, OK


@jit
def write_plan(scores, begin, n, scale, present, w, g, plan, held, total, mass, out):
    """Write the plan of a bag into the output, rows by classes; absent classes are zero."""
    block = plan.shape[1]
    for i in range(begin, begin + n):
        for j in range(out.shape[1]):
            out[i, j] = 0.0
    for first in range(0, n, block):
        rows = min(block, n - first)
        if not held:
            compute_plan(scores, begin + first, rows, scale, present, w, g, plan, total)
            for t in range(w):
                mass[t] = 1.0
            normalize(plan, rows, w, mass, plan, total, mass)
        for i in range(rows):
            for t in range(w):
                out[begin + first + i, present[t]] = plan[t, i]


@jit_kept
def solve_bags(scores, starts, proportions, first, last, scale, rho, tol, most, out, errors, memory):
    """Plans and errors of bags first to last; (bag of a failure, status, iterations of the slowest bag)."""
    plans, hessian, vectors, present, share, g = memory
    flat, k, slowest = scores.reshape(scores.size), scores.shape[1], 0
    for bag in range(first, last):
        begin, n, w = starts[bag], starts[bag + 1] - starts[bag], 0
        if not all_usable(flat[begin * k : (begin + n) * k]):
            return bag, NOT_A_NUMBER, slowest
        for j in range(k):
            if proportions[bag, j] > 0.0:
                present[w] = j
                share[w] = proportions[bag, j]
                w += 1
        error, steps, now, status = solve_bag(
            scores, begin, n, scale, present, w, share, rho[bag], tol, most, g, plans, hessian, vectors
        )
        if status != OK:
            return bag, status, slowest
        held = n <= plans.shape[2]
        write_plan(scores, begin, n, scale, present, w, g, plans[now], held, vectors[5], vectors[0], out)
        errors[bag] = error
        slowest = max(slowest, steps)
    return -1, OK, slowest


def allocate(most, k):
    """Working memory for bags of up to `most` rows: two plans of at most HELD entries, and k squared."""
    rows = min(most, max(HELD // k, 64))
    vectors = (*(np.empty(k) for _ in range(5)), np.empty(rows))
    return np.empty((2, k, rows)), np.empty((k, k)), vectors, np.empty(k, np.int64), np.empty(k), np.empty(k)

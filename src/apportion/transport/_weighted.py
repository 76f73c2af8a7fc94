"""Compiled kernel of `assign_weighted`: shortest augmenting paths over the classes of each bag.

A row is a supply of its weight and a class a demand for its mass. Every row starts in the class of its
highest score + price, which is optimal for the masses that the classes then happen to have. Mass is moved
from classes with too much to classes with too little, always along the cheapest path between classes, so that
the labels stay optimal for their own masses. A move ends when a row, a surplus or a deficit is used up, so
few rows are split: an optimal vertex of a transport problem with k classes splits at most k - 1. Good prices,
such as those of an entropic plan, leave few moves.

All of it is in one file, as in `_exact.py`.
"""

import math

import numpy as np

from apportion.transport._exact import INFEASIBLE, NOT_A_NUMBER, OK, jit, jit_kept


@jit
def start_labels(scores, begin, n, weight, price, want, mass, filled):
    """Put every row into its best class among those with a demand; returns whether each has one."""
    k = len(want)
    for c in range(k):
        filled[c] = 0.0
    for i in range(begin, begin + n):
        best, at = -math.inf, -1
        for c in range(k):
            mass[i, c] = 0.0
            if want[c] > 0.0 and scores[i, c] + price[c] > best:
                best, at = scores[i, c] + price[c], c
        if at < 0:
            return False
        mass[i, at] = weight[i]
        filled[at] += weight[i]
    return True


@jit
def fill_edges(a, scores, begin, n, mass, want, edge, row):
    """The least score per unit of mass that moving from class a to each other class costs, and the row."""
    for b in range(len(want)):
        edge[a, b], row[a, b] = math.inf, -1
    for i in range(begin, begin + n):
        if mass[i, a] > 0.0:
            for b in range(len(want)):
                if b != a and want[b] > 0.0 and scores[i, a] - scores[i, b] < edge[a, b]:
                    edge[a, b], row[a, b] = scores[i, a] - scores[i, b], i


@jit
def cheapest_path(edge, want, filled, tiny, far, before):
    """Bellman-Ford from all classes with a surplus; the nearest class with a deficit, or -1."""
    k = len(want)
    for c in range(k):
        far[c] = 0.0 if filled[c] > want[c] + tiny else math.inf
        before[c] = -1
    for _ in range(k):
        changed = False
        for a in range(k):
            for b in range(k):
                through = far[a] + edge[a, b]
                gain = far[b] - through
                if through < math.inf and gain > 1e-12 * (1.0 + abs(through)):
                    far[b], before[b] = through, a
                    changed = True
        if not changed:
            break
    target = -1
    for c in range(k):
        if filled[c] < want[c] - tiny and far[c] < math.inf and (target < 0 or far[c] < far[target]):
            target = c
    return target


@jit
def move_along(target, scores, begin, n, mass, want, filled, edge, row, before):
    """Move as much mass as possible along the path to the target, and update the edges of its classes."""
    amount, b = want[target] - filled[target], target
    while before[b] >= 0:
        a = before[b]
        amount = min(amount, mass[row[a, b], a])
        b = a
    amount, source, b = min(amount, filled[b] - want[b]), b, target
    while before[b] >= 0:
        a = before[b]
        mass[row[a, b], b] += amount
        left = mass[row[a, b], a] - amount
        mass[row[a, b], a] = left if left > 1e-12 * amount else 0.0
        b = a
    filled[source] -= amount
    filled[target] += amount
    b = target
    fill_edges(b, scores, begin, n, mass, want, edge, row)
    while before[b] >= 0:
        b = before[b]
        fill_edges(b, scores, begin, n, mass, want, edge, row)


@jit
def find_prices(edge, want, far, price):
    """Prices that prove labels optimal: moving from class a to b never gains what the price differs by."""
    k = len(want)
    for c in range(k):
        far[c] = 0.0
    for _ in range(k):
        changed = False
        for a in range(k):
            for b in range(k):
                if far[a] + edge[a, b] < far[b] - 1e-12 * (1.0 + abs(far[b])):
                    far[b] = far[a] + edge[a, b]
                    changed = True
        if not changed:
            break
    for c in range(k):
        price[c] = -far[c] if want[c] > 0.0 else math.inf


@jit_kept
def solve_bags(scores, starts, weight, wanted, prices, first, last, mass, duals, memory):
    """Masses (N, k) of the rows of bags first to last, and dual prices (m, k), unless `duals` is empty.

    Returns (bag of a failure, status).
    """
    k = wanted.shape[1]
    edge, row, filled, far, before = memory
    for bag in range(first, last):
        begin, n, want = starts[bag], starts[bag + 1] - starts[bag], wanted[bag]
        total = 0.0
        for i in range(begin, begin + n):
            total += weight[i]
            for c in range(k):
                if not scores[i, c] < math.inf:
                    return bag, NOT_A_NUMBER
        if not start_labels(scores, begin, n, weight, prices[bag], want, mass, filled):
            return bag, INFEASIBLE
        for a in range(k):
            fill_edges(a, scores, begin, n, mass, want, edge, row)
        tiny = 1e-9 * total
        while True:
            over = 0.0
            for c in range(k):
                over = max(over, filled[c] - want[c])
            if over <= tiny:
                break
            target = cheapest_path(edge, want, filled, tiny / k, far, before)
            if target < 0:
                return bag, INFEASIBLE
            move_along(target, scores, begin, n, mass, want, filled, edge, row, before)
        if len(duals):
            find_prices(edge, want, far, duals[bag])
    return -1, OK


def allocate(k):
    """Working memory for k classes."""
    return np.empty((k, k)), np.empty((k, k), np.int64), np.empty(k), np.empty(k), np.empty(k, np.int64)

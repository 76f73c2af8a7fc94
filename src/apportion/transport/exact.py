"""Compiled kernel of `assign`: shortest augmenting paths over the classes of each bag, with prices.

Every instance takes the class of highest score + price. That is optimal for the counts it happens to give,
and any labelling is optimal for its own counts for as long as every instance sits at its highest sum
(complementary slackness). Only the counts are wrong, and they are repaired without breaking that invariant:

1. an over-full class lowers its price until its surplus would rather leave, and lets it go (`spread`);
2. what is left over moves along shortest paths between classes, one instance an edge (`search`, `augment`).

Prices here are *added* to scores, so they are minus the prices of the face; an absent class has -inf.
Instance i of a bag is row `base + i` of the scores, which keep their own precision and are subtracted in
float64. All memory is taken once a chunk of bags; nothing is allocated in the loop over bags.
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

OK, NOT_A_NUMBER, INFEASIBLE = 0, 1, 2
GATHERED = 1 << 16  # scores: below it a copy leaves out a bag's absent classes, above it prices of -inf do
NARROW = 24  # classes; from here on two vector passes find a maximum sooner than one scalar pass (measured)

# Nothing compiled here allocates, so it does without reference counts: they took a third of the time.
UNCOUNTED: Any = {"_nrt": False}
jit: Any = njit(nogil=True, error_model="numpy", **UNCOUNTED)
jit_kept: Any = njit(cache=True, nogil=True, error_model="numpy", **UNCOUNTED)


def extremum(name: str) -> Any:
    """A compiled binary minimum or maximum that loops vectorise over; inputs are never NaN."""

    @intrinsic
    def function(typingctx, a, b):
        def codegen(context, builder, signature, args):
            kind = args[0].type
            call = builder.module.declare_intrinsic(name, [kind], ir.FunctionType(kind, [kind, kind]))
            return builder.call(call, args, fastmath=("nnan", "nsz"))

        return (a(a, b), codegen) if a == b and isinstance(a, types.Float) else None

    return function


larger, smaller = extremum("llvm.maximum"), extremum("llvm.minimum")


@jit
def usable(scores, base, n):
    """Whether no score is NaN or plus infinity."""
    good = True
    for i in range(base, base + n):
        for j in range(scores.shape[1]):
            good &= scores[i, j] < math.inf
    return good


@jit
def highest(scores, row, w, price):
    """The highest score + price of a row."""
    best = scores[row, 0] + price[0]
    for j in range(1, w):
        best = larger(best, scores[row, j] + price[j])
    return best


@jit
def favourite(scores, row, w, price):
    """The first class of highest score + price."""
    if w < NARROW:
        best, at = scores[row, 0] + price[0], 0
        for j in range(1, w):
            x = scores[row, j] + price[j]
            if x > best:
                best, at = x, j
        return at
    best, at = highest(scores, row, w, price), w
    for j in range(w):
        at = min(at, j if scores[row, j] + price[j] == best else w)
    return at


@jit
def start(scores, base, n, w, price, head, after, filled):
    """Puts every instance into its favourite class; returns whether each has one."""
    for j in range(w):
        head[j] = -1
        filled[j] = 0
    for i in range(n):
        j = favourite(scores, base + i, w, price)
        if scores[base + i, j] + price[j] == -math.inf:
            return False
        after[i] = head[j]
        head[j] = i
        filled[j] += 1
    return True


@jit
def part(margin, member, size, q):
    """Reorders both so that the q smallest margins come first (Hoare's selection: linear, no sort)."""
    low, high = 0, size - 1
    while low < high:
        middle = margin[(low + high) >> 1]
        i, j = low, high
        while i <= j:
            while margin[i] < middle:
                i += 1
            while margin[j] > middle:
                j -= 1
            if i <= j:
                margin[i], margin[j] = margin[j], margin[i]
                member[i], member[j] = member[j], member[i]
                i += 1
                j -= 1
        if q - 1 <= j:
            high = j
        elif q - 1 >= i:
            low = i
        else:
            break


@jit
def release(a, surplus, scores, base, w, price, head, after, filled, margin, member):
    """Over-full class a lowers its price by the margin of its surplus, which moves to its next favourite."""
    own, price[a] = price[a], -math.inf
    size, i = 0, head[a]
    while i >= 0:
        margin[size] = (scores[base + i, a] + own) - highest(scores, base + i, w, price)
        member[size] = i
        size += 1
        i = after[i]
    part(margin, member, size, surplus)
    step = 0.0
    for t in range(surplus):
        step = max(step, margin[t])
    if step == math.inf:  # some of the surplus can go nowhere else
        price[a] = own
        return False
    head[a] = -1
    for t in range(size):
        i = member[t]
        b = favourite(scores, base + i, w, price) if t < surplus else a
        after[i] = head[b]
        head[b] = i
        filled[b] += 1
    filled[a] = size - surplus
    price[a] = own - step
    return True


@jit
def surplus_of(w, filled, want):
    """How many instances are in over-full classes."""
    total = 0
    for a in range(w):
        total += max(filled[a] - want[a], 0)
    return total


@jit
def spread(rounds, enough, n_over, scores, base, w, price, want, head, after, filled, margin, member):
    """Rounds of `release` over all over-full classes, at least one, until at most `enough` are left over."""
    for turn in range(rounds):
        if turn > 0 and n_over <= enough:
            return True
        for a in range(w):
            if filled[a] > want[a] and not release(
                a, filled[a] - want[a], scores, base, w, price, head, after, filled, margin, member
            ):
                return False
        n_over = surplus_of(w, filled, want)
    return True


@jit
def fill(a, scores, base, w, head, after, edge, via):
    """Row a of the class graph: edge[a, b] is the least score any member loses by moving to b; via is who."""
    for b in range(w):
        edge[a, b] = math.inf
    i = head[a]
    while i >= 0:
        offer(i, a, scores, base + i, w, edge, via)
        i = after[i]


@jit
def offer(i, a, scores, row, w, edge, via):
    """Lets member i of class a carry those edges that cost it less than the others."""
    own = np.float64(scores[row, a])
    for b in range(w):
        loss = own - scores[row, b]
        less = loss < edge[a, b]
        edge[a, b] = loss if less else edge[a, b]
        via[a, b] = i if less else via[a, b]
    edge[a, a] = math.inf


@jit
def relax(u, least, here, w, price, edge, far, back):
    """Distances of the classes that are nearer through u; the least distance of any unsettled class."""
    nearest = math.inf
    for b in range(w):
        through = larger(here + edge[u, b] - price[b], least)  # rounding can make an edge slightly negative
        less = through < far[b]
        far[b] = through if less else far[b]
        back[b] = u if less else back[b]
        nearest = smaller(nearest, far[b])
    return nearest


@jit
def search(
    scores, base, w, price, want, head, after, filled, edge, via, known, far, back, order, paid, reach
):
    """Dijkstra from all over-full classes to the nearest with room; lowers prices; returns that class or -1.

    A settled class leaves the queue by a price of minus infinity, which puts it out of reach of `relax`.
    """
    least, settled, u = 0.0, 0, -1
    for b in range(w):
        far[b] = 0.0 if filled[b] > want[b] else math.inf
        back[b] = -1
    while least < math.inf:
        u = 0
        while far[u] != least:
            u += 1
        if filled[u] < want[u]:
            break
        if known[u] == 0:
            fill(u, scores, base, w, head, after, edge, via)
            known[u] = 1
        order[settled], reach[settled], paid[settled] = u, least, price[u]
        settled += 1
        here = least + price[u]
        price[u], far[u] = -math.inf, math.inf
        least = relax(u, least, here, w, price, edge, far, back)
    for t in range(settled):
        price[order[t]] = paid[t] - (least - reach[t]) if least < math.inf else paid[t]
    return u if least < math.inf else -1


@jit
def leave(i, a, scores, base, w, head, after, edge, via, dirty):
    """Takes instance i out of class a and mends the edges of a that it carried."""
    n_dirty = 0
    for b in range(w):
        if via[a, b] == i and edge[a, b] < math.inf:
            dirty[n_dirty] = b
            n_dirty += 1
            edge[a, b] = math.inf
    previous, x = -1, head[a]
    while x >= 0:
        if x == i:
            if previous < 0:
                head[a] = after[x]
            else:
                after[previous] = after[x]
        else:
            previous = x
            own = np.float64(scores[base + x, a])
            for t in range(n_dirty):
                b = dirty[t]
                loss = own - scores[base + x, b]
                if loss < edge[a, b]:
                    edge[a, b] = loss
                    via[a, b] = x
        x = after[x]


@jit
def augment(target, scores, base, w, head, after, filled, edge, via, known, back, dirty):
    """Moves one instance along each edge of the path that ends in the target."""
    b = target
    while back[b] >= 0:
        a = back[b]
        i = via[a, b]
        leave(i, a, scores, base, w, head, after, edge, via, dirty)
        after[i] = head[b]
        head[b] = i
        if known[b] == 1:
            offer(i, b, scores, base + i, w, edge, via)
        b = a
    filled[target] += 1
    filled[b] -= 1


@jit
def solve(scores, base, n, w, price, want, classes, begin, rows, graph, longs, floats):
    """Classes of one bag and, in place, its prices; a status."""
    after, member, margin = rows
    edge, via = graph
    head, filled, back, order, dirty, known = longs
    far, paid, reach = floats
    if not start(scores, base, n, w, price, head, after, filled):
        return INFEASIBLE
    n_over = surplus_of(w, filled, want)
    rounds = 1 if n_over <= 20 * w else 30  # measured: a second round pays in large bags only
    if not spread(rounds, 2 * w, n_over, scores, base, w, price, want, head, after, filled, margin, member):
        return INFEASIBLE
    n_over = surplus_of(w, filled, want)
    for a in range(w):
        known[a] = 0
    for _ in range(n_over):
        target = search(
            scores, base, w, price, want, head, after, filled, edge, via, known, far, back, order, paid, reach
        )
        if target < 0:
            return INFEASIBLE
        augment(target, scores, base, w, head, after, filled, edge, via, known, back, dirty)
    for a in range(w):
        i = head[a]
        while i >= 0:
            classes[begin + i] = a
            i = after[i]
    return OK


@jit
def prepare(scores, begin, n, counts, bag, prices, warm, price, want, present, gathered):
    """First prices and wanted counts of a bag, over how many classes, and its scores if some are left out."""
    k, w = counts.shape[1], 0
    leave_out = n <= len(gathered)
    for j in range(k):
        if counts[bag, j] > 0 or not leave_out:
            present[w], want[w] = j, counts[bag, j]
            known = warm and abs(prices[bag, j]) < math.inf
            price[w] = -math.inf if want[w] == 0 else -prices[bag, j] if known else 0.0
            w += 1
    if w < k:
        for i in range(n):
            for t in range(w):
                gathered[i, t] = scores[begin + i, present[t]]
    return w


@jit_kept
def solve_bags(scores, starts, counts, first, last, prices, warm, classes, scratch):
    """Classes (and prices, if there is room for them) of bags first to last; (bag, status) of a failure."""
    k = counts.shape[1]
    rows, graph, longs, floats, price, want, present, gathered = scratch
    for bag in range(first, last):
        begin, n = starts[bag], starts[bag + 1] - starts[bag]
        if not usable(scores, begin, n):
            return bag, NOT_A_NUMBER
        w = prepare(scores, begin, n, counts, bag, prices, warm, price, want, present, gathered)
        source, base = (scores, begin) if w == k else (gathered, 0)
        status = solve(source, base, n, w, price, want, classes, begin, rows, graph, longs, floats)
        if status != OK:
            return bag, status
        if w < k:
            for i in range(begin, begin + n):
                classes[i] = present[classes[i]]
        if len(prices) > 0:
            for j in range(k):
                prices[bag, j] = math.inf
            for t in range(w):
                prices[bag, present[t]] = -price[t]
    return -1, OK


def scratch(most, k, dtype):
    """Working memory for bags of at most `most` instances: 16 bytes an instance and 16 a pair of classes."""
    rows = np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most, np.float64)
    graph = np.empty((k, k), np.float64), np.empty((k, k), np.int64)
    longs = tuple(np.empty(k, np.int64) for _ in range(6))
    floats = tuple(np.empty(k, np.float64) for _ in range(3))
    gathered = np.empty((min(GATHERED // k + 1, most), k), dtype)
    return rows, graph, longs, floats, np.empty(k), np.empty(k, np.int64), np.empty(k, np.int64), gathered


@jit_kept
def duality_gaps(scores, starts, counts, first, last, prices, classes, gaps):
    """Upper bound minus value of every bag: sum of highest score - price, + price x count, - score."""
    k = counts.shape[1]
    for bag in range(first, last):
        gap = 0.0
        for i in range(starts[bag], starts[bag + 1]):
            best = -math.inf
            for j in range(k):
                x = scores[i, j] - prices[bag, j]
                best = x if x > best else best
            gap += best - scores[i, classes[i]]
        for j in range(k):
            gap += counts[bag, j] * prices[bag, j] if counts[bag, j] > 0 else 0.0
        gaps[bag] = gap

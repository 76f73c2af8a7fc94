"""Compiled kernel of `assign`: shortest augmenting paths over the classes of each bag, with dual prices.

At first every row takes the class of its highest score + price. These labels are optimal for the counts that
they happen to have, and stay optimal for their own counts as long as every row has its highest sum
(complementary slackness). Only the counts are wrong. Two steps repair them and keep that invariant:

1. a class with too many rows lowers its price until its surplus prefers other classes (`release_rounds`);
2. the rest of the surplus moves along shortest paths between classes, one row per edge, or several at once
   where rows are equal (`shortest_path`, `augment`).

Prices here are *added* to scores: they are minus the prices that `assign_with_duals` returns, and -inf for
absent classes. Row i of a bag is row `base + i` of the scores, which keep their own type and are subtracted
in float64. Memory is allocated once per chunk of bags, never in the loop over bags.

All of it is in one file, because numba caches compiled code by the date of the file that `solve_bags` is in:
it would not notice a change in another one.
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

OK, NOT_A_NUMBER, INFEASIBLE = 0, 1, 2
GATHERED = 1 << 16  # scores up to which absent classes are left out by a copy, and not by prices of -inf
FEW = 32  # rows in a class up to which all its edges are recomputed lazily after one has left (measured)
NARROW = 24  # classes from which two vectorized passes find a maximum faster than a scalar one (measured)

# Nothing compiled here allocates, so reference counts are off: they took a third of the time.
UNCOUNTED: Any = {"_nrt": False}
INNER: Any = UNCOUNTED | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # half the time to compile
# Inlined, because a call passes every array as about seven numbers: small bags take a quarter less time.
jit: Any = njit(forceinline=True, nogil=True, error_model="numpy", **INNER)


def jit_kept(function: Any) -> Any:
    """Compiled, and cached on disk for later processes if some folder can be written to."""
    settings: Any = {"nogil": True, "error_model": "numpy", **UNCOUNTED}
    try:
        return njit(cache=True, **settings)(function)
    except RuntimeError:  # numba's "no locator available": a read-only container, say
        return njit(**settings)(function)


def extremum(name: str) -> Any:
    """A compiled minimum or maximum of two numbers, which loops vectorize over; inputs are never NaN."""

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
def all_usable(scores):
    """Whether no score of a flat array is NaN or plus infinity."""
    good = True
    for c in range(len(scores)):
        good &= scores[c] < math.inf
    return good


@jit
def max_value(scores, row, w, price):
    """The highest score + price of a row."""
    best = scores[row, 0] + price[0]
    for j in range(1, w):
        best = larger(best, scores[row, j] + price[j])
    return best


@jit
def best_class(scores, row, w, price):
    """The first class of highest score + price."""
    if w < NARROW:
        best, at = scores[row, 0] + price[0], 0
        for j in range(1, w):
            x = scores[row, j] + price[j]
            at = j if x > best else at
            best = larger(best, x)
        return at
    best, at = max_value(scores, row, w, price), w
    for j in range(w):
        at = min(at, j if scores[row, j] + price[j] == best else w)
    return at


@jit
def assign_best_classes(scores, base, n, w, price, classes, begin, head, after, filled):
    """Put every row into its best class; returns whether each has one."""
    for j in range(w):
        head[j] = -1
        filled[j] = 0
    for i in range(n):
        row = base + i
        j = best_class(scores, row, w, price)
        if scores[row, j] + price[j] == -math.inf:
            return False
        classes[begin + i] = j
        after[i] = head[j]
        head[j] = i
        filled[j] += 1
    return True


@jit
def partition_smallest(margin, member, size, q):
    """Reorder both so that the q smallest margins come first (Hoare's selection, linear time)."""
    if q == 1:  # the usual case in small bags
        at = 0
        for t in range(1, size):
            at = t if margin[t] < margin[at] else at
        margin[0], margin[at] = margin[at], margin[0]
        member[0], member[at] = member[at], member[0]
        return
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
def release_surplus(a, surplus, scores, base, w, price, classes, begin, head, after, filled, margin, member):
    """Lower the price of class a by the margin of its surplus, which moves to its next best classes."""
    own, price[a] = price[a], -math.inf
    size, i = 0, head[a]
    while i >= 0:
        row = base + i
        margin[size] = (scores[row, a] + own) - max_value(scores, row, w, price)
        member[size] = i
        size += 1
        i = after[i]
    partition_smallest(margin, member, size, surplus)
    step = 0.0
    for t in range(surplus):
        step = max(step, margin[t])
    if step == math.inf:  # a row of the surplus has no other class
        price[a] = own
        return False
    head[a] = -1
    for t in range(size):
        i = member[t]
        b = best_class(scores, base + i, w, price) if t < surplus else a
        classes[begin + i] = b
        after[i] = head[b]
        head[b] = i
        filled[b] += 1
    filled[a] = size - surplus
    price[a] = own - step
    return True


@jit
def count_surplus(w, filled, want):
    """How many rows are too many in their classes."""
    total = 0
    for a in range(w):
        total += max(filled[a] - want[a], 0)
    return total


@jit
def release_rounds(
    rounds, enough, n_over, scores, base, w, price, want, classes, begin, head, after, filled, margin, member
):
    """Rounds of `release_surplus` over all classes, at least one, until the surplus is at most `enough`."""
    for turn in range(rounds):
        if turn > 0 and n_over <= enough:
            return True
        for a in range(w):
            if filled[a] > want[a] and not release_surplus(
                a,
                filled[a] - want[a],
                scores,
                base,
                w,
                price,
                classes,
                begin,
                head,
                after,
                filled,
                margin,
                member,
            ):
                return False
        n_over = count_surplus(w, filled, want)
    return True


@jit
def lower_edges(a, scores, row, w, edge):
    """Lower the edges out of class a to what its member in this row would lose."""
    own = np.float64(scores[row, a])
    for b in range(w):
        edge[a, b] = smaller(edge[a, b], own - scores[row, b])


@jit
def fill_edges(a, scores, base, w, head, after, edge):
    """Compute row a of the class graph: edge[a, b] is the least score that a member loses by moving to b."""
    for b in range(w):
        edge[a, b] = math.inf
    i = head[a]
    while i >= 0:
        lower_edges(a, scores, base + i, w, edge)
        i = after[i]


@jit
def relax_distances(u, least, here, w, price, edge, far):
    """Relax the distances through u; returns the least distance of any unsettled class."""
    nearest = math.inf
    for b in range(w):
        # Rounding can make an edge slightly negative; a settled class has price -inf, which is out of reach.
        far[b] = smaller(far[b], larger(here + edge[u, b] - price[b], least))
        nearest = smaller(nearest, far[b])
    return nearest


@jit
def shortest_path(scores, base, w, price, want, head, after, filled, edge, known, far, order, paid, reach):
    """Dijkstra from classes with a surplus to the nearest with room; (that class or -1, classes settled)."""
    least, settled = 0.0, 0
    for b in range(w):
        far[b] = 0.0 if filled[b] > want[b] else math.inf
    while least < math.inf:
        u = 0
        while far[u] != least:
            u += 1
        order[settled], reach[settled], paid[settled] = u, least, price[u]
        if filled[u] < want[u]:
            return u, settled
        settled += 1
        if known[u] == 0:
            fill_edges(u, scores, base, w, head, after, edge)
            known[u] = 1
        here = least + price[u]
        price[u], far[u] = -math.inf, math.inf
        least = relax_distances(u, least, here, w, price, edge, far)
    return -1, settled


@jit
def trace_path(settled, filled, want, edge, order, paid, reach):
    """The path to the class settled last, as places in the order, from its end; returns its length.

    Predecessors are not recorded, which keeps `relax_distances` short: the one before is the first whose edge
    gives the same distance. It was settled earlier, so that edges of length zero make no cycle.
    """
    at, length = settled, 0
    while filled[order[at]] <= want[order[at]]:
        b, before = order[at], 0
        while (
            max(reach[before] + paid[before] + edge[order[before], b] - paid[at], reach[before]) != reach[at]
        ):
            before += 1
        order[settled + 1 + length] = at
        length += 1
        at = before
    order[settled + 1 + length] = at
    return length


@jit
def remove_member(a, b, scores, base, w, head, after, filled, edge, known, dirty):
    """Remove the member of a that loses least by moving to b, and update the edges of a; returns it."""
    previous, i = -1, head[a]
    while np.float64(scores[base + i, a]) - scores[base + i, b] != edge[a, b]:
        previous, i = i, after[i]
    if previous < 0:
        head[a] = after[i]
    else:
        after[previous] = after[i]
    if filled[a] <= FEW:
        known[a] = 0
        return i
    own, n_dirty = np.float64(scores[base + i, a]), 0
    for c in range(w):
        if own - scores[base + i, c] == edge[a, c]:  # due to i, or to an equal row
            dirty[n_dirty] = c
            n_dirty += 1
            edge[a, c] = math.inf
    x = head[a]
    while x >= 0:
        own = np.float64(scores[base + x, a])
        for t in range(n_dirty):
            edge[a, dirty[t]] = smaller(edge[a, dirty[t]], own - scores[base + x, dirty[t]])
        x = after[x]
    return i


@jit
def count_carriers(a, b, most, scores, base, head, after, edge):
    """How many members of a lose equally little by moving to b, up to `most`."""
    count, i = 0, head[a]
    while i >= 0 and count < most:
        count += np.float64(scores[base + i, a]) - scores[base + i, b] == edge[a, b]
        i = after[i]
    return count


@jit
def path_capacity(settled, length, scores, base, want, head, after, filled, edge, order):
    """How many rows can move along the path at once: its surplus, its room, and equal rows on each edge."""
    source, target = order[order[settled + 1 + length]], order[settled]
    most = min(filled[source] - want[source], want[target] - filled[target])
    for step in range(length):
        if most == 1:
            return 1
        b, a = order[order[settled + 1 + step]], order[order[settled + 2 + step]]
        most = count_carriers(a, b, most, scores, base, head, after, edge)
    return most


@jit
def move_members(a, b, many, scores, base, w, classes, begin, head, after, edge, known):
    """Move the `many` members of a that lose least by moving to b; the edges of a are recomputed lazily."""
    kept, i = -1, head[a]
    while many > 0:
        following = after[i]
        if np.float64(scores[base + i, a]) - scores[base + i, b] != edge[a, b]:
            kept = i
        else:
            if kept < 0:
                head[a] = following
            else:
                after[kept] = following
            classes[begin + i] = b
            after[i] = head[b]
            head[b] = i
            if known[b] == 1:
                lower_edges(b, scores, base + i, w, edge)
            many -= 1
        i = following
    known[a] = 0


@jit
def augment(
    settled,
    scores,
    base,
    w,
    price,
    want,
    classes,
    begin,
    head,
    after,
    filled,
    edge,
    known,
    order,
    dirty,
    paid,
    reach,
):
    """Lower the prices of the settled classes and move rows along the path; returns how many per edge."""
    length = trace_path(settled, filled, want, edge, order, paid, reach)
    many = path_capacity(settled, length, scores, base, want, head, after, filled, edge, order)
    for t in range(settled):
        price[order[t]] = paid[t] - (reach[settled] - reach[t])
    for step in range(length):
        b, a = order[order[settled + 1 + step]], order[order[settled + 2 + step]]
        if many > 1:
            move_members(a, b, many, scores, base, w, classes, begin, head, after, edge, known)
            continue
        i = remove_member(a, b, scores, base, w, head, after, filled, edge, known, dirty)
        classes[begin + i] = b
        after[i] = head[b]
        head[b] = i
        if known[b] == 1:
            lower_edges(b, scores, base + i, w, edge)
    filled[order[settled]] += many
    filled[order[order[settled + 1 + length]]] -= many
    return many


@jit
def solve_bag(scores, base, n, w, price, want, classes, begin, rows, edge, longs, floats):
    """Solve one bag: classes and prices in place; returns a status."""
    after, member, margin = rows
    head, filled, known, dirty, order = longs
    far, paid, reach = floats
    if not assign_best_classes(scores, base, n, w, price, classes, begin, head, after, filled):
        return INFEASIBLE
    n_over = count_surplus(w, filled, want)
    rounds = 1 if n_over <= 20 * w else 30  # measured: a second round pays off in large bags only
    if not release_rounds(
        rounds,
        2 * w,
        n_over,
        scores,
        base,
        w,
        price,
        want,
        classes,
        begin,
        head,
        after,
        filled,
        margin,
        member,
    ):
        return INFEASIBLE
    n_over = count_surplus(w, filled, want)
    for a in range(w):
        known[a] = 0
    while n_over > 0:
        target, settled = shortest_path(
            scores, base, w, price, want, head, after, filled, edge, known, far, order, paid, reach
        )
        if target < 0:
            return INFEASIBLE
        n_over -= augment(
            settled,
            scores,
            base,
            w,
            price,
            want,
            classes,
            begin,
            head,
            after,
            filled,
            edge,
            known,
            order,
            dirty,
            paid,
            reach,
        )
    return OK


@jit
def prepare_bag(scores, begin, n, counts, bag, prices, warm, price, want, present, gathered):
    """Initial prices, wanted counts and, if classes are left out, scores of a bag; returns its classes."""
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
    """Classes (and prices, if the array has rows) of bags first to last; (bag, status) of a failure."""
    k = counts.shape[1]
    rows, edge, longs, floats, price, want, present, gathered = scratch
    flat = scores.reshape(scores.size)
    for bag in range(first, last):
        begin, n = starts[bag], starts[bag + 1] - starts[bag]
        if not all_usable(flat[begin * k : (begin + n) * k]):
            return bag, NOT_A_NUMBER
        w = prepare_bag(scores, begin, n, counts, bag, prices, warm, price, want, present, gathered)
        source, base = (scores, begin) if w == k else (gathered, 0)
        status = solve_bag(source, base, n, w, price, want, classes, begin, rows, edge, longs, floats)
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


def allocate(most, k, dtype):
    """Working memory for bags of at most `most` rows: 16 bytes per row and 8 per pair of classes."""
    rows = np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most, np.float64)
    edge = np.empty((k, k), np.float64)
    longs = (*(np.empty(k, np.int64) for _ in range(4)), np.empty(2 * k + 2, np.int64))
    floats = tuple(np.empty(k + 1, np.float64) for _ in range(3))
    gathered = np.empty((min(GATHERED // k + 1, most), k), dtype)
    return rows, edge, longs, floats, np.empty(k), np.empty(k, np.int64), np.empty(k, np.int64), gathered


@jit_kept
def duality_gaps(scores, starts, counts, first, last, prices, classes, gaps):
    """Upper bound minus value of every bag: sums of highest score - price, + price x count, - score."""
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

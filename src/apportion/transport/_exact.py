"""Compiled kernel of `assign`: shortest augmenting paths over the classes of each bag, with prices.

Every instance takes the class of highest score + price. That is optimal for the counts it happens to give,
and any labeling is optimal for its own counts for as long as every instance sits at its highest sum
(complementary slackness). Only the counts are wrong, and they are repaired without breaking that invariant:

1. an over-full class lowers its price until its surplus would rather leave, and lets it go (`spread`);
2. what is left over moves along shortest paths between classes, one instance an edge, or as many as are
   alike there (`search`, `augment`).

Prices here are *added* to scores, so they are minus the prices of the face; an absent class has -inf.
Instance i of a bag is row `base + i` of the scores, which keep their own precision and are subtracted in
float64. All memory is taken once a chunk of bags; nothing is allocated in the loop over bags.

A long file on purpose: numba keeps compiled code by the date of the one file that `solve_bags` is in, and
would go on with an old `search` if that were in another.
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

OK, NOT_A_NUMBER, INFEASIBLE = 0, 1, 2
GATHERED = 1 << 16  # scores: below it a copy leaves out a bag's absent classes, above it prices of -inf do
FEW = 32  # members of a class up to which all its edges are found anew at need after one left (measured)
NARROW = 24  # classes; from here on two vector passes find a maximum sooner than one scalar pass (measured)

# Nothing compiled here allocates, so it does without reference counts: they took a third of the time.
UNCOUNTED: Any = {"_nrt": False}
INNER: Any = UNCOUNTED | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # half the time to compile
# A call would hand over every array as some seven numbers: inlined, small bags take a quarter less time.
jit: Any = njit(forceinline=True, nogil=True, error_model="numpy", **INNER)


def jit_kept(function: Any) -> Any:
    """Compiled, and kept on the disk for later processes where some folder for that can be written to."""
    settings: Any = {"nogil": True, "error_model": "numpy", **UNCOUNTED}
    try:
        return njit(cache=True, **settings)(function)
    except RuntimeError:  # numba's "no locator available": a read-only container, say
        return njit(**settings)(function)


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
def usable(scores):
    """Whether no score of a flat array is NaN or plus infinity."""
    good = True
    for c in range(len(scores)):
        good &= scores[c] < math.inf
    return good


@jit
def highest(scores, row, w, price):
    """The highest score + price of a row."""
    best = scores[row, 0] + price[0]
    for j in range(1, w):
        best = larger(best, scores[row, j] + price[j])
    return best


@jit
def favorite(scores, row, w, price):
    """The first class of highest score + price."""
    if w < NARROW:
        best, at = scores[row, 0] + price[0], 0
        for j in range(1, w):
            x = scores[row, j] + price[j]
            at = j if x > best else at
            best = larger(best, x)
        return at
    best, at = highest(scores, row, w, price), w
    for j in range(w):
        at = min(at, j if scores[row, j] + price[j] == best else w)
    return at


@jit
def start(scores, base, n, w, price, classes, begin, head, after, filled):
    """Puts every instance into its favorite class; returns whether each has one."""
    for j in range(w):
        head[j] = -1
        filled[j] = 0
    for i in range(n):
        row = base + i
        j = favorite(scores, row, w, price)
        if scores[row, j] + price[j] == -math.inf:
            return False
        classes[begin + i] = j
        after[i] = head[j]
        head[j] = i
        filled[j] += 1
    return True


@jit
def part(margin, member, size, q):
    """Reorders both so that the q smallest margins come first (Hoare's selection: linear, no sort)."""
    if q == 1:  # the most frequent case in small bags
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
def release(a, surplus, scores, base, w, price, classes, begin, head, after, filled, margin, member):
    """Over-full class a lowers its price by the margin of its surplus, which moves to its next favorite."""
    own, price[a] = price[a], -math.inf
    size, i = 0, head[a]
    while i >= 0:
        row = base + i
        margin[size] = (scores[row, a] + own) - highest(scores, row, w, price)
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
        b = favorite(scores, base + i, w, price) if t < surplus else a
        classes[begin + i] = b
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
def spread(
    rounds, enough, n_over, scores, base, w, price, want, classes, begin, head, after, filled, margin, member
):
    """Rounds of `release` over all over-full classes, at least one, until at most `enough` are left over."""
    for turn in range(rounds):
        if turn > 0 and n_over <= enough:
            return True
        for a in range(w):
            if filled[a] > want[a] and not release(
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
        n_over = surplus_of(w, filled, want)
    return True


@jit
def offer(a, scores, row, w, edge):
    """Lowers the edges out of class a to what its member in this row would lose."""
    own = np.float64(scores[row, a])
    for b in range(w):
        edge[a, b] = smaller(edge[a, b], own - scores[row, b])


@jit
def fill(a, scores, base, w, head, after, edge):
    """Row a of the class graph: edge[a, b] is the least score that any member loses by moving to b."""
    for b in range(w):
        edge[a, b] = math.inf
    i = head[a]
    while i >= 0:
        offer(a, scores, base + i, w, edge)
        i = after[i]


@jit
def relax(u, least, here, w, price, edge, far):
    """Distances of the classes that are nearer through u; the least distance of any unsettled class."""
    nearest = math.inf
    for b in range(w):
        # Rounding can make an edge slightly negative; a settled class has price -inf, which is out of reach.
        far[b] = smaller(far[b], larger(here + edge[u, b] - price[b], least))
        nearest = smaller(nearest, far[b])
    return nearest


@jit
def search(scores, base, w, price, want, head, after, filled, edge, known, far, order, paid, reach):
    """Dijkstra from all over-full classes to the nearest with room; (that class or -1, classes settled)."""
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
            fill(u, scores, base, w, head, after, edge)
            known[u] = 1
        here = least + price[u]
        price[u], far[u] = -math.inf, math.inf
        least = relax(u, least, here, w, price, edge, far)
    return -1, settled


@jit
def trace(settled, filled, want, edge, order, paid, reach):
    """The path to the class settled last, as places in the order, from its end; its length.

    Nobody recorded who came from where, which keeps `relax` short: the place before is the first whose edge
    gives the very same distance. It was settled earlier, so that edges of length zero make no circle.
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
def leave(a, b, scores, base, w, head, after, filled, edge, known, dirty):
    """Takes that member out of a which loses least by moving to b, and mends the edges of a; who it is."""
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
        if own - scores[base + i, c] == edge[a, c]:  # carried by i, or by its equal
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
def carriers(a, b, most, scores, base, head, after, edge):
    """How many members of a lose least by moving to b, all alike in that; counts up to `most`."""
    count, i = 0, head[a]
    while i >= 0 and count < most:
        count += np.float64(scores[base + i, a]) - scores[base + i, b] == edge[a, b]
        i = after[i]
    return count


@jit
def capacity(settled, length, scores, base, want, head, after, filled, edge, order):
    """How many instances can move along the path at once: its surplus, its room, and who is alike there."""
    source, target = order[order[settled + 1 + length]], order[settled]
    most = min(filled[source] - want[source], want[target] - filled[target])
    for step in range(length):
        if most == 1:
            return 1
        b, a = order[order[settled + 1 + step]], order[order[settled + 2 + step]]
        most = carriers(a, b, most, scores, base, head, after, edge)
    return most


@jit
def leave_together(a, b, many, scores, base, w, classes, begin, head, after, edge, known):
    """Moves `many` members of a that lose least by moving to b; all edges of a are found anew at need."""
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
                offer(b, scores, base + i, w, edge)
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
    """Lowers the prices of the settled classes and moves instances along the path; how many an edge."""
    length = trace(settled, filled, want, edge, order, paid, reach)
    many = capacity(settled, length, scores, base, want, head, after, filled, edge, order)
    for t in range(settled):
        price[order[t]] = paid[t] - (reach[settled] - reach[t])
    for step in range(length):
        b, a = order[order[settled + 1 + step]], order[order[settled + 2 + step]]
        if many > 1:
            leave_together(a, b, many, scores, base, w, classes, begin, head, after, edge, known)
            continue
        i = leave(a, b, scores, base, w, head, after, filled, edge, known, dirty)
        classes[begin + i] = b
        after[i] = head[b]
        head[b] = i
        if known[b] == 1:
            offer(b, scores, base + i, w, edge)
    filled[order[settled]] += many
    filled[order[order[settled + 1 + length]]] -= many
    return many


@jit
def solve(scores, base, n, w, price, want, classes, begin, rows, edge, longs, floats):
    """Classes of one bag and, in place, its prices; a status."""
    after, member, margin = rows
    head, filled, known, dirty, order = longs
    far, paid, reach = floats
    if not start(scores, base, n, w, price, classes, begin, head, after, filled):
        return INFEASIBLE
    n_over = surplus_of(w, filled, want)
    rounds = 1 if n_over <= 20 * w else 30  # measured: a second round pays in large bags only
    if not spread(
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
    n_over = surplus_of(w, filled, want)
    for a in range(w):
        known[a] = 0
    while n_over > 0:
        target, settled = search(
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
    rows, edge, longs, floats, price, want, present, gathered = scratch
    flat = scores.reshape(scores.size)
    for bag in range(first, last):
        begin, n = starts[bag], starts[bag + 1] - starts[bag]
        if not usable(flat[begin * k : (begin + n) * k]):
            return bag, NOT_A_NUMBER
        w = prepare(scores, begin, n, counts, bag, prices, warm, price, want, present, gathered)
        source, base = (scores, begin) if w == k else (gathered, 0)
        status = solve(source, base, n, w, price, want, classes, begin, rows, edge, longs, floats)
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
    """Working memory for bags of at most `most` instances: 16 bytes an instance and 8 a pair of classes."""
    rows = np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most, np.float64)
    edge = np.empty((k, k), np.float64)
    longs = (*(np.empty(k, np.int64) for _ in range(4)), np.empty(2 * k + 2, np.int64))
    floats = tuple(np.empty(k + 1, np.float64) for _ in range(3))
    gathered = np.empty((min(GATHERED // k + 1, most), k), dtype)
    return rows, edge, longs, floats, np.empty(k), np.empty(k, np.int64), np.empty(k, np.int64), gathered


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

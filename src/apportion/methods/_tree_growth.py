"""Compiled kernels of boosted trees: growing one tree, and sums over bags and leaves.

A tree grows leaf by leaf, and the split that most reduces the squared error of the residuals comes first.
Features are small whole numbers (bins, made in boosted_trees.py, which has all settings), so the best split
of a leaf follows from a histogram: sums of the residuals, of the weights, and the number of rows, in each bin
of each feature. The histogram of the larger child is that of its parent minus that of the smaller child.

Scores and residuals have one column per class; of two classes only the second has one. `bins` are (n, d)
bytes. The bins of feature f are places `start[f]` to `start[f + 1]` of a histogram.

Bins, scores and probabilities may lie in files: a round goes through them from the first row to the last.

All of it is in one file, because numba's cache would not notice a change in another one.
"""

import math
from typing import Any

import numpy as np
from numba import njit

INNER: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # half the time to compile
jit: Any = njit(nogil=True, error_model="numpy", **INNER)


def jit_kept(function: Any) -> Any:
    """Compiled, and cached on disk for later processes if some folder can be written to."""
    try:
        return njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # numba's "no locator available": a read-only container, say
        return njit(nogil=True, error_model="numpy")(function)


TINY = 1e-12  # smallest share of a class in a bag, and the smallest gain of a split


# --- growing a tree


@jit
def add_rows(histogram, bins, start, features, residuals, weights, rows, first, last):
    """Add rows to a histogram: residuals of each class, weights, and the number of rows."""
    classes = residuals.shape[1]
    for t in range(first, last):
        i = rows[t]
        for s in range(len(features)):
            f = features[s]
            place = start[f] + bins[i, f]
            for c in range(classes):
                histogram[place, c] += residuals[i, c]
            histogram[place, classes] += weights[i]
            histogram[place, classes + 1] += 1.0


@jit
def best_split(histogram, start, features, min_rows, total, left):
    """The largest reduction of the weighted squared error by a split, its feature, and its last bin."""
    columns = histogram.shape[1]
    classes = columns - 2
    total[:] = 0.0
    for place in range(start[features[0]], start[features[0] + 1]):
        for c in range(columns):
            total[c] += histogram[place, c]
    explained = 0.0  # by the mean residuals of the leaf as it is
    for c in range(classes):
        explained += total[c] * total[c]
    explained /= max(total[classes], TINY)
    best, feature, cut = TINY, -1, 0
    for s in range(len(features)):
        f = features[s]
        left[:] = 0.0
        for place in range(start[f], start[f + 1] - 1):
            for c in range(columns):
                left[c] += histogram[place, c]
            if left[classes + 1] < min_rows:
                continue
            if total[classes + 1] - left[classes + 1] < min_rows:
                break
            lower, upper = 0.0, 0.0
            for c in range(classes):
                lower += left[c] * left[c]
                upper += (total[c] - left[c]) * (total[c] - left[c])
            gain = lower / max(left[classes], TINY) + upper / max(total[classes] - left[classes], TINY)
            if gain - explained > best:
                best, feature, cut = gain - explained, f, place - start[f]
    return best, feature, cut


@jit
def partition(bins, rows, first, last, feature, cut, spare):
    """Put the rows that go left before those that go right; returns where the latter begin."""
    middle, n_right = first, 0
    for t in range(first, last):
        i = rows[t]
        if bins[i, feature] <= cut:
            rows[middle] = i
            middle += 1
        else:
            spare[n_right] = i
            n_right += 1
    rows[middle:last] = spare[:n_right]
    return middle


@jit_kept
def grow(bins, start, features, residuals, weights, rows, min_rows, histograms, feature, cut, child, gain):
    """Grow a tree on `rows`, which are reordered. Fills the last four arrays; returns its number of nodes.

    `histograms` is (leaves, bins of all features, classes + 2): as many leaves at most. A leaf has feature
    -1, and its number as child.
    """
    max_leaves = len(histograms)
    total, left = np.zeros(histograms.shape[2]), np.zeros(histograms.shape[2])
    spare = np.empty(len(rows), rows.dtype)
    # of every node: its rows, its histogram, and the feature and last bin of its best split
    first, last = np.zeros(len(feature), np.int64), np.zeros(len(feature), np.int64)
    slot = np.zeros(len(feature), np.int64)
    split, place = np.zeros(len(feature), np.int64), np.zeros(len(feature), np.int64)
    last[0] = len(rows)
    feature[0] = -1
    histograms[0] = 0.0
    add_rows(histograms[0], bins, start, features, residuals, weights, rows, 0, len(rows))
    gain[0], split[0], place[0] = best_split(histograms[0], start, features, min_rows, total, left)
    n_nodes = 1
    for leaves in range(1, max_leaves):
        node = -1
        for j in range(n_nodes):
            if feature[j] < 0 and split[j] >= 0 and (node < 0 or gain[j] > gain[node]):
                node = j
        if node < 0:
            break
        feature[node], cut[node], child[node] = split[node], place[node], n_nodes
        middle = partition(bins, rows, first[node], last[node], split[node], place[node], spare)
        lower, upper = n_nodes, n_nodes + 1
        n_nodes += 2
        feature[lower], feature[upper] = -1, -1
        first[lower], last[lower], first[upper], last[upper] = first[node], middle, middle, last[node]
        smaller, larger = lower, upper
        if middle - first[node] > last[node] - middle:
            smaller, larger = upper, lower
        slot[smaller], slot[larger] = leaves, slot[node]
        own, rest = histograms[slot[smaller]], histograms[slot[larger]]
        own[:] = 0.0
        add_rows(own, bins, start, features, residuals, weights, rows, first[smaller], last[smaller])
        rest -= own
        for j in (lower, upper):
            gain[j], split[j], place[j] = best_split(
                histograms[slot[j]], start, features, min_rows, total, left
            )
    leaf = 0
    for j in range(n_nodes):
        if feature[j] < 0:
            child[j] = leaf
            gain[j] = 0.0
            leaf += 1
    return n_nodes


@jit_kept
def find_leaves(bins, feature, cut, child, leaf):
    """The number of the leaf that each row reaches."""
    whole = len(bins) - len(bins) % 4
    for i in range(0, whole, 4):  # four rows at once, while the processor waits for the memory of each
        a = b = c = d = 0
        at_a = at_b = at_c = at_d = feature[0]
        while at_a >= 0 or at_b >= 0 or at_c >= 0 or at_d >= 0:
            if at_a >= 0:
                a = child[a] + (bins[i, at_a] > cut[a])
            if at_b >= 0:
                b = child[b] + (bins[i + 1, at_b] > cut[b])
            if at_c >= 0:
                c = child[c] + (bins[i + 2, at_c] > cut[c])
            if at_d >= 0:
                d = child[d] + (bins[i + 3, at_d] > cut[d])
            at_a, at_b, at_c, at_d = feature[a], feature[b], feature[c], feature[d]
        leaf[i], leaf[i + 1], leaf[i + 2], leaf[i + 3] = child[a], child[b], child[c], child[d]
    for i in range(whole, len(bins)):
        node = 0
        while feature[node] >= 0:
            node = child[node] + (bins[i, feature[node]] > cut[node])
        leaf[i] = child[node]


# --- sums over bags


@jit_kept
def add_and_predict(scores, delta, leaf, probabilities, sizes, predicted):
    """Add the value of its leaf to the scores of each row; then the probabilities of rows and of bags.

    Probabilities are the softmax of a row's scores or, of a single score, its logistic function.
    """
    classes = scores.shape[1]
    begin = 0
    for b in range(len(sizes)):
        end = begin + sizes[b]
        for i in range(begin, end):
            j = leaf[i]
            if classes == 1:
                scores[i, 0] += delta[j, 0]
                probabilities[i, 0] = 1.0 / (1.0 + math.exp(-scores[i, 0]))
                continue
            for c in range(classes):
                scores[i, c] += delta[j, c]
            top = scores[i, 0]
            for c in range(1, classes):
                top = max(top, scores[i, c])
            total = 0.0
            for c in range(classes):
                probabilities[i, c] = math.exp(scores[i, c] - top)
                total += probabilities[i, c]
            for c in range(classes):
                probabilities[i, c] /= total
        for c in range(classes):
            total = 0.0
            for i in range(begin, end):
                total += probabilities[i, c]
            predicted[b, c] = min(max(total / sizes[b], TINY), 1.0 - TINY)
        begin = end


@jit_kept
def compare_bags(probabilities, sizes, proportions, predicted, rows, residuals, weights):
    """The residuals of some rows, in ascending order, and their weights: equations (1) and (2)."""
    classes = proportions.shape[1]
    ratio = np.zeros(classes)
    b, end = -1, 0
    for t in range(len(rows)):
        i = rows[t]
        if i >= end:
            while i >= end:
                b += 1
                end += sizes[b]
            for c in range(classes):
                ratio[c] = proportions[b, c] / predicted[b, c]
                if classes == 1:
                    ratio[c] -= (1.0 - proportions[b, c]) / (1.0 - predicted[b, c])
        mean = 0.0
        for c in range(classes):
            mean += probabilities[i, c] * ratio[c]
        weight = 0.0
        for c in range(classes):
            p = probabilities[i, c]
            residuals[t, c] = p * (ratio[c] - mean)
            slope = p * (1.0 - p)
            weight += slope * slope / (sizes[b] * predicted[b, c] * (1.0 - predicted[b, c]))
        weights[t] = weight / classes


@jit_kept
def leaf_equations(probabilities, leaf, sizes, proportions, predicted, gram, right, information):
    """The normal equations of the leaf values, added to zeros: equation (3).

    `gram` is (classes, leaves, leaves), `right` (classes, leaves). `information` (classes,) is what the trace
    of `gram` would be if every row were moved by itself.
    """
    classes, leaves = right.shape
    slope = np.zeros((classes, leaves))
    own = np.zeros(classes)
    reached = np.zeros(leaves, np.int64)
    seen = np.zeros(leaves, np.bool_)
    begin = 0
    for b in range(len(sizes)):
        end = begin + sizes[b]
        count = 0
        own[:] = 0.0
        for i in range(begin, end):
            j = leaf[i]
            if not seen[j]:
                seen[j] = True
                reached[count] = j
                count += 1
            for c in range(classes):
                s = probabilities[i, c] * (1.0 - probabilities[i, c]) / sizes[b]
                slope[c, j] += s
                own[c] += s * s
        for c in range(classes):
            weight = sizes[b] / (predicted[b, c] * (1.0 - predicted[b, c]))
            information[c] += weight * own[c]
            gap = proportions[b, c] - predicted[b, c]
            for s in range(count):
                j = reached[s]
                right[c, j] += weight * slope[c, j] * gap
                for t in range(count):
                    gram[c, j, reached[t]] += weight * slope[c, j] * slope[c, reached[t]]
        for s in range(count):
            seen[reached[s]] = False
            slope[:, reached[s]] = 0.0
        begin = end

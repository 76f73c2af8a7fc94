"""Compiled kernel of `BoostedTrees.forward`."""

from apportion.transport._exact import jit_kept


@jit_kept
def add_leaf_values(x, root, feature, threshold, child, value, logits):
    """Add the value of the leaf that each row reaches, tree by tree: a tree's nodes stay in the cache."""
    whole = len(x) - len(x) % 4
    for tree in range(len(root)):
        first = root[tree]
        for i in range(0, whole, 4):  # four rows at once, while the processor waits for the memory of each
            p = q = r = s = first
            at_p = at_q = at_r = at_s = feature[first]
            while at_p >= 0 or at_q >= 0 or at_r >= 0 or at_s >= 0:
                if at_p >= 0:
                    p = child[p] + (x[i, at_p] > threshold[p])
                if at_q >= 0:
                    q = child[q] + (x[i + 1, at_q] > threshold[q])
                if at_r >= 0:
                    r = child[r] + (x[i + 2, at_r] > threshold[r])
                if at_s >= 0:
                    s = child[s] + (x[i + 3, at_s] > threshold[s])
                at_p, at_q, at_r, at_s = feature[p], feature[q], feature[r], feature[s]
            for c in range(logits.shape[1]):
                logits[i, c] += value[child[p], c]
                logits[i + 1, c] += value[child[q], c]
                logits[i + 2, c] += value[child[r], c]
                logits[i + 3, c] += value[child[s], c]
        for i in range(whole, len(x)):
            node = first
            while feature[node] >= 0:
                node = child[node] + (x[i, feature[node]] > threshold[node])
            for c in range(logits.shape[1]):
                logits[i, c] += value[child[node], c]

"""Compiled kernel of `BoostedTrees.forward`."""

from apportion.transport._exact import jit_kept


@jit_kept
def add_leaf_values(x, root, feature, threshold, child, value, logits):
    """Add the value of the leaf that each row reaches, tree by tree: a tree's nodes stay in the cache."""
    for tree in range(len(root)):
        for i in range(len(x)):
            node = root[tree]
            while feature[node] >= 0:
                node = child[node] + (x[i, feature[node]] > threshold[node])
            for c in range(logits.shape[1]):
                logits[i, c] += value[child[node], c]

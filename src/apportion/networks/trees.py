"""Boosted trees as a module: buffers that say where a row goes, and what it adds to the logits there.

The trees are grown by `methods.boosted_trees`. As a module they predict and are saved, calibrated and
exported like any network.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from apportion.errors import ModelError


class Tree(NamedTuple):
    """One tree. The two children of a node are neighbors, and come after it."""

    feature: np.ndarray  # (nodes,) the feature that decides; -1 at a leaf
    threshold: np.ndarray  # (nodes,) rows whose feature is at most this go to the first child
    child: np.ndarray  # (nodes,) the first child; at a leaf, its row of `value`
    value: np.ndarray  # (leaves, k) what a leaf adds to the logits
    gain: np.ndarray  # (nodes,) by how much a split reduces the squared error of the residuals


def trees_as_tensors(trees: Sequence[Tree]) -> list[tuple[Tensor, ...]]:
    return [tuple(torch.from_numpy(np.ascontiguousarray(each)) for each in tree) for tree in trees]


def trees_from_tensors(saved: Sequence[Sequence[Tensor]], n_features: int, n_classes: int) -> list[Tree]:
    """Trees that were saved. ModelError unless every row reaches a leaf, see `BoostedTrees.check`."""
    kinds = (np.int32, np.float32, np.int32, np.float64, np.float64)
    trees = []
    for tensors in saved:
        tree = Tree(*(each.numpy() for each in tensors))
        nodes, leaves = len(tree.feature), len(tree.value)
        shapes = [(nodes,), (nodes,), (nodes,), (leaves, n_classes), (nodes,)]
        same = [each.shape for each in tree] == shapes and [each.dtype for each in tree] == list(kinds)
        if not same or not nodes:
            raise ModelError("the arrays of a tree have other sizes or types")
        check_nodes(tree.feature, tree.child, leaves, n_features)
        trees.append(tree)
    return trees


def sizes_of_trees(weights: Mapping[str, Tensor], depth: int) -> dict[str, int]:
    """The options of `BoostedTrees` with these weights."""
    names = {"n_trees": "root", "n_nodes": "feature", "n_leaves": "value"}
    return {option: len(weights[name]) for option, name in names.items()} | {"depth": depth}


def check_nodes(feature: np.ndarray, child: np.ndarray, n_leaves: int, n_features: int) -> None:
    """Raise ModelError unless every row reaches a leaf: nodes may come from a stranger's file.

    A child comes after its parent, so no path can go in circles.
    """
    n_nodes = len(feature)
    inner = feature >= 0
    place = np.arange(n_nodes)
    wrong = (feature < -1) | (feature >= n_features) | (child < 0)
    wrong |= np.where(inner, (child <= place) | (child >= n_nodes - 1), child >= n_leaves)
    if wrong.any():
        node = int(wrong.argmax())
        values = f"feature {feature[node]} and child {child[node]}"
        raise ModelError(f"node {node} of the trees has {values}, which is out of range")


class BoostedTrees(nn.Module):
    """A sum of trees: instances (n, ...) → logits (n, k).

    Parameters
    ----------
    n_features, n_classes : int
        Numbers in an instance, and classes k.
    n_trees, n_nodes, n_leaves : int
        Sizes of the buffers. Nodes and leaves are those of all trees, one after the other.
    depth : int
        Most decisions from a root to a leaf.
    """

    base: Tensor  # (k,) logits before the first tree
    root: Tensor  # (trees,) the first node of each tree
    feature: Tensor  # (nodes,) as in `Tree`
    threshold: Tensor
    child: Tensor  # (nodes,) the first child, or the leaf's row of `value`, counted over all trees
    value: Tensor  # (leaves, k)
    importance: Tensor  # (d,) by how much the splits on each feature reduced the squared error in all

    def __init__(
        self, n_features: int, n_classes: int, n_trees: int, n_nodes: int, n_leaves: int, depth: int
    ) -> None:
        super().__init__()
        self.depth = depth
        self.register_buffer("base", torch.zeros(n_classes))
        self.register_buffer("root", torch.zeros(n_trees, dtype=torch.int32))
        self.register_buffer("feature", torch.full((n_nodes,), -1, dtype=torch.int32))
        self.register_buffer("threshold", torch.zeros(n_nodes))
        self.register_buffer("child", torch.zeros(n_nodes, dtype=torch.int32))
        self.register_buffer("value", torch.zeros(n_leaves, n_classes))
        self.register_buffer("importance", torch.zeros(n_features))

    @property
    def options(self) -> dict[str, int]:
        """The arguments of the constructor besides the numbers of features and classes."""
        sizes = {"n_trees": len(self.root), "n_nodes": len(self.feature), "n_leaves": len(self.value)}
        return sizes | {"depth": self.depth}

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        if x.device.type == "cpu" and not torch.compiler.is_compiling():
            return self._compiled_forward(x)
        return self._torch_forward(x)

    def _compiled_forward(self, x: Tensor) -> Tensor:
        from apportion.networks._tree_prediction import add_leaf_values  # numba is slow to import

        logits = self.base.repeat(len(x), 1)
        buffers = (self.root, self.feature, self.threshold, self.child, self.value)
        add_leaf_values(
            x.detach().float().contiguous().numpy(), *(each.numpy() for each in buffers), logits.numpy()
        )
        return logits

    def _torch_forward(self, x: Tensor) -> Tensor:
        """All rows go down all trees at once, one decision after the other, for GPUs and for ONNX."""
        node = self.root.long().expand(len(x), -1)
        for _ in range(self.depth):
            feature = self.feature[node].long()
            right = x.gather(1, feature.clamp_min(0)) > self.threshold[node]
            node = torch.where(feature < 0, node, self.child[node] + right)
        return self.base + self.value[self.child[node].long()].sum(1)

    def check(self) -> None:
        """Raise ModelError unless every row reaches a leaf: buffers may come from a stranger's file."""
        n_nodes = len(self.feature)
        feature, child, root = (each.numpy() for each in (self.feature, self.child, self.root))
        check_nodes(feature, child, len(self.value), len(self.importance))
        if ((root < 0) | (root >= n_nodes)).any():
            raise ModelError(f"a tree begins at node {root.max()}, but there are {n_nodes} nodes")
        if _depth(feature, child, root) > self.depth:
            raise ModelError(f"the trees are deeper than {self.depth} decisions")


def as_module(trees: Sequence[Tree], base: np.ndarray, n_features: int) -> BoostedTrees:
    """The sum of `trees` and of the logits `base` (k,)."""
    k = len(base)
    nodes = [len(tree.feature) for tree in trees]
    leaves = [len(tree.value) for tree in trees]
    first_node = np.cumsum([0, *nodes])
    first_leaf = np.cumsum([0, *leaves])
    empty = [np.empty(0, np.int32)]
    feature = np.concatenate([tree.feature for tree in trees] or empty)
    child = np.concatenate([tree.child for tree in trees] or empty)
    child = child + np.repeat(np.where(True, first_node[:-1], 0), nodes) * (feature >= 0)
    child = child + np.repeat(first_leaf[:-1], nodes) * (feature < 0)
    gain = np.concatenate([tree.gain for tree in trees] or empty)
    inner = feature >= 0
    module = BoostedTrees(
        n_features, k, len(trees), int(first_node[-1]), int(first_leaf[-1]),
        _depth(feature, child, first_node[:-1]),
    )  # fmt: skip
    values = {
        "base": base,
        "root": first_node[:-1],
        "feature": feature,
        "threshold": np.concatenate([tree.threshold for tree in trees] or empty),
        "child": child,
        "value": np.concatenate([tree.value for tree in trees] or [np.empty((0, k))]),
        "importance": np.bincount(feature[inner], gain[inner], n_features),
    }
    for name, value in values.items():
        buffer = getattr(module, name)
        buffer.copy_(torch.from_numpy(np.asarray(value)))
    return module.eval()


@torch.no_grad()
def mean_of_trees(models: Sequence[BoostedTrees]) -> BoostedTrees:
    """The trees of all models in one, whose logits are the mean of theirs."""
    first = models[0]
    sizes = [model.options for model in models]
    total = {name: sum(each[name] for each in sizes) for name in ("n_trees", "n_nodes", "n_leaves")}
    mean = BoostedTrees(
        len(first.importance), len(first.base), **total, depth=max(model.depth for model in models)
    )
    tree = node = leaf = 0
    for model, size in zip(models, sizes, strict=True):
        nodes = slice(node, node + size["n_nodes"])
        mean.root[tree : tree + size["n_trees"]] = model.root + node
        mean.feature[nodes] = model.feature
        mean.threshold[nodes] = model.threshold
        mean.child[nodes] = torch.where(model.feature >= 0, model.child + node, model.child + leaf)
        mean.value[leaf : leaf + size["n_leaves"]] = model.value / len(models)
        mean.base += model.base / len(models)
        mean.importance += model.importance / len(models)
        tree += size["n_trees"]
        node += size["n_nodes"]
        leaf += size["n_leaves"]
    return mean.eval()


def _depth(feature: np.ndarray, child: np.ndarray, root: np.ndarray) -> int:
    """Most decisions on a path. Parents come before children, so one pass over the nodes is enough."""
    depth = np.zeros(len(feature), np.int64)
    for node in np.flatnonzero(feature >= 0):
        first = child[node]
        depth[first : first + 2] = np.maximum(depth[first : first + 2], depth[node] + 1)
    return int(depth.max(initial=0))

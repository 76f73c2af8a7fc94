"""Bags made from labeled data, as experiments need them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apportion.bags.arrays import as_tensor
from apportion.bags.bags import Bags
from apportion.errors import DataError, SettingsError


def make_bags(
    x: Any, y: Any, size: int, n_classes: int, generator: torch.Generator, kind: str = "random"
) -> tuple[Bags, Tensor]:
    """Disjoint bags of labeled instances, for experiments.

    Parameters
    ----------
    x : array-like of shape (n, ...)
        Instances.
    y : array-like of shape (n,)
        Labels from 0 to `n_classes` - 1.
    size : int
        Instances per bag, for kind="kmeans" on average. If it does not divide n, the remainder is one smaller
        bag (P13 in docs/paper.md).
    n_classes : int
        Number of classes.
    generator : torch.Generator
        Source of all randomness.
    kind : {"random", "dirichlet", "cluster", "kmeans"}, default="random"
        Random bags, bags of skewed proportions, bags of similar instances, or bags that are k-means clusters.

    Returns
    -------
    bags : Bags
        The bags, without labels.
    labels : Tensor of shape (n,)
        The hidden labels, in the order of `bags.x`.
    """
    if size < 1:
        raise SettingsError(f"the bag size is {size}; pass at least 1")
    if kind not in BAG_KINDS:
        raise SettingsError(f"kind is {kind!r}; pass one of {', '.join(BAG_KINDS)}")
    x = as_tensor(x)
    y = _as_labels(y, len(x), n_classes)
    bag = torch.from_numpy(BAG_KINDS[kind](x, y, size, generator))
    order = bag.argsort(stable=True)
    sizes = torch.bincount(bag)
    counts = torch.zeros(len(sizes), n_classes, dtype=torch.float64)
    counts.index_put_((bag, y), torch.ones(len(y), dtype=torch.float64), accumulate=True)
    proportions = (counts / sizes.unsqueeze(1)).float()
    return Bags(x[order], sizes, proportions, order, list(range(len(sizes)))), y[order]


def random_bag_ids(x: Tensor, y: Tensor, size: int, generator: torch.Generator) -> np.ndarray:
    """The bag of each instance, when instances are shuffled and cut into bags: the bags of the paper."""
    bag = torch.empty(len(x), dtype=torch.int64)
    bag[torch.randperm(len(x), generator=generator)] = torch.arange(len(x)) // size
    return bag.numpy()


def dirichlet_bag_ids(
    x: Tensor, y: Tensor, size: int, generator: torch.Generator, concentration: float = 1.0
) -> np.ndarray:
    """Bags whose proportions are draws from a symmetric Dirichlet distribution, until classes run out."""
    random = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
    classes, label = np.unique(y.numpy(), return_inverse=True)
    pools = [random.permutation(np.flatnonzero(label == c)) for c in range(len(classes))]
    left = np.array([len(pool) for pool in pools])
    bag_of_row = np.empty(len(y), dtype=np.int64)
    n_bags = -(-len(y) // size)
    for bag in range(n_bags):
        weights = random.dirichlet(np.full(len(classes), concentration))
        taken = np.minimum(random.multinomial(min(size, left.sum()), weights), left)
        missing = min(size, left.sum()) - taken.sum()  # of classes that ran out
        if missing:
            taken += random.multivariate_hypergeometric(left - taken, missing)
        for c, n in enumerate(taken):
            bag_of_row[pools[c][left[c] - n : left[c]]] = bag
        left -= taken
    return bag_of_row


def cluster_bag_ids(
    x: Tensor, y: Tensor, size: int, generator: torch.Generator, n_clusters: int = 10
) -> np.ndarray:
    """Bags skewed toward k-means clusters: similar instances share a bag, as neighbors do."""
    from sklearn.cluster import MiniBatchKMeans
    from sklearn.decomposition import PCA

    state = int(torch.randint(2**31 - 1, (), generator=generator))
    flat = x.reshape(len(x), -1).float().numpy()
    if flat.shape[1] > 50:
        flat = PCA(50, random_state=state).fit_transform(flat)
    cluster = MiniBatchKMeans(n_clusters, random_state=state, n_init=3).fit_predict(flat)
    return dirichlet_bag_ids(x, torch.from_numpy(cluster), size, generator)


def kmeans_bag_ids(x: Tensor, y: Tensor, size: int, generator: torch.Generator) -> np.ndarray:
    """Bags that are k-means clusters, of very different sizes, as published for LLP-VAT [1]_.

    Clusters are found in the first 600 principal components.

    References
    ----------
    .. [1] Tsai & Lin, "Learning from label proportions with consistency regularization", ACML 2020.
    """
    from sklearn.cluster import MiniBatchKMeans
    from sklearn.decomposition import PCA

    state = int(torch.randint(2**31 - 1, (), generator=generator))
    flat = x.reshape(len(x), -1).float().numpy()
    if flat.shape[1] > 600:
        solver = "covariance_eigh"  # exact, and for so many rows the fastest
        flat = PCA(600, svd_solver=solver).fit_transform(flat)  # type: ignore[arg-type]
    n_clusters = max(1, len(x) // size)
    cluster = MiniBatchKMeans(n_clusters, random_state=state, n_init=1).fit_predict(flat)
    return np.unique(cluster, return_inverse=True)[1]  # clusters may have become empty


# (x, y, size, generator) -> (N,) the bag of each instance
BAG_KINDS: dict[str, Callable[[Tensor, Tensor, int, torch.Generator], np.ndarray]] = {
    "random": random_bag_ids,
    "dirichlet": dirichlet_bag_ids,
    "cluster": cluster_bag_ids,
    "kmeans": kmeans_bag_ids,
}


def _as_labels(y: Any, n: int, n_classes: int) -> Tensor:
    """Labels (n,) int64 from whole numbers of any type, checked to be classes."""
    labels = y if isinstance(y, Tensor) else torch.from_numpy(np.array(y))
    if labels.shape != (n,):
        raise DataError(f"y has shape {tuple(labels.shape)} for {n} instances; pass one label per instance")
    if n_classes < 2:
        raise SettingsError(f"n_classes is {n_classes}; pass at least 2")
    not_whole = (labels != labels.long()).nonzero().flatten()
    if len(not_whole):
        row = int(not_whole[0])
        raise DataError(f"y has {labels[row].item()} in row {row}; pass whole numbers from 0")
    labels = labels.long()
    outside = ((labels < 0) | (labels >= n_classes)).nonzero().flatten()
    if len(outside):
        row = int(outside[0])
        raise DataError(
            f"y has {int(labels[row])} in row {row}; with n_classes={n_classes}, pass labels from 0 to "
            f"{n_classes - 1}"
        )
    return labels

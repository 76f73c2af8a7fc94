"""Bags made from labeled data, as experiments need them; the labels part company with the bags here."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apportion.bags.bags import Bags
from apportion.errors import DataError
from apportion.intake.instances import as_instances, as_labels

# (x, y, size, generator) -> the bag of each
Groups = Callable[[Tensor, Tensor, int, torch.Generator], np.ndarray]


def make_bags(
    x: Any, y: Any, size: int, n_classes: int, generator: torch.Generator, groups: Groups | None = None
) -> tuple[Bags, Tensor]:
    """Disjoint bags of labeled instances and, apart from them, the hidden labels in the bags' order.

    The proportions are counted from the labels. Random bags by default; `dirichlet_bag_ids` and
    `cluster_bag_ids` skew them. Where the bag size does not divide the number of instances, the remainder is
    one smaller bag: no instance is dropped (P13).
    """
    if size < 1:
        raise DataError(f"a bag size of {size} is not possible; it must be at least 1")
    x = as_instances(x)
    y = as_labels(y, len(x), n_classes)
    number = torch.from_numpy((groups or random_bag_ids)(x, y, size, generator))
    order = number.argsort(stable=True)
    sizes = torch.bincount(number)
    hidden = y[order]
    counts = torch.zeros(len(sizes), n_classes, dtype=torch.float64)
    counts.index_put_((number, y), torch.ones(len(y), dtype=torch.float64), accumulate=True)
    shares = (counts / sizes.unsqueeze(1)).float()
    return Bags(x[order], sizes, shares, order, list(range(len(sizes)))), hidden


def random_bag_ids(x: Tensor, y: Tensor, size: int, generator: torch.Generator) -> np.ndarray:
    """Instances shuffled and cut into bags: the paper's bags."""
    number = torch.empty(len(x), dtype=torch.int64)
    number[torch.randperm(len(x), generator=generator)] = torch.arange(len(x)) // size
    return number.numpy()


def dirichlet_bag_ids(
    x: Tensor, y: Tensor, size: int, generator: torch.Generator, concentration: float = 1.0
) -> np.ndarray:
    """Bags whose proportions are draws from a symmetric Dirichlet distribution, while the classes last."""
    random = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
    classes, label = np.unique(y.numpy(), return_inverse=True)
    pools = [random.permutation(np.flatnonzero(label == c)) for c in range(len(classes))]
    left = np.array([len(pool) for pool in pools])
    number = np.empty(len(y), dtype=np.int64)
    for bag in range(-(-len(y) // size)):
        weights = random.dirichlet(np.full(len(classes), concentration))
        take = np.minimum(random.multinomial(min(size, left.sum()), weights), left)
        short = min(size, left.sum()) - take.sum()  # classes that ran out: the rest comes from what is left
        if short:
            take += random.multivariate_hypergeometric(left - take, short)
        for c, n in enumerate(take):
            number[pools[c][left[c] - n : left[c]]] = bag
        left -= take
    return number


def cluster_bag_ids(
    x: Tensor, y: Tensor, size: int, generator: torch.Generator, n_clusters: int = 10
) -> np.ndarray:
    """Bags skewed towards k-means clusters: alike instances share a bag, as neighbors do."""
    from sklearn.cluster import MiniBatchKMeans
    from sklearn.decomposition import PCA

    state = int(torch.randint(2**31 - 1, (), generator=generator))
    flat = x.reshape(len(x), -1).float().numpy()
    if flat.shape[1] > 50:
        flat = PCA(50, random_state=state).fit_transform(flat)
    found = MiniBatchKMeans(n_clusters, random_state=state, n_init=3).fit_predict(flat)
    return dirichlet_bag_ids(x, torch.from_numpy(found), size, generator)

"""Data sets that need no download: two moons, Gaussian blobs, and scikit-learn's digits."""

import numpy as np
import torch

from apportion.datasets.instances import Instances


def moons(seed: int = 0, n: int = 2000, noise: float = 0.1) -> Instances:
    """Two interleaving half-circles: n points for training and n fresh ones for testing."""
    from sklearn.datasets import make_moons

    x, y = make_moons(2 * n, noise=noise, random_state=seed)
    return _split("moons", x, y, n, ("upper", "lower"))


def blobs(seed: int = 0, n: int = 2000, classes: int = 4) -> Instances:
    """Gaussian blobs in the plane, one per class: n points for training and n for testing."""
    from sklearn.datasets import make_blobs

    x, y, *_ = make_blobs(2 * n, centers=classes, cluster_std=1.5, random_state=seed)
    x = (x - x[:n].mean(0)) / x[:n].std(0)
    return _split("blobs", x, y, n, tuple(str(c) for c in range(classes)))


def digits(seed: int = 0) -> Instances:
    """1,797 handwritten digits of 8×8 pixels; a random quarter is the test part."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(x))
    return _split("digits", x[order] / 16.0, y[order], len(x) * 3 // 4, tuple("0123456789"))


def _split(name: str, x: np.ndarray, y: np.ndarray, n: int, classes: tuple[str, ...]) -> Instances:
    points = torch.from_numpy(x).float()
    labels = torch.from_numpy(y).long()
    return Instances(name, points[:n], labels[:n], points[n:], labels[n:], classes)

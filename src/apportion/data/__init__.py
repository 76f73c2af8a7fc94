"""The door in: a name becomes instances with a training and a test part."""

from collections.abc import Callable
from pathlib import Path

from apportion.data import adult, images, synthetic
from apportion.data.instances import Instances
from apportion.errors import DataError

Source = Callable[[Path | None, int], Instances]  # (folder of files, seed of what is random)

SOURCES: dict[str, Source] = {
    "moons": lambda folder, seed: synthetic.moons(seed),
    "blobs": lambda folder, seed: synthetic.blobs(seed),
    "digits": lambda folder, seed: synthetic.digits(seed),
    "cifar10": lambda folder, seed: images.cifar10(folder),
    "cifar100": lambda folder, seed: images.cifar100(folder),
    "mnist": lambda folder, seed: images.mnist(folder),
    "fashion_mnist": lambda folder, seed: images.fashion_mnist(folder),
    "kmnist": lambda folder, seed: images.kmnist(folder),
    "adult": lambda folder, seed: adult.adult(folder),
}

__all__ = ["SOURCES", "DataError", "Instances", "Source"]

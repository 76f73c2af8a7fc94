"""Labeled data sets for experiments, examples and benchmarks. The library itself never needs one."""

from apportion.datasets.catalog import (
    DATASETS,
    DOWNLOADS,
    SYNTHETIC,
    fetch_dataset,
    find_dataset,
    load_dataset,
)
from apportion.datasets.download import default_folder
from apportion.datasets.images import IMAGE_SETS
from apportion.datasets.instances import Instances

__all__ = [
    "DATASETS", "DOWNLOADS", "IMAGE_SETS", "SYNTHETIC", "Instances", "default_folder", "fetch_dataset",
    "find_dataset", "load_dataset",
]  # fmt: skip

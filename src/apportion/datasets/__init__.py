"""Labeled data sets for experiments, examples and benchmarks. The library itself never needs one."""

from apportion.datasets.catalog import (
    DATASETS,
    DOWNLOADS,
    SYNTHETIC,
    dataset_names,
    depends_on_seed,
    fetch_dataset,
    find_dataset,
    load_dataset,
    register_dataset,
)
from apportion.datasets.download import default_folder
from apportion.datasets.images import IMAGE_SETS
from apportion.datasets.instances import Instances

__all__ = [
    "DATASETS", "DOWNLOADS", "IMAGE_SETS", "SYNTHETIC", "Instances", "dataset_names", "default_folder",
    "depends_on_seed", "fetch_dataset", "find_dataset", "load_dataset", "register_dataset",
]  # fmt: skip

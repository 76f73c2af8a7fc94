"""The data of a run: bags on a device, and apart from them the labels that only evaluation may see."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from apportion._random import stream
from apportion.augment import views
from apportion.bags.bags import Bags
from apportion.bags.simulate import make_bags
from apportion.datasets import Instances, load_dataset
from apportion.errors import SettingsError
from apportion.experiments.recipe import Recipe


@dataclass(frozen=True)
class RunData:
    data: Instances
    bags: Bags
    hidden: Tensor  # (N,) true labels in the order of the bags, for evaluation only
    validation: Bags | None
    augment: Callable[[Tensor], Tensor]  # raw instances -> what training sees
    prepare: Callable[[Tensor], Tensor]  # raw instances -> what evaluation and labeling see
    device: torch.device


def load_instances(recipe: Recipe, folder: Path | None = None) -> Instances:
    """The labeled data set of a recipe."""
    return load_dataset(recipe.data.name, folder, recipe.seed)


def load_run_data(recipe: Recipe, device: torch.device, folder: Path | None = None) -> RunData:
    """The data of a recipe, in bags that depend on the data, the bag size, the bagging and the seed only."""
    settings = recipe.data
    data = load_instances(recipe, folder)
    generator = stream(recipe.seed, "bags", settings.bagging, settings.bag_size)
    bags, hidden = make_bags(data.x, data.y, settings.bag_size, data.n_classes, generator, settings.bagging)
    validation = None
    if settings.validation_fraction:
        order = torch.randperm(len(bags.sizes), generator=generator)
        n_validation = max(1, round(settings.validation_fraction * len(order)))
        if n_validation == len(order):
            raise SettingsError(
                f"data.validation_fraction is {settings.validation_fraction}, which leaves none of "
                f"{len(order)} bags to train on; set a smaller fraction"
            )
        validation = bags.select(order[:n_validation]).to(device)
        bags = bags.select(order[n_validation:])
        hidden = data.y[bags.source]
    augment, prepare = views(data.mean, data.std, device, recipe.stage_augment)
    data = replace(data, test_x=data.test_x.to(device), test_y=data.test_y.to(device))
    return RunData(data, bags.to(device), hidden.to(device), validation, augment, prepare, device)


def data_checksum(task: RunData) -> str:
    """A checksum of the data and of which instance is in which bag, which must not change on resuming."""
    data = task.data
    total = hashlib.sha256()
    for part in (data.x, data.y, data.test_x, data.test_y, task.bags.source, task.bags.sizes):
        total.update(f"{part.dtype} {tuple(part.shape)}".encode())
        total.update(part.contiguous().cpu().numpy().data)
    return total.hexdigest()[:16]

"""What a run needs in memory: data in bags on a device, and apart from them what evaluation may see."""

import hashlib
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
from apportion.recipes import Recipe
from apportion.training import View


@dataclass(frozen=True)
class Task:
    """Everything a run needs in memory; `hidden` and the test labels go to evaluation only."""

    data: Instances
    bags: Bags
    hidden: Tensor
    held_out: Bags | None
    augment: View
    prepare: View
    device: torch.device


def augmentation(recipe: Recipe) -> str:
    """The views of the stage that this recipe trains."""
    own = None if recipe.second is None else recipe.second.augment
    return recipe.augment if own is None else own


def load_task(recipe: Recipe, device: torch.device, folder: Path | None = None) -> Task:
    """The data on its device, in bags that depend on the data, the bag size and the seed only."""
    data = load_dataset(recipe.data.name, folder, recipe.seed)
    generator = stream(recipe.seed, "bags", recipe.data.bagging, recipe.data.bag_size)
    bags, hidden = make_bags(
        data.x, data.y, recipe.data.bag_size, data.n_classes, generator, recipe.data.bagging
    )
    kept_out = None
    if recipe.data.held_out:
        order = torch.randperm(len(bags.sizes), generator=generator)
        cut = max(1, round(recipe.data.held_out * len(order)))
        if cut == len(order):
            raise SettingsError(f"data.held_out is {recipe.data.held_out}; of {cut} bags it leaves none")
        kept_out, bags = bags.select(order[:cut]), bags.select(order[cut:])
        hidden = data.y[bags.source]
    augment, prepare = views(data.mean, data.std, device, augmentation(recipe))
    data = replace(data, test_x=data.test_x.to(device), test_y=data.test_y.to(device))
    kept_out = kept_out.to(device) if kept_out is not None else None
    return Task(data, bags.to(device), hidden.to(device), kept_out, augment, prepare, device)


def fingerprint(task: Task) -> str:
    """A sum of the data and of which instance is in which bag: what a run that goes on must find again."""
    parts = (task.data.x, task.data.y, task.data.test_x, task.data.test_y, task.bags.source, task.bags.sizes)
    total = hashlib.sha256()
    for part in parts:
        total.update(f"{part.dtype} {tuple(part.shape)}".encode())
        total.update(part.contiguous().cpu().numpy().data)
    return total.hexdigest()[:16]

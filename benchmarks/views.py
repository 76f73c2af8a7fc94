"""Two views without one of its parts at a time: what each is worth on a part of CIFAR-10.

python benchmarks/views.py --data FOLDER [--images 12800] [--size 32] [--epochs 30] [--seed 1] [--only …]

A ResNet-9 of width 8, batches of 256, Muon; accuracy of the averaged weights on 4,000 test images after a
quarter, a half and all of the epochs. Five minutes a training on one core.
"""

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from apportion._device import channels_last
from apportion._random import reseed, stream
from apportion.augment import crop_flip, weak_and_strong
from apportion.bags.arrays import center_pixels
from apportion.bags.simulate import make_bags
from apportion.datasets import load_dataset
from apportion.evaluate import predict_log_proba
from apportion.experiments.recipes import TWO_VIEWS, TWO_VIEWS_MUON
from apportion.experiments.run import build_optimizers, build_schedule
from apportion.methods import make_learner
from apportion.networks import resnet9
from apportion.pipeline import first_stage

HOME = "apportion.methods.two_views"


def no_labels(answers: Tensor, classes: Tensor, scores: Tensor) -> Tensor:
    return 0 * answers[:, 0]


def all_trusted(scores: Tensor) -> Tensor:
    return torch.ones(len(scores), device=scores.device)


def two_weak(x: Tensor) -> Tensor:
    return torch.stack([crop_flip(x).float(), crop_flip(x).float()], 1)


# name -> what of the first stage's settings is another, its options among them; what is put in a part's place
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "as it is": ({}, {}),
    "the largest class for a label": ({"options": {"transport": False}}, {}),
    "every label trusted": ({}, {"trust": all_trusted}),
    "no labels": ({}, {"label_losses": no_labels}),
    "no contrast": ({"options": {"contrast": 0.0}}, {}),
    "neither labels nor contrast": ({"options": {"contrast": 0.0}}, {"label_losses": no_labels}),
    "two weak views": ({}, {}),
    "no averaged weights": ({"options": {"momentum": 0.0}}, {}),
    "SGD instead of Muon": ({"optimizer": TWO_VIEWS.optimizer, "learning_rate": TWO_VIEWS.learning_rate}, {}),
}


def trained(
    name: str, x: Tensor, y: Tensor, asked: argparse.Namespace, right: Callable[..., float]
) -> list[float]:
    settings, parts = VARIANTS[name]
    first = replace(TWO_VIEWS_MUON, epochs=asked.epochs, **settings)
    bags, _ = make_bags(x, y, asked.size, 10, stream(asked.seed, "bags", "random", asked.size))
    reseed(asked.seed, "first", "weights")
    network = channels_last(resnet9(tuple(x.shape[1:]), 10, width=8))
    view = two_weak if name == "two weak views" else weak_and_strong
    with ExitStack() as stack:
        for part, other in parts.items():
            stack.enter_context(patch(f"{HOME}.{part}", other))
        learner = make_learner(first.method, network, bags, options=first.options, to_device=channels_last)
        epoch_states = first_stage(
            learner, bags, build_optimizers(learner.networks(), first), epochs=asked.epochs, seed=asked.seed,
            schedule=build_schedule(first), batch_size=256,
            augment=lambda x: center_pixels(view(x)),
        )  # fmt: skip
        told = {asked.epochs // 4, asked.epochs // 2, asked.epochs}
        return [
            right(epoch_state.learner.classifier)
            for epoch_state in epoch_states
            if epoch_state.epoch.number in told
        ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="the folder that `apportion data` fills")
    parser.add_argument("--images", type=int, default=12_800)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    data = load_dataset("cifar10", asked.data)
    test_x, test_y = data.test_x[:4000], data.test_y[:4000]

    def right(network: torch.nn.Module) -> float:
        return 100 * float(
            (predict_log_proba(network, test_x, center_pixels).argmax(1) == test_y).float().mean()
        )

    print("| two views | after a quarter | a half | all epochs |\n| --- | --- | --- | --- |", flush=True)
    for name in asked.only:
        found = trained(name, data.x[: asked.images], data.y[: asked.images], asked, right)
        print(f"| {name} | {' | '.join(f'{accuracy:.1f}' for accuracy in found)} |", flush=True)


if __name__ == "__main__":
    main()

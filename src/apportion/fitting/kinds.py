"""What both stages do unless they are told otherwise: for rows of values, and for images as bytes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from apportion.augment import crop_flip, weak_and_strong
from apportion.bags.bags import Bags
from apportion.fitting.lengths import (
    FIRST_FOR,
    LARGEST,
    SECOND_FOR,
    batch_of,
    epochs_for,
    epochs_of,
    instances_needed,
    two_usual,
    usual_size,
)
from apportion.grid.beyond import MUON
from apportion.grid.images import GAN
from apportion.grid.others import FAST_MUON, MUON_SECOND
from apportion.intake.instances import as_floats, centered
from apportion.methods import ROW_METHODS
from apportion.networks import resnet9
from apportion.recipes import First, Second
from apportion.training import View


@dataclass(frozen=True)
class Kind:
    words: Mapping[str, Any]  # of ProportionClassifier's settings, those that may be "auto"
    first: First
    own: Mapping[str, First]  # of methods for which that is another
    second: Second
    hold: float  # the share of a student's epochs before the first relabeling
    batch: int  # instances, unless a bag is larger
    needed: Callable[[Bags], int]  # instances, unless these are fewer
    fewest: float  # whole bags in a batch; where it would hold fewer, its rows are scattered
    first_steps: Callable[[float, float], float]  # by the mean size of the bags, the share that is known
    second_steps: float
    epochs: Callable[[float, Tensor, int, float], int]  # by times the usual classes, sizes, batch and steps
    view: Callable[[Tensor, bool], Tensor]  # what a stage sees of raw instances; mirrored?
    both_views: Callable[[Tensor, bool], Tensor]

    def batch_size(self, known: Bags, bags: Bags) -> int:
        """`known` are those of the bags that have proportions."""
        return max(batch_of(bags.sizes, self.batch), self.needed(known))

    def scatters(self, method: str, known: Bags, batch: int | None) -> bool:
        """Whether rows of all bags make a batch: of whole ones it would hold too few to learn from, by the
        size that the bag of a row has on average, or not all of one."""
        sizes = known.sizes.double()
        few = (batch or self.batch) < self.fewest * usual_size(sizes)
        too_large = self.fewest > 0 and float(sizes.max()) > (batch or LARGEST)
        return method in ROW_METHODS and (few or too_large)

    def batches(self, method: str, known: Bags, bags: Bags, asked: int | None) -> tuple[bool, int]:
        """Whether they are scattered, and their instances."""
        scattered = self.scatters(method, known, asked)
        return scattered, asked or (self.batch if scattered else self.batch_size(known, bags))

    def teacher(self, method: str, epochs: int, scattered: bool = False) -> First:
        """The settings of a first stage, before anything is known of its bags and its network."""
        if epochs < 1:
            raise ValueError(f"first_epochs is {epochs}; a teacher needs at least one")
        own = replace(self.own.get(method, self.first), method=method, epochs=epochs)
        return replace(own, batches="scattered" if scattered else None)

    def student(self, epochs: int) -> Second:
        return replace(self.second, epochs=epochs)

    def first_epochs(
        self, known: Bags, bags: Bags, batch: int, scattered: bool = False, asked: int | None = None
    ) -> int:
        """`asked` are the instances of a batch that somebody has named."""
        steps = self.first_steps(float(known.sizes.float().mean()), len(known.x) / len(bags.x))
        sizes = torch.ones(len(known.x)) if scattered else known.sizes
        if not self.fewest and asked is None:  # rows: images have not been tried
            batch = min(batch, max(self.batch, self.needed(known), two_usual(known.sizes)))
        return self.epochs(bags.n_classes / FIRST_FOR, sizes, batch, steps)

    def second_epochs(self, bags: Bags, batch: int, scattered: bool = False) -> int:
        sizes = torch.ones(len(bags.x)) if scattered else bags.sizes
        return self.epochs(bags.n_classes / SECOND_FOR, sizes, batch, self.second_steps)

    def seen(self, stage: str, mirror: bool) -> View:
        """What a method of either stage sees."""
        view = self.both_views if stage == "two-views" else self.view
        return lambda x: view(x, mirror)


ROWS = Kind(
    words={"first_stage": "dllp", "second_stage": "plot", "backbone": "mlp", "labels": "soft"},
    first=First(rate=2e-3),
    own={},
    second=Second(rate=1e-3, schedule="one-cycle"),
    hold=0.6,
    batch=256,
    needed=instances_needed,
    fewest=0.0,
    first_steps=lambda size, known: 1000 * known**0.5,  # fewer bags are sooner learned by heart
    second_steps=500,
    epochs=epochs_for,
    view=lambda x, mirror: as_floats(x),
    both_views=weak_and_strong,
)
# as in the tables, but for the gradient's length, which Adam does not see and Muon's SGD does
IMAGES_GAN = replace(FAST_MUON, generator_rate=GAN["generator_rate"], options={"adversarial": 0.01})
# as in beyond-resnet9-muon: 98 epochs of 50,000 images at bags of 16, 278 at 128
IMAGES = Kind(
    words={
        "first_stage": "two-views",
        "second_stage": None,  # after two views it gains at bags of 16, and loses a little above
        "backbone": "resnet9",
        "labels": "hard",
    },
    first=FAST_MUON,
    own={"two-views": MUON, "gan": IMAGES_GAN},
    second=MUON_SECOND,
    hold=1 / 8,
    batch=512,
    needed=lambda known: 0,
    fewest=4.0,
    first_steps=lambda size, known: 2400 * size**0.5,
    second_steps=8000,
    epochs=lambda k, sizes, batch, steps: epochs_of(sizes, batch, steps, most=400),
    view=lambda x, mirror: centered(crop_flip(x, mirror=mirror)),
    both_views=lambda x, mirror: centered(weak_and_strong(x, mirror)),
)
# what one core learns in minutes: a sixty-fourth of the arithmetic; as on MNIST (docs/results.md)
CPU_IMAGES = replace(
    IMAGES,
    words={**IMAGES.words, "backbone": partial(resnet9, width=8)},
    batch=256,
    fewest=2.0,
    first_steps=lambda size, known: 250 * max(128.0, size) ** 0.5,
)

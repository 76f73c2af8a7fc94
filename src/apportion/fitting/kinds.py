"""What both stages do unless they are told otherwise: for rows of values, and for images as bytes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apportion.backbones import resnet9
from apportion.bags import Bags
from apportion.data.augment import crop_flip
from apportion.data.views import weak_and_strong
from apportion.fitting.lengths import batch_of, epochs_of, instances_needed
from apportion.fitting.shapes import is_images, misfits
from apportion.grid.beyond import TWO_VIEWS
from apportion.grid.images import FAST, FAST_SECOND
from apportion.intake.instances import BagError, as_floats, centred, stacked
from apportion.recipes import First, Second
from apportion.train import View


@dataclass(frozen=True)
class Kind:
    words: Mapping[str, Any]  # of ProportionClassifier's settings, those that may be "auto"
    first: First  # of a method that sees one view
    two_views: First
    second: Second
    hold: float  # the share of a student's epochs before the first relabelling
    batch: int  # instances, unless a bag is larger
    needed: Callable[[Bags], int]  # instances, unless these are fewer
    first_steps: Callable[[float, float], float]  # by the mean size of the bags, the share that is known
    second_steps: float
    most_epochs: int
    view: Callable[[Tensor, bool], Tensor]  # what a stage sees of raw instances; mirrored?
    both_views: Callable[[Tensor, bool], Tensor]

    def instances_per_batch(self, known: Bags, bags: Bags) -> int:
        """`known` are those of the bags that have proportions."""
        return max(batch_of(bags.sizes, self.batch), self.needed(known))

    def teacher(self, method: str, epochs: int, rate: float | None) -> First:
        """The settings of a first stage; a rate of None is the one that goes with them."""
        own = self.two_views if method == "two-views" else replace(self.first, method=method)
        return replace(own, epochs=epochs, rate=own.rate if rate is None else rate)

    def student(self, epochs: int, rate: float | None) -> Second:
        return replace(self.second, epochs=epochs, rate=self.second.rate if rate is None else rate)

    def first_epochs(self, known: Bags, bags: Bags, batch: int) -> int:
        steps = self.first_steps(float(known.sizes.float().mean()), len(known.x) / len(bags.x))
        return epochs_of(known.sizes, batch, steps, most=self.most_epochs)

    def second_epochs(self, bags: Bags, batch: int) -> int:
        return epochs_of(bags.sizes, batch, self.second_steps, most=self.most_epochs)

    def seen(self, stage: str, mirror: bool) -> View:
        """What a method of either stage sees."""
        view = self.both_views if stage == "two-views" else self.view
        return lambda x: view(x, mirror)


ROWS = Kind(
    words={"first_stage": "dllp", "second_stage": "plot", "backbone": "mlp", "labels": "soft"},
    first=First(rate=2e-3),
    two_views=First("two-views", rate=2e-3),
    second=Second(rate=1e-3, schedule="one-cycle"),
    hold=0.6,
    batch=256,
    needed=instances_needed,
    first_steps=lambda size, known: 1000 * known**0.5,  # fewer bags are sooner learnt by heart
    second_steps=500,
    most_epochs=10**6,
    view=lambda x, mirror: as_floats(x),
    both_views=weak_and_strong,
)
# as in beyond-resnet9: 98 epochs of 50,000 images at bags of 16, 278 at 128
IMAGES = Kind(
    words={
        "first_stage": "two-views",
        "second_stage": None,  # after two views it gains at bags of 16, and loses a little above
        "backbone": "resnet9",
        "labels": "hard",
    },
    first=FAST.first,
    two_views=TWO_VIEWS,
    second=FAST_SECOND,
    hold=1 / 8,
    batch=512,
    needed=lambda known: 0,
    first_steps=lambda size, known: 2400 * size**0.5,
    second_steps=8000,
    most_epochs=400,
    view=lambda x, mirror: centred(crop_flip(x, mirror=mirror)),
    both_views=lambda x, mirror: centred(weak_and_strong(x, mirror)),
)


# what one core learns in minutes: a sixty-fourth of the arithmetic; as on MNIST (docs/results.md)
CPU_IMAGES = replace(
    IMAGES,
    words={**IMAGES.words, "backbone": partial(resnet9, width=8)},
    batch=256,
    first_steps=lambda size, known: 250 * max(128.0, size) ** 0.5,
)


def kind_of(x: Tensor, device: torch.device) -> Kind:
    if not is_images(x):
        return ROWS
    return CPU_IMAGES if device.type == "cpu" else IMAGES


def as_fitted(estimator: Any, x: Any) -> Any:
    """What a fitted network is asked about; images of another layout are refused with what to pass."""
    x, shape = stacked(x), estimator.instance_shape_
    found: tuple[int, ...] = tuple(getattr(x, "shape", ()))
    if len(shape) == 3 and found and found[1:] != shape:
        if found in (shape, shape[1:]):
            raise BagError(
                f"X is one image of shape {found}; pass X[{', '.join(['None'] * (4 - len(found)))}]"
            )
        remedies: dict[tuple[int, ...], str] = {(*shape[1:], shape[0]): "; pass X.transpose(0, 3, 1, 2)"}
        remedies |= {shape[1:]: "; pass X[:, None]"} if shape[0] == 1 else {}
        raise BagError(f"X has instances of shape {found[1:]}, fit had {shape}{remedies.get(found[1:], '')}")
    if estimator.bytes_ and isinstance(x, np.ndarray) and x.dtype.kind in "iu" and x.dtype != np.uint8:
        bits = "(X >> 8)" if x.size and x.max() > 255 else "X"  # of 16 bits
        raise BagError(f"X has numbers of type {x.dtype}, fit had bytes; pass {bits}.astype(numpy.uint8)")
    return x


def told(settings: Mapping[str, Any], x: Tensor, device: torch.device) -> dict[str, Any]:
    """The settings with what goes with these instances in place of every "auto"."""
    for problem in misfits(x, settings["backbone"]):
        raise BagError(f"instances have shape {tuple(x.shape[1:])}{problem}")
    words = kind_of(x, device).words
    return dict(settings) | {name: word for name, word in words.items() if settings[name] == "auto"}

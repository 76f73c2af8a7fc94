"""What both stages do unless they are told otherwise: for rows of values, and for images as bytes."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from apportion.backbones import BACKBONES, conv13
from apportion.bags import Bags
from apportion.data.augment import crop_flip
from apportion.data.views import weak_and_strong
from apportion.grid.beyond import TWO_VIEWS
from apportion.grid.images import FAST, FAST_SECOND
from apportion.instances import BagError, as_floats, centred
from apportion.recipes import First, Second
from apportion.train import View

CHANNELS = (1, 3, 4)  # grey, colour, colour and transparency


def batch_of(sizes: Tensor, least: int = 256) -> int:
    """Instances in a batch: 256, or the largest bag up to 4,096, since a sampled bag's shares are noisy."""
    return min(4096, max(least, int(sizes.max())))


def epochs_of(
    sizes: Tensor, instances_per_batch: int, steps: float = 1000, least: int = 5, most: int = 10**6
) -> int:
    """Epochs that make about `steps` steps, `least` to `most`: small data is gone over more often."""
    batches = int(sizes.clamp_max(instances_per_batch).sum()) / instances_per_batch
    return min(most, max(least, math.ceil(steps / math.ceil(batches))))


@dataclass(frozen=True)
class Kind:
    words: Mapping[str, Any]  # of ProportionClassifier's settings, those that may be "auto"
    first: First  # of a method that sees one view
    two_views: First
    second: Second
    hold: float  # the share of a student's epochs before the first relabelling
    batch: int  # instances, unless a bag is larger
    first_steps: Callable[[float, float], float]  # by the mean size of the bags, the share that is known
    second_steps: float
    most_epochs: int
    view: Callable[[Tensor, bool], Tensor]  # what a stage sees of raw instances; mirrored?
    both_views: Callable[[Tensor, bool], Tensor]

    def teacher(self, method: str, epochs: int, rate: float | None) -> First:
        """The settings of a first stage; a rate of None is the one that goes with them."""
        own = self.two_views if method == "two-views" else replace(self.first, method=method)
        return replace(own, epochs=epochs, rate=own.rate if rate is None else rate)

    def student(self, epochs: int, rate: float | None) -> Second:
        return replace(self.second, epochs=epochs, rate=self.second.rate if rate is None else rate)

    def first_epochs(self, known: Bags, bags: Bags, batch: int) -> int:
        """`known` are those of the bags that have proportions."""
        steps = self.first_steps(float(known.sizes.float().mean()), len(known.x) / len(bags.x))
        return epochs_of(known.sizes, batch, steps, most=self.most_epochs)

    def second_epochs(self, bags: Bags, batch: int) -> int:
        return epochs_of(bags.sizes, batch, self.second_steps, most=self.most_epochs)

    def seen(self, method: str, mirror: bool) -> View:
        view = self.both_views if method == "two-views" else self.view
        return lambda x: view(x, mirror)


ROWS = Kind(
    words={"first_stage": "dllp", "second_stage": "plot", "backbone": "mlp", "labels": "soft"},
    first=First(rate=2e-3),
    two_views=First("two-views", rate=2e-3),
    second=Second(rate=1e-3, schedule="one-cycle"),
    hold=0.6,
    batch=256,
    first_steps=lambda size, known: 1000 * known**0.5,  # fewer bags are sooner learnt by heart
    second_steps=500,
    most_epochs=10**6,
    view=lambda x, mirror: as_floats(x),
    both_views=weak_and_strong,
)
# as in the image tables: 60 epochs of 50,000 images at bags of 16, 170 at 128
IMAGES = Kind(
    words={
        "first_stage": "two-views",
        "second_stage": None,  # after two views it gains at bags of 16, and loses a little above
        "backbone": partial(conv13, dropout=0.0),
        "labels": "hard",
    },
    first=FAST.first,
    two_views=TWO_VIEWS,
    second=FAST_SECOND,
    hold=1 / 8,
    batch=FAST.instances_per_batch,
    first_steps=lambda size, known: 750 * size**0.5,
    second_steps=4000,
    most_epochs=300,
    view=lambda x, mirror: centred(crop_flip(x, mirror=mirror)),
    both_views=lambda x, mirror: centred(weak_and_strong(x, mirror)),
)


def kind_of(x: Tensor) -> Kind:
    return IMAGES if x.ndim == 4 and x.dtype == torch.uint8 else ROWS


def told(settings: Mapping[str, Any], x: Tensor) -> dict[str, Any]:
    """The settings with what goes with these instances in place of every "auto"."""
    for problem in _misfits(x, settings["backbone"]):
        raise BagError(f"instances have shape {tuple(x.shape[1:])}{problem}")
    words = kind_of(x).words
    return dict(settings) | {name: word for name, word in words.items() if settings[name] == "auto"}


def _misfits(x: Tensor, backbone: Any) -> Iterator[str]:
    """Why instances are not what the network takes, each with its remedy."""
    wanted = "images are (n, channels, height, width)"
    convolves = isinstance(backbone, str) and backbone in BACKBONES and backbone != "mlp"
    if kind_of(x) is IMAGES and x.shape[1] not in CHANNELS and x.shape[3] in CHANNELS:
        yield f", their channels last, but {wanted}; pass X.transpose(0, 3, 1, 2)"
    if x.ndim > 2 and backbone == "mlp":
        yield ", but an mlp takes rows of values; pass X.reshape(len(X), -1), or name another backbone"
    if x.ndim == 3 and (convolves or backbone == "auto"):
        yield f", but {wanted}; pass X[:, None] where they are grey, or a backbone of your own"
    if x.ndim != 4 and convolves:
        yield f", but {wanted} for the backbone {backbone}; name another, such as mlp for rows of values"
    if x.ndim > 2 and kind_of(x) is ROWS and backbone == "auto":
        yield (
            " and are no bytes; pass images as bytes (n, channels, height, width): X.astype(numpy.uint8) of "
            "pixels from 0 to 255, (255 * X).round().astype(numpy.uint8) of those from 0 to 1; or name a "
            "backbone"
        )


def check_alike(x: Tensor, shape: tuple[int, ...], bytes_: bool) -> None:
    """Refuse instances that are not such as those of `fit`: bytes are centred and floats are not."""
    if tuple(x.shape[1:]) != shape:
        raise ValueError(f"X has instances of shape {tuple(x.shape[1:])}, fit had {shape}")
    if bytes_ and x.dtype != torch.uint8:
        raise ValueError("X has floats, fit had bytes; pass pixels from 0 to 255 as numpy.uint8")
    if x.dtype == torch.uint8 and not bytes_:
        raise ValueError("X has bytes, fit had floats; pass floats, scaled as those of fit were")

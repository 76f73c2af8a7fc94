"""What training, and what evaluation and labelling see of raw instances."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from apportion.data.augment import crop_flip, scaled
from apportion.data.instances import DataError
from apportion.data.strong import strong


def weak_and_strong(x: Tensor, mirror: bool = True) -> Tensor:
    """Two views of each instance, (n, 2, ...): images as bytes, or rows of values."""
    if x.ndim == 2:
        return torch.stack([x.float(), swapped(x.float())], 1)
    if x.ndim == 4 and x.dtype == torch.uint8:
        return torch.stack([crop_flip(x, mirror=mirror).float(), strong(x, mirror=mirror)], 1)
    raise DataError(
        f"two views are of rows of values, or of images as bytes (n, c, h, w), not of {x.dtype} "
        f"{tuple(x.shape)}; use another method"
    )


def swapped(x: Tensor, share: float = 0.3) -> Tensor:
    """Rows (n, d) with a share of their values taken from other rows of the batch, each value's own row.

    The strong view of a table: every value stays one that its column has, and nothing is said of what goes
    together (SCARF, Bahri et al., 2022, with fewer swaps).
    """
    other = torch.randint(0, len(x), x.shape, device=x.device)
    return torch.where(torch.rand(x.shape, device=x.device) < share, x.gather(0, other), x)


PAIRS = ("weak+strong", "weak+strong-unmirrored")  # two views of each instance
AUGMENTATIONS = {
    "none": lambda x: x,
    "crop": partial(crop_flip, mirror=False),
    "crop+flip": crop_flip,
    "strong": strong,
    "strong-unmirrored": partial(strong, mirror=False),
    "weak+strong": weak_and_strong,
    "weak+strong-unmirrored": partial(weak_and_strong, mirror=False),
}


def views(
    mean: Sequence[float], std: Sequence[float], device: torch.device, augment: str
) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """(what training sees, what evaluation and labelling see) of raw instances."""
    if augment not in AUGMENTATIONS:
        raise DataError(f"no augmentation '{augment}'; there are {', '.join(AUGMENTATIONS)}")
    if not mean and augment not in ("none", *PAIRS):
        raise DataError(f"the augmentation '{augment}' is for images; this data has none: use augment=none")
    if not mean:
        return AUGMENTATIONS[augment], (lambda x: x)
    centre = 255 * torch.tensor(mean, device=device).view(1, -1, 1, 1)
    spread = 255 * torch.tensor(std, device=device).view(1, -1, 1, 1)

    def plain(x: Tensor) -> Tensor:
        return scaled(x, centre, spread)

    return (lambda x: plain(AUGMENTATIONS[augment](x))), plain

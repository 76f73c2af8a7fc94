"""What training, and what evaluation and labelling see of raw instances."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from apportion.data.augment import crop_flip, scaled
from apportion.data.instances import DataError
from apportion.data.strong import strong


def weak_and_strong(x: Tensor) -> Tensor:
    """Two views of each image, (n, 2, c, h, w): crop and flip, and a strong one."""
    return torch.stack([crop_flip(x).float(), strong(x)], 1)


AUGMENTATIONS = {
    "none": lambda x: x,
    "crop+flip": crop_flip,
    "strong": strong,
    "weak+strong": weak_and_strong,
}


def views(
    mean: Sequence[float], std: Sequence[float], device: torch.device, augment: str
) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """(what training sees, what evaluation and labelling see) of raw instances."""
    if augment not in AUGMENTATIONS:
        raise DataError(f"no augmentation '{augment}'; there are {', '.join(AUGMENTATIONS)}")
    if not mean and augment != "none":
        raise DataError(f"the augmentation '{augment}' is for images; this data has none: use augment=none")
    if not mean:
        return (lambda x: x), (lambda x: x)
    centre = 255 * torch.tensor(mean, device=device).view(1, -1, 1, 1)
    spread = 255 * torch.tensor(std, device=device).view(1, -1, 1, 1)

    def plain(x: Tensor) -> Tensor:
        return scaled(x, centre, spread)

    return (lambda x: plain(AUGMENTATIONS[augment](x))), plain

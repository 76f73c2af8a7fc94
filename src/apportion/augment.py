"""Views of images: functions of a batch on its device, drawing from torch's generator of that device.

Strong views of images: each image moved, recolored and partly covered by draws of its own, in one batch.

Every change is a function of a batch and of numbers, one set an image; `strong` draws the numbers from
torch's generator of the device. Colors change by one matrix an image, so that five changes cost one pass.

What training, and what evaluation and labeling see of raw instances.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from apportion.errors import DataError


def scaled(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Bytes (n, c, h, w) as float32 of zero mean and unit variance by channel."""
    return x.to(mean.dtype).sub(mean).div(std)


def crop_flip(x: Tensor, padding: int | None = None, mirror: bool = True) -> Tensor:
    """Each image shifted by up to `padding` pixels both ways, black beyond its edge, and flipped half of
    the time. Of itself it is an eighth of the shorter side, at most 4: half of a small image shows nothing.
    Not flipped where `mirror` is False: the mirror image of a digit or a letter is none.

    One gather over the whole batch, in bytes.
    """
    n, _, height, width = x.shape
    device, padding = x.device, min(4, (min(height, width) + 4) // 8) if padding is None else padding
    shift = torch.randint(-padding, padding + 1, (2, n, 1), device=device)
    rows = torch.arange(height, device=device) + shift[0]  # (n, h)
    columns = torch.arange(width, device=device).expand(n, width)
    if mirror:
        flip = torch.randint(0, 2, (n, 1), device=device, dtype=torch.bool)
        columns = torch.where(flip, columns.flip(1), columns)
    columns = columns + shift[1]  # (n, w)
    inside = ((rows >= 0) & (rows < height)).unsqueeze(2) & ((columns >= 0) & (columns < width)).unsqueeze(1)
    one = torch.arange(n, device=device).view(n, 1, 1)
    pixels = x.permute(0, 2, 3, 1)[
        one, rows.clamp(0, height - 1).unsqueeze(2), columns.clamp(0, width - 1).unsqueeze(1)
    ]
    return (pixels * inside.unsqueeze(3)).permute(0, 3, 1, 2)


LUMINANCE = (0.299, 0.587, 0.114)
YIQ = (LUMINANCE, (0.596, -0.274, -0.322), (0.211, -0.523, 0.312))
RGB = torch.tensor(YIQ, dtype=torch.float64).inverse().tolist()
# These stay numbers: a tensor of them would be copied in every step, and wait for all of the step before.


def strong(x: Tensor, hole: int | None = None, mirror: bool = True) -> Tensor:
    """A strong view of bytes (n, c, h, w), as float32 in [0, 255].

    Crop and, if `mirror`, flip; turned by up to 30°, sheared by up to 0.3, zoomed by up to a fifth; for
    color images brightness, contrast and saturation up to 40 % either way, hue up to 36°, gray in 15 % and
    negative in 5 % of them; then a square hole, of itself 15 pixels or less than half of the shorter side.
    """
    n, device = len(x), x.device

    def drawn(low: float, high: float) -> Tensor:
        return torch.empty(n, device=device).uniform_(low, high)

    images = crop_flip(x, mirror=mirror).float() / 255
    images = moved(images, drawn(-math.pi / 6, math.pi / 6), drawn(-0.3, 0.3), drawn(0.8, 1.2))
    if x.shape[1] == 3:
        saturation = drawn(0.6, 1.4) * (drawn(0, 1) > 0.15)
        colors = (drawn(0.6, 1.4), drawn(0.6, 1.4), saturation, drawn(-math.pi / 5, math.pi / 5))
        images = recolored(images, *colors, negative=drawn(0, 1) < 0.05)
    row, column = (torch.randint(0, size, (n,), device=device) for size in x.shape[2:])
    hole = min(15, 15 * min(x.shape[2:]) // 32) if hole is None else hole
    return 255 * covered(images, row, column, hole)


def moved(images: Tensor, angle: Tensor, shear: Tensor, zoom: Tensor) -> Tensor:
    """Each image sheared along its rows, turned counter-clockwise and enlarged, black beyond its edge."""
    cos, sin = angle.cos() / zoom, angle.sin() / zoom
    # what the output shows at (u, v) is the input at matrix · (u, v): the change undone
    wide = images.shape[3] / images.shape[2]  # u and v run from -1 to 1 in an image of any shape
    first = torch.stack([cos - shear * sin, (-sin - shear * cos) / wide], 1)
    second = torch.stack([sin * wide, cos], 1)
    matrix = torch.stack([first, second], 1)
    matrix = torch.cat([matrix, matrix.new_zeros(len(matrix), 2, 1)], 2)
    grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="zeros", align_corners=False)


def recolored(
    images: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor, hue: Tensor, negative: Tensor
) -> Tensor:
    """Images in [0, 1] times brightness, then contrast about their mean gray, saturation, hue and negative.

    One is no change, for hue zero. Clipped to [0, 1] once, at the end.
    """
    turn, gray = turned(hue), 1 - saturation
    # gray stays where it is when colors turn, so that saturation is added after the turn
    entries = [saturation * turn[:, i, j] + gray * w for i in range(3) for j, w in enumerate(LUMINANCE)]
    matrix = (brightness * contrast).view(-1, 1, 1, 1, 1) * matrices(entries)[..., None, None]
    means = images.mean((2, 3))
    mean = brightness * sum(w * means[:, j] for j, w in enumerate(LUMINANCE))
    # the contrast's offset is gray, which neither saturation nor hue changes
    out = ((1 - contrast) * mean).view(-1, 1, 1, 1)
    for j in range(3):  # no matrix product, which a compiler would leave as it is
        out = torch.addcmul(out, matrix[:, :, j], images[:, j, None])
    out = out.clamp(0, 1)
    return torch.where(negative.view(-1, 1, 1, 1), 1 - out, out)


def turned(hue: Tensor) -> Tensor:
    """Matrices (n, 3, 3) that turn the colors of RGB by an angle about gray, in YIQ."""
    cos, sin = hue.cos(), hue.sin()
    return matrices(
        [
            a * y + cos * (b * i + c * q) + sin * (c * i - b * q)
            for a, b, c in RGB
            for y, i, q in zip(*YIQ, strict=True)
        ]
    )


def matrices(entries: list[Tensor]) -> Tensor:
    """(n, 3, 3) from nine entries (n,), row by row."""
    return torch.stack(entries, 1).view(-1, 3, 3)


def covered(images: Tensor, row: Tensor, column: Tensor, hole: int) -> Tensor:
    """A square of `hole` pixels about (row, column) in middle gray, cut off at the edge."""
    height, width = images.shape[2:]
    rows = (torch.arange(height, device=images.device) - row.unsqueeze(1) + hole // 2).unsqueeze(2)
    columns = (torch.arange(width, device=images.device) - column.unsqueeze(1) + hole // 2).unsqueeze(1)
    inside = (rows >= 0) & (rows < hole) & (columns >= 0) & (columns < hole)
    return images.masked_fill(inside.unsqueeze(1), 0.5)


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
    """(what training sees, what evaluation and labeling see) of raw instances."""
    if augment not in AUGMENTATIONS:
        raise DataError(f"no augmentation '{augment}'; there are {', '.join(AUGMENTATIONS)}")
    if not mean and augment not in ("none", *PAIRS):
        raise DataError(f"the augmentation '{augment}' is for images; this data has none: use augment=none")
    if not mean:
        return AUGMENTATIONS[augment], (lambda x: x)
    center = 255 * torch.tensor(mean, device=device).view(1, -1, 1, 1)
    spread = 255 * torch.tensor(std, device=device).view(1, -1, 1, 1)

    def plain(x: Tensor) -> Tensor:
        return scaled(x, center, spread)

    return (lambda x: plain(AUGMENTATIONS[augment](x))), plain

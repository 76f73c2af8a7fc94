"""Strong views of images: each image moved, recoloured and partly covered by draws of its own, in one batch.

Every change is a function of a batch and of numbers, one set an image; `strong` draws the numbers from
torch's generator of the device. Colours change by one matrix an image, so that five changes cost one pass.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from apportion.data.augment import crop_flip

LUMINANCE = (0.299, 0.587, 0.114)
YIQ = (LUMINANCE, (0.596, -0.274, -0.322), (0.211, -0.523, 0.312))
RGB = torch.tensor(YIQ, dtype=torch.float64).inverse().tolist()
# These stay numbers: a tensor of them would be copied in every step, and wait for all of the step before.


def strong(x: Tensor, hole: int | None = None, mirror: bool = True) -> Tensor:
    """A strong view of bytes (n, c, h, w), as float32 in [0, 255].

    Crop and, if `mirror`, flip; turned by up to 30°, sheared by up to 0.3, zoomed by up to a fifth; for
    colour images brightness, contrast and saturation up to 40 % either way, hue up to 36°, grey in 15 % and
    negative in 5 % of them; then a square hole, of itself 15 pixels or less than half of the shorter side.
    """
    n, device = len(x), x.device

    def drawn(low: float, high: float) -> Tensor:
        return torch.empty(n, device=device).uniform_(low, high)

    images = crop_flip(x, mirror=mirror).float() / 255
    images = moved(images, drawn(-math.pi / 6, math.pi / 6), drawn(-0.3, 0.3), drawn(0.8, 1.2))
    if x.shape[1] == 3:
        saturation = drawn(0.6, 1.4) * (drawn(0, 1) > 0.15)
        colours = (drawn(0.6, 1.4), drawn(0.6, 1.4), saturation, drawn(-math.pi / 5, math.pi / 5))
        images = recoloured(images, *colours, negative=drawn(0, 1) < 0.05)
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


def recoloured(
    images: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor, hue: Tensor, negative: Tensor
) -> Tensor:
    """Images in [0, 1] times brightness, then contrast about their mean grey, saturation, hue and negative.

    One is no change, for hue zero. Clipped to [0, 1] once, at the end.
    """
    turn, grey = turned(hue), 1 - saturation
    # grey stays where it is when colours turn, so that saturation is added after the turn
    entries = [saturation * turn[:, i, j] + grey * w for i in range(3) for j, w in enumerate(LUMINANCE)]
    matrix = (brightness * contrast).view(-1, 1, 1, 1, 1) * matrices(entries)[..., None, None]
    means = images.mean((2, 3))
    mean = brightness * sum(w * means[:, j] for j, w in enumerate(LUMINANCE))
    # the contrast's offset is grey, which neither saturation nor hue changes
    out = ((1 - contrast) * mean).view(-1, 1, 1, 1)
    for j in range(3):  # no matrix product, which a compiler would leave as it is
        out = torch.addcmul(out, matrix[:, :, j], images[:, j, None])
    out = out.clamp(0, 1)
    return torch.where(negative.view(-1, 1, 1, 1), 1 - out, out)


def turned(hue: Tensor) -> Tensor:
    """Matrices (n, 3, 3) that turn the colours of RGB by an angle about grey, in YIQ."""
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
    """A square of `hole` pixels about (row, column) in middle grey, cut off at the edge."""
    height, width = images.shape[2:]
    rows = (torch.arange(height, device=images.device) - row.unsqueeze(1) + hole // 2).unsqueeze(2)
    columns = (torch.arange(width, device=images.device) - column.unsqueeze(1) + hole // 2).unsqueeze(1)
    inside = (rows >= 0) & (rows < hole) & (columns >= 0) & (columns < hole)
    return images.masked_fill(inside.unsqueeze(1), 0.5)

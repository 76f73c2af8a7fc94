"""Views of instances: weak and strong augmentations of images, and swapped features of tables.

All of them are functions of a whole batch on its device, and draw from torch's global generator of that
device. A weak view is a random crop and flip. A strong view is also rotated, sheared, zoomed, recolored and
partly covered, each image by its own numbers. What a strong view does is in three plain functions of images
and numbers: `affine`, `adjust_colors` and `cutout`.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from apportion.errors import DataError, SettingsError

# --- weak views


def crop_flip(x: Tensor, padding: int | None = None, horizontal_flip: bool = True) -> Tensor:
    """Images (n, c, h, w), each shifted by up to `padding` pixels both ways and flipped half of the time.

    Pixels beyond the edge are black. The default padding is an eighth of the shorter side, at most 4, so that
    small images keep most of their content. Pass `horizontal_flip=False` if mirror images may belong to
    another class, as with digits and letters. The type is kept, such as bytes. The whole batch is one gather.
    """
    n, _, height, width = x.shape
    device = x.device
    if padding is None:
        padding = min(4, (min(height, width) + 4) // 8)
    shift = torch.randint(-padding, padding + 1, (2, n, 1), device=device)
    rows = torch.arange(height, device=device) + shift[0]  # (n, h)
    columns = torch.arange(width, device=device).expand(n, width)
    if horizontal_flip:
        flip = torch.randint(0, 2, (n, 1), device=device, dtype=torch.bool)
        columns = torch.where(flip, columns.flip(1), columns)
    columns = columns + shift[1]  # (n, w)
    inside = ((rows >= 0) & (rows < height)).unsqueeze(2) & ((columns >= 0) & (columns < width)).unsqueeze(1)
    image = torch.arange(n, device=device).view(n, 1, 1)
    pixels = x.permute(0, 2, 3, 1)[
        image, rows.clamp(0, height - 1).unsqueeze(2), columns.clamp(0, width - 1).unsqueeze(1)
    ]
    return (pixels * inside.unsqueeze(3)).permute(0, 3, 1, 2)


# --- strong views

LUMINANCE = (0.299, 0.587, 0.114)
RGB_TO_YIQ = (LUMINANCE, (0.596, -0.274, -0.322), (0.211, -0.523, 0.312))


def _make_color_matrices() -> Tensor:
    """(4, 3, 3) colors to gray, and the parts of a rotation: fixed, times its cosine, times its sine."""
    y, i, q = to_yiq = torch.tensor(RGB_TO_YIQ, dtype=torch.float64)
    of_y, of_i, of_q = to_yiq.inverse().mT
    outer = torch.outer
    fixed, cosine = outer(of_y, y), outer(of_i, i) + outer(of_q, q)
    sine = outer(of_q, i) - outer(of_i, q)
    return torch.stack([y.expand(3, 3), fixed, cosine, sine]).float()


COLOR_MATRICES = _make_color_matrices()
_on_device: dict[torch.device, Tensor] = {}


def strong(x: Tensor, hole: int | None = None, horizontal_flip: bool = True) -> Tensor:
    """Strong views of images, from bytes (n, c, h, w) to float32 in [0, 255].

    Crop and flip; rotation by up to 30°, shear up to 0.3, zoom up to a fifth. For color images: brightness,
    contrast and saturation up to 40 % either way, hue up to 36°, gray in 15 % and negative in 5 % of them.
    Then a square hole of 15 pixels, or less than half of the shorter side.
    """
    n, device = len(x), x.device

    def uniform(low: float, high: float) -> Tensor:
        return torch.empty(n, device=device).uniform_(low, high)

    images = crop_flip(x, horizontal_flip=horizontal_flip).float() / 255
    images = affine(images, uniform(-math.pi / 6, math.pi / 6), uniform(-0.3, 0.3), uniform(0.8, 1.2))
    if x.shape[1] == 3:
        saturation = uniform(0.6, 1.4) * (uniform(0, 1) > 0.15)
        brightness = uniform(0.6, 1.4)
        contrast = uniform(0.6, 1.4)
        hue = uniform(-math.pi / 5, math.pi / 5)
        negative = uniform(0, 1) < 0.05
        images = adjust_colors(images, brightness, contrast, saturation, hue, negative)
    row, column = (torch.randint(0, size, (n,), device=device) for size in x.shape[2:])
    if hole is None:
        hole = min(15, 15 * min(x.shape[2:]) // 32)
    return 255 * cutout(images, row, column, hole)


def affine(images: Tensor, angle: Tensor, shear: Tensor, zoom: Tensor) -> Tensor:
    """Each image sheared along its rows, rotated counter-clockwise and enlarged; black beyond its edge."""
    cos, sin = angle.cos() / zoom, angle.sin() / zoom
    # the output at (u, v) is the input at matrix · (u, v), so the matrix undoes the change
    aspect = images.shape[3] / images.shape[2]  # u and v run from -1 to 1 in images of any shape
    first = torch.stack([cos - shear * sin, (-sin - shear * cos) / aspect], 1)
    second = torch.stack([sin * aspect, cos], 1)
    matrix = torch.stack([first, second], 1)
    matrix = torch.cat([matrix, matrix.new_zeros(len(matrix), 2, 1)], 2)
    grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="zeros", align_corners=False)


def adjust_colors(
    images: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor, hue: Tensor, negative: Tensor
) -> Tensor:
    """Images in [0, 1] with brightness, contrast about the mean gray, saturation, hue and negative changed.

    A factor of one changes nothing, nor does a hue of zero (radians). All changes are one matrix per image,
    clipped once at the end.
    """
    gray = _color_matrices(images.device)[0]
    # the rotation leaves gray where it is, so that saturation can be applied after it
    matrix = torch.lerp(gray, hue_rotation(hue), saturation.view(-1, 1, 1))
    matrix = (brightness * contrast).view(-1, 1, 1) * matrix
    mean = brightness * (images.mean((2, 3)) @ gray[0])
    # the offset of the contrast is gray, which neither saturation nor hue changes
    result = ((1 - contrast) * mean).view(-1, 1, 1, 1)
    for j in range(3):  # a matrix product for so few colors would be slower
        result = torch.addcmul(result, matrix[:, :, j, None, None], images[:, j, None])
    result = result.clamp(0, 1)
    return torch.where(negative.view(-1, 1, 1, 1), 1 - result, result)


def hue_rotation(hue: Tensor) -> Tensor:
    """(n, 3, 3) matrices that rotate RGB colors by an angle about gray, in the color space YIQ."""
    _, fixed, cosine, sine = _color_matrices(hue.device)
    angle = hue.view(-1, 1, 1)
    return fixed + angle.cos() * cosine + angle.sin() * sine


def _color_matrices(device: torch.device) -> Tensor:
    """`COLOR_MATRICES` on a device, where they stay: a copy in every step would wait for the step before."""
    if device not in _on_device:
        _on_device[device] = COLOR_MATRICES.to(device)
    return _on_device[device]


def cutout(images: Tensor, row: Tensor, column: Tensor, hole: int) -> Tensor:
    """A gray square of `hole` pixels about (row, column) of each image, cut off at the edge."""
    height, width = images.shape[2:]
    rows = (torch.arange(height, device=images.device) - row.unsqueeze(1) + hole // 2).unsqueeze(2)
    columns = (torch.arange(width, device=images.device) - column.unsqueeze(1) + hole // 2).unsqueeze(1)
    inside = (rows >= 0) & (rows < hole) & (columns >= 0) & (columns < hole)
    return images.masked_fill(inside.unsqueeze(1), 0.5)


# --- two views


def weak_and_strong(x: Tensor, horizontal_flip: bool = True) -> Tensor:
    """Two views of each instance, (n, 2, ...), for images as bytes or for rows of features."""
    if x.ndim == 2:
        return torch.stack([x.float(), swap_features(x.float())], 1)
    if x.ndim == 4 and x.dtype == torch.uint8:
        weak = crop_flip(x, horizontal_flip=horizontal_flip).float()
        return torch.stack([weak, strong(x, horizontal_flip=horizontal_flip)], 1)
    what = f"there are no two views for instances of type {x.dtype} and shape {tuple(x.shape)}"
    raise DataError(f"{what}; pass images as bytes (n, c, h, w) or rows (n, d), or use another method")


def swap_features(x: Tensor, fraction: float = 0.3) -> Tensor:
    """Rows (n, d) with a fraction of their values from other rows: a strong view of a table [1]_.

    Every value still occurs in its column. SCARF swaps 60 %.

    References
    ----------
    .. [1] Bahri et al., "SCARF: Self-supervised contrastive learning using random feature corruption", 2022.
    """
    other = torch.randint(0, len(x), x.shape, device=x.device)
    return torch.where(torch.rand(x.shape, device=x.device) < fraction, x.gather(0, other), x)


# --- augmentations by name

PAIRS = ("weak+strong", "weak+strong-unmirrored")  # two views of each instance
AUGMENTATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "crop": partial(crop_flip, horizontal_flip=False),
    "crop+flip": crop_flip,
    "strong": strong,
    "strong-unmirrored": partial(strong, horizontal_flip=False),
    "weak+strong": weak_and_strong,
    "weak+strong-unmirrored": partial(weak_and_strong, horizontal_flip=False),
}


def views(
    mean: Sequence[float], std: Sequence[float], device: torch.device, augment: str
) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """Two functions from raw instances to the input of a network: for training, and for prediction.

    Images as bytes are scaled to zero mean and unit variance per channel; `mean` and `std` are those of
    pixels in [0, 1]. If these are empty, instances are used as they are.
    """
    if augment not in AUGMENTATIONS:
        raise SettingsError(f"augment is {augment!r}; pass one of {', '.join(AUGMENTATIONS)}")
    if not mean and augment not in ("none", *PAIRS):
        raise SettingsError(f"augment={augment!r} is for images, and this data is not; pass 'none'")
    if not mean:
        return AUGMENTATIONS[augment], (lambda x: x)
    center = 255 * torch.tensor(mean, device=device).view(1, -1, 1, 1)
    scale = 255 * torch.tensor(std, device=device).view(1, -1, 1, 1)

    def standardize(x: Tensor) -> Tensor:
        return x.to(center.dtype).sub(center).div(scale)

    return (lambda x: standardize(AUGMENTATIONS[augment](x))), standardize

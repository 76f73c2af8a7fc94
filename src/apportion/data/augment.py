"""Views of images: functions of a batch on its device, drawing from torch's generator of that device."""

import torch
from torch import Tensor


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

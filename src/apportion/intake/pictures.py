"""Images as people have them, in a list, a tensor or as pictures of PIL, become one array of bytes."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from apportion.intake.instances import BagError, library_of, unmasked


def stacked(x: Any) -> Any:
    """Images as bytes in a list or a tensor as an array, since scikit-learn would make them floats."""
    if isinstance(x, Tensor) and x.dtype == torch.uint8:
        return x.numpy(force=True)
    if library_of(x) == "PIL":
        raise BagError("X is one image; pass a list of images, such as [X]")
    if isinstance(x, list | tuple) and x and (isinstance(x[0], Tensor) or library_of(x[0]) == "PIL"):
        x = [each.numpy(force=True) if isinstance(each, Tensor) else pixels_of(each) for each in x]
    if not isinstance(x, list | tuple) or not x or not isinstance(x[0], np.ndarray):
        return unmasked(x)
    if x[0].ndim < 2 or any(not isinstance(image, np.ndarray) or image.dtype != np.uint8 for image in x):
        return x
    for i in (i for i, image in enumerate(x) if image.shape != x[0].shape):
        if x[0].ndim == 4:
            remedy = "np.concatenate(X), and for bags np.repeat(bags, [len(each) for each in X])"
            raise BagError(f"X has {len(x)} arrays of several images, such as {x[0].shape}; pass {remedy}")
        raise BagError(f"image {i} has shape {x[i].shape}, image 0 {x[0].shape}; resize them to be alike")
    return np.stack(x)


def pixels_of(image: Any) -> Any:
    """Of PIL's images the bytes (channels, height, width), since it is known how they lie."""
    if library_of(image) != "PIL":
        return np.asarray(image)
    if image.mode not in ("L", "RGB", "RGBA"):
        remedy = "convert them all, such as [image.convert('RGB') for image in X]"
        raise BagError(f"X has an image of mode {image.mode!r}, whose numbers are no shades; {remedy}")
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))

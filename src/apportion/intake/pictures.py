"""Images as people have them, in a list, a column, a tensor or as pictures of PIL, become one array."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apportion.errors import DataError
from apportion.intake.instances import library_of, unmasked


def stacked(x: Any) -> Any:
    """Images in a list, a column or a tensor as one array: scikit-learn would make floats of bytes, and takes
    no column of arrays."""
    if isinstance(x, Tensor) and x.dtype == torch.uint8:
        return x.numpy(force=True)
    if library_of(x) == "PIL":
        raise DataError("X is one image; pass a list of images, such as [X]")
    if not _holds_arrays(x := unmasked(x)):
        return x
    given = list(x)
    arrays = [pixels_of(each) for each in given]
    refuse_unlike(given, arrays)
    if arrays[0].ndim < 2:
        return arrays if isinstance(x, list | tuple) else x
    return np.stack(arrays) if all(each.dtype == np.uint8 for each in arrays) else arrays


def _holds_arrays(x: Any) -> bool:
    """Whether it is a list or a column of arrays, tensors or pictures, by the first that is not missing."""
    column = isinstance(x, np.ndarray) and x.dtype == object and x.ndim == 1
    series = library_of(x) in ("pandas", "polars") and type(x).__name__ == "Series"
    if not (isinstance(x, list | tuple) or column or series):
        return False
    first = next((each for each in x if each is not None), None)
    return isinstance(first, np.ndarray | Tensor) or library_of(first) == "PIL"


def refuse_unlike(given: Sequence[Any], arrays: Sequence[np.ndarray]) -> None:
    """Instances of several shapes, of which numpy would not say which is the odd one."""
    deepest = max(each.ndim for each in arrays)
    word = "row" if deepest < 2 else "image"
    for i in (i for i, each in enumerate(arrays) if each.ndim == 0 < deepest):
        what = f"{word} {i} is {str(given[i])[:40]}, and no array"
        raise DataError(f"{what}; leave it out, and its bag or label")
    shape = arrays[0].shape
    for i in (i for i, each in enumerate(arrays) if each.shape != shape):
        if len(shape) == 4:
            remedy = "np.concatenate(X), and for bags np.repeat(bags, [len(each) for each in X])"
            raise DataError(f"X has {len(given)} arrays of several images, such as {shape}; pass {remedy}")
        raise DataError(f"{word} {i} has shape {arrays[i].shape}, {word} 0 {shape}; {_alike(given[0], word)}")


def _alike(first: Any, word: str) -> str:
    """How instances become like the first."""
    if library_of(first) == "PIL":
        such = f"[image.convert({first.mode!r}).resize({first.size}) for image in X]"
        return f"resize them to one size, such as {such}"
    return "pass rows of one length" if word == "row" else "resize them to one size and as many channels"


def pixels_of(image: Any) -> Any:
    """An array; of PIL's images the bytes (channels, height, width), since it is known how they lie."""
    if isinstance(image, Tensor):
        return image.numpy(force=True)
    if library_of(image) != "PIL":
        return np.asarray(image)
    if image.mode not in ("L", "RGB", "RGBA"):
        remedy = "convert them all, such as [image.convert('RGB') for image in X]"
        raise DataError(f"X has an image of mode {image.mode!r}, whose numbers are no shades; {remedy}")
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))

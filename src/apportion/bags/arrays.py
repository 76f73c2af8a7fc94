"""X as a tensor: rows of numbers become float32; images stay bytes, with channels first.

Pixels become floats batch by batch (`as_floats`), so that a set of images takes one byte per value in memory.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from narwhals.dependencies import is_pandas_series, is_polars_series
from scipy.sparse import issparse
from torch import Tensor

from apportion.errors import DataError

CHANNELS = (1, 3, 4)  # gray, color, color and transparency


def as_tensor(X: Any) -> Tensor:
    """Instances as a tensor (n, ...): float32, or uint8 for images. Shares memory with `X` where it can."""
    if isinstance(X, Tensor):
        X = X.detach()
    else:
        X = _from_numpy(np.asarray(refuse_masked_values(X), order="C"), mapped=isinstance(X, np.memmap))
    if X.ndim < 2:
        hint = "pass one row per instance, such as X.reshape(-1, 1)"
        raise DataError(f"X has shape {tuple(X.shape)}; {hint}", value=tuple(X.shape))
    if X.dtype == torch.uint8 and X.ndim > 2:
        return X
    X = X.float()
    if not bool(X.sum().isfinite()):  # one pass over the data; the sum may also overflow
        _refuse_non_finite(X)
    return X


def _from_numpy(array: np.ndarray, *, mapped: bool) -> Tensor:
    if any(stride < 0 for stride in array.strides):  # order="C" keeps those of axes of length one
        array = array.copy()
    if array.dtype.kind not in "biuf":
        array = _objects_to_numbers(array)
    elif array.dtype.itemsize > 8 or array.dtype.byteorder not in "=|":
        array = array.astype(np.float32)  # numpy types that torch does not have
    if mapped:
        with warnings.catch_warnings():  # nothing writes to X, so it can stay in the file
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return torch.from_numpy(array)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _refuse_non_finite(X: Tensor) -> None:
    finite = X.flatten(1).isfinite()
    rows = (~finite.all(1)).nonzero().flatten()
    if len(rows):
        row = int(rows[0])
        value = float(X[row].flatten()[~finite[row]][0])
        hint = "impute it, or drop the row"
        raise DataError(f"row {row} of X has the value {value:g}; {hint}", value=value)


def _objects_to_numbers(array: np.ndarray) -> np.ndarray:
    """An array of objects as float32. DataError names the first one that is not a number."""
    if array.dtype.kind == "O":
        try:
            return array.astype(np.float32)
        except (TypeError, ValueError):
            pass
    for place, value in np.ndenumerate(array):
        try:
            float(value)
        except (TypeError, ValueError):
            hint = "pass a data frame, whose columns are encoded, or encode texts and dates as numbers"
            what = f"row {place[0]} of X has the value {value!r}, which is not a number"
            raise DataError(f"{what}; {hint}", value=value) from None
    raise DataError(f"X has values of type {array.dtype}; pass numbers, such as X.astype(float)")


def refuse_masked_values(X: Any) -> Any:
    """Return `X`, or raise DataError if it has masked values: numpy would read the data under the mask."""
    if isinstance(X, np.ma.MaskedArray) and np.ma.is_masked(X):
        row = int(np.argwhere(np.ma.getmaskarray(X))[0][0])
        raise DataError(f"row {row} has a masked value; fill it in, such as X.filled(0), or drop the row")
    return X


def refuse_texts_and_sparse(X: Any) -> None:
    if issparse(X):
        hint = "pass X.toarray()" if X.shape[1] <= 1000 else "put TruncatedSVD(50) before it in a pipeline"
        what = f"X is a sparse matrix with {X.shape[1]:,} columns, but networks take dense rows"
        raise DataError(f"{what}; {hint}")
    series = is_pandas_series(X) or is_polars_series(X) or getattr(X, "ndim", 0) == 1
    if not (series or isinstance(X, list | tuple)) or not len(X):
        return
    first = next(iter(X))
    if isinstance(first, str) and first.lower().endswith((".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")):
        hint = "open them, [PIL.Image.open(name).convert('RGB') for name in X]"
        raise DataError(f"X has file names, such as {first[-40:]!r}; {hint}")
    if isinstance(first, str):
        steps = "TfidfVectorizer(), TruncatedSVD(50), ProportionClassifier()"
        raise DataError(f"X has texts, such as {first[:40]!r}; encode them with make_pipeline({steps})")
    if series and np.ndim(first) == 1:
        raise DataError(f"X is a column of vectors of {np.size(first)} numbers; pass numpy.stack(X)")


# --- images


def move_channels_first(X: Any) -> Any:
    """Images (n, height, width, channels) as (n, channels, height, width); everything else as it is."""
    if not isinstance(X, np.ndarray) or X.ndim != 4 or X.dtype != np.uint8 or X.shape[1] in CHANNELS:
        return X
    many_channels_last = X.shape[1] == X.shape[2] > X.shape[3] > 0  # square images, say of 13 bands
    if X.shape[3] in CHANNELS or many_channels_last:
        return np.ascontiguousarray(np.moveaxis(X, 3, 1))
    return X


def as_floats(x: Tensor) -> Tensor:
    """What a network takes: pixels as floats from -2 to 2, all other values as float32."""
    return center_pixels(x) if x.dtype == torch.uint8 else x.float()


def center_pixels(x: Tensor) -> Tensor:
    """Pixels from 0 to 255 as floats from -2 to 2. The scale is fixed, so that models need not store it."""
    return x.float().sub(127.5).div(63.75)


def stack_images(X: Any) -> Any:
    """Images in a list, a series or a tensor, also PIL images, as one array; everything else as it is.

    scikit-learn's validation would turn bytes into floats, and does not accept a series of arrays.
    """
    if isinstance(X, Tensor) and X.dtype == torch.uint8:
        return X.numpy(force=True)
    if _is_pil(X):
        raise DataError("X is one image; pass a list of images, such as [X]")
    X = refuse_masked_values(X)
    if not _holds_arrays(X):
        return X
    images = list(X)
    arrays = [_to_array(image) for image in images]
    _check_same_shape(images, arrays)
    if arrays[0].ndim < 2:
        return arrays if isinstance(X, list | tuple) else X
    return np.stack(arrays) if all(each.dtype == np.uint8 for each in arrays) else arrays


def _is_pil(value: Any) -> bool:
    return type(value).__module__.split(".")[0] == "PIL"  # which need not be installed


def _holds_arrays(X: Any) -> bool:
    """Whether X is a sequence of arrays, tensors or PIL images, judged by the first that is not missing."""
    objects = isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 1
    if not (isinstance(X, list | tuple) or objects or is_pandas_series(X) or is_polars_series(X)):
        return False
    first = next((each for each in X if each is not None), None)
    return isinstance(first, np.ndarray | Tensor) or _is_pil(first)


def _to_array(image: Any) -> Any:
    if isinstance(image, Tensor):
        return image.numpy(force=True)
    if not _is_pil(image):
        return np.asarray(image)
    if image.mode not in ("L", "RGB", "RGBA"):
        hint = "convert them all, such as [image.convert('RGB') for image in X]"
        raise DataError(f"X has an image of mode {image.mode!r}, whose pixels are not intensities; {hint}")
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _check_same_shape(images: Sequence[Any], arrays: Sequence[np.ndarray]) -> None:
    deepest = max(array.ndim for array in arrays)
    word = "row" if deepest < 2 else "image"
    for i, array in enumerate(arrays):
        if array.ndim == 0 < deepest:
            what = f"{word} {i} is {str(images[i])[:40]}, not an array"
            raise DataError(f"{what}; leave it out, with its bag or label", value=images[i])
    shape = arrays[0].shape
    for i, array in enumerate(arrays):
        if array.shape == shape:
            continue
        if len(shape) == 4:
            hint = "pass np.concatenate(X), and np.repeat(bags, [len(each) for each in X]) for the bags"
            raise DataError(f"X has {len(images)} arrays of several images, such as {shape}; {hint}")
        what = f"{word} {i} has shape {array.shape}, {word} 0 has shape {shape}"
        raise DataError(f"{what}; {_how_to_match(images[0], word)}", value=array.shape)


def _how_to_match(first: Any, word: str) -> str:
    if _is_pil(first):
        such = f"[image.convert({first.mode!r}).resize({first.size}) for image in X]"
        return f"resize them to one size, such as {such}"
    return "pass rows of one length" if word == "row" else "resize them to one size, with the same channels"

"""What the transport functions accept: NumPy arrays, tensors or nested lists, checked once."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from apportion.errors import DataError, SettingsError

ArrayLike = Tensor | np.ndarray | Sequence


def as_array(values: ArrayLike) -> np.ndarray:
    """The values as a NumPy array on the CPU, without a copy where possible."""
    if isinstance(values, Tensor):
        values = values.detach()
        values = (values.float() if values.dtype == torch.bfloat16 else values).cpu().numpy()
    return np.asarray(values)


def tensor_like(values: np.ndarray, original: ArrayLike) -> Tensor:
    """The values as a tensor on the device of the original."""
    tensor = torch.from_numpy(values)
    if not isinstance(original, Tensor):
        return tensor
    if original.device.type == "mps" and tensor.dtype == torch.float64:
        tensor = tensor.float()  # MPS has no float64
    return tensor.to(original.device)


def check_scores(log_probs: ArrayLike) -> np.ndarray:
    """(N, k) contiguous; float64 stays, all else becomes float32. The solvers check for NaN."""
    values = as_array(log_probs)
    if values.ndim != 2 or values.shape[1] == 0:
        raise DataError(f"log_probs has shape {values.shape}; pass (N, k) with k of at least one")
    return np.ascontiguousarray(values, np.float64 if values.dtype == np.float64 else np.float32)


def bag_starts(sizes: ArrayLike, n_rows: int | None) -> np.ndarray:
    """(m + 1,) the first row of every bag, followed by the number of rows."""
    values = as_array(sizes)
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
        raise DataError(f"sizes has shape {values.shape} and type {values.dtype}; pass (m,) whole numbers")
    empty = np.flatnonzero(values < 1)
    if empty.size:
        b = int(empty[0])
        raise DataError(f"bag {b} has size {values[b]}; every bag needs at least one row", bag=b)
    starts = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=starts[1:])
    if n_rows is not None and starts[-1] != n_rows:
        raise DataError(f"sizes sum to {starts[-1]}, but log_probs has {n_rows} rows; pass one size per bag")
    return starts


def check_counts(counts: ArrayLike, starts: np.ndarray, n_classes: int) -> np.ndarray:
    """(m, k) whole counts that sum to the sizes of the bags."""
    values = as_array(counts)
    shape = (len(starts) - 1, n_classes)
    if values.shape != shape:
        raise DataError(f"counts has shape {values.shape}; pass {shape}")
    if values.dtype.kind == "f":
        fractional = np.flatnonzero((values != np.round(values)).any(1))
        if fractional.size:
            b = int(fractional[0])
            what = f"bag {b} has counts {values[b]}, which are not whole"
            raise DataError(f"{what}; round them with round_to_counts", bag=b)
    elif values.size and values.dtype.kind not in "iu":
        raise DataError(f"counts has type {values.dtype}; pass whole numbers")
    result = np.ascontiguousarray(values, np.int64)
    if result.min(initial=0) < 0:
        b = int(np.flatnonzero((result < 0).any(1))[0])
        raise DataError(f"bag {b} has a negative count in {result[b]}; counts are 0 or more", bag=b)
    sizes = np.diff(starts)
    sums = result @ np.ones(n_classes, np.int64)  # several times faster than a sum over short rows
    wrong = np.flatnonzero(sums != sizes)
    if wrong.size:
        b = int(wrong[0])
        what = f"bag {b} has counts that sum to {sums[b]}, but size {sizes[b]}"
        raise DataError(f"{what}; make them with round_to_counts", bag=b)
    return result


def check_weight(weight: ArrayLike, n_rows: int) -> np.ndarray:
    """(N,) float64, positive."""
    values = as_array(weight).astype(np.float64)
    if values.shape != (n_rows,):
        raise DataError(f"weight has shape {values.shape}; pass ({n_rows},), one weight per row")
    bad = np.flatnonzero(~((values > 0) & (values < math.inf)))
    if bad.size:
        value = float(values[bad[0]])
        raise DataError(f"weight is {value} in row {bad[0]}; pass positive numbers", value=value)
    return values


def check_masses(mass: ArrayLike, starts: np.ndarray, weight: np.ndarray, n_classes: int) -> np.ndarray:
    """(m, k) float64 masses that sum to the weights of the bags; rounding is divided out."""
    values = as_array(mass).astype(np.float64)
    shape = (len(starts) - 1, n_classes)
    if values.shape != shape:
        raise DataError(f"mass has shape {values.shape}; pass {shape}")
    total = np.add.reduceat(weight, starts[:-1]) if len(starts) > 1 else np.zeros(0)
    sums = values.sum(1)
    wrong = np.flatnonzero(~((values >= 0).all(1) & (np.abs(sums - total) <= 1e-4 * total)))
    if wrong.size:
        b = int(wrong[0])
        what = f"bag {b} has masses {values[b]}, but rows of weight {total[b]:.6g}"
        raise DataError(f"{what}; pass masses of 0 or more that sum to it", bag=b)
    return values * (total / sums)[:, None]


def check_prices(prices: ArrayLike | None, shape: tuple[int, ...]) -> np.ndarray:
    """(m, k) float64, a copy for the solver to write to; zeros if none are given."""
    values = np.zeros(shape) if prices is None else as_array(prices)
    if values.shape != shape or np.isnan(values).any():
        raise DataError(f"prices has shape {values.shape}; pass {shape} without NaN")
    return np.array(values, np.float64, order="C")


def check_proportions(proportions: ArrayLike, n_bags: int, n_classes: int | None) -> np.ndarray:
    """(m, k) float64 whose rows sum to one; errors of up to 1e-4 are treated as rounding and divided out."""
    values = as_array(proportions)
    fits = values.ndim == 2 and len(values) == n_bags and n_classes in (None, values.shape[1])
    if not fits:
        wanted = f"({n_bags}, {'k' if n_classes is None else n_classes})"
        raise DataError(f"proportions has shape {values.shape}; pass {wanted}")
    result = values.astype(np.float64)
    bad = np.flatnonzero(~((result >= 0) & (result < math.inf)).all(1))
    if bad.size:
        b = int(bad[0])
        raise DataError(f"bag {b} has proportions {values[b]}; each must be finite and 0 or more", bag=b)
    sums = result.sum(1, keepdims=True)
    wrong = np.flatnonzero(np.abs(sums - 1) > 1e-4)
    if wrong.size:
        b = int(wrong[0])
        what = f"bag {b} has proportions that sum to {sums[b, 0]:.6g}, not 1"
        raise DataError(f"{what}; divide them by their sum", bag=b)
    return result / sums


def damping(reg: float, precision: float | ArrayLike, n_bags: int) -> np.ndarray:
    """(m,) reg / precision of each bag: zero where the proportions are matched exactly."""
    if isinstance(precision, Tensor):
        precision = precision.detach().cpu()
    weights = np.asarray(precision, np.float64)
    if weights.ndim and weights.shape != (n_bags,):
        raise DataError(
            f"precision has shape {weights.shape}; pass a number, or one for each of {n_bags} bags"
        )
    bad = np.flatnonzero(~(weights > 0))
    if bad.size:
        of = f" for bag {bad[0]}" if weights.ndim else ""
        raise DataError(f"precision is {weights.ravel()[bad[0]]}{of}; pass a positive number")
    return np.broadcast_to(reg / weights, n_bags).copy()


def check_settings(reg: float, tol: float, max_iterations: int) -> None:
    """Raise `SettingsError` for settings that the solver cannot use."""
    for name, value in (("reg", reg), ("tol", tol), ("max_iterations", max_iterations)):
        if not value > 0:
            raise SettingsError(f"{name} is {value}; pass a positive number")
    if math.isinf(reg):
        raise SettingsError(
            "reg is infinite; pass a finite number, or use the proportions, which are the plan in this limit"
        )

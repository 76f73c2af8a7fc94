"""What the transport functions accept, checked once at the door: NumPy arrays, tensors or nested lists."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

ArrayLike = Tensor | np.ndarray | Sequence


def array(values: ArrayLike) -> np.ndarray:
    """The values as a NumPy array on the CPU, without a copy where possible."""
    if isinstance(values, Tensor):
        values = values.detach()
        values = (values.float() if values.dtype == torch.bfloat16 else values).cpu().numpy()
    return np.asarray(values)


def like(values: np.ndarray, original: ArrayLike) -> Tensor:
    """The values as a tensor on the device of the original."""
    tensor = torch.from_numpy(values)
    if not isinstance(original, Tensor):
        return tensor
    if original.device.type == "mps" and tensor.dtype == torch.float64:
        tensor = tensor.float()  # MPS has no float64
    return tensor.to(original.device)


def scores(log_probs: ArrayLike) -> np.ndarray:
    """(N, k) contiguous, float64 if it was, else float32; the solvers themselves look for NaN."""
    values = array(log_probs)
    if values.ndim != 2 or values.shape[1] == 0:
        raise ValueError(f"log_probs must have shape (N, k) with k of at least one, but has {values.shape}")
    return np.ascontiguousarray(values, np.float64 if values.dtype == np.float64 else np.float32)


def starts(sizes: ArrayLike, rows: int | None) -> np.ndarray:
    """(m + 1,) the first row of every bag, and the number of rows as last."""
    values = array(sizes)
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
        raise ValueError(
            f"sizes must be (m,) whole numbers, but have shape {values.shape}, type {values.dtype}"
        )
    empty = np.flatnonzero(values < 1)
    if empty.size:
        raise ValueError(f"bag {empty[0]} has size {values[empty[0]]}; every bag needs at least one instance")
    result = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=result[1:])
    if rows is not None and result[-1] != rows:
        raise ValueError(f"sizes sum to {result[-1]} but log_probs has {rows} rows; pass one size a bag")
    return result


def counts(table: ArrayLike, starts: np.ndarray, classes: int) -> np.ndarray:
    """(m, k) whole counts that sum to the sizes of the bags."""
    values = array(table)
    if values.shape != (len(starts) - 1, classes):
        raise ValueError(f"counts must have shape {(len(starts) - 1, classes)}, but have {values.shape}")
    if values.dtype.kind == "f":
        odd = np.flatnonzero((values != np.round(values)).any(1))
        if odd.size:
            raise ValueError(f"bag {odd[0]} has counts {values[odd[0]]}, not whole; see round_to_counts")
    elif values.size and values.dtype.kind not in "iu":
        raise ValueError(f"counts must be whole numbers, but have type {values.dtype}")
    result, sizes = np.ascontiguousarray(values, np.int64), np.diff(starts)
    if result.min(initial=0) < 0:
        b = np.flatnonzero((result < 0).any(1))[0]
        raise ValueError(f"bag {b} has a negative count in {result[b]}; counts are 0 or more")
    sums = result @ np.ones(classes, np.int64)  # several times faster than a sum over short rows
    off = np.flatnonzero(sums != sizes)
    if off.size:
        b = off[0]
        raise ValueError(f"bag {b} has counts summing to {sums[b]} but size {sizes[b]}; see round_to_counts")
    return result


def prices(table: ArrayLike | None, shape: tuple[int, ...]) -> np.ndarray:
    """(m, k) float64, a copy for the solver to write to; zeros if none are given."""
    values = np.zeros(shape) if table is None else array(table)
    if values.shape != shape or np.isnan(values).any():
        raise ValueError(f"prices must have shape {shape} and no NaN, but have shape {values.shape}")
    return np.array(values, np.float64, order="C")


def proportions(table: ArrayLike, bags: int, classes: int | None) -> np.ndarray:
    """(m, k) float64 whose rows sum to one exactly; up to 1e-4 is taken for rounding and divided out."""
    values = array(table)
    if values.ndim != 2 or len(values) != bags or (classes is not None and values.shape[1] != classes):
        wanted = f"({bags}, {'k' if classes is None else classes})"
        raise ValueError(f"proportions must have shape {wanted}, but have {values.shape}")
    result = values.astype(np.float64)
    bad = np.flatnonzero(~((result >= 0) & (result < math.inf)).all(1))
    if bad.size:
        raise ValueError(f"bag {bad[0]} has proportions {values[bad[0]]}; each must be 0 or more and finite")
    sums = result.sum(1, keepdims=True)
    off = np.flatnonzero(np.abs(sums - 1) > 1e-4)
    if off.size:
        b = off[0]
        raise ValueError(
            f"bag {b} has proportions summing to {sums[b, 0]:.6g}, not 1; divide them by their sum"
        )
    return result / sums


def looseness(reg: float, relax: float | ArrayLike, m: int) -> np.ndarray:
    """(m,) reg / relax of each bag: zero where the proportions are met."""
    weights = np.asarray(relax.detach().cpu() if isinstance(relax, Tensor) else relax, np.float64)
    if weights.ndim and weights.shape != (m,):
        raise ValueError(f"relax has shape {weights.shape}; pass a number, or one for each of {m} bags")
    for b in np.flatnonzero(~(weights > 0))[:1]:
        of = f" for bag {b}" if weights.ndim else ""
        raise ValueError(f"relax is {weights.ravel()[b]}{of}; it must be above zero")
    return np.broadcast_to(reg / weights, m).copy()


def check_settings(reg: float, tol: float, max_iterations: int) -> None:
    """An error for settings under which the entropic_plan problem has no meaning."""
    for name, value in (("reg", reg), ("tol", tol), ("max_iterations", max_iterations)):
        if not value > 0:
            raise ValueError(f"{name} is {value}; it must be above zero")
    if math.isinf(reg):
        raise ValueError("reg is infinite; the plan is then the proportions themselves, and needs no solver")

"""Batch norm, leaky ReLU and max-pooling as one operation on a GPU, and as torch's own layers elsewhere.

`FusedSequential` is an nn.Sequential that finds these layers where they follow each other. On a GPU with
Triton they need half the memory traffic (`_triton_norm`), which is what such layers cost there. Moments and
gradients are summed in float32; the results differ from torch's by rounding. Anything that the kernels do not
cover (a CPU, gradients through running statistics, images of odd size) runs as torch's layers.
"""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from apportion._device import supports_triton


class FusedSequential(nn.Sequential):
    """Layers one after the other; [BatchNorm2d, LeakyReLU or ReLU, MaxPool2d(2)] are one operation."""

    def forward(self, input: Tensor) -> Tensor:
        x = input
        layers = list(self)
        i = 0
        while i < len(layers):
            layer = layers[i]
            slope = _slope(layers[i + 1]) if i + 1 < len(layers) else None
            if isinstance(layer, nn.BatchNorm2d) and slope is not None:
                pool = i + 2 < len(layers) and _halves(layers[i + 2])
                x = norm_leaky_relu(layer, x, slope, pool)
                i += 3 if pool else 2
                continue
            x = max_pool(x) if _halves(layer) else layer(x)
            i += 1
        return x


def _slope(layer: nn.Module) -> float | None:
    """The slope of a (leaky) ReLU below zero; None for other layers."""
    if isinstance(layer, nn.LeakyReLU):
        return layer.negative_slope
    return 0.0 if isinstance(layer, nn.ReLU) else None


def _halves(layer: nn.Module) -> bool:
    """Whether a layer is max-pooling with windows of 2 x 2 side by side."""
    if not isinstance(layer, nn.MaxPool2d) or layer.return_indices or layer.ceil_mode:
        return False
    return (layer.kernel_size, layer.stride, layer.padding, layer.dilation) == (2, 2, 0, 1)


def norm_leaky_relu(norm: nn.BatchNorm2d, x: Tensor, slope: float, pool: bool = False) -> Tensor:
    """max_pool(leaky_relu(norm(x))), or without the pooling."""
    fused = _can_fuse(x) and norm.affine and norm.momentum is not None and (not pool or _is_even(x))
    if fused and (norm.training or norm.running_mean is None):
        tracked = norm.training and norm.track_running_stats and norm.running_mean is not None
        running = (norm.running_mean, norm.running_var, norm.num_batches_tracked) if tracked else None
        with torch.cuda.device_of(x):
            return _NormLeakyReLU.apply(
                x, norm.weight, norm.bias, running, norm.momentum, norm.eps, slope, pool
            )
    if fused and not (torch.is_grad_enabled() and (x.requires_grad or norm.weight.requires_grad)):
        with torch.cuda.device_of(x):
            return _apply(x, _running_moments(norm), slope, pool)
    y = F.leaky_relu(norm(x), slope) if slope else F.relu(norm(x))
    return F.max_pool2d(y, 2) if pool else y


def max_pool(x: Tensor) -> Tensor:
    """The largest of each window of 2 x 2 pixels."""
    if not (_can_fuse(x) and _is_even(x)):
        return F.max_pool2d(x, 2)
    with torch.cuda.device_of(x):  # Triton launches on the current device
        return _MaxPool.apply(x)


# --- the operations on a GPU


_supports_triton = cache(supports_triton)


def _can_fuse(x: Tensor) -> bool:
    if not (x.is_cuda and x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)):
        return False
    if x.dtype == torch.float64:  # the kernels add in float32
        return False
    return x.shape[0] * x.shape[2] * x.shape[3] > 1 and _supports_triton(x.device)


def _is_even(x: Tensor) -> bool:
    return x.shape[2] % 2 == 0 and x.shape[3] % 2 == 0


class _NormLeakyReLU(torch.autograd.Function):
    """Normalization with the moments of the batch. Only x and four numbers per channel are kept."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, running: tuple[Tensor, Tensor, Tensor] | None,
        momentum: float, eps: float, slope: float, pool: bool,
    ) -> Tensor:  # fmt: skip
        from apportion.networks import _triton_norm as kernels

        n_rows, channels = _matrix_shape(x)
        grid, tile = _sum_grid(n_rows, channels)
        sums = x.new_empty(grid[0], 2, channels, dtype=torch.float32)
        kernels._sum_rows[grid](x, sums, n_rows, channels, **tile)
        moments = x.new_empty(kernels.MOMENTS, channels, dtype=torch.float32)
        mean, variance, n_batches = (moments, moments, moments) if running is None else running
        grid, tile = _channel_grid(channels)
        kernels._finish_moments[grid](
            sums, x, weight, bias, mean, variance, n_batches, moments, len(sums), n_rows, momentum, eps,
            channels, track=running is not None, **tile,
        )  # fmt: skip
        ctx.save_for_backward(x, moments)
        ctx.slope, ctx.pool = slope, pool
        return _apply(x, moments, slope, pool)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        from apportion.networks import _triton_norm as kernels

        x, moments = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        n_rows, channels = _matrix_shape(dy)
        grid, tile = _sum_grid(n_rows, channels, ctx.pool)
        sums = x.new_empty(grid[0], 2, channels, dtype=torch.float32)
        image = (n_rows, x.shape[3], channels, ctx.slope, ctx.pool)
        kernels._sum_gradients[grid](x, dy, moments, sums, *image, **tile)
        d_weight, d_bias = x.new_empty(2, channels, dtype=torch.float32).unbind()
        gradient = x.new_empty(kernels.GRADIENT, channels, dtype=torch.float32)
        grid, tile = _channel_grid(channels)
        kernels._finish_gradient[grid](
            sums, moments, d_weight, d_bias, gradient, len(sums), _matrix_shape(x)[0], channels, **tile
        )
        dx = torch.empty_like(x)
        grid, tile = _row_grid(n_rows, channels, ctx.pool)
        kernels._input_gradient[grid](x, dy, moments, gradient, dx, *image, **tile)
        return dx, d_weight, d_bias, None, None, None, None, None


def _apply(x: Tensor, moments: Tensor, slope: float, pool: bool) -> Tensor:
    from apportion.networks import _triton_norm as kernels

    y = _halved(x) if pool else torch.empty_like(x)
    n_rows, channels = _matrix_shape(y)
    grid, tile = _row_grid(n_rows, channels, pool)
    kernels._apply[grid](x, moments, y, n_rows, x.shape[3], channels, slope, pool, **tile)
    return y


def _running_moments(norm: nn.BatchNorm2d) -> Tensor:
    """The running statistics as rows of `moments`."""
    assert norm.running_mean is not None and norm.running_var is not None  # noqa: S101, PT018
    inverse = torch.rsqrt(norm.running_var + norm.eps)
    scale = norm.weight.detach() * inverse
    shift = norm.bias.detach() - norm.running_mean * scale
    return torch.stack([norm.running_mean, inverse, scale, shift])


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        from apportion.networks import _triton_norm as kernels

        y = _halved(x)
        which = torch.empty_like(y, dtype=torch.uint8)
        n_rows, channels = _matrix_shape(y)
        grid, tile = _row_grid(n_rows, channels, pool=True)
        kernels._pool[grid](x, y, which, n_rows, x.shape[3], channels, **tile)
        ctx.save_for_backward(which)
        ctx.shape = x.shape
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Tensor:  # type: ignore[override]
        from apportion.networks import _triton_norm as kernels

        (which,) = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        dx = torch.empty(ctx.shape, dtype=dy.dtype, device=dy.device, memory_format=torch.channels_last)
        n_rows, channels = _matrix_shape(dy)
        grid, tile = _row_grid(n_rows, channels, pool=True)
        kernels._pool_gradient[grid](dy, which, dx, n_rows, dx.shape[3], channels, **tile)
        return dx


def _halved(x: Tensor) -> Tensor:
    n, channels, height, width = x.shape
    shape = (n, channels, height // 2, width // 2)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def _matrix_shape(x: Tensor) -> tuple[int, int]:
    return x.shape[0] * x.shape[2] * x.shape[3], x.shape[1]


# --- how rows and channels are divided among programs; all numbers were measured on an H200

PROGRAMS = 528  # that share the rows of a sum: four for each multiprocessor


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _tile(n_rows: int, channels: int, size: int, width: int, warps: int) -> dict[str, int]:
    """Rows and channels that a program works on at a time, `size` numbers in all."""
    width = min(width, _power_of_two(channels))
    return {"rows": min(size // width, _power_of_two(n_rows)), "width": width, "num_warps": warps}


def _row_grid(n_rows: int, channels: int, pool: bool) -> tuple[tuple[int, int], dict[str, int]]:
    tile = _tile(n_rows, channels, 512 if pool else 2048, width=128, warps=4)
    return (-(-n_rows // tile["rows"]), -(-channels // tile["width"])), tile


def _sum_grid(n_rows: int, channels: int, pool: bool = False) -> tuple[tuple[int, int], dict[str, int]]:
    tile = _tile(n_rows, channels, 1024 if pool else 4096, width=64, warps=8)
    n_columns = -(-channels // tile["width"])
    n_programs = max(1, min(PROGRAMS // n_columns, -(-n_rows // tile["rows"])))
    return (n_programs, n_columns), tile


def _channel_grid(channels: int) -> tuple[tuple[int], dict[str, int]]:
    width = 16
    return (-(-channels // width),), {"programs": 256, "width": width}

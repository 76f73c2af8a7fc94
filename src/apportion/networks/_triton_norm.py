"""Kernels of `fused_norm`: batch norm, leaky ReLU and 2 x 2 max-pooling in few passes over memory.

A network of images spends a third of its time on these layers, all of it on reading and writing activations.
Torch's own layers read or write the activations of a convolution 13 times (17 with pooling); these kernels do
it 8 times: once for the moments, twice to apply them; twice for the sums of the backward pass, three times
for the gradient. Pooling after the norm costs nothing on top: the larger activation is never written, and the
backward pass finds the maximum again.

Images are in channels-last layout, so memory is a matrix (rows, channels) with a row for each pixel. Sums are
taken in float32 by a fixed number of programs and added up in a fixed order: results do not vary between
runs. Only `fused_norm` imports this file, since Triton is there with CUDA builds of torch only.

Triton compiles a kernel anew for every property of an integer that it can use. Of these only the number of
channels is worth it: it says which loads are aligned.
"""

import triton
import triton.language as tl

MOMENTS = 4  # rows of `moments`: mean, 1/std, scale and shift of each channel
GRADIENT = 3  # rows of `gradient`: see `_finish_gradient`


@triton.jit(do_not_specialize=["n_rows"])
def _sum_rows(x, sums, n_rows, channels, rows: tl.constexpr, width: tl.constexpr):
    """Sums of x - pivot and of its square over the rows of each program; the pivot is the first row of x.

    Differences from any value of the channel keep the digits that a sum of squares of x itself would lose.
    """
    c = tl.program_id(1) * width + tl.arange(0, width)
    inside = c < channels
    pivot = tl.load(x + c, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros([rows, width], tl.float32)
    squares = tl.zeros([rows, width], tl.float32)
    r = tl.arange(0, rows)
    for start in range(tl.program_id(0) * rows, n_rows, tl.num_programs(0) * rows):
        mask = (start + r < n_rows)[:, None] & inside[None, :]
        at = x + (start + r).to(tl.int64)[:, None] * channels + c[None, :]
        difference = tl.where(mask, tl.load(at, mask=mask, other=0.0).to(tl.float32) - pivot[None, :], 0.0)
        total += difference
        squares += difference * difference
    out = sums + tl.program_id(0) * 2 * channels + c
    tl.store(out, tl.sum(total, 0), mask=inside)
    tl.store(out + channels, tl.sum(squares, 0), mask=inside)


@triton.jit
def _add_up(sums, n_programs, channels, c, programs: tl.constexpr):
    """Both sums of each channel c over all programs."""
    inside = c < channels
    first = tl.zeros([programs, c.shape[0]], tl.float32)
    second = tl.zeros([programs, c.shape[0]], tl.float32)
    p = tl.arange(0, programs)
    for start in range(0, n_programs, programs):
        mask = (start + p < n_programs)[:, None] & inside[None, :]
        at = sums + (start + p)[:, None] * 2 * channels + c[None, :]
        first += tl.load(at, mask=mask, other=0.0)
        second += tl.load(at + channels, mask=mask, other=0.0)
    return tl.sum(first, 0), tl.sum(second, 0)


@triton.jit(do_not_specialize=["n_rows", "n_programs"])
def _finish_moments(
    sums, x, weight, bias, running_mean, running_var, n_batches, moments, n_programs, n_rows, momentum, eps,
    channels, track: tl.constexpr, programs: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Mean, 1/std, scale and shift of each channel, and its running mean and variance."""
    c = tl.program_id(0) * width + tl.arange(0, width)
    inside = c < channels
    total, squares = _add_up(sums, n_programs, channels, c, programs)
    offset = total / n_rows
    mean = tl.load(x + c, mask=inside, other=0.0).to(tl.float32) + offset
    variance = tl.maximum(squares / n_rows - offset * offset, 0.0)
    inverse = 1.0 / tl.sqrt(variance + eps)
    scale = tl.load(weight + c, mask=inside, other=0.0) * inverse
    shift = tl.load(bias + c, mask=inside, other=0.0) - mean * scale
    tl.store(moments + c, mean, mask=inside)
    tl.store(moments + channels + c, inverse, mask=inside)
    tl.store(moments + 2 * channels + c, scale, mask=inside)
    tl.store(moments + 3 * channels + c, shift, mask=inside)
    if track:
        before = tl.load(running_mean + c, mask=inside, other=0.0)
        tl.store(running_mean + c, before + momentum * (mean - before), mask=inside)
        before = tl.load(running_var + c, mask=inside, other=0.0)
        unbiased = variance * (n_rows / (n_rows - 1.0))
        tl.store(running_var + c, before + momentum * (unbiased - before), mask=inside)
        if tl.program_id(0) == 0:
            tl.store(n_batches, tl.load(n_batches) + 1)


@triton.jit
def _first_of_window(r, image_width, pool: tl.constexpr):
    """The row of x that is the upper left pixel of the window of row r after pooling, or r itself."""
    if pool:
        columns = image_width // 2
        line = r // columns  # of all images, after pooling: two lines before
        return line.to(tl.int64) * 2 * image_width + (r % columns) * 2
    return r.to(tl.int64)


@triton.jit
def _load_window(at, mask, channels, image_width):
    """The four values of each window."""
    below = image_width * channels
    a = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(at + channels, mask=mask, other=0.0).to(tl.float32)
    c = tl.load(at + below, mask=mask, other=0.0).to(tl.float32)
    d = tl.load(at + below + channels, mask=mask, other=0.0).to(tl.float32)
    return a, b, c, d


@triton.jit
def _largest(a, b, c, d):
    """The largest of four values, and the first that is as large, 0 to 3."""
    best, which = a, tl.zeros(a.shape, tl.int32)
    which = tl.where(b > best, 1, which)
    best = tl.maximum(best, b)
    which = tl.where(c > best, 2, which)
    best = tl.maximum(best, c)
    which = tl.where(d > best, 3, which)
    return tl.maximum(best, d), which


@triton.jit
def _activate(x, scale, shift, slope):
    normal = x * scale[None, :] + shift[None, :]
    return tl.where(normal > 0, normal, slope * normal)


@triton.jit
def _largest_activation(a, b, c, d, scale, shift, slope):
    a, b = _activate(a, scale, shift, slope), _activate(b, scale, shift, slope)
    c, d = _activate(c, scale, shift, slope), _activate(d, scale, shift, slope)
    return _largest(a, b, c, d)


@triton.jit
def _choose(which, a, b, c, d):
    return tl.where(which == 1, b, tl.where(which == 2, c, tl.where(which == 3, d, a)))


@triton.jit(do_not_specialize=["n_rows", "image_width"])
def _apply(
    x, moments, y, n_rows, image_width, channels, slope, pool: tl.constexpr,
    rows: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """The activations of normalized rows; with `pool`, the largest of each window of four."""
    c = tl.program_id(1) * width + tl.arange(0, width)
    r = tl.program_id(0) * rows + tl.arange(0, rows)
    mask = (r < n_rows)[:, None] & (c < channels)[None, :]
    scale = tl.load(moments + 2 * channels + c, mask=c < channels, other=0.0)
    shift = tl.load(moments + 3 * channels + c, mask=c < channels, other=0.0)
    at = x + _first_of_window(r, image_width, pool)[:, None] * channels + c[None, :]
    if pool:
        v0, v1, v2, v3 = _load_window(at, mask, channels, image_width)
        result, _ = _largest_activation(v0, v1, v2, v3, scale, shift, slope)
    else:
        result = _activate(tl.load(at, mask=mask, other=0.0).to(tl.float32), scale, shift, slope)
    to = y + r.to(tl.int64)[:, None] * channels + c[None, :]
    tl.store(to, result.to(y.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["n_rows", "image_width"])
def _sum_gradients(
    x, dy, moments, sums, n_rows, image_width, channels, slope, pool: tl.constexpr,
    rows: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Sums over the rows of each program: of g, the gradient of normalized values, and of g (x - mean)."""
    c = tl.program_id(1) * width + tl.arange(0, width)
    inside = c < channels
    mean = tl.load(moments + c, mask=inside, other=0.0)
    scale = tl.load(moments + 2 * channels + c, mask=inside, other=0.0)
    shift = tl.load(moments + 3 * channels + c, mask=inside, other=0.0)
    total = tl.zeros([rows, width], tl.float32)
    products = tl.zeros([rows, width], tl.float32)
    for start in range(tl.program_id(0) * rows, n_rows, tl.num_programs(0) * rows):
        r = start + tl.arange(0, rows)
        mask = (r < n_rows)[:, None] & inside[None, :]
        at = x + _first_of_window(r, image_width, pool)[:, None] * channels + c[None, :]
        if pool:
            v0, v1, v2, v3 = _load_window(at, mask, channels, image_width)
            _, which = _largest_activation(v0, v1, v2, v3, scale, shift, slope)
            value = _choose(which, v0, v1, v2, v3)
        else:
            value = tl.load(at, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(dy + r.to(tl.int64)[:, None] * channels + c[None, :], mask=mask, other=0.0).to(tl.float32)
        g = tl.where(value * scale[None, :] + shift[None, :] > 0, g, slope * g)
        total += g
        products += g * (value - mean[None, :])
    out = sums + tl.program_id(0) * 2 * channels + c
    tl.store(out, tl.sum(total, 0), mask=inside)
    tl.store(out + channels, tl.sum(products, 0), mask=inside)


@triton.jit(do_not_specialize=["n_rows", "n_programs"])
def _finish_gradient(
    sums, moments, d_weight, d_bias, gradient, n_programs, n_rows, channels,
    programs: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Gradients of weight and bias, and the numbers of dx = scale · g + slope_x · x + constant."""
    c = tl.program_id(0) * width + tl.arange(0, width)
    inside = c < channels
    total, products = _add_up(sums, n_programs, channels, c, programs)
    mean = tl.load(moments + c, mask=inside, other=0.0)
    inverse = tl.load(moments + channels + c, mask=inside, other=0.0)
    scale = tl.load(moments + 2 * channels + c, mask=inside, other=0.0)
    tl.store(d_bias + c, total, mask=inside)
    tl.store(d_weight + c, products * inverse, mask=inside)
    slope_x = -scale * inverse * inverse * products / n_rows
    tl.store(gradient + c, scale, mask=inside)
    tl.store(gradient + channels + c, slope_x, mask=inside)
    tl.store(gradient + 2 * channels + c, -scale * total / n_rows - slope_x * mean, mask=inside)


@triton.jit(do_not_specialize=["n_rows", "image_width"])
def _input_gradient(
    x, dy, moments, gradient, dx, n_rows, image_width, channels, slope, pool: tl.constexpr,
    rows: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(1) * width + tl.arange(0, width)
    inside = c < channels
    r = tl.program_id(0) * rows + tl.arange(0, rows)
    mask = (r < n_rows)[:, None] & inside[None, :]
    scale = tl.load(moments + 2 * channels + c, mask=inside, other=0.0)
    shift = tl.load(moments + 3 * channels + c, mask=inside, other=0.0)
    by_g = tl.load(gradient + c, mask=inside, other=0.0)[None, :]
    by_x = tl.load(gradient + channels + c, mask=inside, other=0.0)[None, :]
    constant = tl.load(gradient + 2 * channels + c, mask=inside, other=0.0)[None, :]
    g = tl.load(dy + r.to(tl.int64)[:, None] * channels + c[None, :], mask=mask, other=0.0).to(tl.float32)
    offset = _first_of_window(r, image_width, pool)[:, None] * channels + c[None, :]
    kind = dx.dtype.element_ty
    if pool:
        v0, v1, v2, v3 = _load_window(x + offset, mask, channels, image_width)
        _, which = _largest_activation(v0, v1, v2, v3, scale, shift, slope)
        best = _choose(which, v0, v1, v2, v3)
        g = by_g * tl.where(best * scale[None, :] + shift[None, :] > 0, g, slope * g)
        to = dx + offset
        below = image_width * channels
        tl.store(to, (by_x * v0 + constant + tl.where(which == 0, g, 0.0)).to(kind), mask=mask)
        tl.store(to + channels, (by_x * v1 + constant + tl.where(which == 1, g, 0.0)).to(kind), mask=mask)
        tl.store(to + below, (by_x * v2 + constant + tl.where(which == 2, g, 0.0)).to(kind), mask=mask)
        last = (by_x * v3 + constant + tl.where(which == 3, g, 0.0)).to(kind)
        tl.store(to + below + channels, last, mask=mask)
    else:
        value = tl.load(x + offset, mask=mask, other=0.0).to(tl.float32)
        g = tl.where(value * scale[None, :] + shift[None, :] > 0, g, slope * g)
        tl.store(dx + offset, (by_g * g + by_x * value + constant).to(kind), mask=mask)


@triton.jit(do_not_specialize=["n_rows", "image_width"])
def _pool(x, y, which, n_rows, image_width, channels, rows: tl.constexpr, width: tl.constexpr):
    """The largest of each window of four, and which it is."""
    c = tl.program_id(1) * width + tl.arange(0, width)
    r = tl.program_id(0) * rows + tl.arange(0, rows)
    mask = (r < n_rows)[:, None] & (c < channels)[None, :]
    at = x + _first_of_window(r, image_width, True)[:, None] * channels + c[None, :]
    v0, v1, v2, v3 = _load_window(at, mask, channels, image_width)
    best, index = _largest(v0, v1, v2, v3)
    to = r.to(tl.int64)[:, None] * channels + c[None, :]
    tl.store(y + to, best.to(y.dtype.element_ty), mask=mask)
    tl.store(which + to, index.to(tl.uint8), mask=mask)


@triton.jit(do_not_specialize=["n_rows", "image_width"])
def _pool_gradient(dy, which, dx, n_rows, image_width, channels, rows: tl.constexpr, width: tl.constexpr):
    c = tl.program_id(1) * width + tl.arange(0, width)
    r = tl.program_id(0) * rows + tl.arange(0, rows)
    mask = (r < n_rows)[:, None] & (c < channels)[None, :]
    at = r.to(tl.int64)[:, None] * channels + c[None, :]
    g = tl.load(dy + at, mask=mask, other=0.0)
    index = tl.load(which + at, mask=mask, other=0)
    to = dx + _first_of_window(r, image_width, True)[:, None] * channels + c[None, :]
    below = image_width * channels
    zero = tl.zeros(g.shape, g.dtype)
    tl.store(to, tl.where(index == 0, g, zero), mask=mask)
    tl.store(to + channels, tl.where(index == 1, g, zero), mask=mask)
    tl.store(to + below, tl.where(index == 2, g, zero), mask=mask)
    tl.store(to + below + channels, tl.where(index == 3, g, zero), mask=mask)

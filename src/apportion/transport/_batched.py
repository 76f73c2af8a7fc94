"""`entropic_plan` on a GPU, or with row weights: the method of `_newton.py` for many padded bags at once.

Padding exists in this file only: padded rows have weight zero in every sum and are not returned.
"""

import math

import torch
from torch import Tensor

CELLS = 1 << 24  # padded scores solved at once: 128 MiB of float64, of which about six copies are alive
HOST_CELLS = 1 << 18  # on the CPU, which gains nothing from more
RANGE, LOOSE, RIDGE, LONGEST = 40.0, 0.02, 1.0, 8.0  # as in _newton.py, which explains them


def solve(
    scores: Tensor,
    sizes: Tensor,
    proportions: Tensor,
    scale: float,
    rho: Tensor,
    tol: float,
    most: int,
    row_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor, int, Tensor]:
    """Plan (N, k), errors (m,), iterations and potentials (m, k), on the device of the scores.

    Names are those of _newton.py. `rho` (m,) and `row_weight` (N,) are on the device, sizes (m,) on the host.
    Bags are solved in groups; the host waits for the device once per group.
    """
    device = scores.device
    mass = torch.empty_like(scores)
    potentials = torch.empty(len(sizes), scores.shape[1], dtype=torch.float64, device=device)
    cells = HOST_CELLS if device.type == "cpu" else CELLS
    slowest = at = 0
    errors = torch.empty(len(sizes), dtype=torch.float64, device=device)
    # bags of similar size are solved together, so that there is little padding
    lengths, order = sizes.sort(descending=True, stable=True)
    starts = (sizes.cumsum(0) - sizes)[order]
    with torch.no_grad(), torch.autocast(device_type=device.type, enabled=False):
        while at < len(sizes):
            longest = int(lengths[at])
            group = slice(at, at + max(1, cells // (longest * scores.shape[1])))
            which, start, length = (part[group].to(device) for part in (order, starts, lengths))
            place = torch.arange(longest, device=device)
            real = place < length[:, None]  # (b, n)
            padded = start[:, None] + place.minimum(length[:, None] - 1)
            weight = real.double() if row_weight is None else real * row_weight[padded].double()
            weight /= weight.sum(1, keepdim=True)
            x = scores[padded].double()  # (b, n, k)
            given = proportions[which], scale, rho[which].unsqueeze(1)
            plan, potentials[which], errors[which], steps = solve_group(x, weight, *given, tol, most)
            mass[padded[real]] = plan[real].to(mass.dtype)
            slowest, at = max(slowest, steps), group.stop
    return mass, errors, slowest, potentials


def solve_group(
    x: Tensor, weight: Tensor, share: Tensor, scale: float, rho: Tensor, tol: float, most: int
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Plan (b, n, k), potentials, errors (b,) and iterations of bags of equal padded size, in stages."""
    x = x.masked_fill((share == 0)[:, None], -math.inf)
    top, low = x.amax(2), x.masked_fill(x == -math.inf, math.inf).amin(2)
    spread = scale * ((top - low) * weight).sum(1).max().item()
    ahead = max(0, math.ceil(math.log(max(spread, RANGE) / RANGE, 4)))
    x, g, steps = x - top[:, :, None], torch.zeros_like(share), 0
    while True:
        part = 0.25**ahead
        goal = tol if ahead == 0 else max(LOOSE / share.shape[1], tol)
        plan, g, error, taken = stage(x * (scale * part), weight, share, g, rho / part, goal, most - steps)
        steps += taken
        if ahead == 0:
            return plan, g, error, steps
        g, ahead = 4 * g, ahead - 1


def stage(
    x: Tensor, weight: Tensor, share: Tensor, g: Tensor, rho: Tensor, tol: float, most: int
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Newton's method at one regularization: plan, potentials, errors, iterations."""
    plan, mass, slope, error = evaluate(x, weight, share, g, rho)
    for steps in range(most):
        busy = error > tol
        if not busy.any():
            return plan, g, error, steps
        step = newton_step(plan, weight, share, mass, slope, rho, error) * busy[:, None]
        along, length = (step * slope).sum(1), torch.ones_like(error)
        for _ in range(20):
            plan, mass, slope, error = evaluate(x, weight, share, g + length[:, None] * step, rho)
            after = (step * slope).sum(1)
            far = (after < -0.5 * along) & (error > tol)
            if not far.any():
                break
            length = torch.where(far, length * (along / (along - after)).clamp(0.1, 0.5), length)
        g = g + length[:, None] * step
    return plan, g, error, most


def evaluate(x: Tensor, weight: Tensor, share: Tensor, g: Tensor, rho: Tensor) -> tuple[Tensor, ...]:
    """Plan, class masses, gradient and its largest entry at potentials g."""
    plan = (x + g[:, None]).softmax(2)
    mass = torch.einsum("bn,bnk->bk", weight, plan)
    slope = torch.where(rho > 0, share * torch.exp(-rho * g), share) - mass
    return plan, mass, slope, slope.abs().amax(1)


def newton_step(
    plan: Tensor, weight: Tensor, share: Tensor, mass: Tensor, slope: Tensor, rho: Tensor, error: Tensor
) -> Tensor:
    """The regularized Newton step, no potential moving further than LONGEST."""
    hessian = -torch.einsum("bnk,bnl->bkl", plan * weight[:, :, None], plan)
    hessian += (rho == 0)[:, None] * share[:, :, None] * share[:, None]
    # absent classes have an empty row: a one on the diagonal leaves their potential as it is
    diagonal = mass * (1 + RIDGE * error[:, None]) + rho * (slope + mass) + (share == 0) + 1e-14
    hessian.diagonal(dim1=1, dim2=2).add_(diagonal)
    factor, failed = torch.linalg.cholesky_ex(hessian)
    step = torch.cholesky_solve(slope[:, :, None], factor).squeeze(2)
    # the factorization may fail by rounding if the plan is nearly 0 or 1; a scaled gradient is safe then
    step = torch.where((failed > 0)[:, None], slope / diagonal, step)
    longest = step.abs().amax(1, keepdim=True)
    return step * (LONGEST / longest.clamp_min(LONGEST))

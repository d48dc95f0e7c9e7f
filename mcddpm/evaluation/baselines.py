"""What MC-DDPM is compared with, each called as ours is: Measurement -> Reconstruction.

zero_filled(measurement)                the pseudo-inverse of what was measured
total_variation(measurement, weight)    argmin_x  1/2 |M A x - y_M|^2 + weight TV(x)
unet(model, measurement)                the paper's U-Net; put_back: with the measured data in their place again

Score-based methods are in `score_based.py`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from mcddpm.models.supervised import Supervised
from mcddpm.physics.measurement import Measurement
from mcddpm.physics.operator import Operator
from mcddpm.reconstruction.result import Reconstruction
from mcddpm.system.progress import Notice


def zero_filled(measurement: Measurement) -> Reconstruction:
    return _one(measurement, measurement.operator.pinv(measurement.y_m))


def _one(measurement: Measurement, x: Tensor, notices: tuple[Notice, ...] = ()) -> Reconstruction:
    """An image (H, W) in the measurement's scale as a reconstruction of one sample without network calls."""
    return Reconstruction.of(measurement, x[None], 0, notices=notices)


@torch.no_grad()
def unet(model: Supervised, measurement: Measurement, put_back: bool = False) -> Reconstruction:
    if not isinstance(model, Supervised):
        raise ValueError(f"this model is a {type(model).__name__}; expected a supervised one (model.kind)")
    device, A = next(model.parameters()).device, measurement.operator
    A = A.to(device)
    y_m, mask = measurement.y_m.to(device), measurement.mask.to(device)
    x = model(y_m[None], mask, A)[0]
    if put_back:
        x = A.pinv(torch.where(mask, y_m, A(x)))
    return replace(_one(measurement, x.to(measurement.y_m.device)), calls=1)


# --- total variation ------------------------------------------------------------------------------------------------


def total_variation(
    measurement: Measurement, weight: float = 2e-3, *, tolerance: float = 5e-4, most: int = 3000
) -> Reconstruction:
    """Isotropic total variation of the complex image, by the primal-dual method of Chambolle & Pock (2011).

    Both terms are dual: K = (grad, M A), so that any operator will do. The steps are balanced as in Goldstein et
    al. (2015), and it ends when primal and dual residual, relative to the variables, fall below `tolerance`.
    """
    if not weight > 0:
        raise ValueError(f"weight is {weight}, expected a value above 0")
    A, y_m, mask = measurement.operator, measurement.y_m, measurement.mask
    x = A.pinv(y_m)
    p, q = torch.zeros_like(gradient(x)), torch.zeros_like(y_m)

    def K(x: Tensor) -> tuple[Tensor, Tensor]:
        return gradient(x), A(x).masked_fill(~mask, 0)

    def K_adjoint(p: Tensor, q: Tensor) -> Tensor:
        return divergence(p) + A.adjoint(q)

    size = (8 + squared_norm(A, x)) ** 0.5
    tau = sigma = 0.95 / size
    back, (grad, data), lean = K_adjoint(p, q), K(x), 0.5
    for _ in range(most):
        x_new = x - tau * back
        grad_new, data_new = K(x_new)
        p_new = p + sigma * (2 * grad_new - grad)
        p_new = p_new / (p_new.abs().square().sum(0).sqrt() / weight).clamp(min=1)
        q_new = (q + sigma * (2 * data_new - data - y_m)) / (1 + sigma)
        back_new = K_adjoint(p_new, q_new)
        # At the solution K_adjoint(p, q) is zero: its two parts, of equal size, are what it is measured by.
        primal = float(((x - x_new) / tau - (back - back_new)).norm() / q_new.norm().clamp(min=1e-12))
        of_p = (p - p_new) / sigma - (grad - grad_new)
        of_q = (q - q_new) / sigma - (data - data_new)
        scale = torch.hypot(grad_new.norm(), data_new.norm()).clamp(min=1e-12)
        dual = float(torch.hypot(of_p.norm(), of_q.norm()) / scale)
        x, p, q, back, grad, data = x_new, p_new, q_new, back_new, grad_new, data_new
        if max(primal, dual) < tolerance:
            break
        if not 0.5 < primal / max(dual, 1e-30) < 2:  # lean towards the variable that lags behind
            factor = 1 - lean if primal < dual else 1 / (1 - lean)
            tau, sigma, lean = tau * factor, sigma / factor, lean * 0.9
    else:
        open_ = Notice("convergence", f"total variation did not converge to {tolerance:g} in {most} steps")
        return _one(measurement, x, (open_,))
    return _one(measurement, x)


def gradient(x: Tensor) -> Tensor:
    """Forward differences, zero at the far edge.  (H, W) -> (2, H, W)"""
    g = torch.zeros(2, *x.shape, dtype=x.dtype, device=x.device)
    g[0, :-1] = x[1:] - x[:-1]
    g[1, :, :-1] = x[:, 1:] - x[:, :-1]
    return g


def divergence(p: Tensor) -> Tensor:
    """The adjoint of `gradient`.  (2, H, W) -> (H, W)"""
    x = torch.zeros_like(p[0])
    x[1:] += p[0, :-1]
    x[:-1] -= p[0, :-1]
    x[:, 1:] += p[1, :, :-1]
    x[:, :-1] -= p[1, :, :-1]
    return x


def squared_norm(A: Operator, like: Tensor, rounds: int = 12) -> float:
    """|A|^2 by power iteration, and a little more."""
    x = torch.randn(like.shape, dtype=like.dtype, generator=torch.Generator().manual_seed(0)).to(like.device)
    for _ in range(rounds):
        x = A.adjoint(A(x / x.norm()))
    return 1.05 * float(x.norm())

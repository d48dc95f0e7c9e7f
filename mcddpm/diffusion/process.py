"""Diffusion of the unmeasured part of a measurement: Eqs 7-11 and Algorithm 1, on M^c only.

Tensors: y_c, y_t, eps are (B, ...), zero on M; t is (B,), the paper's time. Complex noise has variance 1 in each of its
real and imaginary part. A model predicts either the noise (`eps`) or the clean measurement (`denoised`); the two are
related by y_t = bar_alpha y_0 + bar_beta eps.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from mcddpm.diffusion.schedules import Schedule, StepNoise
from mcddpm.physics import masks
from mcddpm.system.settings import check_choice

Parameterisation = Literal["eps", "denoised"]


def diffuse(y_c: Tensor, eps: Tensor, t: Tensor, mask: Tensor, schedule: Schedule) -> Tensor:
    """A draw from q(y_t | y_0): M^c (bar_alpha_t y_0 + bar_beta_t eps) (Eq. 8), for any time 0 <= t <= T."""
    _check_same(eps, y_c, "eps")
    bar_alpha, bar_beta = (_along(value, y_c) for value in schedule.at(t))
    return (bar_alpha * y_c + bar_beta * eps).masked_fill(mask, 0)


def posterior(y_t: Tensor, y_0: Tensor, t: Tensor, mask: Tensor, schedule: Schedule) -> tuple[Tensor, Tensor]:
    """Mean and std of q(y_{t-1} | y_t, y_0) (Eq. 9), for whole t = 1 ... T: the mean on M^c, the std as (B, 1, ...).

    mean = alpha_t bar_beta_{t-1}^2 / bar_beta_t^2 y_t + bar_alpha_{t-1} beta_t^2 / bar_beta_t^2 y_0
    """
    _check_same(y_0, y_t, "y_0")
    alpha, beta, bar_beta, _ = _at_whole(t, schedule)
    bar_alpha_before, bar_beta_before = schedule.at(t - 1)
    of_y_t = alpha * (bar_beta_before / bar_beta).square()
    of_y_0 = bar_alpha_before * (beta / bar_beta).square()
    std = beta * bar_beta_before / bar_beta
    mean = _along(of_y_t, y_t) * y_t + _along(of_y_0, y_t) * y_0
    return mean.masked_fill(mask, 0), _along(std, y_t)


def eps_of(y_t: Tensor, y_0: Tensor, t: Tensor, schedule: Schedule) -> Tensor:
    """The noise that belongs to a clean estimate: (y_t - bar_alpha y_0) / bar_beta."""
    bar_alpha, bar_beta = (_along(value, y_t) for value in schedule.at(t))
    return (y_t - bar_alpha * y_0) / bar_beta


def denoised_of(y_t: Tensor, eps: Tensor, t: Tensor, schedule: Schedule) -> Tensor:
    """The clean estimate that belongs to a noise: (y_t - bar_beta eps) / bar_alpha."""
    bar_alpha, bar_beta = (_along(value, y_t) for value in schedule.at(t))
    return (y_t - bar_beta * eps) / bar_alpha


def l_simple(
    prediction: Tensor,
    y_c: Tensor,
    eps: Tensor,
    t: Tensor,
    mask: Tensor,
    schedule: Schedule,
    parameterisation: str = "eps",
) -> Tensor:
    """L_simple: |eps - eps_theta|^2 a sample, (B,), as a mean over M^c and over real and imaginary parts.

    So eps_theta = 0 scores 1 on average, whatever mask and size. `prediction` is what the model returned for
    y_t = diffuse(y_c, eps, t): eps_theta, or (denoised) y_0; then eps - eps_theta = (y_0 - y_c) bar_alpha / bar_beta.
    """
    error = _error(prediction, y_c, eps, t, mask, schedule, parameterisation)
    unmeasured = (~mask).expand_as(error).flatten(1).sum(1)
    return error.flatten(1).sum(1) / (unmeasured * (2 if prediction.is_complex() else 1))


def l_vlb(
    prediction: Tensor,
    y_c: Tensor,
    eps: Tensor,
    t: Tensor,
    mask: Tensor,
    schedule: Schedule,
    parameterisation: str = "eps",
    step_noise: str = "beta",
) -> Tensor:
    """L_vlb a sample, (B,): beta_t^4 / (2 alpha_t^2 bar_beta_t^2 sigma_t^2) |eps - eps_theta|^2, summed over M^c.

    It is KL(q(y_{t-1} | y_t, y_0) || p_theta) up to a constant, for whole t. sigma_t is the step noise, beta_t or
    tilde_beta_t; at t = 1 it is beta_1 in both cases, as tilde_beta_1 = 0 would make the term infinite.
    """
    check_choice("step_noise", step_noise, StepNoise)
    error = _error(prediction, y_c, eps, t, mask, schedule, parameterisation)
    alpha, beta, bar_beta, tilde_beta = _at_whole(t, schedule)
    sigma = beta if step_noise == "beta" else torch.where(tilde_beta > 0, tilde_beta, beta)
    weight = beta**4 / (2 * alpha.square() * bar_beta.square() * sigma.square())
    return weight.to(error) * error.flatten(1).sum(1)


def _error(
    prediction: Tensor, y_c: Tensor, eps: Tensor, t: Tensor, mask: Tensor, schedule: Schedule, parameterisation: str
) -> Tensor:
    """|eps - eps_theta|^2 entry by entry, 0 on M."""
    _check_same(prediction, y_c, "prediction")
    _check_same(eps, y_c, "eps")
    masks.check_fits(mask, y_c.shape)
    check_choice("parameterisation", parameterisation, Parameterisation)
    if parameterisation == "eps":
        error = prediction - eps
    else:
        bar_alpha, bar_beta = schedule.at(t)
        error = _along(bar_alpha / bar_beta, y_c) * (prediction - y_c)
    parts = torch.view_as_real(error).square().sum(-1) if error.is_complex() else error.square()
    return parts.masked_fill(mask, 0)


def _at_whole(t: Tensor, schedule: Schedule) -> tuple[Tensor, ...]:
    """alpha, beta, bar_beta, tilde_beta at whole t = 1 ... T; NaN elsewhere, as t counted from 0 would read step T."""
    t = t.to(schedule.alpha.device)
    index = (t - 1).clamp(0, schedule.T - 1).long()
    inside = (t >= 1) & (t <= schedule.T)
    arrays = (schedule.alpha, schedule.beta, schedule.bar_beta, schedule.tilde_beta)
    return tuple(torch.where(inside, array[index], torch.nan) for array in arrays)


def _check_same(tensor: Tensor, like: Tensor, name: str) -> None:
    if tensor.shape != like.shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {tuple(like.shape)}")


def _along(value: Tensor, y: Tensor) -> Tensor:
    """(B,) or () float64 -> (B, 1, ...) in the real precision and on the device of y."""
    real = y.real.dtype if y.is_complex() else y.dtype
    return value.to(device=y.device, dtype=real).reshape(*value.shape, *[1] * (y.ndim - value.ndim))

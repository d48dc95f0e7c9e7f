"""Noise schedules: y_t = alpha_t y_{t-1} + beta_t eps (Eq. 7), hence y_t = bar_alpha_t y_0 + bar_beta_t eps (Eq. 8).

alpha and beta are free: alpha^2 + beta^2 = 1 is NOT assumed, and bar_beta^2 is not 1 - bar_alpha^2. Seen from
y_t / bar_alpha_t every schedule is one rising curve sigma_t = bar_beta_t / bar_alpha_t, which also makes it continuous
in t. Times are the paper's: t = 1 ... T, and t = 0 is clean. Everything here is float64 on the CPU unless moved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from mcddpm.system.settings import check_choice

Spacing = Literal["uniform", "log_sigma", "karras"]
StepNoise = Literal["beta", "tilde_beta"]  # the reverse step's std sigma_t is beta_t or tilde_beta_t


class Schedule:
    """alpha, beta, bar_alpha, bar_beta, tilde_beta, sigma: each (T,), index 0 is t = 1. `t`: the paper's t of each."""

    def __init__(self, alpha: Sequence[float] | Tensor, beta: Sequence[float] | Tensor, t: Tensor | None = None):
        self.alpha = torch.as_tensor(alpha, dtype=torch.float64)
        self.beta = torch.as_tensor(beta, dtype=torch.float64)
        if self.alpha.ndim != 1 or self.alpha.shape != self.beta.shape or not len(self.alpha):
            raise ValueError(
                f"alpha and beta have shapes {tuple(self.alpha.shape)} and {tuple(self.beta.shape)}, "
                "expected one (T,) for both with T of 1 or more"
            )
        for name, value in (("alpha", self.alpha), ("beta", self.beta)):
            bad = ~(torch.isfinite(value) & (value > 0))
            if bad.any():
                first = int(bad.nonzero()[0])
                raise ValueError(f"{name} is {value[first].item()} at t = {first + 1}, expected a finite value above 0")
        self.t = torch.arange(1, len(self.alpha) + 1, device=self.alpha.device) if t is None else t
        if not (torch.isfinite(self.sigma).all() and (torch.diff(self.sigma) > 0).all()):
            raise ValueError(
                f"sigma = bar_beta / bar_alpha runs from {self.sigma[0]:g} to {self.sigma[-1]:g} with values that are "
                "infinite or do not rise; expected larger alpha, fewer steps or larger beta"
            )

    @property
    def T(self) -> int:
        return len(self.alpha)

    @cached_property
    def bar_alpha(self) -> Tensor:
        return self.alpha.cumprod(0)

    @cached_property
    def sigma(self) -> Tensor:
        """sigma_t^2 = bar_beta_t^2 / bar_alpha_t^2 = sum_{i <= t} beta_i^2 / bar_alpha_i^2, rising with t."""
        return (self.beta / self.bar_alpha).square().cumsum(0).sqrt()

    @cached_property
    def bar_beta(self) -> Tensor:
        """bar_beta_t^2 = sum_{i <= t} (bar_alpha_t / bar_alpha_i)^2 beta_i^2 (Eq. 8)."""
        return self.bar_alpha * self.sigma

    @cached_property
    def tilde_beta(self) -> Tensor:
        """std of q(y_{t-1} | y_t, y_0): beta_t bar_beta_{t-1} / bar_beta_t (Eq. 9); 0 at t = 1."""
        previous = torch.cat([self.bar_beta.new_zeros(1), self.bar_beta[:-1]])
        return self.beta * previous / self.bar_beta

    def to(self, device: torch.device | str) -> Schedule:
        return Schedule(self.alpha.to(device), self.beta.to(device), self.t.to(device))

    def __repr__(self) -> str:
        return f"Schedule(T={self.T}, sigma={self.sigma[0]:.3g}...{self.sigma[-1]:.3g})"

    # Respacing: fewer discrete steps through the same marginals.

    def respace(self, n: int) -> Schedule:
        """n of the T steps, evenly spread from t = 1 to t = T; bar_alpha and bar_beta keep their values there.

        alpha' = bar_alpha_t / bar_alpha_s and beta'^2 = bar_beta_t^2 - alpha'^2 bar_beta_s^2 for neighbours s < t.
        """
        keep = self._spread(n) - 1
        bar_alpha, sigma = self.bar_alpha[keep], self.sigma[keep]
        before = torch.cat([bar_alpha.new_ones(1), bar_alpha[:-1]])
        variance = torch.diff(sigma.square(), prepend=sigma.new_zeros(1))
        return Schedule(bar_alpha / before, bar_alpha * variance.sqrt(), self.t[keep])

    def _spread(self, n: int) -> Tensor:
        """n whole times from 1 to T, as evenly as rounding allows."""
        if not 1 <= n <= self.T:
            raise ValueError(f"{n} steps uniform in t, expected 1 to {self.T}")
        if n == 1:
            return torch.tensor([self.T])  # the authors' rule would keep t = 1, which denoises nothing
        stride, place, kept = (self.T - 1) / (n - 1), 1.0, []
        for _ in range(n):  # added up as the authors do: it rounds unlike i * stride at ties
            kept.append(round(place))
            place += stride
        return torch.tensor(kept)

    def original(self, t: Tensor) -> Tensor:
        """The time that a network knows, for a time of a respaced schedule; t itself if it was not respaced."""
        known = torch.cat([self.t.new_zeros(1), self.t]).to(torch.float64)
        t = torch.as_tensor(t, dtype=torch.float64, device=known.device)
        below = t.floor().clamp(0, self.T - 1).long()
        return torch.lerp(known[below], known[below + 1], t - below)

    # Continuous time: sigma and bar_alpha are interpolated geometrically between whole t; below t = 1 sigma is linear.

    def at(self, t: Tensor | float) -> tuple[Tensor, Tensor]:
        """(bar_alpha, bar_beta) at any time 0 <= t <= T, of t's shape; NaN outside: no wrong time looks right."""
        t = torch.as_tensor(t, dtype=torch.float64, device=self.alpha.device)
        below = t.floor().clamp(0, self.T - 1).long()
        part = t - below
        bar_alpha, sigma = self._from_zero
        a = bar_alpha[below] ** (1 - part) * bar_alpha[below + 1] ** part
        s = torch.where(below == 0, part * sigma[1], sigma[below] ** (1 - part) * sigma[below + 1] ** part)
        a = torch.where((t >= 0) & (t <= self.T), a, torch.nan)
        return a, a * s

    @cached_property
    def _from_zero(self) -> tuple[Tensor, Tensor]:
        """bar_alpha and sigma at t = 0 ... T."""
        return torch.cat([self.alpha.new_ones(1), self.bar_alpha]), torch.cat([self.alpha.new_zeros(1), self.sigma])

    def time_of(self, sigma: Tensor | float) -> Tensor:
        """The time t at which bar_beta / bar_alpha is sigma: the inverse of `at`."""
        sigma = torch.as_tensor(sigma, dtype=torch.float64, device=self.alpha.device)
        if bool((sigma < 0).any()) or bool((sigma > self.sigma[-1] * (1 + 1e-12)).any()):
            raise ValueError(f"sigma is {sigma.tolist()}, expected values from 0 to {self.sigma[-1]:.6g}")
        if self.T == 1:
            return sigma / self.sigma[0]
        log_sigma = self.sigma.log()
        below = (torch.searchsorted(self.sigma, sigma, right=True) - 1).clamp(0, self.T - 2)
        rise = (sigma.log() - log_sigma[below]) / (log_sigma[below + 1] - log_sigma[below])
        return torch.where(sigma < self.sigma[0], sigma / self.sigma[0], below + 1 + rise.clamp(0, 1))

    def grid(
        self,
        n: int,
        spacing: str = "log_sigma",
        *,
        sigma_min: float | None = None,
        sigma_max: float | None = None,
        rho: float = 7.0,
    ) -> Tensor:
        """n + 1 falling times for a sampler of n steps; the last is 0.

        "uniform":   the whole t of `respace(n)`.
        "log_sigma": sigma in geometric progression from sigma_max to sigma_min, then 0.
        "karras":    sigma^(1/rho) in arithmetic progression (Karras et al. 2022), then 0.
        The range is the schedule's own, sigma_1 ... sigma_T, unless told.
        """
        if n < 1:
            raise ValueError(f"the step grid is empty: {n} steps, expected 1 or more")
        check_choice("spacing", spacing, Spacing)
        if spacing == "uniform":
            if sigma_min is not None or sigma_max is not None:
                raise ValueError('sigma_min and sigma_max were given for spacing "uniform", which is uniform in t')
            return torch.cat([self._spread(n).flip(0), torch.zeros(1)]).double()
        low = float(self.sigma[0]) if sigma_min is None else float(sigma_min)
        high = float(self.sigma[-1]) if sigma_max is None else float(sigma_max)
        if not 0 < low <= high <= float(self.sigma[-1]) or (n > 1 and low == high):
            raise ValueError(
                f"sigma_min is {low:g} and sigma_max is {high:g}, "
                f"expected 0 < sigma_min < sigma_max <= {self.sigma[-1]:g}"
            )
        fall = torch.linspace(0, 1, n, dtype=torch.float64)
        if spacing == "log_sigma":
            sigma = torch.exp(math.log(high) + fall * (math.log(low) - math.log(high)))
        else:
            sigma = (high ** (1 / rho) + fall * (low ** (1 / rho) - high ** (1 / rho))) ** rho
        return torch.cat([self.time_of(sigma.clamp(max=float(self.sigma[-1]))).cpu(), torch.zeros(1).double()])


# --- named schedules ------------------------------------------------------------------------------------------------


def variance_preserving(b: Tensor, beta_scale: float = 1.0) -> Schedule:
    """alpha_t = sqrt(1 - b_t), beta_t = beta_scale sqrt(b_t): preserving at beta_scale 1; the paper takes 0.5."""
    if not (math.isfinite(beta_scale) and beta_scale > 0):
        raise ValueError(f"beta_scale is {beta_scale}, expected a finite value above 0")
    return Schedule((1 - b).sqrt(), beta_scale * b.sqrt())


def cosine(T: int = 1000, beta_scale: float = 1.0) -> Schedule:
    """Nichol & Dhariwal's cosine schedule: bar_alpha_t^2 ~ cos^2(pi/2 (t/T + s)/(1 + s)), s = 0.008, b_t <= 0.999."""
    _check_T(T)
    u = torch.arange(T + 1, dtype=torch.float64) / T
    f = torch.cos((u + 0.008) / 1.008 * (math.pi / 2)).square()
    return variance_preserving((1 - f[1:] / f[:-1]).clamp(max=0.999), beta_scale)


def linear(T: int = 1000, beta_scale: float = 1.0, first: float = 1e-4, last: float = 0.02) -> Schedule:
    """Ho et al.'s linear schedule: b_t from `first` to `last` at T = 1000, scaled by 1000/T for other T."""
    _check_T(T)
    b = torch.linspace(first, last, T, dtype=torch.float64) * (1000 / T)
    if not bool(((b > 0) & (b < 1)).all()):
        raise ValueError(f"b runs from {b[0]:g} to {b[-1]:g}, expected values between 0 and 1; raise T or lower `last`")
    return variance_preserving(b, beta_scale)


def variance_exploding(T: int = 1000, sigma_min: float = 0.002, sigma_max: float = 80.0) -> Schedule:
    """alpha_t = 1 and sigma_t in geometric progression from sigma_min to sigma_max (Song & Ermon)."""
    if T < 2:
        raise ValueError(f"T is {T}, expected 2 steps or more from sigma_min to sigma_max")
    if not 0 < sigma_min < sigma_max or not math.isfinite(sigma_max):
        raise ValueError(f"sigma runs from {sigma_min} to {sigma_max}, expected 0 < sigma_min < sigma_max")
    sigma = torch.exp(torch.linspace(math.log(sigma_min), math.log(sigma_max), T, dtype=torch.float64))
    variance = torch.diff(sigma.square(), prepend=sigma.new_zeros(1))
    return Schedule(torch.ones_like(sigma), variance.sqrt())


def _check_T(T: int) -> None:
    if T < 1:
        raise ValueError(f"T is {T}, expected 1 step or more")


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "cosine": cosine,
    "linear": linear,
    "variance_exploding": variance_exploding,
}


@dataclass(frozen=True)
class ScheduleChoice:
    """cosine, linear (beta_scale) or variance_exploding (sigma_min, sigma_max)."""

    name: Literal["cosine", "linear", "variance_exploding"] = "cosine"
    """The schedule of the diffusion."""
    T: int = 1000
    """Number of time steps."""
    beta_scale: float = 0.5
    """For `cosine` and `linear`: a factor on beta_t; alpha_t is kept. The paper has 0.5."""
    sigma_min: float = 0.002
    """For `variance_exploding`: the lowest sigma."""
    sigma_max: float = 80.0
    """For `variance_exploding`: the highest sigma."""

    def schedule(self) -> Schedule:
        keys = ("sigma_min", "sigma_max") if self.name == "variance_exploding" else ("beta_scale",)
        return SCHEDULES[self.name](self.T, **{key: getattr(self, key) for key in keys})

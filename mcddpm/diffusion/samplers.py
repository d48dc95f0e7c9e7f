"""Samplers: from noise on M^c at the first time of a grid down to a clean y_c at t = 0.

    y_0 = SAMPLERS[name](denoise, y_T, grid, schedule, noise=noise, callback=None, **settings)

    denoise(y_t, t)   the clean estimate D = E[y_0 | y_t, y_M], zero on M; a new tensor, not y_t
    y_T               (N, ...), zero on M; overwritten on the way
    grid              falling times that end in 0: `Schedule.grid`
    noise()           N(0, M^c), like y_T

A sampler knows of the schedule only bar_alpha and bar_beta, and of the problem nothing: no MRI, no mask, no network.
Each is a rule that yields updates, all linear in what they see; one loop carries them out. Their coefficients are plain
numbers, so nothing waits for the device. `sample` is the whole of Algorithm 2 around a sampler.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from mcddpm.diffusion.schedules import Schedule, StepNoise
from mcddpm.physics import masks
from mcddpm.system.settings import check_choice

Denoise = Callable[[Tensor, Tensor], Tensor]
Noise = Callable[[], Tensor]


class Snapshot(NamedTuple):
    """What a callback sees after each step: `step` of `steps` done, now at time `t`; state and last clean estimate."""

    step: int
    steps: int
    t: float
    y: Tensor
    denoised: Tensor


Callback = Callable[[Snapshot], None]


class Step(NamedTuple):
    """From time t to s < t: bar_alpha and bar_beta at both ends."""

    a_t: float
    b_t: float
    a_s: float
    b_s: float

    @property
    def shrink(self) -> float:
        """bar_beta_s / bar_beta_t."""
        return self.b_s / self.b_t

    @property
    def ratio(self) -> float:
        """sigma_s / sigma_t, in [0, 1)."""
        return (self.b_s * self.a_t) / (self.a_s * self.b_t)

    @property
    def h(self) -> float:
        """The step in -log sigma; infinite when s = 0."""
        return -math.log(self.ratio) if self.b_s > 0 else math.inf

    @property
    def beta(self) -> float:
        """One step's noise between s and t: beta^2 = bar_beta_t^2 - (bar_alpha_t / bar_alpha_s)^2 bar_beta_s^2."""
        return self.b_t * math.sqrt(1 - self.ratio**2)

    @property
    def tilde_beta(self) -> float:
        """beta bar_beta_s / bar_beta_t (Eq. 9)."""
        return self.b_s * math.sqrt(1 - self.ratio**2)


class Update(NamedTuple):
    """With D taken at the grid's `at`-th time:  y <- y * y + now * D + before * (D of the update before) + z * noise.

    It brings y to the grid's `to`-th time, or (None) leaves it inside a step.
    """

    at: int
    to: int | None
    y: float
    now: float
    before: float = 0.0
    z: float = 0.0


Rule = Callable[..., Iterator[Update]]


@dataclass(frozen=True)
class Sampler:
    """A rule, and what is known of it: the order of its error, its network calls for n steps."""

    rule: Rule
    order: int
    calls: Callable[[int], int]

    @torch.no_grad()
    def __call__(
        self,
        denoise: Denoise,
        y_T: Tensor,
        grid: Tensor,
        schedule: Schedule,
        *,
        noise: Noise,
        callback: Callback | None = None,
        **settings: Any,
    ) -> Tensor:
        _check_grid(grid, schedule)
        updates = list(self.rule(_steps(grid, schedule), **settings))
        steps, step, times = sum(update.to is not None for update in updates), 0, grid.tolist()
        y, before = y_T, y_T
        known = schedule.original(grid.to(schedule.alpha.device))  # what a network calls these times
        on_device = known.to(y.device, torch.float32 if y.device.type == "mps" else torch.float64)
        for update in updates:
            now = denoise(y, on_device[update.at])
            y.mul_(update.y).add_(now, alpha=update.now)
            if update.before:
                y.add_(before, alpha=update.before)
            before = now
            if update.z:
                y.add_(noise(), alpha=update.z)
            if update.to is not None:
                step += 1
                if callback is not None:
                    callback(Snapshot(step, steps, times[update.to], y, now))
        return y

    @property
    def settings(self) -> list[str]:
        """The names of its own settings."""
        return [p.name for p in inspect.signature(self.rule).parameters.values() if p.kind is p.KEYWORD_ONLY]


def _steps(grid: Tensor, schedule: Schedule) -> list[Step]:
    a, b = (value.tolist() for value in schedule.at(grid.to(schedule.alpha.device)))
    return [Step(*ends) for ends in zip(a, b, a[1:], b[1:], strict=False)]


def _check_grid(grid: Tensor, schedule: Schedule) -> None:
    if grid.ndim != 1 or len(grid) < 2:
        raise ValueError(f"the step grid is empty: shape {tuple(grid.shape)}, expected (n + 1,) times, n of 1 or more")
    if not (0 < grid[0] <= schedule.T and grid[-1] == 0 and bool((grid.diff() < 0).all())):
        raise ValueError(
            f"the step grid runs from {grid[0]:g} to {grid[-1]:g}, "
            f"expected falling times from at most T = {schedule.T} to 0"
        )


# --- the rules ------------------------------------------------------------------------------------------------------


def ancestral(steps: Sequence[Step], *, step_noise: str = "beta") -> Iterator[Update]:
    """Algorithm 2: y_s ~ N(mean of Eq. 9 at y_0 = D, sigma_t^2), sigma_t = beta_t (the paper) or tilde_beta_t."""
    check_choice("step_noise", step_noise, StepNoise)
    for i, step in enumerate(steps):
        of_y = step.shrink * step.ratio  # alpha bar_beta_s^2 / bar_beta_t^2
        of_y0 = step.a_s * (1 - step.ratio**2)  # bar_alpha_s beta^2 / bar_beta_t^2
        sigma = step.beta if step_noise == "beta" else step.tilde_beta
        yield Update(i, i + 1, of_y, of_y0, z=sigma if step.b_s > 0 else 0.0)  # the last step adds no noise


def ddim(steps: Sequence[Step], *, eta: float = 0.0) -> Iterator[Update]:
    """Song et al. 2021: y_s = bar_alpha_s D + sqrt(bar_beta_s^2 - eta^2 tilde_beta^2) eps + eta tilde_beta z.

    eta = 0 is Euler's method on the probability-flow ODE in sigma; eta = 1 is ancestral sampling with tilde_beta_t.
    """
    _check_eta(eta, most=1.0)
    for i, step in enumerate(steps):
        of_eps = step.b_s * math.sqrt(1 - eta**2 * (1 - step.ratio**2))
        of_y = of_eps / step.b_t  # as eps = (y_t - bar_alpha_t D) / bar_beta_t
        yield Update(i, i + 1, of_y, step.a_s - of_y * step.a_t, z=eta * step.tilde_beta)


def heun(steps: Sequence[Step]) -> Iterator[Update]:
    """Heun's method on the ODE, with D taken as linear in log sigma between both ends of a step: 2n - 1 calls.

    An Euler (ddim) step, then y_s += bar_alpha_s w (D' - D) with D' at the Euler point and w = 1 - (1 - r) / h,
    r = sigma_s / sigma_t. To second order this is the trapezoid rule in sigma of Karras et al. 2022, but that rule has
    (1 - r) / 2r for w, which is 62 in the first of the paper's 250 steps.
    """
    for i, step in enumerate(steps):
        last = step.b_s == 0
        yield Update(i, i + 1 if last else None, step.shrink, step.a_s * (1 - step.ratio))
        if not last:
            lean = step.a_s * (1 - (1 - step.ratio) / step.h)
            yield Update(i + 1, i + 1, 1.0, lean, -lean)


def dpmpp_2m(steps: Sequence[Step]) -> Iterator[Update]:
    """DPM-Solver++ 2M (Lu et al. 2022): the ODE, with D extrapolated linearly in log sigma from the call before."""
    return dpmpp_2m_sde(steps, eta=0.0)


def dpmpp_2m_sde(steps: Sequence[Step], *, eta: float = 1.0) -> Iterator[Update]:
    """SDE-DPM-Solver++ 2M: ancestral sampling with tilde_beta_t (eta = 1), with D extrapolated in log sigma.

    y_s = (bar_beta_s / bar_beta_t) e^{-eta h} y_t + bar_alpha_s (1 - e^{-(1 + eta) h}) D'
          + bar_beta_s sqrt(1 - e^{-2 eta h}) z,    D' = D + (h / 2 h_before) (D - D_before).
    The first step has no call before it, and the last ends at sigma = 0, where D itself is the answer: there D' = D.
    """
    _check_eta(eta)
    h_before = math.inf
    for i, step in enumerate(steps):
        of_y0 = step.a_s * (1 - step.ratio ** (1 + eta))
        lean = of_y0 * step.h / (2 * h_before) if step.b_s > 0 else 0.0
        z = step.b_s * math.sqrt(1 - step.ratio ** (2 * eta))
        yield Update(i, i + 1, step.shrink * step.ratio**eta, of_y0 + lean, -lean, z)
        h_before = step.h


def mean(steps: Sequence[Step]) -> Iterator[Update]:
    """One call at the grid's first time. At t = T, where `sample` starts it, D is the posterior mean."""
    yield Update(0, len(steps), 0.0, 1.0)


def _check_eta(eta: float, most: float = math.inf) -> None:
    if not 0 <= eta <= most:
        raise ValueError(f"eta is {eta}, expected 0 (no noise) to {most:g}")


SamplerName = Literal["ancestral", "ddim", "heun", "dpmpp_2m", "dpmpp_2m_sde", "mean"]
SAMPLERS: dict[str, Sampler] = {
    "ancestral": Sampler(ancestral, order=1, calls=lambda n: n),
    "ddim": Sampler(ddim, order=1, calls=lambda n: n),
    "heun": Sampler(heun, order=2, calls=lambda n: 2 * n - 1),
    "dpmpp_2m": Sampler(dpmpp_2m, order=2, calls=lambda n: n),
    "dpmpp_2m_sde": Sampler(dpmpp_2m_sde, order=2, calls=lambda n: n),
    "mean": Sampler(mean, order=1, calls=lambda n: 1),
}


# --- Algorithm 2 ----------------------------------------------------------------------------------------------------


class MaskedNoise:
    """noise() -> N(0, M^c), like `like`, (N, ...). One generator a sample: sample k does not depend on its neighbours.

    Complex noise has variance 1 in each part (torch.randn would give 1/2).
    """

    def __init__(self, like: Tensor, mask: Tensor, seeds: Sequence[int]) -> None:
        self._like, self._mask = like, mask
        self._generators = [torch.Generator(like.device).manual_seed(int(seed)) for seed in seeds]

    def __call__(self) -> Tensor:
        z = torch.empty_like(self._like, memory_format=torch.contiguous_format)
        parts = torch.view_as_real(z) if z.is_complex() else z
        for part, generator in zip(parts, self._generators, strict=True):
            part.normal_(generator=generator)
        return z.masked_fill_(self._mask, 0)


def sample(
    denoise: Denoise,
    y_m: Tensor,
    mask: Tensor,
    schedule: Schedule,
    *,
    grid: Tensor,
    seeds: Sequence[int],
    sampler: str = "dpmpp_2m",
    callback: Callback | None = None,
    around: Tensor | None = None,
    **settings: Any,
) -> Tensor:
    """Draw full measurements y_M + y_{M^c}, (N, ...): one a seed, each from its own generator (Algorithm 2).

    y_m: (N, ...) or (1, ...), zero off M; mask: bool, broadcast to y_m. What was measured comes back bit for bit.
    A callback sees y and the clean estimate with the measured entries in place. `mean` starts at T, whatever the grid.
    around: what the first state is centred on, like y_m: entries that were measured with noise, which may be far larger
    than the noise of the start. Without it: 0, as in the paper.
    """
    chosen = _chosen(sampler, settings)
    check_measurement(y_m, mask)
    if y_m.shape[0] not in (1, len(seeds)) or not len(seeds):
        raise ValueError(f"y_m has {y_m.shape[0]} measurements for {len(seeds)} seeds, expected 1 or as many as seeds")
    _check_grid(grid, schedule)
    mask, y_m = mask.to(y_m.device), y_m.expand(len(seeds), *y_m.shape[1:])
    noise = MaskedNoise(y_m, mask, seeds)

    def show(now: Snapshot) -> None:
        if callback is not None:
            y, y_0 = (torch.where(mask, y_m, y_c) for y_c in (now.y, now.denoised))
            callback(now._replace(y=y, denoised=y_0))

    if sampler == "mean":
        grid = torch.tensor([schedule.T, 0.0], dtype=torch.float64)
    bar_alpha, bar_beta = (float(value) for value in schedule.at(grid[0]))
    y_T = noise().mul_(bar_beta)
    if around is not None:
        y_T = y_T.add_(bar_alpha * around.masked_fill(mask, 0))
    shown = show if callback else None
    y_c = chosen(_unmeasured(denoise, mask), y_T, grid, schedule, noise=noise, callback=shown, **settings)
    if not torch.isfinite(y_c).all():
        raise ValueError(
            f"sampler {sampler} ended in NaN or infinite values: the denoiser does not fit this measurement"
        )
    return torch.where(mask, y_m, y_c)


def _chosen(sampler: str, settings: dict[str, Any]) -> Sampler:
    """The sampler of this name, if it has these settings."""
    check_choice("sampler", sampler, SamplerName)
    chosen = SAMPLERS[sampler]
    unknown = [name for name in settings if name not in chosen.settings]
    if unknown:
        known = ", ".join(chosen.settings) or "none"
        raise ValueError(f"sampler {sampler} has no setting {', '.join(unknown)}; known: {known}")
    return chosen


def _unmeasured(denoise: Denoise, mask: Tensor) -> Denoise:
    """The denoiser's answer on M^c, whatever it says on M; refused if it is of another kind than what it was asked."""

    def checked(y: Tensor, t: Tensor) -> Tensor:
        y_0 = denoise(y, t)
        if y_0.shape != y.shape or y_0.is_complex() != y.is_complex():
            raise ValueError(
                f"the denoiser returned {y_0.dtype} of shape {tuple(y_0.shape)}, expected {y.dtype} {tuple(y.shape)}"
            )
        return y_0.masked_fill(mask, 0)

    return checked


def check_measurement(y_m: Tensor, mask: Tensor) -> None:
    """Refuse a measurement that cannot be completed, saying why."""
    if not (y_m.is_floating_point() or y_m.is_complex()):
        raise ValueError(f"y_m has dtype {y_m.dtype}, expected a floating-point or complex one")
    if y_m.ndim < 2:
        raise ValueError(f"y_m has shape {tuple(y_m.shape)}, expected (N, ...) with N measurements in front")
    masks.check(mask, y_m.shape, batched=True, empty=True)  # with noise on all of it, nothing is known exactly
    if not torch.isfinite(y_m).all():
        raise ValueError(f"y_m holds {int((~torch.isfinite(y_m)).sum())} NaN or infinite values, expected finite ones")
    stray = int((y_m.masked_fill(mask.to(y_m.device), 0) != 0).sum())
    if stray:
        raise ValueError(f"y_m holds {stray} values off the mask, expected zeros there: y_m = mask * y")

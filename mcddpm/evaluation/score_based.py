"""Score-based baselines: one prior of full scans, which knows of no measurement, and four ways to bring one in.

    METHODS[name](prior, measurement, samples=, steps=, seed=, and settings of its own) -> Reconstruction

The prior is a `Denoiser` trained with `model.conditional = false`; its score is (D(y, sigma) - y) / sigma^2. All of
them walk down sigma_1 > ... > sigma_N, geometric, on the whole of k-space (z ~ N(0, I), 1 in each part):

    chung_ye  corrector and predictor (Song et al. 2021, SDEs), each followed by a projection onto what was measured
    song      the same, before each on M the measurement diffused along: y_M + sigma z (their lambda = 1)
    jalal     annealed Langevin with the gradient of the likelihood, of variance sigma^2, added to the score; what was
              measured is put back at the end, which they do not do
    ddpm      ancestral steps of a variance-preserving chain, on M replaced by the diffused measurement (plain DDPM)

Levels go from `start`, unless told the prior's own highest sigma, to LOWEST. The order of Chung & Ye is that of their
program for one coil, which asks its network for real and imaginary part apart; ours sees both. SETTINGS has what a
configuration may choose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from mcddpm.diffusion import schedules
from mcddpm.diffusion.samplers import SAMPLERS, MaskedNoise, Snapshot
from mcddpm.models.denoiser import Denoiser
from mcddpm.physics.measurement import Measurement
from mcddpm.reconstruction.result import Reconstruction
from mcddpm.system.seeds import seed_of

LOWEST = 0.01


class Walk(NamedTuple):
    """A walk's start and what it needs: y (N, data) at its first sigma, the score, noise, and the measurement."""

    y: Tensor
    start: float
    score: Callable[[Tensor, float], Tensor]
    noise: Callable[[], Tensor]
    y_m: Tensor
    mask: Tensor


def levels(steps: int, high: float, low: float = LOWEST) -> Iterator[tuple[float, float]]:
    """(sigma, the next one), the last next one being 0."""
    sigma = [high * (low / high) ** (i / max(steps - 1, 1)) for i in range(steps)]
    yield from zip(sigma, [*sigma[1:], 0.0], strict=True)


def _predict(walk: Walk, y: Tensor, sigma: float, after: float) -> Tensor:
    """y + (sigma^2 - after^2) score + sqrt(sigma^2 - after^2) z, without noise at the end."""
    gap = sigma**2 - after**2
    y = y + gap * walk.score(y, sigma)
    return y + math.sqrt(gap) * walk.noise() if after > 0 else y


def _correct(walk: Walk, y: Tensor, sigma: float, snr: float) -> Tensor:
    """A Langevin step y + e score + sqrt(2 e) z, e = 2 (snr |z| / |score|)^2 for each sample."""
    score, z = walk.score(y, sigma), walk.noise()
    axes = tuple(range(1, y.ndim))
    size = [torch.linalg.vector_norm(v, dim=axes, keepdim=True) for v in (z, score)]
    step = 2 * (snr * size[0] / size[1].clamp(min=1e-12)).square()
    return y + step * score + (2 * step).sqrt() * z


def chung_ye(walk: Walk, steps: int, snr: float = 0.16) -> Tensor:
    y = walk.y
    for sigma, after in levels(steps, walk.start):
        y = torch.where(walk.mask, walk.y_m, _correct(walk, y, sigma, snr))
        y = torch.where(walk.mask, walk.y_m, _predict(walk, y, sigma, after))
    return y


def song(walk: Walk, steps: int, snr: float = 0.16) -> Tensor:
    y = walk.y
    for sigma, after in levels(steps, walk.start):
        y = torch.where(walk.mask, walk.y_m + sigma * walk.noise(), y)
        y = _correct(walk, y, sigma, snr)
        y = torch.where(walk.mask, walk.y_m + sigma * walk.noise(), y)
        y = _predict(walk, y, sigma, after)
    return torch.where(walk.mask, walk.y_m, y)


def jalal(walk: Walk, steps: int, step: float = 0.15, likelihood: float = 1.0) -> Tensor:
    """Two Langevin steps of `step` sigma^2 a level; the likelihood's std is `likelihood` sigma."""
    y = walk.y
    for sigma, _ in levels(steps, walk.start):
        for _ in range(2):
            e = step * sigma**2
            uphill = (walk.y_m - y).masked_fill(~walk.mask, 0) / (likelihood * sigma) ** 2
            y = y + e * (walk.score(y, sigma) + uphill) + math.sqrt(2 * e) * walk.noise()
    return torch.where(walk.mask, walk.y_m, y + sigma**2 * walk.score(y, sigma))  # without the last level's noise


def _run(method: Callable[..., Tensor], calls: Callable[[int], int]) -> Method:
    @torch.no_grad()
    def reconstructed(
        prior: Denoiser,
        measurement: Measurement,
        *,
        samples: int = 1,
        steps: int = 1000,
        seed: int = 0,
        start: float | None = None,
        **settings: float,
    ) -> Reconstruction:
        denoise, highest, y_m, mask, noise = _start(prior, measurement, samples, seed)

        def score(y: Tensor, sigma: float) -> Tensor:
            return (denoise(y, sigma) - y) / sigma**2

        start = highest if start is None else start
        if not LOWEST < start <= highest * (1 + 1e-6):
            raise ValueError(f"start is {start:g}, expected more than {LOWEST:g} and at most the prior's {highest:g}")
        walk = Walk(y_m + start * noise(), start, score, noise, y_m, mask)
        return _finish(method(walk, steps, **settings), measurement, calls(steps))

    return reconstructed


@torch.no_grad()
def ddpm(
    prior: Denoiser, measurement: Measurement, *, samples: int = 1, steps: int = 1000, seed: int = 0
) -> Reconstruction:
    """Ancestral sampling of the cosine chain; after every step, M is the diffused measurement of that time."""
    clean, _, y_m, mask, noise = _start(prior, measurement, samples, seed)
    schedule = schedules.cosine(1000, 1.0)
    grid = schedule.grid(steps, "uniform")
    upcoming = iter(grid[:-1])  # one call a step, in order: no need to ask the device for the time

    def denoise(y: Tensor, _: Tensor) -> Tensor:
        bar_alpha, bar_beta = (float(v) for v in schedule.at(next(upcoming)))
        return clean(y / bar_alpha, bar_beta / bar_alpha)

    def replace(now: Snapshot) -> None:
        bar_alpha, bar_beta = (float(v) for v in schedule.at(torch.tensor(now.t)))
        now.y.copy_(torch.where(mask, bar_alpha * y_m + bar_beta * noise(), now.y))

    y_T = noise() * float(schedule.at(torch.tensor(1000.0))[1])
    y = SAMPLERS["ancestral"](denoise, y_T, grid, schedule, noise=noise, callback=replace, step_noise="tilde_beta")
    return _finish(torch.where(mask, y_m, y), measurement, steps)


def _start(
    prior: Denoiser, measurement: Measurement, samples: int, seed: int
) -> tuple[Callable[[Tensor, float], Tensor], float, Tensor, Tensor, Callable[[], Tensor]]:
    """The prior's D(y, sigma) and its highest sigma, the measurement repeated, its mask, and noise everywhere."""
    if prior.card is None or prior.card.conditional:
        raise ValueError(
            "score-based methods need a prior, trained with model.conditional = false; this model is not one"
        )
    if samples < 1:
        raise ValueError(f"samples is {samples}, expected 1 or more")
    device, A = next(prior.parameters()).device, measurement.operator
    A = A.to(device)
    y_m, mask = measurement.y_m.to(device), measurement.mask.to(device)
    y_m = y_m.expand(samples, *y_m.shape)
    nothing = torch.zeros_like(mask)
    noise = MaskedNoise(y_m, nothing, [seed_of(seed, k) for k in range(samples)])

    clean = prior.conditioned(torch.zeros_like(y_m[:1]), nothing, A)  # which is shown no measurement
    schedule = prior.schedule.to("cpu")
    highest = float(schedule.sigma[-1])

    def denoise(y: Tensor, sigma: float) -> Tensor:
        known = min(sigma, highest)  # of more noise than it knows, D is asked with as much as it does
        t = schedule.time_of(known)
        bar_alpha = float(schedule.at(t)[0])
        return clean(bar_alpha * known / sigma * y, t.to(y.device))

    return denoise, highest, y_m, mask, noise


def _finish(y: Tensor, measurement: Measurement, calls: int) -> Reconstruction:
    images = measurement.operator.pinv(y.to(measurement.y_m.device))
    if not torch.isfinite(torch.view_as_real(images)).all():
        raise ValueError("a score-based method diverged: its images are not finite; try more levels or smaller steps")
    return Reconstruction.of(measurement, images, calls)


Method = Callable[..., Reconstruction]
METHODS: dict[str, Method] = {
    "chung_ye": _run(chung_ye, lambda n: 2 * n),
    "song": _run(song, lambda n: 2 * n),
    "jalal": _run(jalal, lambda n: 2 * n + 1),
    "ddpm": ddpm,
}
SETTINGS: dict[str, tuple[str, ...]] = {
    "chung_ye": ("start", "snr"),
    "song": ("start", "snr"),
    "jalal": ("start", "step", "likelihood"),
    "ddpm": (),
}

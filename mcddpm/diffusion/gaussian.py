"""A prior with a known answer: x = mean + L z, z ~ N(0, I), measured by any operator.

Everything MC-DDPM draws has a closed form here: the posterior of the unmeasured part, and so the exact denoiser that a
network would have to learn. Tests, benchmarks and the first demo stand on it, and anyone can try their own operator.
Complex z has variance 1 in each part, as all noise in this package; so `std` is that of the real part and of the
imaginary part alike.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from mcddpm.diffusion.schedules import Schedule
from mcddpm.physics.noise import known_exactly
from mcddpm.physics.operator import Operator


@dataclass(frozen=True)
class GaussianPrior:
    """mean: (image); factor L: (k, image), its k columns as images, so that Cov(x) = L L^H."""

    mean: Tensor
    factor: Tensor

    def draw(self, generator: torch.Generator) -> Tensor:
        z = self.mean.new_empty(len(self.factor))
        (torch.view_as_real(z) if z.is_complex() else z).normal_(generator=generator)
        return self.mean + torch.tensordot(z, self.factor, dims=1)

    def posterior(self, A: Operator, y_m: Tensor, mask: Tensor, noise: Tensor | float = 0.0) -> GaussianPosterior:
        """Condition on y_m = M (A x + s eps). y_m: (data), zero off M; noise: s of each part, a number or (data)."""
        return self.measured_by(A, mask, noise)(y_m)

    def measured_by(
        self, A: Operator, mask: Tensor, noise: Tensor | float = 0.0
    ) -> Callable[[Tensor], GaussianPosterior]:
        """y_m -> posterior, for many measurements that share a mask and a noise.

        With B = A L the rows without noise say B_m z = y_m - M A mean. That fixes z on the row space of B_m and leaves
        it free, still standard normal, on the null space, spanned by N. There, z = N u, the noisy rows B_n weigh in:
        u ~ N(C G^H (y_n - A mean - B_n z) / s, C) with G = B_n N / s and C = (1 + G^H G)^-1.
        """
        y_mean = A(self.mean)
        B = A(self.factor).flatten(1).mT  # (data, k)
        s = torch.as_tensor(noise, dtype=y_mean.real.dtype).expand(y_mean.shape).flatten()
        measured = mask.expand(y_mean.shape).flatten()
        known, noisy = measured & (s == 0), measured & (s > 0)
        U, singular, Vh = torch.linalg.svd(B[known])
        rank = int((singular > 1e-10 * singular.max()).sum()) if len(singular) else 0
        N = Vh[rank:].mH if rank < len(Vh) else 0 * Vh[:1].mH  # more rows than unknowns: nothing is left free
        G = (B[noisy] @ N) / s[noisy, None]
        precision, axes = torch.linalg.eigh(torch.eye(N.shape[1], dtype=B.dtype) + G.mH @ G)
        spread = torch.tensordot((N @ (axes * precision.rsqrt())).mT, self.factor, dims=1)
        prior = GaussianPosterior(A, torch.zeros_like(y_mean), known_exactly(mask, noise), self.mean, spread)

        def posterior(y_m: Tensor) -> GaussianPosterior:
            rest = (y_m - y_mean).flatten()
            z = Vh[:rank].mH @ ((U[:, :rank].mH @ rest[known]) / singular[:rank])
            u = G.mH @ ((rest - B @ z)[noisy] / s[noisy])
            z = z + N @ (axes @ ((axes.mH @ u) / precision))
            y_known = y_m.flatten().masked_fill(~known, 0).reshape(y_m.shape)
            return prior.moved(y_known, self.mean + torch.tensordot(z, self.factor, dims=1))

        return posterior


class GaussianPosterior:
    """x | y_m = x_mean + sum_i u_i x_factor_i, u ~ N(0, I), and its unmeasured part y_c = M^c A x ~ N(m, G G^H)."""

    def __init__(self, A: Operator, y_m: Tensor, mask: Tensor, x_mean: Tensor, x_factor: Tensor) -> None:
        self.A, self.y_m, self.mask = A, y_m, mask
        self.x_mean, self.x_factor = x_mean, x_factor
        self.y_mean = A(x_mean).masked_fill(mask, 0)
        G = A(x_factor).masked_fill(mask, 0).flatten(1).mT  # (data, r)
        self.variances, V = torch.linalg.eigh(G.mH @ G)
        self.variances = self.variances.clamp(min=0)
        self._directions = G @ V  # orthogonal columns, of squared length `variances`

    def moved(self, y_m: Tensor, x_mean: Tensor) -> GaussianPosterior:
        """The same spread around another mean."""
        other = copy(self)
        other.y_m, other.x_mean = y_m, x_mean
        other.y_mean = self.A(x_mean).masked_fill(self.mask, 0)
        return other

    @property
    def x_std(self) -> Tensor:
        """Pixel std of x, of each of its real and imaginary part."""
        return self.x_factor.abs().square().sum(0).sqrt()

    def denoise(self, y_t: Tensor, bar_alpha: float, bar_beta: float) -> Tensor:
        """E[y_c | y_t] = m + K (K + sigma^2)^-1 (y_t / bar_alpha - m), K = G G^H, sigma = bar_beta / bar_alpha."""
        return self._transform(y_t, bar_alpha, 1 / (self.variances + (bar_beta / bar_alpha) ** 2))

    def flow(self, y_t: Tensor, bar_alpha: float, bar_beta: float) -> Tensor:
        """Where the probability-flow ODE takes y_t at t = 0: m + K^1/2 (K + sigma^2)^-1/2 (y_t / bar_alpha - m)."""
        gain = (self.variances * (self.variances + (bar_beta / bar_alpha) ** 2)).rsqrt()
        return self._transform(y_t, bar_alpha, torch.where(self.variances > 0, gain, 0))

    def _transform(self, y_t: Tensor, bar_alpha: float, gain: Tensor) -> Tensor:
        rest = (y_t / bar_alpha - self.y_mean).flatten(-self.y_m.ndim)
        moved = ((rest @ self._directions.conj()) * gain) @ self._directions.mT
        return self.y_mean + moved.reshape(y_t.shape)

    def denoiser(self, schedule: Schedule) -> Callable[[Tensor, Tensor], Tensor]:
        """denoise(y_t, t) as samplers want it."""

        def denoise(y_t: Tensor, t: Tensor) -> Tensor:
            bar_alpha, bar_beta = schedule.at(t)
            return self.denoise(y_t, float(bar_alpha), float(bar_beta))

        return denoise

    def image_moments(self, y_mean: Tensor, variances: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and pixel std of A+ (y_m + y_c) when y_c has this mean and these variances along the axes of K."""
        gain = torch.where(self.variances > 0, variances / self.variances, 0)
        axes = self.A.pinv(self._directions.mT.reshape(-1, *self.y_m.shape))
        std = torch.tensordot(gain, axes.abs().square(), dims=1).sqrt()
        return self.A.pinv(self.y_m + y_mean), std

    def moments_of(self, sampler: Callable[..., Tensor], grid: Tensor, schedule: Schedule) -> tuple[Tensor, Tensor]:
        """The mean (data) and the variances along the axes of K of what a sampler draws: exactly, without drawing.

        Samplers and D are linear and D is diagonal in the axes of K. So the sampler runs there, on a batch whose row 0
        gets no noise at all (the mean), row 1 a unit of the first noise, and row 2 + k a unit of the k-th step's noise.
        The squares of what each unit becomes add up to the variance.
        """
        steps = len(grid) - 1
        variances = self.variances
        known = variances > 1e-12 * variances.max()
        length = torch.where(known, variances.sqrt(), 1)
        center = (self._directions.mH @ self.y_mean.flatten()) / length
        state = center.new_zeros(steps + 2, len(variances))
        calls = iter(range(2, steps + 2))

        def noise() -> Tensor:
            z = torch.zeros_like(state)
            z[next(calls)] = 1
            return z

        def denoise(y: Tensor, t: Tensor) -> Tensor:
            bar_alpha, bar_beta = schedule.at(t)
            gain = variances / (variances + (bar_beta / bar_alpha) ** 2)
            return center + gain * (y / bar_alpha - center)

        state[1] = schedule.at(grid[0])[1]
        drawn = sampler(denoise, state, grid, schedule, noise=noise)
        mean = self.y_mean + (self._directions @ ((drawn[0] - center) / length)).reshape(self.y_mean.shape)
        return mean, torch.where(known, (drawn[1:] - drawn[0]).abs().square().sum(0), 0)

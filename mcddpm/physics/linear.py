"""The best linear estimate of an image from everything that is known of it, and what agrees with a measurement.

    x_w = argmin_x  |z - A x|^2 / sigma^2 + |M (y_M - A x)|^2 / s^2 + |F x|^2 / S^2

z = A x + sigma eps is a state of the diffusion (where the scan is not known exactly), y_M = M (A x + s eps) the
measurement, and S^2 the power of images at each place of their k-space. For one coil it is Wiener's filter, entry by
entry. Else it takes conjugate gradients in the image's k-space: FIRST steps once a scan for what was measured, and
AFTER in each call, from the answer before. What agrees with the measurement takes AGREE steps. Their normal matrix is
in `normal.py`.

The preconditioner is 1 / (mean weight + S^-2). One that knew which entries were measured would take the others for
free, and is eight decibels behind after forty steps.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import torch
from torch import Tensor

from mcddpm.physics.fourier import Fourier, fft, ifft
from mcddpm.physics.noise import known_exactly
from mcddpm.physics.normal import Normal
from mcddpm.physics.operator import Operator
from mcddpm.physics.sense import gain_of

FIRST, AFTER, AGREE = 80, 5, 8
IN_TRAINING = {"first": 24, "agree": 5}  # steps: a network learns with what is left
LEAST = 1e-3  # of max|A+ y_M| = 1: to several coils, less noise than this is as good as none


class LinearEstimate:
    """y_m: (B, data), zero off M; mask: bool, broadcast to it; noise: s, a number or (data); power: S^2, (H, W)."""

    def __init__(
        self,
        A: Operator,
        y_m: Tensor,
        mask: Tensor,
        noise: Tensor | float,
        power: Tensor,
        first: int = FIRST,
        after: int = AFTER,
        agree: int = AGREE,
    ) -> None:
        self.A, self.y_m, self.mask, self.power, self.after, self.agree = A, y_m, mask, power, after, agree
        self.known = known_exactly(mask, noise)
        self.noise = torch.as_tensor(noise, dtype=y_m.real.dtype, device=y_m.device)
        self.closed = isinstance(A, Fourier)
        self._last: Tensor | None = None
        weight = torch.where(mask, self.noise.clamp(min=LEAST).square().reciprocal(), 0)
        self._mean = weight.expand(y_m.shape).flatten(1).mean(1)[:, None, None]
        measured = mask.expand(y_m.shape).flatten(1).float().mean(1)[:, None, None]
        self.level = (measured / self._mean).sqrt().to(self._mean)  # s, as one number a scan, (B, 1, 1)
        self.gain = gain_of(A)
        if not self.closed:
            self._some_known = bool(self.known.any())
            self._normal = Normal(A, weight, self.known)
            self._of_measured = fft(A.adjoint(weight * y_m))
            self._u = self._solve(self._of_measured, None, torch.zeros_like(self._of_measured), first)
        self.measured = self._wiener(None, None) if self.closed else self._image(self._u)

    def afresh(self) -> LinearEstimate:
        """For other draws of the same scan: what was solved once, and no call before."""
        other = copy(self)
        other._last = None
        return other

    def __call__(self, z: Tensor, sigma: Tensor) -> Tensor:
        """z: (B, data); sigma: (B, 1, ...), above 0.  -> (B, H, W)"""
        if self.closed:
            return self._wiener(z, sigma)
        start = self._u.expand(len(z), *self._u.shape[1:])
        if self._last is not None and self._last.shape == start.shape:
            start = self._last
        precision = sigma.square().reciprocal()
        moving = z.masked_fill(self.known, 0) if self._some_known else z
        b = self._of_measured + precision.reshape(-1, 1, 1) * fft(self.A.adjoint(moving))
        self._last = self._solve(b, precision, start, self.after)
        return self._image(self._last)

    def consistent(self, f: Tensor, scale: Tensor) -> Tensor:
        """argmin_v |v - f|^2 + |M A v scale|^2 / s^2: f without what the measurement contradicts, for an error of the
        image of std `scale`.  (B, H, W)"""
        ratio = scale.square()
        if self.closed:
            gain = torch.where(self.mask, self.noise.square() / (self.noise.square() + ratio), 1)
            return ifft(gain * fft(f))
        near = 1 / (1 + ratio * self._mean)

        def solve(b: Tensor) -> Tensor:
            return conjugate_gradients(lambda v: v + ratio * self._normal(v), b, near * b, near, self.agree)

        return SelfAdjoint.apply(f, solve)

    def _wiener(self, z: Tensor | None, sigma: Tensor | None) -> Tensor:
        """(z / sigma^2 + M y_M / s^2) / (1 / sigma^2 + M / s^2 + 1 / S^2), and y_M itself where s = 0."""
        prior = self.power.reciprocal()
        weight = torch.where(self.mask & ~self.known, self.noise.square().reciprocal(), 0)
        total, y = weight + prior, weight * self.y_m
        if z is not None and sigma is not None:
            total, y = total + sigma.square().reciprocal(), y + z / sigma.square()
        return ifft(torch.where(self.known, self.y_m, y / total))

    def _solve(self, b: Tensor, precision: Tensor | None, start: Tensor, steps: int) -> Tensor:
        """(F A^H W A F^H + S^-2) u = b"""
        prior = self.power.reciprocal()
        mean = self._mean if precision is None else self._mean + precision.reshape(-1, 1, 1)

        def normal(u: Tensor) -> Tensor:
            return fft(self._normal(self._image(u), precision)) + prior * u

        return conjugate_gradients(normal, b, start, 1 / (mean + prior), steps)

    def _image(self, u: Tensor) -> Tensor:
        return ifft(u) if self.y_m.is_complex() else ifft(u).real


class SelfAdjoint(torch.autograd.Function):
    """solve(f), for a self-adjoint solve: gradients go back by the same solve, and no step of it is kept."""

    @staticmethod
    def forward(ctx: Any, f: Tensor, solve: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.solve = solve
        return solve(f)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.solve(grads[0]), None


def conjugate_gradients(
    normal: Callable[[Tensor], Tensor], b: Tensor, start: Tensor, preconditioner: Tensor, steps: int
) -> Tensor:
    """So many steps towards normal(u) = b, for each of a batch; a residual of zero stays where it is.  (B, H, W)"""
    u, r = start, b - normal(start)
    d = q = preconditioner * r
    size = _dot(r, q)
    for _ in range(steps):
        image = normal(d)
        step = size / _dot(d, image).clamp(min=TINY)
        u, r = u + step * d, r - step * image
        q = preconditioner * r
        before, size = size, _dot(r, q)
        d = q + size / before.clamp(min=TINY) * d
    return u


TINY = 1e-30


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Re <a, b> of each, (B, 1, 1)."""
    return (a.conj() * b).real.sum((-2, -1), keepdim=True)

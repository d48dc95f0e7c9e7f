"""CT: line integrals, their exact adjoint, and filtered back-projection."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mcddpm.physics.operator import LABELS, Kind, Shape, check_precision, check_shape


class Radon:
    """Parallel-beam line integrals.  (..., H, W) -> (..., D, V): D detectors one pixel apart, V views.

    y(s, theta) = integral of x over the line {(j, i): (j - W//2) cos(theta) - (i - H//2) sin(theta) = s}, with
    theta in degrees: scikit-image's convention, and the centre of our FFT. Each line is stepped along the image axis
    it crosses most steeply, with linear interpolation along the other (Joseph's method). That is `grid_sample` on a
    sheared grid, so that A^H is the backward of the same kernel with the same weights: exact.

    `pinv` is filtered back-projection with the ramp filter. Each view is weighted by the arc it stands for on the
    half circle, so that uneven angles are right too.
    """

    kind: Kind = "radon"
    label = LABELS["radon"]

    def __init__(self, size: int | Sequence[int], angles: int | Sequence[float] | Tensor) -> None:
        height, width = (size, size) if isinstance(size, int) else tuple(size)
        if min(height, width) < 1:
            raise ValueError(f"size is {(height, width)}, expected a height and a width of 1 or more")
        if isinstance(angles, int):
            angles = torch.arange(angles, dtype=torch.float64) * (180 / max(angles, 1))
        self.angles = torch.as_tensor(angles, dtype=torch.float64, device="cpu")
        if self.angles.ndim != 1 or not len(self.angles) or not torch.isfinite(self.angles).all():
            raise ValueError(
                f"angles have shape {tuple(self.angles.shape)}, expected (V,) finite degrees with V of 1 or more"
            )
        radius = torch.tensor([height // 2, width // 2], dtype=torch.float64).norm()
        detectors = 2 * int(radius.ceil()) + 1
        self.image_shape: Shape | None = (height, width)
        self.data_shape: Shape | None = (detectors, len(self.angles))
        self._size = (height, width)
        self._detectors = detectors
        self._filter = _ramp(detectors)
        self._arcs = _arcs(self.angles)

    def __call__(self, x: Tensor) -> Tensor:
        check_shape("image", x, self.image_shape)
        check_precision("image", x)
        return _Linear.apply(x, self._project, self._back_project)

    def adjoint(self, y: Tensor) -> Tensor:
        check_shape("sinogram", y, self.data_shape)
        check_precision("sinogram", y)
        return _Linear.apply(y, self._back_project, self._project)

    def pinv(self, y: Tensor) -> Tensor:
        check_shape("sinogram", y, self.data_shape)
        check_precision("sinogram", y)
        weighted = self._arcs.to(y) * _filter_detectors(y, self._filter)
        return _on_parts(weighted, self._smear)

    def to(self, device: torch.device | str) -> Radon:
        return self  # what it holds is small, and goes where its input is

    def __repr__(self) -> str:
        return f"Radon(size={self._size}, views={len(self.angles)})"

    # Lines that cross rows more steeply than columns step from row to row; the others do so in the transposed image.

    def _sheaves(self) -> list[tuple[Tensor, bool]]:
        theta = self.angles.deg2rad()
        flat = theta.cos().abs() < theta.sin().abs()
        return [(flag.nonzero().squeeze(1), bool(t)) for flag, t in ((~flat, False), (flat, True)) if flag.any()]

    def _sheared_grid(self, views: Tensor, transposed: bool, like: Tensor) -> tuple[Tensor, Tensor]:
        """Where each ray meets each row, (1, v * rows, D, 2) in `grid_sample`'s units, and its step length (v,)."""
        theta = self.angles[views].deg2rad()
        cos, sin = theta.cos().to(like)[:, None, None], theta.sin().to(like)[:, None, None]
        height, width = self._size
        if transposed:  # along columns j: i = ((j - W//2) cos - s) / sin + H//2, the same line seen from the other axis
            height, width, cos, sin = width, height, -sin, -cos
        row = torch.arange(height, dtype=like.dtype, device=like.device)[None, :, None]
        s = torch.arange(self._detectors, dtype=like.dtype, device=like.device)[None, None, :] - self._detectors // 2
        column = (s + (row - height // 2) * sin) / cos + width // 2
        grid = torch.stack([_unit(column, width), _unit(row.expand_as(column), height)], dim=-1)
        return grid.reshape(1, -1, self._detectors, 2), 1 / cos.abs().flatten()

    def _chunks(self, batch: int) -> list[tuple[Tensor, bool]]:
        """Views in groups, so that the rays of a group take at most 2^25 values: memory stays flat."""
        per_view = max(batch * max(self._size) * self._detectors, 1)
        group = max(1, 2**25 // per_view)
        return [(part, t) for views, t in self._sheaves() for part in views.split(group)]

    def _project(self, x: Tensor) -> Tensor:
        batch, images = x.shape[:-2], x.reshape(1, -1, *self._size)
        y = x.new_empty(images.shape[1], self._detectors, len(self.angles))
        for views, transposed in self._chunks(images.shape[1]):
            grid, length = self._sheared_grid(views, transposed, x)
            source = images.mT if transposed else images
            rays = F.grid_sample(source, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
            rays = rays.reshape(images.shape[1], len(views), -1, self._detectors)
            y[..., views.to(x.device)] = (rays.sum(2) * length[:, None]).mT
        return y.reshape(*batch, *y.shape[1:])

    def _back_project(self, y: Tensor) -> Tensor:
        batch, sinograms = y.shape[:-2], y.reshape(-1, self._detectors, len(self.angles))
        x = y.new_zeros(1, len(sinograms), *self._size)
        for views, transposed in self._chunks(len(sinograms)):
            grid, length = self._sheared_grid(views, transposed, y)
            rays = sinograms[..., views.to(y.device)].mT * length[:, None]
            source = x.mT if transposed else x
            rows = rays[:, :, None].expand(-1, -1, source.shape[-2], -1).reshape(1, len(sinograms), -1, rays.shape[-1])
            # grid_sample's vector-Jacobian product in its image: bilinear (0), zero padding (0), unaligned corners.
            grad, _ = torch.ops.aten.grid_sampler_2d_backward(rows, source, grid, 0, 0, False, [True, False])
            x += grad.mT if transposed else grad
        return x.reshape(*batch, *self._size)

    def _smear(self, y: Tensor) -> Tensor:
        """Read each filtered view where each pixel projects, and sum over views (a gather: deterministic on GPUs)."""
        height, width = self._size
        batch, sinograms = y.shape[:-2], y.reshape(1, -1, self._detectors, len(self.angles)).mT.contiguous()
        x = y.new_zeros(sinograms.shape[1], height, width)
        i = torch.arange(height, dtype=y.dtype, device=y.device)[:, None] - height // 2
        j = torch.arange(width, dtype=y.dtype, device=y.device)[None, :] - width // 2
        for view, theta in enumerate(self.angles.deg2rad().tolist()):
            s = j * math.cos(theta) - i * math.sin(theta) + self._detectors // 2
            grid = torch.stack([_unit(s, self._detectors), torch.zeros_like(s)], dim=-1)[None]
            x += F.grid_sample(sinograms[:, :, view, None], grid, padding_mode="zeros", align_corners=False)[0]
        return x.reshape(*batch, height, width)


def _unit(index: Tensor, size: int) -> Tensor:
    """Pixel index -> grid_sample's [-1, 1] from edge to edge. (Aligned corners would collapse an axis of one pixel.)"""
    return (2 * index + 1) / size - 1


def _ramp(detectors: int) -> Tensor:
    """|frequency| sampled by its exact band-limited kernel: 1/4 at 0, -1/(pi n)^2 at odd n, 0 at even n.

    Sampling |f| itself would put 0 at the zero frequency and darken the image. Padded to hold a linear convolution.
    """
    size = 1 << (2 * detectors - 1).bit_length()
    n = torch.cat([torch.arange(size // 2), torch.arange(-size // 2, 0)]).double()
    kernel = torch.where(n.remainder(2) == 1, -1 / (torch.pi * n).square(), 0.0)
    kernel[0] = 0.25
    return torch.fft.rfft(kernel).real


def _filter_detectors(y: Tensor, ramp: Tensor) -> Tensor:
    size = 2 * (len(ramp) - 1)

    def convolve(part: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(part, n=size, dim=-2) * ramp.to(part)[:, None]
        return torch.fft.irfft(spectrum, n=size, dim=-2)[..., : part.shape[-2], :]

    return _on_parts(y, convolve)


def _arcs(angles: Tensor) -> Tensor:
    """Radians of the half circle nearest to each view; pi/V when they are evenly spread."""
    position, order = angles.remainder(180).sort()
    gap = torch.diff(position, append=position[:1] + 180)
    arcs = torch.empty_like(gap)
    arcs[order] = (gap + gap.roll(1)) / 2
    return arcs.deg2rad()


def _on_parts(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a real linear map to the real and the imaginary part."""
    return torch.complex(function(x.real), function(x.imag)) if x.is_complex() else function(x)


class _Linear(torch.autograd.Function):
    """A real linear map with its transpose as derivative, in both directions, so that any order of gradient works."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, map_: Callable[[Tensor], Tensor], transpose: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.map, ctx.transpose = map_, transpose
        return _on_parts(x, map_)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _Linear.apply(grads[0], ctx.transpose, ctx.map), None, None

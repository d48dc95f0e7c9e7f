"""MRI with one coil: the centred, orthonormal Fourier transform."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mcddpm.physics.operator import LABELS, Kind, Shape, check_shape

_IMAGE = (-2, -1)


def fft(x: Tensor) -> Tensor:
    """fftshift(fft2(ifftshift(x))), orthonormal."""
    x = torch.fft.ifftshift(x, dim=_IMAGE)
    return torch.fft.fftshift(torch.fft.fft2(x, norm="ortho"), dim=_IMAGE)


def ifft(y: Tensor) -> Tensor:
    """The inverse of `fft`."""
    y = torch.fft.ifftshift(y, dim=_IMAGE)
    return torch.fft.fftshift(torch.fft.ifft2(y, norm="ortho"), dim=_IMAGE)


class Fourier:
    """One coil: y = fftshift(fft2(ifftshift(x))), orthonormal, so that A^H = A^-1.  (..., H, W) -> (..., H, W)"""

    kind: Kind = "fourier"
    label = LABELS["fourier"]

    def __init__(self, shape: Sequence[int] | None = None) -> None:
        self.image_shape: Shape | None = None if shape is None else tuple(shape)
        self.data_shape: Shape | None = self.image_shape

    def __call__(self, x: Tensor) -> Tensor:
        check_shape("image", x, self.image_shape)
        return fft(x)

    def adjoint(self, y: Tensor) -> Tensor:
        check_shape("k-space", y, self.data_shape)
        return ifft(y)

    def pinv(self, y: Tensor) -> Tensor:
        return self.adjoint(y)

    def to(self, device: torch.device | str) -> Fourier:
        return self

    def __repr__(self) -> str:
        return f"Fourier({self.image_shape or ''})"

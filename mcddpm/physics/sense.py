"""MRI with several coils."""

from __future__ import annotations

import torch
from torch import Tensor

from mcddpm.physics.fourier import fft, ifft
from mcddpm.physics.operator import LABELS, Kind, Operator, Shape, check_shape


class Sense:
    """Several coils: y_c = F(S_c x), with sensitivity maps S: (..., C, H, W).  (..., H, W) -> (..., C, H, W)

    A^H y = sum_c conj(S_c) F^-1 y_c, and since F is unitary A^+ = (sum_c |S_c|^2)^-1 A^H is the least-squares
    inverse. It is exact wherever some coil sees the pixel, and 0 where none does: where the coils' power is below 1e-6
    of its maximum, dividing by it would only blow up noise.
    """

    def __init__(self, maps: Tensor) -> None:
        if maps.ndim < 3 or 0 in maps.shape:
            raise ValueError(f"maps have shape {tuple(maps.shape)}, expected (..., C, H, W)")
        if not torch.isfinite(maps).all():
            raise ValueError("maps hold NaN or infinite values, expected finite coil sensitivities")
        self.maps = maps
        self.image_shape: Shape | None = tuple(maps.shape[-2:])
        self.data_shape: Shape | None = tuple(maps.shape[-3:])
        power = maps.abs().square().sum(-3)
        self._inverse_power = torch.where(power > 1e-6 * power.max(), 1 / power, 0)

    @property
    def kind(self) -> Kind:
        """One coil is one coil, with or without an axis."""
        return "fourier" if self.maps.shape[-3] == 1 else "sense"

    @property
    def label(self) -> str:
        return LABELS[self.kind]

    def __call__(self, x: Tensor) -> Tensor:
        check_shape("image", x, self.image_shape)
        self._check_batch(x.shape[:-2], "image", x)
        return fft(self.maps * x.unsqueeze(-3))

    def adjoint(self, y: Tensor) -> Tensor:
        check_shape("multi-coil k-space", y, self.data_shape, ndim=3)
        self._check_batch(y.shape[:-3], "multi-coil k-space", y)
        return (self.maps.conj() * ifft(y)).sum(-3)

    def pinv(self, y: Tensor) -> Tensor:
        return self._inverse_power * self.adjoint(y)

    def _check_batch(self, batch: Shape, what: str, tensor: Tensor) -> None:
        try:
            torch.broadcast_shapes(batch, self.maps.shape[:-3])
        except RuntimeError:
            raise ValueError(
                f"{what} has shape {tuple(tensor.shape)}, which does not go with maps {tuple(self.maps.shape)}"
            ) from None

    def to(self, device: torch.device | str) -> Sense:
        return Sense(self.maps.to(device))

    def __repr__(self) -> str:
        return f"Sense(coils={self.maps.shape[-3]}, shape={self.image_shape})"


def gain_of(A: Operator) -> Tensor | float:
    """The std in the image of unit noise in the data of several coils, of whatever power: about 1, (B or 1, 1, 1). Of
    other operators it does not depend on the scan: 1 here."""
    if not isinstance(A, Sense):
        return 1.0
    power = A.maps.abs().square().sum(-3).flatten(-2)
    mean = power.sum(-1) / (power > 0).sum(-1).clamp(min=1)
    return mean.clamp(min=1e-30).rsqrt().reshape(-1, 1, 1)

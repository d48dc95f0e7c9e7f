"""What was measured: y_M, the mask, the operator and the scale; the truth where it is known."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mcddpm.physics import masks
from mcddpm.physics.coils import maps_of
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.operator import Operator
from mcddpm.physics.sense import Sense
from mcddpm.system.progress import Notice


@dataclass(frozen=True)
class Measurement:
    """y_m: (data), zero off the mask, times `scale` = 1 / max|A+ y_M|; truth: complex, scaled alike, where known.

    target: the magnitude that a protocol compares with, scaled alike, where it is not |truth|; it may be a centre crop.
    notices: what a person should know of how it was measured.
    """

    y_m: Tensor
    mask: Tensor
    scale: float
    operator: Operator
    truth: Tensor | None = None
    target: Tensor | None = None
    from_numpy: bool = False
    notices: tuple[Notice, ...] = ()

    @classmethod
    def from_kspace(
        cls, kspace: Tensor | np.ndarray, mask: Tensor | np.ndarray | None = None, *, maps: Tensor | None = None
    ) -> Measurement:
        """Your own k-space, (H, W) or (coils, H, W), in the centred FFT; numpy or torch, and results come back alike.

        mask: True where sampled, (W,) or (H, W). Without one, what is exactly zero was not sampled. Coil maps (coils,
        H, W) are found from the centre of k-space unless given.
        """
        y = torch.as_tensor(kspace)
        if not y.is_complex() or y.ndim not in (2, 3):
            raise ValueError(
                f"kspace has dtype {y.dtype} and shape {tuple(y.shape)}, expected complex (H, W) or (coils, H, W)"
            )
        y = y.to(torch.complex64)
        if not torch.isfinite(y).all():
            raise ValueError("kspace holds NaN or infinite values")
        sampled = (y != 0).reshape(-1, *y.shape[-2:]).any(0) if mask is None else torch.as_tensor(mask).to(y.device)
        if mask is None and sampled.all():
            raise ValueError(
                "kspace is fully sampled and no mask was given; for a retrospective study pass one, "
                "as masks.random_columns(width, acceleration=4, seed=0)"
            )
        masks.check(sampled, y.shape)
        A: Operator = Fourier()
        if y.ndim == 3:
            y_m = y.masked_fill(~sampled, 0)
            A = Sense(maps_of(y_m, sampled) if maps is None else torch.as_tensor(maps).to(y))
        truth = None if mask is None or (y == 0).any() else A.pinv(y)
        return dataclasses.replace(measure(y, sampled, A, truth), from_numpy=isinstance(kspace, np.ndarray))


def measure(
    y: Tensor, mask: Tensor, A: Operator, truth: Tensor | None = None, target: Tensor | None = None
) -> Measurement:
    """Under-sample a measurement (data) and scale it."""
    masks.check_fits(mask, y.shape)
    y_m = y.masked_fill(~mask, 0)
    top = float(A.pinv(y_m).abs().max())
    if not top > 0:
        raise ValueError("the measured data are zero everywhere: nothing to reconstruct")
    truth, target = (None if x is None else x / top for x in (truth, target))
    return Measurement(y_m / top, mask, 1 / top, A, truth, target)


def measured_rms(zero_filled: Tensor) -> list[float]:
    """The rms of zero-filled images whose maximum is 1: how much energy was measured.  (B, H, W) -> B numbers"""
    return zero_filled.abs().square().mean((-2, -1)).sqrt().tolist()

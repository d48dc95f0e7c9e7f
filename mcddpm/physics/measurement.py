"""What was measured: y_M, the mask, the operator and the scale; the truth where it is known."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mcddpm.physics import masks
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.noise import Unknown, at_most, covariance
from mcddpm.physics.operator import Operator
from mcddpm.physics.receivers import MOST, maps_from_centre, receivers_of
from mcddpm.physics.sense import Sense
from mcddpm.system.progress import Notice

Noise = float | Tensor | np.ndarray
NoiseSource = Literal["none", "given", "simulated", "noise scan", "air", "at most"]
NO_NOISE = torch.zeros(())
NOTHING = "the measured data are zero everywhere: nothing to reconstruct"


@dataclass(frozen=True)
class Measurement:
    """y_m: (data), zero off the mask, times `scale` = 1 / max|A+ y_M|; truth: complex, scaled alike, where known.

    target: the magnitude that a protocol compares with, scaled alike, where it is not |truth|; it may be a centre crop.
    notices: what a person should know of how it was measured. noise: the std of y_m's noise in each part, scaled alike,
    a number or (data), and where it is known from; noise_level: its rms in the receivers and the units of the scan.
    """

    y_m: Tensor
    mask: Tensor
    scale: float
    operator: Operator
    truth: Tensor | None = None
    target: Tensor | None = None
    from_numpy: bool = False
    notices: tuple[Notice, ...] = ()
    noise: Tensor = NO_NOISE
    noise_from: NoiseSource = "none"
    noise_level: float = 0.0

    @classmethod
    def from_kspace(
        cls,
        kspace: Tensor | np.ndarray,
        mask: Tensor | np.ndarray | None = None,
        *,
        maps: Tensor | None = None,
        noise: Noise | None = None,
        most: int = MOST,
    ) -> Measurement:
        """Your own k-space, (H, W) or (coils, H, W), in the centred FFT; numpy or torch, and results come back alike.

        mask: True where sampled, (W,) or (H, W). Without one, what is exactly zero was not sampled. Coil maps (coils,
        H, W) are found from the centre of k-space unless given. noise: its std in each part, in the units of kspace: a
        number, one a coil, one an entry, or the covariance of the coils (coils, coils); it is estimated unless given.
        most: virtual coils that receivers are compressed to, at most.
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
        if mask is None and sampled.all() and noise is None:
            raise ValueError(
                "kspace is fully sampled and no mask was given; for a retrospective study pass one, "
                "as masks.random_columns(width, acceleration=4, seed=0); to denoise it, pass its noise"
            )
        if noise is None or not torch.as_tensor(noise).any():
            masks.check(sampled, y.shape)
        whole = mask is not None and not (y == 0).any()
        measured = measure_kspace(y, sampled, maps=maps, noise=noise, whole=whole, most=most)
        return dataclasses.replace(measured, from_numpy=isinstance(kspace, np.ndarray))


def measure_kspace(
    y: Tensor,
    mask: Tensor,
    *,
    maps: Tensor | None = None,
    noise: Noise | None = None,
    noise_from: NoiseSource = "given",
    whole: bool = True,
    truth: Tensor | None = None,
    target: Tensor | None = None,
    most: int = MOST,
) -> Measurement:
    """k-space of one coil (H, W) or several (C, H, W), under-sampled. noise: as for `from_kspace`; what is not given is
    estimated from what was measured. whole: whether y is a full scan, whose image is the truth unless that is given."""
    masks.check_fits(mask, y.shape)
    y_m = y.masked_fill(~mask, 0)
    if not y_m.any():
        raise ValueError(NOTHING)
    if maps is not None and (y.ndim == 2 or maps.shape != y.shape):
        raise ValueError(f"maps have shape {tuple(maps.shape)}, kspace has {tuple(y.shape)}")
    silent: tuple[Notice, ...] = ()
    if y.ndim == 3 and maps is None and noise is None:
        y, silent = _heard(y, y_m)
        y_m = y.masked_fill(~mask, 0)
    if noise is None:
        noise, noise_from = estimated(y_m, mask)
    given = torch.as_tensor(noise).to(y.device)
    _check_noise(given, y)
    A: Operator = Fourier()
    std: Tensor | float = given.real.float()
    if len(y) == 1 and maps is None and given.numel() == 1:  # one coil, with or without an axis
        y, std = y[0], _std_of_one(given, noise_from)
    level = _rms(std)
    if y.ndim == 3:
        maps = None if maps is None else torch.as_tensor(maps).to(y)
        covariance = _covariance_of(given, y)
        if covariance is None:
            A = Sense(maps_from_centre(y_m, mask) if maps is None else maps)
        else:
            level = float(covariance.diagonal().real.mean().sqrt())
            receivers = receivers_of(y_m, mask, covariance, maps, most)
            y, A, std = receivers(y), Sense(receivers.maps), receivers.noise
    if truth is None and whole:
        truth = A.pinv(y)
    made = measure(y, mask, A, truth, target, noise=std, noise_from=noise_from)
    return dataclasses.replace(made, notices=silent, noise_level=level)


def _heard(y: Tensor, y_m: Tensor) -> tuple[Tensor, tuple[Notice, ...]]:
    """Without receivers that measured nothing at all."""
    heard = y_m.flatten(1).any(1)
    if heard.all():
        return y, ()
    names = ", ".join(map(str, (~heard).nonzero().flatten().tolist()))
    return y[heard], (Notice("receivers", f"receivers that measured nothing are left out: {names}"),)


def _std_of_one(noise: Tensor, source: NoiseSource) -> Tensor:
    """Of a lone coil: what was estimated or scanned of it is a covariance, (1, 1)."""
    is_covariance = noise.ndim == 2 and source != "given"
    return (noise.real.sqrt() if is_covariance else noise.real).float().reshape(())


def _rms(std: Tensor | float) -> float:
    return float(torch.as_tensor(std).square().mean().sqrt())


def estimated(y_m: Tensor, mask: Tensor) -> tuple[Tensor, NoiseSource]:
    """Of k-space as it was measured: from the air where there is some, else an upper bound. One coil's std, ();
    several coils' covariance, (C, C)."""
    coils = y_m if y_m.ndim == 3 else y_m[None]
    source: NoiseSource = "air"
    try:
        result = covariance(coils, mask)
    except Unknown:
        result, source = torch.diag(at_most(coils, mask).square()).to(y_m.dtype), "at most"
    return (result if y_m.ndim == 3 else result[0, 0].real.sqrt()), source


def _covariance_of(noise: Tensor, y: Tensor) -> Tensor | None:
    """(C, C) from a number, one a coil, or itself; None for noise by entry, which cannot be whitened."""
    coils = len(y)
    if noise.ndim == 2 and noise.shape == (coils, coils) != y.shape[-2:]:
        return noise.to(y.dtype)
    if noise.numel() == 1 or noise.shape in ((coils,), (coils, 1, 1)):
        return torch.diag(noise.flatten().expand(coils).square()).to(y.dtype)
    return None


def _check_noise(noise: Tensor, y: Tensor) -> None:
    covariance = y.ndim == 3 and noise.shape == (len(y), len(y))
    if not torch.isfinite(noise).all() or (not covariance and (noise.is_complex() or (noise < 0).any())):
        raise ValueError("noise holds values that are negative, complex or not finite, expected std in each part")
    if covariance and (not torch.allclose(noise, noise.mH, atol=1e-6 * float(noise.abs().max())) or _least(noise) < 0):
        raise ValueError("noise is not a covariance: expected a Hermitian matrix, with E[n n^H] / 2 of complex noise n")
    try:
        fits = torch.broadcast_shapes(noise.shape, y.shape) == y.shape
    except RuntimeError:
        fits = False
    if not (covariance or fits or (y.ndim == 3 and noise.shape == (len(y),))):
        shapes = "a number, one an entry" + (", one a coil, or their covariance" if y.ndim == 3 else "")
        raise ValueError(f"noise has shape {tuple(noise.shape)}, k-space {tuple(y.shape)}: expected {shapes}")


def _least(covariance: Tensor) -> float:
    """The least eigenvalue, if it is below 0 by more than rounding."""
    values = torch.linalg.eigvalsh(covariance.to(torch.complex128))
    return float(values[0]) if values[0] < -1e-6 * values[-1].abs() else 0.0


def measure(
    y: Tensor,
    mask: Tensor,
    A: Operator,
    truth: Tensor | None = None,
    target: Tensor | None = None,
    *,
    noise: Tensor | float = 0.0,
    noise_from: NoiseSource = "given",
) -> Measurement:
    """Under-sample a measurement (data) and scale it. noise: its std, in the units of y."""
    masks.check_fits(mask, y.shape)
    y_m = y.masked_fill(~mask, 0)
    top = float(A.pinv(y_m).abs().max())
    if not top > 0:
        raise ValueError(NOTHING)
    truth, target = (None if x is None else x / top for x in (truth, target))
    std = torch.as_tensor(noise, dtype=y_m.real.dtype, device=y.device)
    source: NoiseSource = noise_from if std.any() else "none"
    return Measurement(
        y_m / top, mask, 1 / top, A, truth, target, noise=std / top, noise_from=source, noise_level=_rms(std)
    )


def measured_rms(zero_filled: Tensor) -> list[float]:
    """The rms of zero-filled images whose maximum is 1: how much energy was measured.  (B, H, W) -> B numbers"""
    return zero_filled.abs().square().mean((-2, -1)).sqrt().tolist()

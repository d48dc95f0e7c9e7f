"""Several receivers -> virtual coils with white noise of one level, few of them, and their maps.

    y' = T y        T = U^H W: W whitens the noise, U keeps the directions with nearly all of the signal's energy

Maps come from the calibration lines (ESPIRiT), or are given. They are of such a length that the image they belong to is
the root sum of squares of the receivers as they were, as references of scanners are. In the units of y' their power is
1 on average.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mcddpm.physics.coils import calibration_block, maps_of, smooth_images
from mcddpm.physics.espirit import LEAST_WIDTH, WIDTH, espirit
from mcddpm.physics.sense import Sense, gain_of

MOST = 12  # virtual coils
KEPT = 0.995  # of the energy of the calibration lines


@dataclass(frozen=True)
class Receivers:
    """combine: T, (C', C); maps: (C', H, W) of the virtual coils; noise: their std in each part, one number."""

    combine: Tensor
    maps: Tensor
    noise: float

    def __call__(self, y: Tensor) -> Tensor:
        """(C, H, W) -> (C', H, W)"""
        return torch.einsum("vc,chw->vhw", self.combine, y)


def receivers_of(
    y_m: Tensor, mask: Tensor, covariance: Tensor, maps: Tensor | None = None, most: int = MOST, kept: float = KEPT
) -> Receivers:
    """From what was measured alone. covariance: of the noise in each part, (C, C), zero if there is none: then
    receivers stay as they are. maps: (C, H, W), if they are known."""
    if not covariance.any():
        eye = torch.eye(len(y_m), dtype=y_m.dtype, device=y_m.device)
        return Receivers(eye, maps_from_centre(y_m, mask) if maps is None else maps, 0.0)
    whiten, noise = whitening(covariance.to(torch.complex128))
    block = calibration_block(y_m, mask).to(torch.complex128)
    keep = directions(torch.einsum("vc,chw->vhw", whiten, block), most, kept)
    combine = (keep.mH @ whiten).to(y_m.dtype)
    virtual = torch.einsum("vc,chw->vhw", combine, y_m if maps is None else maps)
    if maps is None:
        back = (torch.linalg.inv(whiten) @ keep).to(y_m.dtype)  # of the receivers, as they were
        virtual = maps_from_centre(virtual, mask)
        length = _rss(back, virtual) * _lost(back @ combine, smooth_images(y_m, mask))
        virtual = torch.where(length > 0, virtual / length, 0)
    gain = float(gain_of(Sense(virtual)))  # so that their power is 1 on average, which the rest of the package expects
    return Receivers(gain * combine, gain * virtual, gain * noise)


def maps_from_centre(y_m: Tensor, mask: Tensor) -> Tensor:
    """By ESPIRiT where the centre is wide enough for its patches, else from smooth images of the coils.  (C, H, W)"""
    block = calibration_block(y_m, mask)
    width = min(WIDTH, min(block.shape[-2:]) // 2)
    if width < LEAST_WIDTH:
        return maps_of(y_m, mask)
    return espirit(block, (y_m.shape[-2], y_m.shape[-1]), width)


def whitening(covariance: Tensor) -> tuple[Tensor, float]:
    """W with W K W^H = s^2, and s: the mean level stays what it was. A receiver without noise cannot be whitened."""
    power = covariance.diagonal().real
    if not (power > 0).all():
        silent = (power <= 0).nonzero().flatten().tolist()
        raise ValueError(f"receivers {silent} have no noise and others have some: leave them out, or give the noise")
    noise = float(power.mean().sqrt())
    values, vectors = torch.linalg.eigh(covariance)
    values = values.clamp(min=1e-9 * float(values.max()))
    return noise * (vectors * values.rsqrt()) @ vectors.mH, noise


def directions(block: Tensor, most: int, kept: float) -> Tensor:
    """The fewest directions that hold so much of the energy, as columns.  (C, h, w) -> (C, C')"""
    flat = block.flatten(1)
    energy, vectors = torch.linalg.eigh(flat @ flat.mH)
    energy, vectors = energy.flip(0).clamp(min=0), vectors.flip(1)
    count = 1 + int((energy.cumsum(0) < kept * energy.sum()).sum())
    return vectors[:, : min(count, most, len(energy))]


def _rss(matrix: Tensor, images: Tensor) -> Tensor:
    return torch.einsum("cd,dhw->chw", matrix, images).abs().square().sum(0).sqrt()


def _lost(kept: Tensor, images: Tensor) -> Tensor:
    """How much larger images of receivers are than what virtual coils keep of them: of one with much noise, little is
    kept, which may be all that is seen nearby.  (H, W)"""
    return images.abs().square().sum(0).sqrt() / _rss(kept, images)

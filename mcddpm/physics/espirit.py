"""Coil maps from the calibration lines: ESPIRiT (Uecker et al. 2014).

Patches of the fully sampled centre span a space that every patch of k-space lies in. To project onto that space is, in
the image, to multiply the coils of each pixel by a small matrix G. Where there is signal, the coils' sensitivities are
the eigenvector of G of eigenvalue 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

WIDTH, LEAST_WIDTH = 6, 3  # of a patch
SPAN = 0.02  # singular values of patches, relative to the largest, that count as signal
SEEN = 0.95  # eigenvalues below this belong to air, a few pixels from the head


def espirit(calibration: Tensor, shape: tuple[int, int], width: int = WIDTH) -> Tensor:
    """The centre of k-space (C, h, w) -> maps (C, H, W) of unit length, 0 in air; real and positive in the strongest
    combination of coils, so that their phase is smooth."""
    if min(calibration.shape[-2:]) < 2 * width:
        height, columns = calibration.shape[-2:]
        raise ValueError(f"the centre of k-space has {height} x {columns} entries, ESPIRiT takes {2 * width} or more")
    values, vectors = torch.linalg.eigh(_matrices(_kernels(calibration, width), shape))
    maps = vectors[..., -1].movedim(-1, 0)
    maps = maps * _phase(calibration, maps)
    return maps.masked_fill(values[..., -1] < SEEN, 0).to(calibration.dtype)


def _kernels(calibration: Tensor, width: int) -> Tensor:
    """An orthonormal basis of the patches, (K, C, width, width)."""
    coils = calibration.shape[0]
    patches = calibration.to(torch.complex128).unfold(1, width, 1).unfold(2, width, 1)  # (C, a, b, width, width)
    rows = patches.permute(1, 2, 0, 3, 4).reshape(-1, coils * width**2)
    power, basis = torch.linalg.eigh(rows.mH @ rows)
    kept = power > SPAN**2 * power[-1]
    return basis[:, kept].mT.reshape(-1, coils, width, width)


def _matrices(kernels: Tensor, shape: tuple[int, int]) -> Tensor:
    """G_cd = sum_k conj(v_kc) v_kd / width^2 at every pixel, v_kc being the transform of a kernel.  (H, W, C, C)

    The sum is the transform of the kernels' correlations, which are small.
    """
    _, coils, width, _ = kernels.shape
    size = 2 * width - 1
    spectra = torch.fft.fft2(kernels, s=(size, size))
    lags = torch.fft.fftshift(torch.fft.ifft2(torch.einsum("kcij,kdij->cdij", spectra.conj(), spectra)), dim=(-2, -1))
    whole = lags.new_zeros(coils, coils, *shape)
    top, left = (n // 2 - width + 1 for n in shape)
    whole[..., top : top + size, left : left + size] = lags
    there = torch.fft.fft2(torch.fft.ifftshift(whole, dim=(-2, -1)))
    return torch.fft.fftshift(there, dim=(-2, -1)).permute(2, 3, 0, 1) / width**2


def _phase(calibration: Tensor, maps: Tensor) -> Tensor:
    """What turns maps, so that the combination of coils with most energy sees no phase.  (H, W)"""
    flat = calibration.to(maps.dtype).flatten(1)
    strongest = torch.linalg.eigh(flat @ flat.mH)[1][:, -1]
    seen = torch.einsum("c,chw->hw", strongest.conj(), maps)
    return seen.conj() / seen.abs().clamp(min=1e-12)

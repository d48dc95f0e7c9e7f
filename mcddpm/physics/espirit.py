"""Coil maps from the calibration lines: ESPIRiT (Uecker et al. 2014).

Patches of the fully sampled centre span a space that every patch of k-space lies in. To project onto that space is, in
the image, to multiply the coils of each pixel by a small matrix G. Where there is signal, the coils' sensitivities are
the eigenvector of G of eigenvalue 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

WIDTH, LEAST_WIDTH = 6, 3  # of a patch
AT_ONCE = 2**22  # complex numbers in the matrices of a block of rows
SPAN = 0.02  # singular values of patches, relative to the largest, that count as signal
SEEN = 0.95  # eigenvalues below this belong to air, a few pixels from the head


def espirit(calibration: Tensor, shape: tuple[int, int], width: int = WIDTH) -> Tensor:
    """The centre of k-space (C, h, w) -> maps (C, H, W) of unit length, 0 in air; real and positive in the strongest
    combination of coils, so that their phase is smooth."""
    if min(calibration.shape[-2:]) < 2 * width:
        height, columns = calibration.shape[-2:]
        raise ValueError(f"the centre of k-space has {height} x {columns} entries, ESPIRiT takes {2 * width} or more")
    lags = _lags(_kernels(calibration, width))
    rows = max(1, AT_ONCE // (shape[1] * len(calibration) ** 2))
    blocks = [_largest(lags, shape, range(shape[0])[first : first + rows]) for first in range(0, shape[0], rows)]
    maps, values = torch.cat([maps for maps, _ in blocks], 1), torch.cat([values for _, values in blocks])
    maps = maps * _phase(calibration, maps)
    return maps.masked_fill(values < SEEN, 0).to(calibration.dtype)


def _kernels(calibration: Tensor, width: int) -> Tensor:
    """An orthonormal basis of the patches, (K, C, width, width)."""
    coils = calibration.shape[0]
    patches = calibration.to(torch.complex128).unfold(1, width, 1).unfold(2, width, 1)  # (C, a, b, width, width)
    rows = patches.permute(1, 2, 0, 3, 4).reshape(-1, coils * width**2)
    power, basis = torch.linalg.eigh(rows.mH @ rows)
    kept = power > SPAN**2 * power[-1]
    return basis[:, kept].mT.reshape(-1, coils, width, width)


def _lags(kernels: Tensor) -> Tensor:
    """Correlations sum_k conj(v_kc) * v_kd of the kernels, (C, C, size, size), lag 0 in the middle."""
    size = 2 * kernels.shape[-1] - 1
    spectra = torch.fft.fft2(kernels, s=(size, size))
    lags = torch.fft.ifft2(torch.einsum("kcij,kdij->cdij", spectra.conj(), spectra))
    return torch.fft.fftshift(lags, dim=(-2, -1)) / kernels.shape[-1] ** 2


def _largest(lags: Tensor, shape: tuple[int, int], rows: range) -> tuple[Tensor, Tensor]:
    """The eigenvector of G (C, rows, W), and its eigenvalue (rows, W), at the pixels of some rows.

    G_cd = sum_k conj(v_kc) v_kd / width^2, v_kc being the transform of a kernel, is the transform of the lags.
    """
    size = lags.shape[-1]
    lag = torch.arange(size) - size // 2
    places = (torch.tensor(rows) - shape[0] // 2, torch.arange(shape[1]) - shape[1] // 2)
    turns = [
        torch.exp(-2j * torch.pi * torch.outer(place, lag).to(torch.float64) / n).to(lags)
        for place, n in zip(places, shape, strict=True)
    ]
    values, vectors = torch.linalg.eigh(torch.einsum("hi,cdij,wj->hwcd", turns[0], lags, turns[1]))
    return vectors[..., -1].movedim(-1, 0), values[..., -1]


def _phase(calibration: Tensor, maps: Tensor) -> Tensor:
    """What turns maps, so that the combination of coils with most energy sees no phase.  (H, W)"""
    flat = calibration.to(maps.dtype).flatten(1)
    strongest = torch.linalg.eigh(flat @ flat.mH)[1][:, -1]
    seen = torch.einsum("c,chw->hw", strongest.conj(), maps)
    return seen.conj() / seen.abs().clamp(min=1e-12)

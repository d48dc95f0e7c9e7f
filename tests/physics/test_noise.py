"""The noise of a scan, read off its air: within a tenth where there is some, and refused where there is none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mcddpm.data.phantoms import drawn
from mcddpm.physics import masks
from mcddpm.physics.coils import coil_maps
from mcddpm.physics.fourier import fft
from mcddpm.physics.noise import Unknown, covariance, known_exactly
from mcddpm.physics.simulation import noise_std

SIZE = 192


def mixing(coils: int) -> Tensor:
    """L with L L^H the covariance of correlated coils, whose mean variance is 1."""
    g = torch.Generator().manual_seed(1)
    L = torch.eye(coils, dtype=torch.complex64)
    if coils > 1:
        L = L + 0.3 * torch.randn(coils, coils, dtype=torch.complex64, generator=g)
    return L / (L @ L.mH).diagonal().real.mean().sqrt()


def scanned(x: Tensor, coils: int, snr: float) -> tuple[Tensor, Tensor]:
    """k-space (C, H, W), and the covariance of its noise in each part."""
    height, width = x.shape
    std, L = noise_std(x.abs(), snr), mixing(coils)
    maps = coil_maps(coils, (height, width), 5) if coils > 1 else torch.ones(1, height, width)
    g = torch.Generator().manual_seed(7)
    noise = torch.view_as_complex(std * torch.randn(coils, height, width, 2, generator=g))
    return fft(maps * x) + torch.einsum("cd,dhw->chw", L, noise), std**2 * (L @ L.mH)


def head() -> Tensor:
    return torch.from_numpy(drawn(1, SIZE, seed=3))[0]


@pytest.mark.parametrize("acceleration", [1, 4, 8])
@pytest.mark.parametrize("snr", [5.0, 20.0, 100.0])
@pytest.mark.parametrize("coils", [1, 8])
def test_it_is_found_within_a_tenth(coils: int, snr: float, acceleration: int) -> None:
    y, true = scanned(head(), coils, snr)
    mask = masks.random_columns(SIZE, acceleration=acceleration, seed=1)
    mask = mask if acceleration > 1 else torch.ones_like(mask)
    found = covariance(y * mask, mask)
    std, wanted = (c.diagonal().real.sqrt() for c in (found, true))
    assert float((std / wanted - 1).abs().max()) < 0.1
    if coils > 1:  # and how coils depend on each other, without which they cannot be whitened
        assert float((found - true).norm() / true.norm()) < 0.25
        assert float((true - torch.diag(true.diagonal())).norm() / true.norm()) > 0.4, "these do"


def test_a_head_that_fills_the_field_does_not_tell() -> None:
    x = head()
    rows = (x.abs() > 0.1 * x.abs().max()).any(1).nonzero().flatten()
    full = x[int(rows[0]) + 12 : int(rows[-1]) - 12]
    y, _ = scanned(full[: len(full) // 2 * 2], 1, 50.0)
    mask = masks.random_columns(SIZE, acceleration=4, seed=1)
    with pytest.raises(Unknown, match=r"signal in every row .*: give --noise"):
        covariance(y * mask, mask)


def test_too_few_columns_do_not_tell() -> None:
    mask = torch.zeros(SIZE, dtype=torch.bool)
    mask[SIZE // 2 - 8 : SIZE // 2 + 8] = True
    y, _ = scanned(head(), 1, 20.0)
    with pytest.raises(Unknown, match="0 columns outside the centre are too few"):
        covariance(y * mask, mask)


def test_rows_that_were_padded_with_zeros_are_no_air() -> None:
    """Zeros hold no noise. (In the image: readouts that were cut after the transform.)"""
    y, true = scanned(head(), 1, 20.0)
    rows = torch.fft.fftshift(torch.fft.ifft(torch.fft.ifftshift(y, dim=-2), dim=-2), dim=-2)
    rows[:, :5] = 0
    padded = torch.fft.fftshift(torch.fft.fft(torch.fft.ifftshift(rows, dim=-2), dim=-2), dim=-2)
    mask = torch.ones(SIZE, dtype=torch.bool)
    ratio = covariance(padded, mask).real.sqrt() / true.real.sqrt()
    assert abs(float(ratio) - 1) < 0.1


def test_what_is_known_exactly() -> None:
    mask = torch.tensor([True, False, True])
    assert torch.equal(known_exactly(mask, 0.0), mask) and not known_exactly(mask, 0.1).any()
    by_entry = torch.tensor([[0.0, 0.0, 0.2], [0.1, 0.0, 0.0]])
    assert known_exactly(mask, by_entry).tolist() == [[True, False, False], [False, False, True]]

"""The noise of a scan, read off its air: within a tenth where there is some, and refused where there is none.

What it is at most, and that of counted photons.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mcddpm.physics import masks
from mcddpm.physics.noise import Unknown, at_most, covariance, known_exactly, of_counts
from tests.problems import head, randn, scanned, without_air

SIZE = 192


@pytest.mark.parametrize("acceleration", [1, 4, 8])
@pytest.mark.parametrize("snr", [5.0, 20.0, 100.0])
@pytest.mark.parametrize("coils", [1, 8])
def test_it_is_found_within_a_tenth(coils: int, snr: float, acceleration: int) -> None:
    *_, y, true = scanned(head(SIZE), coils, snr)
    mask = masks.random_columns(SIZE, acceleration=acceleration, seed=1)
    mask = mask if acceleration > 1 else torch.ones_like(mask)
    found = covariance(y * mask, mask)
    std, wanted = (c.diagonal().real.sqrt() for c in (found, true))
    assert float((std / wanted - 1).abs().max()) < 0.1
    if coils > 1:  # and how coils depend on each other, without which they cannot be whitened
        assert float((found - true).norm() / true.norm()) < 0.25
        assert float((true - torch.diag(true.diagonal())).norm() / true.norm()) > 0.4, "these do"


def test_a_head_that_fills_the_field_does_not_tell() -> None:
    y = scanned(without_air(head(SIZE)), 1, 50.0).y
    mask = masks.random_columns(SIZE, acceleration=4, seed=1)
    with pytest.raises(Unknown, match=r"signal in every row .*: give --noise"):
        covariance(y * mask, mask)


def test_too_few_columns_do_not_tell() -> None:
    mask = torch.zeros(SIZE, dtype=torch.bool)
    mask[SIZE // 2 - 8 : SIZE // 2 + 8] = True
    y = scanned(head(SIZE), 1, 20.0).y
    with pytest.raises(Unknown, match="0 columns outside the centre are too few"):
        covariance(y * mask, mask)


def test_rows_that_were_padded_with_zeros_are_no_air() -> None:
    """Zeros hold no noise. (In the image: readouts that were cut after the transform.)"""
    *_, y, true = scanned(head(SIZE), 1, 20.0)
    rows = torch.fft.fftshift(torch.fft.ifft(torch.fft.ifftshift(y, dim=-2), dim=-2), dim=-2)
    rows[:, :5] = 0
    padded = torch.fft.fftshift(torch.fft.fft(torch.fft.ifftshift(rows, dim=-2), dim=-2), dim=-2)
    mask = torch.ones(SIZE, dtype=torch.bool)
    ratio = covariance(padded, mask).real.sqrt() / true.real.sqrt()
    assert abs(float(ratio) - 1) < 0.1


def test_lines_that_end_in_zeros_have_noise_where_they_do_not() -> None:
    """A readout that is padded with zeros on both sides: the std is that of what was measured."""
    *_, y, true = scanned(head(SIZE), 1, 20.0)
    y[:, : SIZE // 4], y[:, SIZE - SIZE // 4 :] = 0, 0
    ratio = covariance(y, torch.ones(SIZE, dtype=torch.bool)).real.sqrt() / true.real.sqrt()
    assert abs(float(ratio) - 1) < 0.1


def test_what_is_known_exactly() -> None:
    mask = torch.tensor([True, False, True])
    assert torch.equal(known_exactly(mask, 0.0), mask) and not known_exactly(mask, 0.1).any()
    by_entry = torch.tensor([[0.0, 0.0, 0.2], [0.1, 0.0, 0.0]])
    assert known_exactly(mask, by_entry).tolist() == [[True, False, False], [False, False, True]]


# --- what it is at most ---------------------------------------------------------------------------------------------

ALL = torch.ones(SIZE, dtype=torch.bool)
MASKS = {
    "all": ALL,
    "columns": masks.random_columns(SIZE, acceleration=4, seed=0),
    "columns as a plane": masks.random_columns(SIZE, acceleration=4, seed=0).expand(SIZE, SIZE),
    "plane": masks.gaussian_2d((SIZE, SIZE), acceleration=4, seed=0),
    "spokes": masks.radial((SIZE, SIZE), acceleration=4, seed=0),
}


def chance(mask: Tensor) -> float:
    """Four standard errors of the median of |y| in a quarter of what was measured, relative to it."""
    return 4 * 0.72 / float(mask.expand(SIZE, SIZE).sum() / 4) ** 0.5


@pytest.mark.parametrize("name", MASKS)
def test_of_noise_alone_it_is_the_std(name: str) -> None:
    """Of each coil, whatever the unit."""
    mask, std = MASKS[name], torch.tensor([1e-6, 0.5, 3.0, 700.0])
    ratio = at_most(std.reshape(4, 1, 1) * 2**0.5 * randn(4, SIZE, SIZE) * mask, mask) / std
    assert ratio.shape == (4,) and float((ratio - 1).abs().max()) < chance(mask)
    assert abs(float(ratio.mean()) - 1) < chance(mask) / 2


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("snr", [5.0, 20.0, 100.0])
def test_with_signal_it_is_not_below_the_std(snr: float, name: str) -> None:
    """Nor much above it, of a head that is sharp to a pixel: twice, where noise is a hundredth."""
    mask, scan = MASKS[name], scanned(head(SIZE), 8, snr)
    ratio = at_most(scan.y * mask, mask) / scan.covariance.diagonal().real.sqrt()
    assert float(ratio.min()) > 1 - max(0.03, chance(mask)) and float(ratio.mean()) > 0.97
    assert float(ratio.max()) < (2 if snr == 100 else 1.1)


def test_what_was_measured_farthest_from_the_centre_counts() -> None:
    """A quarter of it, by the distance in both directions, as a part of the size: what is inside is not looked at."""
    y, i, j = 2**0.5 * randn(2, 64, SIZE), torch.arange(64) - 32, torch.arange(SIZE) - SIZE // 2
    inside = torch.hypot(i[:, None] / 64, j / SIZE) < 0.45  # of 0.71, with 63.6 % of all
    mask = torch.ones(SIZE, dtype=torch.bool)
    assert torch.equal(at_most(torch.where(inside, 1000 * y, y), mask), at_most(y, mask))
    assert not torch.equal(at_most(torch.where(inside, y, 2 * y), mask), at_most(y, mask))


def test_a_few_strong_entries_are_hardly_felt() -> None:
    y = 3 * 2**0.5 * randn(2, SIZE, SIZE)
    y[:, torch.rand(SIZE, SIZE, generator=torch.Generator().manual_seed(1)) < 0.02] *= 100
    assert torch.allclose(at_most(y, ALL), torch.tensor(3.0), rtol=0.05)


@pytest.mark.parametrize("padding", ["rows", "columns", "all around", "here and there", "one coil here and there"])
def test_zeros_are_padding_and_not_noise(padding: str) -> None:
    """Also where they are all of the outer quarter."""
    y = 3 * 2**0.5 * randn(2, SIZE, SIZE)
    if padding in ("rows", "all around"):
        y[:, : SIZE // 4] = y[:, -SIZE // 4 :] = 0
    if padding in ("columns", "all around"):
        y[..., : SIZE // 4] = y[..., -SIZE // 4 :] = 0
    if padding.endswith("here and there"):
        empty = torch.rand(SIZE, SIZE, generator=torch.Generator().manual_seed(1)) < 0.7
        y[0 if padding.startswith("one") else slice(None), empty] = 0
    assert torch.allclose(at_most(y, ALL), torch.tensor(3.0), rtol=0.05)


def test_a_coil_that_is_off_has_no_noise() -> None:
    y = randn(2, SIZE, SIZE)
    y[1] = 0
    assert float(at_most(y, ALL)[1]) == 0


# --- counted photons ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("photons", [1e4, 1e6])
@pytest.mark.parametrize("y", [0.0, 1.0, 2.0, 3.0])
def test_the_std_of_a_line_integral_is_that_of_counts(y: float, photons: float) -> None:
    g = torch.Generator().manual_seed(0)
    counts = torch.poisson(torch.full((40_000,), photons, dtype=torch.float64) * torch.tensor(-y).exp(), generator=g)
    measured = -(counts / photons).log()
    wanted = float(measured.std())
    assert float(of_counts(torch.tensor(y), photons)) == pytest.approx(wanted, rel=0.02)
    by_ray = of_counts(measured, photons)
    assert by_ray.shape == measured.shape and float(by_ray.mean()) == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize("photons", [0, -1.0, float("nan")])
def test_a_scan_without_photons_is_refused(photons: float) -> None:
    with pytest.raises(ValueError, match=f"there are {photons} photons a ray, expected some"):
        of_counts(torch.zeros(3), photons)


def test_whitened_noise_has_the_std_that_it_says() -> None:
    """Of many coils and few lines a sample covariance is too small in some directions: what is left after whitening
    would have more noise than is said, by count / (count - coils)."""
    ratios = []
    for seed in range(12):
        y = 2**0.5 * randn(16, 64, 64, seed=seed)
        mask = torch.arange(64) % 4 == 0
        K = covariance(y * mask, mask)
        W = torch.linalg.cholesky(torch.linalg.inv(K)).mH
        ratios.append(float((W @ W.mH).diagonal().real.mean()))  # the true covariance is 1
    assert sum(ratios) / len(ratios) == pytest.approx(1, abs=0.05)


def test_few_numbers_tell_no_correlation() -> None:
    y, mask = 2**0.5 * randn(32, 32, 64), torch.arange(64) % 8 == 0
    K = covariance(y * mask, mask)
    assert torch.equal(K, torch.diag(K.diagonal()))
    assert float(K.diagonal().real.mean().sqrt()) == pytest.approx(1, abs=0.1)

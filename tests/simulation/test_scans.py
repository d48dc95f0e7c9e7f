"""What is added to magnitude images: a smooth phase, noise at the SNR that was asked, attenuation, augmentation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mcddpm.physics.fourier import Fourier
from mcddpm.simulation import scans


def disc(size: int = 64) -> Tensor:
    """A bright disc off the centre, with a ramp in it; zero outside."""
    i = torch.arange(size, dtype=torch.float32)
    inside = torch.hypot(i[:, None] - 0.45 * size, i - 0.55 * size) < 0.3 * size
    return (0.5 + i / size) * inside


def test_a_simulated_scan_has_phase_noise_and_no_hermitian_k_space() -> None:
    magnitude = disc()
    x = scans.scan(magnitude, seed=5, snr=math.inf)
    assert torch.allclose(x.abs(), magnitude, atol=1e-6)
    y = Fourier()(x)[1:, 1:]
    assert (y - y.flip(0, 1).conj()).norm() > 0.3 * y.norm()
    noisy = scans.scan(magnitude, seed=5, snr=20.0)
    foreground = magnitude[magnitude > 0.1 * magnitude.max()].mean()
    noise = torch.view_as_real(noisy - x)
    assert noise.std().item() == pytest.approx(foreground.item() / 20, rel=0.05)
    assert torch.equal(noisy, scans.scan(magnitude, seed=5, snr=20.0))
    assert not torch.equal(noisy, scans.scan(magnitude, seed=6, snr=20.0))
    with pytest.raises(ValueError, match="snr is 0, expected a value above 0"):
        scans.scan(magnitude, seed=0, snr=0)


def test_phase_and_noise_do_not_share_their_randomness() -> None:
    """The noise of a scan is that of the next seed: alone or with the phase, the same."""
    magnitude = disc()
    still, moved = (scans.scan(magnitude, seed=3, phase=phase, snr=10.0) for phase in (0.0, 1.0))
    with_phase = scans.scan(magnitude, seed=3, snr=math.inf)
    assert torch.allclose(still - magnitude, moved - with_phase, atol=1e-6)
    std = scans.noise_std(magnitude, 10.0)
    assert torch.allclose(still - magnitude, scans.complex_noise((64, 64), std, 4), atol=1e-6)


def test_noise_has_its_std_in_each_part() -> None:
    noise = scans.complex_noise((200, 200), 0.3, seed=0)
    for part in (noise.real, noise.imag):
        assert part.std().item() == pytest.approx(0.3, rel=0.02) and abs(part.mean()) < 0.01
    assert abs((noise.real * noise.imag).mean()) < 0.003


def test_the_phase_is_smooth_and_as_strong_as_asked() -> None:
    phases = torch.stack([scans.smooth_phase((64, 48), seed=seed) for seed in range(40)])
    assert phases.diff(dim=1).abs().max() < 0.3 and phases.diff(dim=2).abs().max() < 0.4
    around = phases - phases.mean((1, 2), keepdim=True)
    assert all(one.std() > 0.05 for one in phases) and 0.5 < around.std() < 1.5
    double = scans.smooth_phase((64, 48), seed=0, strength=2.0)
    assert torch.allclose(double - double.mean(), 2 * around[0], atol=1e-4)


def test_attenuation_of_known_tissues() -> None:
    mu = scans.attenuation(torch.tensor([-2048.0, -1000.0, 0.0, 1000.0]))
    assert torch.allclose(mu, scans.WATER * torch.tensor([0.0, 0.0, 1.0, 2.0]))


def test_augmentation_moves_but_does_not_invent() -> None:
    image = torch.zeros(40, 60)
    image[10:20, 15:30] = 1.0
    still = scans.augment(image, 0, shift=0, turn=0, intensity=0)
    assert torch.allclose(still, image, atol=1e-4) or torch.allclose(still, image.flip(1), atol=1e-4)
    seen = [scans.augment(image, seed) for seed in range(20)]
    areas = torch.stack([(one > 0.5).sum() for one in seen]).float()
    assert (areas / 150 - 1).abs().max() < 0.1, "turned and shifted, not stretched"
    assert all(one.min() >= 0 for one in seen)
    assert any(not torch.allclose(seen[0], one) for one in seen[1:])
    assert torch.equal(seen[7], scans.augment(image, 7))


def test_zoom_is_of_size_alone() -> None:
    """Up to 30 % larger or smaller, along both axes alike."""
    image = torch.zeros(80, 60)
    image[30:50, 20:40] = 1.0
    seen = [scans.augment(image, seed, shift=0, turn=0, zoom=0.3, intensity=0) > 0.5 for seed in range(30)]
    heights, widths = ([int(one.any(dim).sum()) for one in seen] for dim in (1, 0))
    assert min(heights) <= 16 and max(heights) >= 24 and 14 <= min(heights) and max(heights) <= 26
    assert all(abs(h - w) <= 1 for h, w in zip(heights, widths, strict=True))

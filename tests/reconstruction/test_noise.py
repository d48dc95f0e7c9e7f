"""Noise of the measurement, from the scan to the samples: what is reckoned with, and that samples are right on M."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from mcddpm.diffusion import schedules
from mcddpm.diffusion.gaussian import GaussianPrior
from mcddpm.diffusion.samplers import sample
from mcddpm.physics.coils import coil_maps
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.measurement import Measurement, NoiseSource
from mcddpm.physics.noise import known_exactly
from mcddpm.physics.sense import Sense
from mcddpm.reconstruction import sample as module
from mcddpm.reconstruction.sample import noise_for, reconstruct
from tests.problems import Exact, randn, tiny

SIZE, COILS, S = 8, 13, 0.2
MASK = torch.arange(SIZE) % 4 == 0
SCHEDULE = schedules.cosine(1000, 0.5)


# --- samples agree with the measurement as well as its noise says ---------------------------------------------------


def prior() -> GaussianPrior:
    pixels = SIZE**2
    place = torch.stack(torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")).reshape(2, -1).double()
    blur = torch.exp(-torch.cdist(place.T, place.T).square() / 4) + 0j
    return GaussianPrior(torch.zeros(SIZE, SIZE, dtype=torch.complex128), blur.reshape(pixels, SIZE, SIZE))


def p_values(reckoned: float) -> np.ndarray:
    """Of |M (y - A x)|^2 / s^2 for samples x of scans y of 13 coils at 4x, whose noise is S and reckoned as this."""
    model = Exact(prior(), SCHEDULE)
    A = Sense(coil_maps(COILS, (SIZE, SIZE), 0).to(torch.complex128))
    grid = SCHEDULE.grid(60, "log_sigma", sigma_min=S / 50, sigma_max=300.0)
    known = known_exactly(MASK, reckoned)
    result = []
    for seed in range(100):
        g = torch.Generator().manual_seed(seed)
        eps = torch.view_as_complex(torch.randn(COILS, SIZE, SIZE, 2, dtype=torch.float64, generator=g))
        y_m = (A(model.prior.draw(g)) + S * eps).masked_fill(~MASK, 0)[None]
        denoise = model.conditioned(y_m, MASK, A, reckoned)
        y = sample(
            denoise, y_m.masked_fill(~known, 0), known, SCHEDULE, grid=grid, seeds=[seed], sampler="dpmpp_2m_sde"
        )
        residual = (y_m - A(A.pinv(y)))[..., MASK]
        result.append(stats.chi2.sf(float(residual.abs().square().sum()) / S**2, 2 * residual.numel()))
    return np.array(result)


def test_samples_of_13_coils_agree_with_the_scan_as_its_noise_says() -> None:
    """A sample is to its scan what the truth is: the residual is chi-squared, and its p-values are uniform."""
    assert stats.kstest(p_values(S), "uniform").pvalue > 0.05


@pytest.mark.parametrize("reckoned", [0.0, S / 2**0.5, S * 2**0.5])
def test_the_wrong_noise_is_seen(reckoned: float) -> None:
    """The paper's assumption of none (A+ of a completed scan is no projection), and a factor of sqrt 2 either way."""
    assert stats.kstest(p_values(reckoned), "uniform").pvalue < 1e-6


# --- what noise is reckoned with ------------------------------------------------------------------------------------


def scan(coils: int, source: NoiseSource) -> Measurement:
    A = Sense(coil_maps(coils, (32, 32), 0)) if coils > 1 else Fourier()
    mask = torch.arange(32) % 3 == 0
    y = A(randn(32, 32)) * mask
    return Measurement(y, mask, 2.0, A, noise=torch.tensor(0.1), noise_from=source)


@pytest.mark.parametrize(
    ("coils", "source", "told", "used"),
    [
        (1, "air", False, False),
        (1, "at most", False, False),
        (1, "given", False, True),
        (1, "air", True, True),
        (3, "air", False, True),
        (3, "noise scan", False, True),
        (3, "at most", False, True),
    ],
)
def test_what_is_reckoned_with(coils: int, source: NoiseSource, told: bool, used: bool) -> None:
    """A model that was trained to keep what was measured of one coil does so, unless noise is given."""
    m, model = scan(coils, source), tiny({"model": {"noise": told}})
    noise, notices = noise_for(model, m)
    assert float(noise) == pytest.approx(0.1 if used else 0.0)
    assert bool(notices) == (source in ("at most", "given") and used)
    recon = reconstruct(model, m, samples=2, steps=2)
    assert recon.noise == pytest.approx(0.05 if used else 0.0) and recon.noise_from == (source if used else "none")


def test_a_network_that_predicts_eps_says_that_it_does_not_use_it() -> None:
    m, model = scan(1, "given"), tiny({"model": {"parameterisation": "eps"}})
    recon = reconstruct(model, m, samples=1, steps=2)
    (notice,) = [n for n in recon.notices if n.kind == "noise"]
    assert "the model predicts eps" in notice.text and recon.noise == 0
    assert not [n for n in reconstruct(model, scan(1, "air"), samples=1, steps=2).notices if n.kind == "noise"]


def draws(noise: Tensor | float, **more: Any) -> Tensor:
    m = replace(scan(1, "given"), noise=torch.as_tensor(noise))
    samples = reconstruct(tiny(), m, samples=2, steps=4, **more).samples
    assert isinstance(samples, Tensor)
    return samples


def test_without_noise_measured_entries_come_back_to_the_bit() -> None:
    m = scan(1, "given")
    y = []
    reconstruct(tiny(), replace(m, noise=torch.zeros(())), samples=2, steps=3, callback=lambda now: y.append(now.y))
    assert all(torch.equal(step[..., m.mask], m.y_m.expand_as(step)[..., m.mask]) for step in y)


def test_noise_on_a_part_keeps_the_rest_to_the_bit() -> None:
    m, y = scan(1, "given"), []
    noise = torch.where(torch.arange(32) == 0, 0.0, 0.3)
    reconstruct(tiny(), replace(m, noise=noise), samples=2, steps=3, callback=lambda now: y.append(now.y))
    assert torch.equal(y[-1][..., 0], m.y_m[..., 0].expand(2, 32))
    assert not torch.allclose(y[-1][..., 3], m.y_m[..., 3].expand(2, 32), atol=1e-3)


def test_less_and_less_noise_leads_to_none() -> None:
    """The same seeds draw the same noise off M."""
    exact = draws(0.0)
    errors = [float((draws(s) - exact).norm() / exact.norm()) for s in (0.1, 0.01, 0.001)]
    assert errors[1] < errors[0] / 3 and errors[2] < errors[1] / 3 and errors[2] < 0.01


def test_a_full_scan_is_denoised() -> None:
    """Nothing is unmeasured, and still there is something to draw."""
    y = Fourier()(randn(32, 32))
    m = Measurement.from_kspace(y, torch.ones(32).bool(), noise=0.5)
    recon = reconstruct(tiny(), m, samples=2, steps=4)
    assert recon.acceleration == 1 and not torch.allclose(recon.samples, Fourier().pinv(y).expand(2, 32, 32), atol=1e-2)


def test_samples_do_not_depend_on_their_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run of the sampler starts its linear estimates anew, and not from the images of the batch before."""
    model = tiny()
    mask = torch.arange(32) % 6 == 0  # and little noise, so that a few steps do not settle
    A = Sense(coil_maps(3, (32, 32), 0))
    m = Measurement(A(randn(32, 32)) * mask, mask, 1.0, A, noise=torch.tensor(0.003), noise_from="air")
    together = torch.as_tensor(reconstruct(model, m, samples=4, steps=4).samples)
    monkeypatch.setattr(module, "MOST", 2)
    apart = torch.as_tensor(reconstruct(model, m, samples=4, steps=4).samples)
    assert (together - apart).norm() < 1e-4 * together.norm()  # 7e-6; from the batch before 3e-2


@pytest.mark.parametrize("sampler", ["dpmpp_2m_sde", "heun"])
def test_the_grid_of_a_model_leaves_the_right_residual(sampler: str) -> None:
    """One coil, exact, ten steps of the model's own grid: |M (y - A x)|^2 / s^2 is 1 an entry, though y is up to a
    hundred times as large as the noise of the start, and the noise of the measurement lies below the usual end."""
    model, s, ratios, bias = Exact(prior(), SCHEDULE), 0.05, [], []
    middle = torch.zeros(SIZE, SIZE, dtype=torch.complex128)
    middle[SIZE // 2, SIZE // 2] = 3000.0
    shifted = GaussianPrior(model.prior.mean + Fourier().pinv(middle), model.prior.factor)
    model.prior = shifted
    for seed in range(40):
        g = torch.Generator().manual_seed(seed)
        eps = torch.view_as_complex(torch.randn(SIZE, SIZE, 2, dtype=torch.float64, generator=g))
        y_m = (Fourier()(shifted.draw(g)) + s * eps) * MASK
        m = Measurement(y_m, MASK, 1.0, Fourier(), noise=torch.tensor(s), noise_from="given")
        recon = reconstruct(model, m, samples=1, steps=10, sampler=sampler, seed=seed)
        z = ((y_m - Fourier()(torch.as_tensor(recon.samples[0]))) / s)[:, MASK]
        ratios.append(float(z.abs().square().mean()) / 2)
        bias.append(complex(z[SIZE // 2, 1]))
    assert np.mean(ratios) == pytest.approx(1, abs=0.15)
    assert abs(np.mean(bias)) < 0.7  # of 40 with std 1.4: it was 3 and more

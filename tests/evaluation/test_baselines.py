"""Baselines on cases whose answer is known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from mcddpm import metrics
from mcddpm.evaluation import baselines
from mcddpm.models.supervised import Supervised
from mcddpm.physics import masks
from mcddpm.physics.coils import coil_maps
from mcddpm.physics.ct import Radon
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.measurement import measure
from mcddpm.physics.sense import Sense


def blocks(size: int = 64) -> torch.Tensor:
    """A piecewise-constant image with a constant phase."""
    x = torch.zeros(size, size, dtype=torch.complex64)
    x[size // 4 : 3 * size // 4, size // 5 : 4 * size // 5] = 1.0
    x[size // 3 : size // 2, size // 3 : 2 * size // 3] = 0.4
    return x * complex(math.cos(0.7), math.sin(0.7))


def quality(recon, m) -> float:
    return float(metrics.psnr(recon.mean * m.scale, m.truth.abs()))


def test_zero_filled_is_the_pseudo_inverse_in_the_inputs_scale() -> None:
    A, x = Fourier(), 300 * blocks()
    mask = masks.random_columns(64, acceleration=4, seed=0)
    m = measure(A(x), mask, A, x)
    recon = baselines.zero_filled(m)
    assert torch.allclose(recon.samples[0], A.pinv(A(x) * mask), atol=1e-3)
    assert recon.calls == 0 and torch.allclose(recon.mean, recon.samples[0].abs())


def test_total_variation_recovers_a_piecewise_constant_image_from_radial_sampling() -> None:
    A, x = Fourier(), blocks(64)
    mask = masks.radial((64, 64), acceleration=4, seed=0)
    m = measure(A(x), mask, A, x)
    assert quality(baselines.zero_filled(m), m) < 32
    assert quality(baselines.total_variation(m, 1e-4), m) > 40


@pytest.mark.parametrize("kind", ["sense", "radon"])
def test_total_variation_takes_any_operator(kind: str) -> None:
    x, mask = blocks(32), masks.random_columns(32, acceleration=3, seed=1)
    A: Sense | Radon = Sense(coil_maps(4, (32, 32), 0))
    if kind == "radon":
        x, A, mask = blocks(24).abs(), Radon(24, 36), masks.sparse_views(36, acceleration=4, seed=0)
    m = measure(A(x), mask, A, x)
    found = baselines.total_variation(m, 1e-4, most=1000)  # for Radon, without noise, thousands of steps too few
    assert quality(found, m) > quality(baselines.zero_filled(m), m) + 6


def test_total_variation_that_does_not_converge_says_so() -> None:
    A, x = Fourier(), blocks(32)
    m = measure(A(x), masks.random_columns(32, acceleration=3, seed=1), A, x)
    (notice,) = baselines.total_variation(m, 1e-3, most=3).notices
    assert notice.kind == "convergence" and str(notice).endswith("did not converge to 0.0005 in 3 steps")
    assert baselines.total_variation(m, 1e-2).notices == ()


def objective(x: torch.Tensor, m, weight: float) -> float:
    misfit = (m.operator(x) - m.y_m).masked_fill(~m.mask, 0)
    return float(0.5 * misfit.norm().square() + weight * baselines.gradient(x).abs().square().sum(0).sqrt().sum())


def test_total_variation_ends_at_the_minimum() -> None:
    """Nothing near it, in directions that matter, has a lower objective; and it does not end early."""
    A, x = Fourier(), blocks(32) + 0.05 * torch.randn(32, 32, dtype=torch.complex64, generator=_generator(0))
    m = measure(A(x), masks.random_columns(32, acceleration=2, seed=0), A, x)
    weight = 5e-3
    found = baselines.total_variation(m, weight).samples[0] * m.scale
    least = objective(found, m, weight)
    assert (
        objective(baselines.total_variation(m, weight, tolerance=1e-6).samples[0] * m.scale, m, weight) > 0.999 * least
    )
    for direction in (
        x * m.scale - found,
        A.pinv(m.y_m) - found,
        torch.randn(32, 32, dtype=x.dtype, generator=_generator(1)),
    ):
        for step in (-0.1, 0.1):
            assert objective(found + step * direction, m, weight) > 0.9999 * least


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_gradient_and_divergence_are_adjoint() -> None:
    g = _generator(0)
    x = torch.randn(7, 9, dtype=torch.complex128, generator=g)
    p = torch.randn(2, 7, 9, dtype=torch.complex128, generator=g)
    forth, back = (
        torch.vdot(baselines.gradient(x).flatten(), p.flatten()),
        torch.vdot(x.flatten(), baselines.divergence(p).flatten()),
    )
    assert abs(forth - back) < 1e-12
    assert baselines.gradient(torch.ones(5, 5)).abs().max() == 0


def test_a_weight_of_zero_is_refused() -> None:
    A, x = Fourier(), blocks(16)
    with pytest.raises(ValueError, match="weight is 0, expected a value above 0"):
        baselines.total_variation(measure(A(x), masks.random_columns(16, acceleration=2, seed=0), A, x), 0)


class Wrong(nn.Module):
    """A network whose image is off everywhere: in size, in place and by noise."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))  # so that it is on a device

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.8 * x.roll(1, -1) + 0.05 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("seed", range(3))
def test_a_unet_with_measured_kspace_put_back_is_right_on_m(seed: int) -> None:
    A, x = Fourier(), 300 * blocks()
    mask = masks.random_columns(64, acceleration=4, seed=seed)
    m = measure(A(x), mask, A, x)
    model = Supervised(Wrong(), operator=A)
    without, put_back = (baselines.unet(model, m, put_back=put).samples[0] for put in (False, True))
    assert torch.allclose(without * m.scale, model(m.y_m[None], mask)[0]), "the network's image, in the scan's scale"
    wrong, right = (float((A(image) - A(x))[:, mask].norm() / A(x)[:, mask].norm()) for image in (without, put_back))
    assert right < 1e-5 < 0.1 < wrong
    off = [(A(image) - A(x))[:, ~mask] for image in (without, put_back)]
    assert torch.allclose(*off, atol=1e-3), "off M it is what it was"
    assert metrics.mse(put_back.abs(), x.abs()) < metrics.mse(without.abs(), x.abs())


def test_a_unet_needs_a_supervised_model() -> None:
    A, x = Fourier(), blocks()
    m = measure(A(x), masks.random_columns(64, acceleration=4, seed=0), A, x)
    with pytest.raises(ValueError, match="expected a supervised one"):
        baselines.unet(Wrong(), m)

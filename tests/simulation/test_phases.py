"""Random phase: sometimes none, sometimes constant, mostly smooth, at most so steep that voxels keep their signal."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mcddpm.simulation import phases
from mcddpm.simulation.wide import Wide
from tests.simulation.heads import head

WIDE = Wide()
SHAPE = (128, 112)


def test_phase_is_decided_by_its_seed_and_has_its_shape() -> None:
    image = head(*SHAPE)
    for seed in range(10):
        phase = phases.phase(SHAPE, image, seed, WIDE)
        assert tuple(phase.shape) == SHAPE and phase.dtype == torch.float32
        assert torch.equal(phase, phases.phase(SHAPE, image, seed, WIDE))
        assert torch.allclose(torch.polar(image, phase).abs(), image, atol=1e-6)
    assert len({float(phases.phase(SHAPE, image, seed, WIDE).sum()) for seed in range(40)}) > 30
    with pytest.raises(ValueError, match=r"the magnitude has shape \(128, 112\), expected \(64, 64\)"):
        phases.phase((64, 64), image, 0, WIDE)


def test_there_is_none_and_constant_and_wrapped_many_times() -> None:
    image = head(*SHAPE)
    drawn = [phases.phase(SHAPE, image, seed, WIDE) for seed in range(200)]
    ranges = np.array([float(phase.max() - phase.min()) for phase in drawn])
    assert 4 <= sum(not phase.any() for phase in drawn) <= 25
    constant = sum(bool(phase.any()) and reach == 0 for phase, reach in zip(drawn, ranges, strict=True))
    assert 4 <= constant <= 25
    assert (ranges > 6 * math.pi).mean() > 0.2
    assert ((ranges > 0) & (ranges < math.pi)).mean() > 0.05


def test_phase_is_not_steeper_than_a_voxel_can_hold() -> None:
    """Half a turn from pixel to pixel would be noise: nearly everywhere there is far less."""
    image = head(192, 192)
    for seed in range(40):
        step = phases.phase((192, 192), image, seed, WIDE).diff(dim=1).abs()
        assert float(step.flatten().kthvalue(int(0.97 * step.numel())).values) < 2.5


def test_a_ramp_moves_the_echo() -> None:
    image = head(96, 96)
    k = [torch.fft.fft2(torch.polar(image, p)).abs() for p in (torch.zeros_like(image), _ramp(image))]
    before, after = (divmod(int(part.argmax()), 96) for part in k)
    moved = math.hypot(*((b - a + 48) % 96 - 48 for a, b in zip(before, after, strict=True)))
    assert moved == pytest.approx(6, abs=1.5)


def _ramp(image: torch.Tensor) -> torch.Tensor:
    return phases.ramp(image, np.random.RandomState(0), Wide(echo=(6, 6)))


@pytest.mark.parametrize("angle", [0.0, 0.7, math.pi / 2])
def test_the_field_of_a_disc_is_that_of_a_long_cylinder(angle: float) -> None:
    """chi / 2 (a / r)^2 cos(2 phi) outside, chi (1/3 - 1/2) inside, with phi from B_0."""
    size, radius = 128, 14
    i = torch.arange(size) - size / 2
    r, phi = torch.hypot(i[:, None], i), torch.atan2(i[:, None], i) - angle
    field = phases.dipole_field((r < radius).float(), angle, 0.5)
    inside, outside = field[r < radius - 3], (r > radius + 3) & (r < 50)
    assert float((inside + 1 / 6).abs().max()) < 0.03
    expected = 0.5 * (radius / r[outside]) ** 2 * torch.cos(2 * phi[outside])
    assert float((field[outside] - expected).abs().max()) < 0.03


@pytest.mark.parametrize("shape", [(160, 384), (97, 64), (33, 50)])
def test_any_shape_and_any_image_has_a_finite_phase(shape: tuple[int, int]) -> None:
    for image in (head(*shape), torch.zeros(shape), torch.ones(shape)):
        for seed in range(15):
            assert phases.phase(shape, image, seed, WIDE).isfinite().all()
        for part, _ in phases.PARTS:
            assert part(image, np.random.RandomState(1), WIDE).shape == shape

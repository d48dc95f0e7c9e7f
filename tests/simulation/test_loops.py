"""Coils by seed: sum of squares 1, smooth, different; noise with a covariance that is one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mcddpm.simulation import loops
from mcddpm.simulation.wide import Wide

WIDE = Wide()


@pytest.mark.parametrize("coils", [1, 2, 5, 8, 32])
@pytest.mark.parametrize("shape", [(64, 64), (97, 50)])
def test_maps_have_a_sum_of_squares_of_one(coils: int, shape: tuple[int, int]) -> None:
    for seed in range(6):
        maps = loops.loops(coils, shape, seed)
        assert maps.shape == (coils, *shape) and maps.dtype == torch.complex64
        assert torch.allclose(maps.abs().square().sum(0), torch.ones(shape), atol=1e-4)
        assert torch.equal(maps, loops.loops(coils, shape, seed))


def test_one_coil_is_one_and_none_is_refused() -> None:
    assert torch.equal(loops.loops(1, (8, 9), 0), torch.ones(1, 8, 9, dtype=torch.complex64))
    with pytest.raises(ValueError, match="there are 0 coils, expected 1 or more"):
        loops.loops(0, (8, 8), 0)


def test_coils_differ_from_each_other_and_from_seed_to_seed() -> None:
    a, b = (loops.loops(8, (64, 64), seed) for seed in (0, 1))
    assert (a - b).norm() > 0.3 * a.norm()
    encoding = []
    for seed in range(20):
        maps = loops.loops(8, (64, 64), seed).flatten(1)
        parts = torch.linalg.svdvals(maps)
        encoding.append(float(parts[1] / parts[0]))
    assert min(encoding) > 0.02 and max(encoding) > 0.3


def test_maps_are_smooth() -> None:
    """In the middle, where the object is, the vector of all sensitivities (of length 1) turns slowly."""
    i = 2 * (torch.arange(127) + 0.5) / 127 - 1
    inside = torch.hypot(i[:, None], i) < 0.9
    steps = []
    for seed in range(40):
        maps = loops.loops((2, 4, 8, 16)[seed % 4], (128, 128), seed)
        step = maps.diff(dim=1).abs().square().sum(0).sqrt()[:, :127][inside]
        steps.append(float(step.max()))
    assert max(steps) < 0.15 and np.median(steps) < 0.05


def test_interpolated_fields_are_those_of_the_wires() -> None:
    for seed in range(10):
        nodes, pixels = loops._nodes(), 2 * (torch.arange(80) + 0.5) / 80 - 1
        coarse, fine = (loops._wires(6, at, at, np.random.RandomState(seed)) for at in (nodes, pixels))
        between = loops._between(80).to(torch.complex64)
        error = (between @ coarse @ between.T - fine).abs() / fine.abs().square().sum(0).sqrt()
        assert float(error.max()) < 0.02


def test_a_loop_has_the_field_of_biot_and_savart_on_its_axis() -> None:
    """B = 2 pi R^2 / (R^2 + d^2)^(3/2) along the axis; the wire's softening adds THICK^2."""
    centre, inwards, radius = torch.tensor([[1.5, 0.0, 0.0]]), torch.tensor([[-1.0, 0.0, 0.0]]), torch.tensor([0.4])
    maps = loops._biot_savart(centre, inwards, radius, torch.zeros(1), torch.tensor([0.0, 0.5]))
    for at, field in zip((0.0, 0.5), maps[0][0, 0], strict=True):
        d2 = 0.4**2 + (1.5 - at) ** 2 + loops.THICK**2
        ours = float(field.abs()) * 2 * np.pi * 0.4 / loops.WIRES
        assert ours == pytest.approx(2 * np.pi * 0.4**2 / d2**1.5, rel=1e-3)


def test_noise_has_a_covariance() -> None:
    for coils in (1, 2, 3, 8, 32):
        largest = []
        for seed in range(25):
            c = loops.correlation(coils, seed, WIDE)
            assert c.shape == (coils, coils) and torch.equal(c, loops.correlation(coils, seed, WIDE))
            assert torch.allclose(c, c.mH, atol=1e-6)
            assert float(torch.linalg.eigvalsh(c).min()) > 0.01
            assert float(c.diagonal().real.mean()) == pytest.approx(1, abs=1e-5)
            std = c.diagonal().real.sqrt()
            largest.append(float((c.abs() / (std[:, None] * std) - torch.eye(coils)).max()))
        assert max(largest) <= WIDE.correlation + 1e-4
        assert coils == 1 or max(largest) > 0.3

"""Draws of a wide simulation: masks, sizes, coils, SNR; and the smooth fields that all of it is made of."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mcddpm.physics import masks
from mcddpm.simulation import fields, wide
from mcddpm.simulation.wide import Wide
from mcddpm.system.settings import from_dict

WIDE = Wide()


@pytest.mark.parametrize("shape", [(192, 192), (160, 384), (101, 65)])
def test_masks_reach_accelerations_of_the_range(shape: tuple[int, int]) -> None:
    reached, planes = [], 0
    for seed in range(150):
        mask = wide.sampling(shape, seed, WIDE)
        assert mask.dtype == torch.bool and tuple(mask.shape) in ((shape[1],), shape)
        assert torch.equal(mask, wide.sampling(shape, seed, WIDE))
        masks.check(mask, shape)
        assert mask.expand(shape)[:, shape[1] // 2].any()
        planes += mask.ndim == 2
        reached.append(masks.acceleration(mask))
    assert min(reached) > 0.85 * 2 and max(reached) < 1.35 * 12
    assert min(reached) < 2.6 and max(reached) > 9  # all of the range
    assert np.median(reached) == pytest.approx(math.sqrt(24), rel=0.25)
    assert planes / 150 == pytest.approx(WIDE.planes, abs=0.1)


def test_centres_are_narrow_and_wide() -> None:
    widths = []
    for seed in range(100):
        mask = wide.sampling((192, 192), seed, Wide(planes=0))
        gap = (~mask).nonzero().flatten() - 96
        widths.append(int(gap[gap > 0].min() - gap[gap < 0].max()) - 1)
    assert min(widths) <= 4 and max(widths) > 30


def test_partial_fourier_leaves_out_either_side() -> None:
    always = Wide(planes=0, partial=1, acceleration=(2, 4))
    sides = set()
    for seed in range(30):
        mask = wide.sampling((192, 192), seed, always)
        columns = mask.nonzero().flatten()
        first, last = int(columns.min()), 191 - int(columns.max())
        assert max(first, last) >= 0.09 * 192
        sides.add(first > last)
        assert masks.acceleration(mask) < 4 * 1.2
    assert sides == {True, False}


def test_points_that_keep_apart_have_fewer_neighbours_than_drawn_ones() -> None:
    apart = wide._apart((192, 192), 8, 0.02, 2.0, seed=4)
    drawn = masks.gaussian_2d((192, 192), acceleration=8, center_fraction=0.02, width=2.0, seed=4)
    touching = [int((mask[:, 1:] & mask[:, :-1])[:, :80].sum()) for mask in (apart, drawn)]
    assert touching[0] < 0.6 * touching[1]
    assert masks.acceleration(apart) == pytest.approx(8, rel=0.05)


def test_points_grow_rarer_from_the_centre_as_their_width_says() -> None:
    mask = wide._apart((256, 256), 6, 0.02, 0.5, seed=1).float()
    i = (torch.arange(256) - 128) / 128
    radius = torch.hypot(i[:, None], i)
    density = [float(mask[(radius - r).abs() < 0.05].mean()) for r in (0.3, 0.8)]
    assert density[0] / density[1] == pytest.approx(math.exp((0.8**2 - 0.3**2) / 0.5), rel=0.3)


def test_other_draws_fill_their_ranges() -> None:
    snr = [wide.snr(seed, WIDE) for seed in range(300)]
    assert 5 <= min(snr) < 6 and 85 < max(snr) <= 100
    assert np.median(snr) == pytest.approx(math.sqrt(500), rel=0.25)
    coils = [wide.coil_count(seed, WIDE) for seed in range(300)]
    assert min(coils) == 1 and 28 <= max(coils) <= 32
    sizes = [wide.matrix_size(seed, WIDE) for seed in range(300)]
    assert {side for size in sizes for side in size} == set(WIDE.sizes)
    assert 0.45 < np.mean([height == width for height, width in sizes]) < 0.7


def test_ranges_can_be_read_from_a_configuration() -> None:
    ranges = from_dict(Wide, {"snr": [10.0, 20.0], "sizes": [192], "planes": 0.0})
    assert 10 <= wide.snr(3, ranges) <= 20 and wide.matrix_size(0, ranges) == (192, 192)
    with pytest.raises(ValueError, match="unknown key zooom"):
        from_dict(Wide, {"zooom": [1.0, 2.0]})


@pytest.mark.parametrize("length", [0.05, 0.2, 0.7])
def test_a_field_has_unit_variance_and_its_correlation_length(length: float) -> None:
    """Over many draws: at one place, and between two places a length apart, exp(-1/2)."""
    n = 40
    step = round(length * n)
    drawn = torch.stack([fields.field((n, 2 * n), np.random.RandomState(seed), length) for seed in range(400)])
    here, there = drawn[:, n // 8, 3], drawn[:, n // 8 + step, 3]
    assert float(here.square().mean()) == pytest.approx(1, abs=0.25)
    assert float(drawn[:, 0].square().mean()) == pytest.approx(1, abs=0.2)
    assert float((here * there).mean()) == pytest.approx(math.exp(-0.5), abs=0.2)


def test_blur_keeps_the_mean_and_widens_a_point_by_its_std() -> None:
    point = torch.zeros(2, 64, 50)
    point[0, 30, 20] = 1
    soft = fields.blur(point, 2.5)
    assert float(soft[0].sum()) == pytest.approx(1, abs=1e-4) and not soft[1].abs().max() > 1e-6
    i = torch.arange(64) - 30.0
    assert float((soft[0].sum(1) * i * i).sum()) == pytest.approx(2.5**2, rel=1e-2)


def test_high_value_is_a_quantile() -> None:
    image = torch.arange(10_000.0).reshape(100, 100)
    assert fields.high_value(image, 0.9) == pytest.approx(9000, rel=0.02)
    assert fields.high_value(torch.zeros(3, 3)) == 0

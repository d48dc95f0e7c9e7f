"""Other looks of one head: contrast, detail, bias, place. Seeded, bounded, and air stays air."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from mcddpm.simulation import appearance
from mcddpm.simulation.wide import Wide
from tests.simulation.heads import FAT, FLUID, GREY, SKULL, WHITE, head

WIDE = Wide()
SEEDS = range(40)
STILL = Wide(zoom=(1, 1), upright=1, turn=0, shift=0, warp=0)


def only(kind: int) -> Wide:
    return Wide(contrasts=tuple(float(k == kind) for k in range(4)))


def at(image: Tensor, new: Tensor, value: float) -> float:
    """What became of the tissue that had this value."""
    return float(new[(image - value).abs() < 0.03].median())


@pytest.mark.parametrize("make", [appearance.contrast, appearance.detail])
def test_looks_are_decided_by_their_seed(make: Callable[[Tensor, int, Wide], Tensor]) -> None:
    image = head()
    for seed in (0, 1, 2):
        new = make(image, seed, WIDE)
        assert torch.equal(new, make(image, seed, WIDE))
    different = {float(make(image, seed, WIDE).sum()) for seed in SEEDS}
    assert len(different) > (30 if make is appearance.contrast else 15)  # detail leaves many as they are


def test_air_stays_air_and_tissue_stays_in_its_range() -> None:
    """Noise of the old image, outside of the object, does not become brighter in any contrast."""
    image = head()
    noise = 0.015 * torch.randn(image.shape, generator=torch.Generator().manual_seed(0)).abs()
    air = image == image.clamp(max=1e-4)
    for seed in SEEDS:
        new = appearance.contrast(image + noise, seed, WIDE)
        assert float(new[air].mean()) < 0.02
        assert 0 <= float(new.min()) and float(new.max()) < 5
        assert float(new.flatten().kthvalue(int(0.995 * new.numel())).values) == pytest.approx(1, abs=0.1)


def test_some_contrasts_rise_and_some_turn_over() -> None:
    image = head()
    rising = [appearance._curve(image, 2, rng) for rng in map(_rng, SEEDS)]
    assert all(bool((curve.diff() > -1e-5).all()) for curve in rising)
    known = [appearance.contrast(image, seed, only(1)) for seed in SEEDS]
    fluid_is_brighter = sum(at(image, new, FLUID) > at(image, new, WHITE) for new in known)
    assert 8 < fluid_is_brighter < 32  # as in T2, STIR, PD, and not in T1 and FLAIR
    free = [appearance._curve(image, 3, rng) for rng in map(_rng, SEEDS)]
    assert sum(bool((curve.diff() < -1e-4).any()) for curve in free) > 20


def test_curves_start_at_zero_and_have_a_bounded_slope() -> None:
    step = float(appearance._LEVELS[1])
    for kind in (1, 2, 3):
        for rng in map(_rng, SEEDS):
            curve = appearance._curve(head(), kind, rng)
            assert abs(float(curve[0])) < 0.02
            assert float(curve.diff().abs().max()) / step < 20


def test_a_voxel_of_two_tissues_is_their_mean_in_a_new_contrast() -> None:
    """T2 from T1: between dark skull and fat the old values pass that of fluid, but there is no fluid."""
    width = 64
    ramp = torch.sigmoid((torch.arange(width) - width / 2) / 1.0)
    image = (SKULL + (FAT - SKULL) * ramp).expand(width, width)
    curve = torch.from_numpy(_interp((0, SKULL, FLUID, GREY, WHITE, FAT, 2), (0, 0, 1, 0.5, 0.4, 0.5, 0.5)))
    naive = appearance._read(curve, image)
    new = appearance._straightened(image, naive, 1.5, 0.0)[width // 2, 8:-8]
    assert float(naive.max()) > 0.75
    assert float(new.max()) < 0.65
    assert (new.diff() > -0.03).all()


def _interp(at: tuple[float, ...], values: tuple[float, ...]) -> np.ndarray:
    return np.interp(appearance._LEVELS.numpy(), at, values).astype("float32")


def _rng(seed: int) -> np.random.RandomState:
    return np.random.RandomState(seed)


def test_detail_changes_a_part_of_all_and_never_the_argument() -> None:
    image = head()
    before = image.clone()
    changed = [not torch.equal(appearance.detail(image, seed, WIDE), image) for seed in range(100)]
    chance = 1 - (1 - WIDE.sharpen) * (1 - WIDE.grain) * (1 - WIDE.blobs)
    assert sum(changed) / 100 == pytest.approx(chance, abs=0.15)
    assert torch.equal(image, before)
    for seed in SEEDS:
        new = appearance.detail(image, seed, Wide(sharpen=1, grain=1, blobs=1))
        assert float(new.min()) >= 0 and new.isfinite().all()
        assert 0.5 < float(new.square().mean() / image.square().mean()) < 2


def test_bias_is_smooth_and_within_its_range() -> None:
    ratios = []
    for seed in SEEDS:
        bias = appearance.bias((96, 160), seed, WIDE)
        assert bias.shape == (96, 160) and float(bias.min()) > 0
        assert float(bias.mean()) == pytest.approx(1, rel=1e-4)
        ratios.append(float(bias.max() / bias.min()))
        assert float(bias.log().diff(dim=0).abs().max()) < 0.15
        assert torch.equal(bias, appearance.bias((96, 160), seed, WIDE))
    assert min(ratios) < 1.3 and 3.5 < max(ratios) <= 5.001


@pytest.mark.parametrize("shape", [(128, 112), (160, 384), (97, 64), (320, 320)])
def test_place_has_the_shape_asked_and_keeps_the_brightness(shape: tuple[int, int]) -> None:
    image = head()
    for seed in range(12):
        new = appearance.place(image, shape, seed, WIDE)
        assert tuple(new.shape) == shape and new.isfinite().all() and float(new.min()) >= 0
        assert torch.equal(new, appearance.place(image, shape, seed, WIDE))
        assert float(new.max()) < 1.3
        assert 0.2 < float((new > 0.03).float().mean()) / float((image > 0.03).float().mean()) < 2.4


def test_place_without_a_move_gives_the_image_or_a_turn_of_it() -> None:
    image = head(128, 128)
    image[20:40, 60:64] = 2.0  # so that turns and mirrors differ
    turns = [torch.rot90(side, k) for side in (image, image.flip(1)) for k in range(4)]
    seen = set()
    for seed in range(40):
        new = appearance.place(image, (128, 128), seed, STILL)
        errors = [float((new - turned).norm() / image.norm()) for turned in turns]
        assert min(errors) < 1e-3
        seen.add(errors.index(min(errors)))
    assert len(seen) == 8


def test_place_takes_out_what_a_smaller_matrix_cannot_hold() -> None:
    """Stripes finer than the new pixels vanish, not fold over; coarse ones stay."""
    for cycles, kept in ((40, 1.0), (110, 0.0)):
        stripes = 1 + torch.cos(2 * math.pi * cycles * torch.arange(256) / 256).expand(256, 256)
        new = appearance.place(stripes, (128, 128), 3, Wide(zoom=(1, 1), upright=1, turn=0, shift=0, warp=0))
        inner = new[16:-16, 16:-16]
        assert float((inner - 1).std()) == pytest.approx(kept * math.sqrt(0.5), abs=0.05)


def test_extremes_leave_no_nan() -> None:
    dot = torch.zeros(64, 64)
    dot[30, 30] = 1
    for image in (torch.zeros(64, 64), torch.ones(64, 64), dot, 1e-6 * head(64, 64), 1e6 * head(64, 64)):
        for seed in range(12):
            new = appearance.place(image, (96, 50), seed, WIDE)
            new = appearance.detail(appearance.contrast(new, seed, WIDE), seed, WIDE)
            assert new.isfinite().all()


def test_a_contrast_does_not_depend_on_the_units_of_the_image() -> None:
    image = head()
    for seed in range(8):
        ours, theirs = (appearance.contrast(unit * image, seed, WIDE) for unit in (1, 4096))
        assert torch.allclose(ours, theirs, atol=1e-3)

"""Coil maps: found from the centre of k-space alone, and made up."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mcddpm.physics import masks
from mcddpm.physics.coils import calibration_block, coil_maps, maps_of
from mcddpm.physics.sense import Sense
from tests.problems import randn

SHAPE = (48, 40)


def blob() -> Tensor:
    """A smooth object that fills the middle, (H, W)."""
    i, j = (torch.linspace(-1, 1, n) for n in SHAPE)
    return torch.exp(-3 * (i[:, None] ** 2 + j**2)).to(torch.complex64)


def center(rows: int, columns: int) -> Tensor:
    """A block of so many rows and columns around the centre."""
    mask = torch.zeros(SHAPE, dtype=torch.bool)
    top, left = SHAPE[0] // 2 - rows // 2, SHAPE[1] // 2 - columns // 2
    mask[top : top + rows, left : left + columns] = True
    return mask


def test_the_maps_of_smooth_coils_are_found() -> None:
    """Up to a phase that all coils share, where there is something to see."""
    known = coil_maps(5, SHAPE, seed=0)
    y = Sense(known)(blob())
    found = maps_of(y, torch.ones(SHAPE, dtype=torch.bool))
    turn = (found * known.conj()).sum(0)
    inside = blob().abs() > 0.2
    assert torch.allclose(turn.abs()[inside], torch.ones(int(inside.sum())), atol=0.02)
    error = (found - known * turn / turn.abs())[:, inside]
    assert error.norm() < 0.1 * known[:, inside].norm()


@pytest.mark.parametrize("lines", [24, 9])
def test_maps_know_nothing_but_the_middle_of_what_was_measured(lines: int) -> None:
    y, mask = randn(3, *SHAPE), masks.random_columns(SHAPE[1], acceleration=2, center_fraction=0.4, seed=0)
    first = maps_of(y * mask, mask, lines)
    changed = torch.where(center(lines, lines) & mask, y * mask, 100 * randn(3, *SHAPE, seed=1) * mask)
    assert torch.equal(maps_of(changed, mask, lines), first)
    assert not torch.allclose(maps_of(torch.where(center(3, 3), 2 + y, y) * mask, mask, lines), first, atol=1e-2)


@pytest.mark.parametrize(
    "mask",
    [
        torch.ones(SHAPE[1]).bool(),
        masks.random_columns(SHAPE[1], acceleration=4, seed=0),
        masks.radial(SHAPE, acceleration=3, seed=0),
        masks.gaussian_2d(SHAPE, acceleration=3, seed=0),
        center(6, 8),
        center(1, 1),
    ],
    ids=["all", "columns", "radial", "gaussian", "block", "point"],
)
def test_maps_are_normalised_whatever_centre_is_sampled(mask: Tensor) -> None:
    maps = maps_of(randn(4, *SHAPE) * mask, mask)
    assert maps.shape == (4, *SHAPE)
    assert torch.allclose(maps.abs().square().sum(0), torch.ones(SHAPE), atol=1e-5)


@pytest.mark.parametrize("shape", [(40, 48), (41, 48), (40, 47), (41, 47)])
@pytest.mark.parametrize("lines", [24, 9, 45])
def test_the_block_is_around_the_middle(shape: tuple[int, int], lines: int) -> None:
    """The middle of k-space is that of the block, for sizes odd and even."""
    y = torch.arange(2 * shape[0] * shape[1]).reshape(2, *shape)
    block = calibration_block(y, torch.ones(shape[1], dtype=torch.bool), lines)
    height, width = block.shape[-2:]
    assert (height, width) == (min(lines, shape[0]), min(lines, 2 * (shape[1] // 2) - 1))
    assert torch.equal(block[:, height // 2, width // 2], y[:, shape[0] // 2, shape[1] // 2])


def test_where_nothing_was_seen_maps_are_zero_and_not_nan() -> None:
    maps = maps_of(torch.zeros(2, *SHAPE, dtype=torch.complex64), center(5, 5))
    assert (maps == 0).all()


@pytest.mark.parametrize("mask", [torch.arange(SHAPE[1]) < 8, ~center(1, 1), torch.zeros(SHAPE).bool()])
def test_without_a_centre_there_are_no_maps(mask: Tensor) -> None:
    with pytest.raises(ValueError, match="the centre of k-space is not sampled: coil maps cannot be found from it"):
        maps_of(randn(2, *SHAPE), mask)


def test_made_up_maps_are_normalised_different_and_smooth() -> None:
    maps = coil_maps(5, (20, 24), seed=0)
    assert maps.shape == (5, 20, 24) and maps.dtype == torch.complex64
    assert torch.allclose(maps.abs().square().sum(0), torch.ones(20, 24), atol=1e-5)
    assert min((maps[a] - maps[b]).abs().mean() for a in range(5) for b in range(a)) > 0.1
    assert maps.diff(dim=1).abs().max() < 0.4 and maps.diff(dim=2).abs().max() < 0.4
    assert torch.equal(maps, coil_maps(5, (20, 24), seed=0)) and not torch.equal(maps, coil_maps(5, (20, 24), seed=1))
    with pytest.raises(ValueError, match="there are 0 coils, expected 1 or more"):
        coil_maps(0, (8, 8), seed=0)

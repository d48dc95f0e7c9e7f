"""Coil sensitivities: found from the centre of k-space, or made up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcddpm.physics.fourier import Fourier


def maps_of(y_m: Tensor, mask: Tensor, lines: int = 24) -> Tensor:
    """Coil maps from the fully sampled centre: smooth coil images over their root sum of squares.  (C, H, W)

    Only measured data are used, at most `lines` x `lines` of them, so that the maps do not know the answer.
    """
    images = smooth_images(y_m, mask, lines)
    return images / images.abs().square().sum(0).sqrt().clamp(min=1e-20)


def smooth_images(y_m: Tensor, mask: Tensor, lines: int = 24) -> Tensor:
    """What the fully sampled centre alone shows of each coil.  (C, H, W)"""
    block = calibration_block(y_m, mask, lines)
    rows, columns = (torch.hann_window(n + 2, periodic=False, device=y_m.device)[1:-1] for n in block.shape[-2:])
    smooth = torch.zeros_like(y_m)
    smooth[_middle(y_m.shape, block.shape)] = block * (rows[:, None] * columns)
    return Fourier().pinv(smooth)


def calibration_block(y_m: Tensor, mask: Tensor, lines: int = 24) -> Tensor:
    """The largest fully sampled block in the middle of k-space, of at most `lines` x `lines`.  (C, h, w)"""
    height, width = y_m.shape[-2:]
    blocks = [_center_block(mask.expand(height, width), rows, lines) for rows in range(1, min(lines, height) + 1)]
    sizes = max(blocks, key=lambda size: (min(size), size[0] * size[1]))
    if min(sizes) < 1:
        raise ValueError("the centre of k-space is not sampled: coil maps cannot be found from it")
    return y_m[_middle(y_m.shape, sizes)]


def _middle(shape: Sequence[int], sizes: Sequence[int]) -> tuple[Any, ...]:
    """Where a block of this height and width lies."""
    top, left = (n // 2 - size // 2 for n, size in zip(shape[-2:], sizes[-2:], strict=True))
    return ..., slice(top, top + sizes[-2]), slice(left, left + sizes[-1])


def _center_block(mask: Tensor, rows: int, lines: int) -> tuple[int, int]:
    """(rows, columns) of the widest fully sampled block of so many rows in the middle of k-space."""
    height, width = mask.shape
    top = height // 2 - rows // 2
    gap = (~mask[top : top + rows].all(0)).nonzero().squeeze(1) - width // 2
    reach = int(gap.abs().min()) if len(gap) else width // 2
    return rows, min(lines, 2 * reach - 1)


def coil_maps(coils: int, shape: tuple[int, int], seed: int) -> Tensor:
    """Smooth sensitivities of coils on a ring around the field of view, sum of squares 1, (C, H, W)."""
    if coils < 1:
        raise ValueError(f"there are {coils} coils, expected 1 or more")
    rng = np.random.RandomState(seed)
    i, j = np.meshgrid(*(np.linspace(-1, 1, n) for n in shape), indexing="ij")
    maps = []
    for angle in 2 * math.pi * (np.arange(coils) + rng.uniform()) / coils:
        away = np.hypot(i - 1.2 * math.sin(angle), j - 1.2 * math.cos(angle))
        turn = rng.uniform(-1, 1, 3) @ np.stack([np.ones_like(i), i, j]).reshape(3, -1)
        maps.append(np.exp(-((away / 1.2) ** 2)) * np.exp(1j * math.pi * turn.reshape(shape)))
    stack = np.stack(maps)
    return torch.from_numpy(stack / np.sqrt((abs(stack) ** 2).sum(0))).to(torch.complex64)

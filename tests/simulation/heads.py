"""A drawn head with the tissues of a T1 image, for tests of what is simulated."""

from __future__ import annotations

import torch
from torch import Tensor

AIR, SKULL, FLUID, GREY, WHITE, FAT = 0.0, 0.06, 0.24, 0.4, 0.55, 1.0


def head(height: int = 128, width: int = 112) -> Tensor:
    """Skin, skull, fluid, grey and white matter, and a ventricle, as ellipses inside each other; edges of a pixel."""
    i, j = torch.arange(height)[:, None] - height / 2, torch.arange(width) - width / 2
    image = torch.zeros(height, width)
    rings = ((0.44, FAT), (0.39, SKULL), (0.35, FLUID), (0.32, GREY), (0.24, WHITE), (0.08, FLUID))
    for size, value in rings:
        depth = (1 - torch.hypot(i / (size * height), j / (size * width))) * size * min(height, width)
        inside = torch.sigmoid(2 * depth)
        image = image * (1 - inside) + value * inside
    return image

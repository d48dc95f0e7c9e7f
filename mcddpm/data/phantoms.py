"""Drawn heads, to try things out."""

from __future__ import annotations

import numpy as np


def drawn(count: int, size: int, seed: int, real: bool = False) -> np.ndarray:
    """Heads made of ellipses with texture, and (complex) a smooth phase: to try things out, not to publish.

    (count, size, size)
    """
    rng = np.random.RandomState(seed)
    axis = (np.arange(size) - size / 2) / (size / 2)
    v, u = np.meshgrid(axis, axis, indexing="ij")
    images = np.zeros((count, size, size), dtype=np.float32 if real else np.complex64)
    for image in images:
        magnitude = np.zeros((size, size))
        height, width = rng.uniform(0.65, 0.9), rng.uniform(0.5, 0.75)
        for k in range(9):
            if k < 2:  # the skull and what is in it
                a, b, x, y, turn, value = height - 0.08 * k, width - 0.08 * k, 0.0, 0.0, 0.0, (1.0, -0.6)[k]
            else:
                a, b, turn = *rng.uniform(0.05, 0.3, 2), rng.uniform(0, np.pi)
                x, y, value = rng.uniform(-0.3, 0.3), rng.uniform(-0.4, 0.4), rng.uniform(-0.25, 0.35)
            p, q = (u - x) * np.cos(turn) + (v - y) * np.sin(turn), (v - y) * np.cos(turn) - (u - x) * np.sin(turn)
            magnitude += value / (1 + np.exp(np.clip(((p / b) ** 2 + (q / a) ** 2 - 1) * size / 4, -30, 30)))
        magnitude = np.clip(magnitude, 0, None)
        if real:
            image[:] = magnitude
        else:
            slope = rng.uniform(-1.5, 1.5, 6)
            phase = slope @ np.stack([np.ones_like(u), u, v, u * v, u * u, v * v]).reshape(6, -1)
            image[:] = magnitude * np.exp(1j * phase.reshape(size, size))
    return images

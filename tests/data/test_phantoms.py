"""Drawn heads: decided by the seed, and no easier to reconstruct than a scan."""

from __future__ import annotations

import numpy as np
import torch

from mcddpm.data.phantoms import drawn
from mcddpm.physics.fourier import Fourier


def test_the_seed_decides() -> None:
    heads = drawn(3, 24, seed=0)
    assert heads.shape == (3, 24, 24) and heads.dtype == np.complex64
    np.testing.assert_array_equal(heads, drawn(3, 24, seed=0))
    np.testing.assert_array_equal(heads[:2], drawn(2, 24, seed=0))
    assert abs(heads - drawn(3, 24, seed=1)).max() > 0.1 and abs(heads[0] - heads[1]).max() > 0.1


def test_real_heads_are_the_magnitude_of_complex_ones() -> None:
    real, scan = drawn(1, 24, seed=0, real=True), drawn(1, 24, seed=0)
    assert real.dtype == np.float32 and real.min() >= 0 and real.max() > 0.5
    np.testing.assert_allclose(real, abs(scan), atol=1e-6)
    y = Fourier()(torch.from_numpy(scan[0]))[1:, 1:]
    assert (y - y.flip(0, 1).conj()).norm() > 0.3 * y.norm(), "its phase leaves no Hermitian k-space"

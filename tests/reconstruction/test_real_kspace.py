"""The real 13-coil scan (pytest -m fetch): its coils combined, under-sampled fourfold, with the shipped model."""

from __future__ import annotations

import pytest

from benchmarks.brain import psnr, real_measurement
from mcddpm import load_model
from mcddpm.data import catalogue
from mcddpm.evaluation import baselines
from mcddpm.models.denoiser import Denoiser
from mcddpm.reconstruction.sample import reconstruct


@pytest.mark.fetch
@pytest.mark.parametrize("angle", range(2, 11))
def test_every_flip_angle_is_better_than_zero_filled(angle: int) -> None:
    (path,) = catalogue.get("kspace")
    m, model = real_measurement(path, angle - 1), load_model()
    assert isinstance(model, Denoiser)
    ours, zero = (
        psnr(recon.mean * m.scale, m) for recon in (reconstruct(model, m, samples=8), baselines.zero_filled(m))
    )
    assert ours > zero + 0.5

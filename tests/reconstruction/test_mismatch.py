"""A scan that the model was not made for: what is told, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from mcddpm import Measurement
from mcddpm.evaluation import baselines
from mcddpm.models.denoiser import Denoiser
from mcddpm.physics import masks
from mcddpm.physics.coils import coil_maps
from mcddpm.physics.ct import Radon
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.measurement import measure
from mcddpm.physics.sense import Sense
from mcddpm.reconstruction.mismatch import mismatches
from mcddpm.reconstruction.sample import reconstruct
from tests.problems import tiny
from tests.scans import MASK, SIZE

G = torch.Generator().manual_seed(0)
KSPACE = torch.randn(SIZE, SIZE, dtype=torch.complex64, generator=G)
DISC = (torch.hypot(torch.arange(SIZE)[:, None] - 16.0, torch.arange(SIZE) - 16.0) < 10).to(torch.complex64)


def scan(mask: torch.Tensor = MASK, y: torch.Tensor = KSPACE) -> Measurement:
    return Measurement.from_kspace(y, mask)


def energetic(low: float, high: float) -> Denoiser:
    model = tiny()
    model.card = replace(model.card, measured_rms=(low, high))
    return model


def rms(m: Measurement) -> float:
    return float(m.operator.pinv(m.y_m).abs().square().mean().sqrt())


def test_a_scan_like_the_training_data_gets_no_notice() -> None:
    m = scan()
    assert mismatches(energetic(0.9 * rms(m), 1.1 * rms(m)), m) == ()
    model = tiny()
    model.card = None
    assert mismatches(model, scan(torch.arange(SIZE) % 2 == 0)) == (), "of a model without a card nothing is known"


@pytest.mark.parametrize(
    ("model", "m", "kind", "reason"),
    [
        (tiny(shape=(48, 40)), scan(), "matrix", "the matrix is 32 x 32, the model was trained on 48 x 40"),
        (
            tiny(),
            scan(torch.arange(SIZE) % 2 == 0),
            "acceleration",
            "under-sampled 2.0x, the model was trained on 4x and 8x",
        ),
        (
            tiny(),
            scan(masks.radial((SIZE, SIZE), acceleration=4, seed=0)),
            "mask",
            "the mask is made not of columns, the model was trained on random_columns",
        ),
        (
            tiny(),
            scan(MASK[:, None].expand(SIZE, SIZE)),
            "mask",
            "the mask is made of rows: transpose the scan. The model",
        ),
        (
            tiny(),
            scan(y=torch.fft.ifftshift(Fourier()(DISC), -2)),
            "off centre",
            "9[0-9] % of the energy lies in the outer half of the rows: is k-space not in the centred FFT",
        ),
        (energetic(0.9, 1.0), scan(), "energy", "the measured energy is unlike the training data's"),
        (energetic(0.0001, 0.001), scan(), "energy", "the measured energy is unlike the training data's"),
    ],
)
def test_what_is_unlike_is_told_and_it_still_runs(model: Denoiser, m: Measurement, kind: str, reason: str) -> None:
    (notice,) = mismatches(model, m)
    assert notice.kind == kind and re.search(reason, notice.text)
    recon = reconstruct(model, m, samples=2, steps=1)
    assert recon.notices == (notice,) and recon.mean.shape == (SIZE, SIZE)


def test_several_coils_and_a_model_of_one() -> None:
    maps = coil_maps(4, (SIZE, SIZE), 0)
    m = Measurement.from_kspace(Sense(maps)(DISC), MASK, maps=maps, noise=0.01)
    recon = reconstruct(tiny(), m, samples=2, steps=2)
    told = "the scan is by MRI with several coils, the model was trained on MRI with one coil"
    assert [(n.kind, n.text) for n in recon.notices] == [("operator", told)]
    assert recon.samples.shape == (2, SIZE, SIZE) and recon.operator == "sense"


def test_a_model_of_another_kind_of_scan_is_refused() -> None:
    A = Radon(SIZE, 24)
    x = torch.rand(SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    ct = measure(A(x), masks.sparse_views(24, acceleration=4, seed=0), A, x)
    with pytest.raises(ValueError, match="measured by CT, the model is for MRI with one coil: it cannot be used"):
        reconstruct(tiny(), ct)
    model = tiny({"operator": {"kind": "radon", "views": 24}})
    with pytest.raises(ValueError, match="measured by MRI with one coil, the model is for CT"):
        reconstruct(model, scan())
    recon = reconstruct(model, ct, samples=2, steps=2)
    assert not torch.is_complex(recon.samples) and torch.allclose(recon.mean, recon.samples.mean(0))
    assert recon.operator == "radon"
    assert torch.allclose(baselines.zero_filled(ct).mean, A.pinv(ct.y_m) / ct.scale), "values, not magnitudes"


def test_notices_of_the_measurement_come_first() -> None:
    m = replace(scan(torch.arange(SIZE) % 2 == 0), notices=mismatches(energetic(0.9, 1.0), scan()))
    recon = reconstruct(tiny(), m, samples=2, steps=1)
    assert [notice.kind for notice in recon.notices] == ["energy", "acceleration"]

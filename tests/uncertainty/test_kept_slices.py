"""What is kept of a slice whose truth is known: enough to fit intervals, and to see what they cover."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mcddpm.physics import masks
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.measurement import Measurement, measure
from mcddpm.reconstruction.result import Reconstruction
from mcddpm.system.workspace import Piece, Workspace
from mcddpm.uncertainty.kept_slices import arrays_of, images_of, slice_of
from tests.problems import randn

MASK = masks.random_columns(20, acceleration=4, seed=0)


@pytest.fixture(scope="module")
def scan() -> Measurement:
    """In units of some hundreds; what it is compared with is a centre crop."""
    x = 300 * randn(20, 20)
    return measure(Fourier()(x), MASK, Fourier(), x, x.abs()[2:18, 3:17])


@pytest.fixture(scope="module")
def recon(scan: Measurement) -> Reconstruction:
    return Reconstruction(300 * randn(4, 20, 20, seed=1), 2, scale=scan.scale)


@pytest.fixture
def piece(scan: Measurement, recon: Reconstruction, tmp_path: Path) -> Piece:
    workspace = Workspace(tmp_path, "calibration")
    workspace.keep("a", arrays_of(recon, scan), {})
    return workspace.read("a")


def test_images_are_in_the_scans_units_and_the_truths_matrix(
    piece: Piece, scan: Measurement, recon: Reconstruction
) -> None:
    mean, std, truth = images_of(piece)
    assert torch.equal(mean, recon.mean[2:18, 3:17]) and torch.equal(std, recon.std[2:18, 3:17])
    assert scan.target is not None and torch.allclose(truth, scan.target / scan.scale) and truth.max() > 300
    assert {piece[key].dtype for key in ("mean", "std", "target")} == {np.dtype(np.float32)}
    assert piece["scale"] == scan.scale and piece["reached"] == masks.acceleration(MASK)


def test_intervals_are_fitted_in_the_measurements_scale(piece: Piece, scan: Measurement, recon: Reconstruction) -> None:
    found = slice_of(piece, 0.4)
    assert scan.target is not None and torch.allclose(found.truth.float(), scan.target)
    assert torch.allclose(found.mean.float(), recon.mean[2:18, 3:17] * scan.scale)
    assert torch.allclose(found.std.float(), recon.std[2:18, 3:17] * scan.scale)
    assert found.surprise == 0.4 and found.is_checked and not slice_of(piece).is_checked

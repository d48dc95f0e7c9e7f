"""Does the model understand this scan? One call, with what is usual for the model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mcddpm.models.denoiser import Denoiser
from mcddpm.physics.coils import coil_maps
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.measurement import Measurement
from mcddpm.uncertainty import selfcheck
from mcddpm.uncertainty.surprise import Unchecked, surprise
from tests.problems import tiny
from tests.scans import MASK, SIZE, kspace
from tests.uncertainty.made_up import calibration


def test_of_a_scan() -> None:
    assert selfcheck.of_scan([0.03]) == 0.03
    assert selfcheck.of_scan([0.01, 0.02, 0.9]) == pytest.approx(0.02 * 3 / 2)
    assert selfcheck.of_scan([0.01, 0.8, 0.9]) == 1.0
    assert selfcheck.of_scan([0.9, 0.01]) == 0.02 and selfcheck.of_scan([0.9, 0.01, 0.8, 0.02]) == 0.04
    fewest = 1 / (selfcheck.enough() + 1)
    assert all(selfcheck.of_scan([fewest] * n) <= selfcheck.ALARM for n in range(1, 300)), "an alarm can be raised"
    assert 2 / selfcheck.enough() > selfcheck.ALARM, "with one slice fewer it could not"
    rng = np.random.default_rng(0)
    apart = [selfcheck.of_scan(rng.uniform(size=8)) for _ in range(4000)]
    assert np.mean(np.array(apart) <= 0.1) <= 0.1
    same = [selfcheck.of_scan([p] * 8) for p in rng.uniform(size=4000)]
    assert np.mean(np.array(same) <= 0.1) == pytest.approx(0.05, abs=0.02), "whatever slices have in common"


@pytest.fixture(scope="module")
def model() -> Denoiser:
    """Of weights that nobody knows: any calibration may be tried on it."""
    model = tiny()
    model.card = None
    return model


def scan(mask: torch.Tensor = MASK) -> Measurement:
    return Measurement.from_kspace(torch.from_numpy(kspace(1)[0]), mask)


def test_a_scan_is_checked_in_one_call(model: Denoiser) -> None:
    known = calibration()
    found, same = (
        selfcheck.check(model, scan(), calibration=known, seed=5),
        surprise(model, scan(), known.checked.plan, seed=5),
    )
    usual, notices = known.checked.at(4.0)
    assert found.surprise.statistics == same.statistics and found.overall == same.statistics["overall"]
    told = usual.p_value(same.statistics), usual.score(same.statistics), usual.reason(same.statistics)
    assert (found.p, found.score, found.reason) == told and found.notices == notices == ()
    assert surprise(model, scan(), known.checked.plan, seed=6).statistics != same.statistics


@pytest.mark.parametrize(("p", "flagged"), [(0.049, True), (0.05, True), (0.051, False)])
def test_a_scan_is_flagged_by_its_p_value(p: float, flagged: bool, model: Denoiser) -> None:
    found = selfcheck.check(model, scan(), calibration=calibration())
    assert replace(found, p=p).flagged is flagged


def test_what_is_usual_at_another_acceleration_is_told(model: Denoiser) -> None:
    half = torch.arange(SIZE) % 2 == 0
    half[12:20] = True
    (notice,) = selfcheck.check(model, scan(half), calibration=calibration()).notices
    assert "under-sampled 1.6x, what is usual was found at 4x" in str(notice)


def test_a_scan_of_another_kind_is_not_checked(model: Denoiser) -> None:
    y = torch.from_numpy(kspace(1)[0])
    coils = Measurement.from_kspace(Fourier()(coil_maps(3, (SIZE, SIZE), 0) * Fourier().pinv(y)), MASK)
    with pytest.raises(Unchecked, match="scans by MRI with one coil, this one is by MRI with several coils"):
        selfcheck.check(model, coils, calibration=calibration())


def test_a_calibration_without_self_checks_or_of_other_weights_is_refused(model: Denoiser) -> None:
    with pytest.raises(ValueError, match="knows nothing of self-checks: calibrate with check_every = 1"):
        selfcheck.check(model, scan(), calibration=replace(calibration(), self_check=None))
    other = tiny()
    assert other.card is not None
    other.card = replace(other.card, sha256="def")
    with pytest.raises(ValueError, match=r"fitted on other weights \(sha256 abc, these are def\)"):
        selfcheck.check(other, scan(), calibration=calibration("abc"))

"""A calibration that was made up, whose intervals can be told by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from mcddpm.models.store import read_card, save_model
from mcddpm.uncertainty.calibration import NAME, Calibration
from mcddpm.uncertainty.conformal import VERSION, Conformal, Factors
from mcddpm.uncertainty.usual import SelfCheck, Usual
from tests.problems import tiny


def calibration(sha256: str = "") -> Calibration:
    """For 3 samples in 2 steps, up to 90 %: 1.5 times std at 50 % and 3 times at 90 % where std is below its median,
    ten times as much above, and half as much in the background; after a self-check, as much again for every unit of
    surprise."""
    origin = (VERSION, sha256, "drawn", "2026-01-01")
    table = Factors(4.0, 18, ((1.5, 15.0, 0.75), (3.0, 30.0, 1.5)))
    follows = replace(table, slope=2 * math.log(2), lowest=-9.0)
    intervals = Conformal(*origin, "dpmpp_2m_sde", 2, 3, (0.5, 0.9), (table,), (follows,))
    usual = {name: tuple(float(k) for k in range(-20, 21)) for name in ("overall", "line", "point")}
    check = SelfCheck(*origin, "fourier", "dpmpp_2m_sde", 2, 3, 2, (Usual(4.0, usual),))
    return Calibration(intervals, check)


def factors(mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Its own at 90 %, pixel by pixel."""
    inside = mean > 0.1 * mean.max()
    return np.where(inside, np.where(std <= np.median(std[inside]), 3.0, 30.0), 1.5)


def calibrated_model(folder: Path, seed: int = 0) -> Path:
    """A small model with this calibration beside it."""
    model = tiny(seed=seed)
    assert model.card is not None
    save_model(folder, model.network.state_dict(), model.card)
    calibration(read_card(folder).sha256).save(folder / NAME)
    return folder

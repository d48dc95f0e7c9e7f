"""Does the model understand this scan? Asked of the scan itself (`surprise.py`), and compared with what is usual
(`usual.py`): no truth is needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mcddpm.models.denoiser import Denoiser
from mcddpm.physics import masks
from mcddpm.physics.measurement import Measurement
from mcddpm.physics.operator import LABELS
from mcddpm.reconstruction.sample import MEMORY
from mcddpm.system.progress import Notice
from mcddpm.uncertainty.calibration import Calibration, load_calibration, of_weights
from mcddpm.uncertainty.surprise import Surprise, Unchecked, surprise

ALARM = 0.05  # a scan with a lower p-value is one that the model does not understand


@dataclass(frozen=True)
class Checked:
    """p: how often a slice like those of calibration is as unusual; score: how far off its most unusual statistic is,
    and reason, which one; overall: what intervals follow."""

    p: float
    score: float
    reason: str
    surprise: Surprise
    notices: tuple[Notice, ...] = ()

    @property
    def overall(self) -> float:
        return self.surprise.statistics["overall"]

    @property
    def flagged(self) -> bool:
        return self.p <= ALARM


def check(
    model: Denoiser,
    measurement: Measurement,
    *,
    calibration: Calibration | None = None,
    seed: int = 0,
    memory: float | str = MEMORY,
) -> Checked:
    """Is a scan like those that the model was calibrated on? calibration: the model's own unless given; one that was
    fitted on other weights is refused."""
    own = calibration or load_calibration(model)
    known = (own if model.card is None else of_weights(own, model.card.sha256)).checked
    A = measurement.operator
    if A.kind != known.operator:
        usual = LABELS[known.operator]
        raise Unchecked(f"not self-checked: what is usual is known of scans by {usual}, this one is by {A.label}")
    result = surprise(model, measurement, known.plan, seed=seed, memory=memory)
    at, notices = known.at(masks.acceleration(measurement.mask))
    statistics = result.statistics
    return Checked(at.p_value(statistics), at.score(statistics), at.reason(statistics), result, notices)


def enough() -> int:
    """How many slices it takes to raise an alarm: the smallest p-value of a scan is 2 / (slices + 1)."""
    return math.ceil(2 / ALARM - 1e-9) - 1


def of_scan(p_values: Sequence[float]) -> float:
    """One p-value of a scan from those of its slices, however they depend on each other: the k-th of n, times n / k; k
    lies in the middle, so that one odd slice does not condemn a scan and one good one does not save it."""
    n = len(p_values)
    k = (n + 1) // 2
    return min(1.0, sorted(p_values)[k - 1] * (n / k))  # twice a p-value is exact, where n / k is 2

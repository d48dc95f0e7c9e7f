"""What is usual for a model: a self-check's statistics on slices that it was made for, and how far off others are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mcddpm.diffusion.samplers import SamplerName
from mcddpm.physics.operator import Kind
from mcddpm.system.progress import Notice
from mcddpm.uncertainty.surprise import HidePlan

BOTH_WAYS = ("overall", "detail")  # too well predicted is unusual as well; in the centre, too


@dataclass(frozen=True)
class Usual:
    """At one acceleration, the statistics on slices that the model was made for: of each name, as many as slices."""

    acceleration: float
    statistics: dict[str, tuple[float, ...]]

    @classmethod
    def of(cls, acceleration: float, slices: Sequence[dict[str, float]]) -> Usual:
        """Of what all of them have: a mask without a centre has no statistics of it."""
        names = [name for name in slices[0] if all(name in one for one in slices)]
        return cls(acceleration, {name: tuple(one[name] for one in slices) for name in names})

    def deviations(self, statistics: dict[str, float]) -> dict[str, float]:
        """How far off each statistic is that both have."""
        names = [name for name in self.statistics if name in statistics]
        value, usual = np.array([statistics[name] for name in names]), self._table(names)
        return dict(zip(names, _deviations(value, usual, names).tolist(), strict=True))

    def score(self, statistics: dict[str, float]) -> float:
        """That of the most unusual one: at 1, as one slice in twenty is of that statistic alone."""
        return max(self.deviations(statistics).values())

    def reason(self, statistics: dict[str, float]) -> str:
        """Its name."""
        deviations = self.deviations(statistics)
        return max(deviations, key=lambda name: deviations[name])

    def p_value(self, statistics: dict[str, float]) -> float:
        """How often a slice that the model was made for is as unusual among the others as this: never below
        1 / (slices + 1). Each is compared with all others and this one, so that it is one among equals."""
        names = [name for name in self.statistics if name in statistics]
        every = np.vstack([self._table(names), [statistics[name] for name in names]])
        if not np.isfinite(every[-1]).all():
            return 1 / len(every)
        others = np.stack([np.delete(every, k, 0) for k in range(len(every))])
        scores = _deviations(every, others, names).max(-1)
        return float((scores >= scores[-1]).mean())

    def _table(self, names: Sequence[str]) -> np.ndarray:
        """(slices, names)"""
        return np.array([self.statistics[name] for name in names]).T


def _deviations(value: np.ndarray, usual: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """In units of what one slice in twenty reaches, above the middle or, of those BOTH_WAYS, above or below it: some
    statistics have long tails.  (..., names), (..., slices, names) -> (..., names)"""
    both_ways = np.array([name.endswith(BOTH_WAYS) for name in names])
    low, middle, high, higher = np.quantile(usual, [0.025, 0.5, 0.95, 0.975], axis=-2)
    above = (value - middle) / np.maximum(np.where(both_ways, higher, high) - middle, 1e-6)
    below = (middle - value) / np.maximum(middle - low, 1e-6)
    result = np.where(both_ways, np.maximum(above, below), above)
    return np.where(np.isfinite(result), result, np.inf)


@dataclass(frozen=True)
class SelfCheck:
    """What is usual for a model (the sha256 of its weights), and how it was found."""

    version: int
    model: str
    data: str
    date: str
    operator: Kind
    sampler: SamplerName
    folds: int
    samples: int
    steps: int
    usual: tuple[Usual, ...]

    @property
    def plan(self) -> HidePlan:
        return HidePlan(self.folds, self.samples, self.steps, self.sampler)

    def at(self, acceleration: float) -> tuple[Usual, tuple[Notice, ...]]:
        """What is usual at the nearest acceleration, and a notice if that is another one."""
        result = min(self.usual, key=lambda u: abs(math.log(u.acceleration / acceleration)))
        if 0.7 < result.acceleration / acceleration < 1.4:
            return result, ()
        known, asked = f"{result.acceleration:g}x", f"{acceleration:.1f}x"
        message = f"the scan is under-sampled {asked}, what is usual was found at {known}"
        return result, (Notice("self-check acceleration", message),)

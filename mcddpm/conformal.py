"""Split conformal scaling: by how much std must be stretched for mean -+ factor std to hold the truth as often as told.

Fitted on slices with a truth that the model was not trained on. A pixel's score is |truth - mean| / std; the factor for
a level is its quantile over slices and pixels, each slice counting alike, and one more slice with an infinite score for
the one to come: so that a random pixel of a new slice, exchangeable with those, lies inside with at least that
probability. It takes level / (1 - level) slices. Factors are fitted for every acceleration and, so that intervals are
right where std is small and where it is large, in bins of std; the background has a bin of its own.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mcddpm import config
from mcddpm.calibration import foreground

LEVELS = (*(round(0.05 * k, 2) for k in range(1, 20)), 0.98, 0.99)
BINS = 8


@dataclass(frozen=True)
class Slice:
    """mean, std, truth: (H, W), of magnitudes, in the measurement's scale (divided by max|A+ y_M|)."""

    mean: Tensor
    std: Tensor
    truth: Tensor


@dataclass(frozen=True)
class Factors:
    """Of one acceleration. edges: between bins of std; factors[level][bin], the last bin for the background."""

    acceleration: float
    slices: int
    edges: tuple[float, ...]
    factors: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Conformal:
    """What was fitted, for which weights (their sha256), on what data, when, and how samples were drawn."""

    model: str
    data: str
    date: str
    sampler: str
    steps: int
    samples: int
    levels: tuple[float, ...]
    tables: tuple[Factors, ...]

    @property
    def how(self) -> str:
        return how(self.samples, self.sampler, self.steps)

    def check(self, level: float) -> None:
        """Refuse a level that was not, or cannot have been, fitted."""
        check(level)
        if level > self.levels[-1] + 1e-9:
            n = min(table.slices for table in self.tables)
            raise ValueError(
                f"a level of {level:g} takes {needed(level)} calibration slices, this model was calibrated on {n}: "
                f"{self.levels[-1]:g} is the highest it has"
            )

    def stretch(self, mean: Tensor, std: Tensor, level: float, acceleration: float) -> Tensor:
        """The factor of every pixel.  (H, W), in the measurement's scale -> (H, W)"""
        self.check(level)
        table = min(self.tables, key=lambda t: abs(math.log(t.acceleration / acceleration)))
        if not 0.7 < table.acceleration / acceleration < 1.4:
            warnings.warn(
                f"the scan is under-sampled {acceleration:.1f}x, intervals were fitted at {table.acceleration:g}x",
                stacklevel=3,
            )
        levels, rows = (0.0, *self.levels), ((0.0,) * len(table.factors[0]), *table.factors)
        k = next(k for k, known in enumerate(levels) if known >= level - 1e-9)
        part = (level - levels[k - 1]) / (levels[k] - levels[k - 1])
        factors = std.new_tensor([a + part * (b - a) for a, b in zip(rows[k - 1], rows[k], strict=True)])
        return factors[_bins(mean, std, table.edges)]


def how(samples: int, sampler: str, steps: int) -> str:
    return f"{samples} samples of {sampler} in {steps} steps"


def of_card(card: dict[str, Any]) -> Conformal | None:
    """The calibration that a model carries, if it is its own."""
    if "calibration" not in card:
        return None
    found = config.from_dict(Conformal, card["calibration"], "calibration.")
    if found.model != card.get("sha256"):
        raise ValueError(
            f"the calibration in this model's card was fitted on other weights (sha256 {found.model[:12]}, these are "
            f"{str(card.get('sha256'))[:12]}): fit it anew with mcddpm calibrate"
        )
    return found


def fit(slices: Sequence[Slice], acceleration: float, levels: Sequence[float] = LEVELS, bins: int = BINS) -> Factors:
    """levels: those that so many slices allow are fitted; `possible` says which."""
    kept = possible(levels, len(slices))
    inside = [s.std[foreground(s.mean)] for s in slices]
    edges = torch.cat(inside).double().quantile(torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1])
    columns = []
    for k in range(bins + 1):
        scores = [((s.truth - s.mean).abs() / s.std)[_bins(s.mean, s.std, edges.tolist()) == k] for s in slices]
        columns.append(quantiles([s for s in scores if len(s)], kept))
    rows = tuple(zip(*columns, strict=True))
    return Factors(float(acceleration), len(slices), tuple(edges.tolist()), rows)


def quantiles(scores: Sequence[Tensor], levels: Sequence[float]) -> list[float]:
    """The smallest q with sum_k F_k(q) / (n + 1) >= level: F_k, the distribution of slice k's scores; n slices.

    Slices that have no pixel of a bin are not among its n; where too few are left, the highest score is taken.
    """
    n = len(scores)
    if not n:
        return [math.inf for _ in levels]
    values = torch.cat([s.double() for s in scores])
    weight = torch.cat([s.new_full((len(s),), 1 / (len(s) * (n + 1)), dtype=torch.float64) for s in scores])
    values, order = values.sort()
    reached = weight[order].cumsum(0)
    places = torch.searchsorted(reached, torch.tensor(list(levels), dtype=torch.float64) - 1e-12)
    return values[places.clamp(max=len(values) - 1)].tolist()


def needed(level: float) -> int:
    """How many slices it takes: with n, at most n / (n + 1) can be promised."""
    return math.ceil(level / (1 - level) - 1e-9)


def possible(levels: Sequence[float], slices: int) -> tuple[float, ...]:
    kept = tuple(sorted(level for level in levels if needed(check(level)) <= slices))
    if not kept:
        lowest = min(levels)
        raise ValueError(f"a level of {lowest:g} takes {needed(lowest)} calibration slices, there are {slices}")
    return kept


def check(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"the level is {level}, expected a value between 0 and 1, as 0.9")
    return level


def _bins(mean: Tensor, std: Tensor, edges: Sequence[float]) -> Tensor:
    """The bin of every pixel; that of the background is the last.  (H, W)"""
    place = torch.bucketize(std, std.new_tensor(list(edges)))
    return torch.where(foreground(mean), place, len(edges) + 1)

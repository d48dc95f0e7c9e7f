"""Split conformal scaling: by how much std must be stretched for mean -+ factor std to hold the truth as often as told.

Fitted on slices with a truth that the model was not trained on, for every acceleration, in two stages. One slice in
four shapes the factors: in bins of std (and one bin for the background) the quantile of |truth - mean| / std, because
std is rarely wrong by the same factor where it is small and where it is large. Bins are quantiles of std in the slice
itself: another head may have larger errors everywhere. The others decide: for every level two
numbers more, one for the head and one for the air, the quantile of |truth - mean| / (factor std) over slices and
pixels, each slice counting alike, and one more slice with an infinite score for the one to come. So a random pixel of
the head in a new slice, exchangeable with those that decided, lies inside with at least that probability, and so does
one of the air. It takes level / (1 - level) slices that decide; with n of them intervals hold some level / n too much.

A new person may be less like those of training than the people it was fitted on, and std then too short. The self-check
sees that without a truth. So where slices were self-checked, a second set of factors is fitted, for std multiplied by
exp(slope (surprise - usual) / 2) before: slope, how log(error^2 / std^2) of a slice grows with its surprise. That one
number takes all slices, those that decide too, since a quarter of them would not know it well enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mcddpm.diffusion.samplers import SamplerName
from mcddpm.reconstruction.plan import DrawPlan
from mcddpm.system.progress import Notice
from mcddpm.uncertainty.scores import foreground, z_of

VERSION = 4  # of what `mcddpm calibrate` writes, the self-check among it; another one's is refused
LEVELS = (*(round(0.05 * k, 2) for k in range(1, 20)), 0.98, 0.99)
BINS = 8
SHAPING = 4  # one slice in so many


@dataclass(frozen=True)
class Slice:
    """mean, std, truth: (H, W), of magnitudes, in the measurement's scale (divided by max|A+ y_M|). surprise: what the
    self-check calls `overall`, log of the mean of |z|^2, where there was one."""

    mean: Tensor
    std: Tensor
    truth: Tensor
    surprise: float = math.nan

    @property
    def is_checked(self) -> bool:
        return math.isfinite(self.surprise)


@dataclass(frozen=True)
class Factors:
    """Of one acceleration. factors[level][bin]: bins of equally many pixels, by std, and one for the background. slope,
    usual and lowest: what the self-check does to std, nothing unless told."""

    acceleration: float
    slices: int
    factors: tuple[tuple[float, ...], ...]
    slope: float = 0.0
    usual: float = 0.0
    lowest: float = 0.0

    def adaptation(self, surprise: float | None) -> float:
        """What std is multiplied by first. Less surprise than any calibration slice had earns no shorter intervals:
        lines that hold next to nothing surprise nobody."""
        return 1.0 if surprise is None else math.exp(self.slope * (max(surprise, self.lowest) - self.usual) / 2)


@dataclass(frozen=True)
class Conformal:
    """What was fitted, for which weights (their sha256), on what data, when, and how samples were drawn. adaptive: the
    tables for slices that are self-checked, if calibration slices were. operator: how all were measured, as fourier."""

    version: int
    model: str
    data: str
    date: str
    sampler: SamplerName
    steps: int
    samples: int
    levels: tuple[float, ...]
    tables: tuple[Factors, ...]
    adaptive: tuple[Factors, ...] = ()
    operator: Literal["", "fourier", "sense", "radon"] = ""

    @property
    def plan(self) -> DrawPlan:
        return DrawPlan(self.samples, self.sampler, self.steps)

    def by_count(self, level: float, samples: int) -> float:
        """By how much more std is to be stretched that fewer samples are known by, or less, by more: as Student's
        quantile has it. 1 for as many as it was fitted with."""
        self.check(level)
        return z_of(level, samples) / z_of(level, self.samples)

    def check(self, level: float) -> None:
        """Refuse a level that was not, or cannot have been, fitted."""
        check(level)
        if level > self.levels[-1] + 1e-9:
            n = min(table.slices for table in self.tables)
            why = f"takes {needed(level)} calibration slices, this model was calibrated on {n}"
            why = why if n < needed(level) else "was not fitted"
            raise ValueError(f"a level of {level:g} {why}: {self.levels[-1]:g} is the highest this model has")

    def at(self, acceleration: float, surprise: float | None = None) -> tuple[Factors, tuple[Notice, ...]]:
        """The factors of the nearest acceleration, those that follow the self-check if there was one; and what is to be
        known of that."""
        notices = []
        if surprise is not None and not self.adaptive:
            message = "this model's intervals do not follow the self-check: not all calibration slices had one"
            notices.append(Notice("interval self-check", f"{message} (check_every)"))
        tables = self.adaptive if surprise is not None and self.adaptive else self.tables
        table = min(tables, key=lambda t: abs(math.log(t.acceleration / acceleration)))
        if not 0.7 < table.acceleration / acceleration < 1.4:
            message = f"the scan is under-sampled {acceleration:.1f}x, intervals were fitted at {table.acceleration:g}x"
            notices.append(Notice("interval acceleration", message))
        return table, tuple(notices)

    def stretch(
        self, mean: Tensor, std: Tensor, level: float, acceleration: float, surprise: float | None = None
    ) -> tuple[Tensor, tuple[Notice, ...]]:
        """The factor of every pixel, and what is to be known of it.  (H, W), in the measurement's scale -> (H, W).

        surprise: the self-check's.
        """
        self.check(level)
        table, notices = self.at(acceleration, surprise)
        levels, rows = (0.0, *self.levels), ((0.0,) * len(table.factors[0]), *table.factors)
        k = next(k for k, known in enumerate(levels) if known >= level - 1e-9)
        part = (level - levels[k - 1]) / (levels[k] - levels[k - 1])
        factors = std.new_tensor([a + part * (b - a) for a, b in zip(rows[k - 1], rows[k], strict=True)])
        adaptation = table.adaptation(surprise if self.adaptive else None)
        return adaptation * factors[_bins(mean, std, len(factors) - 1)], notices


def fit(
    slices: Sequence[Slice],
    acceleration: float,
    levels: Sequence[float] = LEVELS,
    bins: int = BINS,
    adaptive: bool = False,
) -> Factors:
    """levels: as `possible` has them for so many slices. adaptive: with what the self-check said of each."""
    if not all(torch.isfinite(image).all() for s in slices for image in (s.mean, s.std, s.truth)):
        raise ValueError("a calibration slice holds values that are not finite: std takes 2 samples or more")
    start = Factors(float(acceleration), len(slices), (), *_slope(slices) if adaptive else ())
    if adaptive:
        slices = [replace(s, std=s.std * start.adaptation(s.surprise)) for s in slices]
    shaping, others = slices[::SHAPING], [s for k, s in enumerate(slices) if k % SHAPING]
    columns = []
    for k in range(bins + 1):
        scores = [_scores(s, 1.0)[_bins(s.mean, s.std, bins) == k] for s in shaping]
        known = [s for s in scores if len(s)] or [_scores(s, 1.0).flatten() for s in shaping]
        columns.append(quantiles(known, levels, to_come=0))
    rows, heads = [], [foreground(s.mean) for s in others]
    for level, row in zip(levels, zip(*columns, strict=True), strict=True):
        factors = torch.tensor(row, dtype=torch.float64)
        again = [_scores(s, factors[_bins(s.mean, s.std, bins)]) for s in others]
        head = _decided([score[where] for score, where in zip(again, heads, strict=True)], level, "head")
        air = _decided([score[~where] for score, where in zip(again, heads, strict=True)], level, "air")
        rows.append(tuple((factors * factors.new_tensor([*[head] * bins, air])).tolist()))
    return replace(start, factors=tuple(rows))


def _slope(slices: Sequence[Slice]) -> tuple[float, float, float]:
    """By least squares over slices, log(error^2 / std^2) of the foreground against surprise, never falling; and the
    mean and the lowest surprise."""
    surprise = np.array([s.surprise for s in slices])
    ratio = []
    for s in slices:
        head = foreground(s.mean)
        error, std = (v[head].double().square().sum() for v in (s.truth - s.mean, s.std))
        ratio.append(float(error / std))
    usual, spread = float(surprise.mean()), float(surprise.var())
    slope = float(np.mean((surprise - usual) * np.log(np.array(ratio)))) / spread if spread > 1e-12 else 0.0
    return max(slope, 0.0), usual, float(surprise.min())


def _decided(scores: Sequence[Tensor], level: float, what: str) -> float:
    """By what factors are to be multiplied for a level; 1 if no slice has such pixels."""
    known = [score for score in scores if len(score)]
    if known and len(known) < (least := deciding(level)):
        raise ValueError(
            f"a level of {level:g} takes {least} slices that decide and have {what}, there are {len(known)} (of "
            f"{len(scores)}): add slices, or ask for lower levels, as --set 'levels=[0.5, 0.8]', with the same --out"
        )
    return quantiles(known, [level])[0] if known else 1.0


def _scores(s: Slice, factor: Tensor | float) -> Tensor:
    """|truth - mean| / (factor std), 0 where both are 0."""
    error, reach = (s.truth - s.mean).abs().double(), factor * s.std.double()
    return torch.where(error > 0, error / reach.clamp(min=1e-12), 0.0)


def quantiles(scores: Sequence[Tensor], levels: Sequence[float], to_come: int = 1) -> list[float]:
    """The smallest q with sum_k F_k(q) / (n + 1) >= level: F_k, the distribution of slice k's scores; n slices, and one
    to come. For a level that n slices cannot promise, the highest score.
    """
    n = len(scores) + to_come
    values = torch.cat([s.double() for s in scores])
    weight = torch.cat([s.new_full((len(s),), 1 / (len(s) * n), dtype=torch.float64) for s in scores])
    values, order = values.sort()
    reached = weight[order].cumsum(0)
    places = torch.searchsorted(reached, torch.tensor(list(levels), dtype=torch.float64) - 1e-12)
    return values[places.clamp(max=len(values) - 1)].tolist()


def deciding(level: float) -> int:
    """How many slices have to decide: n of them can promise at most n / (n + 1)."""
    return math.ceil(level / (1 - level) - 1e-9)


def needed(level: float) -> int:
    """How many slices it takes, with those that shape."""
    return math.ceil(deciding(level) * SHAPING / (SHAPING - 1))


def possible(levels: Sequence[float], slices: int) -> tuple[float, ...]:
    """Those of the levels that so many slices can promise; at least one, or it is refused."""
    if not levels:
        raise ValueError("there are no levels to fit; expected some between 0 and 1, as levels = [0.5, 0.9]")
    kept = tuple(sorted(level for level in levels if needed(check(level)) <= slices))
    if not kept:
        lowest = min(levels)
        raise ValueError(f"a level of {lowest:g} takes {needed(lowest)} calibration slices, there are {slices}")
    return kept


def check(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"the level is {level}, expected a value between 0 and 1, as 0.9")
    return level


def _bins(mean: Tensor, std: Tensor, bins: int) -> Tensor:
    """The bin of every pixel, by the rank of its std in the slice's foreground; the background's is last.  (H, W)"""
    inside = foreground(mean)
    edges = torch.linspace(0, 1, bins + 1, dtype=std.dtype, device=std.device)[1:-1]
    edges = std[inside].quantile(edges) if inside.any() else edges
    return torch.where(inside, torch.bucketize(std, edges), bins)

"""Does the model understand this scan? Asked of the scan itself: no truth is needed, because the model lives where the
scan was measured.

Some of the measured lines are hidden, their posterior is drawn from the rest, and what was measured there is compared
with it: z = (y - mean) / std of every hidden entry of k-space, |z|^2 being about 1 on average if the model is right
(std is averaged over neighbours, which are not quite alike). In turn, each measured line is hidden once. Numbers say
what went wrong where:

    overall    log of the mean of |z|^2 over all hidden entries: a scan unlike those the model knows
    detail     the same between 1/8 and 1/4 cycles a pixel, where anatomy has texture and a phantom has none
    shape      log of the mean of |z|^2 minus the mean of its log: wrong by different amounts in different places,
               however surprised the model is on the whole
    line       how far the log of the mean of |z|^2 of a line (of one coil) lies from that of the others, up or down: a
               line that is corrupt
    energy     how far the log of |y|^2 of a line lies from what was expected: a line that was lost, or is another
    point      log of the worst |z|^2: a spike

These are of the lines outside the fully sampled centre. All but `detail` there are of those inside as well, called
`centre_overall` and so on, and all but `line` of the middle one, `middle_overall`: models are trained with all of the
centre, so that what is usual there is another thing, and without the middle line it is another again.

No model is perfect, so that they are compared not with theory but with what they are on slices the model was made for.
A sinogram has no centre and no detail, a mask of single points no lines.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from mcddpm import conformal, masks
from mcddpm.datasets import Measurement
from mcddpm.denoiser import Denoiser
from mcddpm.feed import seed_of
from mcddpm.operators import Radon, Sense, kind_of, modality
from mcddpm.reconstruct import MEMORY, SAMPLER, reconstruct

BOTH_WAYS = ("overall", "detail")  # too well predicted is unusual as well; in the centre, too
TINY = 1e-12
DETAIL = (1 / 8, 1 / 4)  # cycles a pixel
FOLDS, SAMPLES, STEPS = 4, 8, 6
ALARM = 0.05  # a scan with a lower p-value is one that the model does not understand


class How(NamedTuple):
    """How lines are hidden, and drawn again."""

    folds: int
    samples: int
    steps: int
    sampler: str


class Unchecked(ValueError):
    """A scan of which nothing can be hidden, or of which it is not known what is usual."""


@dataclass(frozen=True)
class Surprise:
    """statistics: name -> number; image: (H, W), what the hidden entries' z look like in the image; calls: all
    that it took."""

    statistics: dict[str, float]
    image: Tensor
    calls: int


def surprise(
    model: Denoiser,
    measurement: Measurement,
    *,
    folds: int = FOLDS,
    samples: int = SAMPLES,
    steps: int = STEPS,
    sampler: str = SAMPLER,
    seed: int = 0,
    memory: float | str = MEMORY,
) -> Surprise:
    """Hide each measured line once, in `folds` turns, and see how well the model tells what is there."""
    if samples < 2:
        raise ValueError(f"a self-check with {samples} sample has no std to compare with; expected 2 or more")
    A, mask = measurement.operator, lines_of(measurement.mask)
    parts = {"": mask} if isinstance(A, Radon) else regions(mask)
    outer = parts[""]
    y, calls = measurement.y_m, 0
    mean, variance = torch.zeros_like(y), torch.ones_like(y.abs())  # of what was hidden
    for k, hide in enumerate(hidden(outer, mask & ~outer, folds, seed)):
        kept = mask & ~hide
        rest = replace(measurement, y_m=y.masked_fill(~kept, 0), mask=kept, from_numpy=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is unlike in the scan was told when it was reconstructed
            recon = reconstruct(
                model, rest, samples=samples, steps=steps, sampler=sampler, seed=seed_of(seed, 9, k), memory=memory
            )
        drawn = (A.to(recon.samples.device) if isinstance(A, Sense) else A)(recon.samples * measurement.scale)
        mean = torch.where(hide, drawn.mean(0), mean)
        variance = torch.where(hide, variance_of(drawn, ~kept), variance)
        calls += recon.calls * samples
    z = ((y - mean) / ((1 + 1 / samples) * variance).sqrt().clamp(min=TINY)).masked_fill(~mask, 0)
    expected = energy_of(mean, variance, samples)
    found: dict[str, float] = {}
    for name, where in parts.items():
        if where.any():
            found |= {name + key: value for key, value in statistics_of(z, y, expected, where).items()}
    if len(parts) > 1 and (outer & detail(z)).any():
        found["detail"] = log_mean(z, outer & detail(z))
    return Surprise(found, A.pinv(z).abs(), calls)


def statistics_of(z: Tensor, y: Tensor, expected: Tensor, where: Tensor) -> dict[str, float]:
    """Of the z of hidden entries, what was measured there and E|y|^2 of it (data). Lines are columns, coil by coil;
    views of a sinogram lie like that, too."""
    lines_only, where = where.ndim == 1, where.expand(z.shape)
    squares = z.abs().square().double()
    inside, lines = squares[where].clamp(min=TINY), where.any(-2)

    def of_lines(values: Tensor) -> Tensor:
        return (values.double() * where).sum(-2)

    overall = log_mean(z, where)
    found = {"overall": overall, "shape": overall - float(inside.log().mean()), "point": float(inside.max().log())}
    if lines_only and int(lines.sum(-1).max()) > 1:
        logs = (of_lines(squares) / where.sum(-2).clamp(min=1)).clamp(min=TINY).log()
        usual = logs.masked_fill(~lines, torch.nan).nanmedian(-1, keepdim=True).values
        found["line"] = float((logs - usual)[lines].abs().max())
    if lines_only:
        ratio = of_lines(y.abs().square()).clamp(min=TINY) / of_lines(expected).clamp(min=TINY)
        found["energy"] = float(ratio[lines].log().abs().max())
    return found


def energy_of(mean: Tensor, variance: Tensor, samples: int) -> Tensor:
    """E|y|^2, by the mean and the variance of so many samples, whose |mean|^2 is too large by variance / N."""
    return mean.abs().square() + (1 - 1 / samples) * variance


def log_mean(z: Tensor, where: Tensor) -> float:
    """Of |z|^2, where it was hidden."""
    return float(z.abs().square().double()[where.expand(z.shape)].mean().clamp(min=TINY).log())


def regions(mask: Tensor) -> dict[str, Tensor]:
    """What is looked at apart: the measured lines outside the centre, those inside, and the middle one."""
    inner, middle = centre(mask), torch.zeros_like(mask)
    if mask.ndim == 1:
        middle[len(mask) // 2] = inner[len(mask) // 2]
    return {"": mask & ~inner, "centre_": inner & ~middle, "middle_": middle}


def detail(like: Tensor) -> Tensor:
    """Where in centred k-space the band of DETAIL lies.  (H, W)"""
    i, j = ((torch.arange(n, device=like.device) - n // 2) / n for n in like.shape[-2:])
    radius = torch.hypot(i[:, None], j[None])
    return (DETAIL[0] <= radius) & (radius < DETAIL[1])


def lines_of(mask: Tensor) -> Tensor:
    """The mask of the columns (W,), where it is made of whole ones, however it was written; otherwise of the plane."""
    plane = mask.reshape(-1, *mask.shape[-2:])[0] if mask.ndim > 1 else mask
    return plane[0] if plane.ndim == 2 and bool((plane == plane[:1]).all()) else plane


def hidden(outer: Tensor, inner: Tensor, folds: int, seed: int) -> list[Tensor]:
    """Masks of what is hidden in each turn: every line, or point of the plane, once; those outside the centre in random
    groups, those inside in turns, so that the columns beside one that is hidden are not."""
    if folds < 2:
        raise ValueError(f"a self-check in {folds} turn would hide all that was measured; expected 2 or more")
    places = outer.nonzero()
    if len(places) < folds:
        raise Unchecked(
            f"{len(places)} lines are measured outside the centre: too few to hide in {folds} turns for a self-check"
        )
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(seed_of(seed, 8)))
    middle = inner.nonzero()
    turns = []
    for k, part in enumerate(order.tensor_split(folds)):
        hide = torch.zeros_like(outer)
        hide[tuple(places[part].T)] = True
        hide[tuple(middle[middle.sum(1) % folds == k].T)] = True
        turns.append(hide)
    return turns


def centre(mask: Tensor) -> Tensor:
    """The fully sampled centre: the run of columns that the middle one is in, or the largest disc."""
    middle = [n // 2 for n in mask.shape]
    axes = [torch.arange(n, device=mask.device) - m for n, m in zip(mask.shape, middle, strict=True)]
    if mask.ndim == 1:
        missing = axes[0][~mask]
        below, above = missing[missing <= 0], missing[missing >= 0]
        after_below = axes[0] > below.max() if len(below) else torch.ones_like(mask)
        return after_below & (axes[0] < above.min()) if len(above) else after_below
    distance = torch.hypot(*torch.meshgrid(*map(Tensor.float, axes), indexing="ij"))
    missing = distance[~mask]
    return distance < (missing.min() if len(missing) else math.inf)


def variance_of(drawn: Tensor, where: Tensor) -> Tensor:
    """Of every entry of k-space that was not given, E|y - mean|^2: (N, data) -> (data).

    A few samples know a variance only roughly, so it is averaged over 5 x 3 neighbours. In logarithms, because k-space
    falls by orders of magnitude: a variance of k degrees of freedom is there too small by log(k) - digamma(k).
    """
    n = len(drawn)
    freedom = (n - 1) * (1.0 if drawn.is_complex() else 0.5)
    raw = ((drawn - drawn.mean(0)).abs().square().sum(0) / (n - 1)).clamp(min=1e-30)
    valid = where.expand(raw.shape).to(raw.dtype)

    def total(v: Tensor) -> Tensor:
        stack = v.reshape(-1, 1, *v.shape[-2:])
        return functional.avg_pool2d(stack, (5, 3), 1, (2, 1), divisor_override=1).reshape(v.shape)

    shrunk = math.log(freedom) - float(torch.digamma(torch.tensor(freedom, dtype=torch.float64)))
    return (total(raw.log() * valid) / total(valid).clamp(min=1) + shrunk).exp()


# --- what is usual --------------------------------------------------------------------------------------------------


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
    found = np.where(both_ways, np.maximum(above, below), above)
    return np.where(np.isfinite(found), found, np.inf)


@dataclass(frozen=True)
class SelfCheck:
    """What is usual for a model (the sha256 of its weights), and how it was found."""

    version: int
    model: str
    data: str
    date: str
    operator: str
    sampler: str
    folds: int
    samples: int
    steps: int
    usual: tuple[Usual, ...]

    @property
    def how(self) -> How:
        return How(self.folds, self.samples, self.steps, self.sampler)

    def at(self, acceleration: float) -> Usual:
        found = min(self.usual, key=lambda u: abs(math.log(u.acceleration / acceleration)))
        if not 0.7 < found.acceleration / acceleration < 1.4:
            known, asked = f"{found.acceleration:g}x", f"{acceleration:.1f}x"
            warnings.warn(f"the scan is under-sampled {asked}, what is usual was found at {known}", stacklevel=2)
        return found


def of_card(card: dict[str, Any]) -> SelfCheck:
    return conformal.carried(SelfCheck, card, "self_check")


@dataclass(frozen=True)
class Checked:
    """p: how often a slice like those of calibration is as unusual; score: how far off its most unusual statistic is,
    and reason, which one; overall: what intervals follow."""

    p: float
    score: float
    reason: str
    surprise: Surprise

    @property
    def overall(self) -> float:
        return self.surprise.statistics["overall"]


def check(model: Denoiser, measurement: Measurement, *, seed: int = 0, memory: float | str = MEMORY) -> Checked:
    """Is a scan like those that the model was calibrated on?"""
    known = of_card(model.card)
    if (kind := kind_of(measurement.operator)) != known.operator:
        usual, own = modality(known.operator), modality(kind)
        raise Unchecked(f"not self-checked: what is usual is known of scans by {usual}, this one is by {own}")
    found = surprise(model, measurement, **known.how._asdict(), seed=seed, memory=memory)
    at, statistics = known.at(masks.acceleration(measurement.mask)), found.statistics
    return Checked(at.p_value(statistics), at.score(statistics), at.reason(statistics), found)


def enough() -> int:
    """How many slices it takes to raise an alarm: the smallest p-value of a scan is 2 / (slices + 1)."""
    return math.ceil(2 / ALARM - 1e-9) - 1


def of_scan(p_values: Sequence[float]) -> float:
    """One p-value of a scan from those of its slices, however they depend on each other: the k-th of n, times n / k; k
    lies in the middle, so that one odd slice does not condemn a scan and one good one does not save it."""
    n = len(p_values)
    k = (n + 1) // 2
    return min(1.0, sorted(p_values)[k - 1] * (n / k))  # twice a p-value is exact, where n / k is 2

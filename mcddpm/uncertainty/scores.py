"""Are the error bars right? Samples (N, H, W) of a posterior against the truth (H, W).

For a true posterior the truth is one more sample: exchangeable with the others, pixel by pixel and as a whole. All
measures here are consequences of that, and none needs to know the posterior. `where` (H, W) says which pixels count;
all do unless told. Images of several slices may be stacked along H: a measure then pools them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

LEVELS = (0.5, 0.8, 0.9, 0.95)


def percent(level: float) -> int:
    """A level as rows and tables name it."""
    return round(100 * level)


@dataclass(frozen=True)
class Scores:
    """One slice in numbers. coverage: of `normal_interval`, quantile: of `quantile_interval`, by level in percent.
    width_90, crps and energy are in units of the image; law: the squared error of one sample by what it is for a true
    posterior; rank_p: the p-value of its rank histogram; variance, and the squared error of the mean: what spread and
    law of several slices together are made of (`pooled`)."""

    coverage: dict[int, float]
    width_90: float
    crps: float
    energy: float
    spread: float
    correlation: float
    sparsification: float
    law: float
    rank_p: float
    variance: float
    squared_error: float
    quantile: dict[int, float] = field(default_factory=dict)  # of few samples there are none


def scores(samples: Tensor, truth: Tensor, where: Tensor | None = None) -> Scores:
    std, error = samples.std(0), samples.mean(0) - truth
    one, expected = sample_law(samples, truth, (1,), where)[1]
    possible = [v for v in LEVELS if (1 - v) / 2 * (len(samples) + 1) >= 1 - 1e-9]
    return Scores(
        coverage={percent(v): coverage(normal_interval(samples, v), truth, where) for v in LEVELS},
        quantile={percent(v): coverage(quantile_interval(samples, v), truth, where) for v in possible},
        width_90=width(normal_interval(samples, 0.9), where),
        crps=crps(samples, truth, where),
        energy=energy_score(samples, truth, where),
        spread=spread(samples, truth, where),
        correlation=rank_correlation(std, error, where),
        sparsification=sparsification_area(std, error, where),
        law=one / expected,
        rank_p=uniformity(ranks(samples, truth, where)),
        variance=expected / 2,
        squared_error=_energies(samples, truth, where)[1],
    )


def foreground(image: Tensor, part: float = 0.1) -> Tensor:
    """Pixels above a part of the slice's maximum: air is easy, and would flatter every number."""
    return image > part * image.amax((-2, -1), keepdim=True)


def even_foreground(samples: Tensor, truth: Tensor) -> Tensor:
    """The foreground of the mean of samples and truth alike. Chosen by the truth alone, pixels near the threshold would
    be those where the truth happens to be high, and a true posterior would look wrong there."""
    return foreground((samples.sum(0) + truth) / (len(samples) + 1))


# --- intervals ------------------------------------------------------------------------------------------------------


def normal_interval(samples: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """mean -+ z std, which covers one more Gaussian draw with probability `level`, for any number N of samples.

    The mean has an error of its own and so has std: z = t_{N-1} sqrt(1 + 1/N), Student's quantile, 1.96 for N large.
    """
    _check(samples, level)
    half = z_of(level, len(samples)) * samples.std(0)
    mean = samples.mean(0)
    return mean - half, mean + half


def z_of(level: float, count: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + level) / 2, count - 1)) * (1 + 1 / count) ** 0.5


def quantile_interval(samples: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """Between order statistics: N samples and the truth make N + 1 gaps that it falls into alike, so the k-th smallest
    and the k-th largest sample hold it with probability 1 - 2k/(N + 1). Between two k, linear."""
    _check(samples, level)
    n, k = len(samples), (1 - level) / 2 * (len(samples) + 1)
    if k < 1 - 1e-9:
        needed = int(np.ceil(2 / (1 - level) - 1 - 1e-9))
        raise ValueError(f"{n} samples have no {100 * level:g} % interval between them: it takes {needed}")
    ordered = samples.sort(0).values
    low, rest = int(k + 1e-9), k - int(k + 1e-9)
    above = min(low + 1, n)
    lower = ordered[low - 1] * (1 - rest) + ordered[above - 1] * rest
    upper = ordered[n - low] * (1 - rest) + ordered[n - above] * rest
    return lower, upper


def coverage(interval: tuple[Tensor, Tensor], truth: Tensor, where: Tensor | None = None) -> float:
    """The part of the pixels whose truth lies inside."""
    lower, upper = interval
    return float(_pixels((lower <= truth) & (truth <= upper), where).double().mean())


def width(interval: tuple[Tensor, Tensor], where: Tensor | None = None) -> float:
    return float(_pixels(interval[1] - interval[0], where).double().mean())


# --- proper scores --------------------------------------------------------------------------------------------------


def crps(samples: Tensor, truth: Tensor, where: Tensor | None = None) -> float:
    """Continuous ranked probability score, fair for N samples: E|X - x| - 1/2 E|X - X'|, a mean over pixels.

    Over pairs, sum_{i<j} |x_i - x_j| = sum_k (2k - N + 1) x_(k) of ordered samples, k from 0.
    """
    n = _check(samples)
    drawn, x = (_pixels(v, where).double() for v in (samples, truth))
    factor = 2 * torch.arange(n, dtype=torch.float64, device=drawn.device) - n + 1
    pairs = (factor[:, None] * drawn.sort(0).values).sum(0) / (n * (n - 1))
    return float(((drawn - x).abs().mean(0) - pairs).mean())


def energy_score(samples: Tensor, truth: Tensor, where: Tensor | None = None) -> float:
    """E|X - x| - 1/2 E|X - X'| in the norm of the whole image, fair: the score that sees correlations too. Divided by
    the square root of the number of pixels, which gives it the units of one."""
    n = _check(samples)
    drawn, x = (_pixels(v, where).double() for v in (samples, truth))
    pairs = torch.cdist(drawn, drawn).sum() / (2 * n * (n - 1))
    return float(((drawn - x).norm(dim=1).mean() - pairs) / drawn.shape[1] ** 0.5)


# --- ranks ----------------------------------------------------------------------------------------------------------


def ranks(samples: Tensor, truth: Tensor, where: Tensor | None = None, seed: int = 0) -> Tensor:
    """How often each member of (truth, sample 1, ..., sample N) is the smallest, the second, ... of them: a count
    (N + 1, N + 1) of member and rank over pixels. Ties are broken by lot. Row 0 is the rank histogram."""
    _check(samples)
    members = torch.cat([_pixels(truth, where)[None], _pixels(samples, where)]).double().cpu()
    lot = torch.rand(members.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    mixed = lot.argsort(0)  # a random order, which a stable sort keeps where values are equal
    order = mixed.gather(0, members.gather(0, mixed).argsort(dim=0, stable=True))
    n = len(members)
    place = order * n + torch.arange(n)[:, None]
    return torch.bincount(place.flatten(), minlength=n * n).reshape(n, n)


def uniformity(counts: Tensor, draws: int = 1999, seed: int = 0) -> float:
    """p-value for "the truth is one more sample", from the ranks of one slice or of several (slices, N + 1, N + 1).

    The statistic is chi-square of the pooled histogram; what it would be by chance is read from the samples, each of
    which has a histogram too when it plays the truth. In every slice one of the N + 1 is drawn: neighbouring pixels may
    depend on each other as they like, and the test is still exact, for slices that are independent of each other.
    Neighbouring slices of one head are not: pooled, it rejects too often. One slice alone has p >= 1 / (N + 1).
    """
    counts = (counts[None] if counts.ndim == 2 else counts).long()
    slices, n = counts.shape[:2]
    result = counts[:, 0].sum(0).square().sum()  # chi-square, up to constants; in whole numbers, so that ties are ties
    if slices == 1:
        return float((counts[0].square().sum(1) >= result).double().mean())
    chosen = torch.randint(n, (draws, slices), generator=torch.Generator().manual_seed(seed))
    by_chance = counts[torch.arange(slices), chosen].sum(1).square().sum(1)
    return float((1 + (by_chance >= result).sum()) / (1 + draws))


# --- spread and skill -----------------------------------------------------------------------------------------------


def spread(samples: Tensor, truth: Tensor, where: Tensor | None = None) -> float:
    """The error that std expects of the mean, by the error it has, both rms: below 1, the error bars are too short."""
    expected, result = _energies(samples, truth, where)
    return (expected / result) ** 0.5


def sample_law(
    samples: Tensor, truth: Tensor, counts: Sequence[int], where: Tensor | None = None
) -> dict[int, tuple[float, float]]:
    """K -> the squared error of a mean of K samples, and what it is for a true posterior, (1 + 1/K) times its variance.

    Over all subsets of K of the N samples the squared error is |mean_N - x|^2 + (1/K - 1/N) variance.
    """
    n = _check(samples)
    expected, result = _energies(samples, truth, where)
    variance = expected / (1 + 1 / n)
    return {k: (result + (1 / k - 1 / n) * variance, (1 + 1 / k) * variance) for k in counts}


def pooled(variance: float, squared_error: float, samples: int) -> tuple[float, float]:
    """spread and law of slices whose variance and squared error of the mean of so many samples were averaged."""
    one, expected = squared_error + (1 - 1 / samples) * variance, 2 * variance
    return ((1 + 1 / samples) * variance / squared_error) ** 0.5, one / expected


def _energies(samples: Tensor, truth: Tensor, where: Tensor | None) -> tuple[float, float]:
    """(1 + 1/N) variance, and the squared error of the mean; means over pixels."""
    n = _check(samples)
    variance = _pixels(samples.double().var(0), where).mean()
    error = _pixels((samples.double().mean(0) - truth).square(), where).mean()
    return float((1 + 1 / n) * variance), float(error)


def spread_skill(std: Tensor, error: Tensor, bins: int = 12, where: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The rms of std and of the error, in bins of equally many pixels ordered by std: the diagonal, if std is right."""
    s, e = (_pixels(v, where).double() for v in (std, error))
    order = s.argsort()
    parts = [(s[part], e[part]) for part in order.tensor_split(bins) if len(part)]
    predicted, result = (torch.stack([v.square().mean().sqrt() for v in side]) for side in zip(*parts, strict=True))
    return predicted, result


def rank_correlation(std: Tensor, error: Tensor, where: Tensor | None = None) -> float:
    """Spearman's, of std and |error|: does std know where the errors are?"""
    a, b = (_ranked(_pixels(v, where).double()) for v in (std, error.abs()))
    a, b = a - a.mean(), b - b.mean()
    return float((a @ b) / (a.norm() * b.norm()).clamp(min=1e-300))


def _ranked(values: Tensor) -> Tensor:
    """Ranks from 0, the mean of them for equal values."""
    _, place, counts = values.unique(return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    return (last - (counts + 1) / 2)[place]


def sparsification(
    std: Tensor, error: Tensor, where: Tensor | None = None, points: int = 20
) -> tuple[Tensor, Tensor, Tensor]:
    """The rms error of the pixels that stay when a part is left out: the most uncertain first, and, as the best that
    could be, the worst first. Returns the parts, both curves by the rms of all, from 0 to 95 %."""
    s, e = (_pixels(v, where).double() for v in (std, error))
    parts = torch.linspace(0, 0.95, points)
    whole = e.square().mean().sqrt()
    curves = []
    for order in (s.argsort(), e.abs().argsort()):
        mean = e[order].square().cumsum(0) / torch.arange(1, len(e) + 1, device=e.device)
        kept = ((1 - parts) * len(e)).round().long().clamp(min=1) - 1
        curves.append((mean[kept].sqrt() / whole).cpu())
    return parts, curves[0], curves[1]


def sparsification_area(std: Tensor, error: Tensor, where: Tensor | None = None) -> float:
    """Between the two curves: 0, if std orders pixels as the errors do; 1 minus the best curve's, if by chance."""
    parts, curve, best = sparsification(std, error, where)
    return float(torch.trapezoid(curve - best, parts.double()))


# --- over slices and people -----------------------------------------------------------------------------------------


def bootstrap(
    values: Sequence[float] | np.ndarray,
    groups: Sequence[object] | None = None,
    *,
    statistic: Callable[[np.ndarray], float] = np.mean,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """An interval for a statistic of values, one a slice; whole groups, as people, are drawn where they are given."""
    result = np.asarray(values)
    names = np.arange(len(result)) if groups is None else np.array([str(group) for group in groups])
    labels = np.unique(names, return_inverse=True)[1]
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    if len(members) < 2:
        raise ValueError(f"a bootstrap over {len(members)} group has no spread; expected 2 or more")
    rng = np.random.default_rng(seed)
    drawn = [
        statistic(result[np.concatenate([members[k] for k in rng.integers(len(members), size=len(members))])])
        for _ in range(draws)
    ]
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _pixels(values: Tensor, where: Tensor | None) -> Tensor:
    """(..., H, W) -> (..., pixels that count)"""
    return values.flatten(-2) if where is None else values[..., where]


def _check(samples: Tensor, level: float = 0.5) -> int:
    if len(samples) < 2:
        raise ValueError(f"there is {len(samples)} sample, expected 2 or more: one says nothing of its spread")
    if not 0 < level < 1:
        raise ValueError(f"the level is {level}, expected a value between 0 and 1, as 0.9")
    return len(samples)

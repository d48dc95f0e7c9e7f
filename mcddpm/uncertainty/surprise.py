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
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from mcddpm.diffusion.samplers import SamplerName
from mcddpm.models.denoiser import Denoiser
from mcddpm.physics.measurement import Measurement
from mcddpm.reconstruction.plan import DrawPlan
from mcddpm.reconstruction.sample import MEMORY, noise_for, reconstruct
from mcddpm.system.seeds import seed_of

TINY = 1e-12
DETAIL = (1 / 8, 1 / 4)  # cycles a pixel


class Unchecked(ValueError):
    """A scan of which nothing can be hidden, or of which it is not known what is usual."""


@dataclass(frozen=True)
class HidePlan:
    """How lines are hidden, and drawn again: in so many turns, with so many samples."""

    folds: int = 4
    samples: int = 8
    steps: int = 6
    sampler: SamplerName = "dpmpp_2m_sde"


@dataclass(frozen=True)
class Surprise:
    """statistics: name -> number; image: (H, W), what the hidden entries' z look like in the image; calls: all
    that it took."""

    statistics: dict[str, float]
    image: Tensor
    calls: int


def surprise(
    model: Denoiser, measurement: Measurement, plan: HidePlan, *, seed: int = 0, memory: float | str = MEMORY
) -> Surprise:
    """Hide each measured line once, in the plan's turns, and see how well the model tells what is there."""
    if plan.samples < 2:
        raise ValueError("a self-check with 1 sample has no std to compare with; expected 2 or more")
    A, mask = measurement.operator, lines_of(measurement.mask)
    parts = {"": mask} if A.kind == "radon" else regions(mask)
    outer = parts[""]
    y, calls = measurement.y_m, 0
    noise = noise_for(model, measurement)[0].square() * (2 if y.is_complex() else 1)  # of a hidden entry itself
    mean, variance = torch.zeros_like(y), torch.ones_like(y.abs())  # of what was hidden
    for k, hide in enumerate(hidden(outer, mask & ~outer, plan.folds, seed)):
        kept = mask & ~hide
        rest = replace(measurement, y_m=y.masked_fill(~kept, 0), mask=kept, from_numpy=False)
        draw = DrawPlan(plan.samples, plan.sampler, plan.steps, seed=seed_of(seed, 9, k))
        recon = reconstruct(model, rest, draw, memory=memory)
        drawn = A.to(recon.samples.device)(recon.samples * measurement.scale)
        mean = torch.where(hide, drawn.mean(0), mean)
        variance = torch.where(hide, variance_of(drawn, ~kept), variance)
        calls += recon.calls * plan.samples
    std = ((1 + 1 / plan.samples) * variance + noise).sqrt()
    z = ((y - mean) / std.clamp(min=TINY)).masked_fill(~mask, 0)
    expected = energy_of(mean, variance, plan.samples) + noise
    result: dict[str, float] = {}
    for name, where in parts.items():
        if where.any():
            result |= {name + key: value for key, value in statistics_of(z, y, expected, where).items()}
    if len(parts) > 1 and (outer & detail(z)).any():
        result["detail"] = log_mean(z, outer & detail(z))
    return Surprise(result, A.pinv(z).abs(), calls)


def statistics_of(z: Tensor, y: Tensor, expected: Tensor, where: Tensor) -> dict[str, float]:
    """Of the z of hidden entries, what was measured there and E|y|^2 of it (data). Lines are columns, coil by coil;
    views of a sinogram lie like that, too."""
    lines_only, where = where.ndim == 1, where.expand(z.shape)
    squares = z.abs().square().double()
    inside, lines = squares[where].clamp(min=TINY), where.any(-2)

    def of_lines(values: Tensor) -> Tensor:
        return (values.double() * where).sum(-2)

    overall = log_mean(z, where)
    result = {"overall": overall, "shape": overall - float(inside.log().mean()), "point": float(inside.max().log())}
    if lines_only and int(lines.sum(-1).max()) > 1:
        logs = (of_lines(squares) / where.sum(-2).clamp(min=1)).clamp(min=TINY).log()
        usual = logs.masked_fill(~lines, torch.nan).nanmedian(-1, keepdim=True).values
        result["line"] = float((logs - usual)[lines].abs().max())
    if lines_only:
        ratio = of_lines(y.abs().square()).clamp(min=TINY) / of_lines(expected).clamp(min=TINY)
        result["energy"] = float(ratio[lines].log().abs().max())
    return result


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

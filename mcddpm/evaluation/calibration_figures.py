"""Calibration over all slices of an evaluation, in one figure: reliability, ranks, spread and skill, sparsification,
and coverage slice by slice. All in the foreground, on the pixels that rows count, each of them counting alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mcddpm import plots
from mcddpm.evaluation import calibrated
from mcddpm.evaluation.study import Pair, Study
from mcddpm.plots import Plot
from mcddpm.uncertainty import scores
from mcddpm.uncertainty.calibration import Calibration
from mcddpm.uncertainty.kept_slices import slice_of

LEVELS = tuple(round(0.05 * k, 2) for k in range(1, 20))


@dataclass(frozen=True)
class Pixels:
    """The foreground of a slice: its std, the error of its mean, and by how much each level stretches std, for each way
    of calibration."""

    std: Tensor
    error: Tensor
    stretch: dict[str, dict[float, Tensor]]
    ranks: Tensor
    samples: int

    def coverage(self, level: float, way: str) -> float:
        factor = self.stretch[way][level] if way else scores.z_of(level, self.samples)
        return float((self.error.abs() <= factor * self.std).double().mean())


def draw(path: Path, study: Study, done: Sequence[Pair], label: str) -> Path:
    """Of the slices of one label, a line for every acceleration."""
    known = {method: calibrated.calibration_of(method) for _, method in done}
    by: dict[str, list[Pixels]] = {}
    for case, method in done:
        by.setdefault(f"{case.acceleration:g}x", []).append(_pixels(study, (case, method), known[method]))
    reliable, per_slice = {}, {}
    for name, slices in by.items():
        for way in ("", *(way for way in slices[0].stretch if all(way in s.stretch for s in slices))):
            suffix = f", {way}" if way else ""
            levels = [v for v in LEVELS if not way or v in slices[0].stretch[way]]
            pixels = [len(s.std) for s in slices]
            covered = {v: [s.coverage(v, way) for s in slices] for v in levels}
            reliable[name + suffix] = [(v, float(np.average(covered[v], weights=pixels))) for v in levels]
            if 0.9 in levels:
                per_slice[name + suffix] = [(float(k), value) for k, value in enumerate(covered[0.9])]
    off = {name: [(v, 100 * (covered - v)) for v, covered in points] for name, points in reliable.items()}
    even = 1 / (slices[0].samples + 1)
    first = [
        Plot("intervals", "level", "coverage", reliable, level="diagonal"),
        Plot("coverage of 90 % intervals, slice by slice", "slice, in order", "coverage", per_slice, level=0.9),
        Plot(
            "rank of the truth among samples (p: slices as if independent)",
            "rank",
            "part of the pixels",
            _ranks(by),
            even,
            bars=True,
        ),
    ]
    second = [
        Plot("spread and skill", "rms of std in a bin", "rms error there", _spread_skill(by), level="diagonal"),
        Plot("leaving out the most uncertain pixels", "part left out", "rms error, relative", _sparse(by)),
        Plot("intervals, off by", "level", "coverage - level, points", off, level=0.0),
    ]
    message = f"{label}, protocol {done[0][0].protocol}: {len(slices)} slices at each acceleration, foreground"
    plots.plots(path, [first, second], message)
    return path


def _pixels(study: Study, pair: Pair, calibration: Calibration | None) -> Pixels:
    piece = study.piece(*pair)
    scaled = slice_of(piece)  # so that slices in other units count alike
    ranks, where = torch.from_numpy(piece["ranks"]), calibrated.even_foreground(piece)
    check = calibrated.check_of(study, *pair)
    stretch: dict[str, dict[float, Tensor]] = {}
    known = calibration.intervals if calibration else None
    for way, surprise in (("calibrated", None), ("with self-check", check.overall if check else None)):
        if known is not None and (way == "calibrated" or (surprise is not None and known.adaptive)):
            levels = [v for v in LEVELS if v <= known.levels[-1]]
            stretch[way] = {v: calibrated.stretch_of(piece, known, v, surprise)[where] for v in levels}
    return Pixels(scaled.std[where], (scaled.mean - scaled.truth)[where], stretch, ranks, len(ranks) - 1)


def _ranks(by: dict[str, list[Pixels]]) -> dict[str, list[tuple[float, float]]]:
    result = {}
    for name, slices in by.items():
        counts = torch.stack([s.ranks for s in slices])
        pooled = counts[:, 0].sum(0).double()
        p = scores.uniformity(counts)
        result[f"{name}, p = {p:.3f}"] = [(float(k), float(v)) for k, v in enumerate(pooled / pooled.sum())]
    return result


def _spread_skill(by: dict[str, list[Pixels]]) -> dict[str, list[tuple[float, float]]]:
    result = {}
    for name, slices in by.items():
        std, error = _pooled(slices)
        finite = (1 + 1 / slices[0].samples) ** 0.5  # the mean of so many samples has an error of its own
        predicted, met = scores.spread_skill(finite * std, error)
        result[name] = list(zip(predicted.tolist(), met.tolist(), strict=True))
    return result


def _sparse(by: dict[str, list[Pixels]]) -> dict[str, list[tuple[float, float]]]:
    result = {}
    for name, slices in by.items():
        parts, curve, best = scores.sparsification(*_pooled(slices))
        result[f"{name}, by std"] = list(zip(parts.tolist(), curve.tolist(), strict=True))
        result[f"{name}, by error: the best"] = list(zip(parts.tolist(), best.tolist(), strict=True))
    return result


def _pooled(slices: Sequence[Pixels]) -> tuple[Tensor, Tensor]:
    """All pixels as one image of one row."""
    return torch.cat([s.std for s in slices])[None], torch.cat([s.error for s in slices])[None]

"""The paper's figures of an evaluation: `mcddpm figures RUN`.

    RUN/figures/reconstruction-LABEL.png   truth and every method, a red box, enlarged, and the error in it
    RUN/figures/samples-LABEL.png          five samples, their mean and std
    RUN/figures/steps-LABEL.png            PSNR of the mean against steps
    RUN/figures/count-LABEL.png            PSNR of the mean against the number of samples
    RUN/figures/doubt-LABEL.png            std beside the error, and the calibrated interval's width
    RUN/figures/calibration-LABEL.png      over all slices: do intervals hold the truth as often as they say, and more

Steps and count need reconstructions beyond those of the evaluation, on SPREAD slices at every acceleration. They are
kept as its own are, and not made twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from mcddpm import metrics, plots
from mcddpm.data.cases import Case
from mcddpm.evaluation import calibrated, calibration_figures, methods
from mcddpm.evaluation.methods import Method
from mcddpm.evaluation.results import PSNR, SSIM
from mcddpm.evaluation.study import Evaluation, Pair, Study, chosen, row_of
from mcddpm.plots import Box, Panel
from mcddpm.system.progress import Progress, Quiet
from mcddpm.system.settings import from_dict
from mcddpm.system.workspace import Workspace

STEPS = {"ancestral": (50, 100, 250, 500, 1000)}  # with fewer, an ancestral mean is noise
FEW_STEPS = (1, 2, 4, 6, 8, 10, 20, 50)
EXTRA = "figures"  # where parts that only figures need are kept: no method's name has a slash
COUNT, FEW = 32, 5  # samples in the curve, and shown
SPREAD = 4  # slices that curves are a mean of, from one end of the volumes to the other
STD = 0.2  # the paper's range of std in its figure of reconstructions; 1 beside samples


def draw(run: Path, *, slice: int | None = None, device: str = "cpu", progress: Progress | None = None) -> list[Path]:
    """All figures of every label; of its middle slice, or of one that is asked for."""
    workspace = Workspace(run, "evaluation")
    for path in (run / "rows.csv", workspace.meaning_path):
        if not path.is_file():
            raise ValueError(f"{run} holds no finished evaluation: there is no {path.name} in it (mcddpm evaluate)")
    evaluation = from_dict(Evaluation, workspace.meaning()["beside"]["last"])
    study, wanted = Study(workspace, evaluation.seed, device, progress or Quiet()), chosen(evaluation)
    study.claim(evaluation, wanted, any_device=True)
    if not all(study.has(case, method) for case, method in wanted):
        raise ValueError(f"{run} is not complete: mcddpm evaluate it again")
    shown = [Shown(study, evaluation, rows, wanted) for rows in _by_label(wanted, slice)]
    missing = [(c, m) for s in shown for c, m in s.extra() if not study.has(c, m)]
    if missing:  # what is there can be drawn anywhere; more of it is made where that was
        study.claim(evaluation, wanted)
    for done, (case, method) in enumerate(missing):
        study.draw(case, method, keep=FEW)
        study.progress.at(done + 1, len(missing))
    return [path for s in shown for path in s.draw()]


def _by_label(wanted: list[Pair], slice: int | None) -> Iterator[list[Pair]]:
    """For every label, one slice: all that is done with it, at each acceleration."""
    for label in dict.fromkeys(case.label for case, _ in wanted):
        own = [(case, method) for case, method in wanted if case.label == label]
        places = [p for p in _places(own) if slice in (None, p[1])]
        if not places:
            known = sorted({case.slice for case, _ in own})
            raise ValueError(f"{label} has no slice {slice}; it has {', '.join(map(str, known))}")
        yield [(case, method) for case, method in own if _place(case) == places[len(places) // 2]]


def _place(case: Case) -> tuple[str, int]:
    return case.volume, case.slice


def _places(pairs: list[Pair]) -> list[tuple[str, int]]:
    return list(dict.fromkeys(_place(case) for case, _ in pairs))


class Shown:
    """One slice of one label, and what every method made of it."""

    def __init__(self, study: Study, evaluation: Evaluation, rows: list[Pair], wanted: list[Pair]) -> None:
        self.study, self.evaluation, self.rows = study, evaluation, rows
        self.cases = list(dict.fromkeys(case for case, _ in rows))
        self.label = self.cases[0].label
        name = methods.ours(method for _, method in rows)
        self.ours = {case: m for case, m in rows if m.name == name}
        self.everything = [(case, m) for case, m in wanted if case.label == self.label and m.name == name]
        places = _places(self.everything)
        spread = {places[(2 * k + 1) * len(places) // (2 * SPREAD)] for k in range(SPREAD)} if places else set()
        self.spread = [(case, m) for case, m in self.everything if _place(case) in spread]

    def extra(self) -> Iterator[Pair]:
        """What samples and curves need beyond the evaluation."""
        yield from ((case, with_many(ours)) for case, ours in dict([*self.ours.items(), *self.spread]).items())
        for case, ours in self.spread:
            yield from ((case, with_steps(ours, steps)) for steps in steps_of(ours))

    def draw(self) -> Iterator[Path]:
        yield self._reconstructions()
        if self.ours:
            yield self._samples()
            yield self._curve("steps", "steps a sample")
            yield self._curve("count", "samples in the mean")
            yield self._doubt()
            yield calibration_figures.draw(self._path("calibration"), self.study, self.everything, self.label)

    def _path(self, name: str) -> Path:
        safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in self.label)
        return self.study.workspace.folder / "figures" / f"{name}-{safe}.png"

    def _title(self) -> str:
        case = self.cases[0]
        return f"{self.label}, {case.volume}, slice {case.slice}, protocol {case.protocol}"

    def _reconstructions(self) -> Path:
        lines: list[list[Panel] | list[Panel | None]] = []
        for case in self.cases:
            own = [method for c, method in self.rows if c == case]
            shown = [method for method in own if method.name in self.evaluation.shown] or own
            parts = {method.name: self.study.piece(case, method) for method in shown}
            first = next(iter(parts.values()))
            target, scale = first["target"], float(first["scale"])
            box, top = box_of(target), float(target.max())
            images = [Panel(f"truth, {case.acceleration:g}x", target, 0, top, box=box, bar=False)]
            wrong = [Panel("", abs(part["mean"] - target), 0, None, "magma").zoomed(box) for part in parts.values()]
            worst = max(float(panel.image.max()) for panel in wrong)
            errors = [None, *(replace(panel, vmax=worst) for panel in wrong)]
            for name, part in parts.items():
                row = row_of(part)
                quality = f"{PSNR.text(PSNR.of(row))}, {SSIM.text(SSIM.of(row))}"
                images.append(Panel(f"{name}\n{quality}", part["mean"], 0, top, box=box, bar=False))
            insets = [panel.zoomed(box) for panel in images]
            if case in self.ours:
                std = self.study.piece(case, self.ours[case])["std"] * scale
                images.append(Panel(f"std, 0 to {STD:g}", std, 0, STD, "gray", box=box, bar=False))
                insets.append(images[-1].zoomed(box))
            lines += [images, insets, errors]
        path = self._path("reconstruction")
        plots.panels(
            path, lines, self._title() + "; PSNR (slice) in dB, SSIM; below: the red box, |error| in it", dark=True
        )
        return path

    def _samples(self) -> Path:
        lines = []
        for case, method in self.ours.items():
            part = self.study.piece(case, method)
            target, scale = part["target"], float(part["scale"])
            top, std = float(target.max()), part["std"] * scale
            line = [
                Panel(f"truth, {case.acceleration:g}x", target, 0, top, bar=False),
                Panel(f"mean of {method.samples}", part["mean"], 0, top, bar=False),
                Panel("std, 0 to 1", std, 0, 1, bar=False),
                Panel("std, own range", std, 0, None, "magma", bar=False),
            ]
            for k, sample in enumerate(self.study.piece(case, with_many(method))["samples"]):
                x, truth = (torch.from_numpy(image) for image in (sample, target))
                quality = f"{float(metrics.psnr(x, truth)):.2f} dB, {float(metrics.ssim(x, truth)):.3f}"
                line.append(Panel(f"sample {k + 1}\n{quality}", sample, 0, top, bar=False))
            lines.append(line)
        path = self._path("samples")
        plots.panels(path, lines, self._title() + "; PSNR (slice) in dB, SSIM", dark=True)
        return path

    def _doubt(self) -> Path:
        lines = []
        for case, method in self.ours.items():
            part = self.study.piece(case, method)
            std, error = part["std"], abs(part["mean"] - part["target"])
            most = float(np.percentile(error, 99.5))
            line = [
                Panel(f"mean, {case.acceleration:g}x", part["mean"], 0, float(part["target"].max())),
                Panel("|error| of the mean", error, 0, most, "magma"),
                Panel("std", std, 0, most, "magma"),
            ]
            known, check = calibrated.calibration_of(method), calibrated.check_of(self.study, case, method)
            if known is not None:
                level = min(0.9, known.intervals.levels[-1])
                surprise = check.overall if check else None
                self.study.tell(method.name, case, calibrated.notices_of(part, known.intervals, surprise))
                half = calibrated.stretch_of(part, known.intervals, level, surprise).numpy() * std
                line.append(Panel(f"half of the {100 * level:g} % interval", half, 0, most, "magma"))
            lines.append(line)
        path = self._path("doubt")
        plots.panels(path, lines, self._title(), dark=True)
        return path

    def _curve(self, name: str, x: str) -> Path:
        result: dict[str, list[list[tuple[float, float]]]] = {}
        for case, ours in self.spread:
            if name == "steps":
                rows = [(steps, row_of(self.study.piece(case, with_steps(ours, steps)))) for steps in steps_of(ours)]
                line = [(float(steps), PSNR.of(row)) for steps, row in rows]
            else:
                many = self.study.piece(case, with_many(ours))["by_count"]
                line = [(k + 1.0, float(value)) for k, value in enumerate(many)]
            result.setdefault(f"{case.acceleration:g}x", []).append(line)
        curves = {key: [(x, y) for x, y in np.mean(lines, 0).tolist()] for key, lines in result.items()}
        path, slices = self._path(name), len(_places(self.spread))
        message = f"PSNR of the mean (dB, slice range; mean over {slices} slices)"
        plots.curves(path, curves, x, message, f"{self.label}, protocol {self.cases[0].protocol}")
        return path


def steps_of(method: Method) -> tuple[int, ...]:
    return STEPS.get(method.sampler, FEW_STEPS)


def with_steps(method: Method, steps: int) -> Method:
    return replace(method, name=f"{EXTRA}/{method.name}, {steps} steps", steps=steps)


def with_many(method: Method) -> Method:
    return replace(method, name=f"{EXTRA}/{method.name}, {COUNT} samples", samples=COUNT)


def box_of(truth: np.ndarray) -> Box:
    """A quarter of the width and height, where the truth has most edges: where methods differ."""
    height, width = (n // 4 for n in truth.shape)
    edges = np.hypot(*np.gradient(truth))
    whole = np.pad(edges.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    inside = whole[height:, width:] - whole[:-height, width:] - whole[height:, :-width] + whole[:-height, :-width]
    top, left = np.unravel_index(int(inside.argmax()), inside.shape)
    return int(top), int(left), height, width

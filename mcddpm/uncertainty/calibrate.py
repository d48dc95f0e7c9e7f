"""Fit a model's error bars on people it was not trained on: `mcddpm calibrate CONFIG.toml`.

    OUT/calibration.json     by how much std is stretched (`conformal.py`), and what is usual (`usual.py`)
    OUT/.parts/              slices that are reconstructed and self-checked: the same command again goes on

`--calibration OUT` takes the file from there, and so does a model folder that it is put into.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from mcddpm.data.cases import Case, Cases, cases_of
from mcddpm.diffusion.samplers import SamplerName
from mcddpm.models.card import ModelCard
from mcddpm.models.denoiser import Denoiser
from mcddpm.models.store import load_model
from mcddpm.physics.operator import LABELS, Kind
from mcddpm.reconstruction.plan import DrawPlan
from mcddpm.reconstruction.sample import check, reconstruct
from mcddpm.system.processes import Share
from mcddpm.system.progress import Once, Progress, Quiet, warning
from mcddpm.system.workspace import Workspace
from mcddpm.uncertainty import case_checks, conformal, selfcheck
from mcddpm.uncertainty.calibration import Calibration
from mcddpm.uncertainty.conformal import Conformal, Factors
from mcddpm.uncertainty.kept_slices import arrays_of, slice_of
from mcddpm.uncertainty.surprise import HidePlan
from mcddpm.uncertainty.usual import SelfCheck, Usual

USUAL_PLAN, USUAL_HIDE = DrawPlan(), HidePlan()


@dataclass(frozen=True)
class CalibrationSettings:
    """What is calibrated, on what, and how."""

    model: str = "default"
    """The model to calibrate: a shipped model's name, a model folder or a run folder."""
    cases: Cases = field(default_factory=lambda: Cases(source="brain:validation:192"))
    samples: int = USUAL_PLAN.samples
    """Samples for each slice."""
    sampler: SamplerName = USUAL_PLAN.sampler
    """The sampler."""
    steps: int = USUAL_PLAN.steps
    """Steps of the sampler."""
    bins: int = conformal.BINS
    """Bins of std in the foreground."""
    levels: tuple[float, ...] = conformal.LEVELS
    """Levels of intervals. Those that too few slices can promise are left out, unless you state the levels yourself."""
    check_every: int = 1
    """Self-check one slice in so many. 0: none. 1: every slice, so that intervals can follow the self-check."""
    check_folds: int = USUAL_HIDE.folds
    """In how many turns measured lines are hidden."""
    check_samples: int = USUAL_HIDE.samples
    """Samples in each turn."""
    check_steps: int = USUAL_HIDE.steps
    """Steps of the sampler in each turn."""
    seed: int = 0
    """Decides the samples."""

    @property
    def plan(self) -> DrawPlan:
        return DrawPlan(self.samples, self.sampler, self.steps)

    @property
    def hide(self) -> HidePlan:
        return HidePlan(self.check_folds, self.check_samples, self.check_steps, self.sampler)


def calibrate(
    settings: CalibrationSettings,
    out: Path,
    *,
    device: str = "cpu",
    share: Share | None = None,
    progress: Progress | None = None,
) -> Path | None:
    """The calibration file, when all slices are done; None if other processes still work."""
    cases = cases_of(settings.cases)
    checked = _checked(settings, cases)
    operator = _operator(cases)
    model = check(load_model(settings.model, device), settings.plan)
    assert model.card is not None
    _check_people(model.card, settings, cases)
    Workspace(out, "evaluation").meaning()  # calibrations were evaluations before: hours of work, not to be done again
    fit = Fit(settings, model, Workspace(out, "calibration", share or Share(), hidden=True), progress or Quiet())
    fit.claim(cases, device)
    if not fit.work(cases, checked):
        return None
    return fit.fitted(cases, checked, operator).save(out)


def _check_people(card: ModelCard, settings: CalibrationSettings, cases: Sequence[Case]) -> None:
    source = settings.cases.source
    if _trained_on(card, source) or any(case.data == card.data_sha256 for case in cases):
        raise ValueError(f"{source} is what the model was trained on: calibrate on people it has not seen")


def _trained_on(card: ModelCard, source: str) -> bool:
    """Whether a named split of a data set is the one that the model has seen, at whatever size."""
    seen = card.data.train
    return seen.count(":") == 2 and seen.split(":")[:2] == source.split(":")[:2]


def _operator(cases: Sequence[Case]) -> Kind:
    """How the scans were measured: one file's slices are alike."""
    one_a_file = {case.volume: case for case in cases}.values()
    kinds = sorted({case.make().operator.kind for case in one_a_file})
    if len(kinds) > 1:
        message = " and by ".join(LABELS[kind] for kind in kinds)
        raise ValueError(f"the scans are by {message}: calibrate on those of one kind")
    return kinds[0]


def _checked(settings: CalibrationSettings, cases: Sequence[Case]) -> list[Case]:
    """The slices to self-check. Refuses, before hours of work, what cannot be calibrated."""
    if min(settings.plan.samples, settings.check_samples) < 2:
        result = f"samples = {settings.samples} of {settings.sampler}, check_samples = {settings.check_samples}"
        raise ValueError(f"{result}: expected 2 or more, drawn; one sample has no std to stretch")
    every, enough = settings.check_every, selfcheck.enough()
    if settings.bins < 1 or (every and settings.check_folds < 2):
        result = f"bins = {settings.bins}, check_folds = {settings.check_folds}"
        raise ValueError(f"{result}: expected 1 and 2, or more")
    chosen: list[Case] = []
    for acceleration in settings.cases.accelerations:
        own = [case for case in cases if case.acceleration == acceleration]
        kept = conformal.possible(settings.levels, len(own))
        if settings.levels != conformal.LEVELS and len(kept) < len(settings.levels):
            highest = max(settings.levels)
            needed = conformal.needed(highest)
            raise ValueError(f"a level of {highest:g} takes {needed} calibration slices, there are {len(own)}")
        some = own[::every] if every else []
        if every and len(some) < enough:
            raise ValueError(
                f"a self-check that can raise an alarm takes {enough} slices at each acceleration, there "
                f"are {len(some)}; check_every = 0 goes without"
            )
        chosen += some
    return chosen


@dataclass(frozen=True)
class Fit:
    """One process's work on a calibration."""

    settings: CalibrationSettings
    model: Denoiser
    workspace: Workspace
    progress: Progress

    @cached_property
    def once(self) -> Once:
        return Once(self.progress)

    def claim(self, cases: Sequence[Case], device: str) -> None:
        """Make the folder this calibration's; what is fitted of the slices may change, the slices may not."""
        settings, card = self.settings, self.model.card
        assert card is not None
        fixed = {"model_sha256": card.sha256, "seed": settings.seed, "device": device.partition(":")[0]}
        fixed |= {"plan": asdict(settings.plan)}
        data = {f"{case.label} {case.volume}": case.data[:16] for case in cases}
        self.workspace.claim(fixed, {"cases": {settings.cases.name: settings.cases.meaning}, "data": data})

    def work(self, cases: Sequence[Case], checked: Sequence[Case]) -> bool:
        """Reconstruct and self-check what is missing; True if all is there."""
        made = {self.name_of(case): partial(self._draw, case) for case in cases}
        made |= {self.check_name_of(case): partial(self._check, case) for case in checked}
        return self.workspace.work(list(made), lambda name: made[name](), self.progress)

    def name_of(self, case: Case) -> str:
        return f"calibration/{case.name}"

    def check_name_of(self, case: Case) -> str:
        return case_checks.name_of("calibration", case, self.settings.hide)

    def _draw(self, case: Case) -> None:
        measurement, seed = case.make(), case.draw_seed(self.settings.seed)
        recon = reconstruct(self.model, measurement, replace(self.settings.plan, seed=seed))
        self.once.say("", case.name, recon.notices)
        self.workspace.keep(self.name_of(case), arrays_of(recon, measurement), {"seed": seed})

    def _check(self, case: Case) -> None:
        seed, name = case.draw_seed(self.settings.seed), self.check_name_of(case)
        case_checks.make(self.workspace, name, self.model, case, self.settings.hide, seed)

    def fitted(self, cases: Sequence[Case], checked: Sequence[Case], operator: Kind) -> Calibration:
        settings, card = self.settings, self.model.card
        assert card is not None
        origin = {
            "version": conformal.VERSION,
            "model": card.sha256,
            "data": f"{settings.cases.source}, {_measured(settings.cases)}, {len(cases)} slices",
            "date": datetime.date.today().isoformat(),
            "operator": operator,
            "sampler": settings.sampler,
        }
        levels, tables, adaptive = self._factors(cases)
        drawn = {"steps": settings.steps, "samples": settings.samples}
        intervals = Conformal(**origin, **drawn, levels=levels, tables=tables, adaptive=adaptive)  # type: ignore[arg-type]
        if not checked:
            return Calibration(intervals)
        hidden = {"folds": settings.check_folds, "samples": settings.check_samples, "steps": settings.check_steps}
        return Calibration(intervals, SelfCheck(**origin, **hidden, usual=self._usual(checked)))  # type: ignore[arg-type]

    def _factors(self, cases: Sequence[Case]) -> tuple[tuple[float, ...], tuple[Factors, ...], tuple[Factors, ...]]:
        """The levels that all accelerations have slices for; factors; and those that follow the self-check."""
        settings, levels = self.settings, self.settings.levels
        stacks = {}
        for acceleration in settings.cases.accelerations:
            own = [case for case in cases if case.acceleration == acceleration]
            stacks[acceleration] = [slice_of(self.workspace.read(self.name_of(c)), self._surprise(c)) for c in own]
            levels = conformal.possible(levels, len(own))
        fit = [(slices, acceleration, levels, settings.bins) for acceleration, slices in stacks.items()]
        unchecked = sum(not s.is_checked for slices in stacks.values() for s in slices)
        if settings.check_every == 1 and unchecked:
            message = f"{unchecked} slices have too few lines for a self-check: intervals will not follow it"
            self.progress.say(warning(message))
        follows = settings.check_every == 1 and not unchecked
        adaptive = tuple(conformal.fit(*one, adaptive=True) for one in fit) if follows else ()
        return levels, tuple(conformal.fit(*one) for one in fit), adaptive

    def _surprise(self, case: Case) -> float | None:
        """What the self-check of a slice said; None where there was none."""
        name = self.check_name_of(case)
        return case_checks.read(self.workspace, name).overall if self.workspace.all_there([name]) else None

    def _usual(self, checked: Sequence[Case]) -> tuple[Usual, ...]:
        usual = []
        for acceleration in self.settings.cases.accelerations:
            own = [case for case in checked if case.acceleration == acceleration]
            kept = [case_checks.read(self.workspace, self.check_name_of(case)).statistics for case in own]
            result = [statistics for statistics in kept if statistics]
            if len(result) < selfcheck.enough():
                raise ValueError(
                    f"of {len(own)} slices at {acceleration:g}x only {len(result)} have lines enough to hide some, and "
                    f"a self-check takes {selfcheck.enough()}; check_every = 0 goes without"
                )
            usual.append(Usual.of(acceleration, result))
        return tuple(usual)


def _measured(cases: Cases) -> str:
    """How: what intervals and self-check were found for."""
    simulated = cases.protocol == "simulated"
    return f"{cases.family} at SNR {cases.snr:g}" if simulated else f"protocol {cases.protocol}"

"""Fit a model's error bars on people it was not trained on: `mcddpm calibrate CONFIG.toml`.

Every slice is reconstructed as an evaluation does it, and self-checked, in a folder that a second run goes on in. What
comes out is written into the model's card: by how much std must be stretched (`conformal.py`) and how surprised the
model is by slices it was made for (`selfcheck.py`).
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mcddpm.data.cases import Case, Cases
from mcddpm.evaluation import checks, methods, study
from mcddpm.evaluation.methods import Method
from mcddpm.evaluation.study import Evaluation
from mcddpm.models.store import card_path
from mcddpm.physics.operator import kind_of, modality
from mcddpm.reconstruction.sample import SAMPLER, SAMPLES, STEPS, check
from mcddpm.system.settings import to_dict
from mcddpm.uncertainty import conformal, selfcheck
from mcddpm.uncertainty.conformal import Conformal, Slice
from mcddpm.uncertainty.selfcheck import How, SelfCheck, Usual


@dataclass(frozen=True)
class Plan:
    """model: the one to calibrate. cases: on what; each of its accelerations gets factors of its own. check_every: of
    those slices, how many are self-checked too: one in so many, 0 for none; with 1, intervals are fitted that follow
    the self-check, too. The other settings: how samples are drawn, how factors are fitted, how lines are hidden."""

    model: str = "default"
    cases: Cases = dataclasses.field(default_factory=lambda: Cases(source="brain:validation:192"))
    samples: int = SAMPLES
    sampler: str = SAMPLER
    steps: int = STEPS
    bins: int = conformal.BINS
    levels: tuple[float, ...] = conformal.LEVELS
    check_every: int = 1
    check_folds: int = selfcheck.FOLDS
    check_samples: int = selfcheck.SAMPLES
    check_steps: int = selfcheck.STEPS
    seed: int = 0

    @property
    def how(self) -> How:
        return How(self.check_folds, self.check_samples, self.check_steps, self.sampler)

    def check_of(self, out: Path, case: Case) -> Path:
        return checks.path_of(out, "calibration", case, self.how)

    @property
    def evaluation(self) -> Evaluation:
        method = Method("calibration", "mc_ddpm", self.model, self.samples, self.sampler, self.steps)
        return Evaluation((self.cases,), (method,), seed=self.seed)


def calibrate(
    plan: Plan,
    out: Path,
    *,
    device: str = "cpu",
    rank: int = 0,
    world: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any] | None:
    """What goes into the card, when all slices are done (self_check: None, where none was asked for); None if other
    processes still work."""
    wanted = study.chosen(plan.evaluation)
    checked = _checked(plan, [case for case, _ in wanted])
    operator = _operator([case for case, _ in wanted])
    model = check(methods.model_of(plan.model, device), plan.samples, plan.steps, plan.sampler)
    card_path(plan.model)
    if _trained_on(model.card, plan.cases.source) or any(
        case.data == model.card.get("data_sha256") for case, _ in wanted
    ):
        raise ValueError(f"{plan.cases.source} is what the model was trained on: calibrate on people it has not seen")
    rows = study.evaluate(plan.evaluation, out, device=device, rank=rank, world=world, progress=progress)
    mine = [case for case in checked[rank::world] if not plan.check_of(out, case).exists()]
    for done, case in enumerate(mine):
        checks.make(plan.check_of(out, case), model, case, plan.how, study.seed_of_case(plan.seed, case))
        if progress is not None:
            progress(done + 1, len(mine))
    parts = [study.part_of(out, case, method) for case, method in wanted]
    if rows is None and not all(part.exists() for part in parts):
        return None
    if not all(plan.check_of(out, case).exists() for case in checked):
        return None
    common: dict[str, Any] = {
        "version": conformal.VERSION,
        "model": model.card["sha256"],
        "data": f"{plan.cases.source}, {_measured(plan.cases)}, {len(wanted)} slices",
        "date": datetime.date.today().isoformat(),
        "operator": operator,
    }
    usual = to_dict(_usual(plan, checked, out, common)) if checked else None
    return {"calibration": to_dict(_conformal(plan, wanted, out, common)), "self_check": usual}


def _measured(cases: Cases) -> str:
    """How: what intervals and self-check were found for."""
    simulated = cases.protocol == "simulated"
    return f"{cases.family} at SNR {cases.snr:g}" if simulated else f"protocol {cases.protocol}"


def _trained_on(card: dict[str, Any], source: str) -> bool:
    """Whether a named split of a data set is the one that the model has seen, at whatever size."""
    seen = str(card.get("data", {}).get("train", ""))
    return seen.count(":") == 2 and seen.split(":")[:2] == source.split(":")[:2]


def _operator(cases: Sequence[Case]) -> str:
    """How the scans were measured: one file's slices are alike."""
    kinds = sorted({kind_of(case.make().operator) for case in {case.volume: case for case in cases}.values()})
    if len(kinds) > 1:
        raise ValueError(f"the scans are by {' and by '.join(map(modality, kinds))}: calibrate on those of one kind")
    return kinds[0]


def _checked(plan: Plan, cases: Sequence[Case]) -> list[Case]:
    """The slices to self-check. Refuses, before hours of work, what cannot be calibrated."""
    if min(plan.samples, plan.check_samples) < 2 or plan.sampler == "mean":
        found = f"samples = {plan.samples} of {plan.sampler}, check_samples = {plan.check_samples}"
        raise ValueError(f"{found}: expected 2 or more, drawn; one sample has no std to stretch")
    if plan.bins < 1 or (plan.check_every and plan.check_folds < 2):
        raise ValueError(f"bins = {plan.bins}, check_folds = {plan.check_folds}: expected 1 and 2, or more")
    chosen = []
    for acceleration in plan.cases.accelerations:
        own = [case for case in cases if case.acceleration == acceleration]
        kept = conformal.possible(plan.levels, len(own))
        if plan.levels != conformal.LEVELS and len(kept) < len(plan.levels):
            highest = max(plan.levels)
            raise ValueError(
                f"a level of {highest:g} takes {conformal.needed(highest)} calibration slices, there are {len(own)}"
            )
        some = own[:: plan.check_every] if plan.check_every else []
        if plan.check_every and len(some) < selfcheck.enough():
            raise ValueError(
                f"a self-check that can raise an alarm takes {selfcheck.enough()} slices at each acceleration, there "
                f"are {len(some)}; check_every = 0 goes without"
            )
        chosen += some
    return chosen


def _conformal(plan: Plan, wanted: Sequence[tuple[Case, Method]], out: Path, common: dict[str, Any]) -> Conformal:
    stacks, levels = [], plan.levels
    for acceleration in plan.cases.accelerations:
        slices = []
        for case, method in wanted:
            if case.acceleration == acceleration:
                with np.load(study.part_of(out, case, method), allow_pickle=False) as part:
                    mean, std, truth = (
                        torch.from_numpy(part[key] * part["scale"]) for key in ("mean", "std", "target")
                    )
                    slices.append(Slice(mean, std, truth, _surprise(plan.check_of(out, case))))
        stacks.append(slices)
        levels = conformal.possible(levels, len(slices))
    pairs = list(zip(plan.cases.accelerations, stacks, strict=True))
    tables = [conformal.fit(slices, acceleration, levels, plan.bins) for acceleration, slices in pairs]
    adaptive = []
    unchecked = sum(not math.isfinite(s.surprise) for slices in stacks for s in slices)
    if plan.check_every == 1 and unchecked:
        told = f"{unchecked} slices have too few lines for a self-check: intervals will not follow it"
        warnings.warn(told, stacklevel=2)
    if plan.check_every == 1 and not unchecked:
        adaptive = [conformal.fit(slices, acceleration, levels, plan.bins, True) for acceleration, slices in pairs]
    settings = {"sampler": plan.sampler, "steps": plan.steps, "samples": plan.samples, "levels": levels}
    return Conformal(**common, **settings, tables=tuple(tables), adaptive=tuple(adaptive))  # type: ignore[arg-type]


def _surprise(path: Path) -> float:
    """What the self-check of a slice said; NaN where there was none."""
    found = checks.read(path) if path.exists() else None
    return math.nan if found is None else found["overall"]


def _usual(plan: Plan, checked: Sequence[Case], out: Path, common: dict[str, Any]) -> SelfCheck:
    usual = []
    for acceleration in plan.cases.accelerations:
        own = [case for case in checked if case.acceleration == acceleration]
        found = [known for case in own if (known := checks.read(plan.check_of(out, case)))]
        if len(found) < selfcheck.enough():
            raise ValueError(
                f"of {len(own)} slices at {acceleration:g}x only {len(found)} have lines enough to hide some, and a "
                f"self-check takes {selfcheck.enough()}; check_every = 0 goes without"
            )
        usual.append(Usual.of(acceleration, found))
    return SelfCheck(
        **common,
        sampler=plan.sampler,
        folds=plan.check_folds,
        samples=plan.check_samples,
        steps=plan.check_steps,
        usual=tuple(usual),
    )

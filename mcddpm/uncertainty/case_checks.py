"""Self-checks of cases, kept in a workspace: `calibrate` learns what is usual, `evaluate` compares with it."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass

from mcddpm.data.cases import Case
from mcddpm.models.denoiser import Denoiser
from mcddpm.physics.operator import Kind
from mcddpm.system.settings import from_dict
from mcddpm.system.workspace import Workspace
from mcddpm.uncertainty.conformal import VERSION
from mcddpm.uncertainty.surprise import HidePlan, Unchecked, surprise


@dataclass(frozen=True)
class CaseCheck:
    """The statistics of one slice, and what they cost. None: too few lines to hide, or measured by another operator."""

    statistics: dict[str, float] | None = None
    calls: int = 0
    seconds: float = 0.0

    @property
    def overall(self) -> float | None:
        return None if self.statistics is None else self.statistics["overall"]


def name_of(method: str, case: Case, plan: HidePlan, operator: Kind | None = None) -> str:
    """The name of the piece. operator: the only one that is checked; any unless told."""
    settings = "-".join(map(str, (*astuple(plan), *([operator] if operator else []))))
    return f"{method}, self-check {VERSION}, {settings}/{case.name}"


def make(
    workspace: Workspace,
    name: str,
    model: Denoiser,
    case: Case,
    plan: HidePlan,
    seed: int,
    operator: Kind | None = None,
) -> None:
    measurement, start = case.make(), time.monotonic()
    statistics, calls = None, 0
    if operator in (None, measurement.operator.kind):
        with suppress(Unchecked):
            result = surprise(model, measurement, plan, seed=seed)
            statistics, calls = result.statistics, result.calls
    workspace.keep(name, {}, asdict(CaseCheck(statistics, calls, round(time.monotonic() - start, 3))))


def read(workspace: Workspace, name: str) -> CaseCheck:
    return from_dict(CaseCheck, workspace.read(name).notes)

"""Self-checks of cases, kept in a workspace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mcddpm.data.cases import Case, Cases
from mcddpm.models.denoiser import Denoiser
from mcddpm.physics.measurement import Measurement
from mcddpm.system.workspace import Workspace
from mcddpm.uncertainty import case_checks
from mcddpm.uncertainty.case_checks import CaseCheck
from mcddpm.uncertainty.surprise import HidePlan, surprise
from tests.problems import tiny
from tests.scans import MASK, kspace

PLAN = HidePlan(2, 2, 2)


@pytest.fixture(scope="module")
def model() -> Denoiser:
    return tiny()


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path, "evaluation")


def case() -> Case:
    scan = Measurement.from_kspace(kspace(1)[0], MASK)
    return Case("PD", "fastmri", "a.h5", 3, 4.0, "", 0, Cases(), lambda: scan)


def test_what_is_kept_is_what_the_model_was_surprised_by(model: Denoiser, workspace: Workspace) -> None:
    case_checks.make(workspace, "a", model, case(), PLAN, 5)
    found, same = case_checks.read(workspace, "a"), surprise(model, case().make(), PLAN, seed=5)
    assert found.statistics == same.statistics and found.overall == same.statistics["overall"]
    assert found.calls == same.calls == 8 and found.seconds > 0


@pytest.mark.parametrize(("operator", "checked"), [(None, True), ("fourier", True), ("sense", False)])
def test_what_is_usual_for_other_scans_is_not_asked(
    model: Denoiser, workspace: Workspace, operator, checked: bool
) -> None:
    case_checks.make(workspace, "a", model, case(), PLAN, 5, operator)
    found = case_checks.read(workspace, "a")
    assert (found.statistics is not None) == (found.overall is not None) == (found.calls > 0) == checked


def test_a_slice_with_too_few_lines_is_kept_as_such(model: Denoiser, workspace: Workspace) -> None:
    case_checks.make(workspace, "a", model, case(), replace(PLAN, folds=30), 5)
    found = case_checks.read(workspace, "a")
    assert found == CaseCheck(None, 0, found.seconds) and found.overall is None


def test_a_name_is_of_all_that_decides_the_numbers() -> None:
    name = case_checks.name_of("Ours", case(), PLAN)
    assert name == "Ours, self-check 4, 2-2-2-dpmpp_2m_sde/PD-a.h5-0003-4x"
    changes = [{"folds": 3}, {"samples": 3}, {"steps": 3}, {"sampler": "heun"}]
    others = [case_checks.name_of("Ours", case(), replace(PLAN, **change)) for change in changes]  # type: ignore[arg-type]
    others += [case_checks.name_of("Ours", case(), PLAN, operator) for operator in ("fourier", "sense")]
    assert len({name, *others}) == 7

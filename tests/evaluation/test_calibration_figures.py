"""Calibration over all slices of an evaluation, in one figure: each plot says what the pieces say."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mcddpm import plots
from mcddpm.evaluation import calibration_figures
from mcddpm.evaluation.study import Evaluation, Study, chosen
from mcddpm.plots import Plot
from mcddpm.system.workspace import Workspace
from mcddpm.uncertainty import scores
from mcddpm.uncertainty.calibration import load_calibration
from tests.conftest import Told
from tests.evaluation.studies import pieces, rows

pytest_plugins = ["tests.evaluation.fixtures"]


def drawn(out: Path, evaluation: Evaluation, told: Told | None = None) -> list[list[Plot]]:
    """What the figure of the first of these methods holds."""
    found: list[list[list[Plot]]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "plots", lambda path, lines, title: found.append(lines))
        own = [(case, method) for case, method in chosen(evaluation) if method.name == evaluation.methods[0].name]
        study = Study(Workspace(out, "evaluation"), 0, progress=told or Told())
        calibration_figures.draw(out / "figures" / "a.png", study, own, "PD")
    return found[0]


@pytest.fixture(scope="module")
def figure(done: Path, asked: Evaluation) -> list[list[Plot]]:
    return drawn(done, replace(asked, methods=asked.methods[2:]))


@pytest.fixture(scope="module")
def foregrounds(done: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """std and error of every slice at 4x where pixels count, in the measurements' units."""
    found = []
    for piece in pieces(done, "Ours", lambda name: name.endswith("-4x")):
        mean, std, target = (piece[key].astype(float) for key in ("mean", "std", "target"))
        inside = (2 * mean + target) / 3 > 0.1 * ((2 * mean + target) / 3).max()
        found.append((piece["scale"] * std[inside], piece["scale"] * (mean - target)[inside]))
    assert len({float(std.max()) for std, _ in found}) == 4
    return found


def test_coverage_over_all_pixels_and_slice_by_slice(figure: list[list[Plot]], foregrounds: list) -> None:
    (reliable, per_slice, _), (_, _, off) = figure
    student = 6.3138 * math.sqrt(1 + 1 / 2)  # of two samples: one degree of freedom, 90 %
    covered = [abs(error) <= student * std for std, error in foregrounds]
    near = dict(reliable.lines["4x"])[0.9]
    assert near == pytest.approx(np.concatenate(covered).mean(), abs=1e-4) and 0.05 < near < 0.9
    assert dict(off.lines["4x"])[0.9] == pytest.approx(100 * (near - 0.9))
    assert [value for _, value in per_slice.lines["4x"]] == pytest.approx([part.mean() for part in covered], abs=1e-4)
    assert reliable.lines.keys() == {"4x", "8x"} and len(reliable.lines["4x"]) == 19


def test_ranks_of_the_truth(done: Path, figure: list[list[Plot]]) -> None:
    ranks = figure[0][2]
    own = pieces(done, "Ours", lambda name: name.endswith("-4x"))
    counts = sum(piece["ranks"][0] for piece in own)
    name, line = next((name, line) for name, line in ranks.lines.items() if name.startswith("4x, p = "))
    assert np.allclose([y for _, y in line], counts / counts.sum()) and ranks.level == 1 / 3
    p = scores.uniformity(torch.stack([torch.from_numpy(piece["ranks"]) for piece in own]))
    assert name == f"4x, p = {p:.3f}"


def test_spread_skill_and_sparsification_are_of_all_slices(figure: list[list[Plot]], foregrounds: list) -> None:
    skill, sparse, _ = figure[1]
    std, error = (torch.from_numpy(np.concatenate(values))[None] for values in zip(*foregrounds, strict=True))
    predicted, met = scores.spread_skill(math.sqrt(1 + 1 / 2) * std, error)
    assert np.allclose(skill.lines["4x"], np.column_stack([predicted, met]), rtol=1e-3)
    left_out, curve, best = scores.sparsification(std, error)
    assert np.allclose(sparse.lines["4x, by std"], np.column_stack([left_out, curve]), rtol=1e-3)
    assert np.allclose(sparse.lines["4x, by error: the best"], np.column_stack([left_out, best]), rtol=1e-3)


def test_both_ways_of_calibration_have_their_lines(calibrated: Evaluation, checked: Path) -> None:
    (reliable, per_slice, _), (_, _, off) = drawn(checked, calibrated)
    four = [row for row in rows(checked) if row.key == ("PD", "Ours", 4.0)]
    pixels = [float(row.pixels_foreground or 0) for row in four]
    part = np.average([row.conformal["foreground"].coverage[80] for row in four], weights=pixels)
    assert dict(reliable.lines["4x, calibrated"])[0.8] == pytest.approx(part, abs=1e-4)
    assert dict(off.lines["4x, calibrated"])[0.8] == pytest.approx(100 * part - 80, abs=1e-2)
    assert dict(reliable.lines["4x, with self-check"])[0.8] == pytest.approx(1 - part, abs=1e-3)
    assert max(level for level, _ in reliable.lines["4x, calibrated"]) == 0.9, "what was not fitted is not shown"
    assert len(per_slice.lines) == 2 * 3 and "4x, with self-check" in per_slice.lines


def test_plain_factors_are_not_called_followed(
    calibrated: Evaluation, checked: Path, tmp_path: Path, told: Told
) -> None:
    """A calibration without factors that follow the self-check, of slices that have one."""
    ours = calibrated.methods[0]
    model = shutil.copytree(ours.model, tmp_path / "model")
    known = load_calibration(model)
    replace(known, intervals=replace(known.intervals, adaptive=())).save(model)
    moved = replace(calibrated, methods=(replace(ours, model=str(model)),))
    (reliable, *_), _ = drawn(checked, moved, told)
    assert "4x, calibrated" in reliable.lines and "4x, with self-check" not in reliable.lines

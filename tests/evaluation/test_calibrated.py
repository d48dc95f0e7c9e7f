"""A calibrated model shows what its intervals cover, and what its self-checks said; another model's calibration never
counts."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mcddpm.data.cases import cases_of
from mcddpm.evaluation import calibrated as module
from mcddpm.evaluation import tables
from mcddpm.evaluation.methods import Method
from mcddpm.evaluation.results import Results
from mcddpm.evaluation.rows import Row
from mcddpm.evaluation.run import evaluate
from mcddpm.evaluation.study import Evaluation, Study, check_name, chosen
from mcddpm.models.store import load_model, read_card
from mcddpm.system.processes import Share
from mcddpm.system.workspace import Piece, Workspace
from mcddpm.uncertainty import case_checks
from mcddpm.uncertainty.calibration import load_calibration
from mcddpm.uncertainty.surprise import HidePlan, surprise
from tests.conftest import Told
from tests.evaluation.studies import case_of, half_calibration, only, pieces, rows, untimed
from tests.knees import FILES, Stop, StopAt, saved

pytest_plugins = ["tests.evaluation.fixtures"]


def with_pieces(out: Path, method: str) -> Iterator[tuple[Row, Piece]]:
    found = sorted(
        (row for row in rows(out) if row.method == method), key=lambda r: (r.volume, r.slice, r.acceleration)
    )
    yield from zip(found, pieces(out, method), strict=True)


# --- rows -----------------------------------------------------------------------------------------------------------


def test_rows_say_what_intervals_cover_and_how_wide_they_are(checked: Path) -> None:
    for row, piece in with_pieces(checked, "Ours"):
        assert row.self_check is not None
        mean, std, target = (piece[key].astype(float) for key in ("mean", "std", "target"))
        inside = (2 * mean + target) / 3 > 0.1 * ((2 * mean + target) / 3).max()
        head = mean > 0.1 * mean.max()
        small = (std <= np.median(std[head])) & head
        assert 0.1 < small[inside].mean() < 0.9
        for region, where in (("foreground", inside), ("whole", np.ones_like(inside))):
            plain, adaptive = row.conformal[region], row.adaptive[region]  # type: ignore[index]
            assert plain.coverage == pytest.approx(dict.fromkeys((50, 80, 90), small[where].mean()), abs=1e-3)
            assert adaptive.coverage == pytest.approx(dict.fromkeys((50, 80, 90), 1 - small[where].mean()), abs=1e-3)
            wide = [2e6 * np.where(part, std, 0)[where].mean() for part in (small, ~small)]
            adapted = math.exp(max(row.self_check.overall, 0) / 2)
            assert (plain.width_90, adaptive.width_90) == pytest.approx((wide[0], adapted * wide[1]), rel=1e-3)


def test_rows_say_what_the_self_check_said(calibrated: Evaluation, checked: Path) -> None:
    model, usual = load_model(calibrated.methods[0].model), load_calibration(calibrated.methods[0].model).checked
    case = case_of(calibrated, FILES[1], 1, 4.0)
    found = surprise(model, case.make(), HidePlan(2, 2, 2), seed=case.draw_seed(0)).statistics  # type: ignore[arg-type]
    own = {(*row.key, row.volume, row.slice): row.self_check for row in rows(checked)}
    check = own["PD", "Ours", 4.0, FILES[1], 1]
    assert check is not None and check.overall == found["overall"]
    assert check.p == usual.at(4.0)[0].p_value(found) >= 1 / 9
    assert {c.calls for c in own.values() if c} == {8} and all(c.seconds for c in own.values() if c)
    assert {key[1] for key, one in own.items() if one is None} == {"More"}


def test_intervals_are_of_samples_drawn_as_in_calibration(calibrated: Evaluation, checked: Path) -> None:
    fingerprint = load_calibration(calibrated.methods[0].model).fingerprint
    assert {(row.method, row.calibration) for row in rows(checked)} == {("Ours", fingerprint), ("More", "")}
    assert all(row.conformal == row.adaptive == {} for row in rows(checked) if row.method == "More")
    ours = calibrated.methods[0]
    for other in ({"samples": 3}, {"steps": 3}, {"sampler": "heun"}, {"sampler": "mean", "samples": 1, "steps": 0}):
        assert module.calibration_of(ours) and not module.calibration_of(replace(ours, **other)), other  # type: ignore[arg-type]


def test_rows_of_a_calibration_without_self_checks(calibrated: Evaluation, checked: Path, tmp_path: Path) -> None:
    out, model = (
        shutil.copytree(checked, tmp_path / "out"),
        shutil.copytree(calibrated.methods[0].model, tmp_path / "m"),
    )
    known = load_calibration(model)
    replace(known, intervals=replace(known.intervals, adaptive=())).save(model)
    text = (out / "evaluation.json").read_text().replace(calibrated.methods[0].model, str(model))
    (out / "evaluation.json").write_text(text)
    evaluate(replace(calibrated, methods=(replace(calibrated.methods[0], model=str(model)),)), out)
    before = [row for row in untimed(checked) if row.method == "Ours"]
    now = load_calibration(model).fingerprint
    assert untimed(out) == [replace(row, adaptive={}, calibration=now) for row in before]


# --- wherever it was stopped ----------------------------------------------------------------------------------------


def test_stopped_among_self_checks_the_rows_are_the_same(calibrated: Evaluation, checked: Path, tmp_path: Path) -> None:
    ours = replace(calibrated, methods=calibrated.methods[:1])
    for n in (5, 3, 2):  # among the slices, between slices and self-checks, among the self-checks
        with pytest.raises(Stop):
            evaluate(ours, tmp_path, progress=StopAt(n))
        assert not (tmp_path / "rows.csv").exists()
    assert len(pieces(tmp_path, "Ours")) == 8 and len(list((tmp_path / "parts").glob("*self-check*/*.npz"))) == 2
    assert evaluate(ours, tmp_path, share=Share(1, 2)) is None, "half of the rest"
    evaluate(ours, tmp_path, share=Share(0, 2))
    assert untimed(tmp_path) == [row for row in untimed(checked) if row.method == "Ours"]


def test_a_self_check_that_is_missing_is_named(calibrated: Evaluation, checked: Path, tmp_path: Path) -> None:
    out = shutil.copytree(checked, tmp_path / "out")
    case, method = chosen(calibrated)[0]
    study = Study(Workspace(out, "evaluation"), 0)
    assert module.check_of(study, case, method) is not None
    study.workspace.remove([check_name(case, method)])
    with pytest.raises(ValueError, match=rf"lacks the self-check of {case.name}: run mcddpm evaluate again"):
        module.check_of(study, case, method)
    assert module.check_of(study, case, replace(method, self_check=False)) is None


# --- whose calibration it is ----------------------------------------------------------------------------------------


def test_what_is_usual_for_several_coils_is_not_for_one(calibrated: Evaluation, tmp_path: Path) -> None:
    model = shutil.copytree(calibrated.methods[0].model, tmp_path / "model")
    known = load_calibration(model)
    replace(known, self_check=replace(known.checked, operator="sense")).save(model)
    method = replace(calibrated.methods[0], model=str(model))
    asked = only(calibrated, method, accelerations=(4.0,), every=4)
    evaluate(asked, tmp_path / "out")
    (row,) = rows(tmp_path / "out")
    assert row.self_check is None and row.adaptive == {} and row.conformal
    (case,) = cases_of(asked.cases[0])
    study = Study(Workspace(tmp_path / "out", "evaluation"), 0)
    assert not case_checks.read(study.workspace, check_name(case, method)).statistics
    known.save(model)
    assert not study.workspace.has(check_name(case, method)), "calibrated for one, it is checked anew"
    evaluate(asked, tmp_path / "out")
    (row,) = rows(tmp_path / "out")
    assert row.self_check is not None and row.adaptive


@pytest.mark.parametrize("change", ["version", "weights", "none"])
def test_a_calibration_that_does_not_count(calibrated: Evaluation, tmp_path: Path, change: str) -> None:
    """Of another version or of other weights: rows have no intervals, and a self-check is refused."""
    model = shutil.copytree(calibrated.methods[0].model, tmp_path / "model")
    path = model / "calibration.json"
    known = json.loads(path.read_text())
    known["intervals"]["version" if change == "version" else "model"] = 1 if change == "version" else "ab" * 32
    path.write_text(json.dumps(known))
    if change == "none":
        path.unlink()
    ours = replace(calibrated.methods[0], model=str(model), self_check=False)
    assert module.calibration_of(ours) is None
    evaluate(only(calibrated, ours, accelerations=(4.0,), every=4), tmp_path / "out")
    assert [(row.conformal, row.calibration) for row in rows(tmp_path / "out")] == [({}, "")]
    with pytest.raises(ValueError, match="run mcddpm calibrate"):
        evaluate(only(calibrated, replace(ours, self_check=True), accelerations=(4.0,)), tmp_path / "out2")


def test_a_run_folder_is_held_to_its_checkpoints_calibration(calibrated: Evaluation, tmp_path: Path) -> None:
    """Not to one that lies about."""
    newest = tmp_path / "run" / "checkpoints" / "step-00000001"
    saved(newest)
    for end in (".safetensors", ".json"):
        shutil.copy(newest / f"model{end}", newest / f"training{end}")
    half_calibration(read_card(newest).sha256, 4.0).save(tmp_path / "run")
    assert module.calibration_of(Method("A", "mc_ddpm", str(tmp_path / "run"), samples=2, steps=2)) is None
    half_calibration(read_card(newest).sha256, 4.0).save(newest)
    assert module.calibration_of(Method("A", "mc_ddpm", str(tmp_path / "run"), samples=2, steps=2))


def test_scans_unlike_those_of_calibration_are_told_once(calibrated: Evaluation, tmp_path: Path, told: Told) -> None:
    """Fitted at 4x and 8x; these are at 2x."""
    ours = calibrated.methods[0]
    model = saved(tmp_path / "model", {"mask": {"accelerations": [2]}})
    half_calibration(read_card(model).sha256, 4.0, 8.0).save(model)
    two = only(calibrated, replace(ours, model=str(model)), accelerations=(2.0,))
    evaluate(two, tmp_path / "out", progress=told)
    place = f"Ours, PD-{FILES[0]}-0000-2x: the scan is under-sampled"
    assert [notice.line for notice in told.notices] == [
        f"warning: {place} 1.8x, intervals were fitted at 4x",
        f"warning: {place} 1.8x, what is usual was found at 4x",
    ]


# --- in tables ------------------------------------------------------------------------------------------------------


def test_tables_show_both_ways_beside_what_was_drawn(checked: Path) -> None:
    four = [row for row in rows(checked) if row.key == ("PD", "Ours", 4.0)]
    pixels = [float(row.pixels_foreground or 0) for row in four]
    expected = 100 * np.average([row.conformal["foreground"].coverage[80] for row in four], weights=pixels)
    keys = [("PD", "Ours", 4.0), ("PD", "More", 4.0)]
    table = tables.interval_table(Results(checked), keys, "foreground")
    cells = {row[3]: row[6] for row in table.rows if row[2] == "Ours"}
    assert cells["80 %"].split(" ")[0] == f"{expected:.1f}" and cells["95 %"] == "-"
    assert list(table.head)[6:10] == ["calibrated, %", "worst slice", "with self-check, %", "worst slice"]
    follows = next(row[8] for row in table.rows if row[2:4] == ["Ours", "80 %"])
    assert float(follows.split(" ")[0]) == pytest.approx(100 - expected, abs=0.11)
    assert next(row for row in table.rows if row[2:4] == ["Ours", "80 %"])[10] == "4 + 8"
    spread = tables.spread_table(Results(checked), keys, "foreground")
    told = {row[2]: row[8] for row in spread.rows}
    rms = [row.scores["foreground"].squared_error ** 0.5 for row in four]
    ways = [[getattr(row, way)["foreground"] for row in four] for way in ("scores", "conformal", "adaptive")]
    wide = [np.mean([one.width_90 / e for one, e in zip(way, rms, strict=True)]) for way in ways]
    assert told["Ours"] == ", ".join(f"{w:.2f}" for w in wide) and told["More"].count(",") == 0

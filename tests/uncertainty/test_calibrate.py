"""`mcddpm calibrate` writes calibration.json, of slices that it reconstructs and self-checks, however it is stopped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from mcddpm import load_model
from mcddpm.cli import main
from mcddpm.data.cases import Case, Cases, cases_of
from mcddpm.models.store import read_card, save_model
from mcddpm.physics.coils import coil_maps
from mcddpm.physics.fourier import ifft
from mcddpm.physics.measurement import Measurement
from mcddpm.physics.sense import Sense
from mcddpm.reconstruction.sample import reconstruct
from mcddpm.system.processes import Share
from mcddpm.system.workspace import Workspace
from mcddpm.uncertainty import calibrate as module
from mcddpm.uncertainty import case_checks, conformal, selfcheck
from mcddpm.uncertainty.calibrate import CalibrationSettings, calibrate
from mcddpm.uncertainty.calibration import Calibration, load_calibration
from mcddpm.uncertainty.conformal import Slice
from mcddpm.uncertainty.surprise import HidePlan, Unchecked, surprise
from tests.conftest import Told
from tests.knees import FILES, Stop, StopAt, knee, saved, torn, two_at_once
from tests.problems import tiny
from tests.scans import MASK, kspace, scan

SMALL = {"samples": 3, "steps": 2, "bins": 2, "levels": (0.5, 0.8)}
CHECK = {"check_every": 2, "check_folds": 2, "check_samples": 2, "check_steps": 2}


@pytest.fixture(scope="module", autouse=True)
def few_slices() -> Iterator[None]:
    """Alarms by four slices would need this p-value."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selfcheck, "ALARM", 0.5)
        yield


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> CalibrationSettings:
    """Two files of four slices, at 4x."""
    folder = tmp_path_factory.mktemp("asked")
    for k, name in enumerate(FILES):
        knee(folder / "files" / name, 4, seed=10 + k)
    cases = Cases(str(folder / "files"), "fastmri", label="knees", accelerations=(4.0,))
    return CalibrationSettings(str(saved(folder / "model")), cases, **SMALL, **CHECK)  # type: ignore[arg-type]


def fitted(settings: CalibrationSettings, out: Path, **more: object) -> Calibration:
    path = calibrate(settings, out, **more)  # type: ignore[arg-type]
    assert path == out / "calibration.json"
    return load_calibration(path)


@pytest.fixture(scope="module")
def calibrated(asked: CalibrationSettings, tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    return fitted(asked, tmp_path_factory.mktemp("calibrated"))


@pytest.fixture(scope="module")
def everywhere(asked: CalibrationSettings, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Calibration]:
    """With a self-check of every slice, at 4x and 8x; and its folder, to be copied."""
    settings = replace(asked, check_every=1, cases=replace(asked.cases, accelerations=(4.0, 8.0)))
    out = tmp_path_factory.mktemp("everywhere")
    return out, fitted(settings, out)


def drawn(asked: CalibrationSettings, acceleration: float = 4.0) -> list[Slice]:
    """All slices, reconstructed and self-checked one by one."""
    model, slices = load_model(asked.model), []
    for case in cases_of(replace(asked.cases, accelerations=(acceleration,))):
        m, seed = case.make(), case.draw_seed(asked.seed)
        recon = reconstruct(model, m, replace(asked.plan, seed=seed))  # type: ignore[arg-type]
        images = (torch.as_tensor(image) * m.scale for image in (recon.mean, recon.std))
        check = surprise(model, m, HidePlan(2, 2, 2), seed=seed)  # type: ignore[arg-type]
        assert m.target is not None
        slices.append(Slice(*images, m.target, check.statistics["overall"]))
    return slices


def alike(one: tuple, two: tuple) -> bool:
    return all(np.allclose(a.factors, b.factors, rtol=1e-3) for a, b in zip(one, two, strict=True))


# --- what is fitted -------------------------------------------------------------------------------------------------


def test_factors_are_those_of_the_reconstructions(asked: CalibrationSettings, calibrated: Calibration) -> None:
    known, slices = calibrated.intervals, drawn(asked)
    assert known.levels == (0.5, 0.8) and str(known.plan) == "3 samples of dpmpp_2m_sde in 2 steps"
    assert known.model == read_card(asked.model).sha256 and known.data.endswith("protocol fastmri, 8 slices")
    assert len(slices) == 8 and alike(known.tables, (conformal.fit(slices, 4.0, (0.5, 0.8), bins=2),))
    assert known.adaptive == (), "which takes a self-check of every slice"


def test_what_is_usual_is_found_on_every_other_slice(asked: CalibrationSettings, calibrated: Calibration) -> None:
    known = calibrated.checked
    assert known.plan == HidePlan(2, 2, 2) and known.operator == "fourier"
    (usual,) = known.usual
    assert [len(v) for v in usual.statistics.values()] == 15 * [4]
    assert np.allclose(usual.statistics["overall"], [s.surprise for s in drawn(asked)[::2]], rtol=1e-6)


def test_intervals_follow_the_self_check_where_every_slice_had_one(
    asked: CalibrationSettings, everywhere: tuple[Path, Calibration]
) -> None:
    for acceleration, found in zip((4.0, 8.0), everywhere[1].intervals.adaptive, strict=True):
        expected = conformal.fit(drawn(asked, acceleration), acceleration, (0.5, 0.8), bins=2, adaptive=True)
        assert alike((found,), (expected,)) and found.slope > 0, "each slice has its own surprise"
        told, own = ((f.slope, f.usual, f.lowest) for f in (found, expected))
        assert told == pytest.approx(own, rel=1e-4)


def test_every_acceleration_has_its_own(
    asked: CalibrationSettings, calibrated: Calibration, everywhere: tuple[Path, Calibration], tmp_path: Path
) -> None:
    """With 8x beside it, what was found at 4x stays what it was, and 8x is what it is alone."""
    both, out = everywhere[1], shutil.copytree(everywhere[0], tmp_path / "out")
    four, eight = (
        fitted(replace(asked, check_every=1, cases=replace(asked.cases, accelerations=(a,))), out) for a in (4.0, 8.0)
    )
    for part in ("tables", "adaptive"):
        own = [getattr(known.intervals, part) for known in (both, four, eight)]
        assert len(own[0]) == 2 and own[0] == own[1] + own[2] and own[1][0].factors != own[2][0].factors
    assert both.checked.usual == four.checked.usual + eight.checked.usual
    assert [table.slices for table in both.intervals.tables] == [8, 8]
    assert four.intervals.tables == calibrated.intervals.tables, "whichever slices are self-checked"


def test_the_self_check_knows_how_its_scans_were_measured(
    asked: CalibrationSettings, tmp_path: Path, told: Told
) -> None:
    """Not what the model is for: a model for coils may be calibrated on scans of one. It is told, once."""
    saved(tmp_path / "model", {"operator": {"kind": "sense"}})
    found = fitted(replace(asked, model=str(tmp_path / "model")), tmp_path / "out", progress=told)
    assert found.checked.operator == found.intervals.operator == "fourier"
    unlike = [notice for notice in told.notices if "by MRI with one coil, the model was trained on" in notice.text]
    assert len(unlike) == 1 and "knees-file1000002.h5-0000-4x: " in unlike[0].line
    assert unlike[0].line.startswith("warning: ")


def test_slices_with_too_few_lines_are_left_out(
    asked: CalibrationSettings, everywhere: tuple[Path, Calibration], tmp_path: Path, told: Told, monkeypatch
) -> None:
    own, seen = case_checks.surprise, list[int]()

    def not_all(*given, **settings):
        seen.append(1)
        if len(seen) in few:
            raise Unchecked
        return own(*given, **settings)

    monkeypatch.setattr(case_checks, "surprise", not_all)
    few: tuple[int, ...] = (2,)
    assert len(fitted(asked, tmp_path / "a").checked.usual[0].statistics["line"]) == 3
    out = shutil.copytree(everywhere[0], tmp_path / "c")
    next((out / ".parts").glob("calibration, self-check*/*0000-4x.npz")).unlink()
    seen[:] = [1]
    every = fitted(replace(asked, check_every=1), out, progress=told)
    assert every.intervals.adaptive == () and len(every.checked.usual[0].statistics["line"]) == 7
    assert told.text == "1 slices have too few lines for a self-check: intervals will not follow it"
    few = (1, 2, 3, 4)
    seen.clear()
    with pytest.raises(ValueError, match="of 4 slices at 4x only 0 have lines enough"):
        calibrate(asked, tmp_path / "b")


# --- going on -------------------------------------------------------------------------------------------------------


def test_a_second_run_does_nothing_twice(
    asked: CalibrationSettings, everywhere: tuple[Path, Calibration], calibrated: Calibration, tmp_path, monkeypatch
) -> None:
    """Nor what others have done: of another choice of levels, bins, or slices to check."""
    out = shutil.copytree(everywhere[0], tmp_path / "out")
    monkeypatch.setattr(module, "reconstruct", None)
    monkeypatch.setattr(case_checks, "surprise", None)
    assert fitted(asked, out) == fitted(asked, out) == calibrated
    without = fitted(replace(asked, check_every=0), out)
    assert without.self_check is None and without.intervals == calibrated.intervals, "whatever lies there"
    assert fitted(replace(asked, bins=3, levels=(0.5,)), out).intervals.levels == (0.5,)


def test_stopped_at_any_point_it_is_the_same(
    asked: CalibrationSettings, calibrated: Calibration, tmp_path: Path, monkeypatch
) -> None:
    for n in (3, 5, 2):  # among the slices, between slices and self-checks, among the self-checks
        with pytest.raises(Stop):
            calibrate(asked, tmp_path, progress=StopAt(n))
        assert not (tmp_path / "calibration.json").exists()
    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(Workspace, "keep", torn(Workspace.keep))
        calibrate(asked, tmp_path)
    assert fitted(asked, tmp_path) == calibrated


def test_two_processes_share_the_slices(asked: CalibrationSettings, calibrated: Calibration, tmp_path: Path) -> None:
    assert calibrate(asked, tmp_path, share=Share(0, 2)) is None
    done = sorted((tmp_path / ".parts").rglob("*.npz"))
    assert len(done) == 6 and not (tmp_path / "calibration.json").exists()
    assert fitted(asked, tmp_path, share=Share(1, 2)) == calibrated, "the last one writes what all have done"


def test_a_folder_is_of_one_calibration(
    asked: CalibrationSettings, everywhere: tuple[Path, Calibration], tmp_path: Path
) -> None:
    out = shutil.copytree(everywhere[0], tmp_path / "out")
    saved(tmp_path / "other", seed=1)
    shutil.copytree(asked.cases.source, tmp_path / "files")
    with h5py.File(tmp_path / "files" / FILES[1], "r+") as file:
        file["kspace"][0, 0, 0] += 1
    mine = Workspace(out, "calibration", hidden=True).meaning()["named"]["data"]
    for change, told in (
        ({"seed": 1}, "seed was 0, is 1"),
        ({"steps": 3}, r"plan\.steps was 2, is 3"),
        ({"model": str(tmp_path / "other")}, "model_sha256 was '"),
        ({"cases": replace(asked.cases, source=str(tmp_path / "files"))}, r"cases\.knees\.source was '.*data\.knees f"),
    ):
        with pytest.raises(ValueError, match=f"holds another calibration: .*{told}.* Choose another --out"):
            calibrate(replace(asked, **change), out)  # type: ignore[arg-type]
    assert sorted(mine) == [f"knees {name}" for name in FILES]


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"samples": 1}, "samples = 1 of dpmpp_2m_sde, check_samples = 2: expected 2 or more"),
        ({"sampler": "mean"}, "samples = 3 of mean, check_samples = 2: expected 2 or more, drawn"),
        ({"sampler": "ddmi"}, "sampler is 'ddmi', expected one of: "),
        ({"check_samples": 1}, "check_samples = 1: expected 2 or more"),
        ({"bins": 0}, "bins = 0, check_folds = 2: expected 1 and 2, or more"),
        ({"check_folds": 1}, "check_folds = 1: expected 1 and 2, or more"),
        ({"levels": (0.9,)}, "a level of 0.9 takes 12 calibration slices, there are 8"),
        ({"levels": ()}, "there are no levels to fit"),
        ({"check_every": 4}, "takes 3 slices at each acceleration, there are 2; check_every = 0 goes without"),
        ({"model": "prior"}, "this model is a prior"),
        ({"model": "unet"}, "expected a diffusion model"),
        ({"model": "nowhere"}, "no model 'nowhere'"),
    ],
)
def test_what_cannot_be_calibrated_is_refused_before_any_work(
    asked: CalibrationSettings, tmp_path: Path, wrong: dict, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        calibrate(replace(asked, **wrong), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("known_by", ["content", "name"])
def test_people_it_was_trained_on_are_refused(
    asked: CalibrationSettings, tmp_path: Path, monkeypatch, known_by: str
) -> None:
    model = tiny()
    assert model.card is not None
    seen = cases_of(asked.cases)[-1].data if known_by == "content" else ""
    save_model(tmp_path / "model", model.network.state_dict(), replace(model.card, data_sha256=seen))
    if known_by == "name":
        monkeypatch.setattr(module, "_trained_on", lambda card, source: source == asked.cases.source)
    with pytest.raises(ValueError, match="is what the model was trained on: calibrate on people it has not seen"):
        calibrate(replace(asked, model=str(tmp_path / "model")), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("source", "seen"), [("brain:train:64", True), ("brain:validation:64", False)])
def test_a_split_it_was_trained_on_is_refused_at_any_size(source: str, seen: bool) -> None:
    card = read_card("default")
    assert card.data.train == "brain:train:192" and module._trained_on(card, source) == seen
    assert not module._trained_on(replace(card, data=replace(card.data, train="")), "")


def test_scans_measured_in_several_ways_are_not_calibrated_together() -> None:
    y = torch.from_numpy(kspace(1)[0])
    two = Sense(coil_maps(2, (y.shape[0], y.shape[1]), 0))(ifft(y))
    made = [Measurement.from_kspace(data, MASK) for data in (y, two, y[None])]
    one, several, one_with_an_axis = (
        Case("", "fastmri", str(k), 0, 4.0, "", 0, Cases(), lambda m=m: m) for k, m in enumerate(made)
    )
    with pytest.raises(
        ValueError, match="by MRI with one coil and by MRI with several coils: calibrate on those of one"
    ):
        module._operator([one, several])
    assert module._operator([one, one_with_an_axis]) == "fourier"


# --- by command -----------------------------------------------------------------------------------------------------


def toml(asked: CalibrationSettings, path: Path) -> str:
    path.write_text(f"""
model = "{asked.model}"
samples = 3
steps = 2
levels = [0.5, 0.8]
check_every = 0
[cases]
source = "{asked.cases.source}"
protocol = "fastmri"
label = "knees"
accelerations = [4]
""")
    return str(path)


def test_by_command_into_a_folder_that_calibration_takes(
    asked: CalibrationSettings, calibrated: Calibration, tmp_path: Path, capfd
) -> None:
    """The model's folder is never touched."""
    model = shutil.copytree(asked.model, tmp_path / "model")
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in model.iterdir()}
    asked, out = replace(asked, model=str(model), bins=conformal.BINS), tmp_path / "out"
    given = ["calibrate", toml(asked, tmp_path / "c.toml"), "--out", str(out), "--device", "cpu"]
    assert main(given) == 0
    said = capfd.readouterr()
    assert said.out.strip() == str(out / "calibration.json") and f"--calibration {out}" in " ".join(said.err.split())
    found = load_calibration(out)
    assert found.intervals.levels == (0.5, 0.8) and found.self_check is None
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in model.iterdir()} == before
    used = ["reconstruct", str(scan(tmp_path / "a.h5", 1)), "--out", str(tmp_path / "r"), "--model", str(model)]
    used += ["--samples", "3", "--steps", "2", "--interval", "0.8", "--device", "cpu"]
    assert main(used) == 2 and "holds no calibration.json" in " ".join(capfd.readouterr().err.split())
    assert main([*used, "--calibration", str(out)]) == 0
    shutil.copy(out / "calibration.json", model)
    assert main(used) == 0, "or put into the model's folder: the same run"
    capfd.readouterr()
    assert main([*given, "--set", "levels=[0.9]"]) == 2
    assert "a level of 0.9 takes 12 calibration slices, there are 8" in " ".join(capfd.readouterr().err.split())


def test_two_processes_at_once_write_what_one_does(
    asked: CalibrationSettings, calibrated: Calibration, tmp_path: Path
) -> None:
    given = ["calibrate", toml(asked, tmp_path / "c.toml"), "--set", "bins=2", "--out", str(tmp_path / "out")]
    assert two_at_once(*given, "--device", "cpu") == [0, 0]
    assert load_calibration(tmp_path / "out").intervals == calibrated.intervals

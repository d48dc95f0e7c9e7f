"""Intervals and the self-check of `mcddpm reconstruct`: in files, in words, of the calibration that is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import nibabel
import numpy as np
import pydicom
import pytest
import torch

import mcddpm
from mcddpm import load_model
from mcddpm.cli import main
from mcddpm.models.denoiser import Denoiser
from mcddpm.physics.coils import coil_maps
from mcddpm.physics.fourier import Fourier
from mcddpm.reconstruction import batch
from mcddpm.system.processes import Share
from mcddpm.uncertainty import selfcheck
from mcddpm.uncertainty.calibrated_bars import CalibratedBars, error_bars
from mcddpm.uncertainty.calibration import Calibration, load_calibration
from mcddpm.uncertainty.surprise import Surprise, Unchecked
from mcddpm.uncertainty.usual import Usual
from tests.conftest import Told
from tests.scans import MASK, SIZE, kspace, quick, scan
from tests.uncertainty.made_up import calibrated_model, calibration, factors

QUICK = ["--samples", "3", "--steps", "2", "--device", "cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and its calibration. To be read, not changed."""
    return calibrated_model(tmp_path_factory.mktemp("bars") / "model")


@pytest.fixture(scope="module")
def model(folder: Path) -> Denoiser:
    found = load_model(folder)
    assert isinstance(found, Denoiser)
    return found


def run(
    path: Path, model: Denoiser, told: Told, bars: CalibratedBars | None, *formats: str, share: Share | None = None
) -> Path:
    """Reconstruct beside the scan; returns the folder."""
    assert model.folder is not None and bars is not None
    asked = {"interval": bars.interval, "self_check": bars.self_check, "formats": ("h5", *formats)}
    task = quick(model.folder, 3, **asked)
    batch.reconstruct_scans([str(path)], path.parent / "out", task, model, bars, progress=told, share=share)
    return path.parent / "out"


def checks_of(out: Path) -> dict:
    with h5py.File(out / "scan.h5") as file:
        return json.loads(file.attrs["provenance"])["self_check"]


def comments(out: Path) -> list[str]:
    return [pydicom.dcmread(path).ImageComments for path in sorted((out / "scan").glob("mean-*.dcm"))]


def with_usual(known: Calibration, change: Callable[[Usual], Usual]) -> CalibratedBars:
    """Self-checks by another idea of what is usual."""
    check = known.checked
    return CalibratedBars(
        replace(known, self_check=replace(check, usual=tuple(map(change, check.usual)))), self_check=True
    )


def never_usual(folder: Path) -> CalibratedBars:
    far = {name: tuple(-50 + 0.01 * k for k in range(41)) for name in ("overall", "line", "point")}
    return with_usual(load_calibration(folder), lambda usual: replace(usual, statistics=far))


# --- by command -----------------------------------------------------------------------------------------------------


def test_interval_and_self_check_by_command(folder: Path, tmp_path: Path, capfd) -> None:
    path, out = scan(tmp_path / "scan.h5"), tmp_path / "out"
    asked = ["--model", str(folder), "--interval", "0.9", "--self-check", "--format", "h5,nifti,dicom", *QUICK]
    assert main(["reconstruct", str(path), "--out", str(out), *asked]) == 0
    told = " ".join(capfd.readouterr().err.split())
    for what in ("intervals were", "the self-check was"):
        assert f"{what} fitted on drawn (2026-01-01): for scans like those" in told
    assert "self-check of scan: p = " in told and "extra network calls)" in told and "self-check: 0 of 1 scans" in told
    with h5py.File(out / "scan.h5") as file:
        images = {key: file[key][:] for key in ("mean", "std", "lower", "upper", "surprise")}
        provenance = json.loads(file.attrs["provenance"])
    check = provenance["self_check"]
    for mean, std, upper, one in zip(images["mean"], images["std"], images["upper"], check["slices"], strict=True):
        assert np.allclose(upper, mean + 2 ** one["overall"] * factors(mean, std) * std, rtol=1e-4)
    for used in (provenance["calibration"], check["calibration"]):
        assert (used["data"], used["date"], len(used["sha256"])) == ("drawn", "2026-01-01", 16)
    assert images["surprise"].shape == (3, SIZE, SIZE) and (images["surprise"] > 0).any()
    assert check["calls"] == 3 * 2 * 3 * 2 and [one["slice"] for one in check["slices"]] == [0, 1, 2]
    assert check["p"] == selfcheck.of_scan([one["p"] for one in check["slices"]])
    upper = nibabel.load(out / "scan_upper.nii.gz")
    assert np.allclose(upper.get_fdata().T, images["upper"], rtol=1e-5)
    assert upper.header["descrip"].item() == f"mcddpm {mcddpm.__version__}".encode()
    assert (out / "scan_lower.nii.gz").exists() and len(list((out / "scan").glob("lower-*.dcm"))) == 3


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--interval", "1.2"], "the level is 1.2, expected a value between 0 and 1"),
        (["--interval", "0.95"], "a level of 0.95 takes 26 calibration slices, this model was calibrated on 18"),
        (["--interval", "0.9", "--samples", "1"], "--interval takes 2 samples or more"),
        (["--interval", "0.9", "--mean-only"], "--interval takes 2 samples or more"),
        (["--interval", "0.9", "--calibration", "none"], "no model 'none': neither a folder"),
    ],
)
def test_intervals_that_are_refused(folder: Path, tmp_path: Path, capfd, more: list[str], message: str) -> None:
    path, out = scan(tmp_path / "scan.h5"), tmp_path / "out"
    assert main(["reconstruct", str(path), "--out", str(out), "--model", str(folder), *QUICK, *more]) == 2
    assert message in " ".join(capfd.readouterr().err.split()) and not out.exists()


@pytest.mark.parametrize("what", ["--interval=0.9", "--self-check"])
@pytest.mark.parametrize("place", ["beside", "folder", "file"])
def test_another_models_calibration_is_refused(folder: Path, tmp_path: Path, capfd, what: str, place: str) -> None:
    """Beside its weights, and by --calibration; and it has none of its own."""
    other = tmp_path / "other"
    calibrated_model(other, seed=3)
    (other / "calibration.json").unlink()
    asked = ["reconstruct", str(scan(tmp_path / "scan.h5")), "--out", str(tmp_path / "out"), *QUICK, what]
    asked += ["--model", str(other)]
    assert main(asked) == 2
    assert "run mcddpm calibrate" in " ".join(capfd.readouterr().err.split())
    text = (folder / "calibration.json").read_text()
    into = other if place == "beside" else tmp_path / "calibrations"
    into.mkdir(exist_ok=True)
    (into / "calibration.json").write_text(text)
    given = {"beside": [], "folder": [str(into)], "file": [str(into / "calibration.json")]}[place]
    assert main([*asked, *(["--calibration", *given] if given else [])]) == 2
    told = " ".join(capfd.readouterr().err.split())
    assert "fitted on other weights (sha256 " in told and not (tmp_path / "out").exists()


# --- which calibration ----------------------------------------------------------------------------------------------


def test_they_are_of_what_is_asked_for(model: Denoiser) -> None:
    assert error_bars(model) is None
    known = load_calibration(model)
    assert error_bars(model, 0.9, True) == CalibratedBars(known, 0.9, True)
    for bars, keys in ((error_bars(model, 0.5), ["calibration"]), (error_bars(model, None, True), ["self_check"])):
        assert bars is not None and list(bars.origin) == keys and len(bars.notices) == 1
    with pytest.raises(ValueError, match=r"the level is 2"):
        error_bars(model, 2.0)


def test_a_calibration_may_lie_elsewhere(model: Denoiser, folder: Path, tmp_path: Path) -> None:
    known = load_calibration(folder)
    replace(known, self_check=None).save(tmp_path)
    found = error_bars(model, 0.9, calibration=tmp_path)
    assert found is not None and found.calibration.self_check is None
    assert error_bars(model, 0.9, calibration=tmp_path / "calibration.json") == found
    with pytest.raises(ValueError, match="knows nothing of self-checks"):
        error_bars(model, 0.9, True, tmp_path)


def test_a_folder_is_of_one_calibration(model: Denoiser, tmp_path: Path, told: Told) -> None:
    path, bars = scan(tmp_path / "scan.h5", 1), error_bars(model, 0.9)
    run(path, model, told, bars)
    again = calibration(model.card.sha256)  # type: ignore[union-attr]
    replace(again, intervals=replace(again.intervals, levels=(0.4, 0.9))).save(tmp_path / "again")
    with pytest.raises(ValueError, match=r"holds another reconstruction: calibration.sha256 was"):
        run(path, model, told, error_bars(model, 0.9, calibration=tmp_path / "again"))


# --- what is told of a scan -----------------------------------------------------------------------------------------


def test_a_process_that_is_done_first_does_not_call_all_scans_understood(model: Denoiser, tmp_path: Path) -> None:
    """Under torchrun: the first process drew its slices of the scan, the other has not."""
    path, bars, last = scan(tmp_path / "scan.h5"), error_bars(model, None, True), []
    for rank in (0, 1):
        told = Told()
        run(path, model, told, bars, share=Share(rank, 2))
        last.append(str(told.notices[-1]))
    assert last[0].endswith("0 of 0 scans are not understood by the model; 1 more are not finished")
    assert "of 1 scans" in last[1] and "not finished" not in last[1]


def changed(monkeypatch: pytest.MonkeyPatch, second: Callable[[Surprise], Surprise]) -> None:
    """What is found of the second slice that is checked."""
    found, seen = selfcheck.surprise, list[int]()

    def surprise(*given, **settings) -> Surprise:
        seen.append(1)
        calm = found(*given, **settings)
        calm = replace(calm, statistics=dict.fromkeys(calm.statistics, 0.0))
        return second(calm) if len(seen) == 2 else calm

    monkeypatch.setattr(selfcheck, "surprise", surprise)


def test_one_unusual_slice_is_told_and_marked(model: Denoiser, tmp_path: Path, told: Told, monkeypatch) -> None:
    changed(monkeypatch, lambda calm: replace(calm, statistics=dict.fromkeys(calm.statistics, 99.0)))
    out = run(scan(tmp_path / "scan.h5"), model, told, error_bars(model, None, True), "dicom")
    assert "; unusual slices: 1 (among those of calibration, some 0.2)" in told.text and "slices (" not in told.text
    assert "self-check: 0 of 1 scans are not understood by the model; unusual slices in scan (1)" in told.text
    check = checks_of(out)
    assert not check["flagged"] and [one["flagged"] for one in check["slices"]] == [False, True, False]
    assert ["an unusual slice, p = 0.0" in comment for comment in comments(out)] == [False, True, False]


def test_slices_that_were_not_checked_are_not_called_calm(
    model: Denoiser, tmp_path: Path, told: Told, monkeypatch
) -> None:
    def unchecked(_: Surprise) -> Surprise:
        raise Unchecked("2 lines")

    changed(monkeypatch, unchecked)
    out = run(scan(tmp_path / "scan.h5"), model, told, error_bars(model, None, True), "dicom")
    assert ", on 2 of 3 slices" in told.text and "scan.h5, slice 1: 2 lines" in told.text
    with h5py.File(out / "scan.h5") as file:
        assert [bool(np.isnan(image).all()) for image in file["surprise"][:]] == [False, True, False]
    check = checks_of(out)
    assert (check["checked"], check["of"]) == (2, 3) and [one["slice"] for one in check["slices"]] == [0, 2]
    assert check["score"] == pytest.approx(np.mean([one["score"] for one in check["slices"]]))
    assert ["; not self-checked" in comment for comment in comments(out)] == [False, True, False]


def test_an_empty_slice_is_neither_checked_nor_missed(model: Denoiser, tmp_path: Path, told: Told) -> None:
    with h5py.File(scan(tmp_path / "scan.h5"), "r+") as file:
        file["kspace"][1] = 0
    out = run(tmp_path / "scan.h5", model, told, error_bars(model, None, True), "dicom")
    assert "slices" not in told.text.partition("extra network calls)")[2][:20]
    check = checks_of(out)
    assert (check["checked"], check["of"], check["empty"]) == (2, 2, [1])
    assert len(comments(out)) == 3 and not any("not self-checked" in comment for comment in comments(out))


def test_intervals_of_coils_do_not_follow_what_is_usual_for_one(model: Denoiser, tmp_path: Path, told: Told) -> None:
    maps = coil_maps(3, (SIZE, SIZE), 0)
    y = Fourier()(maps * Fourier().pinv(torch.from_numpy(kspace(1)))[:, None]).numpy() * MASK.numpy()
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        file["kspace"], file["mask"] = y, MASK.numpy()
    out = run(tmp_path / "scan.h5", model, told, error_bars(model, 0.9, True))
    why = "what is usual is known of scans by MRI with one coil, this one is by MRI with several coils"
    assert f"not self-checked: {why}" in told.text and "not checked (the log says why): scan" in told.text
    with h5py.File(out / "scan.h5") as file:
        mean, std, upper = (file[key][0] for key in ("mean", "std", "upper"))
        provenance = json.loads(file.attrs["provenance"])
        assert "surprise" not in file
    check = provenance["self_check"]
    assert (check["p"], check["flagged"], check["calls"]) == (None, False, 0)
    assert any(why in text for text in provenance["warnings"])
    assert np.allclose(upper, mean + factors(mean, std) * std, rtol=1e-4)


def test_a_scan_that_cannot_be_checked_is_not_called_understood(model: Denoiser, tmp_path: Path, told: Told) -> None:
    known = load_calibration(model)
    bars = CalibratedBars(replace(known, self_check=replace(known.checked, folds=30)), self_check=True)
    out = run(scan(tmp_path / "scan.h5"), model, told, bars)
    assert "scan could not be self-checked" in told.text and "not checked (the log says why): scan" in told.text
    assert "too few to hide in 30 turns" in told.text and "p = " not in told.text
    assert checks_of(out)["p"] is None


def test_what_was_found_is_there_before_the_result(model: Denoiser, folder: Path, tmp_path: Path, monkeypatch) -> None:
    """Killed after a file was written and before the next: the run that goes on still knows that it is flagged."""

    class Killed(BaseException):
        pass

    def then_killed(path: Path, result: object) -> None:
        write(path, result)  # type: ignore[arg-type]
        raise Killed

    path, write = scan(tmp_path / "scan.h5", 1), batch.WRITERS["h5"]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setitem(batch.WRITERS, "h5", then_killed)
        run(path, model, Told(), never_usual(folder))
    assert (tmp_path / "out" / "scan.h5").exists()
    told = Told()
    run(path, model, told, never_usual(folder))
    assert "1 of 1 scans are not understood" in told.text


def test_a_scan_that_is_not_understood_is_flagged(model: Denoiser, folder: Path, tmp_path: Path, told: Told) -> None:
    path, bars = scan(tmp_path / "scan.h5"), never_usual(folder)
    out = run(path, model, told, bars, "dicom")
    assert (
        "the model does not understand this scan (most often by " in told.text and "1 of 1 scans are not" in told.text
    )
    assert [n.kind for n in told.notices if "do not trust its error bars" in str(n)] == ["warning"]
    again = Told()
    run(path, model, again, bars, "dicom")
    assert "1 of 1 scans are not understood" in again.text
    found = checks_of(out)
    assert found["flagged"] is True and {one["reason"] for one in found["slices"]} <= {"overall", "line", "point"}
    comment = pydicom.dcmread(next((out / "scan").glob("std-*.dcm"))).ImageComments
    assert "does not understand this scan" in comment


def test_the_command_calls_it_a_warning(tmp_path: Path, capfd) -> None:
    folder = calibrated_model(tmp_path / "model")
    replace(never_usual(folder).calibration).save(folder)
    asked = ["--out", str(tmp_path / "out"), "--model", str(folder), "--self-check", *QUICK]
    assert main(["reconstruct", str(scan(tmp_path / "scan.h5", 1)), *asked]) == 0
    told = " ".join(capfd.readouterr().err.split())
    assert "warning: self-check of scan: p = " in told and "1 of 1 scans are not understood by the model: scan" in told

"""`mcddpm reconstruct` on files: what comes out of what goes in, what is told, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import nibabel
import numpy as np
import pytest
import torch

from mcddpm.cli import main
from mcddpm.data.readers import open_volume
from mcddpm.models.denoiser import Denoiser
from mcddpm.models.store import load_model, save_model
from mcddpm.physics import masks
from mcddpm.physics.coils import coil_maps
from mcddpm.physics.fourier import Fourier
from mcddpm.reconstruction.batch import reconstruct_scans
from mcddpm.reconstruction.inputs import find
from mcddpm.reconstruction.plan import DrawPlan
from mcddpm.reconstruction.sample import reconstruct
from tests.conftest import Told
from tests.problems import tiny
from tests.scans import MASK, SIZE, contents, kspace, quick, scan


@pytest.fixture(scope="module")
def model(model_folder: Path) -> Denoiser:
    found = load_model(model_folder)
    assert isinstance(found, Denoiser)
    return found


def provenance(path: Path) -> dict[str, Any]:
    with h5py.File(path) as file:
        found: dict[str, Any] = json.loads(file.attrs["provenance"])
        return found


# --- a file in, a file out ------------------------------------------------------------------------------------------


def test_a_file_in_a_file_out(tmp_path: Path, model: Denoiser, model_folder: Path) -> None:
    path = scan(tmp_path / "scan.h5")
    (result,) = reconstruct_scans([str(path)], tmp_path / "out", quick(model_folder), model)
    assert result == tmp_path / "out" / "scan.h5"
    y = kspace()
    with h5py.File(result) as file:
        samples, mean, std = (file[key][:] for key in ("samples", "mean", "std"))
        assert samples.shape == (3, 2, SIZE, SIZE) and samples.dtype == np.complex64
        np.testing.assert_allclose(mean, abs(samples).mean(1), rtol=1e-5)
        np.testing.assert_allclose(std, abs(samples).std(1, ddof=1), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(file["zero_filled"][:], Fourier().pinv(torch.from_numpy(y) * MASK).abs(), atol=1e-3)
        assert (file["mask"][:] == MASK.numpy()).all() and "truth" not in file
    back = Fourier()(torch.from_numpy(samples))[..., MASK]
    assert (back - torch.from_numpy(y)[:, None][..., MASK]).abs().max() < 1e-5 * abs(y).max()  # measured data come back
    told = provenance(result)
    assert told["task"]["samples"] == 2 and told["calls"] == 2 and len(told["scale"]) == 3
    card = json.loads((model_folder / "model.json").read_text())
    assert told["model"] == {"name": str(model_folder), "sha256": card["sha256"]}
    assert told["warnings"] == [] and told["simulated_phase"] is False
    assert open_volume(result).reference("std", 0) is not None


def test_it_is_what_reconstruct_draws(tmp_path: Path, model: Denoiser, model_folder: Path) -> None:
    """With the whole plan of the task, and the seed of each slice."""
    plan = DrawPlan(3, "heun", 2, "karras", seed=5)
    task = replace(quick(model_folder), plan=plan)
    (result,) = reconstruct_scans([str(scan(tmp_path / "scan.h5", 2))], tmp_path / "out", task, model)
    (found,) = find([str(tmp_path / "scan.h5")], tmp_path / "out", task)
    with h5py.File(result) as file:
        for k in range(2):
            recon = reconstruct(model, found.measurement(k), replace(plan, seed=found.seed(k)))
            np.testing.assert_array_equal(file["samples"][k], recon.samples)
    assert provenance(result)["calls"] == 3


def test_slices_have_noise_of_their_own(tmp_path: Path, model: Denoiser, model_folder: Path) -> None:
    y = np.repeat(kspace(1), 2, 0) * MASK.numpy()
    np.save(tmp_path / "a.npy", y)
    np.save(tmp_path / "b.npy", y)
    out = tmp_path / "out"
    reconstruct_scans([str(tmp_path / "*.npy")], out, quick(model_folder, kind="kspace"), model)
    with h5py.File(out / "a.h5") as a, h5py.File(out / "b.h5") as b:
        drawn = [a["samples"][0], a["samples"][1], b["samples"][0]]
    assert not np.allclose(drawn[0], drawn[1]) and not np.allclose(drawn[0], drawn[2])


def test_folders_and_formats(tmp_path: Path, model: Denoiser, model_folder: Path) -> None:
    scan(tmp_path / "in" / "one.h5", 1)
    scan(tmp_path / "in" / "deep" / "two.h5", 2, seed=1)
    task, out = quick(model_folder, formats=("h5", "nifti", "dicom")), tmp_path / "out"
    results = reconstruct_scans([str(tmp_path / "in")], out, task, model)
    names = {str(p.relative_to(out)) for p in results}
    assert names == {"one.h5", "one.nii.gz", "one", "deep/two.h5", "deep/two.nii.gz", "deep/two"}
    with h5py.File(out / "deep" / "two.h5") as file:
        mean = file["mean"][:]
    np.testing.assert_allclose(nibabel.load(out / "deep" / "two.nii.gz").get_fdata().T, mean, rtol=1e-5)
    dicom = open_volume(out / "deep" / "two")
    assert len(dicom) == 2 and dicom.reference("std", 1) is not None


def test_a_retrospective_study_keeps_the_truth(tmp_path: Path, model: Denoiser, model_folder: Path) -> None:
    path = scan(tmp_path / "full.h5", sampled=False)
    for seed in (0, 1):
        task = quick(model_folder, seed=seed, mask="random_columns", acceleration=4.0)
        reconstruct_scans([str(path)], tmp_path / str(seed), task, model)
    with h5py.File(tmp_path / "0" / "full.h5") as file, h5py.File(tmp_path / "1" / "full.h5") as other:
        np.testing.assert_allclose(file["truth"][:], Fourier().pinv(torch.from_numpy(kspace())).abs(), atol=1e-3)
        assert (file["mask"][:] == other["mask"][:]).all()  # another seed: other samples of the same measurement
        assert not np.allclose(file["samples"][:], other["samples"][:])


def test_magnitude_images_get_a_phase_and_it_is_said(tmp_path: Path, model: Denoiser, model_folder: Path) -> None:
    image = abs(Fourier().pinv(torch.from_numpy(kspace(2)))).numpy()
    image[1] = 0  # nothing in this slice
    affine = np.diag([2.0, 2, 3, 1])
    nibabel.save(nibabel.nifti1.Nifti1Image(image.transpose(2, 1, 0), affine), tmp_path / "head.nii.gz")
    task = quick(model_folder, mask="equispaced_columns", formats=("h5", "nifti"))
    reconstruct_scans([str(tmp_path / "head.nii.gz")], tmp_path / "out", task, model)
    assert provenance(tmp_path / "out" / "head.h5")["simulated_phase"] is True
    with h5py.File(tmp_path / "out" / "head.h5") as file:
        np.testing.assert_allclose(file["truth"][0], image[0], rtol=1e-4, atol=1e-2)
        assert np.angle(file["samples"][0]).std() > 0.1
        assert not file["mean"][1].any() and not file["samples"][1].any()
    np.testing.assert_allclose(nibabel.load(tmp_path / "out" / "head.nii.gz").affine, affine)


def test_mean_only_has_neither_std_nor_more_than_one_sample(tmp_path: Path, model_folder: Path) -> None:
    path, out = scan(tmp_path / "scan.h5", 1), tmp_path / "out"
    flags = ["--out", str(out), "--model", str(model_folder), "--mean-only", "--format", "h5,nifti"]
    assert main(["reconstruct", str(path), *flags]) == 0
    with h5py.File(out / "scan.h5") as file:
        assert "std" not in file and file["samples"].shape == (1, 1, SIZE, SIZE)
    assert provenance(out / "scan.h5")["calls"] == 1
    assert not (out / "scan_std.nii.gz").exists() and (out / "scan.nii.gz").exists()


def test_slices_sampled_differently_keep_all_that_was_measured(
    tmp_path: Path, model: Denoiser, model_folder: Path
) -> None:
    """A zero-filled array without a mask: every slice as it was sampled, and an empty one in the middle."""
    y = kspace(5)
    sampled = np.stack([masks.random_columns(SIZE, acceleration=4, seed=k).numpy() for k in range(5)])
    y *= sampled[:, None]
    y[2] = 0
    np.save(tmp_path / "scan.npy", y)
    reconstruct_scans([str(tmp_path / "scan.npy")], tmp_path / "out", quick(model_folder, kind="kspace"), model)
    with h5py.File(tmp_path / "out" / "scan.h5") as file:
        found, samples = file["mask"][:], file["samples"][:]
    for k in (0, 1, 3, 4):
        assert (found[k] == sampled[k]).all()
        back = Fourier()(torch.from_numpy(samples[k])).numpy()
        assert abs(back - y[k])[..., sampled[k]].max() < 1e-5 * abs(y[k]).max()
    assert not samples[2].any()


def test_several_coils_from_a_file(tmp_path: Path, model: Denoiser, model_folder: Path) -> None:
    maps = coil_maps(3, (SIZE, SIZE), 0).numpy()
    images = Fourier().pinv(torch.from_numpy(kspace(2))).numpy()
    y = Fourier()(torch.from_numpy(maps * images[:, None])).numpy() * MASK.numpy()
    with h5py.File(tmp_path / "coils.h5", "w") as file:
        file["kspace"], file["mask"] = y, MASK.numpy()
    reconstruct_scans([str(tmp_path / "coils.h5")], tmp_path / "out", quick(model_folder), model)
    with h5py.File(tmp_path / "out" / "coils.h5") as file:
        assert file["samples"].shape == (2, 2, SIZE, SIZE)
    notes = provenance(tmp_path / "out" / "coils.h5")
    noise, several = sorted(notes["warnings"], key=lambda text: "several coils" in text)
    assert "by MRI with several coils, the model" in several and "the scan has no air" in noise
    assert notes["noise"]["from"] == ["at most"] * 2 and min(notes["noise"]["std"]) > 0


def test_noise_that_is_given_stands_in_the_provenance(tmp_path: Path, model: Denoiser, model_folder: Path) -> None:
    """In the units of the file; a model of one coil reckons with it only if it is given."""
    given, auto = (quick(model_folder, noise=noise) for noise in ("0.25", "auto"))
    for name, task in (("given", given), ("auto", auto)):
        reconstruct_scans([str(scan(tmp_path / "scan.h5", 2))], tmp_path / name, task, model)
    notes = {name: provenance(tmp_path / name / "scan.h5")["noise"] for name in ("given", "auto")}
    assert notes["auto"] == {"std": [0.0, 0.0], "from": ["none", "none"]}
    assert notes["given"]["from"] == ["given"] * 2 and notes["given"]["std"] == pytest.approx([0.25, 0.25], rel=1e-5)


# --- what is told ---------------------------------------------------------------------------------------------------


def test_how_far_it_is_and_what_was_written(tmp_path: Path, model: Denoiser, model_folder: Path, told: Told) -> None:
    paths = [str(scan(tmp_path / name, 2)) for name in ("a.h5", "b.h5")]
    reconstruct_scans(paths, tmp_path / "out", quick(model_folder), model, progress=told)
    assert told.places[0][:2] == (0, 4)
    assert told.places[1:] == [(1, 4, "a"), (2, 4, "a"), (3, 4, "b"), (4, 4, "b")]
    assert [n.kind for n in told.notices] == ["written"] * 2
    assert told.text == "\n".join(f"written: {tmp_path / 'out' / name}" for name in ("a.h5", "b.h5"))


def test_a_notice_is_told_once_a_scan_and_kept(tmp_path: Path, model: Denoiser, model_folder: Path, told: Told) -> None:
    """A line that was lost: between columns that hold something, zeros are not a scanner's padding."""
    lost = int(MASK.nonzero().flatten()[3])
    for name in ("a.h5", "b.h5"):
        with h5py.File(scan(tmp_path / "in" / name, 2), "r+") as file:
            file["kspace"][:, :, lost] = 0
    reconstruct_scans([str(tmp_path / "in")], tmp_path / "out", quick(model_folder), model, progress=told)
    expected = f"1 columns that the mask calls measured hold nothing (the first is {lost}): taken as not sampled"
    said = [(n.kind, n.text) for n in told.notices if expected in n.text]
    assert said == [("warning", f"{tmp_path / 'in' / name}, slice 0: {expected}") for name in ("a.h5", "b.h5")]
    for name in ("a.h5", "b.h5"):
        assert provenance(tmp_path / "out" / name)["warnings"] == [expected]
        with h5py.File(tmp_path / "out" / name) as file:
            assert not file["mask"][:, :, lost].any()


def test_the_command_says_warnings_as_such(tmp_path: Path, capfd) -> None:
    made = tiny(shape=(48, 48))
    save_model(tmp_path / "model", made.network.state_dict(), made.card)
    path = scan(tmp_path / "scan.h5", 2)
    flags = ["--out", str(tmp_path / "out"), "--model", str(tmp_path / "model"), "--samples", "2", "--steps", "1"]
    assert main(["reconstruct", str(path), *flags]) == 0
    said = " ".join(capfd.readouterr().err.split())
    unlike = "the matrix is 32 x 32, the model was trained on 48 x 48"
    assert said.count(f"warning: {path}, slice 0: {unlike}") == 1
    assert provenance(tmp_path / "out" / "scan.h5")["warnings"][0] == unlike


def test_every_step_of_every_slice_can_be_watched(tmp_path: Path, model: Denoiser, model_folder: Path) -> None:
    seen = []
    reconstruct_scans(
        [str(scan(tmp_path / "scan.h5", 2))],
        tmp_path / "out",
        quick(model_folder),
        model,
        watch=lambda scan, index, m, now: seen.append((scan.name, index, now.step, m.scale > 0)),
    )
    assert seen == [("scan", k, step, True) for k in range(2) for step in (1, 2)]


# --- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.h5"], "no file or folder none.h5"),
        (["scan.h5", "--model", "zebra"], "no model 'zebra': neither a folder nor one of those shipped"),
        (["scan.h5", "--samples", "0"], "samples is 0, expected 1 or more"),
        (["scan.h5", "--sampler", "zebra"], "invalid choice 'zebra' for argument '--sampler'"),
        (["scan.h5", "--sampler", "ancestral", "--steps", "2000"], "2000 steps uniform in t, expected 1 to 1000"),
        (["scan.h5", "--grid", "zebra"], "invalid choice 'zebra' for argument '--grid'"),
        (["scan.h5", "--format", "bmp"], "unknown format bmp; known: h5, nifti, dicom"),
        (["scan.h5", "--memory", "some"], "memory is 'some'"),
        (["scan.h5", "--snr", "0"], "snr is 0.0, expected a value above 0"),
        (["scan.h5", "--device", "zebra"], "unknown device 'zebra'"),
        (["scan.h5", "--out", "text.h5"], "cannot write to the folder text.h5"),
    ],
)
def test_mistakes_get_one_line_and_leave_nothing(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch, capfd, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    scan(Path("scan.h5"), 1)
    Path("text.h5").write_text("not HDF5")
    flags = [] if "--model" in arguments else ["--model", str(model_folder)]
    flags += [] if "--out" in arguments else ["--out", "out"]
    try:
        code = main(["reconstruct", *arguments, *flags])
    except SystemExit as ended:  # what cannot even be parsed
        code = ended.code
    assert code == 2
    said = " ".join(capfd.readouterr().err.split())
    assert message in said and "Traceback" not in said
    assert not Path("out").exists()


def test_a_corrected_command_is_not_refused(tmp_path: Path, model: Denoiser, model_folder: Path) -> None:
    """What cannot be done is refused before the folder is another run's."""
    path, out, task = str(scan(tmp_path / "scan.h5", 1)), tmp_path / "out", quick(model_folder)
    slow = replace(task, plan=DrawPlan(2, "ancestral", 2000))
    with pytest.raises(ValueError, match="2000 steps uniform in t"):
        reconstruct_scans([path], out, slow, model)
    with pytest.raises(ValueError, match="memory is 'some'"):
        reconstruct_scans([path], out, task, model, memory="some")
    reconstruct_scans([path], out, quick(model_folder, steps=1), model)


def test_a_model_for_ct_is_refused(tmp_path: Path) -> None:
    made = tiny({"operator": {"kind": "radon", "views": 24}})
    with pytest.raises(ValueError, match=r"is for CT, which this command does not read yet; use mcddpm.reconstruct"):
        reconstruct_scans([str(scan(tmp_path / "scan.h5"))], tmp_path / "out", quick("ct"), made)
    assert not (tmp_path / "out").exists()


def test_one_bad_scan_does_not_stop_the_others(tmp_path: Path, model: Denoiser, model_folder: Path, told: Told) -> None:
    bad = scan(tmp_path / "bad.h5", 2)
    with h5py.File(bad, "r+") as file:
        file["kspace"][1, 0, 16] = np.nan
    paths, out = [str(bad), str(scan(tmp_path / "good.h5", 2))], tmp_path / "out"
    with pytest.raises(ValueError, match=r"1 of 2 scans could not be reconstructed: .*bad.h5, slice 1 holds NaN"):
        reconstruct_scans(paths, out, quick(model_folder, steps=1), model, progress=told)
    assert [n.text for n in told.notices if n.kind == "warning"] == [f"{bad}, slice 1 holds NaN or infinite values"]
    assert list(contents(out)) == ["good.h5"]

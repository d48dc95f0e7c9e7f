"""Files, folders and globs -> scans: what is found, under which name, and how each slice is measured."""

from __future__ import annotations

import math
from pathlib import Path

import h5py
import nibabel
import numpy as np
import pytest
import torch

from mcddpm.data import writers
from mcddpm.physics import masks
from mcddpm.physics.fourier import Fourier
from mcddpm.reconstruction.inputs import Task, find
from mcddpm.reconstruction.plan import DrawPlan
from tests.scans import MASK, SIZE, kspace, scan

STUDY = {"mask": "random_columns", "acceleration": 4.0}


def magnitude(slices: int = 2) -> np.ndarray:
    return Fourier().pinv(torch.from_numpy(kspace(slices))).abs().numpy()


def nifti(path: Path, images: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.nifti1.Nifti1Image(images.transpose(2, 1, 0), np.eye(4)), path)
    return path


def names(inputs: list[Path | str], out: Path, task: Task | None = None) -> dict[str, int]:
    return {found.name: found.slices for found in find([str(given) for given in inputs], out, task or Task())}


# --- what is found --------------------------------------------------------------------------------------------------


def test_files_folders_and_globs(tmp_path: Path) -> None:
    place, out = tmp_path / "in", tmp_path / "out"
    one, two = scan(place / "one.h5", 1), scan(place / "deep" / "two.h5", 2)
    assert names([one], out) == {"one": 1} and names([two], out) == {"two": 2}
    assert names([place], out) == {"one": 1, "deep/two": 2}
    assert names([place / "*.h5"], out) == {"one": 1} and names([place / "**" / "*.h5"], out) == {"one": 1, "two": 2}
    assert names([one, one, place / "o*.h5"], out) == {"one": 1}, "once is enough"


def test_every_dicom_series_of_a_folder_is_a_scan_beside_other_files(tmp_path: Path) -> None:
    place, out, study = tmp_path / "in", tmp_path / "out", Task(**STUDY)
    for series in ("study/series 1", "study/series 2"):
        writers.write_dicom(place / series, writers.Result(magnitude(), None, {"version": "test"}))
    nifti(place / "one.nii.gz", magnitude())
    (place / "study" / "notes.txt").write_text("not a scan")
    assert names([place], out, study) == {"one": 2, "study/series 1": 2, "study/series 2": 2}
    assert names([place / "study" / "series 1"], out, study) == {"series 1": 2}


def test_results_and_hidden_files_are_no_inputs(tmp_path: Path) -> None:
    scan(tmp_path / "scan.h5", 1)
    scan(tmp_path / "out" / "scan.h5", 1)
    (tmp_path / "._scan.h5").write_text("macOS leaves these")
    assert names([tmp_path], tmp_path / "out") == {"scan": 1}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (["none.h5"], "no file or folder none.h5"),
        (["*.dat"], r"no file or folder \*.dat"),
        ([], "nothing to reconstruct: expected at least one file or folder"),
        (["text.h5"], "text.h5 cannot be read as HDF5"),
        (["notes"], "notes holds no DICOM images"),
        (["scan.h5", "other/scan.h5"], "would both be written as scan; give them apart"),
    ],
)
def test_inputs_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inputs: list[str], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    scan(Path("scan.h5"))
    scan(Path("other/scan.h5"))
    Path("text.h5").write_text("not HDF5")
    Path("notes").mkdir()
    Path("notes/a.txt").write_text("not a scan")
    with pytest.raises(ValueError, match=message):
        find(inputs, Path("out"), Task())


@pytest.mark.parametrize(
    ("files", "formats", "message"),
    [
        (("a.h5", "a_std.h5"), ("nifti",), "would both write"),
        (("p.h5", "p/x.h5"), ("dicom",), "would write a folder that results of"),
    ],
)
def test_results_that_would_collide_are_refused(
    tmp_path: Path, files: tuple[str, ...], formats: tuple[str, ...], message: str
) -> None:
    for name in files:
        scan(tmp_path / "in" / name, 1)
    with pytest.raises(ValueError, match=message):
        find([str(tmp_path / "in")], tmp_path / "out", Task(formats=formats))
    assert len(find([str(tmp_path / "in")], tmp_path / "out", Task())) == 2, "as h5, they do not"


# --- how it was measured --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "task", "message"),
    [
        ("head.nii.gz", {}, "head.nii.gz holds images and no k-space; for a retrospective study say how"),
        ("full.h5", {}, "full.h5 holds k-space, fully sampled"),
        ("scan.h5", STUDY, "scan.h5 was under-sampled 5.3x when it was measured; leave out --mask"),
        ("full.h5", {"mask": "zebra"}, "unknown mask 'zebra'; known: random_columns"),
        ("full.h5", {"mask": "none.npy"}, "no mask file none.npy"),
    ],
)
def test_masks_that_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, task: dict, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    scan(Path("scan.h5"))
    scan(Path("full.h5"), sampled=False)
    nifti(Path("head.nii.gz"), magnitude())
    with pytest.raises(ValueError, match=message):
        find([file], Path("out"), Task(**task))


def test_a_retrospective_study_has_masks_of_its_slices_whatever_the_seed(tmp_path: Path) -> None:
    path = scan(tmp_path / "full.h5", sampled=False)
    (one,), (other,) = (find([str(path)], tmp_path / "out", Task(**STUDY, plan=DrawPlan(seed=k))) for k in (0, 1))
    assert all(torch.equal(one.mask(k), other.mask(k)) for k in range(3)) and not torch.equal(one.mask(0), one.mask(1))
    m = one.measurement(1)
    assert torch.equal(m.mask, one.mask(1))
    truth = Fourier().pinv(torch.from_numpy(kspace()))[1]
    assert torch.allclose(m.truth / m.scale, truth, atol=1e-3 * float(truth.abs().max()))


def test_every_slice_and_scan_has_noise_of_its_own(tmp_path: Path) -> None:
    paths = [str(scan(tmp_path / name)) for name in ("a.h5", "b.h5")]
    scans = find(paths, tmp_path / "out", Task(plan=DrawPlan(seed=3)))
    seeds = [s.seed(k, what) for s in scans for k in range(3) for what in ("samples", "phase", "self-check")]
    assert len(set(seeds)) == len(seeds)
    others = find(paths, tmp_path / "out", Task(plan=DrawPlan(seed=4)))
    assert others[0].seed(0) != scans[0].seed(0), "other samples"
    assert others[0].seed(0, "phase") == scans[0].seed(0, "phase"), "of the same measurement"


def test_magnitude_images_get_a_phase_and_noise_if_asked(tmp_path: Path) -> None:
    images = magnitude(2)
    images[1] = 0
    path = str(nifti(tmp_path / "head.nii.gz", images))
    found = {snr: find([path], tmp_path / "out", Task(**STUDY, snr=snr))[0] for snr in (math.inf, 20.0)}
    clean, noisy = (scan.measurement(0) for scan in found.values())
    truth = clean.truth / clean.scale
    np.testing.assert_allclose(truth.abs(), images[0], rtol=1e-4, atol=1e-2)
    assert truth.angle().std() > 0.1
    noise = torch.view_as_real(noisy.truth / noisy.scale - truth)
    foreground = images[0][images[0] > 0.1 * images[0].max()].mean()
    assert float(noise.std()) == pytest.approx(foreground / 20, rel=0.1)
    assert found[20.0].measurement(1) is None, "there is nothing in it"


def test_a_ct_volume_is_refused(tmp_path: Path) -> None:
    values = np.random.RandomState(0).uniform(-1000, 1000, (1, SIZE, SIZE)).astype(np.float32)
    (found,) = find([str(nifti(tmp_path / "ct.nii.gz", values))], tmp_path / "out", Task(**STUDY))
    with pytest.raises(ValueError, match="it holds negative values, as CT does"):
        found.measurement(0)


def test_a_line_that_was_lost_is_told_and_not_taken_for_measured(tmp_path: Path) -> None:
    """Zeros at the edges are a scanner's padding; between columns that hold something they are not."""
    path, lines = scan(tmp_path / "scan.h5", 2), MASK.nonzero().flatten()
    with h5py.File(path, "r+") as file:
        file["kspace"][:, :, int(lines[3])] = 0
        file["kspace"][:, :, : int(lines[0]) + 1] = 0
    (found,) = find([str(path)], tmp_path / "out", Task())
    m = found.measurement(0)
    told = f"1 columns that the mask calls measured hold nothing (the first is {lines[3]}): taken as not sampled"
    assert [(n.kind, n.text) for n in m.notices] == [("lost columns", told)]
    assert not m.mask[lines[3]] and not m.mask[lines[0]] and int(m.mask.sum()) == len(lines) - 2


def test_slices_sampled_differently_keep_all_that_was_measured(tmp_path: Path) -> None:
    """A zero-filled array without a mask: every slice as it was sampled, and an empty one in the middle."""
    sampled = torch.stack([masks.random_columns(SIZE, acceleration=4, seed=k) for k in range(5)])
    y = kspace(5) * sampled[:, None].numpy()
    y[2] = 0
    np.save(tmp_path / "scan.npy", y)
    (found,) = find([str(tmp_path / "scan.npy")], tmp_path / "out", Task(kind="kspace"))
    assert found.measurement(2) is None
    for k in (0, 1, 3, 4):
        m = found.measurement(k)
        assert torch.equal(m.mask, sampled[k])
        assert torch.allclose(m.y_m / m.scale, torch.from_numpy(y[k]), rtol=1e-5)


# --- what is asked --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"formats": ("h5", "bmp")}, "unknown format bmp; known: h5, nifti, dicom"),
        ({"snr": 0.0}, "snr is 0.0, expected a value above 0"),
        ({"noise": "-1"}, "noise is -1, expected auto or a std of 0 or more, in the units of k-space"),
        ({"noise": "inf"}, "noise is inf, expected auto or a std"),
        ({"noise": "some"}, "noise is some, expected auto or a std"),
        ({"interval": 0.9, "plan": DrawPlan(1)}, "--interval takes 2 samples or more, asked for 1"),
        ({"interval": 0.9, "plan": DrawPlan(sampler="mean")}, "--interval takes 2 samples or more, asked for 1"),
    ],
)
def test_tasks_that_cannot_be(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Task(**settings)


def test_a_format_whose_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"format nifti needs the package nibabel: pip install 'mcddpm\[medical\]'"):
        Task(formats=("nifti",))
    Task(formats=("h5",))


def test_a_task_is_kept_flat() -> None:
    """As the results of before have it, which the viewer and others read."""
    asked = Task("m", "radial", 3.0, DrawPlan(2, "heun", 4, seed=5), formats=("h5", "nifti"))
    assert asked.json == {
        **{"model": "m", "samples": 2, "sampler": "heun", "steps": 4, "grid": None, "seed": 5, "mask": "radial"},
        **{"acceleration": 3.0, "snr": "inf", "kind": None, "coil_axis": None, "interval": None, "self_check": False},
        **{"formats": ["h5", "nifti"], "noise": "auto"},
    }

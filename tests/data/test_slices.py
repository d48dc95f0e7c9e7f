"""Named data sets as stacks of axial slices, whatever their orientation on disk; and slices of one's own."""

from __future__ import annotations

import json
from pathlib import Path

import nibabel
import numpy as np
import pytest
from pydicom.dataset import FileDataset

from mcddpm.data import catalogue, legs
from mcddpm.data.examples import Stream
from mcddpm.data.readers import open_volume
from mcddpm.data.slices import Data, axial_slices, fourier_resize, open_slices, prepare
from mcddpm.physics.fourier import Fourier
from mcddpm.simulation.scans import WATER, Simulation
from tests.data.files import write_dicom


def head(path: Path, orientation: str) -> Path:
    """An ellipsoid of 700, 150 x 190 x 160 mm, with a bright spot up, front and right, at 2 mm, in some orientation."""
    shape, spacing = (90, 110, 100), 2.0
    x, y, z = np.meshgrid(*((np.arange(n) - n / 2) * spacing for n in shape), indexing="ij")
    data = ((x / 75) ** 2 + (y / 95) ** 2 + (z / 80) ** 2 < 1).astype(np.float32)
    data += ((x - 30) ** 2 + (y - 40) ** 2 + (z - 20) ** 2 < 100) * 1.0
    image = nibabel.nifti1.Nifti1Image(700 * data, np.diag([spacing, spacing, spacing, 1]))
    wanted = nibabel.orientations.axcodes2ornt(orientation)
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(
        image.as_reoriented(nibabel.orientations.ornt_transform(nibabel.io_orientation(image.affine), wanted)), path
    )
    return path


@pytest.mark.parametrize("orientation", ["RAS", "LPS", "PIR", "ASL"])
def test_axial_slices_whatever_the_orientation_on_disk(tmp_path: Path, orientation: str) -> None:
    images, kept = axial_slices(open_volume(head(tmp_path / "a.nii.gz", orientation)), 96)
    assert images.shape[1:] == (96, 96) and len(images) == len(kept) and images.dtype == np.float32
    _, i, j = np.unravel_index(images.argmax(), images.shape)
    assert i < 48 - 12 and j > 48 + 8, "the spot is to the front (up in the picture) and to the right"
    assert len(kept) == 63 or len(kept) == 64  # 125 mm at 2 mm
    middle = images[len(images) // 2]
    assert np.median(middle[middle > 0.3]) == pytest.approx(1, abs=0.02), "700, the 99.5th percentile, is brought to 1"
    width = (images[len(images) // 2] > 0.3).any(0).sum() * 240 / 96
    assert 130 < width < 155


@pytest.mark.parametrize("form", ["mgz", "analyze"])
def test_axial_slices_of_other_kinds_of_file(tmp_path: Path, form: str) -> None:
    """FreeSurfer's; and Analyze as OASIS has it: sagittal, two files in a folder, with a fourth axis of one."""
    image = nibabel.load(head(tmp_path / "a.nii.gz", "LIA" if form == "mgz" else "ASL"))
    data = np.asarray(image.dataobj, np.float32)
    if form == "mgz":
        path = tmp_path / "a.mgz"
        nibabel.save(nibabel.freesurfer.MGHImage(data, image.affine), path)
    else:
        path = tmp_path / "SUBJ_111"
        path.mkdir()
        analyze = nibabel.AnalyzeImage(data[..., None], np.diag([2.0, 2, 2, 1]))
        analyze.header["orient"] = b"\x02"
        nibabel.save(analyze, path / "a.img")
        (path / "a.gif").write_bytes(b"a picture")
    images, _ = axial_slices(open_volume(path), 96)
    known, _ = axial_slices(open_volume(tmp_path / "a.nii.gz"), 96)
    np.testing.assert_allclose(images, known, atol=1e-5)


def test_fourier_resize_keeps_intensity_and_inverts() -> None:
    rng = np.random.RandomState(0)
    small = rng.rand(20, 20)
    big = fourier_resize(small, 30)
    assert big.real.mean() == pytest.approx(small.mean())
    np.testing.assert_allclose(fourier_resize(big, 20).real, small, atol=1e-10)


def test_prepare_makes_a_cache_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCDDPM_CACHE", str(tmp_path))
    archive = catalogue.Archive("p", "p.whl", "0" * 64)
    scans = [
        catalogue.Scan(f"p{k}", split, archive, "a.nii.gz", "", "w", "l") for k, split in enumerate(("train", "test"))
    ]
    monkeypatch.setitem(catalogue.DATASETS, "heads", scans)
    with pytest.raises(ValueError, match="is not here yet: mcddpm data get heads"):
        prepare("heads", "train", 48)
    head(catalogue.volume_path("heads", scans[0]), "RAS")
    path = prepare("heads", "train", 48)
    stamp = path.stat().st_mtime_ns
    assert prepare("heads", "train", 48) == path and path.stat().st_mtime_ns == stamp
    rows = json.loads(path.with_suffix(".json").read_text())["slices"]
    assert len(rows) == len(np.load(path)) and {row["person"] for row in rows} == {"p0"}
    with pytest.raises(ValueError, match="has no split 'validation'"):
        prepare("heads", "validation", 48)
    slices = open_slices(Data(train="heads:train:48"), "heads:train:48", seed=1, count=5, real=False)
    assert len(slices) == len(rows)
    stream = Stream(slices, Fourier(), ["random_columns"], [4.0], 0, Simulation(), augment=True)
    batch = stream.batch([0, 1, 2])
    assert batch.y_m.is_complex() and batch.y_m.shape == (3, 48, 48)
    with pytest.raises(ValueError, match="not of the form NAME:SPLIT:SIZE"):
        open_slices(Data(), "heads:train", seed=1, count=5, real=False)


def test_slices_of_legs_have_the_phase_that_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Magnitude and phase are two series; the parts are slices; what is missing in the field is zero."""
    monkeypatch.setenv("MCDDPM_CACHE", str(tmp_path))
    monkeypatch.setattr(legs, "PARTS", {"train": range(2), "test": range(3, 4)})
    scans = catalogue.scans("legs")
    turns = np.arange(4)[:, None, None] / 8 + np.zeros((4, 6, 10))

    def phase(_: int, header: FileDataset) -> None:
        header.RescaleSlope, header.RescaleIntercept = 2, -4096

    for magnitude, angle in ((scans[0], scans[1]), (scans[2], scans[3])):
        for scan in (magnitude, angle):
            catalogue.volume_path("legs", scan).parent.mkdir(parents=True, exist_ok=True)
        write_dicom(catalogue.volume_path("legs", magnitude), np.full((4, 6, 10), 500, np.uint16))
        write_dicom(catalogue.volume_path("legs", angle), (2048 + 4096 * turns).astype(np.uint16), phase)
    images = np.load(path := prepare("legs", "train", 10))
    assert images.shape == (4, 10, 10) and images.dtype == np.complex64
    np.testing.assert_allclose(images[1, 2:8], np.exp(2j * np.pi / 8), atol=1e-5)
    np.testing.assert_allclose(images[:, :2], 0, atol=1e-6)
    assert [row["slice"] for row in json.loads(path.with_suffix(".json").read_text())["slices"]] == [0, 1, 0, 1]
    np.testing.assert_allclose(np.load(prepare("legs", "test", 10))[0, 5], np.exp(2j * np.pi * 3 / 8), atol=1e-5)
    with pytest.raises(ValueError, match="has no split 'validation'"):
        prepare("legs", "validation", 10)
    assert not set(legs.PARTS["train"]) & set(legs.PARTS["test"])


def test_slices_of_a_chest_are_attenuation_along_a_pixel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, in their whole field of view; what lies outside the scanner's counts as air."""
    monkeypatch.setenv("MCDDPM_CACHE", str(tmp_path))
    scan = catalogue.Scan("p", "train", catalogue.Archive("p", "p.whl", "0" * 64), "a.nii.gz", "", "w", "l")
    monkeypatch.setitem(catalogue.DATASETS, "chest", [scan])
    hounsfield = np.full((8, 8, 3), 1000, np.float32)
    hounsfield[:, :, 0] = -2048
    path = catalogue.volume_path("chest", scan)
    path.parent.mkdir(parents=True)
    nibabel.save(nibabel.nifti1.Nifti1Image(hounsfield, np.diag([3.0, 3.0, 5.0, 1])), path)
    for size, pixel in ((8, 3.0), (4, 6.0)):
        images = np.load(prepare("chest", "train", size))
        expected = np.broadcast_to(np.array([0, 2, 2])[:, None, None], (3, size, size)) * pixel * WATER
        np.testing.assert_allclose(images, expected, atol=1e-6)

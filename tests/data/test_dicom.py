"""DICOM series: as scanners write them, and as we do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.dataset import FileDataset

from mcddpm.data.readers import open_volume
from mcddpm.data.writers import Result, write
from tests.data.files import AFFINE, PROVENANCE, SLICES, H, W, counts, result, stack, write_dicom


def test_dicom_series(tmp_path: Path) -> None:
    volume = open_volume(write_dicom(tmp_path / "series", counts()))
    assert volume.kind == "image" and volume.shape == (SLICES, H, W)
    np.testing.assert_array_equal(stack(volume), counts() * 2.0 - 5)
    assert volume.geometry.spacing == (3.0, 0.8, 1.25)
    np.testing.assert_allclose(volume.geometry.affine @ [0, 0, 1, 1], [-10, -20, 3, 1])


def test_dicom_multiframe(tmp_path: Path) -> None:
    folder = write_dicom(tmp_path / "series", counts()[:1])
    header = pydicom.dcmread(next(folder.iterdir()))
    header.NumberOfFrames, header.PixelData = SLICES, counts().astype("<u2").tobytes()
    header.save_as(tmp_path / "multi.dcm", enforce_file_format=True)
    np.testing.assert_array_equal(stack(open_volume(tmp_path / "multi.dcm")), counts() * 2.0 - 5)


def test_enhanced_multiframe(tmp_path: Path) -> None:
    """Rescale, spacing and position in functional groups, frames out of order."""
    header = pydicom.dcmread(next(write_dicom(tmp_path / "series", counts()[:1]).iterdir()))
    for key in ("RescaleSlope", "RescaleIntercept", "PixelSpacing", "ImagePositionPatient", "ImageOrientationPatient"):
        delattr(header, key)
    measures, values, shared = FileDataset("", {}), FileDataset("", {}), FileDataset("", {})
    measures.PixelSpacing, measures.SliceThickness = [0.5, 0.6], 2.0
    values.RescaleSlope, values.RescaleIntercept = 3, -7
    shared.PixelMeasuresSequence, shared.PixelValueTransformationSequence = [measures], [values]
    header.SharedFunctionalGroupsSequence, frames = [shared], []
    for position in (4.0, 0.0, 2.0):
        place, frame = FileDataset("", {}), FileDataset("", {})
        place.ImagePositionPatient = [0, 0, position]
        frame.PlanePositionSequence = [place]
        frames.append(frame)
    header.PerFrameFunctionalGroupsSequence = frames
    header.NumberOfFrames, header.PixelData = SLICES, counts().astype("<u2").tobytes()
    header.save_as(tmp_path / "multi.dcm", enforce_file_format=True)
    volume = open_volume(tmp_path / "multi.dcm")
    np.testing.assert_array_equal(stack(volume), counts()[[1, 2, 0]] * 3.0 - 7)
    assert volume.geometry.spacing == pytest.approx((2.0, 0.5, 0.6))


def test_dicom_output_is_one_valid_series_without_private_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_volume(write_dicom(tmp_path / "in", counts()))
    mean, geometry = stack(source) + 5, source.geometry
    monkeypatch.setattr(pydicom.config.settings, "writing_validation_mode", pydicom.config.RAISE)
    write(tmp_path / "out", Result(mean, np.ones_like(mean), PROVENANCE, None, geometry.affine, geometry.dicom))
    monkeypatch.setattr(pydicom.config.settings, "reading_validation_mode", pydicom.config.RAISE)
    headers = [pydicom.dcmread(file) for file in sorted((tmp_path / "out").iterdir())]
    assert all(str(element.value) is not None for header in headers for element in header.iterall())  # reads each value
    assert len(headers) == 2 * SLICES and len({h.SeriesInstanceUID for h in headers}) == 1
    assert (
        len({h.SOPInstanceUID for h in headers}) == 2 * SLICES
        and len({h.InstanceNumber for h in headers}) == 2 * SLICES
    )
    original = pydicom.dcmread(next((tmp_path / "in").iterdir()))
    for h in headers:
        assert h.StudyInstanceUID == original.StudyInstanceUID and h.SeriesInstanceUID != original.SeriesInstanceUID
        assert h.PatientID == "7" and h.ImageType[:2] == ["DERIVED", "SECONDARY"]
        assert "MC-DDPM" in h.DerivationDescription and "not for diagnosis" in h.DerivationDescription
        assert not [e for e in h if e.tag.is_private]
    first = next(h for h in headers if h.ImageType[3] == "MEAN" and h.InstanceNumber == 1)
    np.testing.assert_allclose([float(v) for v in first.ImagePositionPatient], [10, 20, 0], atol=1e-4)
    assert [float(v) for v in first.PixelSpacing] == [0.8, 1.25]
    # means, by position, come back in the scanner's units
    values = first.pixel_array * float(first.RescaleSlope)
    np.testing.assert_allclose(values, stack(source)[0] + 5, atol=0.1)


def test_ct_keeps_its_units_and_names_their_letters(tmp_path: Path) -> None:
    hounsfield = np.linspace(-1000, 1200, SLICES * H * W).reshape(SLICES, H, W)
    patient = FileDataset("", {})
    patient.PatientName, patient.SpecificCharacterSet = "Müller^Jörg", "ISO_IR 192"
    write(tmp_path / "ct", Result(hounsfield, np.ones_like(hounsfield), PROVENANCE, None, AFFINE, patient, "CT"))
    np.testing.assert_allclose(stack(open_volume(tmp_path / "ct")), hounsfield, atol=0.05)
    header = pydicom.dcmread(next((tmp_path / "ct").glob("mean*")))
    assert header.Modality == "CT" and header.RescaleType == "HU" and str(header.PatientName) == "Müller^Jörg"


def test_a_left_handed_geometry_keeps_every_value_in_its_place(tmp_path: Path) -> None:
    """DICOM slices are sorted along their normal, so a mirrored stack comes back reversed, with its affine."""
    mirrored = AFFINE @ np.diag([-1.0, 1.0, 1.0, 1.0])
    r = Result(result().mean, result().std, PROVENANCE, None, mirrored)
    write(tmp_path / "series", r)
    volume = open_volume(tmp_path / "series")
    world = mirrored @ [4, 7, 2, 1]
    column, row, index, _ = np.rint(np.linalg.inv(volume.geometry.affine) @ world).astype(int)
    assert float(volume[index][row, column]) == pytest.approx(r.mean[2, 7, 4], rel=1e-3)


def test_comments_stand_on_their_slices(tmp_path: Path) -> None:
    write(tmp_path / "series", result(comments={1: "an unusual slice"}))
    for file in sorted((tmp_path / "series").iterdir()):
        told = "; an unusual slice" if file.stem.endswith("-0002") else ""
        assert pydicom.dcmread(file).ImageComments == f"Research use only{told}"

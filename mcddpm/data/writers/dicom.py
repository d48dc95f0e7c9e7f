"""DICOM: one derived series of mean, std and interval."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from mcddpm.data.writers.result import Result
from mcddpm.system import files

_COPIED = (
    *("PatientName", "PatientID", "PatientBirthDate", "PatientSex", "StudyInstanceUID", "StudyDate", "StudyTime"),
    *("StudyID", "AccessionNumber", "ReferringPhysicianName", "FrameOfReferenceUID", "PositionReferenceIndicator"),
    *("StudyDescription", "BodyPartExamined", "PatientPosition"),
)


def write_dicom(path: Path, result: Result) -> None:
    """A folder with one derived series of images: the means, the stds, the ends, 16 bit with rescale tags."""
    uids, number = _Uids(result), 0
    with files.whole(path, fresh=True) as part:
        part.mkdir()
        for name, volume in result.images.items():
            low = min(float(volume.min()), 0.0)  # Hounsfield units go below zero
            slope = max(float(volume.max()) - low, 1e-12) / 65535
            for index, image in enumerate(volume):
                number += 1
                header = _header(result, name.upper(), index, number, uids)
                header.RescaleSlope, header.RescaleIntercept = f"{slope:.10g}"[:16], f"{low:.10g}"[:16]
                header.RescaleType = "HU" if result.modality == "CT" else "US"
                header.Rows, header.Columns = image.shape
                stored = (image - float(header.RescaleIntercept)) / float(header.RescaleSlope)
                header.PixelData = np.clip(np.rint(stored), 0, 65535).astype("<u2").tobytes()
                header.save_as(part / f"{name}-{index + 1:04d}.dcm", enforce_file_format=True)


class _Uids:
    """UIDs that the same reconstruction gets again, and no other."""

    def __init__(self, result: Result) -> None:
        self.of = [json.dumps(result.provenance), hashlib.sha256(result.mean.tobytes()).hexdigest()]

    def __getitem__(self, what: str) -> Any:
        from pydicom.uid import generate_uid

        return generate_uid(entropy_srcs=[what, *self.of])


def _header(result: Result, name: str, index: int, number: int, uids: _Uids) -> Any:
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, MRImageStorage

    meta = FileMetaDataset()
    storage = CTImageStorage if result.modality == "CT" else MRImageStorage
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = storage, uids[f"{name} {index}"]
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    h = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
    h.SOPClassUID, h.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    h.SpecificCharacterSet = "ISO_IR 192"
    for key in _COPIED:
        setattr(h, key, getattr(result.dicom, key, "") if result.dicom is not None else "")
    h.StudyInstanceUID, h.FrameOfReferenceUID = (
        h.StudyInstanceUID or uids["study"],
        h.FrameOfReferenceUID or uids["frame"],
    )
    h.SeriesInstanceUID, h.SeriesNumber, h.InstanceNumber = uids["series"], "9001", str(number)
    h.Modality, h.Manufacturer, h.SeriesDescription = result.modality, "mcddpm", f"MC-DDPM {', '.join(result.images)}"
    h.ImageType = ["DERIVED", "SECONDARY", "OTHER", name]
    if result.modality == "MR":
        h.ScanningSequence, h.SequenceVariant, h.ScanOptions, h.MRAcquisitionType = "RM", "NONE", "", "2D"
        h.RepetitionTime, h.EchoTime, h.EchoTrainLength = "", "", ""
    else:
        h.KVP, h.AcquisitionNumber = "", ""
    text = f"{name.lower()} of posterior samples by MC-DDPM; not for diagnosis. {json.dumps(result.provenance)}"
    h.DerivationDescription = text[:1024]
    h.ImageComments = "; ".join(filter(None, ("Research use only", result.comments.get(index, ""))))
    h.ContentDate, h.ContentTime = "", ""  # the same reconstruction gives the same files, whenever it was made
    _place(h, np.eye(4) if result.affine is None else result.affine, index)
    h.SamplesPerPixel, h.PhotometricInterpretation, h.PixelRepresentation = 1, "MONOCHROME2", 0
    h.BitsAllocated, h.BitsStored, h.HighBit = 16, 16, 15
    return h


def _place(h: Any, affine: np.ndarray, index: int) -> None:
    """Position, orientation and spacing of a slice from the affine (RAS to DICOM's LPS)."""
    lps = np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine
    column, row, step = (lps[:3, k] for k in range(3))
    width, height, thickness = (float(np.linalg.norm(v)) for v in (column, row, step))

    def text(values: np.ndarray | list[float]) -> list[str]:
        return [f"{value:.10g}"[:16] for value in values]

    h.ImageOrientationPatient = text([*column / width, *row / height])
    h.ImagePositionPatient = text(lps[:3, 3] + index * step)
    h.PixelSpacing, h.SliceThickness = text([height, width]), text([thickness])[0]

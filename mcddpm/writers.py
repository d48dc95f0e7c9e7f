"""Reconstructions -> files: h5 with everything, NIfTI and DICOM with mean, std and interval. Each whole, or not there.

Provenance (model, seed, sampler, steps, mask, scale, version) goes into each: as an attribute, as a JSON beside the
NIfTI, as DICOM's derivation description. Geometry is the input's. Of a DICOM header only what identifies patient, study
and geometry is taken over; private elements are not.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mcddpm import runtime


@dataclass(frozen=True)
class Result:
    """mean, std: (slices, H, W), real; std is None if there is but one sample. samples: for each slice (N, H, W),
    complex or real, read one slice at a time; affine: as `readers.Geometry` has it; interval: its lower and upper ends,
    each as mean; beside: what else h5 files keep, as the zero-filled image, the mask, the truth."""

    mean: np.ndarray
    std: np.ndarray | None
    provenance: dict[str, Any]
    samples: Sequence[np.ndarray] | np.ndarray | None = None
    affine: np.ndarray | None = None
    dicom: Any = None
    modality: str = "MR"
    interval: tuple[np.ndarray, np.ndarray] | None = None
    beside: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.modality not in ("MR", "CT"):
            raise ValueError(f"modality is {self.modality!r}, expected MR or CT")
        std = self.mean if self.std is None else self.std
        if self.mean.ndim != 3 or self.mean.shape != std.shape:
            raise ValueError(f"mean and std have shapes {self.mean.shape} and {std.shape}, expected one (slices, H, W)")
        if self.samples is not None:
            shape = (len(self.samples), *self.samples[0].shape)
            if (shape[0], *shape[2:]) != self.mean.shape:
                raise ValueError(f"samples have shape {shape}, expected (slices, N, H, W) of {self.mean.shape}")

    @property
    def images(self) -> dict[str, np.ndarray]:
        """What every format shows: mean, and std and the ends of the interval if there are any."""
        ends = {} if self.interval is None else dict(zip(("lower", "upper"), self.interval, strict=True))
        return {"mean": self.mean} | ({} if self.std is None else {"std": self.std}) | ends


def write(path: Path, result: Result) -> None:
    """By the ending: .h5, .nii or .nii.gz (mean; std beside it), or a folder for a DICOM series."""
    name = path.name.lower()
    if name.endswith((".h5", ".hdf5")):
        write_h5(path, result)
    elif name.endswith((".nii", ".nii.gz")):
        write_nifti(path, result)
    elif not path.suffix:
        write_dicom(path, result)
    else:
        raise ValueError(f"{path} has an unknown ending; known: .h5, .nii, .nii.gz, or a folder for DICOM")


def _whole(path: Path, fill: Callable[[Path], None]) -> None:
    """Fill a file or folder under a temporary name that keeps its endings, then rename it."""
    _refuse(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".part-{path.name}")
    shutil.rmtree(part, ignore_errors=True)
    part.unlink(missing_ok=True)
    try:
        fill(part)
        for file in [part, *part.rglob("*")] if part.is_dir() else [part]:
            runtime.flush(file)
        part.rename(path)
    except RuntimeError as error:  # h5py's word for a full disk
        raise OSError(f"{path} cannot be written: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
        part.unlink(missing_ok=True)


def _refuse(path: Path) -> None:
    if path.exists():
        raise ValueError(f"{path} is there already; it is not overwritten")


def write_h5(path: Path, result: Result) -> None:
    """mean, std, samples (each slice a chunk, so that one is read at a time), affine; provenance as JSON attribute."""
    import h5py

    def fill(part: Path) -> None:
        with h5py.File(part, "w") as file:
            file.attrs["provenance"] = json.dumps(result.provenance)
            for key, values in (result.images | dict(result.beside)).items():
                packed = values if values.dtype == bool else values.astype(np.float32)
                chunk = (1, *values.shape[1:])
                file.create_dataset(key, data=packed, chunks=chunk, compression="gzip", shuffle=True)
            if result.samples is not None:
                first = result.samples[0]
                kind = np.complex64 if np.iscomplexobj(first) else np.float32
                # Not packed: the last bits are noise, and a viewer wants a slice at once.
                samples = file.create_dataset("samples", (len(result.samples), *first.shape), kind)
                for index, values in enumerate(result.samples):
                    samples[index] = values
            if result.affine is not None:
                file["affine"] = result.affine

    _whole(path, fill)


def write_nifti(path: Path, result: Result) -> None:
    """PATH holds the mean, NAME_std the std if there is one, NAME_lower and NAME_upper an interval, NAME.json the
    provenance; axes and affine as read."""
    import nibabel

    companions = nifti_companions(path)
    affine = np.eye(4) if result.affine is None else result.affine

    def save(values: np.ndarray) -> Callable[[Path], None]:
        def fill(part: Path) -> None:
            image = nibabel.nifti1.Nifti1Image(values.astype(np.float32).transpose(2, 1, 0), affine)
            image.header["descrip"] = str(result.provenance.get("made_by", "mcddpm")).encode()[:79]
            image.header.set_xyzt_units("mm")
            nibabel.save(image, part)

        return fill

    beside: dict[Path, Callable[[Path], None]] = {}
    for name, values in result.images.items():
        if name != "mean":
            beside[companions[name]] = save(values)
    beside[companions["provenance"]] = lambda part: _text(part, result.provenance)
    beside[path] = save(result.mean)  # last: where it is, the others are
    for target in beside:
        _refuse(target)
    written = []
    try:
        for target, fill in beside.items():
            _whole(target, fill)
            written.append(target)
    except BaseException:
        for target in written:
            target.unlink()
        raise


def nifti_companions(path: Path) -> dict[str, Path]:
    """NAME_std.nii.gz, NAME_lower.nii.gz, NAME_upper.nii.gz and NAME.json of NAME.nii.gz."""
    base = path.name.removesuffix(".gz").removesuffix(".nii")
    found = {key: path.with_name(f"{base}_{key}{path.name[len(base) :]}") for key in ("std", "lower", "upper")}
    return found | {"provenance": path.with_name(f"{base}.json")}


def _text(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1) + "\n")


# --- DICOM ----------------------------------------------------------------------------------------------------------

_COPIED = (
    *("PatientName", "PatientID", "PatientBirthDate", "PatientSex", "StudyInstanceUID", "StudyDate", "StudyTime"),
    *("StudyID", "AccessionNumber", "ReferringPhysicianName", "FrameOfReferenceUID", "PositionReferenceIndicator"),
    *("StudyDescription", "BodyPartExamined", "PatientPosition"),
)


def write_dicom(path: Path, result: Result) -> None:
    """A folder with one derived series of images: the means, the stds, the ends, 16 bit with rescale tags."""

    def fill(part: Path) -> None:
        part.mkdir()
        uids = _Uids(result)
        number = 0
        for name, volume in ((name.upper(), volume) for name, volume in result.images.items()):
            low = min(float(volume.min()), 0.0)  # Hounsfield units go below zero
            slope = max(float(volume.max()) - low, 1e-12) / 65535
            for index, image in enumerate(volume):
                number += 1
                header = _header(result, name, index, number, uids)
                header.RescaleSlope, header.RescaleIntercept = f"{slope:.10g}"[:16], f"{low:.10g}"[:16]
                header.RescaleType = "HU" if result.modality == "CT" else "US"
                header.Rows, header.Columns = image.shape
                stored = (image - float(header.RescaleIntercept)) / float(header.RescaleSlope)
                header.PixelData = np.clip(np.rint(stored), 0, 65535).astype("<u2").tobytes()
                header.save_as(part / f"{name.lower()}-{index + 1:04d}.dcm", enforce_file_format=True)

    _whole(path, fill)


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
    h.ImageComments = f"Research use only{_doubt(result.provenance.get('self_check'), index)}"
    h.ContentDate, h.ContentTime = "", ""  # the same reconstruction gives the same files, whenever it was made
    _place(h, np.eye(4) if result.affine is None else result.affine, index)
    h.SamplesPerPixel, h.PhotometricInterpretation, h.PixelRepresentation = 1, "MONOCHROME2", 0
    h.BitsAllocated, h.BitsStored, h.HighBit = 16, 16, 15
    return h


def _doubt(check: dict[str, Any] | None, index: int) -> str:
    """What the self-check, if one was asked for, has against this slice."""
    if check is None:
        return ""
    own = next((one for one in check["slices"] if one["slice"] == index), None)
    if check["flagged"]:
        return "; self-check: the model does not understand this scan"
    if own is None and index in check.get("empty", ()):
        return ""
    if own is None:
        return "; not self-checked"
    return f"; self-check: an unusual slice, p = {own['p']:.3f}" if own["flagged"] else ""


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

"""Images with geometry: NIfTI, NRRD, DICOM."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mcddpm.readers.volume import Geometry, Volume


def open_nifti(path: Path, kind: str | None) -> Volume:
    """(X, Y, Z) on disk; slice k is data[:, :, k] with rows along Y. Complex data may be k-space: say which."""
    import nibabel

    try:
        image: Any = nibabel.load(path)
    except (nibabel.filebasedimages.ImageFileError, OSError, EOFError) as error:
        raise ValueError(f"{path} cannot be read as NIfTI: {error}") from error
    if len(image.shape) != 3:
        raise ValueError(f"{path} has shape {image.shape}, expected three axes")
    if image.get_data_dtype().kind == "c" and kind is None:
        raise ValueError(f"{path} holds complex numbers: state kind=kspace or kind=image")

    @lru_cache(maxsize=1)
    def whole() -> np.ndarray:  # gzip has no random access: unpack once instead of once a slice
        again: Any = nibabel.load(path)
        return np.asarray(again.dataobj)

    def read(index: int) -> np.ndarray:
        try:
            if path.suffix == ".gz":
                return whole()[:, :, index].T
            again: Any = nibabel.load(path)
            return np.asarray(again.dataobj[:, :, index]).T
        except (OSError, EOFError, ValueError) as error:
            raise ValueError(f"{path}, slice {index} cannot be read: {error}") from error

    X, Y, Z = image.shape
    geometry = Geometry(affine=np.asarray(image.affine))
    return Volume(path, kind or "image", (Z, Y, X), read, geometry=geometry)


def open_nrrd(path: Path) -> Volume:
    import nrrd

    try:
        data, header = nrrd.read(str(path))
    except (nrrd.NRRDError, OSError, EOFError) as error:
        raise ValueError(f"{path} cannot be read as NRRD: {error}") from error
    if data.ndim != 3:
        raise ValueError(f"{path} has shape {data.shape}, expected three axes")
    affine = np.eye(4)
    if "space directions" in header:
        affine[:3, :3] = np.asarray(header["space directions"]).T
        affine[:3, 3] = header.get("space origin", np.zeros(3))
        if str(header.get("space", "")).startswith("left-posterior"):
            affine = np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine
    X, Y, Z = data.shape
    return Volume(path, "image", (Z, Y, X), lambda index: data[:, :, index].T, geometry=Geometry(affine=affine))


def open_dicom(path: Path) -> Volume:
    """One series: a folder of slices, or a multi-frame file; values in the units that the rescale tags give."""
    import pydicom
    from pydicom.errors import InvalidDicomError

    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    headers = []
    for file in files:
        try:
            header = pydicom.dcmread(file, stop_before_pixels=True)
        except (InvalidDicomError, OSError, EOFError):
            if not path.is_dir():
                raise ValueError(f"{path} cannot be read as DICOM") from None
            continue
        if "Rows" in header:
            headers.append((file, header))
    if not headers:
        raise ValueError(f"{path} holds no DICOM images")
    if len(headers) == 1 and int(headers[0][1].get("NumberOfFrames", 1)) > 1:
        return _open_multiframe(*headers[0])
    _check_series(path, headers)
    normal = np.cross(*np.reshape(_orientation(headers[0][1]), (2, 3)))
    headers.sort(key=lambda pair: float(np.dot(normal, _position(pair[1]))))
    names = [file for file, _ in headers]

    def read(index: int) -> np.ndarray:
        return _dicom_values(pydicom.dcmread(names[index]), names[index])

    first = headers[0][1]
    shape = (len(names), int(first.Rows), int(first.Columns))
    geometry = Geometry(affine=_dicom_affine([header for _, header in headers]), dicom=first)
    return Volume(path, "image", shape, read, geometry=geometry)


def _check_series(path: Path, headers: list[tuple[Path, Any]]) -> None:
    series = sorted({str(header.SeriesInstanceUID) for _, header in headers})
    if len(series) > 1:
        raise ValueError(f"{path} holds {len(series)} series, expected one: {', '.join(series[:3])}")
    for what, of in (("orientations", _orientation), ("shapes", lambda h: (int(h.Rows), int(h.Columns)))):
        values = [np.round(of(header), 4).tolist() for _, header in headers]
        for (file, _), value in zip(headers, values, strict=True):
            if value != values[0]:
                raise ValueError(f"{path} has mixed {what}: {file.name} has {value}, {headers[0][0].name} {values[0]}")


def _orientation(header: Any) -> list[float]:
    return [float(v) for v in header.get("ImageOrientationPatient", [1, 0, 0, 0, 1, 0])]


def _position(header: Any) -> list[float]:
    return [float(v) for v in header.get("ImagePositionPatient", [0, 0, float(header.get("InstanceNumber", 0) or 0)])]


def _dicom_affine(headers: list[Any]) -> np.ndarray:
    """(column, row, slice) -> RAS+ millimetres, from the first slice's tags and the step to the last."""
    row, column = np.reshape(_orientation(headers[0]), (2, 3))
    spacing = [float(v) for v in headers[0].get("PixelSpacing", [1, 1])]
    start, end = np.array(_position(headers[0])), np.array(_position(headers[-1]))
    thickness = float(headers[0].get("SliceThickness", 1) or 1)
    step = (end - start) / (len(headers) - 1) if len(headers) > 1 else np.cross(row, column) * thickness
    affine = np.eye(4)
    affine[:3] = np.stack([row * spacing[1], column * spacing[0], step, start], axis=1)
    return np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine  # DICOM's LPS to RAS


def _dicom_values(header: Any, path: Path) -> np.ndarray:
    try:
        values = header.pixel_array.astype(np.float32)
    except (AttributeError, ValueError, RuntimeError, NotImplementedError) as error:
        raise ValueError(f"{path}: its pixels cannot be read: {error}") from error
    return values * float(header.get("RescaleSlope", 1)) + float(header.get("RescaleIntercept", 0))


def _open_multiframe(path: Path, header: Any) -> Volume:
    import pydicom

    frames = int(header.NumberOfFrames)

    def read(index: int) -> np.ndarray:
        return _dicom_values(pydicom.dcmread(path), path)[index]

    shape = (frames, int(header.Rows), int(header.Columns))
    return Volume(path, "image", shape, read, geometry=Geometry(dicom=header))

"""DICOM: one series, as a folder of slices or a multi-frame file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mcddpm.data.volume import Geometry, Volume

# --- DICOM ----------------------------------------------------------------------------------------------------------


def open_dicom(path: Path) -> Volume:
    """One series: a folder of slices, or a multi-frame file; values in the units that the rescale tags give."""
    headers = _headers(path)
    if len(headers) == 1 and int(headers[0][1].get("NumberOfFrames") or 1) > 1:
        return _open_multiframe(*headers[0])
    headers, std = _split_our_own(headers)
    places = _sorted_by_place(path, headers)
    spread = {_round(_place(header)): file for file, header in std}
    files = [file for file, _ in places]

    def read_from(names: list[Path]) -> Callable[[int], np.ndarray]:
        import pydicom

        return lambda index: _values(pydicom.dcmread(names[index]), names[index])

    first = places[0][1]
    shape = (len(files), int(first.Rows), int(first.Columns))
    affine = _affine(_place(first), _place(places[-1][1]), len(places))
    stds = [spread[_round(_place(header))] for _, header in places if _round(_place(header)) in spread]
    references = {"std": read_from(stds)} if len(stds) == len(files) else {}
    geometry = Geometry(affine=affine, dicom=first)
    return Volume(path, "image", shape, read_from(files), geometry=geometry, references=references)


def is_dicom(file: Path) -> bool:
    """By its first bytes; the ending says nothing."""
    with file.open("rb") as stream:
        return stream.read(132)[128:] == b"DICM"


def _headers(path: Path) -> list[tuple[Path, Any]]:
    """Of all images in a folder, or of one file. A file that begins as DICOM and cannot be read is not passed over."""
    import pydicom
    from pydicom.errors import InvalidDicomError

    result = []
    for file in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
        if path.is_dir() and not is_dicom(file):
            continue
        try:
            header = pydicom.dcmread(file, stop_before_pixels=True)
        except (InvalidDicomError, OSError, EOFError, ValueError) as error:
            raise ValueError(f"{file} cannot be read as DICOM: {error}") from error
        if header.get("Rows") and header.get("Columns"):
            result.append((file, header))
        elif "DirectoryRecordSequence" not in header:
            raise ValueError(f"{file} is DICOM without an image, or cut short")
    if not result:
        raise ValueError(f"{path} holds no DICOM images")
    return result


def _split_our_own(headers: list[tuple[Path, Any]]) -> tuple[list[tuple[Path, Any]], list[tuple[Path, Any]]]:
    """Means and stds of a series that `writers` wrote; everything and nothing for others."""
    std = [
        pair for pair in headers if pair[1].get("Manufacturer") == "mcddpm" and list(pair[1].ImageType)[3:] == ["STD"]
    ]
    return ([pair for pair in headers if pair not in std], std) if std and len(std) < len(headers) else (headers, [])


def _sorted_by_place(path: Path, headers: list[tuple[Path, Any]]) -> list[tuple[Path, Any]]:
    """Along the slices' normal; refused if they are not one evenly spaced stack."""
    series = sorted({str(header.get("SeriesInstanceUID") or "none") for _, header in headers})
    if len(series) > 1:
        raise ValueError(f"{path} holds {len(series)} series, expected one: {', '.join(series[:3])}")
    for what, of in (("orientations", lambda h: _place(h)[0]), ("shapes", lambda h: [int(h.Rows), int(h.Columns)])):
        values = [np.round(of(header), 4).tolist() for _, header in headers]
        for (file, _), value in zip(headers, values, strict=True):
            if value != values[0]:
                raise ValueError(f"{path} has mixed {what}: {file.name} has {value}, {headers[0][0].name} {values[0]}")
    normal = np.cross(*np.reshape(_place(headers[0][1])[0], (2, 3)))
    order = sorted(headers, key=lambda pair: float(np.dot(normal, _place(pair[1])[1])))
    steps = np.diff([float(np.dot(normal, _place(header)[1])) for _, header in order])
    if len(steps) and steps.min() < 1e-3:
        raise ValueError(f"{path} has {int((steps < 1e-3).sum())} slices in the place of others (echoes? phases?)")
    if len(steps) and steps.max() > 1.1 * steps.min():
        raise ValueError(f"{path} has gaps of {steps.min():.3g} to {steps.max():.3g} mm between slices: one is missing")
    return order


Place = tuple[list[float], list[float], list[float], float]  # orientation, position, pixel spacing, thickness


def _place(header: Any, frame: Any = None) -> Place:
    """Where an image lies. Enhanced objects say so in groups, of the frame or shared; others at the top."""

    def find(group: str, key: str, default: list[float]) -> list[float]:
        for holder in (frame, *(header.get("SharedFunctionalGroupsSequence") or [])[:1]):
            for item in (holder.get(group) or [])[:1] if holder is not None else []:
                if item.get(key) is not None:
                    return [float(v) for v in np.atleast_1d(item.get(key))]
        value = header.get(key)
        return default if value is None or value == "" else [float(v) for v in np.atleast_1d(value)]

    number = float(header.get("InstanceNumber") or 0)
    return (
        find("PlaneOrientationSequence", "ImageOrientationPatient", [1.0, 0, 0, 0, 1, 0]),
        find("PlanePositionSequence", "ImagePositionPatient", [0.0, 0, number]),
        find("PixelMeasuresSequence", "PixelSpacing", [1.0, 1.0]),
        find("PixelMeasuresSequence", "SliceThickness", [1.0])[0],
    )


def _round(place: Place) -> tuple[float, ...]:
    return tuple(np.round(place[1], 3))


def _affine(first: Place, last: Place, count: int) -> np.ndarray:
    """(column, row, slice) -> RAS+ millimetres, from the first slice and the step to the last."""
    row, column = np.reshape(first[0], (2, 3))
    start, end = np.array(first[1]), np.array(last[1])
    step = (end - start) / (count - 1) if count > 1 else np.cross(row, column) * first[3]
    affine = np.eye(4)
    affine[:3] = np.stack([row * first[2][1], column * first[2][0], step, start], axis=1)
    return np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine  # DICOM's LPS to RAS


def _values(header: Any, path: Path) -> np.ndarray:
    try:
        values = header.pixel_array.astype(np.float32)
    except (AttributeError, ValueError, RuntimeError, NotImplementedError) as error:
        raise ValueError(f"{path}: its pixels cannot be read: {error}") from error
    return values * float(header.get("RescaleSlope") or 1) + float(header.get("RescaleIntercept") or 0)


def _open_multiframe(path: Path, header: Any) -> Volume:
    """Frames in the order of their positions, each decoded alone, with the rescale tags of its group or of the file."""
    from pydicom.pixels import pixel_array

    frames = list(header.get("PerFrameFunctionalGroupsSequence") or [None] * int(header.NumberOfFrames))
    places = [_place(header, frame) for frame in frames]
    normal = np.cross(*np.reshape(places[0][0], (2, 3)))
    order = sorted(range(len(frames)), key=lambda k: float(np.dot(normal, places[k][1])))

    def rescale(frame: Any, key: str, default: float) -> float:
        for holder in (frame, *(header.get("SharedFunctionalGroupsSequence") or [])[:1], None):
            source = (
                header if holder is None else next(iter(holder.get("PixelValueTransformationSequence") or []), None)
            )
            if source is not None and source.get(key) not in (None, ""):
                return float(source.get(key))
        return default

    def read(index: int) -> np.ndarray:
        k = order[index]
        try:
            values = pixel_array(path, index=k).astype(np.float32)
        except (AttributeError, ValueError, RuntimeError, NotImplementedError, OSError) as error:
            raise ValueError(f"{path}, frame {k}: its pixels cannot be read: {error}") from error
        return values * rescale(frames[k], "RescaleSlope", 1) + rescale(frames[k], "RescaleIntercept", 0)

    shape = (len(frames), int(header.Rows), int(header.Columns))
    apart = np.linalg.norm(np.subtract(places[order[-1]][1], places[order[0]][1])) > 1e-6
    affine = _affine(places[order[0]], places[order[-1]], len(frames) if apart else 1)
    return Volume(path, "image", shape, read, geometry=Geometry(affine=affine, dicom=header))

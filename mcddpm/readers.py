"""Files -> `Volume`: the slices of one scan, read one at a time when asked for, with the file closed in between.

    open_volume(path)                         fastMRI and ISMRMRD h5, NIfTI, DICOM (file or folder), NRRD, our results
    open_volume("scan.npy", kind="kspace")    a bare array does not say what it is: you do

A slice is (H, W), or (C, H, W) with coils; k-space in our centred FFT. What a file does not say (k-space or image,
which axis holds coils) is never guessed. Each format imports its library when it is first met.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

KINDS = ("kspace", "image")


@dataclass(frozen=True)
class Geometry:
    """Where slices lie: an affine from (column, row, slice) to RAS+ millimetres as NIfTI has it, and a DICOM header."""

    affine: np.ndarray | None = None
    dicom: Any = None

    @property
    def spacing(self) -> tuple[float, float, float]:
        """(slice, row, column) spacing in millimetres; 1 where unknown."""
        if self.affine is None:
            return 1.0, 1.0, 1.0
        column, row, slice_ = np.linalg.norm(self.affine[:3, :3], axis=0)
        return float(slice_), float(row), float(column)


@dataclass(frozen=True)
class Volume:
    """shape: (slices, H, W) or (slices, C, H, W); kind: "kspace" or "image"; mask: what a prospective scan sampled."""

    path: Path
    kind: str
    shape: tuple[int, ...]
    read: Callable[[int], np.ndarray] = field(repr=False)
    mask: Tensor | None = None
    acquisition: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)
    geometry: Geometry = field(default_factory=Geometry, repr=False)
    references: dict[str, Callable[[int], np.ndarray]] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def coils(self) -> int:
        """0 if there is no coil axis."""
        return self.shape[1] if len(self.shape) == 4 else 0

    def __getitem__(self, index: int) -> Tensor:
        """A slice, complex64 (k-space, complex images) or float32; refused if it holds no usable numbers."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.path} has {len(self)} slices, there is no slice {index}")
        values = np.asarray(self.read(index % len(self)))
        if values.shape != self.shape[1:]:
            raise ValueError(f"{self.path}, slice {index} has shape {values.shape}, expected {self.shape[1:]}")
        dtype = np.complex64 if values.dtype.kind == "c" else np.float32
        fresh = values.dtype == dtype and values.flags.c_contiguous and values.flags.owndata  # nobody else's: no copy
        values = values if fresh else np.array(values, dtype, order="C")
        # The sum is finite if all values are, and quicker; where it is not, look again.
        if not np.isfinite(values.view(np.float32).sum()) and not np.isfinite(values).all():
            raise ValueError(f"{self.path}, slice {index} holds NaN or infinite values")
        return torch.from_numpy(values)

    def reference(self, name: str, index: int) -> Tensor | None:
        """A reference image that came with the file (reconstruction_rss, reconstruction_esc), (H, W), or None."""
        read = self.references.get(name)
        return None if read is None else torch.from_numpy(np.asarray(read(index), dtype=np.float32))


def open_volume(path: str | Path, *, kind: str | None = None, coil_axis: int | None = None) -> Volume:
    """Find out what a file is and open it. `kind` and `coil_axis` state what the file does not."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"no file or folder {path}")
    if kind is not None and kind not in KINDS:
        raise ValueError(f"kind is {kind!r}, expected one of: {', '.join(KINDS)}")
    name = path.name.lower()
    try:
        if path.is_dir() or name.endswith((".dcm", ".ima")):
            volume = _open_dicom(path)
        elif name.endswith((".h5", ".hdf5")):
            volume = _open_h5(path)
        elif name.endswith((".nii", ".nii.gz")):
            volume = _open_nifti(path, kind)
        elif name.endswith((".nrrd", ".nhdr")):
            volume = _open_nrrd(path)
        elif name.endswith((".npy", ".npz")):
            volume = _open_array(path, kind, coil_axis)
        else:
            raise ValueError(
                f"{path} has an unknown ending; "
                "known: .h5, .nii, .nii.gz, .dcm, .nrrd, .npy, .npz, or a folder of DICOM files"
            )
    except ImportError as error:
        extra = "mri" if error.name == "ismrmrd" else "medical"
        raise ValueError(f"{path} needs the package {error.name}: pip install 'mcddpm[{extra}]'") from error
    if kind is not None and volume.kind != kind:
        raise ValueError(f"{path} holds {volume.kind}, but kind={kind!r} was asked for")
    if 0 in volume.shape:
        raise ValueError(f"{path} has shape {volume.shape}: it is empty")
    return volume


# --- HDF5 -----------------------------------------------------------------------------------------------------------


def _open_h5(path: Path) -> Volume:
    import h5py

    try:
        with h5py.File(path, "r") as file:
            if "kspace" in file:
                return _open_fastmri(path, file)
            if "mean" in file and "provenance" in file.attrs:
                return _open_result(path, file)
            if "real_dat" in file and "imag_dat" in file:
                return _open_pyqmri(path, file)
            raw = "dataset" in file and "data" in file["dataset"]
            found = ", ".join(list(file)[:8]) or "nothing"
    except OSError as error:
        raise ValueError(f"{path} cannot be read as HDF5: {error}") from error
    if raw:
        return _open_ismrmrd(path)
    raise ValueError(f"{path} holds {found}; expected fastMRI's kspace, ISMRMRD's dataset/data, or a result of ours")


def _h5_slice(path: Path, key: str) -> Callable[[int], np.ndarray]:
    """Reads one slice and closes the file. (A whole volume for every slice made the authors' training 17x slower.)"""

    import h5py

    with h5py.File(path, "r") as file:
        data = file[key]
        shape, dtype, offset = data.shape[1:], data.dtype, data.id.get_offset()
        plain = data.chunks is None and offset is not None and not data.external and dtype in (np.complex64, np.float32)
    size = int(np.prod(shape))

    def read(index: int) -> np.ndarray:
        try:
            if plain:  # one run of bytes: three times faster than through the library
                values = np.fromfile(path, dtype, size, offset=offset + index * size * dtype.itemsize)
                values.shape = shape  # in place, so that the array is known to own its memory
                return values
            with h5py.File(path, "r") as file:
                return file[key][index]
        except (OSError, KeyError, ValueError) as error:
            raise ValueError(f"{path}, {key}, slice {index} cannot be read: {error}") from error

    return read


def _open_fastmri(path: Path, file: Any) -> Volume:
    """kspace (S, H, W) or (S, C, H, W), already centred as ours; references and acquisition if there."""
    kspace = file["kspace"]
    if kspace.dtype.kind != "c":
        raise ValueError(f"{path}: kspace has dtype {kspace.dtype}, expected complex numbers")
    if kspace.ndim not in (3, 4):
        raise ValueError(f"{path}: kspace has shape {kspace.shape}, expected (slices, [coils,] height, width)")
    mask = None
    if "mask" in file:
        mask = torch.from_numpy(np.asarray(file["mask"]).astype(bool))
        if mask.shape[-1] != kspace.shape[-1]:
            raise ValueError(f"{path}: mask has {mask.shape[-1]} columns, kspace has {kspace.shape[-1]}")
    elif kspace.size:
        mask = _columns_not_zero(kspace[kspace.shape[0] // 2])
    attributes = {key: _plain(value) for key, value in file.attrs.items()}
    names = [key for key in ("reconstruction_rss", "reconstruction_esc") if key in file]
    return Volume(
        path,
        "kspace",
        kspace.shape,
        _h5_slice(path, "kspace"),
        mask=mask,
        acquisition=str(attributes.get("acquisition", "")),
        attributes=attributes,
        references={key: _h5_slice(path, key) for key in names},
    )


def _columns_not_zero(kspace: np.ndarray) -> Tensor | None:
    """The mask of a prospective scan that was stored with zeros: columns without any value. None if all have some."""
    sampled = (kspace != 0).reshape(-1, kspace.shape[-1]).any(0)
    return None if sampled.all() or not sampled.any() else torch.from_numpy(sampled)


def _open_pyqmri(path: Path, file: Any) -> Volume:
    """PyQMRI's layout: real_dat and imag_dat (contrasts, C, slices, H, W), FFT unshifted. Contrasts run as slices."""
    contrasts, coils, slices, height, width = file["real_dat"].shape

    def read(index: int) -> np.ndarray:
        import h5py

        at = (index // slices, slice(None), index % slices)
        with h5py.File(path, "r") as file:
            plain = file["real_dat"][at] + 1j * file["imag_dat"][at]
        images = np.fft.ifft2(plain, norm="ortho")
        centred = np.fft.fft2(np.fft.ifftshift(images, axes=(-2, -1)), norm="ortho")
        return np.fft.fftshift(centred, axes=(-2, -1)).astype(np.complex64)

    return Volume(path, "kspace", (contrasts * slices, coils, height, width), read)


def _open_result(path: Path, file: Any) -> Volume:
    """The mean of a reconstruction that `writers` wrote; std is a reference."""
    affine = np.asarray(file["affine"]) if "affine" in file else None
    return Volume(
        path,
        "image",
        file["mean"].shape,
        _h5_slice(path, "mean"),
        attributes={key: _plain(value) for key, value in file.attrs.items()},
        geometry=Geometry(affine=affine),
        references={"std": _h5_slice(path, "std")},
    )


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value.item() if isinstance(value, np.generic) else value


def _open_ismrmrd(path: Path) -> Volume:
    """Cartesian raw acquisitions: noise scans skipped, readout oversampling removed, lines sorted into slices."""
    import h5py
    import ismrmrd

    try:
        with h5py.File(path, "r") as file:
            header = ismrmrd.xsd.CreateFromDocument(file["dataset"]["xml"][0])
            heads = file["dataset"]["data"].fields("head")[:]
    except Exception as error:  # the XML parser raises many kinds
        raise ValueError(f"{path} is not a complete ISMRMRD file: {type(error).__name__} {error}") from error
    encoding = header.encoding[0]
    if encoding.trajectory.value != "cartesian":
        raise ValueError(f"{path} has a {encoding.trajectory.value} trajectory, expected cartesian")
    noise = (heads["flags"] >> (ismrmrd.ACQ_IS_NOISE_MEASUREMENT - 1)) & 1
    numbers = np.nonzero(noise == 0)[0]
    if not len(numbers):
        raise ValueError(f"{path} holds no imaging lines")
    index = heads["idx"][numbers]
    for key in ("kspace_encode_step_2", "average", "contrast", "phase", "repetition", "set"):
        if len(np.unique(index[key])) > 1:
            raise ValueError(f"{path} has several values of {key}, expected one two-dimensional image a slice")
    matrix, recon = encoding.encodedSpace.matrixSize, encoding.reconSpace.matrixSize
    channels = int(heads["active_channels"][numbers].max())
    slices = 1 + int(index["slice"].max())
    limit = encoding.encodingLimits.kspace_encoding_step_1
    rows = index["kspace_encode_step_1"].astype(int) + matrix.y // 2 - (limit.center if limit else matrix.y // 2)
    sampled = _lines(path, index["slice"], rows, slices, matrix.y)

    def read(wanted: int) -> np.ndarray:
        kspace = np.zeros((channels, matrix.y, matrix.x), dtype=np.complex64)
        with ismrmrd.Dataset(str(path), "dataset", mode="r") as dataset:
            for number, row in zip(numbers[index["slice"] == wanted], rows[index["slice"] == wanted], strict=True):
                kspace[:, row] = _placed(dataset.read_acquisition(int(number)), matrix.x, path)
        # The phase encoding runs along the columns, as in fastMRI.
        cropped = _crop_readout(kspace, recon.x).swapaxes(-1, -2)
        return cropped if channels > 1 else cropped[0]

    shape = (slices, recon.x, matrix.y) if channels == 1 else (slices, channels, recon.x, matrix.y)
    return Volume(path, "kspace", shape, read, mask=None if sampled.all() else torch.from_numpy(sampled))


def _lines(path: Path, slice_: np.ndarray, rows: np.ndarray, slices: int, steps: int) -> np.ndarray:
    """The phase encodings that were measured; refused if they differ between slices or lie outside."""
    if rows.min() < 0 or rows.max() >= steps:
        raise ValueError(
            f"{path}: phase encodings run from {rows.min()} to {rows.max()}, the header says 0 to {steps - 1}"
        )
    sampled = np.zeros((slices, steps), dtype=bool)
    sampled[slice_, rows] = True
    if (sampled != sampled[0]).any():
        worst = int((sampled != sampled[0]).any(1).argmax())
        missing = int((sampled[0] != sampled[worst]).sum())
        raise ValueError(f"{path}, slice {worst}: {missing} lines differ from slice 0; the scan is incomplete")
    return sampled[0]


def _placed(line: Any, readout: int, path: Path) -> np.ndarray:
    """A line with its centre sample in the middle: echoes may be asymmetric."""
    samples = line.data
    start = readout // 2 - line.center_sample
    if start < 0 or start + samples.shape[1] > readout:
        raise ValueError(f"{path}: a line of {samples.shape[1]} samples around {line.center_sample} exceeds {readout}")
    full = np.zeros((samples.shape[0], readout), dtype=np.complex64)
    full[:, start : start + samples.shape[1]] = samples
    return full


def _crop_readout(kspace: np.ndarray, size: int) -> np.ndarray:
    """Remove readout oversampling: crop the field of view along the last axis."""
    if size == kspace.shape[-1]:
        return kspace
    image = np.fft.fftshift(np.fft.ifft(np.fft.ifftshift(kspace, axes=-1), norm="ortho"), axes=-1)
    start = image.shape[-1] // 2 - size // 2
    image = image[..., start : start + size]
    full = np.fft.fftshift(np.fft.fft(np.fft.ifftshift(image, axes=-1), norm="ortho"), axes=-1)
    return full.astype(np.complex64)


# --- images with geometry -------------------------------------------------------------------------------------------


def _open_nifti(path: Path, kind: str | None) -> Volume:
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


def _open_nrrd(path: Path) -> Volume:
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


def _open_dicom(path: Path) -> Volume:
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


# --- bare arrays ----------------------------------------------------------------------------------------------------


def _open_array(path: Path, kind: str | None, coil_axis: int | None) -> Volume:
    """(slices, H, W), (H, W), or with coils where coil_axis says. A bare array does not say what it is."""
    if kind is None:
        raise ValueError(f"{path} does not say what it holds: state kind=kspace or kind=image")
    try:
        data = np.load(path, mmap_mode="r" if path.suffix == ".npy" else None, allow_pickle=False)
        if path.suffix == ".npz":
            keys = list(data)
            if kind not in keys and len(keys) != 1:
                raise ValueError(f"it holds {', '.join(keys)}, expected {kind} or a single array")
            data = data[kind if kind in keys else keys[0]]
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as an array: {error}") from error
    if data.dtype.kind not in ("c" if kind == "kspace" else "fciu"):
        raise ValueError(
            f"{path} has dtype {data.dtype}, expected {'complex' if kind == 'kspace' else 'real or complex'}"
        )
    if coil_axis is not None:
        if not -data.ndim <= coil_axis < data.ndim or data.ndim not in (3, 4):
            raise ValueError(f"{path} has shape {data.shape}, which has no coil axis {coil_axis}")
        data = np.moveaxis(data, coil_axis, -3)
        data = data if data.ndim == 4 else data[None]
    elif data.ndim == 2:
        data = data[None]
    elif data.ndim != 3:
        axes = ", ".join(map(str, range(data.ndim)))
        raise ValueError(f"{path} has shape {data.shape}: state which of the axes {axes} holds coils (coil_axis)")
    mask = _columns_not_zero(np.asarray(data[len(data) // 2])) if kind == "kspace" and data.size else None
    return Volume(path, kind, data.shape, lambda index: data[index], mask=mask)

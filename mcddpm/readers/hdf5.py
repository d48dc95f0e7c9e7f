"""HDF5: fastMRI, ISMRMRD raw data, PyQMRI, and our own results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mcddpm.readers.volume import Geometry, Volume, infer_mask


def open_h5(path: Path) -> Volume:
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
    except (KeyError, AttributeError, IndexError, TypeError) as error:
        raise ValueError(f"{path} is HDF5, but not as expected: {type(error).__name__} {error}") from error
    if raw:
        return _open_ismrmrd(path)
    raise ValueError(f"{path} holds {found}; expected fastMRI's kspace, ISMRMRD's dataset/data, or a result of ours")


def _h5_slice(path: Path, key: str) -> Callable[[int], np.ndarray]:
    """Reads one slice and closes the file. (A whole volume for every slice made the authors' training 17x slower.)"""

    import h5py

    with h5py.File(path, "r") as file:
        data = file[key]
        count = data.shape[0]
        shape, dtype, offset = data.shape[1:], data.dtype, data.id.get_offset()
        plain = data.chunks is None and offset is not None and not data.external and dtype in (np.complex64, np.float32)
    size = int(np.prod(shape))

    def read(index: int) -> np.ndarray:
        if not 0 <= index < count:
            raise ValueError(f"{path}, {key} has {count} slices, there is no slice {index}")
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
    if not hasattr(kspace, "dtype"):
        raise ValueError(f"{path}: kspace is a group, expected an array")
    if kspace.dtype.kind != "c":
        raise ValueError(f"{path}: kspace has dtype {kspace.dtype}, expected complex numbers")
    if kspace.ndim not in (3, 4):
        raise ValueError(f"{path}: kspace has shape {kspace.shape}, expected (slices, [coils,] height, width)")
    mask, inferred = None, False
    if "mask" in file:
        mask = torch.from_numpy(np.atleast_1d(np.asarray(file["mask"])).astype(bool))
        if mask.shape[-1] != kspace.shape[-1]:
            raise ValueError(f"{path}: mask has {mask.shape[-1]} columns, kspace has {kspace.shape[-1]}")
    names = [key for key in ("reconstruction_rss", "reconstruction_esc") if key in file]
    if mask is None and not names and kspace.size:  # a file with references is fully sampled
        mask = infer_mask(lambda index: kspace[index], len(kspace))
        inferred = mask is not None
    for key in names:
        if file[key].ndim != 3 or file[key].shape[0] != kspace.shape[0]:
            raise ValueError(f"{path}: {key} has shape {file[key].shape}, kspace {kspace.shape}: mixed shapes")
    attributes = {key: _plain(value) for key, value in file.attrs.items()}
    return Volume(
        path,
        "kspace",
        kspace.shape,
        _h5_slice(path, "kspace"),
        mask=mask,
        inferred=inferred,
        acquisition=str(attributes.get("acquisition", "")),
        attributes=attributes,
        references={key: _h5_slice(path, key) for key in names},
    )


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
    """The mean of a reconstruction that `writers` wrote; std, zero-filled image and truth are references."""
    affine = np.asarray(file["affine"]) if "affine" in file else None
    return Volume(
        path,
        "image",
        file["mean"].shape,
        _h5_slice(path, "mean"),
        attributes={key: _plain(value) for key, value in file.attrs.items()},
        geometry=Geometry(affine=affine),
        references={key: _h5_slice(path, key) for key in ("std", "zero_filled", "truth") if key in file},
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
    if not header.encoding:
        raise ValueError(f"{path} has no encoding in its header")
    encoding = header.encoding[0]
    if encoding.trajectory.value != "cartesian":
        raise ValueError(f"{path} has a {encoding.trajectory.value} trajectory, expected cartesian")
    numbers = np.nonzero(_is_imaging(heads))[0]
    if not len(numbers):
        raise ValueError(f"{path} holds no imaging lines")
    if _has(heads["flags"][numbers], ismrmrd.ACQ_IS_REVERSE).any():
        raise ValueError(f"{path} holds lines read out in reverse (EPI), which need a phase correction first")
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


def _has(flags: np.ndarray, flag: int) -> np.ndarray:
    return (flags >> np.uint64(flag - 1)) & np.uint64(1) == 1


def _is_imaging(heads: np.ndarray) -> np.ndarray:
    """Lines of the image's own encoding: no noise, navigator, phase correction, dummy, feedback or mere calibration."""
    import ismrmrd

    other = np.zeros(len(heads), dtype=bool)
    for name in (
        *("NOISE_MEASUREMENT", "NAVIGATION_DATA", "PHASECORR_DATA", "DUMMYSCAN_DATA", "RTFEEDBACK_DATA"),
        *("HPFEEDBACK_DATA", "SURFACECOILCORRECTIONSCAN_DATA", "PARALLEL_CALIBRATION"),
    ):
        other |= _has(heads["flags"], getattr(ismrmrd, f"ACQ_IS_{name}"))
    return ~other & (heads["encoding_space_ref"] == 0)


def _lines(path: Path, slice_: np.ndarray, rows: np.ndarray, slices: int, steps: int) -> np.ndarray:
    """The phase encodings that were measured; refused if they differ between slices or lie outside."""
    if rows.min() < 0 or rows.max() >= steps:
        raise ValueError(
            f"{path}: phase encodings run from {rows.min()} to {rows.max()}, the header says 0 to {steps - 1}"
        )
    sampled = np.zeros((slices, steps), dtype=bool)
    sampled[slice_, rows] = True
    if sampled.sum() < len(rows):
        raise ValueError(f"{path} has {len(rows) - int(sampled.sum())} lines more than once, expected each once")
    if (sampled != sampled[0]).any():
        worst = int((sampled != sampled[0]).any(1).argmax())
        missing = int((sampled[0] != sampled[worst]).sum())
        raise ValueError(f"{path}, slice {worst}: {missing} lines differ from slice 0; the scan is incomplete")
    return sampled[0]


def _placed(line: Any, readout: int, path: Path) -> np.ndarray:
    """A line with its centre sample in the middle: echoes may be asymmetric."""
    samples = line.data.copy()
    samples[:, : line.discard_pre] = 0
    samples[:, samples.shape[1] - line.discard_post :] = 0
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

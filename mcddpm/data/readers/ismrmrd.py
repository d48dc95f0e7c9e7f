"""ISMRMRD: Cartesian raw acquisitions, sorted into slices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from mcddpm.data.volume import Volume

LEAST_SAMPLES, SAMPLES_A_COIL = 64, 8  # of noise scans: fewer do not tell a covariance


def open_ismrmrd(path: Path) -> Volume:
    """Cartesian raw acquisitions: lines sorted into slices, readout oversampling removed; and the noise scans."""
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
    mask = None if sampled.all() else torch.from_numpy(sampled)
    return Volume(path, "kspace", shape, read, mask=mask, noise=_noise(path, heads, numbers, _bandwidth(header)))


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


def _bandwidth(header: Any) -> float:
    """The mean power of a noise scan over that in the middle of its band, as the header has it: the receiver's filter
    falls towards the edges. (Some converters write a bandwidth in other units there, which is no share.)"""
    system = header.acquisitionSystemInformation
    share = system.relativeReceiverNoiseBandwidth if system else None
    return float(share) if share and 0 < share <= 1 else 1.0


def _noise(path: Path, heads: np.ndarray, imaging: np.ndarray, bandwidth: float) -> torch.Tensor | None:
    """K = E[n n^H] / 2 of the image's noise, (C, C), from the noise scans: None if they do not tell it.

        K = K_scan (dwell time of the scan / dwell time of the image) / bandwidth

    The variance grows with the bandwidth, which is 1 / dwell time. What is left of the image without its oversampling
    is the middle of the band, where the noise is above the scan's mean (Kellman and McVeigh 2005). The crop is an
    orthonormal projection, so that white noise keeps its level in each sample.
    """
    import ismrmrd

    scans, ratios = _noise_scans(heads, imaging)
    total, count = torch.zeros(1, 1), 0
    with ismrmrd.Dataset(str(path), "dataset", mode="r") as dataset:
        for number, ratio in zip(scans, ratios, strict=True):
            line = dataset.read_acquisition(int(number))
            kept = line.data[:, line.discard_pre : line.data.shape[1] - line.discard_post]
            n = torch.from_numpy(kept.astype(np.complex128))  # in torch: numpy's own threads would fight with torch's
            total, count = total + float(ratio) * (n @ n.mH), count + n.shape[1]
    if count < LEAST_SAMPLES or count < SAMPLES_A_COIL * len(total) or not total.any():
        return None
    return (total / (2 * count * bandwidth)).to(torch.complex64)


def _noise_scans(heads: np.ndarray, imaging: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the noise scans with the image's channels, and their dwell times over the image's. Those that have
    none are taken if the image has none either, as of the same dwell time."""
    import ismrmrd

    first, dwell = heads[imaging[0]], heads["sample_time_us"].astype(float)
    alike = [(heads[key] == first[key]).reshape(len(heads), -1).all(1) for key in ("active_channels", "channel_mask")]
    ours, image = np.logical_and(*alike), dwell[imaging[0]]
    scans = ours & _has(heads["flags"], ismrmrd.ACQ_IS_NOISE_MEASUREMENT) & ((dwell > 0) == (image > 0))
    if not ours[imaging].all() or (dwell[imaging] != image).any():  # then no one covariance is the image's
        scans[:] = False
    return np.nonzero(scans)[0], dwell[scans] / image if image > 0 else np.ones(scans.sum())


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

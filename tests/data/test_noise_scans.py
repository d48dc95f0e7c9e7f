"""Noise scans of ISMRMRD files: the covariance of the noise that is in the k-space that is read."""

from __future__ import annotations

from pathlib import Path

import h5py
import ismrmrd
import numpy as np
import pytest
import torch

from mcddpm.data.phantoms import drawn
from mcddpm.data.protocols import measurement
from mcddpm.data.readers import open_volume
from mcddpm.physics import masks
from mcddpm.physics.coils import coil_maps
from mcddpm.physics.fourier import fft
from mcddpm.simulation.scans import noise_std
from tests.data.files import COILS, kspace, stack, write_ismrmrd

PASSBAND = 0.6  # power of the receiver's filter in the outer half of its band
BANDWIDTH = (1 + PASSBAND) / 2


def mixing(coils: int) -> np.ndarray:
    """L: correlated noise is L eps; its covariance in each part is L L^H."""
    g = np.random.RandomState(1).randn(2, coils, coils)
    return 2 * np.eye(coils) + 0.5 * (g[0] + 1j * g[1])


def correlated(coils: int, lines: int, samples: int, seed: int, filtered: bool = False) -> np.ndarray:
    """(lines, C, samples): covariance L L^H in each part at the middle of the band."""
    g = np.random.RandomState(seed).randn(2, lines, coils, samples)
    white = np.fft.fftshift(np.fft.fft(g[0] + 1j * g[1], norm="ortho"), axes=-1)
    if filtered:
        white[..., np.abs(np.arange(samples) - samples // 2) >= samples // 4] *= PASSBAND**0.5
    return mixing(coils) @ np.fft.ifft(np.fft.ifftshift(white, axes=-1), norm="ortho")


def add_noise_scans(path: Path, lines: np.ndarray, dwell: float = 0.0, image: float = 0.0, flag: str = "NOISE") -> Path:
    """After the lines of a file, which get the dwell time `image`.  (lines, C, samples)"""
    with h5py.File(path, "r+") as file:
        there = file["dataset/data"][:]
        there["head"]["sample_time_us"] = image
        file["dataset/data"][:] = there
    dataset = ismrmrd.Dataset(str(path), "dataset")
    for values in lines:
        line = ismrmrd.Acquisition()
        line.resize(values.shape[1], values.shape[0])
        line.setFlag(getattr(ismrmrd, f"ACQ_IS_{flag}_MEASUREMENT"))
        line.sample_time_us = dwell
        line.data[:] = values
        dataset.append_acquisition(line)
    dataset.close()
    return path


def write_bandwidth(path: Path, bandwidth: float) -> None:
    """Write the receiver's relative bandwidth into the header of an ISMRMRD file."""
    tag = "relativeReceiverNoiseBandwidth"
    system = f"<acquisitionSystemInformation><{tag}>{bandwidth}</{tag}></acquisitionSystemInformation>"
    with h5py.File(path, "r+") as file:
        xml = file["dataset/xml"][0].decode().replace("<experimentalConditions>", f"{system}<experimentalConditions>")
        file["dataset/xml"][0] = xml.encode()


def covariance(y: np.ndarray) -> np.ndarray:
    """In each part.  (slices, C, H, W) -> (C, C)"""
    flat = y.swapaxes(0, 1).reshape(y.shape[1], -1)
    return flat @ flat.conj().T / (2 * flat.shape[1])


@pytest.mark.parametrize("coils", [1, 4])
@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize(("dwell", "image"), [(0.0, 0.0), (5.0, 5.0), (2.0, 10.0), (10.0, 2.0)])
def test_noise_scans_tell_the_noise_of_k_space(
    tmp_path: Path, coils: int, filtered: bool, dwell: float, image: float
) -> None:
    """An image of nothing but noise, twice oversampled and through a filter or none: what the scans say is what its
    k-space has, whatever the dwell times."""
    path = write_ismrmrd(tmp_path / "a.h5", np.zeros((2, coils, 48, 40), np.complex64))
    raw = correlated(coils, 80, 96, seed=2, filtered=filtered).astype(np.complex64)
    with h5py.File(path, "r+") as file:
        lines = file["dataset/data"][:]
        for k, values in enumerate(raw):
            lines["data"][k + 1] = values.ravel().view(np.float32)  # the first line is a noise scan of seven samples
        file["dataset/data"][:] = lines
    ratio = image / dwell if dwell else 1.0  # of the noise scan's bandwidth to the image's
    scans = ratio**0.5 * correlated(coils, 8, 512, seed=3, filtered=filtered)
    volume = open_volume(add_noise_scans(path, scans, dwell, image))
    if filtered:
        write_bandwidth(path, BANDWIDTH)
        volume = open_volume(path)
    true = mixing(coils) @ mixing(coils).conj().T
    assert volume.noise.dtype == torch.complex64 and volume.noise.shape == (coils, coils)
    assert np.linalg.norm(volume.noise.numpy() - true) < 0.1 * np.linalg.norm(true)
    measured = covariance(stack(volume).reshape(2, coils, 48, 40))
    assert np.linalg.norm(volume.noise.numpy() - measured) < 0.1 * np.linalg.norm(true)


def test_a_share_that_is_none_is_not_used(tmp_path: Path) -> None:
    """Some converters write the bandwidth in kHz."""
    path = add_noise_scans(write_ismrmrd(tmp_path / "a.h5", kspace(COILS)), correlated(COILS, 2, 512, 0))
    before = open_volume(path).noise
    write_bandwidth(path, 62.5)
    assert torch.equal(open_volume(path).noise, before)


def test_samples_that_are_to_be_discarded_are_no_noise(tmp_path: Path) -> None:
    """As filters settle at both ends of a line."""
    scans = correlated(COILS, 4, 256, 0)
    path = add_noise_scans(write_ismrmrd(tmp_path / "a.h5", kspace(COILS)), scans)
    spoilt = scans.copy()
    spoilt[..., :10] = spoilt[..., -20:] = 1e3
    other = add_noise_scans(write_ismrmrd(tmp_path / "b.h5", kspace(COILS)), spoilt)
    with h5py.File(other, "r+") as file:
        lines = file["dataset/data"][:]
        lines["head"]["discard_pre"][-4:], lines["head"]["discard_post"][-4:] = 10, 20
        file["dataset/data"][:] = lines
    wanted, seen = open_volume(path).noise, open_volume(other).noise
    assert (wanted - seen).norm() < 0.1 * wanted.norm()


def test_without_noise_scans_that_tell_there_is_none(tmp_path: Path) -> None:
    """None, too few, of other channels, of a dwell time that is not known, or of zeros."""
    cases = [
        (np.empty((0, COILS, 512)), 0.0, 0.0),
        (correlated(COILS, 3, 16, 0), 0.0, 0.0),
        (correlated(COILS + 1, 2, 512, 0), 0.0, 0.0),
        (correlated(COILS, 2, 512, 0), 0.0, 5.0),
        (correlated(COILS, 2, 512, 0), 5.0, 0.0),
        (np.zeros((2, COILS, 512)), 5.0, 5.0),
    ]
    for k, (scans, dwell, image) in enumerate(cases):
        path = write_ismrmrd(tmp_path / f"{k}.h5", kspace(COILS))
        assert open_volume(add_noise_scans(path, scans, dwell, image)).noise is None, k
    path = add_noise_scans(path, correlated(COILS, 2, 512, 0), 5.0, 5.0)
    assert open_volume(path).noise is not None
    np.testing.assert_allclose(stack(open_volume(path)), kspace(COILS), atol=2e-6)  # and no line of the image
    with h5py.File(path, "r+") as file:
        lines = file["dataset/data"][:]
        lines["head"]["channel_mask"][-2:, 0] = 0b101  # as many channels, but others
        file["dataset/data"][:] = lines
    assert open_volume(path).noise is None
    with h5py.File(path, "r+") as file:  # half of the image at another bandwidth
        lines["head"]["channel_mask"][-2:, 0] = 0
        lines["head"]["sample_time_us"][1:9] = 10.0
        file["dataset/data"][:] = lines
    assert open_volume(path).noise is None


@pytest.mark.parametrize("coils", [1, 4])
def test_a_protocol_takes_the_noise_scan(tmp_path: Path, coils: int) -> None:
    """Its coils are white, of the level that the receivers had; and what is given comes before it."""
    x = drawn(1, 64, seed=3)
    L = mixing(coils)
    std = noise_std(torch.from_numpy(np.abs(x)), 20) / (np.linalg.norm(L) / coils**0.5)
    maps = coil_maps(coils, (64, 64), 5) if coils > 1 else torch.ones(1, 64, 64)
    y = fft(maps * torch.from_numpy(x)).numpy() + std * correlated(coils, 64, 64, 2).swapaxes(0, 1)
    path = write_ismrmrd(tmp_path / "a.h5", y[None].astype(np.complex64))
    add_noise_scans(path, 2**0.5 * std * correlated(coils, 16, 256, 3), 5.0, 10.0)
    mask = masks.random_columns(64, acceleration=2, seed=0)
    m = measurement(path, 0, "fastmri", mask=mask)
    given = measurement(path, 0, "fastmri", mask=mask, noise=0.0)
    assert m.noise_from == "noise scan" and given.noise_from == "none" and given.noise == 0
    true = std**2 * L @ L.conj().T  # of the receivers, in each part
    level = float(m.noise / m.scale)
    assert m.noise_level == pytest.approx(float(true.diagonal().real.mean() ** 0.5), rel=0.05)
    flat = y[..., mask.numpy()].reshape(coils, -1)
    virtual = (m.y_m / m.scale)[..., mask].reshape(-1, flat.shape[1]).numpy()
    T = virtual @ np.linalg.pinv(flat)  # what was made of the receivers
    np.testing.assert_allclose(T @ flat, virtual, atol=1e-4 * np.abs(virtual).max())
    white = T @ true @ T.conj().T / level**2
    assert np.linalg.norm(white - np.eye(len(T)), 2) < 0.15
    if coils > 1:
        plain = true / true.diagonal().real.mean()
        assert np.linalg.norm(plain - np.eye(coils), 2) > 0.5, "as receivers, they are not"

"""One scan in every format comes back as the same Volume, a slice at a time."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import h5py
import nrrd
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mcddpm.data.readers import open_volume
from mcddpm.data.volume import summary
from mcddpm.physics.fourier import Fourier
from tests.data.files import (
    COILS,
    SLICES,
    H,
    W,
    counts,
    kspace,
    stack,
    write_fastmri,
    write_ismrmrd,
    write_nifti,
)


@pytest.mark.parametrize(
    ("form", "coils"),
    [(form, coils) for form in ("fastmri", "ismrmrd", "npy", "npz") for coils in (0, COILS)]
    + [("nii", 0), ("nii.gz", 0)],  # NIfTI holds three axes here
)
def test_the_same_scan_in_every_format(tmp_path: Path, form: str, coils: int) -> None:
    data = kspace(coils)
    if form.startswith("nii"):
        volume = open_volume(write_nifti(tmp_path / f"a.{form}", data), kind="kspace")
    elif form == "fastmri":
        volume = open_volume(write_fastmri(tmp_path / "a.h5", data))
    elif form == "ismrmrd":
        volume = open_volume(write_ismrmrd(tmp_path / "a.h5", data))
    elif form == "npy":
        np.save(tmp_path / "a.npy", data)
        volume = open_volume(tmp_path / "a.npy", kind="kspace", coil_axis=1 if coils else None)
    else:
        np.savez(tmp_path / "a.npz", kspace=data)
        volume = open_volume(tmp_path / "a.npz", kind="kspace", coil_axis=1 if coils else None)
    assert volume.kind == "kspace" and volume.shape == data.shape and volume.coils == coils
    assert volume.mask is None and volume[0].dtype == torch.complex64
    np.testing.assert_allclose(stack(volume), data, atol=2e-6)


def test_fastmri_extras(tmp_path: Path) -> None:
    rss = np.abs(kspace(seed=1)).astype(np.float32)
    volume = open_volume(write_fastmri(tmp_path / "a.h5", kspace(), reconstruction_rss=rss))
    assert volume.acquisition == "CORPD_FBK" and volume.reference("reconstruction_esc", 0) is None
    assert torch.equal(volume.reference("reconstruction_rss", 1), torch.from_numpy(rss[1]))


@pytest.mark.parametrize("form", ["in the file", "read off the zeros", "ismrmrd", "npy"])
def test_prospective_masks(tmp_path: Path, form: str) -> None:
    mask = np.arange(W) % 3 == 0
    data = kspace(COILS) * mask
    if form == "in the file":
        volume = open_volume(write_fastmri(tmp_path / "a.h5", data, mask=mask))
    elif form == "read off the zeros":
        volume = open_volume(write_fastmri(tmp_path / "a.h5", data))
    elif form == "ismrmrd":
        volume = open_volume(write_ismrmrd(tmp_path / "a.h5", data, skip=tuple(np.nonzero(~mask)[0].tolist())))
    else:
        np.save(tmp_path / "a.npy", data)
        volume = open_volume(tmp_path / "a.npy", kind="kspace", coil_axis=1)
    assert volume.mask is not None and (volume.mask.numpy() == mask).all()
    np.testing.assert_allclose(stack(volume), data, atol=2e-6)


@pytest.mark.parametrize("case", ["partial Fourier", "asymmetric echo"])
def test_ismrmrd_lines_off_centre(tmp_path: Path, case: str) -> None:
    """The header's centre and the line's own centre sample say where a line belongs."""
    data = kspace(COILS)
    path = write_ismrmrd(tmp_path / "a.h5", data, oversampling=1)
    with h5py.File(path, "r+") as file:
        lines = file["dataset/data"][1:]  # without the noise scan
        if case == "partial Fourier":  # the first three lines were not measured, and counting starts after them
            keep = lines["head"]["idx"]["kspace_encode_step_1"] >= 3
            lines = lines[keep]
            lines["head"]["idx"]["kspace_encode_step_1"] -= 3
            xml = file["dataset/xml"][0].replace(f"<center>{W // 2}<".encode(), f"<center>{W // 2 - 3}<".encode())
            file["dataset/xml"][0] = xml
        else:  # the first four samples of each echo were not measured
            lines["head"]["number_of_samples"] -= 4
            lines["head"]["center_sample"] -= 4
            for k in range(len(lines)):
                samples = lines["data"][k].reshape(COILS, H, 2)
                lines["data"][k] = np.ascontiguousarray(samples[:, 4:]).ravel()
        del file["dataset/data"]
        file["dataset/data"] = lines
    expected = data.copy()
    if case == "partial Fourier":
        expected[..., :3] = 0
    else:
        expected[..., :4, :] = 0
    np.testing.assert_allclose(stack(open_volume(path)), expected, atol=1e-5)


def test_pyqmri(tmp_path: Path) -> None:
    """Coil images come out of our centred FFT as they do of the plain one that the file was written with."""
    images = kspace(COILS, seed=4)  # any complex numbers will do
    plain = np.fft.fft2(images, norm="ortho")[:, :, None]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["real_dat"], file["imag_dat"] = plain.real.astype("f4"), plain.imag.astype("f4")
    volume = open_volume(tmp_path / "a.h5")
    assert volume.shape == (SLICES, COILS, H, W)
    np.testing.assert_allclose(Fourier().pinv(volume[1]).numpy(), images[1], atol=1e-5)


@pytest.mark.parametrize("space", ["left-posterior-superior", "LPS"])
def test_nrrd(tmp_path: Path, space: str) -> None:
    header = {"space": space, "space directions": np.diag([0.7, 0.8, 5.0]), "space origin": [1, 2, 3]}
    nrrd.write(str(tmp_path / "a.nrrd"), counts().transpose(2, 1, 0).astype(np.int16), header)
    volume = open_volume(tmp_path / "a.nrrd")
    np.testing.assert_array_equal(stack(volume), counts())
    assert volume.geometry.spacing == pytest.approx((5.0, 0.8, 0.7))
    np.testing.assert_allclose(volume.geometry.affine[:3, 3], [-1, -2, 3])


def test_a_result_of_the_flat_package_opens(tmp_path: Path) -> None:
    """As mcddpm wrote it before its modules became folders, by hand."""
    mean = np.random.RandomState(0).rand(SLICES, H, W).astype("f4")
    task = {"model": "default", "samples": 4, "sampler": "heun", "steps": 5, "grid": None, "seed": 0, "snr": "inf"}
    provenance = {"made_by": "mcddpm 0.1.0", "task": task | {"formats": ["h5"]}, "calls": 9, "scale": [0.5] * SLICES}
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        file.attrs["provenance"] = json.dumps(provenance)
        for name, values in {"mean": mean, "std": mean / 9, "zero_filled": mean / 2, "mask": mean > 0.5}.items():
            file.create_dataset(name, data=values, chunks=(1, H, W), compression="gzip", shuffle=True)
        file["samples"], file["affine"] = kspace(4), np.diag([2.0, 2, 3, 1])
    volume = open_volume(tmp_path / "scan.h5")
    np.testing.assert_array_equal(stack(volume), mean)
    assert volume.kind == "image" and volume.geometry.spacing == (3, 2, 2)
    np.testing.assert_array_equal(volume.reference("std", 1), mean[1] / 9)
    np.testing.assert_array_equal(volume.reference("zero_filled", 1), mean[1] / 2)
    assert json.loads(volume.attributes["provenance"]) == provenance


def test_files_are_closed_and_slices_lazy(tmp_path: Path) -> None:
    path = write_fastmri(tmp_path / "a.h5", kspace())
    volume = open_volume(path)
    with h5py.File(path, "r+") as file:  # would fail while another handle has it open
        file["kspace"][1] = 7
    assert (volume[1] == 7).all()


def test_memory_stays_flat_while_streaming(tmp_path: Path) -> None:
    """200 slices of 4 MB: the peak grows by a few slices, not by 800 MB."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("kspace", (200, 724, 724), np.complex64, chunks=(1, 724, 724), fillvalue=np.complex64(1))
    volume = open_volume(tmp_path / "a.h5")
    volume[0]
    tracemalloc.start()
    for index in range(200):
        volume[index]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 4e6 < peak < 30e6


def test_a_good_file_is_described(tmp_path: Path) -> None:
    path = write_fastmri(tmp_path / "a.h5", kspace(COILS) * (np.arange(W) % 2 == 0))
    said = summary(open_volume(path))
    assert f"kspace, {SLICES} slices of {H} x {W}, {COILS} coils, 2.00x under-sampled, CORPD_FBK" in said


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=5),
    st.sampled_from(["f4", "f8", "c8", "c16", "i2", "u1", "?", "S3", "M8[s]"]),
    st.sampled_from(["kspace", "image"]),
    st.none() | st.integers(-6, 6),
)
def test_any_array_opens_or_is_refused(tmp_path_factory, shape, dtype, kind, coil_axis) -> None:
    path = tmp_path_factory.mktemp("a") / "a.npy"
    np.save(path, np.zeros(shape, dtype))
    try:
        volume = open_volume(path, kind=kind, coil_axis=coil_axis)
    except ValueError:
        return
    assert volume[0].shape == volume.shape[1:]

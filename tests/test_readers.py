"""One scan in every format comes back as the same Volume; what writers write, readers and other libraries read; bad
files get one clear line."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import h5py
import ismrmrd
import nibabel
import nrrd
import numpy as np
import pydicom
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, MRImageStorage, generate_uid

from mcddpm.cli import main
from mcddpm.data.protocols import measurement
from mcddpm.data.readers import open_volume
from mcddpm.data.volume import Volume
from mcddpm.data.writers import write
from mcddpm.data.writers.result import Result
from mcddpm.physics.fourier import Fourier

SLICES, COILS, H, W = 3, 2, 12, 10


def kspace(coils: int = 0, seed: int = 0) -> np.ndarray:
    rng = np.random.RandomState(seed)
    shape = (SLICES, coils, H, W) if coils else (SLICES, H, W)
    return (rng.randn(*shape) + 1j * rng.randn(*shape)).astype(np.complex64)


def write_fastmri(path: Path, data: np.ndarray, **extra: np.ndarray) -> Path:
    with h5py.File(path, "w") as file:
        file["kspace"] = data
        file.attrs["acquisition"] = "CORPD_FBK"
        for key, value in extra.items():
            file[key] = value
    return path


HEADER = """<?xml version="1.0"?><ismrmrdHeader xmlns="http://www.ismrm.org/ISMRMRD">
<experimentalConditions><H1resonanceFrequency_Hz>63000000</H1resonanceFrequency_Hz></experimentalConditions>
<encoding><encodedSpace><matrixSize><x>{readout}</x><y>{lines}</y><z>1</z></matrixSize>
<fieldOfView_mm><x>2</x><y>1</y><z>1</z></fieldOfView_mm></encodedSpace>
<reconSpace><matrixSize><x>{recon}</x><y>{lines}</y><z>1</z></matrixSize>
<fieldOfView_mm><x>1</x><y>1</y><z>1</z></fieldOfView_mm></reconSpace>
<encodingLimits><kspace_encoding_step_1><minimum>0</minimum><maximum>{last}</maximum><center>{center}</center>
</kspace_encoding_step_1></encodingLimits><trajectory>{trajectory}</trajectory></encoding></ismrmrdHeader>"""


def write_ismrmrd(
    path: Path, data: np.ndarray, *, oversampling: int = 2, trajectory: str = "cartesian", skip: tuple = ()
) -> Path:
    """Lines along the columns of `data` (S, [C,] H, W), with the readout (rows) oversampled, after a noise scan."""
    data = data if data.ndim == 4 else data[:, None]
    slices, coils, rows, lines = data.shape
    readout = rows * oversampling
    image = np.fft.fftshift(np.fft.ifft(np.fft.ifftshift(data, axes=2), axis=2, norm="ortho"), axes=2)
    before = readout // 2 - rows // 2
    image = np.pad(image, [(0, 0), (0, 0), (before, readout - rows - before), (0, 0)])
    raw = np.fft.fftshift(np.fft.fft(np.fft.ifftshift(image, axes=2), axis=2, norm="ortho"), axes=2)
    dataset = ismrmrd.Dataset(str(path), "dataset", create_if_needed=True)
    header = HEADER.format(
        readout=readout, lines=lines, recon=rows, last=lines - 1, center=lines // 2, trajectory=trajectory
    )
    dataset.write_xml_header(header.encode())
    noise = ismrmrd.Acquisition()
    noise.resize(7, coils)
    noise.setFlag(ismrmrd.ACQ_IS_NOISE_MEASUREMENT)
    dataset.append_acquisition(noise)
    for index in range(slices):
        for step in range(lines):
            if (index, step) in skip or any(step == one for one in skip if isinstance(one, int)):
                continue
            line = ismrmrd.Acquisition()
            line.resize(readout, coils)
            line.center_sample = readout // 2
            line.idx.slice, line.idx.kspace_encode_step_1 = index, step
            line.data[:] = raw[index, :, :, step]
            dataset.append_acquisition(line)
    dataset.close()
    return path


AFFINE = np.array([[1.5, 0, 0, 20], [0, 0.9, 0.1, -30], [0, -0.1, 2.0, 5], [0, 0, 0, 1.0]])


def write_nifti(path: Path, data: np.ndarray) -> Path:
    nibabel.save(nibabel.nifti1.Nifti1Image(data.transpose(2, 1, 0), AFFINE), path)
    return path


def stack(volume: Volume) -> np.ndarray:
    return np.stack([volume[k].numpy() for k in range(len(volume))])


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


def test_pyqmri(tmp_path: Path) -> None:
    """Coil images come out of our centred FFT as they do of the plain one that the file was written with."""
    images = kspace(COILS, seed=4)  # any complex numbers will do
    plain = np.fft.fft2(images, norm="ortho")[:, :, None]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["real_dat"], file["imag_dat"] = plain.real.astype("f4"), plain.imag.astype("f4")
    volume = open_volume(tmp_path / "a.h5")
    assert volume.shape == (SLICES, COILS, H, W)
    np.testing.assert_allclose(Fourier().pinv(volume[1]).numpy(), images[1], atol=1e-5)


# --- DICOM and NRRD -------------------------------------------------------------------------------------------------


def write_dicom(folder: Path, images: np.ndarray, change=lambda index, header: None) -> Path:
    folder.mkdir()
    series, study, frame = generate_uid(), generate_uid(), generate_uid()
    for index, image in enumerate(images):
        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = MRImageStorage, generate_uid()
        meta.TransferSyntaxUID = ExplicitVRLittleEndian
        h = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
        h.SOPClassUID, h.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
        h.SeriesInstanceUID, h.StudyInstanceUID, h.FrameOfReferenceUID = series, study, frame
        h.PatientName, h.PatientID, h.Modality = "Doe^Jane", "7", "MR"
        h.add_new((0x0011, 0x0010), "LO", "SECRET VENDOR")
        h.add_new((0x0011, 0x1001), "LO", "private words")
        h.Rows, h.Columns = image.shape
        h.PixelSpacing, h.SliceThickness = [0.8, 1.25], 3.0
        h.ImageOrientationPatient, h.ImagePositionPatient = [1, 0, 0, 0, 1, 0], [10, 20, 3.0 * index]
        h.SamplesPerPixel, h.PhotometricInterpretation, h.PixelRepresentation = 1, "MONOCHROME2", 0
        h.BitsAllocated, h.BitsStored, h.HighBit = 16, 16, 15
        h.RescaleSlope, h.RescaleIntercept = 2, -5
        h.PixelData = image.astype("<u2").tobytes()
        change(index, h)
        h.save_as(folder / f"{len(images) - index:03d}.dcm", enforce_file_format=True)  # names in reverse order
    return folder


def counts() -> np.ndarray:
    return np.random.RandomState(3).randint(0, 4000, (SLICES, H, W))


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


@pytest.mark.parametrize("space", ["left-posterior-superior", "LPS"])
def test_nrrd(tmp_path: Path, space: str) -> None:
    header = {"space": space, "space directions": np.diag([0.7, 0.8, 5.0]), "space origin": [1, 2, 3]}
    nrrd.write(str(tmp_path / "a.nrrd"), counts().transpose(2, 1, 0).astype(np.int16), header)
    volume = open_volume(tmp_path / "a.nrrd")
    np.testing.assert_array_equal(stack(volume), counts())
    assert volume.geometry.spacing == pytest.approx((5.0, 0.8, 0.7))
    np.testing.assert_allclose(volume.geometry.affine[:3, 3], [-1, -2, 3])


# --- what is written is read ----------------------------------------------------------------------------------------

PROVENANCE = {"model": "m", "seed": 3, "sampler": "heun", "steps": 5, "mask": "x", "scale": 2.0, "version": "0"}


def result(**extra: object) -> Result:
    rng = np.random.RandomState(0)
    mean, samples = rng.rand(SLICES, H, W) * 1e-4, rng.rand(SLICES, 4, H, W)
    return Result(mean, 0.1 * mean, PROVENANCE, samples, AFFINE, **extra)


@pytest.mark.parametrize("name", ["a.h5", "a.nii", "a.nii.gz", "series"])
def test_results_come_back(tmp_path: Path, name: str) -> None:
    r = result()
    write(tmp_path / name, r)
    volume = open_volume(tmp_path / name)
    np.testing.assert_allclose(stack(volume), r.mean, atol=r.mean.max() * (1e-5 if name == "series" else 1e-6))
    np.testing.assert_allclose(volume.geometry.affine, AFFINE, atol=1e-5)
    if not name.startswith("a.nii"):  # there the std is a file of its own
        np.testing.assert_allclose(volume.reference("std", 1), r.std[1], atol=r.std.max() * 1e-5)
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]
    with pytest.raises(ValueError, match="is there already"):
        write(tmp_path / ("series" if name == "series" else name), r)


def test_other_libraries_read_results(tmp_path: Path) -> None:
    r = result()
    write(tmp_path / "a.h5", r)
    with h5py.File(tmp_path / "a.h5") as file:
        assert json.loads(file.attrs["provenance"]) == PROVENANCE
        np.testing.assert_allclose(file["samples"][1], r.samples[1], rtol=1e-6)
        np.testing.assert_allclose(file["std"], r.std, rtol=1e-6)
    write(tmp_path / "b.nii.gz", r)
    image = nibabel.load(tmp_path / "b_std.nii.gz")
    np.testing.assert_allclose(image.affine, AFFINE, atol=1e-6)
    np.testing.assert_allclose(image.get_fdata(), r.std.transpose(2, 1, 0), rtol=1e-5)
    assert json.loads((tmp_path / "b.json").read_text()) == PROVENANCE


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


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    bad = result()
    object.__setattr__(bad, "provenance", {"x": object()})  # json cannot hold it
    for name in ("a.h5", "a.nii", "series"):
        with pytest.raises(TypeError):
            write(tmp_path / name, bad)
    assert list(tmp_path.iterdir()) == []
    write(tmp_path / "b.nii", result())
    (tmp_path / "b_std.nii").unlink()
    (tmp_path / "b.json").unlink()
    with pytest.raises(ValueError, match="is there already"):
        write(tmp_path / "b.nii", result())
    assert [p.name for p in tmp_path.iterdir()] == ["b.nii"]
    with pytest.raises(ValueError, match="mean and std have shapes"):
        Result(np.zeros((2, 3, 3)), np.zeros((2, 3, 4)), {})
    with pytest.raises(ValueError, match="unknown ending"):
        write(tmp_path / "a.png", result())


def test_ct_keeps_its_units_and_names_their_letters(tmp_path: Path) -> None:
    hounsfield = np.linspace(-1000, 1200, SLICES * H * W).reshape(SLICES, H, W)
    patient = FileDataset("", {})
    patient.PatientName, patient.SpecificCharacterSet = "Müller^Jörg", "ISO_IR 192"
    write(tmp_path / "ct", Result(hounsfield, np.ones_like(hounsfield), PROVENANCE, None, AFFINE, patient, "CT"))
    np.testing.assert_allclose(stack(open_volume(tmp_path / "ct")), hounsfield, atol=0.05)
    header = pydicom.dcmread(next((tmp_path / "ct").glob("mean*")))
    assert header.Modality == "CT" and header.RescaleType == "HU" and str(header.PatientName) == "Müller^Jörg"


def test_padding_is_not_a_mask(tmp_path: Path) -> None:
    """Zero columns at the edges of a fully sampled file; with references or without."""
    data = kspace()
    data[..., :2] = data[..., -1:] = 0
    for extra in ({}, {"reconstruction_esc": np.ones((SLICES, 8, 8), np.float32)}):
        path = write_fastmri(tmp_path / f"file{len(extra)}.h5", data, **extra)
        assert open_volume(path).mask is None
        m = measurement(path, 0, protocol="fastmri", acceleration=2)
        assert m.truth is not None and not m.mask[:2].any() and (m.target is not None) == bool(extra)


def test_coil_maps_do_not_know_what_was_not_measured(tmp_path: Path) -> None:
    data = kspace(COILS)
    path = write_fastmri(tmp_path / "file1.h5", data)
    first = measurement(path, 1, protocol="fastmri", acceleration=2)
    changed = np.where(first.mask.numpy(), data, 7 * data)
    second = measurement(write_fastmri(tmp_path / "other.h5", changed), 1, "fastmri", mask=first.mask)
    assert torch.equal(first.operator.maps, second.operator.maps)


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


# --- bad files ------------------------------------------------------------------------------------------------------


def cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def with_value(data: np.ndarray, value: complex) -> np.ndarray:
    data = data.copy()
    data[1, 2, 3] = value
    return data


def zero_slice(data: np.ndarray) -> np.ndarray:
    data = data.copy()
    data[1] = 0
    return data


def saved(path: Path, data: np.ndarray, **keys: object) -> Path:
    np.save(path, data, **keys)
    return path


def turned(index: int, header: FileDataset) -> None:
    if index == 1:
        header.ImageOrientationPatient = [1, 0, 0, 0, 0, 1]


def other_shape(index: int, header: FileDataset) -> None:
    if index == 1:
        header.Rows, header.PixelData = H - 1, bytes(2 * (H - 1) * W)


def other_series(index: int, header: FileDataset) -> None:
    if index == 1:
        header.SeriesInstanceUID = generate_uid()


def same_place(index: int, header: FileDataset) -> None:
    if index == 1:
        header.ImagePositionPatient = [10, 20, 0]


def more() -> np.ndarray:
    return np.concatenate([counts(), counts()])


def without(folder: Path) -> Path:
    (folder / "003.dcm").unlink()
    return folder


def cut_in(folder: Path, name: str) -> Path:
    (folder / name).write_bytes((folder / name).read_bytes()[:300])
    return folder


def npz(path: Path) -> Path:
    np.savez(path, kspace=kspace())
    return path


def scramble(path: Path) -> Path:
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 200] = bytes(200)
    path.write_bytes(bytes(data))
    return path


def group(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file.create_group("kspace")
    return path


def doubled(path: Path) -> Path:
    with h5py.File(path, "r+") as file:
        lines = file["dataset/data"][:]
        del file["dataset/data"]
        file["dataset/data"] = np.concatenate([lines, lines[-1:]])
    return path


def foreign(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file["something"] = [1]
    return path


KSPACE = ("--kind", "kspace")
BAD = {
    "no such file": (lambda p: p / "none.h5", (), "is neither a data set"),
    "truncated h5": (lambda p: cut(write_fastmri(p / "a.h5", kspace())), (), "cannot be read as HDF5"),
    "wrong keys": (lambda p: foreign(p / "a.h5"), (), "holds something; expected"),
    "integer k-space": (lambda p: write_fastmri(p / "a.h5", np.ones((2, 4, 4), int)), (), "expected complex numbers"),
    "NaN": (lambda p: write_fastmri(p / "a.h5", with_value(kspace(), np.nan)), (), "slice 1 holds NaN or infinite"),
    "infinite": (
        lambda p: write_fastmri(p / "a.h5", with_value(kspace(), np.inf)),
        (),
        "slice 1 holds NaN or infinite",
    ),
    "zero size": (lambda p: write_fastmri(p / "a.h5", kspace()[:0]), (), "it is empty"),
    "zero slice": (lambda p: write_fastmri(p / "a.h5", zero_slice(kspace())), (), "slice 1 is zero everywhere"),
    "five axes": (
        lambda p: write_fastmri(p / "a.h5", kspace(2)[None]),
        (),
        "expected (slices, [coils,] height, width)",
    ),
    "mask of another width": (
        lambda p: write_fastmri(p / "a.h5", kspace(), mask=np.ones(W + 1)),
        (),
        f"mask has {W + 1} columns, kspace has {W}",
    ),
    "missing lines": (lambda p: write_ismrmrd(p / "a.h5", kspace(), skip=((1, 4),)), (), "the scan is incomplete"),
    "spiral": (lambda p: write_ismrmrd(p / "a.h5", kspace(), trajectory="spiral"), (), "has a spiral trajectory"),
    "mixed orientations": (lambda p: write_dicom(p / "d", counts(), turned), (), "has mixed orientations"),
    "mixed shapes": (lambda p: write_dicom(p / "d", counts(), other_shape), (), "has mixed shapes"),
    "two in one place": (lambda p: write_dicom(p / "d", counts(), same_place), (), "1 slices in the place of others"),
    "a slice missing": (lambda p: without(write_dicom(p / "d", more())), (), "one is missing"),
    "a slice cut short": (lambda p: cut_in(write_dicom(p / "d", counts()), "002.dcm"), (), "002.dcm"),
    "truncated npz": (lambda p: cut(npz(p / "a.npz")), KSPACE, "cannot be read as an array"),
    "npz named npy": (
        lambda p: npz(p / "a.npz").rename(p / "a.npy"),
        KSPACE,
        "is an archive under the name of an array",
    ),
    "corrupt nii.gz": (lambda p: scramble(write_nifti(p / "a.nii.gz", counts().astype("f4"))), (), "cannot be read"),
    "kspace is a group": (lambda p: group(p / "a.h5"), (), "kspace is a group"),
    "references of another length": (
        lambda p: write_fastmri(p / "a.h5", kspace(), reconstruction_rss=np.ones((SLICES - 1, H, W), "f4")),
        (),
        "mixed shapes",
    ),
    "a line twice": (lambda p: doubled(write_ismrmrd(p / "a.h5", kspace())), (), "1 lines more than once"),
    "two series": (lambda p: write_dicom(p / "d", counts(), other_series), (), "holds 2 series, expected one"),
    "no DICOM": (lambda p: p, (), "holds no DICOM images"),
    "a text as DICOM": (lambda p: saved(p / "x.npy", counts()).rename(p / "x.dcm"), (), "cannot be read as DICOM"),
    "pickle in npy": (
        lambda p: saved(p / "a.npy", np.array([{}]), allow_pickle=True),
        KSPACE,
        "cannot be read as an array",
    ),
    "bare array": (lambda p: saved(p / "a.npy", kspace()), (), "state kind=kspace or kind=image"),
    "real k-space": (lambda p: saved(p / "a.npy", counts()), KSPACE, "expected complex"),
    "unstated coils": (
        lambda p: saved(p / "a.npy", kspace(2)),
        KSPACE,
        "state which of the axes 0, 1, 2, 3 holds coils",
    ),
    "no such axis": (lambda p: saved(p / "a.npy", kspace(2)), (*KSPACE, "--coil-axis", "7"), "has no coil axis 7"),
    "complex NIfTI": (lambda p: write_nifti(p / "a.nii", kspace()), (), "state kind=kspace or kind=image"),
    "truncated NIfTI": (lambda p: cut(write_nifti(p / "a.nii.gz", counts().astype("f4"))), (), "cannot be read"),
    "no NIfTI": (lambda p: saved(p / "a.npy", counts()).rename(p / "a.nii"), (), "cannot be read as NIfTI"),
    "no NRRD": (lambda p: saved(p / "a.npy", counts()).rename(p / "a.nrrd"), (), "cannot be read as NRRD"),
    "unknown ending": (lambda p: saved(p / "a.npy", counts()).rename(p / "a.xyz"), (), "has an unknown ending"),
    "images for k-space": (lambda p: write_dicom(p / "d", counts()), KSPACE, "holds image, but kind='kspace'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_get_one_line_and_exit_code_two(tmp_path: Path, capfd, case: str) -> None:
    make, flags, message = BAD[case]
    path = make(tmp_path)
    assert main(["data", "info", str(path), *flags]) == 2
    said = capfd.readouterr().err
    assert message in said and "Traceback" not in said and said.count("\n") == 1


def test_a_good_file_is_described(tmp_path: Path, capfd) -> None:
    path = write_fastmri(tmp_path / "a.h5", kspace(COILS) * (np.arange(W) % 2 == 0))
    assert main(["data", "info", str(path)]) == 0
    out = capfd.readouterr().out
    assert f"kspace, {SLICES} slices of {H} x {W}, {COILS} coils, 2.00x under-sampled, CORPD_FBK" in out


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


def test_coil_combination_of_a_real_operator(tmp_path: Path) -> None:
    """A fastMRI multi-coil file through protocol fastmri: measured entries are the file's, truth explains them."""
    data = kspace(COILS)
    path = write_fastmri(tmp_path / "a.h5", data)
    m = measurement(path, 1, protocol="fastmri", acceleration=2)
    y = torch.from_numpy(data[1])
    assert torch.allclose(m.y_m / m.scale, y * m.mask, atol=1e-4)
    assert m.truth.shape == (H, W) and m.operator(m.truth).shape == y.shape
    single = measurement(write_fastmri(tmp_path / "b.h5", kspace()), 0, protocol="fastmri", acceleration=2)
    assert torch.allclose(Fourier()(single.truth) * single.mask, single.y_m, atol=1e-5)
    assert single.operator.pinv(single.y_m).abs().max().item() == pytest.approx(1)


def test_a_left_handed_geometry_keeps_every_value_in_its_place(tmp_path: Path) -> None:
    """DICOM slices are sorted along their normal, so a mirrored stack comes back reversed, with its affine."""
    mirrored = AFFINE @ np.diag([-1.0, 1.0, 1.0, 1.0])
    r = Result(result().mean, result().std, PROVENANCE, None, mirrored)
    write(tmp_path / "series", r)
    volume = open_volume(tmp_path / "series")
    world = mirrored @ [4, 7, 2, 1]
    column, row, index, _ = np.rint(np.linalg.inv(volume.geometry.affine) @ world).astype(int)
    assert float(volume[index][row, column]) == pytest.approx(r.mean[2, 7, 4], rel=1e-3)

"""Files that tests read: one scan in many formats, as their own libraries write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import ismrmrd
import nibabel
import numpy as np
import torch
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, MRImageStorage, generate_uid

from mcddpm.data.phantoms import drawn
from mcddpm.data.volume import Volume
from mcddpm.data.writers import Result
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


def write_dicom(
    folder: Path, images: np.ndarray, change: Callable[[int, FileDataset], None] = lambda index, header: None
) -> Path:
    """A series whose file names run against the places of its slices. change: of each header, before it is saved."""
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
        h.save_as(folder / f"{len(images) - index:03d}.dcm", enforce_file_format=True)
    return folder


def counts() -> np.ndarray:
    return np.random.RandomState(3).randint(0, 4000, (SLICES, H, W))


PROVENANCE = {"model": "m", "seed": 3, "sampler": "heun", "steps": 5, "mask": "x", "scale": 2.0, "version": "0"}


def result(**extra: object) -> Result:
    rng = np.random.RandomState(0)
    mean, samples = rng.rand(SLICES, H, W) * 1e-4, rng.rand(SLICES, 4, H, W)
    return Result(mean, 0.1 * mean, PROVENANCE, samples, AFFINE, **extra)


def fastmri_file(path: Path, slices: int = 12, acquisition: str = "CORPD_FBK", size: int = 330) -> Path:
    """Drawn heads in fastMRI's layout, with the reference that its knees have: 320 x 320."""
    images = drawn(slices, size, seed=3)
    rss = np.abs(images)[:, 5:325, 5:325].astype(np.float32)
    with h5py.File(path, "w") as file:
        file["kspace"] = Fourier()(torch.from_numpy(images)).numpy()
        file["reconstruction_rss"] = rss
        file.attrs["acquisition"] = acquisition
    return path

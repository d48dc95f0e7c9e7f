"""Files -> `Volume`: the slices of one scan, read one at a time when asked for, with the file closed in between.

    open_volume(path)                         fastMRI and ISMRMRD h5, NIfTI, MGZ, Analyze, DICOM, NRRD, our results
    open_volume("scan.npy", kind="kspace")    a bare array does not say what it is: you do

A slice is (H, W), or (C, H, W) with coils; k-space in our centred FFT. What a file does not say (k-space or image,
which axis holds coils) is never guessed. Each format imports its library when it is first met.
"""

from __future__ import annotations

from pathlib import Path

from mcddpm.data.readers.arrays import open_array
from mcddpm.data.readers.dicom import is_dicom, open_dicom
from mcddpm.data.readers.hdf5 import open_h5
from mcddpm.data.readers.nifti import open_nifti
from mcddpm.data.readers.nrrd import open_nrrd
from mcddpm.data.volume import Geometry, Volume, VolumeKind
from mcddpm.system.settings import check_choice

__all__ = ["ENDINGS", "Geometry", "Volume", "is_dicom", "open_volume"]

ENDINGS = (".h5", ".hdf5", ".nii.gz", ".nii", ".mgz", ".nrrd", ".nhdr", ".npy", ".npz")  # of whole scans in one file


def open_volume(path: str | Path, *, kind: VolumeKind | None = None, coil_axis: int | None = None) -> Volume:
    """Find out what a file is and open it. `kind` and `coil_axis` state what the file does not."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"no file or folder {path}")
    if kind is not None:
        check_choice("kind", kind, VolumeKind)
    name = path.name.lower()
    try:
        if path.is_dir() and (pairs := sorted(path.glob("*.hdr"))):
            if len(pairs) > 1:
                raise ValueError(f"{path} holds {len(pairs)} Analyze files, expected one")
            volume = open_nifti(pairs[0], kind)
        elif path.is_dir() or name.endswith((".dcm", ".ima")):
            volume = open_dicom(path)
        elif name.endswith((".h5", ".hdf5")):
            volume = open_h5(path)
        elif name.endswith((".nii", ".nii.gz", ".mgz", ".hdr")):
            volume = open_nifti(path, kind)
        elif name.endswith((".nrrd", ".nhdr")):
            volume = open_nrrd(path)
        elif name.endswith((".npy", ".npz")):
            volume = open_array(path, kind, coil_axis)
        else:
            raise ValueError(
                f"{path} has an unknown ending; "
                "known: .h5, .nii, .nii.gz, .mgz, .hdr, .dcm, .nrrd, .npy, .npz, or a folder of DICOM files"
            )
    except ImportError as error:
        extra = "mri" if error.name == "ismrmrd" else "medical"
        raise ValueError(f"{path} needs the package {error.name}: pip install 'mcddpm[{extra}]'") from error
    if kind is not None and volume.kind != kind:
        raise ValueError(f"{path} holds {volume.kind}, but kind={kind!r} was asked for")
    if 0 in volume.shape:
        raise ValueError(f"{path} has shape {volume.shape}: it is empty")
    return volume

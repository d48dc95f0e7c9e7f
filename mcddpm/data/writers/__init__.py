"""Reconstructions -> files: h5 with everything, NIfTI and DICOM with mean, std and interval. Each whole, or not there.

Provenance (model, seed, sampler, steps, mask, scale, version) goes into each: as an attribute, as a JSON beside the
NIfTI, as DICOM's derivation description. Geometry is the input's. Of a DICOM header only what identifies patient, study
and geometry is taken over; private elements are not.
"""

from __future__ import annotations

from pathlib import Path

from mcddpm.data.writers.dicom import write_dicom
from mcddpm.data.writers.h5 import write_h5
from mcddpm.data.writers.nifti import write_nifti
from mcddpm.data.writers.result import Result

__all__ = ["Result", "write", "write_dicom", "write_h5", "write_nifti"]


def write(path: Path, result: Result) -> None:
    """By the ending: .h5, .nii or .nii.gz (mean; std beside it), or a folder for a DICOM series."""
    name = path.name.lower()
    if name.endswith((".h5", ".hdf5")):
        write_h5(path, result)
    elif name.endswith((".nii", ".nii.gz")):
        write_nifti(path, result)
    elif not path.suffix:
        write_dicom(path, result)
    else:
        raise ValueError(f"{path} has an unknown ending; known: .h5, .nii, .nii.gz, or a folder for DICOM")

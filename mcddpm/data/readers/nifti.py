"""NIfTI, and what else nibabel reads as (X, Y, Z): FreeSurfer's .mgz, and Analyze pairs of .hdr and .img."""

from __future__ import annotations

import gzip
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mcddpm.data.volume import Geometry, Volume, VolumeKind


def open_nifti(path: Path, kind: VolumeKind | None) -> Volume:
    """(X, Y, Z) on disk; slice k is data[:, :, k] with rows along Y. Complex data may be k-space: say which."""
    import nibabel

    try:
        image: Any = nibabel.load(path)
    except (nibabel.filebasedimages.ImageFileError, nibabel.spatialimages.HeaderDataError, OSError, EOFError) as error:
        raise ValueError(f"{path} cannot be read as NIfTI: {error}") from error
    X, Y, Z, *more = (int(n) for n in (*image.shape, *[0] * (3 - len(image.shape))))
    if len(image.shape) < 3 or any(n != 1 for n in more):
        raise ValueError(f"{path} has shape {image.shape}, expected three axes")
    if image.get_data_dtype().kind == "c" and kind is None:
        raise ValueError(f"{path} holds complex numbers: state kind=kspace or kind=image")

    @lru_cache(maxsize=1)
    def whole() -> np.ndarray:
        """gzip has no random access: unpacked once instead of once a slice, and to the end, where its checksum is."""
        return np.asarray(type(image).from_bytes(gzip.decompress(path.read_bytes())).dataobj)

    def read(index: int) -> np.ndarray:
        try:
            if path.suffix in (".gz", ".mgz"):
                return whole()[:, :, index].reshape(X, Y).T
            again: Any = nibabel.load(path)
            return np.asarray(again.dataobj[:, :, index]).reshape(X, Y).T
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise ValueError(f"{path}, slice {index} cannot be read: {error}") from error

    return Volume(path, kind or "image", (Z, Y, X), read, geometry=Geometry(affine=_affine(path, image)))


def _affine(path: Path, image: Any) -> np.ndarray:
    """An Analyze header has no affine but names a plane, which nibabel passes over."""
    affine = np.asarray(image.affine)
    if "orient" not in image.header or (plane := bytes(image.header["orient"])) in (b"", b"\x00"):
        return affine
    if plane != b"\x02":
        raise ValueError(f"{path} is an Analyze file of orientation {plane!r}; axial and sagittal are known")
    axes = np.array([[0, 0, -1, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1.0]])  # to the front, up, to the left
    return axes @ np.diag([*np.abs(np.diag(affine)[:3]), 1])

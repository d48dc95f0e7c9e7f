"""NIfTI."""

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
    if len(image.shape) != 3:
        raise ValueError(f"{path} has shape {image.shape}, expected three axes")
    if image.get_data_dtype().kind == "c" and kind is None:
        raise ValueError(f"{path} holds complex numbers: state kind=kspace or kind=image")

    @lru_cache(maxsize=1)
    def whole() -> np.ndarray:
        """gzip has no random access: unpacked once instead of once a slice, and to the end, where its checksum is."""
        return np.asarray(type(image).from_bytes(gzip.decompress(path.read_bytes())).dataobj)

    def read(index: int) -> np.ndarray:
        try:
            if path.suffix == ".gz":
                return whole()[:, :, index].T
            again: Any = nibabel.load(path)
            return np.asarray(again.dataobj[:, :, index]).T
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise ValueError(f"{path}, slice {index} cannot be read: {error}") from error

    X, Y, Z = image.shape
    geometry = Geometry(affine=np.asarray(image.affine))
    return Volume(path, kind or "image", (Z, Y, X), read, geometry=geometry)

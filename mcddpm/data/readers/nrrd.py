"""NRRD."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mcddpm.data.volume import Geometry, Volume

_TO_RAS = {
    **dict.fromkeys(("right-anterior-superior", "ras"), (1.0, 1.0, 1.0)),
    **dict.fromkeys(("left-anterior-superior", "las"), (-1.0, 1.0, 1.0)),
    **dict.fromkeys(("left-posterior-superior", "lps"), (-1.0, -1.0, 1.0)),
}


def open_nrrd(path: Path) -> Volume:
    import nrrd

    try:
        data, header = nrrd.read(str(path))
    except (nrrd.NRRDError, OSError, EOFError) as error:
        raise ValueError(f"{path} cannot be read as NRRD: {error}") from error
    if data.ndim != 3:
        raise ValueError(f"{path} has shape {data.shape}, expected three axes")
    affine = np.eye(4)
    if "space directions" in header:
        affine[:3, :3] = np.asarray(header["space directions"]).T
        affine[:3, 3] = header.get("space origin", np.zeros(3))
    elif "spacings" in header:
        affine[:3, :3] = np.diag(header["spacings"])
    space = str(header.get("space", "right-anterior-superior")).lower()
    if space not in _TO_RAS:
        raise ValueError(f"{path} has the space {space!r}, expected one of: {', '.join(_TO_RAS)}")
    affine = np.diag([*_TO_RAS[space], 1.0]) @ affine
    X, Y, Z = data.shape
    return Volume(path, "image", (Z, Y, X), lambda index: data[:, :, index].T, geometry=Geometry(affine=affine))

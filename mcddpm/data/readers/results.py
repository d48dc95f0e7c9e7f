"""Our own results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mcddpm.data.readers.h5_slices import h5_slice, plain
from mcddpm.data.volume import Geometry, Volume


def open_result(path: Path, file: Any) -> Volume:
    """The mean of a reconstruction that `writers` wrote; std, zero-filled image and truth are references."""
    affine = np.asarray(file["affine"]) if "affine" in file else None
    return Volume(
        path,
        "image",
        file["mean"].shape,
        h5_slice(path, "mean"),
        attributes={key: plain(value) for key, value in file.attrs.items()},
        geometry=Geometry(affine=affine),
        references={key: h5_slice(path, key) for key in ("std", "zero_filled", "truth") if key in file},
    )

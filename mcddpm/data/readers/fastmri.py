"""fastMRI's layout: kspace (slices, [coils,] H, W), with references."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from mcddpm.data.readers.h5_slices import h5_slice, plain
from mcddpm.data.volume import Volume, infer_mask


def open_fastmri(path: Path, file: Any) -> Volume:
    """kspace (S, H, W) or (S, C, H, W), already centred as ours; references and acquisition if there."""
    kspace = file["kspace"]
    if not hasattr(kspace, "dtype"):
        raise ValueError(f"{path}: kspace is a group, expected an array")
    if kspace.dtype.kind != "c":
        raise ValueError(f"{path}: kspace has dtype {kspace.dtype}, expected complex numbers")
    if kspace.ndim not in (3, 4):
        raise ValueError(f"{path}: kspace has shape {kspace.shape}, expected (slices, [coils,] height, width)")
    mask, inferred = None, False
    if "mask" in file:
        mask = torch.from_numpy(np.atleast_1d(np.asarray(file["mask"])).astype(bool))
        if mask.shape[-1] != kspace.shape[-1]:
            raise ValueError(f"{path}: mask has {mask.shape[-1]} columns, kspace has {kspace.shape[-1]}")
    names = [key for key in ("reconstruction_rss", "reconstruction_esc") if key in file]
    if mask is None and not names and kspace.size:  # a file with references is fully sampled
        mask = infer_mask(lambda index: kspace[index], len(kspace))
        inferred = mask is not None
    for key in names:
        if file[key].ndim != 3 or file[key].shape[0] != kspace.shape[0]:
            raise ValueError(f"{path}: {key} has shape {file[key].shape}, kspace {kspace.shape}: mixed shapes")
    attributes = {key: plain(value) for key, value in file.attrs.items()}
    return Volume(
        path,
        "kspace",
        kspace.shape,
        h5_slice(path, "kspace"),
        mask=mask,
        inferred=inferred,
        acquisition=str(attributes.get("acquisition", "")),
        attributes=attributes,
        references={key: h5_slice(path, key) for key in names},
    )

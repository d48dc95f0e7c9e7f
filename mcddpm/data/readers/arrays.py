"""Bare arrays, which do not say what they are: .npy and .npz."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from mcddpm.data.volume import Volume, VolumeKind, infer_mask


def open_array(path: Path, kind: VolumeKind | None, coil_axis: int | None) -> Volume:
    """(slices, H, W), (H, W), or with coils where coil_axis says. A bare array does not say what it is."""
    if kind is None:
        raise ValueError(f"{path} does not say what it holds: state kind=kspace or kind=image")
    try:
        data = _load_archive(path, kind) if path.suffix == ".npz" else np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read as an array: {error}") from error
    if not isinstance(data, np.ndarray):
        data.close()
        raise ValueError(f"{path} is an archive under the name of an array: call it .npz")
    if data.dtype.kind not in ("c" if kind == "kspace" else "fciu"):
        raise ValueError(
            f"{path} has dtype {data.dtype}, expected {'complex' if kind == 'kspace' else 'real or complex'}"
        )
    if coil_axis is not None:
        if not -data.ndim <= coil_axis < data.ndim or data.ndim not in (3, 4):
            raise ValueError(f"{path} has shape {data.shape}, which has no coil axis {coil_axis}")
        data = np.moveaxis(data, coil_axis, -3)
        data = data if data.ndim == 4 else data[None]
    elif data.ndim == 2:
        data = data[None]
    elif data.ndim != 3:
        axes = ", ".join(map(str, range(data.ndim)))
        raise ValueError(f"{path} has shape {data.shape}: state which of the axes {axes} holds coils (coil_axis)")
    mask = infer_mask(lambda index: data[index], len(data)) if kind == "kspace" and data.size else None
    return Volume(path, kind, data.shape, lambda index: data[index], mask=mask, inferred=mask is not None)


def _load_archive(path: Path, kind: VolumeKind) -> np.ndarray:
    """The array that is called as what it holds, or the only one."""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        keys = list(archive)
        if kind not in keys and len(keys) != 1:
            raise ValueError(f"it holds {', '.join(keys)}, expected {kind} or a single array")
        return archive[kind if kind in keys else keys[0]]

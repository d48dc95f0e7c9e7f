"""HDF5 with everything."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from mcddpm.data.writers.result import Result
from mcddpm.system import files


def write_h5(path: Path, result: Result) -> None:
    """mean, std, samples (each slice a chunk, so that one is read at a time), affine; provenance as JSON attribute."""
    try:
        with files.whole(path, fresh=True) as part:
            _fill(part, result)
    except RuntimeError as error:  # h5py's word for a full disk
        raise OSError(f"{path} cannot be written: {error}") from error


def _fill(part: Path, result: Result) -> None:
    import h5py

    with h5py.File(part, "w") as file:
        file.attrs["provenance"] = json.dumps(result.provenance)
        for key, values in (result.images | dict(result.beside)).items():
            packed = values if values.dtype == bool else values.astype(np.float32)
            chunk = (1, *values.shape[1:])
            file.create_dataset(key, data=packed, chunks=chunk, compression="gzip", shuffle=True)
        if result.samples is not None:
            first = result.samples[0]
            kind = np.complex64 if np.iscomplexobj(first) else np.float32
            # Not packed: the last bits are noise, and a viewer wants a slice at once.
            samples = file.create_dataset("samples", (len(result.samples), *first.shape), kind)
            for index, values in enumerate(result.samples):
                samples[index] = values
        if result.affine is not None:
            file["affine"] = result.affine

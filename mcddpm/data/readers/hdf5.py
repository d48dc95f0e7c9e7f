"""HDF5: finds out which layout a file has."""

from __future__ import annotations

from pathlib import Path

from mcddpm.data.readers.fastmri import open_fastmri
from mcddpm.data.readers.ismrmrd import open_ismrmrd
from mcddpm.data.readers.pyqmri import open_pyqmri
from mcddpm.data.readers.results import open_result
from mcddpm.data.volume import Volume


def open_h5(path: Path) -> Volume:
    import h5py

    try:
        with h5py.File(path, "r") as file:
            if "kspace" in file:
                return open_fastmri(path, file)
            if "mean" in file and "provenance" in file.attrs:
                return open_result(path, file)
            if "real_dat" in file and "imag_dat" in file:
                return open_pyqmri(path, file)
            raw = "dataset" in file and "data" in file["dataset"]
            result = ", ".join(list(file)[:8]) or "nothing"
    except OSError as error:
        raise ValueError(f"{path} cannot be read as HDF5: {error}") from error
    except (KeyError, AttributeError, IndexError, TypeError) as error:
        raise ValueError(f"{path} is HDF5, but not as expected: {type(error).__name__} {error}") from error
    if raw:
        return open_ismrmrd(path)
    raise ValueError(f"{path} holds {result}; expected fastMRI's kspace, ISMRMRD's dataset/data, or a result of ours")

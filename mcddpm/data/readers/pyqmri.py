"""PyQMRI's layout: several coils and contrasts, the FFT unshifted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mcddpm.data.volume import Volume


def open_pyqmri(path: Path, file: Any) -> Volume:
    """PyQMRI's layout: real_dat and imag_dat (contrasts, C, slices, H, W), FFT unshifted. Contrasts run as slices."""
    contrasts, coils, slices, height, width = file["real_dat"].shape

    def read(index: int) -> np.ndarray:
        import h5py

        at = (index // slices, slice(None), index % slices)
        with h5py.File(path, "r") as file:
            plain = file["real_dat"][at] + 1j * file["imag_dat"][at]
        images = np.fft.ifft2(plain, norm="ortho")
        centred = np.fft.fft2(np.fft.ifftshift(images, axes=(-2, -1)), norm="ortho")
        return np.fft.fftshift(centred, axes=(-2, -1)).astype(np.complex64)

    return Volume(path, "kspace", (contrasts * slices, coils, height, width), read)

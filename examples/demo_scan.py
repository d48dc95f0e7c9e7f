"""How mcddpm/assets/demo.h5 was made: three slices of the test person of `brain`, above the orbits, as k-space.

mcddpm data get brain
python examples/demo_scan.py
"""

from __future__ import annotations

import h5py
import numpy as np
import torch

from mcddpm.data.slices import prepare
from mcddpm.demo import SCAN
from mcddpm.physics.fourier import Fourier
from mcddpm.simulation import scans

CHOSEN, SNR = (56, 66, 84), 35.0


def main() -> None:
    images = np.load(prepare("brain", "test", 192), mmap_mode="r")
    scan = torch.stack([scans.scan(torch.tensor(images[k]), seed=k, snr=SNR) for k in CHOSEN])
    SCAN.parent.mkdir(exist_ok=True)
    with h5py.File(SCAN, "w") as file:
        file["kspace"] = Fourier()(1000 * scan).numpy()
        file["reconstruction_esc"] = 1000 * scan.abs().numpy()
        file.attrs["source"] = "pycortex 1.4.0, filestore/db/S1/anatomicals/raw.nii.gz (BSD-2)"
        file.attrs["simulated"] = (
            f"smooth phase, complex noise at SNR {SNR:g}; axial slices {CHOSEN} of the brain, 192 x 192"
        )


if __name__ == "__main__":
    main()

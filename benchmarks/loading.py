"""Reading slices: one slice of an h5 volume against the whole volume for every slice, and the loader's share of a step.

Volume: 36 slices of 640 x 368, as fastMRI's knees. Lazy reading must be 20 times faster or more.
Loader: making a batch (read, augment, phase, noise, mask, FFT) from the memory-mapped slice cache, as a share of a
training step at the default CPU configuration. At most 5 %.

    python benchmarks/loading.py
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from mcddpm.data.phantoms import drawn
from mcddpm.data.readers import open_volume
from mcddpm.system.progress import Quiet
from mcddpm.system.settings import from_dict
from mcddpm.training.settings import Config
from mcddpm.training.trainer import Trainer

SLICES, SIZE, REPEATS = 36, 192, 5
LEAST_RATIO, MOST_LOADER = 20.0, 0.05


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def lazy_ratio(folder: Path) -> float:
    """Time of `volume[k]` for random k, against reading the whole array and taking slice k."""
    rng = np.random.RandomState(0)
    path = folder / "volume.h5"
    with h5py.File(path, "w") as file:
        file["kspace"] = rng.randn(SLICES, 640, 368).astype(np.complex64)
    volume = open_volume(path)

    def whole(index: int) -> np.ndarray:
        with h5py.File(path, "r") as file:
            return file["kspace"][:][index]

    order = rng.permutation(SLICES)
    volume[0], whole(0)
    lazy = [seconds(lambda k=k: volume[k]) for k in order]  # type: ignore[misc]
    full = [seconds(lambda k=k: whole(k)) for k in order]  # type: ignore[misc]
    return statistics.median(full) / statistics.median(lazy)


def loader_share(folder: Path) -> float:
    """Time to make the examples of a step, against the whole step."""
    np.save(folder / "slices.npy", np.abs(drawn(64, SIZE, seed=0)))
    settings = from_dict(Config, {"data": {"train": str(folder / "slices.npy"), "validation": ""}})
    trainer = Trainer(settings, folder / "run", Quiet())
    trainer.advance()
    shares = []
    for _ in range(REPEATS):
        loading = seconds(lambda: list(trainer.examples()))
        shares.append(loading / seconds(trainer.advance))
    return statistics.median(shares)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        ratio, share = lazy_ratio(Path(folder)), loader_share(Path(folder))
    print(f"one slice of a volume: {ratio:.0f} times faster than the whole volume (at least {LEAST_RATIO:g})")
    print(f"loader's share of a training step: {share:.1%} (at most {MOST_LOADER:.0%})")
    return 0 if ratio >= LEAST_RATIO and share <= MOST_LOADER else 1


if __name__ == "__main__":
    sys.exit(main())

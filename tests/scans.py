"""Small scans of blocks, and what is made of them: for the tests of all that reconstructs files."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import torch

from mcddpm.physics import masks
from mcddpm.physics.fourier import Fourier
from mcddpm.reconstruction.inputs import Task
from mcddpm.reconstruction.plan import DrawPlan

SIZE = 32
MASK = masks.random_columns(SIZE, acceleration=4, seed=0)


def kspace(slices: int = 3, seed: int = 0) -> np.ndarray:
    """Blocks with a phase, as k-space (slices, H, W)."""
    rng = np.random.RandomState(seed)
    x = np.zeros((slices, SIZE, SIZE), np.complex64)
    for image in x:
        top, left = rng.randint(4, 12, 2)
        image[top : top + 16, left : left + 12] = rng.uniform(50, 100) * np.exp(1j * rng.uniform(0, 6))
    noise = rng.normal(size=(*x.shape, 2)) @ [1, 1j]
    return Fourier()(torch.from_numpy(x + noise.astype(np.complex64))).numpy()


def scan(path: Path, slices: int = 3, seed: int = 0, sampled: bool = True) -> Path:
    """A file in fastMRI's layout, under-sampled as measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    y = kspace(slices, seed)
    with h5py.File(path, "w") as file:
        file["kspace"] = y * MASK.numpy() if sampled else y
        if sampled:
            file["mask"] = MASK.numpy()
    return path


def quick(model: Path | str, samples: int = 2, steps: int = 2, seed: int = 0, **more: object) -> Task:
    """A task that takes no time. more: its other settings."""
    return Task(str(model), plan=DrawPlan(samples, steps=steps, seed=seed), **more)  # type: ignore[arg-type]


def contents(folder: Path) -> dict[str, bytes]:
    """Every result, byte for byte."""
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and ".parts" not in p.parts
    }

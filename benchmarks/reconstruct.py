"""What `mcddpm reconstruct` takes: memory within --memory, and time that grows linearly with samples and slices.

Memory: the peak resident size of a process of its own that draws 20 samples of a 320 x 320 slice with --memory 2GB.
Time: 5, 10 and 20 samples of a slice, and 1, 2 and 4 slices of 5 samples, in one process, the fastest of three runs of
each; as ratios to the smallest.

    python benchmarks/reconstruct.py [--model default]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py
import torch

from mcddpm.models.store import load_model
from mcddpm.physics import masks
from mcddpm.physics.fourier import Fourier
from mcddpm.reconstruction.batch import reconstruct_scans
from mcddpm.reconstruction.inputs import Task
from mcddpm.reconstruction.plan import DrawPlan
from mcddpm.reconstruction.sample import check

SIZE, STEPS = 320, 4


def scan(path: Path, slices: int, size: int = SIZE) -> Path:
    """A disc with a hole, as k-space."""
    i = torch.arange(size) - size / 2
    radius = torch.hypot(i[:, None], i)
    image = ((radius < 0.4 * size) & (radius > 0.1 * size)).to(torch.complex64)
    mask = masks.random_columns(size, acceleration=4, seed=0)
    with h5py.File(path, "w") as file:
        file["kspace"] = (Fourier()(image) * mask).expand(slices, size, size).numpy()
        file["mask"] = mask.numpy()
    return path


def peak(model: str, memory: str, samples: int, size: int = SIZE) -> float:
    """Bytes that the whole process took at most."""
    with tempfile.TemporaryDirectory() as folder:
        path = scan(Path(folder) / "scan.h5", 1, size)
        flags = ["--model", model, "--memory", memory, "--samples", str(samples), "--steps", "2"]
        command = ["-m", "mcddpm", "reconstruct", str(path), "--out", f"{folder}/out", *flags]
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
    return 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


def seconds(model: str, slices: int, samples: int, runs: int = 3) -> float:
    """The fastest of several runs: what else the machine does only adds."""
    return min(_seconds(model, slices, samples, SIZE) for _ in range(runs))


def _seconds(model: str, slices: int, samples: int, size: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        path = scan(Path(folder) / "scan.h5", slices, size)
        task = Task(model=model, plan=DrawPlan(samples, steps=STEPS))
        start = time.monotonic()
        reconstruct_scans([str(path)], Path(folder) / "out", task, check(load_model(model), task.plan), memory="2GB")
        return time.monotonic() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="default")
    model = parser.parse_args().model
    print(f"peak memory, {SIZE} x {SIZE}, 20 samples, --memory 2GB: {peak(model, '2GB', 20) / 1e9:.2f} GB")
    seconds(model, 1, 2, runs=1)  # warm
    first = seconds(model, 1, 5)
    for samples in (10, 20):
        ratio = seconds(model, 1, samples) / first
        print(f"{samples} samples against 5: {ratio:.2f} times the time, {samples / 5:g} expected")
    for slices in (2, 4):
        print(f"{slices} slices against 1: {seconds(model, slices, 5) / first:.2f} times the time, {slices} expected")


if __name__ == "__main__":
    main()

"""Results of `mcddpm reconstruct` as a viewer wants them: one layer of one slice at a time, small on the wire."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from mcddpm import metrics
from mcddpm.data.readers import ENDINGS
from mcddpm.physics import masks
from mcddpm.physics.fourier import Fourier
from mcddpm.viewer import trust

STORED = ("mean", "std", "zero_filled", "truth", "lower", "upper", "surprise")
READING = threading.Lock()  # h5py files are shared between the server's threads


class Missing(ValueError):
    """What was asked for is not there."""


@dataclass(frozen=True)
class Folder:
    """Everything that can be reached lies under `root`, links resolved."""

    root: Path

    def place(self, name: str) -> Path:
        """The file of a relative name; never one outside."""
        try:
            path = (self.root / name).resolve(strict=True)
        except (OSError, ValueError, RuntimeError) as error:  # no such file, a name too long, a zero byte, a loop
            raise Missing(f"no file {name!r} in the folder that is shown") from error
        hidden = any(part.startswith(".") for part in path.relative_to(self.root).parts) if self._has(path) else True
        if hidden or not path.is_file():
            raise Missing(f"no file {name!r} in the folder that is shown")
        return path

    def _has(self, path: Path) -> bool:
        return path.is_relative_to(self.root)

    def files(self, most: int = 2000) -> list[str]:
        """Names of all files that readers may know."""
        names: list[str] = []
        for here, folders, files in os.walk(self.root):  # which does not mind that folders come and go meanwhile
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(files):
                path = Path(here) / name
                known = name.lower().endswith((*ENDINGS, ".dcm", ".ima")) and not name.startswith(".")
                if known and path.is_file() and self._has(path.resolve()):
                    names.append(path.relative_to(self.root).as_posix())
            if len(names) >= most:
                break
        return sorted(names[:most])

    def results(self) -> list[str]:
        return [name for name in self.files() if name.endswith(".h5") and is_result(*_now(self.root / name))]

    def result(self, name: str) -> Result:
        path = self.place(name)
        if not path.name.endswith(".h5") or not is_result(*_now(path)):
            raise Missing(f"{name!r} is not a result of mcddpm reconstruct")
        return opened(*_now(path))


def _now(path: Path) -> tuple[Path, int]:
    """A file as it is now: what was found out about it holds until it changes."""
    try:
        return path, path.stat().st_mtime_ns
    except OSError:
        return path, 0


@lru_cache(maxsize=4096)
def is_result(path: Path, _: int) -> bool:
    try:
        with READING:
            trust.check(path)
            with h5py.File(path) as file:
                json.loads(file.attrs["provenance"])
                return isinstance(file["mean"], h5py.Dataset) and file["mean"].ndim == 3
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError):
        return False


@lru_cache(maxsize=8)
def opened(path: Path, _: int) -> Result:
    return Result(path)


class Result:
    """One result file. Layers: those stored, `error` where there is a truth, `width` of an interval, `mask`, and, by a
    sample's number, `sample` and its `kspace` (log10 of the magnitude)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with READING:
            self.file = h5py.File(path)
            self.stored = [name for name in STORED if name in self.file]
            self.slices, self.height, self.width = self.file["mean"].shape
            self.samples = self.file["samples"].shape[1] if "samples" in self.file else 0
            self.sampled = "mask" in self.file
            self.provenance: dict[str, Any] = json.loads(self.file.attrs["provenance"])

    @property
    def layers(self) -> list[str]:
        more = ["error"] if "truth" in self.stored else []
        more += ["width"] if "upper" in self.stored else []
        more += ["sample", "kspace"] if self.samples else []
        return [*self.stored, *more, *(["mask"] if self.sampled else [])]

    def layer(self, name: str, slice: int, sample: int = 0) -> np.ndarray:
        """(H, W), float32"""
        if name not in self.layers:
            raise Missing(f"there is no layer {name!r}; there are {', '.join(self.layers)}")
        if not 0 <= slice < self.slices:
            raise Missing(f"there is no slice {slice}; there are 0 to {self.slices - 1}")
        if name in ("sample", "kspace") and not 0 <= sample < self.samples:
            raise Missing(f"there is no sample {sample}; there are 0 to {self.samples - 1}")
        if name in self.stored or name == "mask":
            return self._read(name, slice).astype(np.float32)
        if name == "error":
            return abs(self._read("mean", slice) - self._read("truth", slice))
        if name == "width":
            return self._read("upper", slice) - self._read("lower", slice)
        drawn = self._read("samples", slice, sample)
        if name == "sample":
            return np.abs(drawn).astype(np.float32)
        y = Fourier()(torch.from_numpy(drawn.astype(np.complex64))).abs()
        return torch.log10(y.clamp(min=float(y.max()) * 1e-6)).numpy()

    def _read(self, name: str, *place: int) -> np.ndarray:
        with READING:
            return self.file[name][place]

    def affine(self) -> np.ndarray | None:
        with READING:
            return self.file["affine"][:] if "affine" in self.file else None

    @cached_property
    def tops(self) -> dict[str, float]:
        """Where a window should end: for images, for what is measured in std, of the whole volume."""
        with READING:
            mean = self.file["mean"][:]
            std = self.file["std"][:] if "std" in self.stored else mean
        return {"image": float(np.percentile(mean, 99.9)), "std": float(np.percentile(std, 99.5)) * 2}

    def describe(self) -> dict[str, Any]:
        return {
            "slices": self.slices,
            "height": self.height,
            "width": self.width,
            "samples": self.samples,
            "layers": self.layers,
            "tops": self.tops,
            "provenance": self.provenance,
        }

    def numbers(self, slice: int) -> dict[str, Any]:
        """Of one slice: quality where there is a truth, the acceleration, and the self-check's p-value."""
        mean, numbers = self.layer("mean", slice), {}
        if self.sampled:
            mask = self._read("mask", slice)
            numbers["acceleration"] = masks.acceleration(torch.from_numpy(mask)) if mask.any() else 0.0
        if "truth" in self.stored:
            truth = torch.from_numpy(self.layer("truth", slice))
            for name in ("mean", "zero_filled") if float(truth.max()) > 0 else ():
                image = torch.from_numpy(self.layer(name, slice))
                for metric in ("psnr", "ssim", "nmse"):
                    numbers[f"{metric}_{name}"] = float(metrics.METRICS[metric](image, truth))
        checks = self.provenance.get("self_check", {}).get("slices", [])
        for check in (check for check in checks if check["slice"] == slice):
            numbers["self_check_p"] = check["p"]
        numbers["mean"], numbers["max"] = float(mean.mean()), float(mean.max())
        return {key: value for key, value in numbers.items() if np.isfinite(value)}

    def box(self, slice: int, top: int, left: int, height: int, width: int, bins: int = 24) -> dict[str, Any]:
        """Statistics in a box: of the mean image, and of the box's average from sample to sample."""
        self.layer("mean", slice)
        if min(top, left) < 0 or min(height, width) < 1 or top + height > self.height or left + width > self.width:
            raise Missing(f"the box does not lie in the image of {self.height} x {self.width}")
        rows, columns = np.s_[top : top + height], np.s_[left : left + width]
        inside = self.layer("mean", slice)[rows, columns].astype(np.float64)
        counts, edges = np.histogram(inside, bins)
        statistics = {"mean": float(inside.mean()), "min": float(inside.min()), "max": float(inside.max())}
        statistics |= {"histogram": counts.tolist(), "edges": edges.tolist(), "pixels": int(inside.size)}
        if self.samples > 1:
            drawn = np.abs(self._read("samples", slice)[:, rows, columns])
            averages = drawn.mean((1, 2))
            statistics |= {"std_of_average": float(averages.std(ddof=1)), "averages": averages.tolist()}
            statistics["std"] = float(drawn.std(0, ddof=1).mean())
        return statistics


def pack(image: np.ndarray) -> tuple[bytes, float, float]:
    """16 bits a pixel: value = low + stored (high - low) / 65535."""
    known = np.nan_to_num(image.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(known.min()), float(known.max())
    step = (high - low) / 65535 or 1.0
    return np.rint((known - low) / step).astype("<u2").tobytes(), low, high

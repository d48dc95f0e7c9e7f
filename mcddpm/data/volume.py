"""A scan, whatever file it came from: its slices, read when asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from mcddpm.physics import masks

VolumeKind = Literal["kspace", "image"]


@dataclass(frozen=True)
class Geometry:
    """Where slices lie: an affine from (column, row, slice) to RAS+ millimetres as NIfTI has it, and a DICOM header."""

    affine: np.ndarray | None = None
    dicom: Any = None

    @property
    def spacing(self) -> tuple[float, float, float]:
        """(slice, row, column) spacing in millimetres; 1 where unknown."""
        if self.affine is None:
            return 1.0, 1.0, 1.0
        column, row, slice_ = np.linalg.norm(self.affine[:3, :3], axis=0)
        return float(slice_), float(row), float(column)


@dataclass(frozen=True)
class Volume:
    """shape: (slices, H, W) or (slices, C, H, W); kind: "kspace" or "image"; mask: what a prospective scan sampled.

    inferred: the mask was not stored but is where one slice has values; others may have been sampled elsewhere.
    noise: the covariance of the coils' noise in each part, (C, C), in the units of k-space, where it was measured.
    """

    path: Path
    kind: VolumeKind
    shape: tuple[int, ...]
    read: Callable[[int], np.ndarray] = field(repr=False)
    mask: Tensor | None = None
    inferred: bool = False
    acquisition: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)
    geometry: Geometry = field(default_factory=Geometry, repr=False)
    references: dict[str, Callable[[int], np.ndarray]] = field(default_factory=dict, repr=False)
    noise: Tensor | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def coils(self) -> int:
        """0 if there is no coil axis."""
        return self.shape[1] if len(self.shape) == 4 else 0

    def __getitem__(self, index: int) -> Tensor:
        """A slice, complex64 (k-space, complex images) or float32; refused if it holds no usable numbers."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.path} has {len(self)} slices, there is no slice {index}")
        values = np.asarray(self.read(index % len(self)))
        if values.dtype.kind not in "fciub":
            raise ValueError(f"{self.path}, slice {index} has dtype {values.dtype}, expected real or complex numbers")
        if values.shape != self.shape[1:]:
            raise ValueError(f"{self.path}, slice {index} has shape {values.shape}, expected {self.shape[1:]}")
        dtype = np.complex64 if values.dtype.kind == "c" else np.float32
        fresh = values.dtype == dtype and values.flags.c_contiguous and values.flags.owndata  # nobody else's: no copy
        values = values if fresh else np.array(values, dtype, order="C")
        # The sum is finite if all values are, and quicker; where it is not, look again.
        if not np.isfinite(values.view(np.float32).sum()) and not np.isfinite(values).all():
            raise ValueError(f"{self.path}, slice {index} holds NaN or infinite values")
        return torch.from_numpy(values)

    def reference(self, name: str, index: int) -> Tensor | None:
        """A reference image that came with the file (reconstruction_rss, reconstruction_esc), (H, W), or None."""
        read = self.references.get(name)
        if read is None:
            return None
        if not 0 <= index < len(self):
            raise IndexError(f"{self.path} has {len(self)} slices, there is no slice {index}")
        values = np.asarray(read(index), dtype=np.float32)
        if not np.isfinite(values).all():
            raise ValueError(f"{self.path}, {name}, slice {index} holds NaN or infinite values")
        return torch.from_numpy(values)


def infer_mask(read: Callable[[int], np.ndarray], slices: int) -> Tensor | None:
    """The mask of the slice nearest to the middle that holds anything, as `columns_not_zero` has it."""
    for index in sorted(range(slices), key=lambda k: abs(k - slices // 2)):
        kspace = np.asarray(read(index))
        if kspace.any():
            return columns_not_zero(kspace)
    return None


def columns_not_zero(kspace: np.ndarray) -> Tensor | None:
    """The mask of a prospective scan that was stored with zeros: columns without any value.

    None if there is no gap between columns that have some: zeros at the edges alone are padding, not under-sampling.
    """
    sampled = (kspace != 0).reshape(-1, kspace.shape[-1]).any(0)
    places = np.nonzero(sampled)[0]
    if not len(places) or len(places) == places[-1] - places[0] + 1:
        return None
    return torch.from_numpy(sampled)


def summary(volume: Volume) -> str:
    """What a file holds, in words, after reading every slice of it."""
    top = 0.0
    for index in range(len(volume)):
        largest = float(volume[index].abs().max())
        if volume.kind == "kspace" and largest == 0:
            raise ValueError(f"{volume.path}, slice {index} is zero everywhere")
        top = max(top, largest)
    height, width = volume.shape[-2:]
    coils = f", {volume.coils} coils" if volume.coils else ""
    sampled = "" if volume.mask is None else f", {masks.acceleration(volume.mask):.2f}x under-sampled"
    extra = "".join(f", {name}" for name in (volume.acquisition, *volume.references) if name)
    what = f"{volume.kind}, {len(volume)} slices of {height} x {width}{coils}{sampled}{extra}"
    return f"{volume.path}: {what}; up to {top:.4g}"

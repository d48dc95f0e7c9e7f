"""What is written of a scan: images, samples and where they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from mcddpm.system.settings import check_choice


@dataclass(frozen=True)
class Result:
    """mean, std: (slices, H, W), real; std is None if there is but one sample. samples: for each slice (N, H, W),
    complex or real, read one slice at a time; affine: as `readers.Geometry` has it; interval: its lower and upper ends,
    each as mean; beside: what else h5 files keep, as the zero-filled image, the mask, the
    truth; comments: what DICOM files say of a slice, by its number."""

    mean: np.ndarray
    std: np.ndarray | None
    provenance: dict[str, Any]
    samples: Sequence[np.ndarray] | np.ndarray | None = None
    affine: np.ndarray | None = None
    dicom: Any = None
    modality: Literal["MR", "CT"] = "MR"
    interval: tuple[np.ndarray, np.ndarray] | None = None
    beside: Mapping[str, np.ndarray] = field(default_factory=dict)
    comments: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("modality", self.modality, Literal["MR", "CT"])
        std = self.mean if self.std is None else self.std
        if self.mean.ndim != 3 or self.mean.shape != std.shape:
            raise ValueError(f"mean and std have shapes {self.mean.shape} and {std.shape}, expected one (slices, H, W)")
        if self.samples is not None:
            shape = (len(self.samples), *self.samples[0].shape)
            if (shape[0], *shape[2:]) != self.mean.shape:
                raise ValueError(f"samples have shape {shape}, expected (slices, N, H, W) of {self.mean.shape}")

    @property
    def images(self) -> dict[str, np.ndarray]:
        """What every format shows: mean, and std and the ends of the interval if there are any."""
        ends = {} if self.interval is None else dict(zip(("lower", "upper"), self.interval, strict=True))
        return {"mean": self.mean} | ({} if self.std is None else {"std": self.std}) | ends

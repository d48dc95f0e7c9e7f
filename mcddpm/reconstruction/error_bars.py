"""What error bars and a self-check add to a slice, a scan and a run. `mcddpm.uncertainty` makes them; here they are
only asked for, kept and passed on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from mcddpm.models.denoiser import Denoiser
from mcddpm.physics.measurement import Measurement
from mcddpm.reconstruction.result import Reconstruction
from mcddpm.system.progress import Notice


@dataclass(frozen=True)
class SliceBars:
    """images: beside the samples, as lower, upper and surprise; notes: as JSON has them."""

    images: Mapping[str, np.ndarray] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True)
class ScanBars:
    """provenance: JSON for the result; comments: of single slices, by number; notices: for the person who waits."""

    provenance: Mapping[str, Any] = field(default_factory=dict)
    comments: Mapping[int, str] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()


class ErrorBars(Protocol):
    @property
    def origin(self) -> Mapping[str, Any]:
        """What they were fitted on: part of what a run is."""

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What to say of that."""

    def of_slice(
        self, model: Denoiser, measurement: Measurement, recon: Reconstruction, *, seed: int, memory: float | str
    ) -> SliceBars: ...

    def of_scan(self, name: str, slices: Sequence[Mapping[str, Any]]) -> ScanBars:
        """From the notes of all its slices."""

    def of_run(self, scans: Mapping[str, Mapping[str, Any] | None]) -> tuple[Notice, ...]:
        """From the provenance of each scan; None for those that are not finished."""

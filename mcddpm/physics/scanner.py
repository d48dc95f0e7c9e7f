"""The operator that a configuration names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mcddpm.physics.coils import coil_maps
from mcddpm.physics.ct import Radon
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.operator import Kind, Operator
from mcddpm.physics.sense import Sense
from mcddpm.system.seeds import seed_of


@dataclass(frozen=True)
class OperatorChoice:
    """The operator that a configuration names."""

    kind: Kind = "fourier"
    """`fourier`: MRI with one coil. `sense`: MRI with several coils. `radon`: CT."""
    maps: str = ""
    """For `sense`: a `.npy` file of coil maps (C, H, W), or `"simulated:8"` for eight simulated coils."""
    views: int = 180
    """For `radon`: how many views over 180 degrees."""

    def operator(self, shape: tuple[int, int], seed: int) -> Operator:
        """For images of this shape. seed: of maps that are simulated."""
        if self.kind == "fourier":
            return Fourier()
        if self.kind == "radon":
            return Radon(shape, self.views)
        A = Sense(self._coil_maps(shape, seed))
        if A.image_shape != shape:
            raise ValueError(f"the maps in {self.maps} are for {A.image_shape}, the slices are {shape}")
        return A

    def _coil_maps(self, shape: tuple[int, int], seed: int) -> Tensor:
        """Coil maps (C, H, W) from a .npy, or "simulated:C"."""
        name, _, coils = self.maps.partition(":")
        if name == "simulated" and coils.isdigit():
            return coil_maps(int(coils), shape, seed_of(seed, 7))
        if not Path(self.maps).is_file():
            raise ValueError(
                "operator sense needs operator.maps: a .npy of coil maps (C, H, W), or "
                f'"simulated:8"; got {self.maps!r}'
            )
        return torch.from_numpy(np.load(self.maps, allow_pickle=False)).to(torch.complex64)

"""What is kept of a reconstruction whose truth is known: enough to fit intervals, and to see after the fact what they
cover."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from mcddpm.data.cases import fitted, target_of
from mcddpm.physics import masks
from mcddpm.physics.measurement import Measurement
from mcddpm.reconstruction.result import Reconstruction
from mcddpm.system.workspace import Piece
from mcddpm.uncertainty.conformal import Slice


def arrays_of(recon: Reconstruction, measurement: Measurement) -> dict[str, np.ndarray]:
    """Mean, std and truth in the truth's matrix and in the scan's own units; its scale and acceleration."""
    target = target_of(measurement)
    images = {"mean": fitted(recon.mean, target), "std": fitted(recon.std, target), "target": target}
    arrays = {name: np.asarray(image, np.float32) for name, image in images.items()}
    return arrays | {"scale": np.array(measurement.scale), "reached": np.array(masks.acceleration(measurement.mask))}


def slice_of(piece: Piece, surprise: float | None = None) -> Slice:
    """In the measurement's scale, as intervals are fitted."""
    scale = piece["scale"]
    mean, std, truth = (torch.from_numpy(piece[key] * scale) for key in ("mean", "std", "target"))
    return Slice(mean, std, truth, math.nan if surprise is None else surprise)


def images_of(piece: Piece) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, std and truth in the scan's own units."""
    mean, std, truth = (torch.from_numpy(piece[key]) for key in ("mean", "std", "target"))
    return mean, std, truth

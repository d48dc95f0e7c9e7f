"""The phase of a complex MR image: none, constant, or a sum of what gives real scans theirs. Radians, not wrapped."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from mcddpm.simulation.fields import blur, chance, field, high_value, log_uniform
from mcddpm.simulation.wide import Wide

COARSE = 128  # side of the grid on which fields of dipoles are found: they are smooth outside of their sources
STEEPEST_NEAR_AIR = 0.6  # radians a pixel that a dipole field reaches at most, beyond which voxels would lose signal

Part = Callable[[Tensor, np.random.RandomState, Wide], Tensor]


def phase(shape: tuple[int, int], magnitude: Tensor, seed: int, wide: Wide) -> Tensor:
    """A random sum of `PARTS`, of any bandwidth; or exactly 0; or constant.  magnitude: (H, W) -> radians, (H, W)"""
    if tuple(magnitude.shape) != tuple(shape):
        raise ValueError(f"the magnitude has shape {tuple(magnitude.shape)}, expected {tuple(shape)}")
    rng = np.random.RandomState(seed)
    kind = rng.uniform()
    if kind < wide.no_phase:
        return torch.zeros(shape)
    total = torch.full(shape, float(rng.uniform(-math.pi, math.pi)))
    if kind < wide.no_phase + wide.constant_phase:
        return total
    chosen = [part for part, often in PARTS if chance(rng, often)] or [smooth]
    for part in chosen:
        total = total + part(magnitude, rng, wide)
    return total


def ramp(magnitude: Tensor, rng: np.random.RandomState, wide: Wide) -> Tensor:
    """An echo off the centre of k-space by (d, e) samples: 2 pi (d i / H + e j / W)."""
    (i, j), angle = _places(magnitude), rng.uniform(0, 2 * math.pi)
    distance = 2 * math.pi * log_uniform(rng, wide.echo)
    return distance * (math.sin(angle) * i + math.cos(angle) * j)


def bowl(magnitude: Tensor, rng: np.random.RandomState, wide: Wide) -> Tensor:
    """A polynomial of second and third order, as imperfect shims and eddy currents leave."""
    i, j = (2 * place for place in _places(magnitude))
    terms = [i * i, i * j, j * j, i**3, i * i * j, i * j * j, j**3]
    part = torch.stack([float(rng.normal()) * term for term in torch.broadcast_tensors(*terms)]).sum(0)
    return _amplitude(rng, wide, 0.5) / 2 * part


def smooth(magnitude: Tensor, rng: np.random.RandomState, wide: Wide) -> Tensor:
    """A Gaussian random field of random correlation length: shim, coils, flow, and all else that is smooth."""
    length = log_uniform(rng, (0.04, 0.7))
    return _amplitude(rng, wide, length) * field(_shape(magnitude), rng, length)


def dipoles(magnitude: Tensor, rng: np.random.RandomState, wide: Wide) -> Tensor:
    """The field of what is more or less magnetic than tissue: air around and in the object, and blobs at its edge."""
    height, width = _shape(magnitude)
    step = max(1, round(max(height, width) / COARSE))
    coarse = interpolate(magnitude[None, None], (height // step, width // step), mode="area")[0, 0]
    tissue = blur((coarse > 0.12 * high_value(coarse)).float(), 1.0)
    chi = (tissue if chance(rng, 0.6) else torch.zeros_like(tissue)) + _blobs(tissue, rng)
    shifted = dipole_field(chi, rng.uniform(0, math.pi), rng.uniform(0.5, 1.5))
    fine = interpolate(shifted[None, None], (height, width), mode="bicubic", align_corners=False)[0, 0]
    fine = fine / _spread(fine, tissue_of=magnitude)
    steep = max(high_value(fine.diff(dim=axis).abs()) for axis in (0, 1))
    amplitude = min(log_uniform(rng, wide.phase), STEEPEST_NEAR_AIR / max(steep, 1e-6))
    return (amplitude if chance(rng, 0.5) else -amplitude) * fine


def dipole_field(chi: Tensor, angle: float, std: float) -> Tensor:
    """F^-1 (1/3 - cos^2(angle of k to B_0)) F chi, of objects that are long across the plane, blurred by std pixels.

    chi: (H, W), 0 beyond its edge; angle: of B_0 from the columns' axis, towards the rows'.
    """
    height, width = chi.shape
    k, l = torch.fft.fftfreq(2 * height)[:, None], torch.fft.rfftfreq(2 * width)
    k2 = (k * k + l * l).clamp(min=1e-12)
    kernel = 1 / 3 - (math.sin(angle) * k + math.cos(angle) * l).square() / k2
    kernel[0, 0] = 0
    kernel = kernel * torch.exp(-2 * (math.pi * std) ** 2 * k2)
    padded = torch.nn.functional.pad(chi, (0, width, 0, height))
    return torch.fft.irfft2(torch.fft.rfft2(padded) * kernel, s=(2 * height, 2 * width))[:height, :width]


def tissues(magnitude: Tensor, rng: np.random.RandomState, wide: Wide) -> Tensor:
    """An offset where the image is bright, by any angle, as fat has; or a small one that goes with brightness."""
    v = blur(magnitude / max(high_value(magnitude, 0.995), 1e-12), 0.6)
    if chance(rng, 0.5):
        return float(rng.uniform(-0.8, 0.8)) * torch.sigmoid((v - rng.uniform(0.2, 0.7)) / rng.uniform(0.08, 0.2))
    offset = math.pi if chance(rng, 0.3) else rng.uniform(-math.pi, math.pi)
    return float(offset) * torch.sigmoid((v - rng.uniform(0.65, 0.95)) / rng.uniform(0.03, 0.08))


PARTS: tuple[tuple[Part, float], ...] = ((ramp, 0.4), (bowl, 0.4), (smooth, 0.6), (dipoles, 0.35), (tissues, 0.3))


def _amplitude(rng: np.random.RandomState, wide: Wide, length: float) -> float:
    """Radians, so that a field of this correlation length (in fields of view) is not too steep for a voxel."""
    low, high = min(wide.phase), max(wide.phase)
    return log_uniform(rng, (low, max(low, min(high, wide.steepest * length))))


def _blobs(tissue: Tensor, rng: np.random.RandomState) -> Tensor:
    """Up to four round pieces of air or metal where tissue ends, with an edge of about a pixel."""
    chi = torch.zeros_like(tissue)
    edges = ((tissue > 0.2) & (tissue < 0.8)).nonzero()
    if len(edges) == 0:
        return chi
    i, j = (torch.arange(n, dtype=torch.float32) for n in tissue.shape)
    for _ in range(rng.randint(1, 5)):
        y, x = edges[rng.randint(len(edges))].tolist()
        radius = log_uniform(rng, (1, 8))
        distance = torch.hypot((i[:, None] - y) * log_uniform(rng, (0.6, 1.6)), j - x)
        chi -= rng.uniform(0.3, 1.5) * torch.sigmoid((radius - distance) / 0.7)
    return chi


def _spread(values: Tensor, tissue_of: Tensor) -> float:
    """The mean size of a field in tissue, about."""
    tissue = tissue_of > 0.12 * high_value(tissue_of)
    inside = values[tissue] if bool(tissue.any()) else values.flatten()
    return 2 * max(float(inside.std(unbiased=False)), 1e-6)


def _places(image: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (H, 1) and columns (W,), -1/2 ... 1/2."""
    i, j = (torch.arange(n) / n - 0.5 for n in image.shape)
    return i[:, None], j


def _shape(image: Tensor) -> tuple[int, int]:
    return image.shape[0], image.shape[1]

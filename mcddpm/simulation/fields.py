"""Smooth fields by seed, and smoothing: what simulated contrast, bias, phase and coils are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def chance(rng: np.random.RandomState, part: float) -> bool:
    """True in this part of all draws."""
    return bool(rng.uniform() < part)


def log_uniform(rng: np.random.RandomState, between: Sequence[float]) -> float:
    """A number of which the logarithm is uniform; between: its least and its largest value, above 0."""
    low, high = min(between), max(between)
    return float(low * (high / low) ** rng.uniform())


def field(shape: tuple[int, int], rng: np.random.RandomState, length: float) -> Tensor:
    """A Gaussian random field (H, W), zero mean, unit variance, correlation exp(-d^2 / (2 length^2)).

    length and d are in parts of the field of view, of each axis. Its period is twice the field of view, or more than
    6 lengths, so that opposite edges do not know of each other.
    """
    period = max(2.0, 6 * length)
    count = math.ceil(period / (2 * math.pi * length) * 3)  # to where the spectrum is exp(-4.5)
    u, v = torch.arange(-count, count + 1.0), torch.arange(count + 1.0)
    spectrum = torch.exp(-((2 * math.pi * length / period) ** 2) * (u[:, None] ** 2 + v**2) / 4)
    spectrum[:, 1:] *= math.sqrt(2)  # v and -v
    parts = torch.from_numpy(rng.normal(size=(2, len(u), len(v)))).float() * spectrum
    parts /= spectrum.square().sum().sqrt()
    rows, columns = (
        torch.polar(torch.ones(n, len(k)), 2 * math.pi / period * torch.arange(n)[:, None] / n * k)
        for n, k in zip(shape, (u, v), strict=True)
    )
    return (rows @ torch.complex(*parts) @ columns.T).real


def blur(images: Tensor, std: float) -> Tensor:
    """Convolved with a Gaussian of this std in pixels, (..., H, W); beyond an edge the opposite one follows."""
    height, width = images.shape[-2], images.shape[-1]
    i, j = torch.fft.fftfreq(height), torch.fft.rfftfreq(width)
    rows, columns = (torch.exp(-2 * (math.pi * std) ** 2 * k**2) for k in (i, j))
    return torch.fft.irfft2(torch.fft.rfft2(images) * (rows[:, None] * columns), s=(height, width))


def high_value(image: Tensor, part: float = 0.99) -> float:
    """The value that this part of the image is below, from every fourth pixel. (A sort of all would be slow.)"""
    values = image[::2, ::2].flatten()
    return float(values.kthvalue(max(1, math.ceil(part * len(values)))).values)

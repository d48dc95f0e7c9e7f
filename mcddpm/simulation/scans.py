"""What a magnitude image lacks to be a scan: phase, noise, coils; for CT, attenuation. And augmentation. All by seed.

Magnitude images have a Hermitian k-space, which would make reconstruction unrealistically easy: every simulated scan
gets a smooth random phase and complex noise, and every result says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

WATER = 0.0193  # attenuation of water at 70 keV, 1/mm


def smooth_phase(shape: tuple[int, int], seed: int, strength: float = 1.0) -> Tensor:
    """A random field in radians made of a few low frequencies, (H, W); std about `strength` times a radian."""
    rng = np.random.RandomState(seed)
    i, j = ((torch.arange(n) / n - 0.5)[:, None] for n in shape)
    u, v = torch.arange(-2.0, 3.0), torch.arange(3.0)
    size = strength * torch.from_numpy(rng.normal(size=(5, 3))).float() / (1 + u[:, None] ** 2 + v**2)
    angle = 2 * math.pi * torch.from_numpy(rng.uniform(size=(5, 3))).float()
    # The sum of size cos(pi (u i + v j) + angle) over u and v, as a product of small matrices. (In torch: numpy's own
    # threads would fight with torch's for the cores.)
    phase = _turns(i * u) @ torch.complex(size * angle.cos(), size * angle.sin()) @ _turns(j * v).T
    return phase.real + rng.uniform(-math.pi, math.pi)


def _turns(half: Tensor) -> Tensor:
    return torch.polar(torch.ones_like(half), math.pi * half)


def complex_noise(shape: tuple[int, ...], std: float, seed: int) -> Tensor:
    """White noise of this std in each of the real and imaginary part."""
    g = torch.Generator().manual_seed(seed)
    return torch.view_as_complex(std * torch.randn(*shape, 2, generator=g))


def scan(magnitude: Tensor, seed: int, *, phase: float = 1.0, snr: float = 30.0) -> Tensor:
    """A complex image as a scanner could have measured it, (H, W): smooth phase, and noise at a stated SNR.

    snr: the mean of the foreground (above a tenth of the maximum) over the noise's std in each part; infinite: none.
    """
    x = torch.polar(magnitude.float(), smooth_phase(_plane(magnitude), seed, phase)) if phase else magnitude + 0j
    std = noise_std(magnitude, snr)
    return x + complex_noise(_plane(magnitude), std, seed + 1) if std else x


def noise_std(magnitude: Tensor, snr: float) -> float:
    """The std, in each part, of noise at this SNR: 0 if it is infinite. The orthonormal FFT keeps it."""
    if not snr > 0:
        raise ValueError(f"snr is {snr}, expected a value above 0")
    return float(magnitude[magnitude > 0.1 * magnitude.max()].mean()) / snr


def attenuation(hounsfield: Tensor) -> Tensor:
    """HU -> linear attenuation in 1/mm: mu = mu_water (1 + HU / 1000), never below that of air."""
    return WATER * (1 + hounsfield.clamp(min=-1000) / 1000)


def augment(
    image: Tensor, seed: int, *, shift: float = 8.0, turn: float = 10.0, zoom: float = 0.0, intensity: float = 0.1
) -> Tensor:
    """A real image flipped, shifted (pixels), turned (degrees) and changed in contrast, as its seed decides.  (H, W)

    zoom: 0.1 makes it up to 10 % larger or smaller.
    """
    rng = np.random.RandomState(seed)
    height, width = _plane(image)
    angle = math.radians(rng.uniform(-turn, turn))
    mirror = 1.0 if rng.uniform() < 0.5 else -1.0
    cos, sin = math.cos(angle), math.sin(angle)
    # grid_sample's coordinates run from -1 to 1 along each axis, so a turn scales by the aspect ratio.
    aspect = height / width
    dx, dy = 2 * rng.uniform(-shift, shift) / width, 2 * rng.uniform(-shift, shift) / height
    theta = torch.tensor([[[mirror * cos, -mirror * sin * aspect, dx], [sin / aspect, cos, dy]]], dtype=torch.float32)
    gamma, size = 1 + rng.uniform(-intensity, intensity), 1 + rng.uniform(-zoom, zoom)
    theta[:, :, :2] /= size
    grid = torch.nn.functional.affine_grid(theta, [1, 1, height, width], align_corners=False)
    source = image.float()[None, None]
    moved = torch.nn.functional.grid_sample(source, grid, mode="bicubic", padding_mode="zeros", align_corners=False)
    moved = moved[0, 0].clamp(min=0)
    top = moved.max().clamp(min=1e-12)
    return top * (moved / top) ** float(gamma)


def _plane(image: Tensor) -> tuple[int, int]:
    return image.shape[-2], image.shape[-1]


@dataclass(frozen=True)
class Simulation:
    """What real-valued MR images get before they are measured; in training, augmentation too."""

    phase: float = 1.0
    """Strength of the smooth random phase, in radians. 0: none, which makes the problem too easy."""
    snr: tuple[float, ...] = (20.0, 60.0)
    """Range of the signal-to-noise ratio. Each slice gets a value from it."""
    wide: bool = False
    """Whether contrast, geometry, phase, coils, masks and noise are as wide as real scans, as section `wide` has them,
    in the place of the keys of this section, of `mask` and of `operator`."""
    exact: float = 0.2
    """With `model.noise`: the part of the training examples that count as measured without noise, as in the paper."""
    augment: bool = True
    """Whether training images are flipped, shifted, turned and changed in size and contrast."""
    shift: float = 8.0
    """Largest shift, in pixels."""
    turn: float = 10.0
    """Largest turn, in degrees."""
    zoom: float = 0.0
    """Largest change of size: 0.1 is up to 10 % larger or smaller."""
    intensity: float = 0.1
    """Largest change of the exponent of the intensities: 0.3 is gamma 0.7 to 1.3."""
